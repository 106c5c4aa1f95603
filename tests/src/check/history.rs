//! The store's event log, decoded: what each revision did to jobs, cursors, runs and sessions.

use std::collections::BTreeMap;

use punctual::backend::Event;
use punctual::handler::FencingToken;
use punctual::job::record::{CursorRecord, GoneRecord, JobRecord, LeaderRecord, RunRecord, decode};
use punctual::job::run::Owner;
use punctual::job::spec::JobSpec;
use punctual::keys::{AttemptKey, Keys};

use crate::sim::executor::Proc;
use crate::sim::world::{NAMESPACE, Observed};

/// A record and the revisions of its key.
#[derive(Clone, Debug, PartialEq)]
pub struct Stood<T> {
    /// The record.
    pub record: T,
    /// When the key was created.
    pub created: u64,
    /// When it was put last.
    pub modified: u64,
}

/// A change of one key.
#[derive(Clone, Debug)]
pub enum Change {
    /// Of a job.
    Job {
        /// Which.
        id: String,
        /// Its record until then.
        before: Option<Stood<JobRecord>>,
        /// Its record since.
        after: Option<Stood<JobRecord>>,
    },
    /// Of a cursor.
    Cursor {
        /// Which.
        partition: u16,
        /// Until then.
        before: Option<CursorRecord>,
        /// Since.
        after: Option<CursorRecord>,
    },
    /// Of a record under `run/`.
    Run(Step),
    /// Of a record under `done/`.
    Done(Step),
    /// A job was deleted, or what was remembered of that is gone (`None`).
    Gone {
        /// Which.
        id: String,
        /// When, by the clock of whoever deleted it.
        deleted_ms: Option<i64>,
    },
    /// Of the leader's key.
    Leader {
        /// Since.
        after: Option<Stood<LeaderRecord>>,
    },
    /// Of a session.
    Session {
        /// Whose.
        owner: Owner,
        /// Whether it is there since.
        there: bool,
    },
    /// Of something else.
    Other,
}

/// A change of an attempt's record.
#[derive(Clone, Debug)]
pub struct Step {
    /// Which.
    pub key: AttemptKey,
    /// Until then.
    pub before: Option<Stood<RunRecord>>,
    /// Since.
    pub after: Option<Stood<RunRecord>>,
}

/// One revision.
#[derive(Clone, Debug)]
pub struct Revised {
    /// Which.
    pub revision: u64,
    /// Virtual time.
    pub at_ms: u64,
    /// Unix milliseconds.
    pub unix_ms: i64,
    /// Who wrote.
    pub writer: Option<Proc>,
    /// What changed.
    pub changes: Vec<Change>,
}

/// A history that is checked.
#[derive(Debug)]
pub struct History<'a> {
    /// What was observed.
    pub observed: &'a Observed,
    /// The log.
    pub revisions: Vec<Revised>,
    /// Definitions by job and generation, by the revision that put them.
    pub definitions: BTreeMap<(String, u64), Vec<(u64, JobSpec)>>,
    /// What stands at the end.
    pub last: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
    /// Records that could not be decoded.
    pub unreadable: Vec<String>,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which invariant.
    pub invariant: &'static str,
    /// What happened.
    pub what: String,
}

impl Violation {
    /// A violation.
    pub fn new(invariant: &'static str, what: impl Into<String>) -> Self {
        Self {
            invariant,
            what: what.into(),
        }
    }
}

impl<'a> History<'a> {
    /// Decodes a log.
    #[must_use]
    pub fn new(observed: &'a Observed) -> Self {
        let mut history = Self {
            observed,
            revisions: Vec::new(),
            definitions: BTreeMap::new(),
            last: BTreeMap::new(),
            unreadable: Vec::new(),
        };
        let keys = Keys::new(NAMESPACE);
        // Value, created, modified.
        let mut state: BTreeMap<Vec<u8>, (Vec<u8>, u64, u64)> = BTreeMap::new();
        for logged in &observed.log {
            let mut changes = Vec::new();
            for event in &logged.events {
                let key = event.key().to_vec();
                let before = state.get(&key).cloned();
                let after = match event {
                    Event::Put(entry) => {
                        Some((entry.value.clone(), entry.created.0, entry.modified.0))
                    }
                    Event::Delete { .. } => None,
                };
                match &after {
                    Some(after) => state.insert(key.clone(), after.clone()),
                    None => state.remove(&key),
                };
                if let Some((value, ..)) = &after
                    && let Some((job, generation)) = keys.parse_def(&key)
                    && let Ok(spec) = decode(value)
                {
                    let all = history.definitions.entry((job, generation)).or_default();
                    all.push((logged.revision.0, spec));
                }
                changes.push(history.change(&keys, &key, before.as_ref(), after.as_ref()));
            }
            history.revisions.push(Revised {
                revision: logged.revision.0,
                at_ms: logged.at_ms,
                unix_ms: observed.plan.epoch_ms + logged.at_ms.cast_signed(),
                writer: logged.writer,
                changes,
            });
        }
        history.last = state
            .into_iter()
            .map(|(key, (value, _, modified))| (key, (value, modified)))
            .collect();
        history
    }

    fn change(
        &mut self,
        keys: &Keys,
        key: &[u8],
        before: Option<&(Vec<u8>, u64, u64)>,
        after: Option<&(Vec<u8>, u64, u64)>,
    ) -> Change {
        if let Some((_, Some(id))) = keys.parse_job(key) {
            return Change::Job {
                id,
                before: self.stood(key, before),
                after: self.stood(key, after),
            };
        }
        if let Some(partition) = keys.parse_cursor(key) {
            return Change::Cursor {
                partition,
                before: self.stood(key, before).map(|stood| stood.record),
                after: self.stood(key, after).map(|stood| stood.record),
            };
        }
        if let Some(attempt) = keys.parse_attempt(key) {
            let text = String::from_utf8_lossy(key);
            let kind = text.split('/').nth(2).unwrap_or_default().to_owned();
            if kind == "late" {
                return Change::Other;
            }
            let step = Step {
                key: attempt,
                before: self.stood(key, before),
                after: self.stood(key, after),
            };
            return if kind == "run" {
                Change::Run(step)
            } else {
                Change::Done(step)
            };
        }
        if let Some((node, incarnation)) = keys.parse_node(key) {
            return Change::Session {
                owner: Owner { node, incarnation },
                there: after.is_some(),
            };
        }
        if let Some((_, id)) = keys.parse_gone(key) {
            let gone: Option<Stood<GoneRecord>> = self.stood(key, after);
            return Change::Gone {
                id,
                deleted_ms: gone.map(|gone| gone.record.deleted_ms),
            };
        }
        if key == keys.leader() {
            return Change::Leader {
                after: self.stood(key, after),
            };
        }
        Change::Other
    }

    fn stood<T: serde::de::DeserializeOwned>(
        &mut self,
        key: &[u8],
        entry: Option<&(Vec<u8>, u64, u64)>,
    ) -> Option<Stood<T>> {
        let (value, created, modified) = entry?;
        match decode(value) {
            Ok(record) => Some(Stood {
                record,
                created: *created,
                modified: *modified,
            }),
            Err(error) => {
                self.unreadable
                    .push(format!("{}: {error}", String::from_utf8_lossy(key)));
                None
            }
        }
    }

    /// The definition that this generation of the job named at this revision.
    #[must_use]
    pub fn spec(&self, job: &str, generation: u64, revision: u64) -> Option<&JobSpec> {
        self.definitions
            .get(&(job.to_owned(), generation))?
            .iter()
            .rev()
            .find(|(put, _)| *put <= revision)
            .map(|(_, spec)| spec)
    }

    /// All steps of attempts: their revision, whether under `done/`, the step.
    pub fn steps(&self) -> impl Iterator<Item = (&Revised, bool, &Step)> {
        self.revisions.iter().flat_map(|revised| {
            revised
                .changes
                .iter()
                .filter_map(move |change| match change {
                    Change::Run(step) => Some((revised, false, step)),
                    Change::Done(step) => Some((revised, true, step)),
                    _ => None,
                })
        })
    }

    /// The owner that writes as this process.
    #[must_use]
    pub fn owner(&self, proc: Option<Proc>) -> Option<&Owner> {
        self.observed.lives.get(&proc?).map(|life| &life.owner)
    }

    /// Unix milliseconds as virtual ones.
    #[must_use]
    pub fn virtual_ms(&self, unix_ms: i64) -> i64 {
        unix_ms - self.observed.plan.epoch_ms
    }
}

/// The token of a RUNNING record.
#[must_use]
pub fn token(stood: &Stood<RunRecord>) -> u64 {
    FencingToken::new(0, stood.modified, stood.record.place.unwrap_or(0)).0
}
