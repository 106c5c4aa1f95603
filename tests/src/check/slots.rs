//! Runs that meet: never more executions than a job allows, each with a slot of its own and no slot
//! without one; `overlap: queue` skips when it is full and only then; `overlap: replace` tells all
//! others to go.

use std::collections::{BTreeMap, BTreeSet};

use punctual::control::RunKind;
use punctual::job::record::RunRecord;
use punctual::job::run::{RunState, SkipReason};
use punctual::job::spec::{JobSpec, Overlap};
use punctual::keys::AttemptKey;

use super::history::{Change, History, Revised, Step, Violation};
use crate::sim::ledger::Effect;

/// A run tells at most so many others to go.
const MAX_REPLACED: usize = 32;

/// Checks it.
#[must_use]
pub fn check(history: &History<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut state = State::default();
    for revised in &history.revisions {
        let runs = revised.changes.iter().filter_map(|change| match change {
            Change::Run(step) => Some((false, step)),
            Change::Done(step) => Some((true, step)),
            _ => None,
        });
        for (done, step) in runs {
            state.decided(history, revised, done, step, &mut violations);
        }
        for job in state.apply(revised) {
            state.judge(&job, revised, &mut violations);
        }
    }
    violations.extend(together(history));
    violations
}

/// What stands before a revision.
#[derive(Default)]
struct State {
    alive: BTreeMap<String, BTreeMap<AttemptKey, RunRecord>>,
    slots: BTreeMap<String, BTreeSet<u32>>,
    cancels: BTreeSet<String>,
}

fn executes(record: &RunRecord) -> bool {
    record.parts.is_none() && matches!(record.state, RunState::Locked | RunState::Running)
}

impl State {
    /// A decision about a new run.
    fn decided(
        &self,
        history: &History<'_>,
        revised: &Revised,
        done: bool,
        step: &Step,
        violations: &mut Vec<Violation>,
    ) {
        let (None, Some(after)) = (&step.before, &step.after) else {
            return;
        };
        let (record, key) = (&after.record, &step.key);
        let at = || format!("{key:?} at revision {}", revised.revision);
        let Some(spec) = history.spec(&key.job, record.generation, revised.revision) else {
            return;
        };
        let alive = self.alive.get(&key.job);
        if done {
            let overlap = record.skipped == Some(SkipReason::Overlap);
            let count = alive.map_or(0, BTreeMap::len);
            if overlap && spec.overlap == Overlap::Queue && count < spec.queue_capacity() {
                violations.push(Violation::new(
                    "overlap: queue skips only when it is full",
                    format!("{}: beside {alive:?}", at()),
                ));
            }
            return;
        }
        if record.concurrency != limit(spec, record) {
            violations.push(Violation::new(
                "a run is limited as its definition says",
                format!("{}: {:?}", at(), record.concurrency),
            ));
        }
        if key.attempt > 1 {
            if self.cancels.contains(&key.run) {
                violations.push(Violation::new("no retry of a run that is to end", at()));
            }
            return;
        }
        // Made by a change of the job, whatever stands: the change speaks for it.
        if key.run.contains("~a-") {
            return;
        }
        let beside = created(revised, &key.job);
        match spec.overlap {
            // Whoever asks for the past asks for more than the queue holds.
            Overlap::Queue if record.kind == RunKind::Backfill => {}
            Overlap::Queue => {
                let count = alive.map_or(0, BTreeMap::len) + beside;
                if count > spec.queue_capacity() {
                    violations.push(Violation::new(
                        "overlap: queue runs only when there is room",
                        format!("{}: beside {alive:?}", at()),
                    ));
                }
            }
            Overlap::Replace => self.replaced(revised, key, violations),
            Overlap::Allow | Overlap::Skip => {}
        }
    }

    /// Whether all others were told to go.
    fn replaced(&self, revised: &Revised, by: &AttemptKey, violations: &mut Vec<Violation>) {
        let (mut told, mut left) = (0, Vec::new());
        for old in self.alive.get(&by.job).into_iter().flat_map(BTreeMap::keys) {
            let goes = revised.changes.iter().any(|change| match change {
                Change::Run(step) => step.key == *old && step.after.is_none(),
                Change::Cancel { run, there } => *there && *run == old.run,
                _ => false,
            });
            told += usize::from(goes);
            if !goes && !self.cancels.contains(&old.run) {
                left.push(old);
            }
        }
        if (!left.is_empty() && told < MAX_REPLACED) || created(revised, &by.job) > 1 {
            violations.push(Violation::new(
                "overlap: replace tells the others to go",
                format!("{by:?} at revision {}: beside {left:?}", revised.revision),
            ));
        }
    }

    /// Takes a revision in; gives the jobs that it touched.
    fn apply(&mut self, revised: &Revised) -> BTreeSet<String> {
        let mut touched = BTreeSet::new();
        for change in &revised.changes {
            match change {
                Change::Run(step) => {
                    let alive = self.alive.entry(step.key.job.clone()).or_default();
                    match &step.after {
                        Some(after) => alive.insert(step.key.clone(), after.record.clone()),
                        None => alive.remove(&step.key),
                    };
                    touched.insert(step.key.job.clone());
                }
                Change::Slot { job, index, held } => {
                    let slots = self.slots.entry(job.clone()).or_default();
                    if *held {
                        slots.insert(*index);
                    } else {
                        slots.remove(index);
                    }
                    touched.insert(job.clone());
                }
                Change::Cancel { run, there } => {
                    if *there {
                        self.cancels.insert(run.clone());
                    } else {
                        self.cancels.remove(run);
                    }
                }
                _ => {}
            }
        }
        touched
    }

    fn judge(&self, job: &str, revised: &Revised, violations: &mut Vec<Violation>) {
        let at = || format!("{job} at revision {}", revised.revision);
        let alive = self.alive.get(job).into_iter().flatten();
        let executing: Vec<_> = alive
            .filter(|(_, record)| executes(record) && record.concurrency.is_some())
            .collect();
        let held: BTreeSet<u32> = executing.iter().filter_map(|(_, r)| r.slot).collect();
        let slots = self.slots.get(job).cloned().unwrap_or_default();
        if held.len() != executing.len() || held != slots {
            violations.push(Violation::new(
                "each limited execution holds a slot, and no slot is held without one",
                format!("{}: {slots:?} held, {executing:?}", at()),
            ));
        }
        // Who is claimed now must fit in; who was there before an edit may be one of more.
        for change in &revised.changes {
            let Change::Run(step) = change else { continue };
            let (Some(before), Some(after)) = (&step.before, &step.after) else {
                continue;
            };
            let claimed = step.key.job == job
                && before.record.state == RunState::Pending
                && executes(&after.record);
            let Some(limit) = after.record.concurrency.filter(|_| claimed) else {
                continue;
            };
            if executing.len() > usize::try_from(limit).unwrap_or(usize::MAX) {
                violations.push(Violation::new(
                    "never more executions than the job allows",
                    format!("{}: {limit} allowed, {executing:?}", at()),
                ));
            }
        }
    }
}

fn limit(spec: &JobSpec, record: &RunRecord) -> Option<u32> {
    match spec.overlap {
        // Made together, they wait for each other.
        Overlap::Skip if record.kind == RunKind::Backfill && !spec.is_in_parts() => Some(1),
        Overlap::Queue | Overlap::Replace => Some(spec.concurrency.unwrap_or(1)),
        Overlap::Allow | Overlap::Skip => spec.concurrency,
    }
}

/// How many first attempts of the job this revision made.
fn created(revised: &Revised, job: &str) -> usize {
    let new = revised.changes.iter().filter(|change| {
        matches!(change, Change::Run(step) if step.before.is_none()
            && step.key.job == job && step.key.attempt == 1)
    });
    new.count()
}

/// The same as the executed code saw it: when it starts, what was claimed before it and still runs
/// fits into its limit. (A process that stood still is left out, as for two executions of one run.)
fn together(history: &History<'_>) -> Vec<Violation> {
    // The limit of each attempt, and the revision of its last claim.
    let mut claims: BTreeMap<(&str, u32), (usize, u64)> = BTreeMap::new();
    for (revised, done, step) in history.steps() {
        if let Some(after) = step.after.as_ref().filter(|_| !done)
            && after.record.state == RunState::Locked
            && let Some(limit) = after.record.concurrency
        {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let claim = (limit, revised.revision);
            claims.insert((&step.key.run, step.key.attempt), claim);
        }
    }
    let mut by_job: BTreeMap<&str, Vec<(usize, u64, &Effect)>> = BTreeMap::new();
    for effect in &history.observed.effects {
        let claim = claims.get(&(effect.run.as_str(), effect.attempt));
        if let Some((limit, claimed)) = claim
            && !super::effects::stood_still(history, effect)
        {
            let ours = by_job.entry(&effect.job).or_default();
            ours.push((*limit, *claimed, effect));
        }
    }
    let mut violations = Vec::new();
    for (job, effects) in by_job {
        for (limit, claimed, effect) in &effects {
            let beside: Vec<&Effect> = effects
                .iter()
                .filter(|(_, earlier, other)| {
                    earlier < claimed && other.end_ms.is_none_or(|end_ms| end_ms > effect.start_ms)
                })
                .map(|(_, _, other)| *other)
                .collect();
            if beside.len() + 1 > *limit {
                violations.push(Violation::new(
                    "no more code runs at once than the job allows",
                    format!("{job}: {limit} allowed, {effect:?} beside {beside:?}"),
                ));
            }
        }
    }
    violations
}
