//! The checkers of runs that meet, on right histories and on the same with one thing wrong.

use punctual::backend::{Entry, Event, Revision};
use punctual::job::record::{RunRecord, decode, encode};
use punctual::job::run::{RunState, SkipReason};
use punctual::job::spec::{JobSpec, Overlap};
use punctual::keys::Keys;
use serde_json::json;

use super::tests::{calm, finds, puts};
use crate::sim::workload::HANDLER;
use crate::sim::world::{NAMESPACE, Observed};

/// A job every ten seconds whose work takes so long.
fn job(overlap: Overlap, work_ms: u64) -> JobSpec {
    let mut spec = JobSpec::handler("job", HANDLER).cron("*/10 * * * * *");
    spec.payload = json!({ "does": "ok", "ms": work_ms });
    spec.overlap = overlap;
    spec
}

fn events(observed: &mut Observed) -> impl Iterator<Item = &mut Event> {
    let log = observed.log.iter_mut();
    log.flat_map(|logged| &mut logged.events)
}

/// As if the job had always been defined like this.
fn redefine(observed: &mut Observed, change: impl Fn(&mut JobSpec)) {
    let keys = Keys::new(NAMESPACE);
    for event in events(observed) {
        if let Event::Put(entry) = event
            && keys.parse_def(&entry.key).is_some()
        {
            let mut spec: JobSpec = decode(&entry.value).unwrap();
            change(&mut spec);
            entry.value = encode(&spec);
        }
    }
}

fn without(observed: &mut Observed, gone: impl Fn(&Event) -> bool) {
    let mut left_out = 0;
    for logged in &mut observed.log {
        let before = logged.events.len();
        logged.events.retain(|event| !gone(event));
        left_out += before - logged.events.len();
    }
    assert!(left_out > 0, "there was nothing to leave out");
}

#[test]
fn an_execution_without_a_slot_and_a_slot_without_one_are_seen() {
    let invariant = "each limited execution holds a slot, and no slot is held without one";
    let keys = Keys::new(NAMESPACE);
    let is_slot = |event: &Event| keys.parse_slot(event.key()).is_some();
    let mut observed = calm(job(Overlap::Queue, 100));
    without(&mut observed, |event| {
        is_slot(event) && matches!(event, Event::Put(_))
    });
    finds(&observed, invariant);
    let mut observed = calm(job(Overlap::Queue, 100));
    without(&mut observed, |event| {
        is_slot(event) && matches!(event, Event::Delete { .. })
    });
    finds(&observed, invariant);
}

#[test]
fn more_executions_than_allowed_are_seen_by_both_witnesses() {
    let mut two = job(Overlap::Allow, 15_000);
    two.concurrency = Some(2);
    let mut observed = calm(two);
    let keys = Keys::new(NAMESPACE);
    for event in events(&mut observed) {
        if let Event::Put(entry) = event
            && keys.runs().contains(&entry.key)
        {
            let mut record: RunRecord = decode(&entry.value).unwrap();
            record.concurrency = Some(1);
            entry.value = encode(&record);
        }
    }
    finds(&observed, "never more executions than the job allows");
    finds(&observed, "no more code runs at once than the job allows");
    finds(&observed, "a run is limited as its definition says");
}

#[test]
fn a_queue_that_skips_too_soon_or_runs_too_many_is_seen() {
    let mut slow = job(Overlap::Queue, 25_000);
    slow.queue_limit = Some(2);
    let mut observed = calm(slow.clone());
    let skipped = puts(&observed, RunState::Skipped);
    assert!(!skipped.is_empty(), "it was full");
    redefine(&mut observed, |spec| spec.queue_limit = Some(3));
    finds(&observed, "overlap: queue skips only when it is full");
    let mut observed = calm(slow);
    redefine(&mut observed, |spec| spec.queue_limit = Some(1));
    finds(&observed, "overlap: queue runs only when there is room");
    // Skipped for another reason, it proves nothing about the queue.
    let (at, index) = skipped[0];
    if let Event::Put(entry) = &observed.log[at].events[index] {
        let record: RunRecord = decode(&entry.value).unwrap();
        assert_eq!(record.skipped, Some(SkipReason::Overlap));
    }
}

#[test]
fn a_replacement_that_leaves_another_alone_is_seen() {
    let mut observed = calm(job(Overlap::Replace, 25_000));
    let keys = Keys::new(NAMESPACE);
    without(&mut observed, |event| {
        keys.parse_cancel(event.key()).is_some()
    });
    finds(&observed, "overlap: replace tells the others to go");
}

#[test]
fn a_retry_of_a_run_that_is_to_end_is_seen() {
    let mut failing = job(Overlap::Queue, 1_000);
    failing.payload = json!({ "does": "fail", "ms": 1_000 });
    failing.retry.attempts = Some(2);
    let mut observed = calm(failing);
    let (at, index) = puts(&observed, RunState::Running)[0];
    let keys = Keys::new(NAMESPACE);
    let run = keys.parse_attempt(observed.log[at].events[index].key());
    observed.log[at].events.push(Event::Put(Entry {
        key: keys.cancel(&run.unwrap().run),
        value: b"{}".to_vec(),
        created: Revision(1),
        modified: Revision(1),
        lease: None,
    }));
    finds(&observed, "no retry of a run that is to end");
}
