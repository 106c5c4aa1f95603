//! No miss, no duplicate, no phantom, never early: each instant of each life of each job has one
//! decision, the definition in force at its place made it, and not before its time.

use std::collections::BTreeMap;

use punctual::control::RunKind;
use punctual::job::run::{RunState, SkipReason};

use super::history::{History, Violation};
use super::lives::{JobLife, lives};
use super::oracle::instants;

/// Instants so close to the end need not be decided.
pub const LATE_MS: i64 = 20_000;

/// A decision, as its record told it first.
pub(super) struct Decided {
    pub(super) from_ms: i64,
    pub(super) at_ms: i64,
    pub(super) count: u64,
    generation: u64,
    pub(super) skipped: Option<SkipReason>,
    pub(super) run: String,
    pub(super) revision: u64,
    unix_ms: i64,
}

struct Expected {
    generation: u64,
    paused: bool,
}

/// Checks it.
#[must_use]
pub fn check(history: &History<'_>) -> Vec<Violation> {
    let mut decisions = decisions(history);
    let mut violations = Vec::new();
    for ((id, uid), life) in lives(history) {
        let ours = decisions.remove(&(id, uid)).unwrap_or_default();
        judge(history, &life, &ours, &mut violations);
    }
    for ((id, uid), strays) in decisions {
        for stray in strays {
            violations.push(Violation::new(
                "no phantom",
                format!(
                    "{} at revision {}: no job {id} with uid {uid}",
                    stray.run, stray.revision
                ),
            ));
        }
    }
    violations
}

/// All decisions, by job and uid.
pub(super) fn decisions(history: &History<'_>) -> BTreeMap<(String, u64), Vec<Decided>> {
    let mut all: BTreeMap<(String, u64), Vec<Decided>> = BTreeMap::new();
    for (revised, done, step) in history.steps() {
        let (None, Some(after)) = (&step.before, &step.after) else {
            continue;
        };
        let record = &after.record;
        let is_skip = done && record.state == RunState::Skipped;
        let is_run = !done && step.key.attempt == 1;
        // A chain of `after_finish` has no instants that an oracle could know: see `delay`.
        let of_chain = record.run.contains("~f-");
        if record.kind != RunKind::Scheduled || of_chain || !(is_skip || is_run) {
            continue;
        }
        let uid = if record.job_uid == 0 {
            after.created
        } else {
            record.job_uid
        };
        all.entry((record.job.clone(), uid))
            .or_default()
            .push(Decided {
                from_ms: record.stands_from_ms.unwrap_or(record.scheduled_ms),
                at_ms: record.scheduled_ms,
                count: record.stands_for,
                generation: record.generation,
                skipped: is_skip.then_some(record.skipped).flatten(),
                run: record.run.clone(),
                revision: revised.revision,
                unix_ms: revised.unix_ms,
            });
    }
    all
}

fn expected(history: &History<'_>, life: &JobLife) -> BTreeMap<i64, Expected> {
    let plan = &history.observed.plan;
    let horizon = plan.epoch_ms + plan.end_ms.cast_signed() - LATE_MS;
    let end = life.end_ms.unwrap_or(i64::MAX).min(horizon);
    let mut all = BTreeMap::new();
    for (index, period) in life.periods.iter().enumerate() {
        let until = life
            .periods
            .get(index + 1)
            .map_or(end, |next| next.from_ms.min(end));
        let Some(spec) = history.spec(&life.id, period.generation, period.revision) else {
            continue;
        };
        let found = instants(spec, life.created_ms, period.from_ms, until)
            .expect("the oracle reads what the simulation makes");
        for at in found {
            all.insert(
                at,
                Expected {
                    generation: period.generation,
                    paused: period.paused,
                },
            );
        }
    }
    all
}

/// Whether the run was made by the very change that brought its `at`, which had passed.
pub(super) fn immediate(history: &History<'_>, life: &JobLife, decided: &Decided) -> bool {
    let key = (life.id.clone(), decided.generation);
    let puts = history.definitions.get(&key).map_or(&[][..], Vec::as_slice);
    puts.iter().any(|(put, spec)| {
        *put == decided.revision
            && spec.schedule.at.is_some()
            && instants(spec, 0, decided.at_ms, decided.at_ms + 1)
                .is_some_and(|found| found == [decided.at_ms])
    })
}

fn judge(
    history: &History<'_>,
    life: &JobLife,
    decisions: &[Decided],
    violations: &mut Vec<Violation>,
) {
    let expected = expected(history, life);
    let plan = &history.observed.plan;
    let horizon = plan.epoch_ms + plan.end_ms.cast_signed() - LATE_MS;
    let name = |at: i64| {
        format!(
            "{} (uid {}) at {} (virtual {} ms)",
            life.id,
            life.uid,
            punctual::time::rfc3339_ms(at),
            history.virtual_ms(at)
        )
    };
    let mut times: BTreeMap<i64, Vec<&Decided>> = BTreeMap::new();
    let mut at_once: BTreeMap<i64, u64> = BTreeMap::new();
    for decided in decisions {
        if decided.skipped.is_none() && decided.unix_ms < decided.at_ms - plan.skew_ms() {
            violations.push(Violation::new(
                "never early",
                format!(
                    "{}: decided {} ms early",
                    name(decided.at_ms),
                    decided.at_ms - decided.unix_ms
                ),
            ));
        }
        let mut inside = 0;
        if immediate(history, life, decided) {
            *at_once.entry(decided.at_ms).or_default() += 1;
            if !decided.run.contains("~a-") {
                violations.push(Violation::new(
                    "a run outside the cursor has an id of its own",
                    decided.run.clone(),
                ));
            }
            continue;
        }
        for (at, _) in expected.range(decided.from_ms..=decided.at_ms) {
            // A run that stands for several has a skip record for the others beside it, also when
            // it is skipped itself in the end.
            let single = matches!(decided.skipped, None | Some(SkipReason::Overlap));
            if !single || *at == decided.at_ms {
                times.entry(*at).or_default().push(decided);
            }
            inside += 1;
        }
        if decided.at_ms >= horizon {
            continue;
        }
        match expected.get(&decided.at_ms) {
            None => violations.push(Violation::new(
                "no phantom",
                format!(
                    "{}: {} decided, but it is no instant of the job",
                    name(decided.at_ms),
                    decided.run
                ),
            )),
            Some(expected) if decided.skipped.is_none() => {
                if expected.generation != decided.generation || expected.paused {
                    violations.push(Violation::new(
                        "no phantom",
                        format!(
                            "{}: run of generation {}, but generation {} (paused: {}) is in force",
                            name(decided.at_ms),
                            decided.generation,
                            expected.generation,
                            expected.paused
                        ),
                    ));
                }
            }
            Some(_) => {}
        }
        if inside != decided.count.min(10_000) && inside < 10_000 {
            violations.push(Violation::new(
                "counts are right",
                format!(
                    "{}: {} stands for {} instants, there are {inside}",
                    name(decided.at_ms),
                    decided.run,
                    decided.count
                ),
            ));
        }
    }
    for (at, times) in at_once.iter().filter(|(_, times)| **times > 1) {
        violations.push(Violation::new(
            "no duplicate",
            format!("{}: run at once {times} times", name(*at)),
        ));
    }
    for at in expected.keys() {
        match times.get(at).map_or(&[][..], Vec::as_slice) {
            [_] => {}
            [] => violations.push(Violation::new("no miss", name(*at))),
            several => {
                let which: Vec<String> = several
                    .iter()
                    .map(|d| format!("{} ({:?}) by revision {}", d.run, d.skipped, d.revision))
                    .collect();
                violations.push(Violation::new(
                    "no duplicate",
                    format!("{}: {}", name(*at), which.join(", ")),
                ));
            }
        }
    }
}
