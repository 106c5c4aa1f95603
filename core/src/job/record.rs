//! What the store holds, as JSON: readable with any client of the store.
//!
//! Every record carries the schema's version. A record of a newer schema is not guessed at: it
//! fails to decode, and whoever met it sets it aside and says so.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use super::node_record::NodeRecord;
use super::parts::{Parts, Shard};
use super::plain::{is_one, is_zero, is_zero_u32, is_zero_u64, one};
use super::run::{FailReason, Owner, Phase, RunState, SkipReason};
use crate::control::types::RunKind;

/// The schema of the records that this version writes and reads.
pub const SCHEMA: u32 = 1;

/// A record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot decode the record: {0}")]
pub struct DecodeError(String);

impl DecodeError {
    /// A record that is unreadable for this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// The version stands beside the record, so that it can be read when the record cannot.
#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    v: u32,
    r: T,
}

/// A record, as bytes: `{"v":1,"r":{..}}`.
pub fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    let envelope = Envelope {
        v: SCHEMA,
        r: record,
    };
    // Most records fit, and need not be moved while they grow.
    let mut bytes = Vec::with_capacity(512);
    // Our records have text keys and no failing serializers, which is all that can go wrong.
    match serde_json::to_writer(&mut bytes, &envelope) {
        Ok(()) => bytes,
        Err(_) => Vec::new(),
    }
}

/// A record, from bytes.
///
/// # Errors
/// [`DecodeError`] for what is no record, and for a record of a newer schema.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    let unreadable = |error: serde_json::Error| DecodeError(error.to_string());
    // Checked as a whole, which is faster than text by text.
    let text = std::str::from_utf8(bytes).map_err(|error| DecodeError(error.to_string()))?;
    let decoded = serde_json::from_str::<Envelope<T>>(text);
    // The version is asked first, but read apart only when the record is unreadable: perhaps that
    // is because the record is newer.
    let version = match &decoded {
        Ok(envelope) => envelope.v,
        Err(_) => serde_json::from_str::<Version>(text).map_err(unreadable)?.v,
    };
    if version > SCHEMA {
        return Err(DecodeError(format!(
            "it has schema {version}, this version knows {SCHEMA}; upgrade this node"
        )));
    }
    decoded.map(|envelope| envelope.r).map_err(unreadable)
}

/// What a worker must know of every [`RunRecord`]: much less work than to decode all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Glance {
    /// Where it stands.
    pub state: RunState,
    /// The slot that it holds.
    #[serde(default)]
    pub slot: Option<u32>,
}

impl Glance {
    /// At the bytes of a record under `run/`.
    #[must_use]
    pub fn at(bytes: &[u8]) -> Option<Self> {
        decode(bytes).ok()
    }
}

/// Made once for a namespace, together with all cursors and `changes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// Tells the data of one cluster from that of another.
    pub cluster_id: String,
    /// Bumped after a restore: keeps fencing tokens in order although revisions repeat.
    pub epoch: u8,
    /// How many partitions; fixed for ever.
    pub partitions: u16,
    /// The time zone database of the node that made it.
    pub tzdb: String,
}

/// Head of a partition's log of job changes. Consumed by every change of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesRecord {
    /// Counts the changes.
    pub seq: u64,
    /// What the last one touched: job, and its version after it (`None`: deleted).
    pub touched: Vec<(String, Option<u64>)>,
    /// What the last changes called themselves, newest last: whoever made one and did not hear that
    /// it was made finds it here, and does not make it again over what others changed since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recent: Vec<u64>,
}

/// A job's template, apart from its definitions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Counts every change of this record; `changes` names it.
    pub version: u64,
    /// The definition in force; grows with each edit and never repeats, not even when the job is
    /// deleted and made again within a day.
    pub generation: u64,
    /// When the job was made, in Unix milliseconds: the anchor of `every`.
    pub created_ms: i64,
    /// When it was last changed.
    pub updated_ms: i64,
    /// Which definition is in force when, oldest first, never empty.
    pub segments: Vec<Segment>,
    /// An operator's hold on this job. One with an end stays here when that has passed, until the
    /// next change: ask [`JobRecord::paused_at`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Box<Paused>>,
    /// An operator's hold on all jobs. Apart from the one above, so that each ends by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_all: Option<Box<Paused>>,
    /// The values of `at` that are taken care of: their run was created by the change that brought
    /// them, or their instant lay ahead of it. Each fires once, however the job is edited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at_seen_ms: Vec<i64>,
}

/// An operator's hold on a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Since when.
    pub since_ms: i64,
    /// The first instant that is not held any more; none: until somebody resumes the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
    /// Who, as the caller said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// What was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Paused {
    /// Whether an instant at `at_ms` is held, if it lies behind the beginning.
    #[must_use]
    pub fn holds(&self, at_ms: i64) -> bool {
        self.until_ms.is_none_or(|until_ms| at_ms < until_ms)
    }
}

impl JobRecord {
    /// The hold that keeps the job at `at_ms`; of two, the one that ends last.
    #[must_use]
    pub fn paused_at(&self, at_ms: i64) -> Option<&Paused> {
        let all = [self.paused.as_deref(), self.paused_all.as_deref()];
        all.into_iter()
            .flatten()
            .filter(|paused| paused.holds(at_ms))
            .max_by_key(|paused| paused.until_ms.unwrap_or(i64::MAX))
    }

    /// When the job fires again by itself, if its holds have an end: the last segment begins there.
    #[must_use]
    pub fn resumes_ms(&self) -> Option<i64> {
        let all = [self.paused.as_ref(), self.paused_all.as_ref()];
        let ends = all.into_iter().flatten().map(|paused| paused.until_ms);
        ends.reduce(|a, b| Some(a?.max(b?))).flatten()
    }

    /// The segments that changes have made, without the one that begins where a hold ends by itself.
    pub fn made_segments(&self) -> impl Iterator<Item = &Segment> {
        let resumes_ms = self.resumes_ms();
        self.segments
            .iter()
            .filter(move |segment| segment.paused || Some(segment.from_ms) != resumes_ms)
    }
}

/// From `from_ms` (inclusive) until the next segment, this definition is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// First instant, in Unix milliseconds.
    pub from_ms: i64,
    /// The definition.
    pub generation: u64,
    /// Its instants are decided as SKIPPED / `paused`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

/// What is remembered of a deleted job for a day, so that its generations do not repeat while
/// runs still name them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoneRecord {
    /// The last generation.
    pub generation: u64,
    /// When it was deleted.
    pub deleted_ms: i64,
}

/// What is remembered for a day of a trigger, so that its key does not run the job again when the
/// run's record is pruned already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdemRecord {
    /// When the run was made.
    pub created_ms: i64,
    /// The attempt that a person's retry made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// What was asked for, as a hash: the key stands for this and nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<u64>,
}

/// A place in a partition's stream of (instant, job). Everything up to and including it is
/// decided.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Position {
    /// The instant, in Unix milliseconds.
    pub at_ms: i64,
    /// The job; [`Position::END`] stands behind every job.
    pub job: String,
}

impl Position {
    /// Sorts behind every job id.
    pub const END: &'static str = "~";

    /// Behind everything at `at_ms`.
    #[must_use]
    pub fn end_of(at_ms: i64) -> Self {
        Self {
            at_ms,
            job: Self::END.into(),
        }
    }
}

/// The stretch of time that is being decided. Fixed by its first decision and finished as it was
/// opened, whoever leads, so that no policy depends on where a batch was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// Everything up to here was decided before.
    pub from_ms: i64,
    /// The fire clock when the window was opened.
    pub until_ms: i64,
}

/// How far a partition's schedule is decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CursorRecord {
    /// Everything up to here is decided.
    pub position: Position,
    /// The window last opened; it is finished when `position` stands at its end.
    pub window: Window,
}

impl CursorRecord {
    /// Everything up to `at_ms` is decided, nothing is open.
    #[must_use]
    pub fn starting_at(at_ms: i64) -> Self {
        Self {
            position: Position::end_of(at_ms),
            window: Window {
                from_ms: at_ms,
                until_ms: at_ms,
            },
        }
    }

    /// Whether decisions of the window are outstanding.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.position < Position::end_of(self.window.until_ms)
    }
}

/// What an operator wants of a node. Once made, it is only rewritten: a late copy of a request
/// finds another revision and does nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainRecord {
    /// It shall claim nothing and not lead.
    pub drained: bool,
    /// Since when, in Unix milliseconds.
    pub since_ms: i64,
    /// What was said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Tells copies of one write from another's write.
    pub nonce: u64,
}

/// What a node's clock shows, for the other nodes. Under the lease of the node's session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockRecord {
    /// Which life of the node.
    pub incarnation: String,
    /// Its wall clock when it wrote this, in Unix milliseconds.
    pub wall_ms: i64,
    /// The records of other nodes that it had read by then.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub heard: BTreeMap<String, Heard>,
    /// How far it is ahead of the middle one of the others, as far as it knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead_ms: Option<i64>,
    /// Why the node does not trust its clock, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// Written by another hand than the node's: a person says that the time above is right.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accepted: bool,
}

/// That a node has read another one's clock record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heard {
    /// The record's revision.
    pub revision: u64,
    /// How long ago, by the reader's monotonic clock.
    pub ago_ms: u64,
}

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderRecord {
    /// The node and its incarnation.
    pub owner: Owner,
    /// Since when, in Unix milliseconds.
    pub since_ms: i64,
    /// Takeovers in a row that led to this lead and still counted when it began: they make standbys
    /// more patient.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub takeovers: u32,
}

/// The counter that every creation outside the cursor consumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeqRecord {
    /// How many there were.
    pub seq: u64,
}

/// Who holds a slot of its job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRecord {
    /// The run.
    pub run: String,
    /// Its attempt.
    pub attempt: u32,
}

/// A success whose followers are still to be run: made by the transaction that ends the run, done by
/// the leader, one follower a transaction, and deleted with the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TodoRecord {
    /// The job that succeeded.
    pub job: String,
    /// How many successes led to this one, each the cause of the next.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub hops: u32,
    /// The followers that are done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<String>,
}

/// How far a job has come that runs again some time after its last run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelayRecord {
    /// Counts its runs.
    pub number: u64,
    /// The last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// When that was made, or the job, if it has not run yet; in Unix milliseconds.
    pub since_ms: i64,
}

impl DelayRecord {
    /// Not run yet.
    #[must_use]
    pub fn starting(since_ms: i64) -> Self {
        Self {
            number: 0,
            run: None,
            since_ms,
        }
    }
}

/// What made a chained run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// The run that succeeded.
    pub run: String,
    /// How many successes led to this run, each the cause of the next; at least 1.
    pub hops: u32,
}

/// An attempt (under `run/` until it ends, then under `done/`), or a skip record (`done/` only).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// The job.
    pub job: String,
    /// The fire.
    pub run: String,
    /// Counts from 1; 0 for a skip record.
    pub attempt: u32,
    /// How many of the attempts so far were never started: they do not count against the policy.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub unstarted: u32,
    /// Where it came from.
    pub kind: RunKind,
    /// The instant, in Unix milliseconds.
    pub scheduled_ms: i64,
    /// Created revision of the job's key.
    pub job_uid: u64,
    /// The definition that it follows.
    pub generation: u64,
    /// Copied from the definition, so that a worker can choose without reading it.
    pub queue: String,
    /// What a node must have to run it: `command`, or `handler:NAME`. Copied like the queue.
    pub needs: String,
    /// Copied from the definition.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i8,
    /// How many executions of the job this one may be among, itself included; none: any number.
    /// Copied from the definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// The slot that it holds while it is LOCKED or RUNNING, if its `concurrency` is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// When the leader ends the attempt if it is still in this state: PENDING and unclaimed for too
    /// long, or RUNNING although its time and all grace is over.
    pub deadline_ms: i64,
    /// When it is late if it has not started by then, if somebody wants to know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_at_ms: Option<i64>,
    /// Where it stands.
    pub state: RunState,
    /// Who has or had it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailReason>,
    /// Why it was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<SkipReason>,
    /// No worker starts it before, in Unix milliseconds (retry, jitter).
    pub not_before_ms: i64,
    /// When the decision was made.
    pub created_ms: i64,
    /// When a worker claimed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locked_ms: Option<i64>,
    /// When it became RUNNING.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_ms: Option<i64>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<i64>,
    /// Place in the batch that made it RUNNING: the last 7 bits of its fencing token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u8>,
    /// How long its worker may need to stop it once its session is gone: nobody takes the RUNNING
    /// attempt sooner, however the leader is configured.
    #[serde(default, skip_serializing_if = "is_zero_u64")]
    pub grace_ms: u64,
    /// The fencing token, once the attempt has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<u64>,
    /// Exit status of a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The end of the output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tail: Option<String>,
    /// Whether there was more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_truncated: bool,
    /// How many instants this record decides.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub stands_for: u64,
    /// The first of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stands_from_ms: Option<i64>,
    /// Given with the trigger instead of the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<serde_json::Value>,
    /// The success that this run follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Cause>,
    /// Into how many parts it is divided: no worker takes it, the leader does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Parts>,
    /// Which part of another run this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// Tells copies of one write from another's write.
    #[serde(default)]
    pub nonce: u64,
}

impl RunRecord {
    /// Where the attempt stands; `None` for a skip record, and for a record that contradicts
    /// itself (an owned state without an owner).
    #[must_use]
    pub fn phase(&self) -> Option<Phase> {
        match self.state {
            RunState::Pending if self.parts.is_some() => Some(Phase::Whole),
            RunState::Running if self.parts.is_some() => Some(Phase::InParts),
            RunState::Pending => Some(Phase::Pending),
            RunState::Locked => self.owner.clone().map(Phase::Locked),
            RunState::Running => self.owner.clone().map(Phase::Running),
            RunState::Success => Some(Phase::Success),
            RunState::Failed => self.failed.map(Phase::Failed),
            RunState::Skipped => None,
        }
    }

    /// Whether a worker of this node may take it: a run in parts is the leader's, and a part may be
    /// for another node.
    #[must_use]
    pub fn is_for(&self, node: &str) -> bool {
        self.parts.is_none() && self.home().is_none_or(|home| home == node)
    }

    /// The only node that may run it, if there is one.
    #[must_use]
    pub fn home(&self) -> Option<&str> {
        self.shard.as_ref()?.node.as_deref()
    }

    /// 32 hex digits that all attempts of a run share.
    #[must_use]
    pub fn trace_id(&self) -> String {
        let seed = format!("{}#{}", self.run, self.generation);
        let high = crate::keys::fnv1a(seed.as_bytes());
        let low = crate::keys::fnv1a(format!("{seed}#{high}").as_bytes());
        format!("{high:016x}{low:016x}")
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
