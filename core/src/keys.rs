//! The only place that spells a key.
//!
//! ```text
//! /{namespace}/meta                              schema, cluster id, epoch, partitions
//!              leader                            leased; its created revision is the term
//!              node/{node}/{incarnation}         leased; its created revision is the session
//!              drain/{node}                      whether the node shall take no work; never deleted
//!              clock/{node}                      leased; what the node's clock shows
//!              job/{pp}                          the partition's `changes`
//!              job/{pp}/{job}                    the job
//!              def/{pp}/{job}/{generation}       immutable definitions
//!              gone/{pp}/{job}                   what is remembered of a deleted job
//!              cursor/{pp}                       how far the partition's schedule is decided
//!              seq/{pp}/{job}                    consumed by every creation outside the cursor
//!              run/{pp}/{job}/{run}/{attempt}    attempts that have not ended
//!              done/{pp}/{job}/{run}/{attempt}   ended attempts and skip records
//!              late/{pp}/{job}/{run}/{attempt}   results that came too late
//!              progress/{pp}/{job}/{run}         how far an unfinished run has come, and its last checkpoint
//!              slot/{pp}/{job}/{i}               held by an execution of a job with limited concurrency
//!              cancel/{run}                      a wish to end the run
//!              idem/{run}                        a caller's key was used, whatever became of the run
//!              after/{job}/{follower}            the follower runs after each success of the job
//!              todo/{run}                        a success whose followers are still to be run
//!              delay/{job}                       the last run of a job that runs some time after it
//!              note/{run}/{attempt}/{event}/{i}  what the i-th receiver of the job is still to be told
//!              trouble/{job}                     the last run of the job ended badly
//! ```
//!
//! No id contains a `/`, so no prefix of one kind reaches into another. Numbers are padded, so
//! that key order is their order.

use std::fmt::Write as _;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::backend::{Key, Span};

use crate::job::notes::NoteKey;
pub use crate::partition::{fnv1a, partition_of};

/// Which attempt of which run a key under `run/` or `done/` names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttemptKey {
    /// The partition.
    pub partition: u16,
    /// The job.
    pub job: String,
    /// The run.
    pub run: String,
    /// The attempt; 0 for a skip record.
    pub attempt: u32,
}

/// The keys of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    root: String,
}

impl Keys {
    /// Keys under `/{namespace}/`.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Self {
            root: format!("/{}/", namespace.trim_matches('/')),
        }
    }

    fn key(&self, rest: std::fmt::Arguments<'_>) -> Key {
        let mut key = String::with_capacity(self.root.len() + 64);
        key.push_str(&self.root);
        // Writing to text cannot fail.
        let _ = key.write_fmt(rest);
        key.into_bytes()
    }

    /// Schema, cluster id, epoch, number of partitions.
    #[must_use]
    pub fn meta(&self) -> Key {
        self.key(format_args!("meta"))
    }

    /// Who leads.
    #[must_use]
    pub fn leader(&self) -> Key {
        self.key(format_args!("leader"))
    }

    /// A node's session.
    #[must_use]
    pub fn node(&self, node: &str, incarnation: &str) -> Key {
        self.key(format_args!("node/{node}/{incarnation}"))
    }

    /// All sessions.
    #[must_use]
    pub fn nodes(&self) -> Span {
        Span::prefix(self.key(format_args!("node/")))
    }

    /// Whether a node is drained.
    #[must_use]
    pub fn drain(&self, node: &str) -> Key {
        self.key(format_args!("drain/{node}"))
    }

    /// All wishes about nodes.
    #[must_use]
    pub fn drains(&self) -> Span {
        Span::prefix(self.key(format_args!("drain/")))
    }

    /// The node that a key under `drain/` names.
    #[must_use]
    pub fn parse_drain(&self, key: &[u8]) -> Option<String> {
        part(self.rest(key, "drain/")?)
    }

    /// The lives of one node.
    #[must_use]
    pub fn lives_of(&self, node: &str) -> Span {
        Span::prefix(self.key(format_args!("node/{node}/")))
    }

    /// What a node's clock shows.
    #[must_use]
    pub fn clock(&self, node: &str) -> Key {
        self.key(format_args!("clock/{node}"))
    }

    /// What all nodes' clocks show.
    #[must_use]
    pub fn clocks(&self) -> Span {
        Span::prefix(self.key(format_args!("clock/")))
    }

    /// The node of a key under `clock/`.
    #[must_use]
    pub fn parse_clock(&self, key: &[u8]) -> Option<String> {
        part(self.rest(key, "clock/")?)
    }

    /// The head of a partition's log of job changes; the first key of [`Keys::jobs_of`].
    #[must_use]
    pub fn changes(&self, partition: u16) -> Key {
        self.key(format_args!("job/{partition:03}"))
    }

    /// A job.
    #[must_use]
    pub fn job(&self, partition: u16, job: &str) -> Key {
        self.key(format_args!("job/{partition:03}/{job}"))
    }

    /// A partition's `changes` and jobs.
    #[must_use]
    pub fn jobs_of(&self, partition: u16) -> Span {
        Span::prefix(self.changes(partition))
    }

    /// All partitions' `changes` and jobs.
    #[must_use]
    pub fn jobs(&self) -> Span {
        Span::prefix(self.key(format_args!("job/")))
    }

    /// The partition, and the job (none for `changes`), that a key under [`Keys::jobs`] names.
    #[must_use]
    pub fn parse_job(&self, key: &[u8]) -> Option<(u16, Option<String>)> {
        let rest = self.rest(key, "job/")?;
        match rest.split_once('/') {
            None => Some((number(rest, 3)?, None)),
            Some((partition, job)) => Some((number(partition, 3)?, Some(part(job)?))),
        }
    }

    /// One definition of a job.
    #[must_use]
    pub fn def(&self, partition: u16, job: &str, generation: u64) -> Key {
        self.key(format_args!("def/{partition:03}/{job}/{generation:010}"))
    }

    /// All definitions of a job.
    #[must_use]
    pub fn defs_of(&self, partition: u16, job: &str) -> Span {
        Span::prefix(self.key(format_args!("def/{partition:03}/{job}/")))
    }

    /// All definitions of a partition.
    #[must_use]
    pub fn defs_of_partition(&self, partition: u16) -> Span {
        Span::prefix(self.key(format_args!("def/{partition:03}/")))
    }

    /// The job and generation that a key under `def/` names.
    #[must_use]
    pub fn parse_def(&self, key: &[u8]) -> Option<(String, u64)> {
        let (partition, rest) = self.rest(key, "def/")?.split_once('/')?;
        number::<u16>(partition, 3)?;
        let (job, generation) = rest.split_once('/')?;
        Some((part(job)?, number(generation, 10)?))
    }

    /// What is remembered of a deleted job.
    #[must_use]
    pub fn gone(&self, partition: u16, job: &str) -> Key {
        self.key(format_args!("gone/{partition:03}/{job}"))
    }

    /// All that is remembered of deleted jobs.
    #[must_use]
    pub fn all_gone(&self) -> Span {
        Span::prefix(self.key(format_args!("gone/")))
    }

    /// The partition and job that a key under `gone/` names.
    #[must_use]
    pub fn parse_gone(&self, key: &[u8]) -> Option<(u16, String)> {
        let (partition, job) = self.rest(key, "gone/")?.split_once('/')?;
        Some((number(partition, 3)?, part(job)?))
    }

    /// How far a partition's schedule is decided.
    #[must_use]
    pub fn cursor(&self, partition: u16) -> Key {
        self.key(format_args!("cursor/{partition:03}"))
    }

    /// All cursors.
    #[must_use]
    pub fn cursors(&self) -> Span {
        Span::prefix(self.key(format_args!("cursor/")))
    }

    /// The partition of a key under `cursor/`.
    #[must_use]
    pub fn parse_cursor(&self, key: &[u8]) -> Option<u16> {
        number(self.rest(key, "cursor/")?, 3)
    }

    /// The counter that creations outside the cursor consume.
    #[must_use]
    pub fn seq(&self, partition: u16, job: &str) -> Key {
        self.key(format_args!("seq/{partition:03}/{job}"))
    }

    /// An attempt that has not ended.
    #[must_use]
    pub fn run(&self, at: &AttemptKey) -> Key {
        self.attempt("run", at)
    }

    /// An attempt that has ended, or a skip record.
    #[must_use]
    pub fn done(&self, at: &AttemptKey) -> Key {
        self.attempt("done", at)
    }

    /// A result that came too late.
    #[must_use]
    pub fn late(&self, at: &AttemptKey) -> Key {
        self.attempt("late", at)
    }

    fn attempt(&self, kind: &str, at: &AttemptKey) -> Key {
        let AttemptKey {
            partition,
            job,
            run,
            attempt,
        } = at;
        // The commonest keys by far: room for all of it at once, so that nothing is moved.
        let mut key = String::with_capacity(self.root.len() + job.len() + run.len() + 24);
        key.push_str(&self.root);
        key.push_str(kind);
        // Writing to text cannot fail.
        let _ = write!(key, "/{partition:03}/");
        key.push_str(job);
        key.push('/');
        key.push_str(run);
        let _ = write!(key, "/{attempt:04}");
        key.into_bytes()
    }

    /// All attempts that have not ended.
    #[must_use]
    pub fn runs(&self) -> Span {
        Span::prefix(self.key(format_args!("run/")))
    }

    /// All ended attempts and skip records.
    #[must_use]
    pub fn all_done(&self) -> Span {
        Span::prefix(self.key(format_args!("done/")))
    }

    /// A job's attempts that have not ended.
    #[must_use]
    pub fn runs_of(&self, partition: u16, job: &str) -> Span {
        Span::prefix(self.key(format_args!("run/{partition:03}/{job}/")))
    }

    /// A job's ended attempts and skip records.
    #[must_use]
    pub fn done_of(&self, partition: u16, job: &str) -> Span {
        Span::prefix(self.key(format_args!("done/{partition:03}/{job}/")))
    }

    /// A job's results that came too late.
    #[must_use]
    pub fn late_of(&self, partition: u16, job: &str) -> Span {
        Span::prefix(self.key(format_args!("late/{partition:03}/{job}/")))
    }

    /// A run's attempts that have not ended.
    #[must_use]
    pub fn attempts_of(&self, partition: u16, job: &str, run: &str) -> Span {
        Span::prefix(self.key(format_args!("run/{partition:03}/{job}/{run}/")))
    }

    /// A run's ended attempts.
    #[must_use]
    pub fn done_attempts_of(&self, partition: u16, job: &str, run: &str) -> Span {
        Span::prefix(self.key(format_args!("done/{partition:03}/{job}/{run}/")))
    }

    /// The attempts of a run's parts that have not ended.
    #[must_use]
    pub fn parts_of(&self, partition: u16, job: &str, run: &str) -> Span {
        Span::prefix(self.key(format_args!("run/{partition:03}/{job}/{run}{PART}")))
    }

    /// The ended attempts of a run's parts.
    #[must_use]
    pub fn done_parts_of(&self, partition: u16, job: &str, run: &str) -> Span {
        Span::prefix(self.key(format_args!("done/{partition:03}/{job}/{run}{PART}")))
    }

    /// What a key under `run/`, `done/` or `late/` names.
    #[must_use]
    pub fn parse_attempt(&self, key: &[u8]) -> Option<AttemptKey> {
        let text = std::str::from_utf8(key).ok()?;
        let mut parts = text.strip_prefix(&self.root)?.split('/');
        let kind = parts.next()?;
        if !matches!(kind, "run" | "done" | "late") {
            return None;
        }
        let at = AttemptKey {
            partition: number(parts.next()?, 3)?,
            job: part(parts.next()?)?,
            run: part(parts.next()?)?,
            attempt: number(parts.next()?, 4)?,
        };
        parts.next().is_none().then_some(at)
    }

    /// How far a run has come that has not ended.
    #[must_use]
    pub fn progress(&self, partition: u16, job: &str, run: &str) -> Key {
        self.key(format_args!("progress/{partition:03}/{job}/{run}"))
    }

    /// The partition, job and run that a key under `progress/` names.
    #[must_use]
    pub fn parse_progress(&self, key: &[u8]) -> Option<(u16, String, String)> {
        let mut parts = self.rest(key, "progress/")?.split('/');
        let partition = number(parts.next()?, 3)?;
        let (job, run) = (part(parts.next()?)?, part(parts.next()?)?);
        parts.next().is_none().then_some((partition, job, run))
    }

    /// A place among the executions of a job that allows only so many at once.
    #[must_use]
    pub fn slot(&self, partition: u16, job: &str, index: u32) -> Key {
        self.key(format_args!("slot/{partition:03}/{job}/{index:04}"))
    }

    /// All slots of a job that are held.
    #[must_use]
    pub fn slots_of(&self, partition: u16, job: &str) -> Span {
        Span::prefix(self.key(format_args!("slot/{partition:03}/{job}/")))
    }

    /// Those of them from `index` on.
    #[must_use]
    pub fn slots_from(&self, partition: u16, job: &str, index: u32) -> Span {
        Span {
            start: self.slot(partition, job, index),
            ..self.slots_of(partition, job)
        }
    }

    /// The job and index that a key under `slot/` names.
    #[must_use]
    pub fn parse_slot(&self, key: &[u8]) -> Option<(u16, String, u32)> {
        let mut parts = self.rest(key, "slot/")?.split('/');
        let (partition, job, index) = (parts.next()?, parts.next()?, parts.next()?);
        Some((partition.parse().ok()?, job.to_owned(), index.parse().ok()?))
    }

    /// The wish to end a run.
    #[must_use]
    pub fn cancel(&self, run: &str) -> Key {
        self.key(format_args!("cancel/{run}"))
    }

    /// What remembers that the run of a trigger was made.
    #[must_use]
    pub fn idem(&self, run: &str) -> Key {
        self.key(format_args!("idem/{run}"))
    }

    /// What remembers the runs of one backfill.
    #[must_use]
    pub fn idems_of(&self, backfill: &str) -> Span {
        Span::prefix(self.key(format_args!("idem/{backfill}@")))
    }

    /// What a key under `idem/` remembers.
    #[must_use]
    pub fn parse_idem(&self, key: &[u8]) -> Option<String> {
        self.rest(key, "idem/").map(str::to_owned)
    }

    /// All that remembers triggers.
    #[must_use]
    pub fn idems(&self) -> Span {
        Span::prefix(self.key(format_args!("idem/")))
    }

    /// That `follower` runs after each success of `job`.
    #[must_use]
    pub fn follower(&self, job: &str, follower: &str) -> Key {
        self.key(format_args!("after/{job}/{follower}"))
    }

    /// All that run after each success of `job`.
    #[must_use]
    pub fn followers_of(&self, job: &str) -> Span {
        Span::prefix(self.key(format_args!("after/{job}/")))
    }

    /// The job and the follower that a key under `after/` names.
    #[must_use]
    pub fn parse_follower(&self, key: &[u8]) -> Option<(String, String)> {
        let (job, follower) = self.rest(key, "after/")?.split_once('/')?;
        Some((job.to_owned(), follower.to_owned()))
    }

    /// A success whose followers are still to be run.
    #[must_use]
    pub fn todo(&self, run: &str) -> Key {
        self.key(format_args!("todo/{run}"))
    }

    /// All successes whose followers are still to be run.
    #[must_use]
    pub fn todos(&self) -> Span {
        Span::prefix(self.key(format_args!("todo/")))
    }

    /// The run that a key under `todo/` names.
    #[must_use]
    pub fn parse_todo(&self, key: &[u8]) -> Option<String> {
        self.rest(key, "todo/").map(str::to_owned)
    }

    /// The last run of a job that runs again some time after it.
    #[must_use]
    pub fn delay(&self, job: &str) -> Key {
        self.key(format_args!("delay/{job}"))
    }

    /// The last runs of all jobs that run again some time after them.
    #[must_use]
    pub fn delays(&self) -> Span {
        Span::prefix(self.key(format_args!("delay/")))
    }

    /// The job that a key under `delay/` names.
    #[must_use]
    pub fn parse_delay(&self, key: &[u8]) -> Option<String> {
        self.rest(key, "delay/").map(str::to_owned)
    }

    /// What one receiver is still to be told.
    #[must_use]
    pub fn note(&self, at: &NoteKey) -> Key {
        let (run, attempt, event, index) = (&at.run, at.attempt, &at.event, at.index);
        self.key(format_args!("note/{run}/{attempt:04}/{event}/{index:02}"))
    }

    /// All that is still to be told.
    #[must_use]
    pub fn notes(&self) -> Span {
        Span::prefix(self.key(format_args!("note/")))
    }

    /// What a key under `note/` is about.
    #[must_use]
    pub fn parse_note(&self, key: &[u8]) -> Option<NoteKey> {
        let mut parts = self.rest(key, "note/")?.split('/');
        let at = NoteKey {
            run: part(parts.next()?)?,
            attempt: number(parts.next()?, 4)?,
            event: part(parts.next()?)?,
            index: number(parts.next()?, 2)?,
        };
        parts.next().is_none().then_some(at)
    }

    /// That the last run of a job ended badly.
    #[must_use]
    pub fn trouble(&self, job: &str) -> Key {
        self.key(format_args!("trouble/{job}"))
    }

    /// All wishes to end a run.
    #[must_use]
    pub fn cancels(&self) -> Span {
        Span::prefix(self.key(format_args!("cancel/")))
    }

    /// The run that a key under `cancel/` names.
    #[must_use]
    pub fn parse_cancel(&self, key: &[u8]) -> Option<String> {
        part(self.rest(key, "cancel/")?)
    }

    /// The node and incarnation that a key under `node/` names.
    #[must_use]
    pub fn parse_node(&self, key: &[u8]) -> Option<(String, String)> {
        let (node, incarnation) = self.rest(key, "node/")?.split_once('/')?;
        Some((part(node)?, part(incarnation)?))
    }

    fn rest<'a>(&self, key: &'a [u8], kind: &str) -> Option<&'a str> {
        std::str::from_utf8(key)
            .ok()?
            .strip_prefix(&self.root)?
            .strip_prefix(kind)
    }
}

/// A number as this module writes it, and in no other spelling: two keys that name one thing would be
/// two records of it.
fn number<N: FromStr>(text: &str, width: usize) -> Option<N> {
    let spelled = text.len() == width || (text.len() > width && !text.starts_with('0'));
    if spelled && text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.parse().ok()
    } else {
        None
    }
}

/// An id: one part of a key, and not an empty one.
fn part(text: &str) -> Option<String> {
    (!text.is_empty() && !text.contains('/')).then(|| text.to_owned())
}

/// Stands between the id of a run and the index of a part of it.
const PART: &str = "~s-";

/// `RUN~s-0003`: the id of a run's part, counted from 0.
#[must_use]
pub fn part_id(run: &str, index: u32) -> String {
    format!("{run}{PART}{index:04}")
}

/// The run and the index, if the id is one of a part.
#[must_use]
pub fn part_of(run: &str) -> Option<(&str, u32)> {
    let (whole, index) = run.rsplit_once(PART)?;
    Some((whole, number(index, 4)?))
}

/// What all ids of a run's parts begin with.
#[must_use]
pub fn part_prefix(run: &str) -> String {
    format!("{run}{PART}")
}

/// The job that a run id names: `daily-report` in `daily-report@20260812T000500Z`, in
/// `daily-report~m-0123456789abcdef` and in `daily-report~a-000000000000002a@20260812T000500Z`.
#[must_use]
pub fn job_of_run(run: &str) -> Option<&str> {
    let end = run.find(['@', '~'])?;
    Some(&run[..end])
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
