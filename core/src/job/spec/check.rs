//! What is wrong with a definition, as far as it can be told without a store.

use serde::Serialize;

use crate::schedule::{Calendars, Schedule, ScheduleKind};

use super::{CommandSpec, JobSpec, OnLost, Overlap};

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
/// So many jobs may be named under `after`.
pub const MAX_AFTER: usize = 16;
/// The largest payload, as JSON text. It must fit the environment of a command.
pub const MAX_PAYLOAD_BYTES: usize = 64 << 10;

/// The largest `concurrency`.
pub const MAX_CONCURRENCY: u32 = 1_000;
/// The same with `overlap: queue` and `replace`, and the largest `queue_limit`: a fire names each
/// unfinished run of such a job in its transaction.
pub const MAX_SIBLINGS: u32 = 32;
/// The largest `fan_out`.
pub const MAX_FAN_OUT: u32 = 1_024;

/// The deepest payload. Records that hold it must be readable again: the reader's own limit is 128.
pub const MAX_PAYLOAD_DEPTH: usize = 64;

/// What is wrong with a payload, a job's or a trigger's.
#[must_use]
pub fn payload_finding(payload: &serde_json::Value) -> Option<SpecError> {
    if depth(payload) > MAX_PAYLOAD_DEPTH {
        let message = format!("nested deeper than {MAX_PAYLOAD_DEPTH} levels");
        return Some(SpecError::new("payload", message));
    }
    // Only now: printing it is recursive.
    (payload.to_string().len() > MAX_PAYLOAD_BYTES).then(|| {
        let message = format!("larger than {MAX_PAYLOAD_BYTES} bytes as JSON");
        SpecError::new("payload", message)
            .hint("keep the data elsewhere and pass a reference to it")
    })
}

/// How deep lists and objects are nested; a plain value has depth 0.
#[must_use]
pub fn depth(value: &serde_json::Value) -> usize {
    let mut deepest = 0;
    // Not recursive: the value may be an attack on the stack.
    let mut rest = vec![(value, 0)];
    while let Some((value, level)) = rest.pop() {
        deepest = deepest.max(level);
        match value {
            serde_json::Value::Array(items) => rest.extend(items.iter().map(|v| (v, level + 1))),
            serde_json::Value::Object(map) => rest.extend(map.values().map(|v| (v, level + 1))),
            _ => {}
        }
    }
    deepest
}

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
            // One that has fired for the last time is not dead: its file stays valid.
            if schedule.never_fires() {
                let reason = Schedule::check(&self.schedule, anchor_ms, calendars).err();
                errors.push(reason.as_ref().map_or_else(
                    || SpecError::new("schedule", "the schedule never fires"),
                    schedule_error,
                ));
            }
            if matches!(schedule.kind(), ScheduleKind::AfterFinish(_))
                && !self.schedule.exclude.is_empty()
            {
                errors.push(
                    SpecError::new("schedule.exclude", "`after_finish` has no dates to exclude")
                        .hint("use `every` or `cron` with `overlap: skip`"),
                );
            }
        }
        self.check_run(&mut errors);
        self.check_policies(&mut errors);
        self.check_overlap(&mut errors);
        self.check_parts(&mut errors);
        self.check_notify(&mut errors);
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
        if let Some(http) = &run.http {
            http.check(errors);
        }
        errors.extend(payload_finding(&self.payload));
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
        if let Some(delay) = self.schedule.after_finish
            && self.history.keep_for.ms() <= delay.ms()
        {
            errors.push(
                SpecError::new(
                    "history.keep_for",
                    "not longer than `schedule.after_finish`, which counts from the end of the last run",
                )
                .hint("keep the records for longer"),
            );
        }
        if self.unclaimed_after.ms() < 1_000 {
            errors.push(SpecError::new("unclaimed_after", "must be at least 1s"));
        }
        self.check_after(errors);
        if self
            .start_deadline
            .is_some_and(|deadline| deadline.ms() == 0)
        {
            errors.push(SpecError::new("start_deadline", "must be longer than 0"));
        }
    }

    /// What must be said together of runs that meet, or must not.
    fn check_overlap(&self, errors: &mut Vec<SpecError>) {
        let looks = matches!(self.overlap, Overlap::Queue | Overlap::Replace);
        let most = if looks { MAX_SIBLINGS } else { MAX_CONCURRENCY };
        if self.concurrency.is_some_and(|n| !(1..=most).contains(&n)) {
            let of = if looks { " with this `overlap`" } else { "" };
            errors.push(
                SpecError::new("concurrency", format!("must be 1 to {most}{of}"))
                    .hint("leave it out for any number; `enabled: false` for none"),
            );
        }
        if self.overlap == Overlap::Skip
            && self.concurrency.is_some_and(|n| n > 1)
            && !self.is_in_parts()
        {
            errors.push(
                SpecError::new(
                    "concurrency",
                    "contradicts `overlap: skip`, which never has a second run beside the first",
                )
                .hint("`overlap: queue` runs so many at once and lets some wait; `allow` lets any number wait"),
            );
        }
        match (self.overlap, self.queue_limit) {
            (Overlap::Queue, Some(n)) if !(1..=MAX_SIBLINGS).contains(&n) => errors.push(
                SpecError::new("queue_limit", format!("must be 1 to {MAX_SIBLINGS}"))
                    .hint("to let none wait use `overlap: skip`, for any number `overlap: allow` with `concurrency`"),
            ),
            (Overlap::Allow | Overlap::Skip | Overlap::Replace, Some(_)) => errors.push(
                SpecError::new("queue_limit", "means nothing without `overlap: queue`")
                    .hint("say `overlap: queue`, or leave it out"),
            ),
            _ => {}
        }
    }

    /// Runs that are divided into parts.
    fn check_parts(&self, errors: &mut Vec<SpecError>) {
        if self
            .fan_out
            .is_some_and(|n| !(2..=MAX_FAN_OUT).contains(&n))
        {
            errors.push(
                SpecError::new("fan_out", format!("must be 2 to {MAX_FAN_OUT}"))
                    .hint("leave it out for a run that is not divided"),
            );
        }
        if self.fan_out.is_some() && self.broadcast {
            errors.push(
                SpecError::new("broadcast", "contradicts `fan_out`")
                    .hint("one part for each node, or so many parts for whoever is free"),
            );
        }
        if self.is_in_parts() && matches!(self.overlap, Overlap::Queue | Overlap::Replace) {
            let path = if self.broadcast {
                "broadcast"
            } else {
                "fan_out"
            };
            errors.push(
                SpecError::new(
                    path,
                    "a run in parts knows only `overlap: allow` and `overlap: skip`",
                )
                .hint("`concurrency` limits how many parts execute at once"),
            );
        }
    }

    fn check_after(&self, errors: &mut Vec<SpecError>) {
        if self.after.len() > MAX_AFTER {
            errors.push(
                SpecError::new("after", format!("more than {MAX_AFTER} jobs"))
                    .hint("let one job run after those, and this one after that"),
            );
        }
        for (index, job) in self.after.iter().enumerate() {
            let path = format!("after[{index}]");
            if !is_valid_id(job) {
                let message = format!(
                    "`{}` is not a job id",
                    job.chars().take(80).collect::<String>()
                );
                errors.push(SpecError::new(path, message));
            } else if *job == self.id {
                errors.push(
                    SpecError::new(path, "a job that runs after itself never stops")
                        .hint("use `schedule: { every: .. }` with `overlap: skip`"),
                );
            } else if self.after[..index].contains(job) {
                errors.push(SpecError::new(path, format!("`{job}` is named twice")));
            }
        }
    }
}

pub(crate) fn schedule_error(error: &crate::schedule::ScheduleError) -> SpecError {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(levels: usize) -> serde_json::Value {
        (0..levels).fold(serde_json::Value::Null, |inner, _| {
            serde_json::Value::Array(vec![inner])
        })
    }

    #[test]
    fn what_contradicts_itself_about_overlapping_runs_is_refused() {
        let findings = |overlap, concurrency, queue_limit| {
            let mut spec = JobSpec::handler("a", "h");
            (spec.overlap, spec.concurrency, spec.queue_limit) =
                (overlap, concurrency, queue_limit);
            let found = spec.check(&Calendars::default(), 0).err();
            let paths = found.into_iter().flatten().map(|finding| finding.path);
            paths.collect::<Vec<_>>().join(" ")
        };
        use Overlap::{Allow, Queue, Replace, Skip};
        for (overlap, concurrency, queue_limit) in [
            (Allow, Some(1_000), None),
            (Queue, None, None),
            (Queue, Some(32), Some(32)),
            (Replace, Some(2), None),
            (Skip, Some(1), None),
        ] {
            assert_eq!(findings(overlap, concurrency, queue_limit), "");
        }
        for (overlap, concurrency, queue_limit, path) in [
            (Allow, Some(0), None, "concurrency"),
            (Allow, Some(1_001), None, "concurrency"),
            (Queue, Some(33), None, "concurrency"),
            (Replace, Some(33), None, "concurrency"),
            (Skip, Some(2), None, "concurrency"),
            (Queue, None, Some(0), "queue_limit"),
            (Queue, None, Some(33), "queue_limit"),
            (Replace, None, Some(1), "queue_limit"),
            (Skip, None, Some(1), "queue_limit"),
            (Allow, None, Some(1), "queue_limit"),
        ] {
            assert_eq!(findings(overlap, concurrency, queue_limit), path);
        }
    }

    #[test]
    fn what_contradicts_itself_about_parts_is_refused() {
        let findings = |fan_out, broadcast, overlap, concurrency| {
            let mut spec = JobSpec::handler("a", "h");
            (spec.fan_out, spec.broadcast) = (fan_out, broadcast);
            (spec.overlap, spec.concurrency) = (overlap, concurrency);
            let found = spec.check(&Calendars::default(), 0).err();
            let paths = found.into_iter().flatten().map(|finding| finding.path);
            paths.collect::<Vec<_>>().join(" ")
        };
        use Overlap::{Allow, Queue, Replace, Skip};
        for (fan_out, broadcast, overlap, concurrency) in [
            (Some(2), false, Allow, None),
            (Some(1_024), false, Skip, Some(5)),
            (None, true, Skip, Some(2)),
            (None, true, Allow, Some(1_000)),
        ] {
            assert_eq!(findings(fan_out, broadcast, overlap, concurrency), "");
        }
        for (fan_out, broadcast, overlap, path) in [
            (Some(0), false, Allow, "fan_out"),
            (Some(1), false, Allow, "fan_out"),
            (Some(1_025), false, Allow, "fan_out"),
            (Some(2), true, Allow, "broadcast"),
            (Some(2), false, Queue, "fan_out"),
            (None, true, Replace, "broadcast"),
        ] {
            assert_eq!(findings(fan_out, broadcast, overlap, None), path);
        }
    }

    #[test]
    fn a_payload_that_could_not_be_read_again_is_refused() {
        assert_eq!(depth(&serde_json::json!({"a": [1, {"b": 2}]})), 3);
        assert_eq!(payload_finding(&nested(64)), None);
        let deep = payload_finding(&nested(65)).unwrap();
        assert_eq!(deep.to_string(), "payload: nested deeper than 64 levels");
        // What is accepted is readable again, also inside a record.
        let mut spec = JobSpec::handler("a", "h");
        spec.payload = nested(64);
        let bytes = crate::job::record::encode(&spec);
        assert_eq!(crate::job::record::decode::<JobSpec>(&bytes).unwrap(), spec);
        let large = serde_json::Value::String("x".repeat(MAX_PAYLOAD_BYTES));
        assert!(payload_finding(&large).unwrap().hint.is_some());
    }
}
