//! Workers and stores that go away.

use punctual::duration::Millis;
use punctual::job::run::{FailReason, RunState};
use punctual::job::spec::OnLost;
use punctual_tests::sim::faults::{Cut, Trouble};
use punctual_tests::sim::schedule::Fault;

use crate::stage::{MINUTE, Story as _, cron, does, every, stage};

/// R09, scaled: five of six workers with a hundred runs are killed. When their sessions have been
/// gone for as long as is allowed, no record is RUNNING under their names.
#[test]
fn r09_no_run_is_left_with_the_dead() {
    let mut plan = stage(6, "2026-03-01T00:00:00Z", 100_000);
    let jobs = (0..120).map(|n| does(cron(format!("job-{n}"), "20 0 0 * * *"), "ok", 15_000));
    plan.put_all(3_000, jobs.collect());
    for node in 1..6 {
        plan.fault(
            25_000,
            Fault::Crash {
                node,
                down_ms: 70_000,
            },
        );
    }
    let seen = plan.play();
    let killed = seen
        .observed
        .effects
        .iter()
        .filter(|run| !run.completed)
        .count();
    assert!((60..=115).contains(&killed), "{killed}");
    let lost = seen
        .ended
        .iter()
        .filter(|end| end.record.failed == Some(FailReason::WorkerLost));
    let times: Vec<u64> = lost.map(|end| end.at_ms).collect();
    assert_eq!(times.len(), killed);
    let times_of = &seen.observed.plan.times;
    let limit = 25_000 + times_of.session_ttl_ms + times_of.lost_grace_ms;
    assert!(times.iter().all(|at| *at < limit + 1_000), "{times:?}");
    assert_eq!(seen.ended.len(), 120);
}

/// R11: a worker is back after two seconds as another incarnation; the host has a session all the
/// time, and the run of its former life is lost nevertheless.
#[test]
fn r11_a_quick_restart_hides_nothing() {
    let mut plan = stage(2, "2026-03-01T00:00:00Z", 90_000);
    plan.nodes[0].has_handler = false;
    plan.put(3_000, does(cron("a", "20 0 0 * * *"), "ok", 60_000));
    plan.put(3_000, cron("often", "*/5 * * * * *"));
    plan.fault(
        25_000,
        Fault::Crash {
            node: 1,
            down_ms: 2_000,
        },
    );
    let seen = plan.play();
    let end = seen.ended.iter().find(|end| end.record.job == "a").unwrap();
    assert_eq!(end.record.failed, Some(FailReason::WorkerLost));
    assert!((40_000..52_000).contains(&end.at_ms), "{}", end.at_ms);
    assert_eq!(seen.runs("a").len(), 1);
    let fresh = seen
        .runs("often")
        .into_iter()
        .filter(|run| run.start_ms > 28_000);
    assert!(fresh.clone().all(|run| seen.node(run.proc) == 1));
    let before_the_end = fresh.filter(|run| run.start_ms < end.at_ms);
    assert!(before_the_end.count() >= 3, "the host works meanwhile");
}

/// R12: the store is away for a minute while a run ends.
#[test]
fn r12_a_result_waits_for_the_store() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 2 * MINUTE);
    plan.put(3_000, does(cron("a", "20 0 0 * * *"), "ok", 20_000));
    for node in 0..3 {
        plan.trouble(node, 25_000, 85_000, Trouble::Cut(Cut::Both));
    }
    let seen = plan.play();
    let [run] = seen.runs("a")[..] else {
        panic!("{:?}", seen.runs("a"));
    };
    assert!(run.completed && (40_000..41_000).contains(&run.end_ms.unwrap()));
    assert_eq!(seen.states("a"), [RunState::Success]);
    assert!((85_000..100_000).contains(&seen.ended[0].at_ms));
}

/// R14: twenty intervals, and every worker is restarted five times, in turn.
#[test]
fn r14_no_interval_falls_silent_in_a_rolling_restart() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 3 * MINUTE);
    let jobs = (0..20).map(|n| does(every(format!("job-{n}"), 10), "ok", 500));
    plan.put_all(3_000, jobs.collect());
    for turn in 0..15 {
        let node = usize::try_from(turn % 3).unwrap();
        let down_ms = 4_000;
        let fault = if turn % 2 == 0 {
            Fault::Leave { node, down_ms }
        } else {
            Fault::Crash { node, down_ms }
        };
        plan.fault(15_000 + turn * 9_000, fault);
    }
    let seen = plan.play();
    assert_eq!(seen.observed.lives.len(), 18);
    for n in 0..20 {
        let job = format!("job-{n}");
        let fires = seen.fires_s(&job);
        assert!(fires.windows(2).all(|two| two[1] == two[0] + 10));
        let runs = seen.runs(&job);
        let silent = runs.windows(2).map(|two| two[1].start_ms - two[0].start_ms);
        assert!(silent.max().unwrap() <= 20_000, "{job}");
        assert!(runs.len() >= 18, "{job} ran {} times", runs.len());
    }
}

/// A worker that stands still past the time limit of its run still has its session, so its code may be
/// going on and nobody may take the run: the leader's own limit lies behind the grace of the session,
/// however long sessions last. (Once it was half a minute behind the time limit.)
#[test]
fn who_stands_still_under_a_long_session_keeps_its_run() {
    let mut plan = stage(2, "2026-03-01T00:00:00Z", 2 * MINUTE);
    plan.times.session_ttl_ms = 60_000;
    plan.times.kill_grace_ms = 2_000;
    plan.times.lost_grace_ms = 62_000;
    plan.nodes[0].has_handler = false;
    let mut job = does(cron("a", "20 0 0 * * *"), "ok", 8_000);
    job.timeout = Millis::from_secs(10);
    job.on_lost = OnLost::Retry;
    job.idempotent = true;
    plan.put(3_000, job);
    // Awake again at 58 s, before its session ends; 20 + 10 s and twice its grace and 20 s are 54 s.
    let for_ms = 37_000;
    plan.fault(21_000, Fault::Pause { node: 1, for_ms });
    let seen = plan.play();
    assert_eq!(seen.states("a"), [RunState::Success]);
    assert_eq!(seen.runs("a").len(), 1);
    assert!((58_000..60_000).contains(&seen.ended[0].at_ms));
}

/// A worker does not hear for half a minute that its attempt is RUNNING, while its session lives on. The
/// leader counts the time limit from the request: code that started now would still have time of its own
/// when the leader ends it as one that cannot be stopped, and would run beside the next attempt where
/// `on_lost` is `retry`. So it is not started, and another attempt follows.
#[test]
fn code_whose_start_was_answered_late_is_not_started() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 3 * MINUTE);
    let mut job = does(cron("a", "20 0 0 * * *"), "hang", 0);
    job.timeout = Millis::from_secs(20);
    job.retry.attempts = Some(2);
    job.retry.backoff = Millis::from_ms(0);
    plan.put(3_000, job);
    let dry = plan.play();
    let (node, running_ms) = (dry.node(dry.runs("a")[0].proc), dry.running_ms("a", 1));
    let mut unstarted = 0;
    for from_ms in running_ms - 3..running_ms + 3 {
        for length_ms in [4_000, 8_000, 29_000] {
            let mut plan = plan.clone();
            let until_ms = from_ms + length_ms;
            plan.trouble(node, from_ms, until_ms, Trouble::Cut(Cut::Replies));
            // Every invariant holds: two executions of one run never overlap.
            let seen = plan.play();
            let reasons: Vec<_> = seen.ends("a").map(|end| end.failed).collect();
            let is_unstarted = reasons[0] == Some(FailReason::NotStarted);
            assert!(
                !is_unstarted || length_ms > 5_000,
                "{length_ms}: {reasons:?}"
            );
            unstarted += u32::from(is_unstarted);
            // Nothing was used up by that.
            assert_eq!(seen.runs("a").len(), 2, "{reasons:?}");
        }
    }
    assert!(unstarted > 0, "its answer was heard in time");
}
