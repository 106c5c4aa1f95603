//! Attempts after the first.

use punctual::duration::Millis;
use punctual::job::run::{FailReason, RunState};
use punctual::job::spec::{JobSpec, OnLost};
use punctual_tests::sim::faults::{Cut, Trouble};
use punctual_tests::sim::schedule::Fault;

use crate::stage::{MINUTE, Seen, Story as _, cron, does, stage};

/// With so many attempts, each a second after the last one's end, or later.
fn tries(mut spec: JobSpec, attempts: u32, factor: f64) -> JobSpec {
    spec.retry.attempts = Some(attempts);
    spec.retry.backoff = Millis::from_secs(1);
    spec.retry.factor = factor;
    spec.retry.max_backoff = Millis::from_secs(10);
    spec
}

/// R01: two retries of what always fails are three attempts, at each instant anew.
#[test]
fn r01_the_limit_of_retries_is_heeded() {
    let mut plan = stage(3, "2026-03-01T00:00:30Z", 2 * MINUTE);
    plan.put(
        3_000,
        tries(does(cron("a", "* * * * *"), "fail", 10), 3, 1.0),
    );
    let seen = plan.play();
    assert_eq!(seen.fires_s("a"), [30, 90, 150]);
    let attempts: Vec<u32> = seen.runs("a").iter().map(|run| run.attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 1, 2, 3, 1, 2, 3]);
    assert!(
        seen.ends("a")
            .all(|end| end.failed == Some(FailReason::Error))
    );
    assert!(
        seen.states("a")
            .iter()
            .all(|state| *state == RunState::Failed)
    );
}

/// R02: the worker's connection is lost in the middle of a run that has one retry.
#[test]
fn r02_a_lost_connection_is_a_failed_attempt() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 2 * MINUTE);
    let mut job = does(tries(cron("a", "20 0 0 * * *"), 2, 1.0), "ok", 30_000);
    job.on_lost = OnLost::Retry;
    job.idempotent = true;
    plan.put(3_000, job);
    let dry = plan.play();
    let node = dry.node(dry.runs("a")[0].proc);
    plan.trouble(node, 25_000, 100_000, Trouble::Cut(Cut::Both));
    let seen = plan.play();
    let [first, second] = seen.runs("a")[..] else {
        panic!("{:?}", seen.runs("a"));
    };
    assert_eq!((first.attempt, second.attempt), (1, 2));
    assert_ne!(seen.node(second.proc), node);
    assert!(!first.completed && second.completed);
    assert_eq!(seen.states("a"), [RunState::Failed, RunState::Success]);
}

/// R04: waits of 1, 2, 4, 8 and at most 10 s, from the end of an attempt to the next one.
#[test]
fn r04_each_wait_is_longer() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", MINUTE);
    plan.put(
        3_000,
        tries(does(cron("a", "10 0 0 * * *"), "fail", 50), 6, 2.0),
    );
    let seen = plan.play();
    let runs = seen.runs("a");
    assert_eq!(runs.len(), 6);
    let waits = runs
        .windows(2)
        .map(|two| two[1].start_ms - two[0].end_ms.unwrap());
    for (wait, expected) in waits.zip([1_000, 2_000, 4_000, 8_000, 10_000]) {
        assert!(
            (expected..expected + 200).contains(&wait),
            "{wait} of {expected}"
        );
    }
}

/// A worker stands still until so many milliseconds, and its code is done as soon as it wakes.
fn wakes_at(ms: u64) -> Seen {
    let mut plan = stage(2, "2026-03-01T00:00:00Z", 2 * MINUTE);
    // The other one leads, and takes nothing.
    plan.nodes[0].has_handler = false;
    plan.put(3_000, does(cron("a", "20 0 0 * * *"), "ok", 15_000));
    let for_ms = ms - 25_000;
    plan.fault(25_000, Fault::Pause { node: 1, for_ms });
    plan.play()
}

/// R06: a worker that was given up reports SUCCESS while the leader takes its run: at each millisecond
/// around that. What is written first stands; the other one fails, and a late result is kept.
#[test]
fn r06_a_rescue_and_a_result_at_once() {
    let rescue = wakes_at(80_000);
    assert_eq!(rescue.states("a"), [RunState::Failed]);
    let rescued = rescue.ended[0].at_ms;
    let (mut first, mut second) = (0, 0);
    for ms in rescued - 25..rescued + 15 {
        let seen = wakes_at(ms);
        let end = seen.ends("a").next().unwrap();
        match (end.state, end.failed) {
            (RunState::Success, None) => first += 1,
            (RunState::Failed, Some(FailReason::WorkerLost)) => second += 1,
            other => panic!("{other:?}"),
        }
        assert_eq!(seen.states("a").len(), 1);
        assert_eq!(seen.runs("a").len(), 1);
    }
    assert!(first > 5 && second > 5, "{first} results, {second} rescues");
}

/// R07: the node that finds a lost run has no handler for it; the run waits for one that has.
#[test]
fn r07_who_rescues_need_not_be_able_to_run() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 2 * MINUTE);
    // The leader cannot run it, and the third node comes late.
    plan.nodes[0].has_handler = false;
    plan.nodes[2].start_ms = 70_000;
    let mut job = does(cron("a", "20 0 0 * * *"), "ok", 20_000);
    job.on_lost = OnLost::Retry;
    job.idempotent = true;
    plan.put(3_000, job);
    plan.fault(
        25_000,
        Fault::Crash {
            node: 1,
            down_ms: 90_000,
        },
    );
    let seen = plan.play();
    assert_eq!(seen.leads.len(), 1, "node 0 leads, and rescues");
    let nodes: Vec<usize> = seen
        .runs("a")
        .iter()
        .map(|run| seen.node(run.proc))
        .collect();
    assert_eq!(nodes, [1, 2]);
    let again = seen
        .created
        .iter()
        .find(|run| run.record.attempt == 2)
        .unwrap();
    assert!(
        again.at_ms < 60_000,
        "it waited for the third node: {}",
        again.at_ms
    );
    assert_eq!(seen.states("a"), [RunState::Failed, RunState::Success]);
}
