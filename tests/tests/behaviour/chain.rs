//! Jobs that run after others (`after`).

use std::collections::BTreeSet;

use punctual::control::RunKind;
use punctual::job::run::{RunState, SkipReason};
use punctual::job::spec::{JobSpec, Overlap};
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
