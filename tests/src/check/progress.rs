//! What runs say of themselves: written only by the attempt that is RUNNING, given to the next one as it
//! stood when that began, never older than what some code was told is kept, and gone with the run.

use std::collections::{BTreeMap, BTreeSet};

use punctual::backend::Event;
use punctual::job::progress::ProgressRecord;
use punctual::job::record::{RunRecord, decode};
use punctual::job::run::RunState;
use punctual::keys::{AttemptKey, Keys};

use super::history::{Change, History, Revised, Step, Stood, Violation, token};
use crate::sim::ledger::Effect;
use crate::sim::world::NAMESPACE;

/// A second, less what clocks may drift.
const APART_MS: u64 = 990;

/// Checks it.
#[must_use]
pub fn check(history: &History<'_>) -> Vec<Violation> {
    let keys = Keys::new(NAMESPACE);
    let mut state = State::default();
    let mut violations = Vec::new();
    for (logged, revised) in history.observed.log.iter().zip(&history.revisions) {
        let mut touched = BTreeSet::new();
        let mut said = Vec::new();
        for event in &logged.events {
            let Some((_, _, run)) = keys.parse_progress(event.key()) else {
                continue;
            };
            touched.insert(run.clone());
            match event {
                Event::Put(entry) => match decode::<ProgressRecord>(&entry.value) {
                    Ok(record) => {
                        let timed = !history.observed.by_watch;
                        state.written(&run, &record, revised, timed, &mut violations);
                        said.push((run, Some(record)));
                    }
                    Err(error) => violations.push(Violation::new(
                        "progress can be read",
                        format!("{run} at revision {}: {error}", revised.revision),
                    )),
                },
                Event::Delete { .. } => said.push((run, None)),
            }
        }
        state.steps(revised, &mut touched);
        for (run, record) in said {
            match record {
                Some(record) => state.standing.insert(run, record),
                None => state.standing.remove(&run),
            };
        }
        for run in touched {
            let alive = state.alive.get(&run).is_some_and(|alive| !alive.is_empty());
            if state.standing.contains_key(&run) && !alive {
                violations.push(Violation::new(
                    "no progress without an unfinished run",
                    format!("{run} at revision {}", revised.revision),
                ));
            }
        }
    }
    violations.extend(state.effects(&history.observed.effects));
    violations
}

#[derive(Default)]
struct State {
    /// Unfinished attempts, by run.
    alive: BTreeMap<String, BTreeMap<u32, Stood<RunRecord>>>,
    standing: BTreeMap<String, ProgressRecord>,
    /// When an attempt was written of last.
    wrote_ms: BTreeMap<(String, u32), u64>,
    /// What stood when an attempt became RUNNING.
    given: BTreeMap<(String, u32), Option<String>>,
    /// Attempts that follow the end of the one before it by themselves.
    follow: BTreeSet<(String, u32)>,
    /// Checkpoints, and when they came to stand.
    stood: BTreeMap<(String, String), u64>,
}

fn checkpoint(record: &ProgressRecord) -> Option<String> {
    let checkpoint = record.checkpoint.as_ref()?;
    Some(String::from_utf8_lossy(&checkpoint.bytes).into_owned())
}

impl State {
    /// A put, judged by what stood before it.
    fn written(
        &mut self,
        run: &str,
        record: &ProgressRecord,
        revised: &Revised,
        timed: bool,
        violations: &mut Vec<Violation>,
    ) {
        let at = || format!("{run} at revision {}: {record:?}", revised.revision);
        let attempts = self.alive.get(run);
        let writer = attempts.and_then(|attempts| attempts.get(&record.attempt));
        let runs = writer.is_some_and(|stood| {
            stood.record.state == RunState::Running && token(stood) == record.token
        });
        if !runs {
            violations.push(Violation::new(
                "only an attempt that is RUNNING writes its run's progress",
                at(),
            ));
        }
        let before = self.standing.get(run).and_then(checkpoint);
        let since = checkpoint(record);
        if since < before {
            violations.push(Violation::new(
                "checkpoints of a run only go forward",
                format!("{}, after {before:?}", at()),
            ));
        }
        let attempt = (run.to_owned(), record.attempt);
        let last = self.wrote_ms.insert(attempt, revised.at_ms);
        if timed && last.is_some_and(|last| revised.at_ms < last + APART_MS) {
            violations.push(Violation::new(
                "a run's progress is written once a second at most",
                at(),
            ));
        }
        if let Some(since) = since {
            let stood = self.stood.entry((run.to_owned(), since));
            stood.or_insert(revised.at_ms);
        }
    }

    fn steps(&mut self, revised: &Revised, touched: &mut BTreeSet<String>) {
        let ended = |run: &str, attempt: u32| {
            revised.changes.iter().any(|change| {
                matches!(change, Change::Done(Step { key, after: Some(_), .. })
                    if key.run == run && key.attempt == attempt)
            })
        };
        for change in &revised.changes {
            let Change::Run(step) = change else { continue };
            let AttemptKey { run, attempt, .. } = &step.key;
            touched.insert(run.clone());
            let alive = self.alive.entry(run.clone()).or_default();
            let Some(after) = &step.after else {
                alive.remove(attempt);
                continue;
            };
            alive.insert(*attempt, (**after).clone());
            let key = (run.clone(), *attempt);
            if step.before.is_none() && *attempt > 1 && ended(run, attempt - 1) {
                self.follow.insert(key.clone());
            }
            if after.record.state == RunState::Running && after.record.parts.is_none() {
                let stands = self.standing.get(run).and_then(checkpoint);
                self.given.insert(key, stands);
            }
        }
    }

    /// What the code itself saw.
    fn effects(&self, effects: &[Effect]) -> Vec<Violation> {
        let mut violations = Vec::new();
        let mut by_run: BTreeMap<&str, BTreeMap<u32, &Effect>> = BTreeMap::new();
        for effect in effects {
            let attempts = by_run.entry(&effect.run).or_default();
            attempts.insert(effect.attempt, effect);
            let key = (effect.run.clone(), effect.attempt);
            if self
                .given
                .get(&key)
                .is_some_and(|stood| *stood != effect.given)
            {
                violations.push(Violation::new(
                    "an attempt is given what stood when it began",
                    format!("{effect:?}: {:?}", self.given.get(&key)),
                ));
            }
            for (kept, told_ms) in &effect.kept {
                let key = (effect.run.clone(), kept.clone());
                if self
                    .stood
                    .get(&key)
                    .is_none_or(|stood_ms| stood_ms > told_ms)
                {
                    violations.push(Violation::new(
                        "a checkpoint that is said to be kept stands",
                        format!("{kept} of {effect:?}"),
                    ));
                }
            }
        }
        for attempts in by_run.values() {
            // The newest that some code knows to be kept.
            let mut newest: Option<&String> = None;
            let mut behind = 1;
            for (attempt, effect) in attempts {
                // A run that somebody repeats by hand begins anew.
                let chain = |n: u32| self.follow.contains(&(effect.run.clone(), n));
                if !(behind + 1..=*attempt).all(chain) {
                    newest = None;
                }
                behind = *attempt;
                if effect.given.as_ref() < newest {
                    violations.push(Violation::new(
                        "each later attempt is given the last kept checkpoint, or a later one",
                        format!("{newest:?} was kept before {effect:?}"),
                    ));
                }
                newest = newest.max(effect.kept.iter().map(|(kept, _)| kept).max());
            }
        }
        violations
    }
}
