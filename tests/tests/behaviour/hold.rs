//! Holds: a pause that ends by itself, a longer one on top of it, all jobs at once.

use punctual::job::run::SkipReason;
use punctual_tests::sim::schedule::{Fault, Op, Plan};

use super::stage::{MINUTE, Story, every, stage};

const START: &str = "2026-03-01T00:00:00Z";

fn ask(plan: &mut Plan, at_ms: u64, op: Op) {
    plan.ops.push((at_ms, 1, op));
}

fn until(plan: &Plan, job: &str, at_s: i64) -> Op {
    Op::PauseUntil(job.into(), plan.epoch_ms + at_s * 1_000)
}

fn paused(seen: &super::stage::Seen, job: &str) -> u64 {
    let skips = seen.skips(job).into_iter();
    skips
        .inspect(|(reason, _)| assert_eq!(*reason, SkipReason::Paused))
        .map(|(_, count)| count)
        .sum()
}

/// The end is the instant that was named: the one before is held, that one fires, to the second, and
/// nobody has to look for it to happen.
#[test]
fn a_pause_ends_by_itself_at_the_very_instant() {
    let mut plan = stage(3, START, 2 * MINUTE);
    plan.put(3_000, every("a", 10));
    let op = until(&plan, "a", 63);
    ask(&mut plan, 30_000, op);
    let seen = plan.play();
    assert_eq!(
        seen.fires_s("a")[..6],
        [13, 23, 63, 73, 83, 93],
        "33, 43 and 53 are held"
    );
    assert_eq!(paused(&seen, "a"), 3);
    let late = seen.late_ms("a")[2];
    assert!((0..1_000).contains(&late), "{late} ms late");
}

/// Also when nobody leads at the end: the instants before it stay held, those after it fire.
#[test]
fn the_end_of_a_pause_during_an_outage() {
    let mut plan = stage(3, START, 3 * MINUTE);
    plan.put(3_000, every("a", 10));
    let op = until(&plan, "a", 60);
    ask(&mut plan, 30_000, op);
    plan.all(50_000, |node| Fault::Crash {
        node,
        down_ms: 40_000,
    });
    let seen = plan.play();
    assert_eq!(seen.fires_s("a")[..6], [13, 23, 63, 73, 83, 93]);
    assert_eq!(paused(&seen, "a"), 3);
}

/// An edit of a held job neither ends the hold nor waits for its end.
#[test]
fn an_edit_during_a_pause_with_an_end() {
    let mut plan = stage(3, START, 2 * MINUTE);
    plan.put(3_000, every("a", 10));
    let op = until(&plan, "a", 63);
    ask(&mut plan, 30_000, op);
    plan.put(40_000, every("a", 5));
    let seen = plan.play();
    assert_eq!(seen.fires_s("a")[..4], [13, 23, 63, 68]);
    // 33 of the old definition; 43, 48, 53, 58 of the new one.
    assert_eq!(paused(&seen, "a"), 5);
}

/// Whoever pauses without an end means it: an earlier pause that would end does not undo that. And a
/// shorter pause on top of a longer one ends nothing.
#[test]
fn of_two_pauses_the_longer_one_counts() {
    let mut plan = stage(3, START, 3 * MINUTE);
    for job in ["a", "b", "c"] {
        plan.put(3_000, every(job, 10));
        let op = until(&plan, job, 60);
        ask(&mut plan, 20_000, op);
    }
    ask(&mut plan, 30_000, Op::Pause("a".into()));
    let (shorter, longer) = (until(&plan, "b", 40), until(&plan, "c", 80));
    ask(&mut plan, 30_000, shorter);
    ask(&mut plan, 30_000, longer);
    let seen = plan.play();
    assert_eq!(seen.fires_s("a"), [13]);
    assert_eq!(seen.fires_s("b")[..3], [13, 63, 73]);
    assert_eq!(seen.fires_s("c")[..3], [13, 83, 93]);
}

/// Resumed, deleted, and paused again, before the end and after it.
#[test]
fn a_pause_with_an_end_that_something_else_ends() {
    let mut plan = stage(3, START, 3 * MINUTE);
    for job in ["early", "late", "gone", "again"] {
        plan.put(3_000, every(job, 10));
        let op = until(&plan, job, 60);
        ask(&mut plan, 20_000, op);
    }
    ask(&mut plan, 40_000, Op::Resume("early".into()));
    ask(&mut plan, 70_000, Op::Resume("late".into()));
    ask(&mut plan, 40_000, Op::Delete("gone".into()));
    ask(&mut plan, 70_000, Op::Pause("again".into()));
    ask(&mut plan, 100_000, Op::Resume("again".into()));
    let seen = plan.play();
    assert_eq!(seen.fires_s("early")[..3], [13, 43, 53]);
    assert_eq!(seen.fires_s("late")[..3], [13, 63, 73]);
    assert_eq!(seen.fires_s("gone"), [13]);
    assert_eq!(seen.fires_s("again")[..4], [13, 63, 103, 113]);
}

/// The hold on all jobs and the one on a job end apart: what a person had paused stays so, also when
/// its own end comes while all are held.
#[test]
fn all_jobs_at_once_and_what_was_paused_before() {
    let mut plan = stage(3, START, 4 * MINUTE);
    for job in ["free", "held", "ends", "back"] {
        plan.put(3_000, every(job, 10));
    }
    ask(&mut plan, 20_000, Op::Pause("held".into()));
    let op = until(&plan, "ends", 60);
    ask(&mut plan, 20_000, op);
    ask(&mut plan, 30_000, Op::PauseAll(None));
    // Twice is once.
    ask(&mut plan, 40_000, Op::PauseAll(None));
    // Whoever names one job means that one.
    ask(&mut plan, 50_000, Op::Resume("back".into()));
    plan.put(50_000, every("new", 10));
    ask(&mut plan, 100_000, Op::ResumeAll);
    ask(&mut plan, 110_000, Op::ResumeAll);
    let seen = plan.play();
    assert_eq!(seen.fires_s("free")[..4], [13, 23, 103, 113]);
    assert_eq!(seen.fires_s("held"), [13]);
    assert_eq!(seen.fires_s("ends")[..3], [13, 103, 113]);
    assert_eq!(seen.fires_s("back")[..5], [13, 23, 53, 63, 73]);
    assert_eq!(seen.fires_s("new")[..3], [60, 70, 80]);
}
