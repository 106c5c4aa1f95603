//! Who asked is told: what happened to a run, as the history says, has arrived once or more; what did
//! not happen has not; and each event has one name and one text.

use std::collections::{BTreeMap, BTreeSet};

use punctual::job::record::RunRecord;
use punctual::job::run::{FailReason, RunState};
use punctual::job::spec::{JobSpec, NotifyEvent};

use super::history::{Change, History, Revised, Step, Violation};

/// Nobody judges what happened so close to the end.
const LAST_MS: u64 = 40_000;

/// Run, attempt, event, receiver.
type Fact = (String, u32, NotifyEvent, String);

/// What the history says of a job's last end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    #[default]
    Good,
    Bad,
    /// Somebody wanted that end, or the job was gone: either is right.
    Unclear,
}

#[derive(Default)]
struct Facts {
    /// When each happened, and whether it may have been told before.
    must: BTreeMap<Fact, (u64, bool)>,
    may: BTreeSet<Fact>,
    standing: BTreeMap<String, Standing>,
    /// Definition in force, and which life of the job.
    jobs: BTreeMap<String, (u64, u64)>,
    cancelled: BTreeSet<String>,
}

/// Checks it.
#[must_use]
pub fn check(history: &History<'_>) -> Vec<Violation> {
    let observed = history.observed;
    // Real receivers are the business of other tests, and the articles' design has none.
    if observed.by_watch || observed.plan.naive {
        return Vec::new();
    }
    let facts = Facts::of(history);
    let mut violations = Vec::new();
    let mut arrived = BTreeSet::new();
    let mut names: BTreeMap<&str, (&str, u64, NotifyEvent)> = BTreeMap::new();
    let mut bodies: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for told in &observed.told {
        let fact: Fact = (
            told.run.clone(),
            u32::try_from(told.attempt).unwrap_or(0),
            told.event,
            told.webhook.clone(),
        );
        match facts.must.get(&fact) {
            Some((at_ms, false)) if *at_ms > told.at_ms => violations.push(Violation::new(
                "nobody is told before it happened",
                format!("{fact:?} at {at_ms} ms, told at {} ms", told.at_ms),
            )),
            None if !facts.may.contains(&fact) => violations.push(Violation::new(
                "nobody is told what did not happen",
                format!("{fact:?} at {} ms", told.at_ms),
            )),
            _ => {}
        }
        arrived.insert(fact);
        let named = (told.run.as_str(), told.attempt, told.event);
        if *names.entry(&told.id).or_insert(named) != named {
            violations.push(Violation::new(
                "each event has a name of its own",
                format!("{}: {named:?}", told.id),
            ));
        }
        let copy = (told.id.as_str(), told.webhook.as_str());
        if *bodies.entry(copy).or_insert(told.body) != told.body {
            violations.push(Violation::new(
                "all copies of an event are the same",
                told.id.clone(),
            ));
        }
    }
    let judged_ms = observed.plan.end_ms.saturating_sub(LAST_MS);
    for (fact, (at_ms, _)) in &facts.must {
        if *at_ms < judged_ms && !arrived.contains(fact) {
            violations.push(Violation::new(
                "whoever asked is told",
                format!("{fact:?} at {at_ms} ms"),
            ));
        }
    }
    violations
}

/// How many events a history must have told, by kind.
#[must_use]
pub fn count(history: &History<'_>) -> BTreeMap<NotifyEvent, usize> {
    let mut counts = BTreeMap::new();
    for (_, _, event, _) in Facts::of(history).must.keys() {
        *counts.entry(*event).or_default() += 1;
    }
    counts
}

impl Facts {
    fn of(history: &History<'_>) -> Self {
        let mut facts = Self::default();
        for revised in &history.revisions {
            // Requirements are judged on what stood before.
            let stood = facts.standing.clone();
            for change in &revised.changes {
                match change {
                    Change::Done(step) if step.before.is_none() => {
                        facts.ended(history, revised, step, &stood);
                    }
                    Change::Run(step) => facts.may_be_late(history, revised, step),
                    _ => {}
                }
            }
            for change in &revised.changes {
                match change {
                    Change::Job { id, after, .. } => facts.job(history, revised, id, after),
                    Change::Cancel { run, there: true } => {
                        facts.cancelled.insert(run.clone());
                    }
                    Change::Cancel { run, there: false } => {
                        facts.cancelled.remove(run);
                    }
                    _ => {}
                }
            }
        }
        facts
    }

    fn job(
        &mut self,
        history: &History<'_>,
        revised: &Revised,
        id: &str,
        after: &super::history::Held<punctual::job::record::JobRecord>,
    ) {
        let tells = |generation| {
            let spec = history.spec(id, generation, revised.revision);
            spec.is_some_and(|spec| spec.tells(NotifyEvent::Recovered))
        };
        let before = self.jobs.remove(id);
        let Some(after) = after else {
            self.standing.remove(id);
            return;
        };
        let generation = after.record.generation;
        if before.is_some_and(|(old, _)| tells(old)) && !tells(generation) {
            self.standing.remove(id);
        }
        self.jobs.insert(id.to_owned(), (generation, after.created));
    }

    /// Of an attempt that is alive, whoever looks may find that it is late.
    fn may_be_late(&mut self, history: &History<'_>, revised: &Revised, step: &Step) {
        let Some(run) = step.before.as_ref().map(|stood| &stood.record) else {
            return;
        };
        let skew_ms = history.observed.plan.skew_ms().max(1_000);
        if let Some(late_ms) = run.late_at_ms
            && revised.unix_ms + skew_ms > late_ms
            && run.started_ms.is_none_or(|at_ms| at_ms + skew_ms > late_ms)
        {
            self.add_late(history, revised, run, false);
        }
    }

    fn add_late(&mut self, history: &History<'_>, revised: &Revised, run: &RunRecord, must: bool) {
        let Some(spec) = history.spec(&run.job, run.generation, revised.revision) else {
            return;
        };
        for fact in facts_of(spec, run, &[NotifyEvent::Late]) {
            // The leader tells it before the end.
            self.may.insert(fact.clone());
            if must {
                self.must.insert(fact, (revised.at_ms, true));
            }
        }
    }

    fn ended(
        &mut self,
        history: &History<'_>,
        revised: &Revised,
        step: &Step,
        stood: &BTreeMap<String, Standing>,
    ) {
        let Some(run) = step.after.as_ref().map(|stood| &stood.record) else {
            return;
        };
        let Some(spec) = history.spec(&run.job, run.generation, revised.revision) else {
            return;
        };
        if run.state == RunState::Skipped {
            return;
        }
        let started_ms = run.started_ms.or(run.ended_ms).unwrap_or(0);
        // Whoever wanted a run ended before it started wants no news of it.
        let told = run.failed != Some(FailReason::Cancelled) || run.started_ms.is_some();
        if told && run.late_at_ms.is_some_and(|at_ms| started_ms > at_ms) {
            self.add_late(history, revised, run, true);
        }
        let followed = revised.changes.iter().any(|change| {
            matches!(change, Change::Run(next)
                if next.before.is_none() && next.key.run == run.run && next.key.attempt == run.attempt + 1)
        });
        let lives = self.jobs.get(&run.job).map(|(_, created)| *created) == Some(run.job_uid);
        let wanted = self.cancelled.contains(&run.run) || !lives;
        let standing = self.standing.entry(run.job.clone()).or_default();
        let asks = spec.tells(NotifyEvent::Recovered);
        match (run.state, run.failed) {
            (RunState::Success, _) => {
                if !asks {
                    return;
                }
                let before = stood.get(&run.job).copied().unwrap_or_default();
                *standing = Standing::Good;
                for fact in facts_of(spec, run, &[NotifyEvent::Recovered]) {
                    match before {
                        Standing::Good => {}
                        Standing::Bad => {
                            self.must.insert(fact, (revised.at_ms, false));
                        }
                        Standing::Unclear => {
                            self.may.insert(fact);
                        }
                    }
                }
            }
            (RunState::Failed, Some(reason)) if reason != FailReason::Cancelled && !followed => {
                let events: &[NotifyEvent] = if reason == FailReason::WorkerLost {
                    &[NotifyEvent::Lost, NotifyEvent::Failed]
                } else {
                    &[NotifyEvent::Failed]
                };
                for fact in facts_of(spec, run, events) {
                    if wanted {
                        self.may.insert(fact);
                    } else {
                        self.must.insert(fact, (revised.at_ms, false));
                    }
                }
                if asks && lives {
                    *standing = match (wanted, *standing) {
                        (false, _) | (true, Standing::Bad) => Standing::Bad,
                        (true, _) => Standing::Unclear,
                    };
                }
            }
            _ => {}
        }
    }
}

/// One fact for each receiver that asks for one of the events: the first of them.
fn facts_of(spec: &JobSpec, run: &RunRecord, events: &[NotifyEvent]) -> Vec<Fact> {
    let heard = |on: &[NotifyEvent]| events.iter().copied().find(|event| on.contains(event));
    spec.notify
        .iter()
        .filter_map(|to| {
            let event = heard(&to.on)?;
            Some((run.run.clone(), run.attempt, event, to.webhook.clone()))
        })
        .collect()
}
