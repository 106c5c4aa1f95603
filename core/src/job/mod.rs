//! Jobs (templates) and runs (their fires).

pub mod finish;
pub mod notes;
pub mod parts;
mod plain;
pub mod record;
pub mod run;
pub mod spec;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backend::Revision;
use crate::duration::Millis;
use crate::schedule::{Calendars, Schedule};
use record::{DecodeError, JobRecord};
use spec::JobSpec;

/// An immutable definition, with its schedule compiled.
#[derive(Clone, Debug)]
pub struct Definition {
    /// What the file said.
    pub spec: JobSpec,
    /// When it fires.
    pub schedule: Schedule,
}

impl Definition {
    /// Decodes a record under `def/`. `created_ms` is the job's, the anchor of `every`.
    ///
    /// # Errors
    /// [`DecodeError`] for what is no definition, and for a schedule that this version refuses.
    pub fn decode(bytes: &[u8], created_ms: i64) -> Result<Self, DecodeError> {
        let spec: JobSpec = record::decode(bytes)?;
        let schedule = Schedule::compile(&spec.schedule, created_ms, &Calendars::default())
            .map_err(|e| DecodeError::new(format!("schedule.{}: {}", e.field, e.message)))?;
        Ok(Self { spec, schedule })
    }

    /// How much later than its instant a run may start, so that jobs do not start all at once.
    #[must_use]
    pub fn jitter(&self) -> Millis {
        self.spec.schedule.jitter.unwrap_or_default()
    }
}

/// A job as the store holds it, its definitions decoded.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its id.
    pub id: Arc<str>,
    /// Created revision of its key: tells this life of the id from others.
    pub uid: Revision,
    /// Revision of its last change.
    pub modified: Revision,
    /// Its record.
    pub record: JobRecord,
    /// The definitions that its segments name.
    pub definitions: BTreeMap<u64, Arc<Definition>>,
}

impl Job {
    /// The definition in force, if it could be decoded.
    #[must_use]
    pub fn definition(&self) -> Option<&Arc<Definition>> {
        self.definitions.get(&self.record.generation)
    }
}
