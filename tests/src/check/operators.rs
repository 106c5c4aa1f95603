//! What operators were told is true: an acknowledged change stood at some moment between request
//! and answer, and a trigger ran once.

use std::collections::BTreeMap;

use punctual::backend::Event;
use punctual::control::RunKind;
use punctual::job::record::{DrainRecord, JobRecord, decode};
use punctual::keys::Keys;

use super::history::{Change, Held, History, Stood, Violation};
use crate::sim::operator::{Asked, Told};
use crate::sim::schedule::Op;
use crate::sim::world::NAMESPACE;

/// Each job's states: the revision from which on, and what stood.
type States = BTreeMap<String, Vec<(u64, Held<JobRecord>)>>;

/// Checks it.
#[must_use]
pub fn check(history: &History<'_>) -> Vec<Violation> {
    let mut states = States::new();
    for revised in &history.revisions {
        for change in &revised.changes {
            if let Change::Job { id, after, .. } = change {
                let all = states.entry(id.clone()).or_default();
                all.push((revised.revision, after.clone()));
            }
        }
    }
    let mut violations: Vec<Violation> = history
        .observed
        .asked
        .iter()
        .filter_map(|asked| acknowledged(history, &states, asked))
        .collect();
    violations.extend(effective(history));
    violations
}

fn acknowledged(history: &History<'_>, states: &States, asked: &Asked) -> Option<Violation> {
    let (_, end, Told::Done(run)) = asked.answer.as_ref()? else {
        return None;
    };
    let stood = |id: &str, wanted: &dyn Fn(Option<&Stood<JobRecord>>, u64) -> bool| {
        let all = states.get(id).map_or(&[][..], Vec::as_slice);
        let first = all.partition_point(|(revision, _)| *revision <= asked.start_revision);
        let from_start = match first {
            0 => vec![(asked.start_revision, None)],
            first => vec![all[first - 1].clone()],
        };
        from_start
            .iter()
            .chain(
                all[first..]
                    .iter()
                    .take_while(|(revision, _)| revision <= end),
            )
            .any(|(revision, state)| wanted(state.as_deref(), *revision))
    };
    let defined = |spec: &punctual::job::spec::JobSpec| {
        // As it is stored.
        let spec = &spec.clone().with_dialect_decided();
        stood(&spec.id, &|state, revision| {
            state.is_some_and(|s| {
                history.spec(&spec.id, s.record.generation, revision.max(s.modified)) == Some(spec)
            })
        })
    };
    let held = |id: &str, until_ms: Option<i64>| {
        stood(id, &|state, _| {
            state.is_some_and(|s| {
                s.record.paused.as_ref().is_some_and(|paused| {
                    paused
                        .until_ms
                        .is_none_or(|ends| until_ms.is_some_and(|until| ends >= until))
                })
            })
        })
    };
    // What had an end and came to it counts as let go.
    let answered_ms = asked.answer.as_ref().map_or(0, |(at, ..)| *at);
    let latest_ms = history.observed.plan.epoch_ms
        + answered_ms.cast_signed()
        + history.observed.plan.skew_ms();
    let let_go = |id: &str| {
        stood(id, &|state, _| {
            state.is_some_and(|s| s.record.paused_at(latest_ms).is_none())
        })
    };
    let all = |wanted: &dyn Fn(&JobRecord) -> bool| {
        states
            .keys()
            .all(|id| stood(id, &|state, _| state.is_none_or(|s| wanted(&s.record))))
    };
    let right = match &asked.op {
        Op::Put(spec) => defined(spec),
        Op::Apply(specs) => specs.iter().all(defined),
        Op::Pause(id) => held(id, None),
        Op::PauseUntil(id, until_ms) => held(id, Some(*until_ms)),
        Op::PauseAll(until_ms) => all(&|record| {
            record.paused_all.as_ref().is_some_and(|paused| {
                paused
                    .until_ms
                    .is_none_or(|ends| until_ms.is_some_and(|until| ends >= until))
            })
        }),
        Op::Resume(id) => let_go(id),
        Op::ResumeAll => all(&|record| {
            record
                .paused_all
                .as_ref()
                .is_none_or(|paused| !paused.holds(latest_ms))
        }),
        Op::Delete(id) => stood(id, &|state, _| state.is_none()),
        Op::Trigger(..) => run.as_ref().is_some_and(|run| {
            history.steps().any(|(revised, _, step)| {
                step.key.run == *run
                    && revised.revision <= *end
                    && step
                        .after
                        .as_ref()
                        .is_some_and(|a| a.record.kind == RunKind::Manual)
            })
        }),
        // What it made, and how often, is looked at in the records.
        Op::Cancel(_) | Op::Backfill(..) => true,
        Op::Retry(..) => run.as_ref().is_none_or(|made| {
            history.steps().any(|(revised, _, step)| {
                format!("{}/{}", step.key.run, step.key.attempt) == *made
                    && revised.revision <= *end
                    && step
                        .after
                        .as_ref()
                        .is_some_and(|a| a.record.kind == RunKind::Retry)
            })
        }),
        Op::Drain(node, drained) => drain_stood(history, node, *drained, asked, *end),
    };
    (!right).then(|| {
        Violation::new(
            "acknowledged writes are durable",
            format!("{:?} asked at {} ms", asked.op, asked.start_ms),
        )
    })
}

/// Whether the node was (or was not) drained at some time between question and answer.
fn drain_stood(history: &History<'_>, node: &str, drained: bool, asked: &Asked, end: u64) -> bool {
    let key = Keys::new(NAMESPACE).drain(node);
    let mut stands = false;
    let mut seen = false;
    for logged in &history.observed.log {
        if logged.revision.0 > end {
            break;
        }
        if logged.revision.0 > asked.start_revision {
            seen |= stands == drained;
        }
        for event in &logged.events {
            if let Event::Put(entry) = event
                && entry.key == key
                && let Ok(record) = decode::<DrainRecord>(&entry.value)
            {
                stands = record.drained;
            }
        }
    }
    seen || stands == drained
}

/// A change takes effect when it is made, not at some later time.
fn effective(history: &History<'_>) -> Vec<Violation> {
    let skew = history.observed.plan.skew_ms();
    let mut until: BTreeMap<u16, i64> = BTreeMap::new();
    let mut violations = Vec::new();
    for revised in &history.revisions {
        for change in &revised.changes {
            let Change::Job {
                id,
                before,
                after: Some(after),
            } = change
            else {
                continue;
            };
            let made = |record: &JobRecord| record.made_segments().last().copied();
            let Some(segment) = made(&after.record) else {
                violations.push(Violation::new(
                    "a job has segments",
                    format!("{id} at revision {}", revised.revision),
                ));
                continue;
            };
            let from = segment.from_ms;
            let old = before.as_ref().and_then(|b| made(&b.record));
            let last = old.map_or(i64::MIN, |s| s.from_ms);
            let partition =
                punctual::keys::partition_of(id, punctual::bootstrap::DEFAULT_PARTITIONS);
            let window = until.get(&partition).copied().unwrap_or(i64::MIN);
            // Only the end of a hold has moved: neither may lie where all is decided.
            if old == Some(segment) && segment.paused {
                let ends = [before.as_ref(), Some(after)].into_iter().flatten();
                let ends = ends.filter_map(|stood| stood.record.resumes_ms());
                if ends.into_iter().any(|end| end <= window) {
                    violations.push(Violation::new(
                        "a hold that has ended is not made longer",
                        format!("{id} at revision {}", revised.revision),
                    ));
                }
                continue;
            }
            let latest = (revised.unix_ms + skew).max(window + 1).max(last);
            if from > latest || from <= window {
                violations.push(Violation::new(
                    "a change takes effect when it is made",
                    format!(
                        "{id} at revision {}: from {from}, made at {} , window until {window}, last {last}",
                        revised.revision, revised.unix_ms
                    ),
                ));
            }
        }
        for change in &revised.changes {
            if let Change::Cursor {
                partition,
                after: Some(after),
                ..
            } = change
            {
                until.insert(*partition, after.record.window.until_ms);
            }
        }
    }
    violations
}
