//! Runs that people ask for: what failed once more, and what has passed.

use punctual::control::RunKind;
use punctual::job::run::RunState;
use punctual_tests::sim::operator::Told;
use punctual_tests::sim::schedule::{Fault, Op, Plan};

use super::stage::{MINUTE, Seen, Story, does, every, job, stage};

const START: &str = "2026-03-01T00:00:00Z";

fn ask(plan: &mut Plan, at_ms: u64, op: Op) {
    plan.ops.push((at_ms, 1, op));
}

fn told(seen: &Seen, wanted: impl Fn(&Op) -> bool) -> Vec<&Told> {
    let asked = seen.observed.asked.iter().filter(|asked| wanted(&asked.op));
    asked
        .map(|asked| &asked.answer.as_ref().unwrap().2)
        .collect()
}

/// What a vanished node has done is not known: nobody repeats it without saying that this may be.
#[test]
fn a_run_whose_node_vanished_is_not_repeated_lightly() {
    let mut plan = stage(1, START, 3 * MINUTE);
    let careless = does(job("a"), "ok", 60_000);
    let mut safe = does(job("b"), "ok", 60_000);
    safe.idempotent = true;
    plan.put_all(3_000, vec![careless, safe]);
    for id in ["a", "b"] {
        plan.ops
            .push((10_000, 0, Op::Trigger(id.into(), "k".into())));
        plan.ops.push((90_000, 0, Op::Retry(id.into(), "k".into())));
    }
    plan.fault(
        20_000,
        Fault::Crash {
            node: 0,
            down_ms: 5_000,
        },
    );
    let seen = plan.play();
    assert_eq!(seen.states("a"), [RunState::Failed]);
    let [Told::Refused(why)] = told(&seen, |op| matches!(op, Op::Retry(id, _) if id == "a"))[..]
    else {
        panic!("it was not refused");
    };
    assert!(why.contains("vanished while it was running"), "{why}");
    assert_eq!(seen.runs("a").len(), 1);
    assert_eq!(seen.states("b"), [RunState::Failed, RunState::Success]);
    assert_eq!(seen.runs("b").len(), 2);
}

/// Two people, or one whose answer was lost, ask for the same: one attempt. Asked for another time it
/// is one more, as long as the run has not succeeded.
#[test]
fn a_retry_that_is_asked_for_twice_is_one() {
    let mut plan = stage(3, START, 2 * MINUTE);
    plan.put(3_000, does(job("a"), "flaky", 100));
    ask(&mut plan, 10_000, Op::Trigger("a".into(), "k".into()));
    for (at_ms, key) in [(20_000, "1"), (20_001, "1"), (30_000, "2"), (40_000, "3")] {
        ask(&mut plan, at_ms, Op::Retry("a".into(), key.into()));
    }
    let seen = plan.play();
    // Flaky code does it the third time.
    let (failed, success) = (RunState::Failed, RunState::Success);
    assert_eq!(seen.states("a"), [failed, failed, success]);
    let by_hand = seen
        .created
        .iter()
        .filter(|w| w.record.kind == RunKind::Retry);
    assert_eq!(by_hand.count(), 2);
    let told = told(&seen, |op| matches!(op, Op::Retry(_, key) if key == "3"));
    assert!(matches!(told[..], [Told::Refused(_)]), "{told:?}");
}

/// What an outage made the policy drop is run afterwards, what has fired is not run again, and the
/// same request twice is one.
#[test]
fn a_backfill_after_an_outage() {
    let mut plan = stage(3, START, 4 * MINUTE);
    let mut spec = every("a", 10);
    spec.misfire = punctual::job::spec::Misfire::Skip;
    spec.catch_up = punctual::duration::Millis::from_secs(5);
    plan.put(3_000, spec);
    plan.all(50_000, |node| Fault::Crash {
        node,
        down_ms: 60_000,
    });
    let op = Op::Backfill("a".into(), [170_000, 60_000], "k".into(), false);
    ask(&mut plan, 200_000, op.clone());
    plan.ops.push((200_000, 2, op));
    let seen = plan.play();
    let of = |kind| {
        let runs = seen.created.iter().filter(move |w| w.record.kind == kind);
        runs.map(|w| (w.record.scheduled_ms - seen.observed.plan.epoch_ms) / 1_000)
            .filter(|at_s| (30..140).contains(at_s))
            .collect::<Vec<_>>()
    };
    let (by_plan, by_hand) = (of(RunKind::Scheduled), of(RunKind::Backfill));
    let mut all = [by_plan.clone(), by_hand.clone()].concat();
    all.sort_unstable();
    let instants: Vec<i64> = (33..140).step_by(10).collect();
    assert_eq!(all, instants, "{by_plan:?} and {by_hand:?}");
    assert!(by_hand.len() >= 6, "{by_hand:?}");
}
