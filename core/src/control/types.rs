//! What operators see: jobs, runs and the cluster as plain data, with the names of the JSON API.

use serde::{Deserialize, Serialize};

use crate::backend::BackendError;
use crate::job::run::RunState;
use crate::job::spec::{JobSpec, SpecError};

/// A run, as it appears everywhere in JSON. Times are RFC 3339 in UTC with milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunObject {
    /// Names the fire; the same for all its attempts.
    pub run_id: String,
    /// The job.
    pub job_id: String,
    /// Where it came from.
    pub kind: RunKind,
    /// The instant it stands for.
    pub scheduled_at: String,
    /// Where it stands.
    pub state: RunState,
    /// Why it failed or was skipped.
    pub reason: Option<String>,
    /// Counts from 1; 0 for a skip record.
    pub attempt: u32,
    /// Index of a part of a run in parts, counted from 0.
    pub shard: Option<u32>,
    /// How many parts the run has, or the run that this is a part of.
    #[serde(default)]
    pub shards: Option<u32>,
    /// The node that has or had it.
    pub node: Option<String>,
    /// Decimal, as text: JSON numbers are not exact beyond 2^53.
    pub fencing_token: Option<String>,
    /// When the decision was made.
    pub created_at: String,
    /// When a worker claimed it.
    pub locked_at: Option<String>,
    /// When it became RUNNING.
    pub started_at: Option<String>,
    /// When it ended.
    pub ended_at: Option<String>,
    /// A retry waits until then.
    pub not_before: Option<String>,
    /// Exit status of a command that exited by itself.
    pub exit_code: Option<i32>,
    /// For people.
    pub error: Option<String>,
    /// The end of the output.
    pub output_tail: Option<String>,
    /// Whether there was more output.
    pub output_truncated: bool,
    /// How many instants this record decides (1 but for misfires and skipped ranges).
    pub stands_for: u64,
    /// The first of them, when there are several.
    pub stands_from: Option<String>,
    /// 32 hex digits.
    pub trace_id: String,
    /// A result that arrived after the run had been decided otherwise.
    pub late_result: Option<String>,
    /// The run whose success this run follows (`after`).
    #[serde(default)]
    pub triggered_by: Option<String>,
    /// How far this attempt has come, as it says itself; while it is unfinished, and only where one
    /// run is asked for.
    #[serde(default)]
    pub progress: Option<ProgressObject>,
    /// From where the next attempt can go on; likewise.
    #[serde(default)]
    pub checkpoint: Option<CheckpointObject>,
    /// The version of the job's definition that it follows.
    #[serde(default)]
    pub generation: u64,
}

/// How far an attempt has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgressObject {
    /// From 0 to 1.
    pub fraction: f64,
    /// For people.
    pub note: Option<String>,
    /// When it said so first.
    pub at: String,
}

impl std::fmt::Display for ProgressObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.0} %", self.fraction * 100.0)?;
        match &self.note {
            Some(note) => write!(f, " ({note})"),
            None => Ok(()),
        }
    }
}

/// A run's last checkpoint, without what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointObject {
    /// The attempt that reached it.
    pub attempt: u32,
    /// When.
    pub at: String,
    /// Its size.
    pub bytes: u64,
}

/// Where a run came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// An instant of the schedule.
    #[default]
    Scheduled,
    /// Somebody triggered it.
    Manual,
    /// A past instant, by request.
    Backfill,
    /// A person repeated a run.
    Retry,
    /// Another job's success.
    Chained,
    /// A part of a fan-out run.
    Shard,
}

/// A job, as it appears everywhere in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobObject {
    /// The definition in force.
    pub spec: JobSpec,
    /// Version of the definition; grows with each edit.
    pub generation: u64,
    /// Changes with every change of the job; what `If-Match` compares.
    pub revision: u64,
    /// `active`, `paused`, `disabled`, or `exhausted` (no instant is left).
    pub state: JobState,
    /// Why and since when it is paused.
    pub paused: Option<PausedObject>,
    /// When the job was made.
    pub created_at: String,
    /// When it was last changed.
    pub updated_at: String,
    /// Its next instant after now; `None` when there is none or the job is paused.
    pub next_at: Option<String>,
    /// Its last instant before now.
    pub last_at: Option<String>,
    /// Runs that are not finished.
    pub active_runs: u64,
}

/// Whether a job fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It fires.
    Active,
    /// An operator holds it.
    Paused,
    /// Its file says `enabled: false`.
    Disabled,
    /// No instant is left.
    Exhausted,
    /// It has no schedule.
    OnDemand,
}

/// A pause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PausedObject {
    /// Since when.
    pub since: String,
    /// It ends by itself then; none: until somebody resumes the job.
    #[serde(default)]
    pub until: Option<String>,
    /// Who, as the caller said: nobody has checked it.
    #[serde(default)]
    pub by: Option<String>,
    /// What was said.
    #[serde(default)]
    pub reason: Option<String>,
    /// Whether all jobs were paused at once.
    #[serde(default)]
    pub all: bool,
}

/// How a job is to be paused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PauseWish {
    /// Why, for people.
    pub reason: Option<String>,
    /// The first instant that fires again, in Unix milliseconds; none: until somebody resumes it.
    pub until_ms: Option<i64>,
    /// Who asks, for people.
    pub by: Option<String>,
}

/// How far a change of all jobs has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllReport {
    /// Jobs that were changed.
    pub changed: usize,
    /// Jobs that needed no change.
    pub unchanged: usize,
    /// Jobs that could not be changed, and why: those whose records this version cannot read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Jobs that remain because the time for one request was over, or the store went away. The same
    /// request again goes on with them.
    pub remaining: usize,
    /// Why they remain, if it is the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
}

/// What a put did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PutOutcome {
    /// The job is new.
    Created,
    /// The job has a new definition.
    Updated,
    /// The definition stood already; nothing was written.
    Unchanged,
}

/// What an apply did (or, in a dry run, would do), job ids in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyReport {
    /// New jobs.
    pub created: Vec<String>,
    /// Jobs with a new definition.
    pub updated: Vec<String>,
    /// How many stood already.
    pub unchanged: usize,
    /// Jobs deleted because the file no longer has them (`--prune`).
    pub deleted: Vec<String>,
}

/// Which past instants to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackfillWish {
    /// The first instant, in Unix milliseconds.
    pub from_ms: i64,
    /// The first one that is not meant.
    pub to_ms: i64,
    /// More are refused; none: [`DEFAULT_SLOTS`](super::backfill::DEFAULT_SLOTS).
    pub limit: Option<usize>,
    /// Also those that have fired already.
    pub again: bool,
}

/// A backfill: what it is about, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillObject {
    /// The job.
    pub job_id: String,
    /// The first instant.
    pub from: String,
    /// The first one that is not meant.
    pub to: String,
    /// The instants, in order.
    pub slots: Vec<BackfillSlot>,
}

/// An instant of a backfill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillSlot {
    /// The instant.
    pub at: String,
    /// The same in Unix milliseconds.
    #[serde(skip)]
    pub at_ms: i64,
    /// What the job's records say of it.
    pub history: SlotHistory,
    /// The run and its state, or why it was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<String>,
    /// The run that this backfill makes of it.
    pub run_id: String,
    /// What becomes of it.
    pub outcome: SlotOutcome,
}

/// What is recorded of an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotHistory {
    /// A run.
    Fired,
    /// A skip record.
    Skipped,
    /// Nothing: the job was not there, had no such instant, or its records are pruned.
    None,
}

/// What a backfill does at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SlotOutcome {
    /// It would make a run.
    Create,
    /// It has made a run.
    Created,
    /// The same request has made its run before.
    Exists,
    /// Nothing: the instant has fired.
    LeftOut,
}

/// What became of an instant, and why.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WhyObject {
    /// The job.
    pub job_id: String,
    /// The instant.
    pub at: String,
    /// In a word.
    pub verdict: Verdict,
    /// In a sentence.
    pub summary: String,
    /// What that rests on.
    pub evidence: Vec<String>,
    /// The run, or the skip record.
    pub run: Option<RunObject>,
    /// The next instants from now on.
    pub next: Vec<String>,
}

/// What became of an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// There is a run.
    Fired,
    /// There is a record of a decision not to run.
    Skipped,
    /// It lies ahead and will be skipped, because the job is paused.
    Paused,
    /// It lies ahead.
    Future,
    /// Nobody has come to it yet.
    Undecided,
    /// The schedule has no such instant.
    NoMatch,
    /// The job is disabled.
    Disabled,
    /// The job was made later.
    NotCreated,
    /// The job is deleted.
    Deleted,
    /// It is decided, but the record is pruned.
    NotKept,
    /// The job cannot be read by this version.
    Unreadable,
}

/// Which runs to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFilter {
    /// Only this job's.
    pub job: Option<String>,
    /// Only in one of these states; empty: all.
    #[serde(default)]
    pub states: Vec<RunState>,
}

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PageOf<T> {
    /// The items.
    pub items: Vec<T>,
    /// Hand this in to get the next page; `None`: that was all.
    pub next_cursor: Option<String>,
}

/// The cluster at a glance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatusObject {
    /// The store's name and version.
    pub store: String,
    /// Identity of the cluster's data.
    pub cluster_id: String,
    /// The time zone data that a node must have to lead.
    #[serde(default)]
    pub tzdb: String,
    /// The node that leads, if one does.
    pub leader: Option<String>,
    /// Revision at which it took the lead.
    pub term: Option<u64>,
    /// Live nodes.
    pub nodes: Vec<NodeObject>,
    /// How many jobs there are.
    pub jobs: u64,
    /// Unfinished runs by state.
    pub pending: u64,
    /// See `pending`.
    pub locked: u64,
    /// See `pending`.
    pub running: u64,
    /// Instants that are due but not decided yet: 0 when healthy. Counts to 10,000.
    pub undecided_instants: u64,
    /// Age of the oldest of them in milliseconds.
    pub cursor_lag_ms: u64,
    /// Partitions in which nothing fires, since a record that they need is missing or cannot be
    /// decoded. What they owe is in none of the counts above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged_partitions: Vec<DamagedPartition>,
}

/// A partition that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedPartition {
    /// Its number.
    pub partition: u16,
    /// The record, and what is wrong with it.
    pub what: String,
}

/// A live node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeObject {
    /// Its id.
    pub node: String,
    /// Which life of it.
    pub incarnation: String,
    /// The time zone data that it reckons with.
    #[serde(default)]
    pub tzdb: String,
    /// Whether it leads.
    pub leader: bool,
    /// Whether it takes no work, because an operator wants so.
    #[serde(default)]
    pub drained: bool,
    /// How many runs it takes at once.
    pub slots: u32,
    /// The queues it serves.
    pub queues: Vec<String>,
    /// The handlers it has.
    pub handlers: Vec<String>,
    /// Whether it runs commands, be it only those that are named in its own files.
    #[serde(default)]
    pub commands: bool,
    /// Whether it calls URLs, be it only those that it may.
    #[serde(default)]
    pub http: bool,
    /// Since when it is there.
    pub since: String,
    /// Where its API listens, if it has one.
    pub address: Option<String>,
    /// How many milliseconds its clock was ahead of the middle one of the other nodes when it wrote
    /// that last, within a minute; none when it is alone.
    #[serde(default)]
    pub clock_ahead_ms: Option<i64>,
    /// Why it does not trust its clock: it does not lead, takes no runs and changes nothing.
    #[serde(default)]
    pub clock_held: Option<String>,
}

/// What a node is wanted to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainObject {
    /// Its id.
    pub node: String,
    /// Whether it takes no work.
    pub drained: bool,
    /// Since when.
    pub since: String,
    /// What was said.
    pub reason: Option<String>,
    /// Whether this request changed it.
    pub changed: bool,
    /// How many live nodes are left to lead and to work.
    pub others: usize,
}

/// What became of a person's word that a node's clock is right.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockObject {
    /// The node's id.
    pub node: String,
    /// Whether its clock was held for a step, which is believed now; if not, it was believed before.
    pub accepted: bool,
}

/// Why an operation was not done. Each kind is something the caller acts on differently.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The definitions are not valid; nothing was written.
    #[error("{}", first_finding(.0))]
    Invalid(Vec<(String, SpecError)>),
    /// There is no such job or run.
    #[error("{0}")]
    NotFound(String),
    /// The thing is not in a state that allows it, or changed meanwhile.
    #[error("{0}")]
    Conflict(String),
    /// The store is away or did not answer in time; the operation was done once or not at all.
    #[error("the store is not reachable: {0}")]
    Store(BackendError),
    /// Too much is asked at once; try again later.
    #[error("{0}")]
    Busy(String),
    /// An apply was stopped when some of its jobs were in force already. Applying again finishes it.
    #[error("stopped half-way: {why}; of the named jobs {} remain", .remain.len())]
    HalfWay {
        /// Jobs of the file that are not as it says, or of which that is not known.
        remain: Vec<String>,
        /// What stopped it.
        why: Box<ControlError>,
    },
}

fn first_finding(findings: &[(String, SpecError)]) -> String {
    match findings {
        [] => "invalid".into(),
        [(job, finding)] => format!("{job}: {finding}"),
        [(job, finding), rest @ ..] => format!("{job}: {finding} (and {} more)", rest.len()),
    }
}

impl From<BackendError> for ControlError {
    fn from(error: BackendError) -> Self {
        Self::Store(error)
    }
}
