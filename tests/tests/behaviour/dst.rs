//! Clocks that are changed for the summer. Where days pass in which nothing is due, the nodes stand
//! still (they are not restarted, and their clocks go on).

use punctual_tests::sim::schedule::{Fault, Plan};

use crate::stage::{DAY, HOUR, MINUTE, Seen, Story as _, cron, job, stage, unix_ms, zoned};

/// All nodes stand still from one time to another.
fn sleep(plan: &mut Plan, from_ms: u64, until_ms: u64) {
    let for_ms = until_ms - from_ms;
    plan.all(from_ms, |node| Fault::Pause { node, for_ms });
}

/// Awake for some minutes around each of these times.
fn awake_around(plan: &mut Plan, times: &[i64]) {
    let mut from_ms = MINUTE;
    for at in times {
        let at = u64::try_from(at - plan.epoch_ms).unwrap();
        if at > from_ms + 5 * MINUTE {
            sleep(plan, from_ms, at - 3 * MINUTE);
        }
        from_ms = at + 3 * MINUTE;
    }
    if plan.heal_ms > from_ms + 5 * MINUTE {
        sleep(plan, from_ms, plan.heal_ms - MINUTE);
    }
}

/// One job in a zone, from one time to another; what is awake around these times.
fn in_zone(expression: &str, zone: &str, from: &str, until: &str, around: &[&str]) -> Seen {
    let length = u64::try_from(unix_ms(until) - unix_ms(from)).unwrap();
    let mut plan = stage(2, from, length);
    plan.put(3_000, zoned("a", expression, zone));
    let around: Vec<i64> = around.iter().map(|text| unix_ms(text)).collect();
    awake_around(&mut plan, &around);
    let seen = plan.play();
    assert_eq!(seen.runs("a").len(), seen.fires("a").len());
    assert_eq!(seen.observed.lives.len(), 2, "nobody was restarted");
    seen
}

fn times(texts: &[&str]) -> Vec<i64> {
    texts.iter().map(|text| unix_ms(text)).collect()
}

/// D06: every seven seconds, through a change.
#[test]
fn d06_a_step_of_seconds_goes_on_through_the_change() {
    let mut plan = stage(3, "2025-03-09T06:59:00Z", 3 * MINUTE);
    plan.put(3_000, zoned("a", "*/7 * * * * *", "America/New_York"));
    let seen = plan.play();
    let fires = seen.fires_s("a");
    assert!(
        fires.windows(2).all(|two| two[1] - two[0] <= 7),
        "{fires:?}"
    );
    let around = fires.iter().filter(|at| (50..=90).contains(*at));
    assert!(around.count() >= 6);
    assert!(seen.late_ms("a").iter().all(|late| *late < 100));
}

/// D07: weekly at noon, in the week in which the clock goes back.
#[test]
fn d07_weekly_at_noon_after_the_clock_went_back() {
    let seen = in_zone(
        "0 12 * * 1",
        "Europe/Amsterdam",
        "2013-10-26T00:00:00Z",
        "2013-10-29T00:00:00Z",
        &[
            "2013-10-27T01:00:00Z",
            "2013-10-28T10:00:00Z",
            "2013-10-28T11:00:00Z",
        ],
    );
    assert_eq!(seen.fires("a"), times(&["2013-10-28T11:00:00Z"]));
    assert!(seen.late_ms("a")[0] < 100);
}

/// D12: daily at a time that the next night has twice.
#[test]
fn d12_daily_in_the_repeated_hour() {
    let seen = in_zone(
        "0 2 * * *",
        "Europe/Berlin",
        "2023-10-28T12:00:00Z",
        "2023-10-30T12:00:00Z",
        &[
            "2023-10-29T00:00:00Z",
            "2023-10-29T01:00:00Z",
            "2023-10-30T01:00:00Z",
        ],
    );
    let expected = ["2023-10-29T00:00:00Z", "2023-10-30T01:00:00Z"];
    assert_eq!(seen.fires("a"), times(&expected));
    assert!(seen.late_ms("a").iter().all(|late| *late < 100));
}

/// D14: fifty jobs of all kinds in five zones, two of which lose an hour: what the gap does not touch
/// fires as if there were none (the oracle looks at every second of every job).
#[test]
fn d14_fifty_jobs_in_five_zones() {
    let zones = [
        "Europe/Berlin",
        "Europe/London",
        "Asia/Tokyo",
        "America/New_York",
        "UTC",
    ];
    let kinds = [
        "*/20 * * * * *",
        "*/1 * * * *",
        "*/5 * * * *",
        "0 * * * *",
        "30 1 * * *",
        "30 2 * * *",
        "15 1,2,3,9,20,21 * * *",
        "10-12 * * * *",
        "0 0 1-3 * * *",
        "45 59 * * * *",
    ];
    let mut plan = stage(3, "2025-03-30T00:45:00Z", 30 * MINUTE);
    let mut jobs = Vec::new();
    for (z, zone) in zones.iter().enumerate() {
        for (k, kind) in kinds.iter().enumerate() {
            jobs.push(zoned(format!("job-{z}-{k}"), kind, zone));
        }
    }
    plan.put_all(3_000, jobs);
    let seen = plan.play();
    for z in 0..5 {
        // Second 15 x 60 is the change.
        let often = seen.fires_s(&format!("job-{z}-0"));
        assert!(often.windows(2).all(|two| two[1] - two[0] == 20));
        let minutes = seen.fires_s(&format!("job-{z}-1"));
        assert!(minutes.windows(2).all(|two| two[1] - two[0] == 60));
        assert_eq!(seen.fires_s(&format!("job-{z}-3")), [900]);
    }
    // At once behind the gap: 02:30 does not exist in Berlin, 01:30 not in London.
    assert_eq!(seen.fires_s("job-0-5"), [900]);
    assert_eq!(seen.fires_s("job-1-4"), [900]);
    for untouched in ["job-2-4", "job-3-5", "job-4-4", "job-4-5"] {
        let half_past_one = if untouched == "job-4-4" {
            vec![2_700]
        } else {
            vec![]
        };
        let seen = seen.fires_s(untouched).into_iter().filter(|at| *at < 1_800);
        let expected = half_past_one.into_iter().filter(|at| *at < 1_800);
        assert!(seen.eq(expected), "{untouched}");
    }
}

/// D24: daily at 18:00:01 in Dublin, on the days of both changes, in one life of the nodes.
#[test]
fn d24_daily_on_both_days_of_a_change() {
    for (from, until, change, at) in [
        (
            "2025-03-29T18:00:02Z",
            "2025-03-30T17:10:00Z",
            "2025-03-30T01:00:00Z",
            "2025-03-30T17:00:01Z",
        ),
        (
            "2025-10-25T18:30:00Z",
            "2025-10-26T18:10:00Z",
            "2025-10-26T01:00:00Z",
            "2025-10-26T18:00:01Z",
        ),
    ] {
        let around = [change, "2025-10-26T17:00:01Z", at];
        let around = if at > around[1] {
            &around[..]
        } else {
            &[change, at][..]
        };
        let seen = in_zone("1 0 18 * * *", "Europe/Dublin", from, until, around);
        assert_eq!(seen.fires("a"), times(&[at]));
        assert!(seen.late_ms("a")[0] < 100);
    }
}

/// D29: daily at 00:01, over the day on which the clock goes back.
#[test]
fn d29_daily_one_minute_past_midnight() {
    let expected = [
        "2020-10-24T22:01:00Z",
        "2020-10-25T23:01:00Z",
        "2020-10-26T23:01:00Z",
    ];
    let seen = in_zone(
        "1 0 * * *",
        "Europe/Berlin",
        "2020-10-24T12:00:00Z",
        "2020-10-27T12:00:00Z",
        &[
            expected[0],
            "2020-10-25T01:00:00Z",
            "2020-10-25T22:01:00Z",
            expected[1],
            "2020-10-26T22:01:00Z",
            expected[2],
        ],
    );
    assert_eq!(seen.fires("a"), times(&expected));
    assert!(seen.late_ms("a").iter().all(|late| *late < 100));
}

/// D32: a job whose time does not exist tonight, beside twenty of every minute in UTC.
#[test]
fn d32_a_time_that_does_not_exist_stops_nobody_else() {
    let mut plan = stage(3, "2016-03-13T07:50:00Z", 20 * MINUTE);
    let mut jobs: Vec<_> = (0..20)
        .map(|n| cron(format!("utc-{n}"), "* * * * *"))
        .collect();
    jobs.push(zoned("gap", "30 2 * * *", "US/Central"));
    let mut left_out = zoned("left-out", "30 2 * * *", "US/Central");
    left_out.schedule.dst.gap = punctual::schedule::Gap::Skip;
    jobs.push(left_out);
    plan.put_all(3_000, jobs);
    let seen = plan.play();
    let every_minute: Vec<i64> = (1..=20).map(|n| n * 60).collect();
    for n in 0..20 {
        assert_eq!(seen.fires_s(&format!("utc-{n}")), every_minute);
    }
    assert_eq!(seen.fires_s("gap"), [600]);
    assert!(seen.fires("left-out").is_empty());
}

/// D34: the zone of the machine, as `TZ` tells it, is nobody's business: three processes with three of
/// them see the same history, to the last byte.
#[test]
fn d34_the_zone_of_the_machine_changes_nothing() {
    const CHILD: &str = "PUNCTUAL_TESTS_PRINT_FINGERPRINT";
    let mut plan = stage(3, "2025-03-09T06:59:00Z", 2 * MINUTE);
    plan.put(3_000, cron("no-zone", "0 7 * * *"));
    plan.put(3_000, zoned("zone", "0 3 * * *", "America/New_York"));
    plan.fault(30_000, Fault::CrashLeader { down_ms: 5_000 });
    let seen = plan.play();
    assert_eq!(seen.fires("no-zone"), times(&["2025-03-09T07:00:00Z"]));
    assert_eq!(seen.fires("zone"), times(&["2025-03-09T07:00:00Z"]));
    let fingerprint = format!("fingerprint {:016x}", seen.observed.fingerprint);
    if std::env::var_os(CHILD).is_some() {
        println!("{fingerprint}");
        return;
    }
    for zone in ["UTC", "America/Los_Angeles", "Asia/Tokyo"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "--nocapture",
                "dst::d34_the_zone_of_the_machine_changes_nothing",
            ])
            .env("TZ", zone)
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout).into_owned();
        assert!(
            child.status.success() && said.contains(&fingerprint),
            "{zone}: {said}"
        );
    }
}

/// D36: a job of 22:00 in Paris that fired yesterday; leaders change in the morning.
#[test]
fn d36_a_new_leader_runs_no_zone_job_at_once() {
    let mut plan = stage(2, "2025-07-01T19:58:00Z", 24 * HOUR + 5 * MINUTE);
    plan.put(3_000, zoned("a", "0 22 * * *", "Europe/Paris"));
    let change = u64::try_from(unix_ms("2025-07-02T09:21:00Z") - plan.epoch_ms).unwrap();
    plan.fault(change, Fault::CrashLeader { down_ms: 10_000 });
    plan.fault(change + MINUTE, Fault::RevokeLeader);
    awake_around(
        &mut plan,
        &times(&["2025-07-02T09:21:00Z", "2025-07-02T20:00:00Z"]),
    );
    let seen = plan.play();
    assert!(
        seen.leads
            .iter()
            .filter(|lead| (change..DAY).contains(&lead.0))
            .count()
            >= 2
    );
    assert_eq!(
        seen.fires("a"),
        times(&["2025-07-01T20:00:00Z", "2025-07-02T20:00:00Z"])
    );
}

/// C34: an expression with a year, whose last instant comes; then all nodes are started again.
#[test]
fn c34_the_last_instant_of_an_expression_with_a_year() {
    let mut plan = stage(3, "2026-01-01T08:59:00Z", 4 * MINUTE);
    let spec = job("last").cron("0 0 9 1 1 ? 2026");
    plan.put(3_000, spec.clone());
    plan.all(2 * MINUTE, |node| Fault::Crash {
        node,
        down_ms: 5_000,
    });
    let seen = plan.play();
    assert_eq!(seen.fires("last"), times(&["2026-01-01T09:00:00Z"]));
    assert_eq!(seen.states("last"), [punctual::job::run::RunState::Success]);
    let created_ms = seen.observed.plan.epoch_ms;
    let schedule =
        punctual::schedule::Schedule::compile(&spec.schedule, created_ms, &Default::default())
            .unwrap();
    assert_eq!(schedule.next(unix_ms("2026-01-01T09:00:00Z")), None);
    assert_eq!(seen.observed.lives.len(), 6);
}
