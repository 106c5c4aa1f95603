//! What was missed elsewhere, or caught up wrongly.

use punctual::control::RunKind;
use punctual::duration::Millis;
use punctual::job::run::SkipReason;
use punctual::job::spec::{JobSpec, Misfire, Overlap};
use punctual_tests::sim::schedule::{Fault, Op};

use crate::stage::{DAY, HOUR, MINUTE, Story as _, cron, does, every, stage, unix_ms};

fn with(mut spec: JobSpec, misfire: Misfire, deadline: Option<u64>) -> JobSpec {
    spec.misfire = misfire;
    spec.start_deadline = deadline.map(Millis::from_secs);
    spec
}

/// M01: a job of every minute, and all nodes are down for twelve hours.
#[test]
fn m01_twelve_hours_without_a_node() {
    let mut plan = stage(3, "2026-03-01T00:00:30Z", 12 * HOUR + 4 * MINUTE);
    let jobs = [
        ("latest", Misfire::Latest, None),
        ("skip", Misfire::Skip, None),
        ("all", Misfire::All, None),
        ("last-ten", Misfire::All, Some(595)),
    ];
    let jobs = jobs.map(|(id, misfire, deadline)| with(cron(id, "* * * * *"), misfire, deadline));
    plan.put_all(3_000, jobs.into());
    let down_ms = 12 * HOUR;
    plan.all(MINUTE, |node| Fault::Crash { node, down_ms });
    let seen = plan.play();
    let back = (12 * HOUR + MINUTE) / 1_000;
    let back = i64::try_from(back).unwrap();
    let caught_up = |job: &str| {
        let fires = seen.fires_s(job).into_iter();
        fires.filter(|at| (60..back).contains(at)).count()
    };
    // From second 90 on, one a minute.
    assert_eq!(caught_up("latest"), 1);
    assert_eq!(caught_up("skip"), 0);
    assert_eq!(caught_up("all"), 720);
    assert_eq!(caught_up("last-ten"), 10);
    assert_eq!(seen.skips("latest"), [(SkipReason::Misfire, 719)]);
    assert_eq!(seen.skips("skip"), [(SkipReason::Misfire, 720)]);
    assert_eq!(seen.skips("last-ten"), [(SkipReason::Deadline, 710)]);
    assert_eq!(seen.skips("all"), []);
    let stands_for = seen.scheduled("latest").map(|run| run.record.stands_for);
    assert_eq!(stands_for.max(), Some(720));
    for job in ["latest", "skip", "all", "last-ten"] {
        let after = seen.fires_s(job).into_iter().filter(|at| *at > back);
        assert_eq!(
            after.collect::<Vec<_>>(),
            [1, 2, 3, 4].map(|n| 30 + 60 * (720 + n))
        );
    }
}

/// M02: fifty jobs, none of which is due; ten leaders die in a minute.
#[test]
fn m02_a_new_leader_runs_nothing_that_is_not_due() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 100_000);
    let jobs = (0..50).map(|n| cron(format!("job-{n}"), &format!("{n} 12 * * *")));
    plan.put_all(3_000, jobs.collect());
    for turn in 0..10 {
        plan.fault(20_000 + turn * 6_000, Fault::CrashLeader { down_ms: 3_000 });
    }
    let seen = plan.play();
    assert_eq!(seen.observed.counts["leader crash"], 10);
    assert_eq!(seen.created.len() + seen.ended.len(), 0);
    assert_eq!(seen.observed.effects.len(), 0);
}

/// M04: the leader dies a second before an instant, the next one comes eight seconds after it.
#[test]
fn m04_an_instant_during_an_election() {
    let mut plan = stage(1, "2026-03-01T00:00:00Z", 5 * MINUTE);
    plan.put(3_000, cron("a", "*/2 * * * *"));
    plan.fault(119_000, Fault::CrashLeader { down_ms: 8_000 });
    let seen = plan.play();
    assert_eq!(seen.fires_s("a"), [120, 240]);
    assert_eq!(seen.runs("a").len(), 2);
    assert!(
        (7_000..10_000).contains(&seen.late_ms("a")[0]),
        "{:?}",
        seen.late_ms("a")
    );
}

/// M06: a run by hand between two instants of an interval does not move them.
#[test]
fn m06_a_run_by_hand_moves_no_phase() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 4 * MINUTE);
    plan.put(10_000, every("a", 60));
    plan.ops
        .push((40_000, 1, Op::Trigger("a".into(), "by-hand".into())));
    let seen = plan.play();
    assert_eq!(seen.fires_s("a"), [70, 130, 190, 250]);
    let by_hand = seen
        .created
        .iter()
        .filter(|run| run.record.kind == RunKind::Manual);
    assert_eq!(by_hand.count(), 1);
    assert_eq!(seen.runs("a").len(), 5);
}

/// M07: an interval on one node, from its creation on.
#[test]
fn m07_an_interval_goes_on() {
    let mut plan = stage(1, "2026-03-01T00:00:00Z", 70_000);
    plan.put(5_000, every("a", 10));
    let seen = plan.play();
    let minute = seen
        .runs("a")
        .into_iter()
        .filter(|run| run.start_ms < 65_500);
    assert_eq!(minute.count(), 6);
    assert_eq!(seen.fires_s("a")[..6], [15, 25, 35, 45, 55, 65]);
}

/// M09: a yearly job whose time passes while all nodes are shut down in good order.
#[test]
fn m09_a_yearly_job_during_a_shutdown() {
    let mut plan = stage(3, "2025-12-31T23:50:00Z", 45 * MINUTE);
    plan.put(3_000, cron("yearly", "10 0 1 1 *"));
    let down_ms = 35 * MINUTE;
    plan.all(5 * MINUTE, |node| Fault::Leave { node, down_ms });
    let seen = plan.play();
    assert_eq!(seen.observed.counts["graceful leave"], 3);
    assert_eq!(seen.fires("yearly"), [unix_ms("2026-01-01T00:10:00Z")]);
    let [run] = seen.runs("yearly")[..] else {
        panic!("one run");
    };
    assert!(run.start_ms >= 40 * MINUTE && run.completed);
    assert!(run.start_ms < 40 * MINUTE + 20_000, "{}", run.start_ms);
}

/// M11: the leader stands still from a second before an hourly job to twenty after. One of the others
/// does not wait for it; alone, it runs the job when it wakes (a node that lost the lead waits a second
/// before it stands again).
#[test]
fn m11_a_missed_run_starts_at_once_not_at_the_next_instant() {
    for (nodes, from, until) in [(3, 1_000, 3_500), (1, 20_000, 21_200)] {
        let mut plan = stage(nodes, "2026-03-01T00:58:00Z", 4 * MINUTE);
        plan.put(3_000, cron("hourly", "0 * * * *"));
        plan.fault(119_000, Fault::PauseLeader { for_ms: 21_000 });
        let seen = plan.play();
        assert_eq!(seen.fires_s("hourly"), [120]);
        let late = seen.started_late_ms("hourly");
        assert!((from..until).contains(&late[0]), "{nodes}: {late:?}");
        assert_eq!(late.len(), 1);
    }
}

/// M12: the leader leaves 2.6 s before an instant, the next node comes 0.7 s after it.
#[test]
fn m12_nobody_leads_at_the_instant() {
    let mut plan = stage(2, "2026-03-01T09:59:00Z", 3 * MINUTE);
    plan.nodes[1].start_ms = 60_700;
    plan.put(3_000, cron("ten", "0 10 * * *"));
    plan.fault(
        57_400,
        Fault::Leave {
            node: 0,
            down_ms: 30_000,
        },
    );
    let seen = plan.play();
    assert_eq!(seen.fires_s("ten"), [60]);
    assert_eq!(seen.runs("ten").len(), 1);
    assert!(seen.late_ms("ten")[0] < 10_000, "{:?}", seen.late_ms("ten"));
    assert!((60_700..70_000).contains(&seen.leads[1].0));
}

/// M14: an interval of a week on nodes that are started every day, and are up for five minutes.
#[test]
fn m14_a_weekly_interval_that_outlives_each_process() {
    let mut plan = stage(2, "2026-03-01T12:00:00Z", 30 * DAY);
    plan.put(30_000, every("weekly", 7 * 86_400));
    for day in 0..29 {
        let at = day * DAY + 5 * MINUTE;
        let down_ms = DAY - 7 * MINUTE;
        plan.all(at, |node| Fault::Crash { node, down_ms });
    }
    plan.heal_ms = 29 * DAY + 10 * MINUTE;
    plan.end_ms = plan.heal_ms + MINUTE;
    let seen = plan.play();
    assert_eq!(seen.observed.lives.len(), 60);
    let anchor = unix_ms("2026-03-01T12:00:30Z");
    let week = 7 * 86_400_000;
    assert_eq!(
        seen.fires("weekly"),
        [1, 2, 3, 4].map(|n| anchor + n * week)
    );
    assert_eq!(seen.runs("weekly").len(), 4);
    assert!(
        seen.started_late_ms("weekly")
            .iter()
            .all(|late| *late < 1_000)
    );
}

/// M16: a machine without power for an hour starts with the clock it had, and time comes half a minute
/// later.
#[test]
fn m16_power_comes_back_before_the_time_does() {
    let mut plan = stage(1, "2026-03-01T00:01:00Z", 80 * MINUTE);
    plan.put(
        3_000,
        with(cron("latest", "*/5 * * * *"), Misfire::Latest, None),
    );
    plan.put(3_000, with(cron("all", "*/5 * * * *"), Misfire::All, None));
    let fault = Fault::BootWrong {
        node: 0,
        down_ms: HOUR,
        ms: -3_600_000,
        right_after_ms: 30_000,
    };
    plan.fault(MINUTE, fault);
    let seen = plan.play();
    let five = |from: i64, until: i64| (from..=until).map(|n| n * 300 - 60).collect::<Vec<_>>();
    // The time is believed a minute after it came: 01:03:30.
    assert_eq!(seen.fires_s("latest"), five(12, 16));
    assert_eq!(seen.fires_s("all"), five(1, 16));
    assert_eq!(seen.skips("latest"), [(SkipReason::Misfire, 11)]);
    assert_eq!(seen.runs("all").len(), 16);
    assert_eq!(seen.runs("latest").len(), 5);
}

/// M17: the leader dies half a second before 200 jobs are due.
#[test]
fn m17_a_dead_leader_delays_two_hundred_runs_by_a_failover() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 70_000);
    let jobs = (0..200).map(|n| cron(format!("job-{n}"), "30 0 0 * * *"));
    plan.put_all(3_000, jobs.collect());
    plan.fault(29_500, Fault::CrashLeader { down_ms: 30_000 });
    let seen = plan.play();
    for n in 0..200 {
        let job = format!("job-{n}");
        assert_eq!(seen.fires_s(&job), [30]);
        assert!(seen.late_ms(&job)[0] <= 15_000);
        assert!(seen.started_late_ms(&job)[0] <= 15_000);
    }
}

/// M19: 150 jobs are due at once, and there are four slots.
#[test]
fn m19_nothing_is_dropped_under_load() {
    let mut plan = stage(2, "2026-03-01T00:00:00Z", 70_000);
    for node in &mut plan.nodes {
        node.slots = 2;
    }
    let jobs = (0..150).map(|n| does(cron(format!("job-{n}"), "10 0 0 * * *"), "ok", 200));
    plan.put_all(3_000, jobs.collect());
    let seen = plan.play();
    let done = seen.observed.effects.iter().filter(|run| run.completed);
    assert_eq!(done.count(), 150);
    assert!((0..150).all(|n| seen.runs(&format!("job-{n}")).len() == 1));
}

/// M22: a job that takes three times its interval for ten instants, then no time: what it owed is
/// recorded, not run, and it is on time from then on.
#[test]
fn m22_a_slow_job_owes_nothing_when_it_is_quick_again() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 3 * MINUTE);
    let slow = |ms| {
        let mut job = does(cron("a", "*/10 * * * * *"), "ok", ms);
        job.overlap = Overlap::Skip;
        job
    };
    plan.put(3_000, slow(30_000));
    plan.put(105_000, slow(0));
    let seen = plan.play();
    let slow_runs = seen
        .runs("a")
        .iter()
        .filter(|run| run.start_ms < 105_000)
        .count();
    assert_eq!(slow_runs, 3, "at 10, 50 and 90");
    let after: Vec<i64> = seen
        .fires_s("a")
        .into_iter()
        .filter(|at| *at > 135)
        .collect();
    let on_time: Vec<i64> = (14..).map(|n| n * 10).take(after.len()).collect();
    assert_eq!(after, on_time);
    assert!(after.len() >= 6);
    let late = seen.started_late_ms("a");
    assert!(late.iter().all(|late| *late < 1_000), "{late:?}");
    let all = seen.fires("a").len() + seen.skips("a").len();
    assert!(all >= 18);
}

/// M24, with an hour scaled to a minute: an interval of six, and the leader is started again after
/// 1, 7 and 13.
#[test]
fn m24_an_interval_does_not_drift() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 25 * MINUTE);
    plan.put(30_000, every("a", 360));
    for minute in [1, 7, 13] {
        let down_ms = 5_000;
        plan.fault(30_000 + minute * MINUTE, Fault::CrashLeader { down_ms });
    }
    let seen = plan.play();
    assert_eq!(seen.fires_s("a"), [1, 2, 3, 4].map(|n| 30 + n * 360));
    let mut last = 0;
    for run in seen.runs("a") {
        assert!(run.scheduled_ms > last);
        last = run.scheduled_ms;
    }
}
