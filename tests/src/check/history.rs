//! The store's event log, decoded: what each revision did to jobs, cursors, runs and sessions.

use std::collections::BTreeMap;
use std::sync::Arc;

use punctual::backend::{Entry, Event};
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

/// What stood under a key, if anything did that can be read. Decoded once, though it is seen twice:
/// as what a change brought, and as what the next one met.
pub type Held<T> = Option<Arc<Stood<T>>>;

/// A change of one key.
#[derive(Clone, Debug)]
pub enum Change {
    /// Of a job.
    Job {
        /// Which.
        id: String,
        /// Its record until then.
        before: Held<JobRecord>,
        /// Its record since.
        after: Held<JobRecord>,
    },
    /// Of a cursor.
    Cursor {
        /// Which.
        partition: u16,
        /// Until then.
        before: Held<CursorRecord>,
        /// Since.
        after: Held<CursorRecord>,
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
        after: Held<LeaderRecord>,
    },
    /// Of a session.
    Session {
        /// Whose.
        owner: Owner,
        /// Whether it is there since.
        there: bool,
    },
    /// Of a slot of a job.
    Slot {
        /// Whose.
        job: String,
        /// Which.
        index: u32,
        /// Whether it is held since.
        held: bool,
    },
    /// Of the wish to end a run.
    Cancel {
        /// Which.
        run: String,
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
    pub before: Held<RunRecord>,
    /// Since.
    pub after: Held<RunRecord>,
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
    pub last: BTreeMap<&'a [u8], (&'a [u8], u64)>,
    /// Records that could not be decoded.
    pub unreadable: Vec<String>,
}

/// What stands under a key for now.
struct Standing<'a> {
    value: &'a [u8],
    modified: u64,
    record: Record,
}

/// A decoded value.
#[derive(Clone)]
enum Record {
    Job(Held<JobRecord>),
    Cursor(Held<CursorRecord>),
    Run(Held<RunRecord>),
    Gone(Held<GoneRecord>),
    Leader(Held<LeaderRecord>),
    Other,
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
        let mut state: BTreeMap<&'a [u8], Standing<'a>> = BTreeMap::new();
        for logged in &observed.log {
            let mut changes = Vec::with_capacity(logged.events.len());
            for event in &logged.events {
                let key = event.key();
                let after = match event {
                    Event::Put(entry) => Some(Standing {
                        value: &entry.value,
                        modified: entry.modified.0,
                        record: history.record(&keys, key, entry),
                    }),
                    Event::Delete { .. } => None,
                };
                if let Some(standing) = &after
                    && let Some((job, generation)) = keys.parse_def(key)
                    && let Ok(spec) = decode(standing.value)
                {
                    let all = history.definitions.entry((job, generation)).or_default();
                    all.push((logged.revision.0, spec));
                }
                let since = after.as_ref().map(|standing| standing.record.clone());
                let before = match after {
                    Some(after) => state.insert(key, after),
                    None => state.remove(key),
                };
                let until = before.map(|standing| standing.record);
                changes.push(change(&keys, key, until, since));
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
            .map(|(key, standing)| (key, (standing.value, standing.modified)))
            .collect();
        history
    }

    /// What a put brought.
    fn record(&mut self, keys: &Keys, key: &[u8], entry: &Entry) -> Record {
        if let Some((_, Some(_))) = keys.parse_job(key) {
            Record::Job(self.stood(entry))
        } else if keys.parse_cursor(key).is_some() {
            Record::Cursor(self.stood(entry))
        } else if keys.parse_attempt(key).is_some_and(|_| !is_late(key)) {
            Record::Run(self.stood(entry))
        } else if keys.parse_gone(key).is_some() {
            Record::Gone(self.stood(entry))
        } else if key == keys.leader() {
            Record::Leader(self.stood(entry))
        } else {
            Record::Other
        }
    }

    fn stood<T: serde::de::DeserializeOwned>(&mut self, entry: &Entry) -> Held<T> {
        match decode(&entry.value) {
            Ok(record) => Some(Arc::new(Stood {
                record,
                created: entry.created.0,
                modified: entry.modified.0,
            })),
            Err(error) => {
                self.unreadable
                    .push(format!("{}: {error}", String::from_utf8_lossy(&entry.key)));
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

fn is_late(key: &[u8]) -> bool {
    kind(key) == Some(b"late")
}

/// The second part of a key: `/{namespace}/{kind}/..`.
fn kind(key: &[u8]) -> Option<&[u8]> {
    key.split(|byte| *byte == b'/').nth(2)
}

/// The change of a key whose record was one and is the other.
fn change(keys: &Keys, key: &[u8], until: Option<Record>, since: Option<Record>) -> Change {
    if let Some((_, Some(id))) = keys.parse_job(key) {
        let held = |record| match record {
            Some(Record::Job(held)) => held,
            _ => None,
        };
        return Change::Job {
            id,
            before: held(until),
            after: held(since),
        };
    }
    if let Some(partition) = keys.parse_cursor(key) {
        let held = |record| match record {
            Some(Record::Cursor(held)) => held,
            _ => None,
        };
        return Change::Cursor {
            partition,
            before: held(until),
            after: held(since),
        };
    }
    if let Some(attempt) = keys.parse_attempt(key).filter(|_| !is_late(key)) {
        let held = |record| match record {
            Some(Record::Run(held)) => held,
            _ => None,
        };
        let step = Step {
            key: attempt,
            before: held(until),
            after: held(since),
        };
        return if kind(key) == Some(b"run") {
            Change::Run(step)
        } else {
            Change::Done(step)
        };
    }
    if let Some((_, job, index)) = keys.parse_slot(key) {
        let held = since.is_some();
        return Change::Slot { job, index, held };
    }
    if let Some(run) = keys.parse_cancel(key) {
        let there = since.is_some();
        return Change::Cancel { run, there };
    }
    if let Some((node, incarnation)) = keys.parse_node(key) {
        return Change::Session {
            owner: Owner { node, incarnation },
            there: since.is_some(),
        };
    }
    match since {
        Some(Record::Leader(after)) => return Change::Leader { after },
        None if key == keys.leader() => return Change::Leader { after: None },
        _ => {}
    }
    if let Some((_, id)) = keys.parse_gone(key) {
        let deleted_ms = match since {
            Some(Record::Gone(Some(gone))) => Some(gone.record.deleted_ms),
            _ => None,
        };
        return Change::Gone { id, deleted_ms };
    }
    Change::Other
}
