//! A job that runs some time after its last run has one chain of runs: one after the other, each as
//! long after the end of the one before as the definition in force says, none while the job is held,
//! and the chain never breaks.

use std::collections::{BTreeMap, BTreeSet};

use punctual::backend::Event;
use punctual::job::record::{DelayRecord, JobRecord, RunRecord, decode};
use punctual::job::run::RunState;
use punctual::keys::{Keys, part_of};

use super::chain::held;
use super::exactly_once::LATE_MS;
use super::history::{History, Violation};
use crate::sim::world::NAMESPACE;

/// A chain, as its job stands.
#[derive(Default)]
struct Chain {
    last: Option<String>,
    /// When its last run ended, or the chain began; by the record (but not after it was written, whose
    /// clock was wrong then), and in virtual time.
    since: Option<(i64, u64)>,
    began: bool,
}

/// Checks it.
#[must_use]
pub fn check(history: &History<'_>) -> Vec<Violation> {
    let keys = Keys::new(NAMESPACE);
    let skew_ms = history.observed.plan.skew_ms();
    let mut violations = Vec::new();
    let mut chains: BTreeMap<String, Chain> = BTreeMap::new();
    let mut jobs: BTreeMap<String, JobRecord> = BTreeMap::new();
    let mut alive: BTreeSet<Vec<u8>> = BTreeSet::new();
    for logged in &history.observed.log {
        let revision = logged.revision.0;
        let unix_ms = history.observed.plan.epoch_ms + logged.at_ms.cast_signed();
        for (job, run) in made(&keys, &logged.events) {
            let what = format!("{run} at revision {revision}");
            let mut wrong = |invariant| violations.push(Violation::new(invariant, what.clone()));
            let Some(chain) = chains.get(&job) else {
                wrong("a chain runs only while its job says so");
                continue;
            };
            let spec = jobs
                .get(&job)
                .filter(|record| !held(record, unix_ms, skew_ms))
                .and_then(|record| history.spec(&job, record.generation, revision))
                .filter(|spec| spec.enabled);
            let Some(delay) = spec.and_then(|spec| spec.schedule.after_finish) else {
                wrong("a chain runs only while its job says so");
                continue;
            };
            if let Some(last) = &chain.last {
                let partition =
                    punctual::keys::partition_of(&job, punctual::bootstrap::DEFAULT_PARTITIONS);
                let span = keys.attempts_of(partition, &job, last);
                if alive.iter().any(|key| span.contains(key)) {
                    wrong("one run of a chain at a time");
                }
            }
            if let Some((since_ms, _)) = chain.since.filter(|_| chain.began)
                && unix_ms < since_ms + delay.ms_i64() - skew_ms
            {
                wrong("a chain waits after the end");
            }
        }
        for event in &logged.events {
            let key = event.key();
            if keys.runs().contains(key) {
                match event {
                    Event::Put(_) => alive.insert(key.to_vec()),
                    Event::Delete { .. } => alive.remove(key),
                };
            } else if let Some((_, Some(id))) = keys.parse_job(key) {
                match event {
                    Event::Put(entry) => {
                        if let Ok(record) = decode::<JobRecord>(&entry.value) {
                            jobs.insert(id, record);
                        }
                    }
                    Event::Delete { .. } => {
                        jobs.remove(&id);
                    }
                }
            }
        }
        ended(&keys, &logged.events, (logged.at_ms, unix_ms), &mut chains);
        for event in &logged.events {
            let Some(job) = keys.parse_delay(event.key()) else {
                continue;
            };
            let record = match event {
                Event::Put(entry) => decode::<DelayRecord>(&entry.value).ok(),
                Event::Delete { .. } => None,
            };
            let Some(record) = record else {
                chains.remove(&job);
                continue;
            };
            let chain = chains.entry(job).or_default();
            if chain.last != record.run {
                chain.began = true;
                // A record of a run that was skipped at once came with this very revision.
                let skipped = skipped(&keys, &logged.events, record.run.as_deref());
                chain.since = skipped.map(|at_ms| (at_ms, logged.at_ms));
            } else if record.run.is_none() {
                chain.since = Some((record.since_ms, logged.at_ms));
            }
            chain.last = record.run;
        }
    }
    violations.extend(broken(history, &jobs, &chains));
    violations
}

/// After healing, each chain whose job is not held goes on.
fn broken(
    history: &History<'_>,
    jobs: &BTreeMap<String, JobRecord>,
    chains: &BTreeMap<String, Chain>,
) -> Vec<Violation> {
    let end_ms = history.observed.plan.end_ms.cast_signed();
    let end_unix_ms = history.observed.plan.epoch_ms + end_ms;
    let mut violations = Vec::new();
    for (job, record) in jobs {
        let spec = history.spec(job, record.generation, u64::MAX);
        let delay = spec
            .filter(|spec| spec.enabled && record.paused_at(end_unix_ms).is_none())
            .and_then(|spec| spec.schedule.after_finish);
        let Some(delay) = delay else { continue };
        let Some(chain) = chains.get(job) else {
            violations.push(Violation::new(
                "a chain never breaks",
                format!("{job} has none"),
            ));
            continue;
        };
        if let Some((_, at_ms)) = chain.since {
            let waits_ms = if chain.began { delay.ms_i64() } else { 0 };
            // Held jobs may have been let go just now.
            let changed_ms = record.segments.last().map_or(0, |s| s.from_ms);
            let from_ms = at_ms.cast_signed().max(history.virtual_ms(changed_ms));
            if from_ms + waits_ms + LATE_MS < end_ms {
                violations.push(Violation::new(
                    "a chain never breaks",
                    format!(
                        "{job}: nothing follows {:?}, which ended at {at_ms} ms",
                        chain.last
                    ),
                ));
            }
        }
    }
    violations
}

fn record(event: &Event) -> Option<RunRecord> {
    match event {
        Event::Put(entry) => decode(&entry.value).ok(),
        Event::Delete { .. } => None,
    }
}

/// Runs of chains that are made, or skipped at once: job and run.
fn made(keys: &Keys, events: &[Event]) -> Vec<(String, String)> {
    let mut made = Vec::new();
    for event in events {
        let Some(key) = keys.parse_attempt(event.key()) else {
            continue;
        };
        let Event::Put(entry) = event else { continue };
        let first = entry.created == entry.modified
            && ((keys.runs().contains(&entry.key) && key.attempt == 1)
                || (keys.all_done().contains(&entry.key) && key.attempt == 0));
        if first && key.run.contains("~f-") && part_of(&key.run).is_none() {
            made.push((key.job, key.run));
        }
    }
    made
}

/// When the run was skipped, if this revision did that.
fn skipped(keys: &Keys, events: &[Event], run: Option<&str>) -> Option<i64> {
    let record = events
        .iter()
        .filter(|event| keys.all_done().contains(event.key()))
        .filter_map(record)
        .find(|record| Some(record.run.as_str()) == run && record.state == RunState::Skipped)?;
    record.ended_ms
}

/// Takes in the ends of runs; an attempt that is followed by another one is none.
fn ended(
    keys: &Keys,
    events: &[Event],
    (at_ms, unix_ms): (u64, i64),
    chains: &mut BTreeMap<String, Chain>,
) {
    for event in events {
        if !keys.all_done().contains(event.key()) {
            continue;
        }
        let Some(record) = record(event).filter(|record| record.run.contains("~f-")) else {
            continue;
        };
        if let Some(chain) = chains.get_mut(&record.job)
            && chain.last.as_deref() == Some(record.run.as_str())
        {
            let retried = events.iter().any(|event| {
                let next = keys.parse_attempt(event.key());
                keys.runs().contains(event.key())
                    && matches!(event, Event::Put(_))
                    && next.is_some_and(|next| next.run == record.run)
            });
            chain.since = record
                .ended_ms
                .filter(|_| !retried)
                .map(|ended_ms| (ended_ms.min(unix_ms), at_ms));
        }
    }
}
