//! What the job file says of a job, and what is wrong with it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::duration::Millis;
use crate::schedule::ScheduleSpec;

mod check;
mod http;
mod notify;
mod url;

pub(crate) use check::schedule_error;
pub use check::{
    MAX_AFTER, MAX_CONCURRENCY, MAX_FAN_OUT, MAX_ID_LEN, MAX_PAYLOAD_BYTES, MAX_PAYLOAD_DEPTH,
    MAX_SIBLINGS, SpecError, depth, is_valid_id, payload_finding,
};
pub use http::{
    HttpMethod, HttpSpec, Piece, SECRET_VARIABLE, is_reserved_header, is_secret_name, pieces,
};
pub use notify::{MAX_NOTIFY, NotifyEvent, NotifySpec, receiver_of};
pub use url::{HttpUrl, MAX_URL_BYTES, host_and_port};

/// A job as people define it. Everything that is not said takes the default named at the field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobSpec {
    /// `[a-z0-9][a-z0-9._-]{0,62}`.
    pub id: String,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When it fires; none: on demand only.
    #[serde(default, skip_serializing_if = "is_default")]
    pub schedule: ScheduleSpec,
    /// What it does.
    pub run: RunSpec,
    /// Handed to the run.
    #[serde(default, skip_serializing_if = "serde_json::Value::is_null")]
    pub payload: serde_json::Value,
    /// Time limit of an execution. Default 1h.
    #[serde(
        default = "defaults::timeout",
        skip_serializing_if = "defaults::is_timeout"
    )]
    pub timeout: Millis,
    /// What to do when the run before is not finished. Default allow.
    #[serde(default, skip_serializing_if = "is_default")]
    pub overlap: Overlap,
    /// How many may wait with `overlap: queue`, at most 32. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_limit: Option<u32>,
    /// What to do with a gap longer than `catch_up`. Default latest.
    #[serde(default, skip_serializing_if = "is_default")]
    pub misfire: Misfire,
    /// A gap no longer than this loses nothing: every instant fires. Default 10m.
    #[serde(
        default = "defaults::catch_up",
        skip_serializing_if = "defaults::is_catch_up"
    )]
    pub catch_up: Millis,
    /// Instants older than this when they are decided are dropped. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_deadline: Option<Millis>,
    /// Further attempts after a failed one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retry: RetrySpec,
    /// What to do when a worker vanishes while running it. Default fail.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_lost: OnLost,
    /// The job's promise that running it twice does no harm; needed for `on_lost: retry`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub idempotent: bool,
    /// Which nodes may run it. Default `default`.
    #[serde(
        default = "defaults::queue",
        skip_serializing_if = "defaults::is_queue"
    )]
    pub queue: String,
    /// Larger goes first, -10 to 10. Default 0.
    #[serde(default, skip_serializing_if = "is_default")]
    pub priority: i8,
    /// At most so many runs execute at once, the others wait. Default: unlimited; 1 with
    /// `overlap: queue` and `replace`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Divide each run into so many parts, 2 to 1024, each a run of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fan_out: Option<u32>,
    /// Divide each run into one part for each live node that can run it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub broadcast: bool,
    /// Also run whenever one of these jobs succeeds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// How much of the past is kept.
    #[serde(default, skip_serializing_if = "is_default")]
    pub history: HistorySpec,
    /// Who is told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<NotifySpec>,
    /// For people and their tools.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// `false`: it has no instants and leaves no records. Default true.
    #[serde(default = "defaults::yes", skip_serializing_if = "defaults::is_yes")]
    pub enabled: bool,
    /// A run that nobody claims for so long fails. Default 10m.
    #[serde(
        default = "defaults::unclaimed_after",
        skip_serializing_if = "defaults::is_unclaimed_after"
    )]
    pub unclaimed_after: Millis,
    /// Stop the run when its worker loses its session, even if nobody could start it again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub self_fence: bool,
}

/// What a job does: exactly one of these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSpec {
    /// Runs a program: a list is its argv, a text names a command of the node's own files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandSpec>,
    /// Added to the command's clean environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Calls a URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSpec>,
    /// Calls a handler registered by the program that embeds the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
}

/// Program and arguments, or the name of a declared command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CommandSpec {
    /// Program and arguments.
    Argv(Vec<String>),
    /// A command declared under `commands:` in the node's own files.
    Named(String),
}

/// What to do at an instant while an earlier run of the job is not finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// Run beside it.
    #[default]
    Allow,
    /// Leave a SKIPPED record instead.
    Skip,
    /// Wait for it, if there is room in the queue; else leave a SKIPPED record.
    Queue,
    /// Cancel it, and run when it has ended.
    Replace,
}

/// What to do with the instants of a gap longer than `catch_up`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Misfire {
    /// The most recent one fires once and stands for all.
    #[default]
    Latest,
    /// Each one fires.
    All,
    /// None fires.
    Skip,
}

/// What to do when a worker vanishes while it runs an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnLost {
    /// FAILED / `worker_lost`; a person decides.
    #[default]
    Fail,
    /// Another attempt.
    Retry,
}

/// Further attempts after one that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetrySpec {
    /// Every execution counts. Default 1, or 3 with `on_lost: retry`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// Wait before the second attempt. Default 1s.
    pub backoff: Millis,
    /// Each further wait is so many times longer. Default 2.
    pub factor: f64,
    /// The longest wait. Default 1m.
    pub max_backoff: Millis,
}

impl Default for RetrySpec {
    fn default() -> Self {
        Self {
            attempts: None,
            backoff: Millis::from_secs(1),
            factor: 2.0,
            max_backoff: Millis::from_secs(60),
        }
    }
}

/// How much of a job's past is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HistorySpec {
    /// Successful attempts. Default 20.
    pub keep_success: u32,
    /// Failed attempts. Default 50.
    pub keep_failed: u32,
    /// Skip records. Default 50.
    pub keep_skipped: u32,
    /// Nothing older than this. Default 30d.
    pub keep_for: Millis,
}

impl Default for HistorySpec {
    fn default() -> Self {
        Self {
            keep_success: 20,
            keep_failed: 50,
            keep_skipped: 50,
            keep_for: Millis::from_secs(30 * 86_400),
        }
    }
}

mod defaults {
    use crate::duration::Millis;

    pub(super) fn timeout() -> Millis {
        Millis::from_secs(3_600)
    }
    pub(super) fn is_timeout(value: &Millis) -> bool {
        *value == timeout()
    }
    pub(super) fn catch_up() -> Millis {
        Millis::from_secs(600)
    }
    pub(super) fn is_catch_up(value: &Millis) -> bool {
        *value == catch_up()
    }
    pub(super) fn unclaimed_after() -> Millis {
        Millis::from_secs(600)
    }
    pub(super) fn is_unclaimed_after(value: &Millis) -> bool {
        *value == unclaimed_after()
    }
    pub(super) fn queue() -> String {
        "default".into()
    }
    pub(super) fn is_queue(value: &str) -> bool {
        value == "default"
    }
    pub(super) fn yes() -> bool {
        true
    }
    #[allow(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    pub(super) fn is_yes(value: &bool) -> bool {
        *value
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl JobSpec {
    /// A job on demand that calls a handler, with every default; for programs that embed a node.
    #[must_use]
    pub fn handler(id: impl Into<String>, handler: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            name: None,
            schedule: ScheduleSpec::default(),
            run: RunSpec {
                handler: Some(handler.into()),
                ..RunSpec::default()
            },
            payload: serde_json::Value::Null,
            timeout: defaults::timeout(),
            overlap: Overlap::default(),
            queue_limit: None,
            misfire: Misfire::default(),
            catch_up: defaults::catch_up(),
            start_deadline: None,
            retry: RetrySpec::default(),
            on_lost: OnLost::default(),
            idempotent: false,
            queue: defaults::queue(),
            priority: 0,
            concurrency: None,
            fan_out: None,
            broadcast: false,
            after: Vec::new(),
            history: HistorySpec::default(),
            notify: Vec::new(),
            labels: BTreeMap::new(),
            enabled: true,
            unclaimed_after: defaults::unclaimed_after(),
            self_fence: false,
        }
    }

    /// The same job, fired by a cron expression in UTC.
    #[must_use]
    pub fn cron(mut self, expression: impl Into<String>) -> Self {
        self.schedule = ScheduleSpec {
            cron: Some(expression.into()),
            ..ScheduleSpec::default()
        };
        self
    }

    /// The same job, fired in a fixed rhythm.
    #[must_use]
    pub fn every(mut self, period: Millis) -> Self {
        self.schedule = ScheduleSpec {
            every: Some(period),
            ..ScheduleSpec::default()
        };
        self
    }

    /// The same job with its dialect decided, as it is stored: `auto` is a word of files, and must
    /// not mean something else to a later version.
    #[must_use]
    pub fn with_dialect_decided(self) -> Self {
        let schedule = self.schedule.clone().with_dialect_decided();
        Self {
            // What cannot be decided is refused by the check.
            schedule: schedule.unwrap_or_else(|_| self.schedule.clone()),
            ..self
        }
    }

    /// What a node must have to run it: `command`, `http` or `handler:NAME`.
    #[must_use]
    pub fn needs(&self) -> String {
        match &self.run.handler {
            Some(name) => format!("handler:{name}"),
            None if self.run.http.is_some() => "http".into(),
            None => "command".into(),
        }
    }

    /// Executions at most, retries included.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.retry.attempts.unwrap_or(match self.on_lost {
            OnLost::Fail => 1,
            OnLost::Retry => 3,
        })
    }

    /// Wait before attempt number `attempt` (2 is the first retry), in milliseconds.
    #[must_use]
    pub fn backoff_ms(&self, attempt: u32) -> u64 {
        let exponent = attempt.saturating_sub(2).min(64);
        let factor = self
            .retry
            .factor
            .powi(i32::try_from(exponent).unwrap_or(64));
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "both are bounded by max_backoff; a rounded millisecond does no harm"
        )]
        let wait = (self.retry.backoff.ms() as f64 * factor).min(self.retry.max_backoff.ms() as f64)
            as u64;
        wait
    }

    /// Whether a run must not outlive its worker's session: somebody else might start the same
    /// attempt's successor, or the job's next run, beside it.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.self_fence
            || self.on_lost == OnLost::Retry
            || self.overlap != Overlap::Allow
            || self.concurrency.is_some()
    }

    /// How many executions of the job there may be at once; `None`: any number.
    #[must_use]
    pub fn execution_limit(&self) -> Option<u32> {
        self.concurrency.or(match self.overlap {
            Overlap::Queue | Overlap::Replace => Some(1),
            Overlap::Allow | Overlap::Skip => None,
        })
    }

    /// Whether its runs are divided into parts.
    #[must_use]
    pub fn is_in_parts(&self) -> bool {
        self.broadcast || self.fan_out.is_some()
    }

    /// How many runs of the job may be unfinished with `overlap: queue`: those that execute, and
    /// those that wait.
    #[must_use]
    pub fn queue_capacity(&self) -> usize {
        let capacity = self.execution_limit().unwrap_or(1) + self.queue_limit.unwrap_or(1);
        usize::try_from(capacity).unwrap_or(usize::MAX)
    }
}
