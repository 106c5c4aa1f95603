//! What runs after a success: each job that followed when the run ended well has one decision for
//! it, made together with the note that it is done, and no other chained run exists.

use std::collections::{BTreeMap, BTreeSet};

use punctual::backend::Event;
use punctual::control::RunKind;
use punctual::job::record::{JobRecord, RunRecord, TodoRecord, decode};
use punctual::job::run::RunState;
use punctual::keys::Keys;

use super::exactly_once::LATE_MS;
use super::history::{History, Violation};
use crate::sim::world::NAMESPACE;

/// What stands for now, as far as chains are concerned.
#[derive(Default)]
struct Standing {
    /// Who follows whom, and since which revision.
    followers: BTreeMap<(String, String), u64>,
    jobs: BTreeMap<String, JobRecord>,
    todos: BTreeMap<String, Todo>,
}

struct Todo {
    created: u64,
    at_ms: u64,
    /// Whoever followed at the success and is not decided.
    owed: BTreeSet<String>,
}

/// A decision for a follower.
struct Decided {
    run: String,
    follower: String,
    cause: String,
    state: RunState,
}

/// Checks it.
#[must_use]
pub fn check(history: &History<'_>) -> Vec<Violation> {
    let keys = Keys::new(NAMESPACE);
    let skew_ms = history.observed.plan.skew_ms();
    let mut standing = Standing::default();
    let mut violations = Vec::new();
    for logged in &history.observed.log {
        let revision = logged.revision.0;
        let unix_ms = history.observed.plan.epoch_ms + logged.at_ms.cast_signed();
        let mut decided = decided(&keys, &logged.events);
        for decision in &decided {
            let paused = standing
                .jobs
                .get(&decision.follower)
                .is_none_or(|job| held(job, unix_ms, skew_ms));
            if paused && decision.state == RunState::Pending {
                violations.push(Violation::new(
                    "a paused job is not run after another",
                    format!("{} at revision {revision}", decision.run),
                ));
            }
        }
        // Requirements are judged on what stood before.
        for success in successes(&keys, &logged.events) {
            let owed: BTreeSet<String> = standing
                .followers
                .keys()
                .filter(|(job, _)| *job == success.job)
                .map(|(_, follower)| follower.clone())
                .collect();
            if !owed.is_empty() {
                let todo = Todo {
                    created: revision,
                    at_ms: logged.at_ms,
                    owed,
                };
                standing.todos.insert(success.run, todo);
            }
        }
        for event in &logged.events {
            let Some(run) = keys.parse_todo(event.key()) else {
                continue;
            };
            let done: Option<BTreeSet<String>> = match event {
                Event::Put(entry) => decode::<TodoRecord>(&entry.value)
                    .ok()
                    .map(|record| record.done.into_iter().collect()),
                Event::Delete { .. } => None,
            };
            let Some(mut todo) = standing.todos.remove(&run) else {
                violations.push(Violation::new(
                    "what comes after a run is noted when it ends well",
                    format!("a note for {run} at revision {revision}"),
                ));
                continue;
            };
            let over: Vec<String> = todo
                .owed
                .iter()
                .filter(|follower| done.as_ref().is_none_or(|done| done.contains(*follower)))
                .cloned()
                .collect();
            let created = todo.created;
            for follower in over {
                todo.owed.remove(&follower);
                let made = decided
                    .iter()
                    .position(|d| d.cause == run && d.follower == follower);
                match made {
                    Some(made) => {
                        decided.remove(made);
                    }
                    None if standing.owes(history, &run, &follower, created, revision) => {
                        violations.push(Violation::new(
                            "each success is followed",
                            format!("{follower} after {run}: passed over at revision {revision}"),
                        ));
                    }
                    None => {}
                }
            }
            if done.is_some() {
                standing.todos.insert(run, todo);
            }
        }
        for stray in decided {
            violations.push(Violation::new(
                "each success is followed once",
                format!("{} after {} at revision {revision}", stray.run, stray.cause),
            ));
        }
        standing.take(&keys, &logged.events, revision);
    }
    let horizon = history.observed.plan.end_ms.cast_signed() - LATE_MS;
    for (run, todo) in &standing.todos {
        if todo.at_ms.cast_signed() < horizon {
            violations.push(Violation::new(
                "each success is followed",
                format!("{run} is not, by {:?}", todo.owed),
            ));
        }
    }
    violations
}

/// Whether the job is held, by any clock that is not off by more than that.
pub(super) fn held(job: &JobRecord, at_ms: i64, skew_ms: i64) -> bool {
    job.paused_at(at_ms - skew_ms).is_some() && job.paused_at(at_ms + skew_ms).is_some()
}

impl Standing {
    /// Whether the follower still wants to be run after this success.
    fn owes(
        &self,
        history: &History<'_>,
        run: &str,
        follower: &str,
        created: u64,
        revision: u64,
    ) -> bool {
        let job = punctual::keys::job_of_run(run).unwrap_or_default();
        let since = self.followers.get(&(job.to_owned(), follower.to_owned()));
        let Some(record) = self.jobs.get(follower) else {
            return false;
        };
        let spec = history.spec(follower, record.generation, revision);
        since.is_some_and(|since| *since < created)
            && spec.is_some_and(|spec| spec.enabled && spec.after.iter().any(|a| a == job))
    }

    fn take(&mut self, keys: &Keys, events: &[Event], revision: u64) {
        for event in events {
            if let Some(pair) = keys.parse_follower(event.key()) {
                match event {
                    Event::Put(_) => {
                        self.followers.entry(pair).or_insert(revision);
                    }
                    Event::Delete { .. } => {
                        self.followers.remove(&pair);
                    }
                }
            } else if let Some((_, Some(id))) = keys.parse_job(event.key()) {
                let record = match event {
                    Event::Put(entry) => decode::<JobRecord>(&entry.value).ok(),
                    Event::Delete { .. } => None,
                };
                match record {
                    Some(record) => self.jobs.insert(id, record),
                    None => self.jobs.remove(&id),
                };
            }
        }
    }
}

fn records<'a>(
    keys: &'a Keys,
    events: &'a [Event],
) -> impl Iterator<Item = (bool, RunRecord)> + 'a {
    events.iter().filter_map(|event| {
        let Event::Put(entry) = event else {
            return None;
        };
        let done = keys.all_done().contains(&entry.key);
        if !done && !keys.runs().contains(&entry.key) {
            return None;
        }
        Some((done, decode::<RunRecord>(&entry.value).ok()?))
    })
}

fn successes(keys: &Keys, events: &[Event]) -> Vec<RunRecord> {
    records(keys, events)
        // What follows a run in parts follows all of it.
        .filter(|(done, record)| {
            *done && record.state == RunState::Success && record.shard.is_none()
        })
        .map(|(_, record)| record)
        .collect()
}

/// Runs made, and records that say why there is none.
fn decided(keys: &Keys, events: &[Event]) -> Vec<Decided> {
    let first = |done: bool, record: &RunRecord| {
        if done {
            record.attempt == 0
        } else {
            record.attempt == 1 && record.state == RunState::Pending && record.locked_ms.is_none()
        }
    };
    let made: BTreeSet<Vec<u8>> = events
        .iter()
        .filter_map(|event| match event {
            Event::Put(entry) if entry.created == entry.modified => Some(entry.key.clone()),
            _ => None,
        })
        .collect();
    let new = |event: &&Event| made.contains(event.key());
    let events: Vec<Event> = events.iter().filter(new).cloned().collect();
    records(keys, &events)
        .filter(|(done, record)| record.kind == RunKind::Chained && first(*done, record))
        .filter_map(|(_, record)| {
            let cause = record.cause.map(|cause| cause.run);
            Some(Decided {
                run: record.run,
                follower: record.job,
                cause: cause?,
                state: record.state,
            })
        })
        .collect()
}
