//! Jobs (templates) and runs (their fires).

pub mod finish;
mod node_record;
pub mod notes;
pub mod parts;
mod plain;
pub mod pool;
pub mod progress;
pub mod record;
pub mod run;
pub mod spec;

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
    pub spec: Arc<JobSpec>,
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
        Ok(Self {
            spec: Arc::new(spec),
            schedule,
        })
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
    pub definitions: Definitions,
}

/// Definitions by generation. Nearly every job has one, so this is a list and no tree.
#[derive(Clone, Debug, Default)]
pub struct Definitions(Vec<(u64, Arc<Definition>)>);

impl Definitions {
    /// That of a generation.
    #[must_use]
    pub fn get(&self, generation: u64) -> Option<&Arc<Definition>> {
        let found = self.0.iter().find(|(known, _)| *known == generation);
        found.map(|(_, definition)| definition)
    }

    /// Adds one of another generation.
    pub fn insert(&mut self, generation: u64, definition: Arc<Definition>) {
        self.0.reserve_exact(1);
        self.0.push((generation, definition));
    }

    /// All of them, to be replaced.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Arc<Definition>> {
        self.0.iter_mut().map(|(_, definition)| definition)
    }
}

impl FromIterator<(u64, Arc<Definition>)> for Definitions {
    fn from_iter<T: IntoIterator<Item = (u64, Arc<Definition>)>>(all: T) -> Self {
        Self(all.into_iter().collect())
    }
}

impl Job {
    /// The definition in force, if it could be decoded.
    #[must_use]
    pub fn definition(&self) -> Option<&Arc<Definition>> {
        self.definitions.get(self.record.generation)
    }
}
