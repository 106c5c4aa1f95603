//! Jobs that run after others (`after`), and after themselves (`after_finish`).

use std::collections::BTreeSet;

use punctual::control::RunKind;
use punctual::duration::Millis;
use punctual::job::run::{RunState, SkipReason};
use punctual::job::spec::{JobSpec, Overlap};
use punctual::schedule::ScheduleSpec;
use punctual_tests::sim::operator::Told;
use punctual_tests::sim::schedule::{Fault, Op};

use crate::stage::{MINUTE, Seen, Story as _, cron, does, job, stage};

fn after(mut spec: JobSpec, jobs: &[&str]) -> JobSpec {
    spec.after = jobs.iter().map(|job| (*job).to_owned()).collect();
    spec
}

/// The runs that each success of `first` brought to `second`.
fn causes(seen: &Seen, second: &str) -> Vec<String> {
    seen.created
        .iter()
        .filter(|written| written.record.job == second && written.record.attempt == 1)
        .map(|written| {
            assert_eq!(written.record.kind, RunKind::Chained);
            written.record.cause.clone().unwrap().run
        })
        .collect()
}

fn successes(seen: &Seen, job: &str) -> BTreeSet<String> {
    seen.ends(job)
        .filter(|end| end.state == RunState::Success)
        .map(|end| end.run.clone())
        .collect()
}

/// Each success has one follower of each job, over leaders that come and go; a failure has none.
#[test]
fn each_success_is_followed_once() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 3 * MINUTE);
    plan.put_all(
        3_000,
        vec![
            does(cron("a", "*/5 * * * * *"), "ok", 300),
            does(cron("broken", "*/5 * * * * *"), "fail", 0),
            after(job("b"), &["a", "broken"]),
            after(does(job("c"), "ok", 2_000), &["b", "a"]),
        ],
    );
    for turn in 0..20 {
        plan.fault(10_000 + turn * 7_300, Fault::RevokeLeader);
    }
    let seen = plan.play();
    assert!(seen.leads.len() > 15, "{}", seen.leads.len());
    let firsts = successes(&seen, "a");
    assert!(firsts.len() > 30);
    let seconds = causes(&seen, "b");
    assert_eq!(seconds.len(), firsts.len());
    assert_eq!(seconds.iter().cloned().collect::<BTreeSet<_>>(), firsts);
    let thirds = causes(&seen, "c");
    let both: BTreeSet<String> = firsts.union(&successes(&seen, "b")).cloned().collect();
    assert_eq!(thirds.len(), both.len());
    assert_eq!(thirds.into_iter().collect::<BTreeSet<_>>(), both);
}

/// A follower that is paused, or busy with `overlap: skip`, leaves a record that says so.
#[test]
fn a_follower_that_does_not_run_says_why() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 2 * MINUTE);
    let mut slow = after(does(job("slow"), "ok", 15_000), &["a"]);
    slow.overlap = Overlap::Skip;
    plan.put_all(
        3_000,
        vec![
            cron("a", "*/10 * * * * *"),
            slow,
            after(job("held"), &["a"]),
        ],
    );
    plan.ops.push((45_000, 0, Op::Pause("held".into())));
    plan.ops.push((85_000, 0, Op::Resume("held".into())));
    let seen = plan.play();
    let count = |job: &str, reason| {
        let skips = seen.ends(job).filter(|end| end.skipped == Some(reason));
        skips.count()
    };
    let fires = seen.fires("a").len();
    assert_eq!(count("held", SkipReason::Paused), 4);
    assert_eq!(causes(&seen, "held").len(), fires - 4);
    let skipped = count("slow", SkipReason::Overlap);
    assert!(skipped.abs_diff(fires / 2) <= 1, "{skipped} of {fires}");
    assert_eq!(causes(&seen, "slow").len() + skipped, fires);
}

/// A circle, a job that is not there, and the end of a job that others follow are refused.
#[test]
fn what_makes_no_sense_is_refused() {
    let mut plan = stage(1, "2026-03-01T00:00:00Z", MINUTE);
    plan.put(3_000, after(job("b"), &["a"]));
    plan.put(4_000, job("a"));
    plan.put(5_000, after(job("b"), &["a"]));
    plan.put(6_000, after(job("a"), &["b"]));
    plan.ops.push((7_000, 0, Op::Delete("a".into())));
    plan.put(8_000, job("b"));
    plan.ops.push((9_000, 0, Op::Delete("a".into())));
    let seen = plan.play();
    let told: Vec<String> = seen
        .observed
        .asked
        .iter()
        .map(|asked| match &asked.answer.as_ref().unwrap().2 {
            Told::Done(_) => "done".to_owned(),
            Told::Refused(why) | Told::Perhaps(why) => why.clone(),
        })
        .collect();
    assert_eq!(
        told,
        [
            "b: after[0]: there is no job `a`",
            "done",
            "done",
            "a: after[0]: a circle: a -> b -> a",
            "job `a` is named under `after` of b: change or delete these first",
            "done",
            "done"
        ]
    );
}

fn after_finish(spec: JobSpec, seconds: u64) -> JobSpec {
    JobSpec {
        schedule: ScheduleSpec {
            after_finish: Some(Millis::from_secs(seconds)),
            ..ScheduleSpec::default()
        },
        ..spec
    }
}

/// The first run comes at once; each further one so long after the end of the last, however that
/// ended, over leaders and workers that come and go. (That the waits are kept is an invariant.)
#[test]
fn each_run_waits_for_the_end_of_the_last() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 5 * MINUTE);
    let slow = after_finish(does(job("slow"), "ok", 7_000), 10);
    let mut broken = after_finish(does(job("broken"), "fail", 0), 5);
    broken.retry.attempts = Some(2);
    broken.retry.backoff = Millis::from_secs(3);
    plan.put_all(3_000, vec![slow, broken]);
    // Its node dies under the third run.
    let dry = plan.play();
    let third = &dry.runs("slow")[2];
    let (node, down_ms) = (dry.node(third.proc), 4_000);
    plan.fault(third.start_ms + 3_000, Fault::Crash { node, down_ms });
    for turn in 0..8 {
        plan.fault(60_000 + turn * 31_000, Fault::RevokeLeader);
        let node = usize::try_from(turn % 3).unwrap();
        let down_ms = 4_000;
        plan.fault(73_000 + turn * 31_000, Fault::Crash { node, down_ms });
    }
    let seen = plan.play();
    let first = seen.runs("slow")[0].start_ms;
    assert!(first < 6_000, "{first}");
    // 17 s a turn; a crash costs some.
    let slow = seen.fires("slow").len();
    assert!((12..=20).contains(&slow), "{slow}");
    let broken = seen.fires("broken").len();
    assert!((20..=43).contains(&broken), "{broken}");
    assert!(seen.ends("slow").any(|end| end.state == RunState::Failed));
}

/// Held, edited, and made to run otherwise: the chain does as it is told, and at once.
#[test]
fn a_chain_heeds_its_job() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 5 * MINUTE);
    plan.put(3_000, after_finish(job("a"), 10));
    plan.ops.push((50_000, 0, Op::Pause("a".into())));
    plan.ops.push((100_000, 0, Op::Resume("a".into())));
    plan.put(151_000, after_finish(job("a"), 3_600));
    plan.put(200_000, after_finish(job("a"), 10));
    plan.put(251_000, cron("a", "0 0 1 1 *"));
    let seen = plan.play();
    let fires = seen.fires_s("a");
    let between = |from: i64, until: i64| {
        let inside = fires.iter().filter(|at| (from..until).contains(*at));
        inside.count()
    };
    assert!(between(0, 51) >= 5, "{fires:?}");
    assert_eq!(between(51, 99), 0, "{fires:?}");
    assert!(between(99, 152) >= 5, "{fires:?}");
    assert_eq!(between(152, 199), 0, "{fires:?}");
    assert!(between(199, 252) >= 5, "{fires:?}");
    assert_eq!(between(252, 400), 0, "{fires:?}");
}
