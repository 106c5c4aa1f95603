//! Who asked is told: what happened to a run, as the history says, has arrived once or more; what did
//! not happen has not; and each event has one name and one text. Of a run in parts the whole is told,
//! and its parts are not.

use std::collections::{BTreeMap, BTreeSet};

use punctual::job::record::RunRecord;
use punctual::job::run::{FailReason, RunState, SkipReason};
use punctual::job::spec::{JobSpec, Misfire, NotifyEvent};
use punctual::keys::{AttemptKey, part_of};

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
    /// When the parts of each run in parts had started, or ended without that.
    parts_ms: BTreeMap<String, BTreeMap<AttemptKey, i64>>,
    /// The attempts that have not ended.
    alive: BTreeMap<AttemptKey, RunRecord>,
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

/// How many events a history must have told, by kind; apart, how many of those are of instants that
/// nobody decided in time (`missed`), and of runs in parts that were late (`late in parts`).
#[must_use]
pub fn count(history: &History<'_>) -> BTreeMap<&'static str, usize> {
    let facts = Facts::of(history);
    let mut counts = BTreeMap::new();
    for (run, attempt, event, _) in facts.must.keys() {
        let kinds = [
            Some(event.as_str()),
            (*attempt == 0).then_some("missed"),
            (facts.parts_ms.contains_key(run) && *event == NotifyEvent::Late)
                .then_some("late in parts"),
        ];
        for kind in kinds.into_iter().flatten() {
            *counts.entry(kind).or_default() += 1;
        }
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
                    Change::Run(step) => facts.stands(history, revised, step),
                    _ => {}
                }
                if let Change::Run(step) | Change::Done(step) = change {
                    facts.part(step);
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
        if let Some(last) = history.revisions.last() {
            let plan = &history.observed.plan;
            let end = Revised {
                at_ms: plan.end_ms,
                unix_ms: plan.epoch_ms + i64::try_from(plan.end_ms).unwrap_or(0),
                ..last.clone()
            };
            for run in std::mem::take(&mut facts.alive).into_values() {
                facts.may_be_late(history, &end, &run);
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

    fn stands(&mut self, history: &History<'_>, revised: &Revised, step: &Step) {
        if let Some(before) = &step.before {
            self.may_be_late(history, revised, &before.record);
        }
        match &step.after {
            Some(after) => self.alive.insert(step.key.clone(), after.record.clone()),
            None => self.alive.remove(&step.key),
        };
    }

    /// Of an attempt that was alive until now, whoever looked may have found that it is late.
    fn may_be_late(&mut self, history: &History<'_>, revised: &Revised, run: &RunRecord) {
        let skew_ms = history.observed.plan.skew_ms().max(1_000);
        // A part and its run have the same time from which they are late.
        let whole = part_of(&run.run).map(|(whole, _)| whole);
        let started_ms = match (whole, &run.parts) {
            (Some(whole), _) => self.first_part_ms(whole),
            (None, Some(_)) => self.first_part_ms(&run.run),
            (None, None) => run.started_ms,
        };
        if let Some(late_ms) = run.late_at_ms
            && revised.unix_ms + skew_ms > late_ms
            && started_ms.is_none_or(|at_ms| at_ms + skew_ms > late_ms)
        {
            let run = RunRecord {
                run: whole.unwrap_or(&run.run).to_owned(),
                // (A run in parts has one attempt.)
                attempt: whole.map_or(run.attempt, |_| 1),
                ..run.clone()
            };
            self.add_late(history, revised, &run, false);
        }
    }

    /// Notes when a part has started, or ended without that.
    fn part(&mut self, step: &Step) {
        let Some(part) = step.after.as_ref().map(|stood| &stood.record) else {
            return;
        };
        let at_ms = part.started_ms.or(part.ended_ms);
        if let (Some((whole, _)), Some(at_ms)) = (part_of(&part.run), at_ms) {
            let parts = self.parts_ms.entry(whole.to_owned()).or_default();
            // A start that did not come to the code is none: another attempt stands for it.
            if part.failed == Some(FailReason::NotStarted) {
                parts.remove(&step.key);
            } else {
                parts.insert(step.key.clone(), at_ms);
            }
        }
    }

    fn first_part_ms(&self, whole: &str) -> Option<i64> {
        self.parts_ms.get(whole)?.values().min().copied()
    }

    /// Instants that were decided so late that nothing runs.
    fn missed(&mut self, revised: &Revised, run: &RunRecord, spec: &JobSpec) {
        let first_ms = run.stands_from_ms.unwrap_or(run.scheduled_ms);
        let late = |after_ms: i64| {
            run.ended_ms
                .is_some_and(|at_ms| at_ms > first_ms + after_ms)
        };
        let nothing_runs = run.skipped == Some(SkipReason::Deadline)
            || (run.skipped == Some(SkipReason::Misfire) && spec.misfire != Misfire::Latest);
        let after = spec.notify.iter().find_map(|to| to.late_after);
        if nothing_runs && late(after.map_or(300_000, |after| after.ms_i64())) {
            for fact in facts_of(spec, run, &[NotifyEvent::Late]) {
                self.must.insert(fact, (revised.at_ms, false));
            }
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
            self.missed(revised, run, spec);
            return;
        }
        if part_of(&run.run).is_some() {
            return;
        }
        let started_ms = run.started_ms.or(run.ended_ms).unwrap_or(0);
        let first_ms = self.first_part_ms(&run.run);
        let started_ms = started_ms.max(first_ms.unwrap_or(started_ms));
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
