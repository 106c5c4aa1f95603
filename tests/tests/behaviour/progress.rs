//! Checkpoints: what an attempt is given of those before it.

use punctual::duration::Millis;
use punctual::job::run::RunState;
use punctual::job::spec::{JobSpec, OnLost};
use punctual_tests::sim::faults::{Cut, Trouble};
use punctual_tests::sim::schedule::{Op, Plan};
use serde_json::json;

use crate::stage::{MINUTE, Seen, Story as _, cron, stage};

/// At second 20, so long, in three attempts if need be; a checkpoint as often as one is taken.
fn saves(does: &str, ms: u64) -> JobSpec {
    let mut job = cron("a", "20 0 0 * * *");
    job.payload = json!({ "does": does, "ms": ms, "saves": 10 });
    job.retry.attempts = Some(3);
    job.retry.backoff = Millis::from_ms(500);
    job.on_lost = OnLost::Retry;
    job.idempotent = true;
    job
}

fn play(job: JobSpec) -> (Plan, Seen) {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 2 * MINUTE);
    plan.put(3_000, job);
    let seen = plan.play();
    (plan, seen)
}

/// A worker is cut off in the middle of a run, in each way. Another one goes on from the last checkpoint
/// that the first was told is kept, or from a later one that it was not told of; what the first has
/// under way when it stops is nobody's.
#[test]
fn another_node_goes_on_from_the_last_checkpoint() {
    let (plan, dry) = play(saves("ok", 30_000));
    assert_eq!(dry.runs("a").len(), 1, "calm, it is done in one attempt");
    assert!(dry.runs("a")[0].kept.len() > 20);
    let node = dry.node(dry.runs("a")[0].proc);
    let mut unheard = 0;
    for cut in [Cut::Both, Cut::Requests, Cut::Replies] {
        for from_ms in [25_300, 25_700, 26_000] {
            let mut plan = plan.clone();
            plan.trouble(node, from_ms, 100_000, Trouble::Cut(cut));
            let seen = plan.play();
            let [first, second] = seen.runs("a")[..] else {
                panic!("{:?}", seen.runs("a"));
            };
            assert!(!first.completed && second.completed);
            assert_ne!(seen.node(second.proc), node);
            let told = first.kept.last().map(|(kept, _)| kept.as_str()).unwrap();
            let given = second.given.as_deref().unwrap();
            assert!(("0001.000004"..="0001.000007").contains(&told), "{told}");
            match cut {
                Cut::Replies => assert!(given >= told, "{told} {given}"),
                Cut::Both | Cut::Requests => assert_eq!(given, told),
            }
            unheard += u32::from(given > told);
            assert_eq!(seen.states("a"), [RunState::Failed, RunState::Success]);
        }
    }
    assert!(
        unheard > 0,
        "nothing was kept of which the first was not told"
    );
}

/// The store does not answer when the second attempt begins: at each millisecond around that, for two
/// seconds. It waits, and begins with the checkpoint; never without.
#[test]
fn an_attempt_waits_for_its_checkpoint() {
    let (plan, dry) = play(saves("flaky", 3_000));
    let begin = |seen: &Seen| -> Vec<(u64, Option<String>)> {
        let runs = seen.runs("a");
        runs.iter()
            .map(|run| (run.start_ms, run.given.clone()))
            .collect()
    };
    let calm = begin(&dry);
    let [_, (second_ms, Some(_)), (_, Some(_))] = &calm[..] else {
        panic!("{calm:?}");
    };
    let node = dry.node(dry.runs("a")[1].proc);
    let mut waited = 0;
    for from_ms in second_ms - 12..second_ms + 3 {
        let mut plan = plan.clone();
        plan.trouble(node, from_ms, from_ms + 2_000, Trouble::Cut(Cut::Both));
        let seen = plan.play();
        let begun = begin(&seen);
        assert_eq!(begun.len(), 3, "{begun:?}");
        let given: Vec<&Option<String>> = begun.iter().map(|(_, given)| given).collect();
        let last = |n: usize| seen.runs("a")[n].kept.last().map(|(kept, _)| kept.clone());
        assert_eq!(given[..2], [&None, &last(0)]);
        assert!(given[2] >= &last(1).max(last(0)), "{begun:?}");
        // RUNNING already when the wire was cut, but its code not started before that was over.
        let was_running = seen.running_ms("a", 2) < from_ms;
        waited += u32::from(was_running && begun[1].0 >= from_ms + 2_000);
    }
    assert!(waited > 0, "the store was there each time it was asked");
}

/// What ends for good leaves nothing: after a success, a cancellation, the last failure. And a run that
/// somebody repeats then begins from the beginning.
#[test]
fn a_run_that_has_ended_keeps_nothing() {
    let (plan, _) = play(saves("fail", 3_000));
    let mut plan = plan;
    plan.ops
        .push((60_000, 0, Op::Retry("a".into(), "again".into())));
    let seen = plan.play();
    let given: Vec<bool> = seen
        .runs("a")
        .iter()
        .map(|run| run.given.is_some())
        .collect();
    assert_eq!(given[..4], [false, true, true, false]);
    // Three attempts, and three of the repetition: every invariant held, among them that no progress
    // outlives its run.
    let (plan, _) = play(saves("hang", 0));
    let mut plan = plan;
    plan.ops.push((30_000, 1, Op::Cancel("a".into())));
    let seen = plan.play();
    assert_eq!(seen.runs("a").len(), 1);
    assert!(seen.runs("a")[0].kept.len() > 5);
    assert_eq!(seen.states("a"), [RunState::Failed]);
}
