//! What the job file says of a job, and what is wrong with it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::duration::Millis;
use crate::schedule::{Calendars, Schedule, ScheduleKind, ScheduleSpec};

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
    /// How many may wait with `overlap: queue`. Default 1.
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
    /// At most so many runs at once. Default: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Split one fire over so many runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fan_out: Option<u32>,
    /// Run on every node of the queue.
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
    pub notify: Vec<serde_json::Value>,
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
    pub http: Option<serde_json::Value>,
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
    /// Wait for it.
    Queue,
    /// Cancel it.
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

/// What is wrong with a definition: where, what, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{path}: {message}")]
pub struct SpecError {
    /// The key inside the job: `schedule.cron`, `retry.attempts`.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// For texts with positions inside (a cron expression): 1-based character.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<usize>,
}

impl SpecError {
    /// An error at a key.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
            hint: None,
            at: None,
        }
    }

    /// Adds what to write instead.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// The longest job id.
pub const MAX_ID_LEN: usize = 63;
/// The largest payload, as JSON text. It must fit the environment of a command.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 10;

/// Whether `id` is `[a-z0-9][a-z0-9._-]{0,62}`.
#[must_use]
pub fn is_valid_id(id: &str) -> bool {
    let mut bytes = id.bytes();
    id.len() <= MAX_ID_LEN
        && bytes
            .next()
            .is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        && bytes.all(|b| {
            b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-')
        })
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
        self.self_fence || self.on_lost == OnLost::Retry || self.overlap != Overlap::Allow
    }

    /// Checks everything that can be checked without a store, in the order of the file, and
    /// compiles the schedule.
    ///
    /// # Errors
    /// Every finding, not only the first.
    pub fn check(&self, calendars: &Calendars, anchor_ms: i64) -> Result<Schedule, Vec<SpecError>> {
        let mut errors = Vec::new();
        self.check_identity(&mut errors);
        let schedule = match Schedule::compile(&self.schedule, anchor_ms, calendars) {
            Ok(schedule) => Some(schedule),
            Err(e) => {
                errors.push(schedule_error(&e));
                None
            }
        };
        if let Some(schedule) = &schedule {
            if schedule.never_fires() {
                errors.push(
                    SpecError::new("schedule", "this schedule never fires")
                        .hint("check day and month (30 February never comes), year, `start` and `end`; for a job on demand leave `schedule` out"),
                );
            }
            if matches!(schedule.kind(), ScheduleKind::AfterFinish(_)) {
                errors.push(not_yet(
                    "schedule.after_finish",
                    "use `every` with `overlap: skip`",
                ));
            }
        }
        self.check_run(&mut errors);
        self.check_policies(&mut errors);
        self.check_later(&mut errors);
        match schedule {
            Some(schedule) if errors.is_empty() => Ok(schedule),
            _ => Err(errors),
        }
    }

    fn check_identity(&self, errors: &mut Vec<SpecError>) {
        if !is_valid_id(&self.id) {
            let shown: String = self.id.chars().take(80).collect();
            errors.push(
                SpecError::new("id", format!("`{shown}` is not a job id")).hint(
                    "1 to 63 characters: lower case letters, digits, `.`, `_`, `-`; the first is a letter or digit",
                ),
            );
        }
        if self.name.as_ref().is_some_and(|name| name.len() > 256) {
            errors.push(SpecError::new("name", "longer than 256 bytes"));
        }
        if self.labels.len() > 64 {
            errors.push(SpecError::new("labels", "more than 64 labels"));
        }
        for (key, value) in &self.labels {
            if key.is_empty() || key.len() > 63 || value.len() > 256 {
                errors.push(SpecError::new(
                    format!("labels.{key}"),
                    "a label's name has 1 to 63 bytes, its value at most 256",
                ));
            }
        }
    }

    fn check_run(&self, errors: &mut Vec<SpecError>) {
        let run = &self.run;
        let given = [
            run.command.is_some(),
            run.http.is_some(),
            run.handler.is_some(),
        ];
        if given.iter().filter(|given| **given).count() != 1 {
            errors.push(
                SpecError::new("run", "needs exactly one of `command`, `http`, `handler`")
                    .hint("for example  run: { command: [\"/usr/bin/true\"] }"),
            );
        }
        match &run.command {
            Some(CommandSpec::Argv(argv)) if argv.first().is_none_or(String::is_empty) => {
                errors.push(
                    SpecError::new("run.command", "an empty command")
                        .hint("a list of program and arguments: [\"/usr/bin/report\", \"--all\"]"),
                );
            }
            Some(CommandSpec::Argv(argv)) if argv.iter().any(|a| a.contains('\0')) => {
                errors.push(SpecError::new(
                    "run.command",
                    "an argument contains a NUL character",
                ));
            }
            Some(CommandSpec::Named(name)) if name.trim().is_empty() || name.contains(' ') => {
                errors.push(
                    SpecError::new(
                        "run.command",
                        "a text names a command declared under `commands:`, it is never given to a shell",
                    )
                    .hint("write a list: [\"sh\", \"-c\", \"...\"] if you really want a shell"),
                );
            }
            _ => {}
        }
        for (key, value) in &run.env {
            if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
                errors.push(SpecError::new(
                    format!("run.env.{key}"),
                    "not a valid environment variable",
                ));
            } else if key.starts_with("PUNCTUAL_") {
                errors.push(SpecError::new(
                    format!("run.env.{key}"),
                    "names with PUNCTUAL_ are set by the scheduler",
                ));
            }
        }
        if run.command.is_none() && !run.env.is_empty() {
            errors.push(SpecError::new(
                "run.env",
                "only a command has an environment",
            ));
        }
        if run
            .handler
            .as_ref()
            .is_some_and(|name| name.trim().is_empty())
        {
            errors.push(SpecError::new("run.handler", "an empty name"));
        }
        if self.payload.to_string().len() > MAX_PAYLOAD_BYTES {
            errors.push(
                SpecError::new(
                    "payload",
                    format!("larger than {MAX_PAYLOAD_BYTES} bytes as JSON"),
                )
                .hint("keep the data elsewhere and pass a reference to it"),
            );
        }
    }

    fn check_policies(&self, errors: &mut Vec<SpecError>) {
        if self.timeout.ms() == 0 {
            errors.push(SpecError::new("timeout", "must be longer than 0"));
        }
        if self.on_lost == OnLost::Retry && !self.idempotent {
            errors.push(
                SpecError::new(
                    "on_lost",
                    "`retry` may run the job twice when a worker vanishes",
                )
                .hint("say `idempotent: true` if that does no harm, else use `on_lost: fail`"),
            );
        }
        if !(1..=100).contains(&self.attempts()) {
            errors.push(
                SpecError::new("retry.attempts", "must be 1 to 100")
                    .hint("every execution counts: 1 means no retry"),
            );
        }
        if !(1.0..=100.0).contains(&self.retry.factor) {
            errors.push(SpecError::new("retry.factor", "must be 1 to 100"));
        }
        if !(-10..=10).contains(&self.priority) {
            errors.push(SpecError::new("priority", "must be -10 to 10"));
        }
        if !is_valid_id(&self.queue) {
            errors.push(
                SpecError::new("queue", format!("`{}` is not a queue name", self.queue))
                    .hint("the same characters as a job id"),
            );
        }
        for (key, value) in [
            ("keep_success", self.history.keep_success),
            ("keep_failed", self.history.keep_failed),
            ("keep_skipped", self.history.keep_skipped),
        ] {
            if !(1..=100_000).contains(&value) {
                errors.push(SpecError::new(
                    format!("history.{key}"),
                    "must be 1 to 100000",
                ));
            }
        }
        if self.history.keep_for.ms() < 60_000 {
            errors.push(SpecError::new("history.keep_for", "must be at least 1m"));
        }
        if self.unclaimed_after.ms() < 1_000 {
            errors.push(SpecError::new("unclaimed_after", "must be at least 1s"));
        }
        if self
            .start_deadline
            .is_some_and(|deadline| deadline.ms() == 0)
        {
            errors.push(SpecError::new("start_deadline", "must be longer than 0"));
        }
    }

    /// Keys whose names are fixed but which this version does not have: a clear no beats a job
    /// that does something else than its file says.
    fn check_later(&self, errors: &mut Vec<SpecError>) {
        if matches!(self.overlap, Overlap::Queue | Overlap::Replace) {
            errors.push(not_yet(
                "overlap",
                "`queue` and `replace` are to come; use `skip` or `allow`",
            ));
        }
        if self.queue_limit.is_some() {
            errors.push(not_yet("queue_limit", "leave it out"));
        }
        if self.concurrency.is_some() {
            errors.push(not_yet(
                "concurrency",
                "use `overlap: skip` for at most one run at a time",
            ));
        }
        if self.fan_out.is_some() {
            errors.push(not_yet("fan_out", "define one job for each part"));
        }
        if self.broadcast {
            errors.push(not_yet(
                "broadcast",
                "define one job with its own queue for each node",
            ));
        }
        if !self.after.is_empty() {
            errors.push(not_yet(
                "after",
                "trigger the second job from the first one",
            ));
        }
        if !self.notify.is_empty() {
            errors.push(not_yet(
                "notify",
                "watch `punctual run ls --state FAILED -o json`",
            ));
        }
        if self.run.http.is_some() {
            errors.push(not_yet("run.http", "call the URL from a command"));
        }
    }
}

fn not_yet(path: &str, hint: &str) -> SpecError {
    SpecError::new(path, "not supported by this version").hint(hint)
}

fn schedule_error(error: &crate::schedule::ScheduleError) -> SpecError {
    // A field of the expression (`minute`) is no key of the file.
    let key = matches!(
        error.field,
        "every"
            | "after_finish"
            | "at"
            | "timezone"
            | "dialect"
            | "dst"
            | "start"
            | "end"
            | "exclude"
            | "jitter"
    );
    let (path, message) = match (key, error.field) {
        (true, field) => (format!("schedule.{field}"), error.message.clone()),
        (false, "cron" | "schedule") => ("schedule.cron".into(), error.message.clone()),
        (false, field) => (
            "schedule.cron".into(),
            format!("{field}: {}", error.message),
        ),
    };
    SpecError {
        path,
        message,
        hint: error.hint.clone(),
        at: error.at,
    }
}
