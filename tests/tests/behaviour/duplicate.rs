//! What ran twice elsewhere.

use punctual::job::run::{FailReason, RunState};
use punctual::job::spec::OnLost;
use punctual_tests::sim::faults::{Cut, Trouble};
use punctual_tests::sim::schedule::{Fault, Op};

use crate::stage::{HOUR, MINUTE, Story as _, cron, does, stage};

/// U01: 59 jobs that are due every two minutes around midnight; the leader's clock steps by a second
/// and a half, back and forth, 200 times.
#[test]
fn u01_small_steps_of_the_leaders_clock() {
    let mut plan = stage(3, "2026-03-01T23:59:00Z", 620_000);
    let jobs = (0..59).map(|n| cron(format!("job-{n}"), "*/2 * * * *"));
    plan.put_all(3_000, jobs.collect());
    let mut off = 0;
    for turn in 0..200_u64 {
        off = match off {
            0 if turn * 7 % 5 < 3 => 1_500,
            0 => -1_500,
            _ => 0,
        };
        plan.fault(10_000 + turn * 3_041, Fault::Step { node: 0, ms: off });
    }
    let seen = plan.play();
    assert_eq!(seen.observed.counts["clock step"], 200);
    for n in 0..59 {
        let job = format!("job-{n}");
        assert_eq!(seen.fires_s(&job), [60, 180, 300, 420, 540]);
        assert_eq!(seen.runs(&job).len(), 5);
    }
}

/// U02: one process leads, loses the lead and leads again, five times and more.
#[test]
fn u02_a_leader_that_comes_back_loads_nothing_twice() {
    let mut plan = stage(2, "2026-03-01T00:00:00Z", 100_000);
    plan.put(3_000, cron("often", "* * * * * *"));
    for turn in 0..20 {
        plan.fault(10_000 + turn * 4_130, Fault::RevokeLeader);
    }
    let seen = plan.play();
    for node in 0..2 {
        let turns = seen.leads.windows(2);
        let again = turns.filter(|two| two[0].1 != node && two[1].1 == node);
        let again = again.count();
        assert!(again >= 5, "node {node} led again {again} times");
    }
    assert_eq!(seen.observed.lives.len(), 2, "nobody was restarted");
    let fires = seen.fires_s("often");
    assert!(fires.len() > 95);
    assert!(fires.windows(2).all(|two| two[1] == two[0] + 1));
}

/// U04: B lists what is due and is slow to claim; A claims, runs and finishes in between. B's claim
/// names the record as it was, and fails.
#[test]
fn u04_between_list_and_claim_another_one_is_done() {
    let mut plan = stage(2, "2026-03-01T00:00:00Z", MINUTE);
    let jobs = (0..20).map(|n| cron(format!("job-{n}"), "30 0 0 * * *"));
    plan.put_all(3_000, jobs.collect());
    // Only the claims of second 30 are on their way.
    plan.trouble(1, 29_990, 30_500, Trouble::SlowWrites(3_000));
    let seen = plan.play();
    assert!(seen.observed.claim_conflicts > 0, "B claimed something");
    for n in 0..20 {
        let runs = seen.runs(&format!("job-{n}"));
        assert_eq!(runs.len(), 1);
        assert_eq!(seen.node(runs[0].proc), 0);
    }
}

/// U06, scaled to an hour: clocks that differ by 900 ms either way, and every ten minutes the leader
/// is gone for half a minute, also when the weekly job is due.
#[test]
fn u06_a_weekly_job_under_skew_and_lost_leaders() {
    let mut plan = stage(3, "2026-02-28T23:30:00Z", HOUR);
    plan.nodes[1].offset_ms = 900;
    plan.nodes[2].offset_ms = -900;
    plan.put(3_000, cron("weekly", "0 0 * * SUN"));
    plan.put(3_000, cron("often", "* * * * *"));
    for turn in 0..6 {
        let at = turn * 10 * MINUTE - u64::from(turn > 0) * 700 + 20_000 * u64::from(turn == 0);
        plan.fault(at, Fault::CrashLeader { down_ms: 30_000 });
    }
    let seen = plan.play();
    assert!(seen.leads.len() >= 6, "{:?}", seen.leads);
    assert_eq!(seen.fires_s("weekly"), [1_800]);
    assert_eq!(seen.runs("weekly").len(), 1);
    assert_eq!(seen.fires("often").len(), 60);
}

/// U07: 400 jobs are due at the second at which the third of three nodes believes that it leads, and
/// none of the others has heard of that.
#[test]
fn u07_three_who_believe_that_they_lead() {
    let mut fenced = 0;
    // Who of them is first to hear or to write is a matter of milliseconds.
    for seed in 1..=8 {
        let mut plan = stage(3, "2026-03-01T00:00:00Z", MINUTE);
        plan.seed = seed;
        let jobs = (0..400).map(|n| cron(format!("job-{n}"), "30 0 0 * * *"));
        plan.put_all(3_000, jobs.collect());
        for (at, for_ms) in [(27_000, 3_002), (28_500, 1_502)] {
            plan.fault(at, Fault::PauseLeader { for_ms });
            plan.fault(at + 1, Fault::RevokeLeader);
        }
        let seen = plan.play();
        let before: Vec<usize> = seen.leads.iter().map(|lead| lead.1).collect();
        assert_eq!(before.len(), 3, "{before:?}");
        assert!(before[0] != before[1] && before[1] != before[2] && before[0] != before[2]);
        fenced += seen.observed.fenced_writes;
        let first = |n| seen.fires_s(&format!("job-{n}"));
        assert!((0..400).all(|n| first(n) == [30]));
        assert_eq!(seen.observed.effects.len(), 400);
    }
    assert!(fenced > 0, "the others tried, and lost");
}

/// U11: a job of every second, and a lead that changes every seven.
#[test]
fn u11_every_second_under_alternating_leaders() {
    let mut plan = stage(2, "2026-03-01T00:00:00Z", 140_000);
    plan.put(3_000, cron("often", "* * * * * *"));
    for turn in 1..18 {
        plan.fault(3_000 + turn * 7_000, Fault::RevokeLeader);
    }
    let seen = plan.play();
    assert!(seen.leads.iter().any(|lead| lead.1 == 0));
    assert!(seen.leads.iter().any(|lead| lead.1 == 1));
    let inside = |second: &i64| (5..125).contains(second);
    assert_eq!(
        seen.fires_s("often").into_iter().filter(inside).count(),
        120
    );
    let started = seen.runs("often").into_iter().map(|run| run.scheduled_ms);
    let epoch_ms = seen.observed.plan.epoch_ms;
    let started = started.map(|at| (at - epoch_ms) / 1_000).filter(inside);
    assert_eq!(started.count(), 120);
}

/// U12: the lead moves between the list of what is due and the write that makes it a run, at every
/// millisecond around it.
#[test]
fn u12_the_lead_moves_between_list_and_write() {
    let mut refused = 0;
    for ms in 0..12 {
        let mut plan = stage(3, "2026-03-01T00:00:00Z", 45_000);
        plan.put(3_000, cron("a", "30 * * * * *"));
        plan.fault(29_998 + ms, Fault::PauseLeader { for_ms: 4_000 });
        plan.fault(29_998 + ms, Fault::RevokeLeader);
        let seen = plan.play();
        assert_eq!(seen.fires_s("a"), [30]);
        assert_eq!(seen.runs("a").len(), 1);
        assert_eq!(seen.leads.len(), 2, "{:?}", seen.leads);
        refused += seen.observed.fenced_writes;
    }
    assert!(refused > 0, "the stale term was refused somewhere");
}

/// U19: a job that is made 50 ms before an instant runs once at it, and then a period later.
#[test]
fn u19_a_job_made_just_before_its_time() {
    for before in [50, 45, 40] {
        let mut plan = stage(3, "2026-03-01T00:00:00Z", MINUTE);
        plan.put(20_000 - before, cron("a", "*/10 * * * * *"));
        let seen = plan.play();
        let fires = seen.fires_s("a");
        assert_eq!(fires[..4], [20, 30, 40, 50], "{before} ms before");
        assert_eq!(seen.runs("a").len(), fires.len());
    }
}

/// U22: a store that answers "somebody else was faster" to whoever campaigns; then it stops that.
#[test]
fn u22_nobody_who_was_not_elected_fires() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 90_000);
    for node in 0..3 {
        plan.trouble(node, 0, 60_000, Trouble::NeverElected);
    }
    plan.put(10_000, cron("often", "* * * * * *"));
    let seen = plan.play();
    assert!(seen.observed.counts["campaign refused"] >= 3);
    let early = seen.created.iter().filter(|run| run.at_ms < 60_000);
    assert_eq!(early.count(), 0);
    assert!(seen.leads[0].0 >= 60_000);
    assert_eq!(seen.fires("often").len(), seen.runs("often").len());
}

/// U17: a standby whose campaign fails stays a standby, also when the leader dies, and fires nothing.
#[test]
fn u17_an_error_while_campaigning_is_no_lead() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", MINUTE);
    plan.trouble(1, 0, MINUTE, Trouble::ElectionFails);
    plan.put(3_000, cron("often", "* * * * * *"));
    for at in [20_000, 40_000] {
        plan.fault(at, Fault::CrashLeader { down_ms: 5_000 });
    }
    let seen = plan.play();
    assert!(seen.observed.counts["campaign failed"] > 0);
    assert!(seen.leads.len() >= 3);
    let during = |at: u64| at < MINUTE;
    assert!(seen.leads.iter().all(|lead| !during(lead.0) || lead.1 != 1));
    let fired = seen
        .decided
        .iter()
        .filter(|(at, proc)| during(*at) && seen.node(*proc) == 1);
    assert_eq!(fired.count(), 0);
}

/// U26: a monotonic clock that is 0.3 % fast wakes the leader 180 ms before each minute: nothing runs
/// until the minute, then once.
#[test]
fn u26_an_early_wake_waits_for_the_time() {
    for drift_ppm in [3_000, -3_000] {
        let mut plan = stage(3, "2026-03-01T00:00:00Z", 5 * MINUTE);
        for node in &mut plan.nodes {
            node.drift_ppm = drift_ppm;
        }
        plan.put(3_000, cron("a", "* * * * *"));
        let seen = plan.play();
        assert_eq!(seen.fires_s("a"), [60, 120, 180, 240, 300]);
        assert!(
            seen.late_ms("a")
                .iter()
                .all(|late| (0..1_000).contains(late))
        );
        assert_eq!(seen.runs("a").len(), 5);
    }
}

/// U27: the only node wakes 1.05 s after the instant.
#[test]
fn u27_a_late_wake_runs_the_instant_once() {
    let mut plan = stage(1, "2026-03-01T00:00:00Z", MINUTE);
    plan.put(3_000, cron("a", "*/20 * * * * *"));
    plan.fault(19_500, Fault::PauseLeader { for_ms: 1_550 });
    let seen = plan.play();
    assert_eq!(seen.fires_s("a")[..3], [20, 40, 60]);
    assert!((1_050..1_200).contains(&seen.late_ms("a")[0]));
    assert_eq!(seen.runs("a").len(), seen.fires("a").len());
}

/// U29, scaled (a day is ten minutes): leaders change, the job is saved again, and clocks step, again
/// and again.
#[test]
fn u29_never_before_its_time_and_never_twice() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", HOUR);
    plan.put(3_000, cron("daily", "*/10 * * * *"));
    for turn in 1..38_u64 {
        let at = turn * 93_000;
        let node = usize::try_from(turn % 3).unwrap();
        match turn % 4 {
            0 => plan.fault(at, Fault::CrashLeader { down_ms: 7_000 }),
            1 => plan.put(at, does(cron("daily", "*/10 * * * *"), "ok", turn)),
            2 => plan.fault(at, Fault::Step { node, ms: 1_400 }),
            _ => plan.all(at, |node| Fault::Step { node, ms: 0 }),
        }
    }
    let seen = plan.play();
    assert_eq!(
        seen.fires_s("daily"),
        [600, 1_200, 1_800, 2_400, 3_000, 3_600]
    );
    assert_eq!(seen.runs("daily").len(), 6);
    assert!(
        seen.started_late_ms("daily")
            .iter()
            .all(|late| *late >= -1_400)
    );
    assert!(seen.leads.len() > 5);
}

/// U31: a node whose threads all stand still: for twice its time to live, and for so long that its
/// run is lost. It lives on either way, and works again.
#[test]
fn u31_a_process_that_stands_still_is_lost_at_most_never_ended() {
    for (for_ms, ends) in [(20_000, RunState::Success), (45_000, RunState::Failed)] {
        let mut plan = stage(2, "2026-03-01T00:00:00Z", 150_000);
        plan.put(3_000, does(cron("long", "10 0 0 * * *"), "ok", 30_000));
        plan.put(3_000, cron("often", "*/5 * * * * *"));
        let dry = plan.play();
        let proc = dry.runs("long")[0].proc;
        plan.fault(
            15_000,
            Fault::Pause {
                node: dry.node(proc),
                for_ms,
            },
        );
        let seen = plan.play();
        let run = seen.ends("long").next().unwrap();
        assert_eq!(run.state, ends);
        let lost = (ends == RunState::Failed).then_some(FailReason::WorkerLost);
        assert_eq!(run.failed, lost);
        assert_eq!(seen.observed.lives.len(), 2);
        let lives = seen.observed.lives.values();
        assert!(lives.clone().all(|life| life.gave_up.is_none()));
        let again = seen
            .runs("often")
            .into_iter()
            .filter(|run| run.start_ms > 100_000);
        assert!(again.clone().any(|run| run.proc == proc), "it works again");
        assert_eq!(again.clone().count(), 18);
    }
}

/// U32, U36: nodes that all bring the same job with them: three, and two hosts with four processes.
#[test]
fn u32_u36_each_process_brings_the_same_job() {
    for nodes in [3, 8] {
        let mut plan = stage(nodes, "2026-03-01T00:00:00Z", MINUTE);
        for node in 0..usize::try_from(nodes).unwrap() {
            let same = cron("same", "*/2 * * * * *");
            plan.ops.push((5_000, node, Op::Put(Box::new(same))));
        }
        let seen = plan.play();
        let fires = seen.fires_s("same");
        assert!(fires.windows(2).all(|two| two[1] == two[0] + 2));
        assert!(fires.len() > 25);
        assert_eq!(seen.runs("same").len(), fires.len());
    }
}

/// U37: a worker whose heartbeat is late is not replaced; one that is gone is, once its session is, and
/// the next attempt has a larger token.
#[test]
fn u37_a_late_heartbeat_is_no_death() {
    let lost = |cut_ms: u64| {
        let mut plan = stage(2, "2026-03-01T00:00:00Z", 120_000);
        let mut long = does(cron("long", "23 0 0 * * *"), "ok", 15_000);
        long.on_lost = OnLost::Retry;
        long.idempotent = true;
        plan.put(3_000, long);
        let dry = plan.play();
        let node = dry.node(dry.runs("long")[0].proc);
        let from = dry.runs("long")[0].start_ms + 500;
        plan.trouble(node, from, from + cut_ms, Trouble::Cut(Cut::Both));
        plan.play()
    };
    // A heartbeat comes every third of 10 s: late by half an interval.
    let late = lost(5_000);
    assert_eq!(late.runs("long").len(), 1);
    assert_eq!(late.states("long"), [RunState::Success]);
    let dead = lost(60_000);
    let runs = dead.runs("long");
    assert_eq!(runs.len(), 2);
    assert_eq!(runs[1].attempt, 2);
    assert!(runs[1].token > runs[0].token);
    let ttl_ms = dead.observed.plan.times.session_ttl_ms;
    // The last heartbeat may be a third of that old.
    assert!(runs[1].start_ms >= runs[0].start_ms + 500 + ttl_ms * 2 / 3);
}
