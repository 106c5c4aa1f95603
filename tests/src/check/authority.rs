//! Who may write: leaders under their own term, claims and starts under a live session, recovery
//! only from an absent one; `overlap: skip` respected; nothing created for a job that does not fire.

use std::collections::{BTreeMap, BTreeSet};

use punctual::control::RunKind;
use punctual::job::record::JobRecord;
use punctual::job::run::{FailReason, Owner, RunState};
use punctual::job::spec::Overlap;
use punctual::keys::AttemptKey;

use super::history::{Change, History, Revised, Step, Violation};

#[derive(Default)]
struct State {
    leader: Option<Owner>,
    sessions: BTreeSet<Owner>,
    /// Uid, and until when it is held.
    jobs: BTreeMap<String, (u64, i64)>,
    alive: BTreeMap<String, BTreeSet<AttemptKey>>,
}

/// Checks it.
#[must_use]
pub fn check(history: &History<'_>) -> Vec<Violation> {
    let mut state = State::default();
    let mut violations = Vec::new();
    for revised in &history.revisions {
        for change in &revised.changes {
            match change {
                Change::Cursor {
                    partition,
                    before: Some(_),
                    ..
                } if !history.observed.by_watch => {
                    let writer = history.owner(revised.writer);
                    if writer.is_none() || writer != state.leader.as_ref() {
                        violations.push(Violation::new(
                            "leaders write under their own term",
                            format!(
                                "cursor {partition} at revision {} by {writer:?}, the leader is {:?}",
                                revised.revision, state.leader
                            ),
                        ));
                    }
                }
                Change::Cursor {
                    partition,
                    before: Some(_),
                    ..
                } if state.leader.is_none() => {
                    violations.push(Violation::new(
                        "leaders write under their own term",
                        format!(
                            "cursor {partition} at revision {}, and nobody leads",
                            revised.revision
                        ),
                    ));
                }
                Change::Run(step) => {
                    step_of_run(history, &state, revised, step, &mut violations);
                }
                _ => {}
            }
        }
        state.apply(revised);
    }
    violations
}

fn step_of_run(
    history: &History<'_>,
    state: &State,
    revised: &Revised,
    step: &Step,
    violations: &mut Vec<Violation>,
) {
    let at = || format!("{:?} at revision {}", step.key, revised.revision);
    let before = step.before.as_ref().map(|s| &s.record);
    let after = step.after.as_ref().map(|s| &s.record);
    match (before.map(|r| r.state), after.map(|r| r.state)) {
        (None, Some(_)) => created(history, state, revised, step, violations),
        // A run in parts has no owner; its parts have.
        (_, Some(RunState::Running)) if after.is_some_and(|r| r.parts.is_some()) => {}
        (_, Some(RunState::Locked | RunState::Running)) => {
            let owner = after.and_then(|r| r.owner.clone());
            if !owner.is_some_and(|owner| state.sessions.contains(&owner)) {
                violations.push(Violation::new(
                    "claims and starts only under a live session",
                    at(),
                ));
            }
        }
        (Some(RunState::Locked | RunState::Running), _) => {
            let owner = before.and_then(|r| r.owner.clone());
            let by_owner = owner.as_ref() == history.owner(revised.writer);
            let lost = match after {
                Some(_) => !by_owner && !history.observed.by_watch,
                None => revised.changes.iter().any(|change| {
                    matches!(change, Change::Done(done) if done.key == step.key
                        && done.after.as_ref().is_some_and(|a|
                            a.record.failed == Some(FailReason::WorkerLost)))
                }),
            };
            if lost && owner.is_some_and(|owner| state.sessions.contains(&owner)) {
                violations.push(Violation::new("recovery only from an absent session", at()));
            }
        }
        _ => {}
    }
}

fn created(
    history: &History<'_>,
    state: &State,
    revised: &Revised,
    step: &Step,
    violations: &mut Vec<Violation>,
) {
    let Some(after) = &step.after else { return };
    let at = || format!("{:?} at revision {}", step.key, revised.revision);
    let record = &after.record;
    let job = state.jobs.get(&step.key.job);
    if step.key.attempt == 1 {
        // Made by the change that made or edited the job itself: that change speaks for it.
        let with_job = revised.changes.iter().any(|change| {
            matches!(change, Change::Job { id, after: Some(_), .. } if *id == step.key.job)
        });
        // What the schedule decides is judged by its instant, what people ask for by when.
        let at_ms = match record.kind {
            RunKind::Scheduled => record.scheduled_ms,
            _ => revised.unix_ms + history.observed.plan.skew_ms(),
        };
        // Parts belong to a run that was decided before: like retries, they go on under a hold.
        let part = record.kind == RunKind::Shard;
        let fires =
            job.is_some_and(|(uid, held)| *uid == record.job_uid && (part || *held <= at_ms));
        if !with_job && !fires {
            violations.push(Violation::new(
                "nothing is created after a pause or delete",
                format!(
                    "{}: the job is {job:?}, the run's uid is {}",
                    at(),
                    record.job_uid
                ),
            ));
        }
    } else if job.is_none_or(|(uid, _)| *uid != record.job_uid) {
        violations.push(Violation::new("no retry of a job that is gone", at()));
    }
    let spec = history.spec(&step.key.job, record.generation, revised.revision);
    let immediate = spec.is_some_and(|spec| spec.schedule.at.is_some());
    // By hand, as opposed to the policy's, which follow in the revision that ends the attempt before.
    let by_hand = record.kind == RunKind::Retry
        && !revised
            .changes
            .iter()
            .any(|change| matches!(change, Change::Done(done) if done.key.run == step.key.run));
    let first = step.key.attempt == 1 && record.kind != RunKind::Shard;
    let begins = (first && !immediate) || by_hand;
    if begins && spec.is_some_and(|s| s.overlap == Overlap::Skip) {
        let others = state.alive.get(&step.key.job).map_or(0, BTreeSet::len);
        let beside = revised
            .changes
            .iter()
            .filter(|change| {
                // Backfilled runs are made together, and wait for each other.
                let together = |other: &Step| {
                    let kind = other.after.as_ref().map(|after| after.record.kind);
                    record.kind == RunKind::Backfill && kind == Some(RunKind::Backfill)
                };
                matches!(change, Change::Run(other) if other.before.is_none()
                    && other.key.job == step.key.job && other.key != step.key && !together(other))
            })
            .count();
        if others + beside > 0 {
            violations.push(Violation::new(
                "overlap: skip is respected",
                format!("{}: beside {:?}", at(), state.alive.get(&step.key.job)),
            ));
        }
    }
}

/// The first instant that no hold keeps; the end of time for a hold without an end.
fn held_until(record: &JobRecord) -> i64 {
    let holds = [&record.paused, &record.paused_all].into_iter().flatten();
    let ends = holds.map(|hold| hold.until_ms.unwrap_or(i64::MAX));
    ends.max().unwrap_or(i64::MIN)
}

impl State {
    fn apply(&mut self, revised: &Revised) {
        for change in &revised.changes {
            match change {
                Change::Leader { after } => {
                    self.leader = after.as_ref().map(|stood| stood.record.owner.clone());
                }
                Change::Session { owner, there } => {
                    if *there {
                        self.sessions.insert(owner.clone());
                    } else {
                        self.sessions.remove(owner);
                    }
                }
                Change::Job { id, after, .. } => {
                    match after {
                        Some(stood) => self
                            .jobs
                            .insert(id.clone(), (stood.created, held_until(&stood.record))),
                        None => self.jobs.remove(id),
                    };
                }
                Change::Run(step) => {
                    let alive = self.alive.entry(step.key.job.clone()).or_default();
                    if step.after.is_some() {
                        alive.insert(step.key.clone());
                    } else {
                        alive.remove(&step.key);
                    }
                }
                _ => {}
            }
        }
    }
}
