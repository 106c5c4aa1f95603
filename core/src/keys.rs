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
//!              cancel/{run}                      a wish to end the run
//!              idem/{run}                        a caller's key was used, whatever became of the run
//! ```
//!
//! No id contains a `/`, so no prefix of one kind reaches into another. Numbers are padded, so
//! that key order is their order.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::backend::{Key, Span};

/// The partition of a job. For ever fixed by the id and the number of partitions: FNV-1a, 64 bits
/// (Fowler, Noll, Vo), modulo the number.
#[must_use]
pub fn partition_of(job: &str, partitions: u16) -> u16 {
    let hash = fnv1a(job.as_bytes());
    u16::try_from(hash % u64::from(partitions.max(1))).unwrap_or(0)
}

/// FNV-1a, 64 bits.
#[must_use]
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

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
        self.rest(key, "drain/").map(str::to_owned)
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
        self.rest(key, "clock/").map(str::to_owned)
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
            None => Some((rest.parse().ok()?, None)),
            Some((partition, job)) => Some((partition.parse().ok()?, Some(job.to_owned()))),
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
        let mut parts = self.rest(key, "def/")?.split('/');
        let (_, job, generation) = (parts.next()?, parts.next()?, parts.next()?);
        Some((job.to_owned(), generation.parse().ok()?))
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
        Some((partition.parse().ok()?, job.to_owned()))
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
        self.rest(key, "cursor/")?.parse().ok()
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
            partition: parts.next()?.parse().ok()?,
            job: parts.next()?.to_owned(),
            run: parts.next()?.to_owned(),
            attempt: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(at)
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

    /// All wishes to end a run.
    #[must_use]
    pub fn cancels(&self) -> Span {
        Span::prefix(self.key(format_args!("cancel/")))
    }

    /// The run that a key under `cancel/` names.
    #[must_use]
    pub fn parse_cancel(&self, key: &[u8]) -> Option<String> {
        self.rest(key, "cancel/").map(str::to_owned)
    }

    /// The node and incarnation that a key under `node/` names.
    #[must_use]
    pub fn parse_node(&self, key: &[u8]) -> Option<(String, String)> {
        let (node, incarnation) = self.rest(key, "node/")?.split_once('/')?;
        Some((node.to_owned(), incarnation.to_owned()))
    }

    fn rest<'a>(&self, key: &'a [u8], kind: &str) -> Option<&'a str> {
        std::str::from_utf8(key)
            .ok()?
            .strip_prefix(&self.root)?
            .strip_prefix(kind)
    }
}

/// The job that a run id names: `daily-report` in `daily-report@20260812T000500Z`, in
/// `daily-report~m-0123456789abcdef` and in `daily-report~a-000000000000002a@20260812T000500Z`.
#[must_use]
pub fn job_of_run(run: &str) -> Option<&str> {
    let end = run.find(['@', '~'])?;
    Some(&run[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back_as_written() {
        let keys = Keys::new("prod");
        let at = AttemptKey {
            partition: 7,
            job: "a.b-c_d".into(),
            run: "a.b-c_d@20260812T000500Z".into(),
            attempt: 12,
        };
        assert_eq!(keys.parse_attempt(&keys.run(&at)), Some(at.clone()));
        assert_eq!(keys.parse_attempt(&keys.done(&at)), Some(at.clone()));
        assert_eq!(
            keys.parse_job(&keys.job(7, "x")),
            Some((7, Some("x".into())))
        );
        assert_eq!(keys.parse_job(&keys.changes(7)), Some((7, None)));
        assert_eq!(
            keys.parse_def(&keys.def(7, "x", 42)),
            Some(("x".into(), 42))
        );
        assert_eq!(keys.parse_cursor(&keys.cursor(15)), Some(15));
        assert_eq!(keys.parse_gone(&keys.gone(3, "x")), Some((3, "x".into())));
        assert_eq!(keys.parse_cancel(&keys.cancel("x@1")), Some("x@1".into()));
        assert_eq!(
            keys.parse_node(&keys.node("n", "i")),
            Some(("n".into(), "i".into()))
        );
        assert_eq!(keys.parse_drain(&keys.drain("n")), Some("n".into()));
        assert!(keys.lives_of("n").contains(&keys.node("n", "i")));
        assert!(!keys.lives_of("n").contains(&keys.node("n2", "i")));
        assert_eq!(keys.parse_clock(&keys.clock("n")), Some("n".into()));
        assert_eq!(job_of_run(&at.run), Some("a.b-c_d"));
        let of_change = "a.b-c_d~a-000000000000002a@20260812T000500Z";
        assert_eq!(job_of_run(of_change), Some("a.b-c_d"));
        let backfilled = "a.b-c_d~b-0123456789abcdef01234567@20260812T000500Z";
        assert_eq!(job_of_run(backfilled), Some("a.b-c_d"));
        let idem = keys.idem(backfilled);
        assert_eq!(keys.parse_idem(&idem), Some(backfilled.into()));
        let span = keys.idems_of("a.b-c_d~b-0123456789abcdef01234567");
        assert!(span.contains(&idem));
        assert_eq!(job_of_run("nothing"), None);
    }

    #[test]
    fn spans_hold_their_own_keys_and_no_others() {
        let keys = Keys::new("prod");
        assert!(keys.jobs_of(7).contains(&keys.changes(7)));
        assert!(keys.jobs_of(7).contains(&keys.job(7, "x")));
        assert!(!keys.jobs_of(7).contains(&keys.job(8, "x")));
        let at = |job: &str| AttemptKey {
            partition: 7,
            job: job.into(),
            run: format!("{job}@20260812T000500Z"),
            attempt: 1,
        };
        assert!(keys.runs_of(7, "x").contains(&keys.run(&at("x"))));
        assert!(!keys.runs_of(7, "x").contains(&keys.run(&at("x.y"))));
        assert!(!keys.runs_of(7, "x").contains(&keys.done(&at("x"))));
    }

    #[test]
    fn the_partition_of_a_job_never_changes() {
        // FNV-1a of "a" is af63dc4c8601ec8c (the authors' test vectors).
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(partition_of("a", 16), 0xc);
        assert_eq!(partition_of("a", 1), 0);
    }
}
