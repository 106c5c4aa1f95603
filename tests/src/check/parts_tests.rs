//! The checkers of runs in parts, on a right history and on the same with one thing wrong.

use punctual::backend::{Entry, Event, Revision};
use punctual::job::record::{RunRecord, decode, encode};
use punctual::job::run::{FailReason, RunState};
use punctual::job::spec::JobSpec;
use punctual::keys::{AttemptKey, Keys, part_of};
use serde_json::json;

use super::tests::{calm, finds};
use crate::sim::workload::HANDLER;
use crate::sim::world::{NAMESPACE, Observed};

/// A run in parts every ten seconds.
fn observed(change: impl Fn(&mut JobSpec)) -> Observed {
    let mut spec = JobSpec::handler("job", HANDLER).cron("*/10 * * * * *");
    spec.payload = json!({ "does": "ok", "ms": 100 });
    change(&mut spec);
    calm(spec)
}

fn fan_out() -> Observed {
    observed(|spec| spec.fan_out = Some(3))
}

/// A put under `run/` or `done/`: its place in the log, its key, its record.
struct Put {
    at: (usize, usize),
    done: bool,
    key: AttemptKey,
    record: RunRecord,
}

fn puts(observed: &Observed) -> Vec<Put> {
    let keys = Keys::new(NAMESPACE);
    let mut found = Vec::new();
    for (at, logged) in observed.log.iter().enumerate() {
        for (index, event) in logged.events.iter().enumerate() {
            if let Event::Put(entry) = event
                && let Some(key) = keys.parse_attempt(&entry.key)
                && let Ok(record) = decode(&entry.value)
            {
                found.push(Put {
                    at: (at, index),
                    done: keys.all_done().contains(&entry.key),
                    key,
                    record,
                });
            }
        }
    }
    found
}

fn find(observed: &Observed, wanted: impl Fn(&Put) -> bool) -> Put {
    puts(observed).into_iter().find(wanted).unwrap()
}

fn rewrite(observed: &mut Observed, put: &Put, change: impl Fn(&mut RunRecord)) {
    let mut record = put.record.clone();
    change(&mut record);
    if let Event::Put(entry) = &mut observed.log[put.at.0].events[put.at.1] {
        entry.value = encode(&record);
    }
}

/// Puts a record at a place of the log where something else happens.
fn add(observed: &mut Observed, at: usize, key: Vec<u8>, record: &RunRecord) {
    let revision = Revision(observed.log[at].revision.0);
    observed.log[at].events.push(Event::Put(Entry {
        key,
        value: encode(record),
        created: revision,
        modified: revision,
        lease: None,
    }));
}

fn divided(put: &Put) -> bool {
    !put.done && put.record.state == RunState::Running && put.record.parts.is_some()
}

fn ended(put: &Put) -> bool {
    put.done && put.record.parts.is_some()
}

#[test]
fn a_part_that_is_not_counted_or_made_again_is_seen() {
    let mut one = fan_out();
    let whole = find(&one, divided);
    rewrite(&mut one, &whole, |record| {
        record.parts.as_mut().unwrap().made -= 1;
    });
    finds(&one, "a run in parts counts its parts");

    let mut again = fan_out();
    let part = find(&again, |put| !put.done && put.record.shard.is_some());
    let ended = find(&again, |put| put.done && put.key == part.key);
    let key = Keys::new(NAMESPACE).run(&part.key);
    add(&mut again, ended.at.0 + 1, key, &part.record);
    finds(&again, "each part is made once");
}

#[test]
fn a_part_of_a_run_that_has_ended_is_seen() {
    let mut late = fan_out();
    let part = find(&late, |put| !put.done && put.record.shard.is_some());
    let (whole, _) = part_of(&part.key.run).unwrap();
    let end = find(&late, |put| ended(put) && put.key.run == whole);
    let key = AttemptKey {
        attempt: 2,
        ..part.key.clone()
    };
    let record = RunRecord {
        attempt: 2,
        ..part.record.clone()
    };
    add(
        &mut late,
        end.at.0 + 1,
        Keys::new(NAMESPACE).run(&key),
        &record,
    );
    finds(&late, "no part of a run that has ended or is to end");
}

#[test]
fn an_end_that_is_too_early_or_not_what_the_parts_say_is_seen() {
    let mut early = fan_out();
    let end = find(&early, ended);
    let part = find(&early, |put| {
        let of = part_of(&put.key.run).is_some_and(|(whole, _)| whole == end.key.run);
        put.done && of
    });
    let events = std::mem::take(&mut early.log[end.at.0].events);
    early.log[part.at.0 - 1].events.extend(events);
    finds(&early, "a run in parts ends after its parts");

    let mut wrong = fan_out();
    let end = find(&wrong, ended);
    rewrite(&mut wrong, &end, |record| {
        record.state = RunState::Failed;
        record.failed = Some(FailReason::Error);
    });
    finds(&wrong, "a run in parts ends as its parts say");

    let mut failed = observed(|spec| {
        spec.fan_out = Some(2);
        spec.payload = json!({ "does": "fail", "ms": 0 });
    });
    let end = find(&failed, ended);
    rewrite(&mut failed, &end, |record| {
        record.state = RunState::Success;
        record.failed = None;
    });
    finds(&failed, "a run in parts ends as its parts say");
}

#[test]
fn a_run_in_parts_that_is_claimed_is_seen() {
    let mut claimed = fan_out();
    let whole = find(&claimed, divided);
    let owner = find(&claimed, |put| put.record.owner.is_some())
        .record
        .owner;
    rewrite(&mut claimed, &whole, |record| record.owner = owner.clone());
    finds(&claimed, "a run in parts is nobody's");
}

#[test]
fn a_run_in_parts_that_is_forgotten_is_seen() {
    let mut stuck = fan_out();
    let end = find(&stuck, ended);
    stuck.log[end.at.0].events.clear();
    finds(&stuck, "a run in parts goes on");
}

#[test]
fn a_broadcast_that_leaves_a_node_out_or_runs_elsewhere_is_seen() {
    let mut elsewhere = observed(|spec| spec.broadcast = true);
    let parts: Vec<Put> = puts(&elsewhere)
        .into_iter()
        .filter(|put| !put.done && put.record.shard.is_some())
        .collect();
    for put in &parts {
        rewrite(&mut elsewhere, put, |record| {
            record.shard.as_mut().unwrap().node = Some("n7".into());
        });
    }
    finds(&elsewhere, "a part for a node runs there");

    let mut other = observed(|spec| spec.broadcast = true);
    let whole = find(&other, |put| {
        divided(put) && put.record.scheduled_ms > 1_772_323_220_000
    });
    rewrite(&mut other, &whole, |record| {
        record.parts.as_mut().unwrap().nodes = Some(vec!["n7".into()]);
    });
    finds(&other, "a broadcast reaches the nodes that are there");
}

#[test]
fn parts_that_go_before_their_run_are_seen() {
    let mut gone = fan_out();
    let part = find(&gone, |put| put.done && put.record.shard.is_some());
    let key = Keys::new(NAMESPACE).done(&part.key);
    let revision = Revision(gone.log[part.at.0 + 1].revision.0);
    gone.log[part.at.0 + 1]
        .events
        .push(Event::Delete { key, revision });
    finds(&gone, "a part is kept as long as its run");
}
