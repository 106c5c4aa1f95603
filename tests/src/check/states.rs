//! Legal edges only, terminal records immutable, each attempt created once, one cursor that only
//! goes forward.

use std::collections::{BTreeMap, BTreeSet};

use punctual::control::RunKind;

use punctual::job::record::RunRecord;
use punctual::job::run::RunState::{self, Failed, Locked, Pending, Running, Skipped, Success};
use punctual::keys::AttemptKey;

use super::history::{Change, Held, History, Revised, Step, Violation};

/// Checks it.
#[must_use]
pub fn check(history: &History<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    // Not even when a job is deleted and made again does the id of a run come back.
    let mut made: BTreeSet<&AttemptKey> = BTreeSet::new();
    let mut ended: BTreeSet<&AttemptKey> = BTreeSet::new();
    // The last end of each run, and what was made of a failed one by hand, by key of the attempt.
    let mut ends: BTreeMap<(&str, &str), (u32, RunState)> = BTreeMap::new();
    for revised in &history.revisions {
        for change in &revised.changes {
            if let Change::Done(Step {
                key,
                after: Some(after),
                ..
            }) = change
            {
                ends.insert((&key.job, &key.run), (key.attempt, after.record.state));
            }
        }
        for change in &revised.changes {
            match change {
                Change::Cursor {
                    partition,
                    before: Some(before),
                    after,
                } if after
                    .as_ref()
                    .is_none_or(|after| after.record.position <= before.record.position) =>
                {
                    violations.push(Violation::new(
                        "the cursor goes forward",
                        format!(
                            "partition {partition}, revision {}: {before:?} -> {after:?}",
                            revised.revision
                        ),
                    ));
                }
                Change::Run(step) => {
                    if step.before.is_none() && !made.insert(&step.key) {
                        violations.push(Violation::new(
                            "an attempt is created once",
                            format!("{:?} again at revision {}", step.key, revised.revision),
                        ));
                    }
                    let end = ends.get(&(step.key.job.as_str(), step.key.run.as_str()));
                    violations.extend(edge(revised, step, end));
                }
                Change::Done(step) => {
                    if step.before.is_some() && step.after.is_some() {
                        violations.push(Violation::new(
                            "terminal records never change",
                            format!("{:?} at revision {}", step.key, revised.revision),
                        ));
                    }
                    if step.before.is_none() && !ended.insert(&step.key) {
                        violations.push(Violation::new(
                            "an attempt ends once",
                            format!("{:?} again at revision {}", step.key, revised.revision),
                        ));
                    }
                    if let Some(after) = &step.after
                        && !matches!(after.record.state, Success | Failed | Skipped)
                    {
                        violations.push(Violation::new(
                            "legal edges only",
                            format!("{:?} under done/ as {}", step.key, after.record.state),
                        ));
                    }
                }
                _ => {}
            }
        }
    }
    violations.extend(
        history
            .unreadable
            .iter()
            .map(|what| Violation::new("records are readable", what.clone())),
    );
    violations
}

fn in_parts(held: &Held<RunRecord>) -> bool {
    held.as_ref()
        .is_some_and(|stood| stood.record.parts.is_some())
}

fn edge(revised: &Revised, step: &Step, end: Option<&(u32, RunState)>) -> Option<Violation> {
    let wrong = |why: String| {
        Some(Violation::new(
            "legal edges only",
            format!("{:?} at revision {}: {why}", step.key, revised.revision),
        ))
    };
    let state = |held: &Held<RunRecord>| held.as_ref().map(|stood| stood.record.state);
    let done = revised.changes.iter().find_map(|change| match change {
        Change::Done(done) if done.key == step.key => done.after.as_ref().map(|a| &a.record),
        _ => None,
    });
    match (state(&step.before), state(&step.after)) {
        (None, Some(Pending)) => {
            let previous = AttemptKey {
                attempt: step.key.attempt.saturating_sub(1),
                ..step.key.clone()
            };
            // By hand: whenever, but behind nothing else than the last end, a failure.
            let is_retry = step
                .after
                .as_ref()
                .is_some_and(|after| after.record.kind == RunKind::Retry);
            let by_hand = is_retry && end == Some(&(previous.attempt, Failed));
            let follows = step.key.attempt == 1
                || by_hand
                || revised.changes.iter().any(|change| {
                    matches!(change, Change::Done(done) if done.key == previous
                        && done.after.as_ref().is_some_and(|a| a.record.state == Failed))
                });
            if follows {
                None
            } else {
                wrong("an attempt that follows none".into())
            }
        }
        // A run in parts; `parts` looks closer.
        (Some(Pending | Running), Some(Running)) if in_parts(&step.after) => None,
        (Some(Pending), Some(Locked)) | (Some(Locked), Some(Pending)) => None,
        (Some(Locked), Some(Running)) => {
            let owner = |held: &Held<RunRecord>| held.as_ref()?.record.owner.clone();
            if owner(&step.before) == owner(&step.after) {
                None
            } else {
                wrong("started by somebody else".into())
            }
        }
        (Some(from), None) => match done.map(|done| done.state) {
            Some(Success) if from == Running => None,
            Some(Failed) => None,
            other => wrong(format!("{from} -> {other:?}")),
        },
        (from, to) => wrong(format!("{from:?} -> {to:?}")),
    }
}
