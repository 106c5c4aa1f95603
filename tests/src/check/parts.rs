//! Runs in parts: each part is made once, and only for a run that is to go on; the run ends when all
//! of its parts have, and as they did; a part that is for a node runs there.

use std::collections::{BTreeMap, BTreeSet};

use punctual::control::RunKind;
use punctual::job::parts::Shard;
use punctual::job::record::RunRecord;
use punctual::job::run::{FailReason, Owner, RunState};
use punctual::keys::{AttemptKey, part_of};

use super::history::{Change, History, Revised, Step, Violation};
use crate::sim::schedule::Op;

/// The leader looks twice a second, but it must be there, and reach the store.
const STUCK_MS: u64 = 60_000;
/// A session that has come or gone so short a time ago may be seen otherwise.
const SEEN_MS: u64 = 10_000;

/// Checks it.
#[must_use]
pub fn check(history: &History<'_>) -> Vec<Violation> {
    let mut state = State {
        drains: history
            .observed
            .plan
            .ops
            .iter()
            .any(|(_, _, op)| matches!(op, Op::Drain(..))),
        ..State::default()
    };
    let mut violations = Vec::new();
    for revised in &history.revisions {
        for change in &revised.changes {
            match change {
                Change::Run(step) => state.run(history, revised, step, &mut violations),
                Change::Done(step) => state.done(revised, step, &mut violations),
                _ => {}
            }
        }
        state.apply(revised);
    }
    let end_ms = history.observed.plan.end_ms;
    for (run, parent) in &state.alive {
        let waits = parent.record.parts.as_ref().is_none_or(|p| p.wants_nodes());
        if !waits && parent.open.is_empty() && parent.moved_ms + STUCK_MS < end_ms {
            violations.push(Violation::new(
                "a run in parts goes on",
                format!("{run}: nothing since {} ms", parent.moved_ms),
            ));
        }
    }
    violations
}

/// A run in parts that has not ended.
struct Parent {
    record: RunRecord,
    /// The indexes of its parts.
    made: BTreeSet<u32>,
    /// Their attempts that have not ended.
    open: BTreeSet<AttemptKey>,
    /// How the last attempt of each ended.
    last: BTreeMap<u32, (u32, RunState)>,
    moved_ms: u64,
}

#[derive(Default)]
struct State {
    alive: BTreeMap<String, Parent>,
    /// Ended, and their record is kept.
    ended: BTreeSet<String>,
    cancels: BTreeSet<String>,
    /// The uid of each job.
    jobs: BTreeMap<String, u64>,
    /// Since when each session is there. (Two of one node may be: the old one ends by itself.)
    since: BTreeMap<Owner, u64>,
    /// When a session of each node ended last.
    until: BTreeMap<String, u64>,
    drains: bool,
}

impl State {
    fn run(
        &self,
        history: &History<'_>,
        revised: &Revised,
        step: &Step,
        violations: &mut Vec<Violation>,
    ) {
        let at = || format!("{:?} at revision {}", step.key, revised.revision);
        let mut wrong = |invariant, why: &str| {
            violations.push(Violation::new(invariant, format!("{}: {why}", at())));
        };
        let Some(after) = step.after.as_ref().map(|after| &after.record) else {
            return;
        };
        if let Some(parts) = &after.parts {
            if after.owner.is_some() || after.state == RunState::Locked {
                wrong("a run in parts is nobody's", "it has an owner");
            }
            if let Some(before) = &step.before {
                let made = before.record.parts.as_ref().map_or(0, |parts| parts.made);
                let all = (made..parts.made).all(|index| makes(revised, &step.key.run, index));
                if parts.made <= made || !all {
                    wrong("a run in parts counts its parts", "it counts others");
                }
                if before.record.state == RunState::Pending {
                    self.nodes(history, revised, after, &mut wrong);
                }
            }
        }
        if step.before.is_some()
            && part_of(&step.key.run).is_some_and(|(whole, _)| divides(revised, whole))
        {
            wrong("each part is made once", "it was there already");
        }
        match (&after.shard, &step.before) {
            (Some(shard), None) => self.made(revised, &step.key, after, shard, &mut wrong),
            (Some(shard), Some(_)) if after.state == RunState::Locked => {
                let node = after.owner.as_ref().map(|owner| &owner.node);
                if shard.node.is_some() && shard.node.as_ref() != node {
                    wrong(
                        "a part for a node runs there",
                        "it was taken by another one",
                    );
                }
            }
            _ => {}
        }
    }

    /// A new attempt of a part.
    fn made(
        &self,
        revised: &Revised,
        key: &AttemptKey,
        record: &RunRecord,
        shard: &Shard,
        wrong: &mut dyn FnMut(&'static str, &str),
    ) {
        let Some((whole, index)) = part_of(&key.run) else {
            return wrong("a part is named by its run", "it is not");
        };
        let parent = self.alive.get(whole);
        if record.kind == RunKind::Retry {
            // By hand, or what followed that.
            if parent.is_some() {
                wrong(
                    "a part is repeated by hand when its run has ended",
                    "it has not",
                );
            }
            return;
        }
        let Some(parent) = parent.filter(|_| !self.cancels.contains(whole)) else {
            return wrong(
                "no part of a run that has ended or is to end",
                "its run is not there, or is to end",
            );
        };
        if key.attempt > 1 {
            return;
        }
        if parent.made.contains(&index) {
            wrong("each part is made once", "it was made before");
        }
        // As the run says since this very revision.
        let now = revised.changes.iter().find_map(|change| match change {
            Change::Run(step) if step.key.run == whole => step.after.as_ref(),
            _ => None,
        });
        let parts = now.and_then(|now| now.record.parts.as_ref());
        let place = usize::try_from(index).unwrap_or(usize::MAX);
        let counted = parts.is_some_and(|parts| {
            let node = parts.nodes.as_ref().and_then(|nodes| nodes.get(place));
            index < parts.made && parts.total == shard.total && node == shard.node.as_ref()
        });
        if !counted || index != shard.index {
            wrong("a run in parts counts its parts", "not this one");
        }
    }

    /// The nodes of a broadcast.
    fn nodes(
        &self,
        history: &History<'_>,
        revised: &Revised,
        record: &RunRecord,
        wrong: &mut dyn FnMut(&'static str, &str),
    ) {
        let invariant = "a broadcast reaches the nodes that are there";
        let named = record.parts.as_ref().and_then(|parts| parts.nodes.as_ref());
        let Some(named) = named else { return };
        let now_ms = revised.at_ms;
        for node in named {
            let until_ms = self.until.get(node).copied().unwrap_or(0);
            let there = self.since.keys().any(|owner| owner.node == *node);
            if !there && until_ms + STUCK_MS < now_ms {
                wrong(invariant, &format!("{node} was not there"));
            }
        }
        for (index, plan) in history.observed.plan.nodes.iter().enumerate() {
            let node = format!("n{index}");
            let mut sessions = self.since.iter().filter(|(owner, _)| owner.node == node);
            let there = plan.has_handler
                && sessions.any(|(_, since_ms)| since_ms.saturating_add(SEEN_MS) < now_ms);
            if there && !self.drains && !named.contains(&node) {
                wrong(invariant, &format!("{node} was there"));
            }
        }
    }

    fn done(&self, revised: &Revised, step: &Step, violations: &mut Vec<Violation>) {
        let at = || format!("{:?} at revision {}", step.key, revised.revision);
        let mut wrong = |invariant, why: String| {
            violations.push(Violation::new(invariant, format!("{}: {why}", at())));
        };
        let Some(after) = &step.after else {
            let whole = part_of(&step.key.run).map(|(whole, _)| whole);
            let goes = |whole: &str| {
                revised.changes.iter().any(|change| {
                    matches!(change, Change::Done(other)
                        if other.key.run == whole && other.after.is_none())
                })
            };
            if let Some(whole) = whole
                && (self.alive.contains_key(whole) || (self.ended.contains(whole) && !goes(whole)))
            {
                wrong("a part is kept as long as its run", "it is gone".into());
            }
            return;
        };
        let record = &after.record;
        let (Some(parts), None) = (&record.parts, &step.before) else {
            return;
        };
        if record.state == RunState::Skipped {
            return;
        }
        let Some(parent) = self.alive.get(&step.key.run) else {
            return wrong("a run in parts ends once", "it is not alive".into());
        };
        let begins = revised.changes.iter().any(|change| {
            matches!(change, Change::Run(other) if other.after.is_some()
                && part_of(&other.key.run).is_some_and(|(whole, _)| whole == step.key.run))
        });
        if !parent.open.is_empty() || begins {
            wrong(
                "a run in parts ends after its parts",
                format!("{:?} are alive", parent.open),
            );
        }
        let cancelled = self.cancels.contains(&step.key.run);
        let gone = self.jobs.get(&step.key.job) != Some(&record.job_uid);
        let all = parts.total > 0 && u32::try_from(parent.made.len()) == Ok(parts.total);
        let well = |index| {
            let last: Option<&(u32, RunState)> = parent.last.get(&index);
            last.is_some_and(|(_, state)| *state == RunState::Success)
        };
        let expected = if parent.record.state == RunState::Pending {
            match record.failed {
                Some(FailReason::NoHandler) if parts.wants_nodes() => {
                    (RunState::Failed, record.failed)
                }
                _ => (RunState::Failed, Some(FailReason::Cancelled)),
            }
        } else if all && (0..parts.total).all(well) {
            (RunState::Success, None)
        } else if cancelled || (!all && gone) {
            (RunState::Failed, Some(FailReason::Cancelled))
        } else if all {
            (RunState::Failed, Some(FailReason::Error))
        } else {
            return wrong(
                "a run in parts ends as its parts say",
                "not all are made, and nobody wants it ended".into(),
            );
        };
        if (record.state, record.failed) != expected {
            wrong(
                "a run in parts ends as its parts say",
                format!("{expected:?}, since {:?}", parent.last),
            );
        }
    }

    fn apply(&mut self, revised: &Revised) {
        let now_ms = revised.at_ms;
        for change in &revised.changes {
            match change {
                Change::Run(step) => self.apply_run(step, now_ms),
                Change::Done(step) => {
                    let run = &step.key.run;
                    let Some(after) = &step.after else {
                        self.ended.remove(run);
                        continue;
                    };
                    if after.record.parts.is_some() {
                        self.ended.insert(run.clone());
                    }
                    if let Some((whole, index)) = part_of(run)
                        && let Some(parent) = self.alive.get_mut(whole)
                    {
                        parent.moved_ms = now_ms;
                        let end = (step.key.attempt, after.record.state);
                        let last = parent.last.entry(index).or_insert(end);
                        if last.0 <= end.0 {
                            *last = end;
                        }
                    }
                }
                Change::Cancel { run, there: true } => {
                    self.cancels.insert(run.clone());
                    if let Some(parent) = self.alive.get_mut(run) {
                        parent.moved_ms = now_ms;
                    }
                }
                Change::Cancel { run, there: false } => {
                    self.cancels.remove(run);
                }
                Change::Job { id, after, .. } => {
                    match after {
                        Some(stood) => self.jobs.insert(id.clone(), stood.created),
                        None => self.jobs.remove(id),
                    };
                }
                Change::Session { owner, there } => {
                    if *there {
                        self.since.insert(owner.clone(), now_ms);
                    } else {
                        self.since.remove(owner);
                        self.until.insert(owner.node.clone(), now_ms);
                    }
                }
                _ => {}
            }
        }
    }

    fn apply_run(&mut self, step: &Step, now_ms: u64) {
        let run = &step.key.run;
        if let Some((whole, index)) = part_of(run) {
            if let Some(parent) = self.alive.get_mut(whole) {
                parent.moved_ms = now_ms;
                parent.made.insert(index);
                match &step.after {
                    Some(_) => parent.open.insert(step.key.clone()),
                    None => parent.open.remove(&step.key),
                };
            }
            return;
        }
        match &step.after {
            Some(after) if after.record.parts.is_some() => {
                let parent = self.alive.entry(run.clone()).or_insert(Parent {
                    record: after.record.clone(),
                    made: BTreeSet::new(),
                    open: BTreeSet::new(),
                    last: BTreeMap::new(),
                    moved_ms: now_ms,
                });
                parent.record = after.record.clone();
                parent.moved_ms = now_ms.max(parent.moved_ms);
            }
            Some(_) => {}
            None => {
                self.alive.remove(run);
            }
        }
    }
}

/// Whether this revision makes parts of that run. (Nothing else writes both it and a part.)
fn divides(revised: &Revised, whole: &str) -> bool {
    revised.changes.iter().any(|change| {
        matches!(change, Change::Run(step) if step.key.run == whole && step.after.is_some())
    })
}

/// Whether this revision makes the first attempt of that part.
fn makes(revised: &Revised, whole: &str, index: u32) -> bool {
    revised.changes.iter().any(|change| {
        matches!(change, Change::Run(step) if step.key.attempt == 1 && step.before.is_none()
            && part_of(&step.key.run) == Some((whole, index)))
    })
}
