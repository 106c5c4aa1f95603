//! Rows D.. of the behaviour table: changes of the clock.

use punctual::schedule::cron::Cron;
use punctual::schedule::{Dialect, ScheduleSkip, ScheduleSpec, Steps, Verdict, Zone};

use crate::helpers::{compile, fires, fires_until, ms, skipping_gaps, spec};

#[test]
fn d01_a_midnight_after_spring_forward_is_not_skipped() {
    let spec = spec("0 0 * * 1-5", "US/Central");
    assert_eq!(
        fires(&spec, "2021-03-12T00:00:01-06:00", 1),
        ["2021-03-15T00:00:00-05:00"]
    );
}

#[test]
fn d02_a_daily_midnight_goes_on_the_day_after() {
    let spec = spec("0 0 * * *", "US/Pacific");
    assert_eq!(
        fires(&spec, "2022-03-13T00:00:07-08:00", 2),
        ["2022-03-14T00:00:00-07:00", "2022-03-15T00:00:00-07:00"]
    );
}

#[test]
fn d04_a_local_time_that_does_not_exist_is_never_returned() {
    let after = "2013-03-10T01:59:59-05:00";
    assert_eq!(
        fires(&spec("0 2 * * *", "US/Eastern"), after, 1),
        ["2013-03-10T03:00:00-04:00"]
    );
    assert_eq!(
        fires(&skipping_gaps("0 2 * * *", "US/Eastern"), after, 1),
        ["2013-03-11T02:00:00-04:00"]
    );
    // Every instant survives the way through local time and back.
    for text in fires(&spec("30 2 * * *", "US/Eastern"), after, 400) {
        let zone = Zone::get("US/Eastern").unwrap();
        assert_eq!(zone.rfc3339(ms(&text) / 1_000), text);
    }
}

#[test]
fn d06_a_step_of_seconds_goes_on_through_the_gap() {
    let spec = spec("*/7 * * * * *", "America/New_York");
    let fires = fires_until(&spec, "2025-03-09T06:59:50Z", "2025-03-09T07:00:30Z");
    assert!(fires.len() >= 6, "{fires:?}");
    for pair in fires.windows(2) {
        assert!(ms(&pair[1]) - ms(&pair[0]) <= 7_000, "{pair:?}");
    }
}

#[test]
fn d07_a_weekly_noon_fires_once_after_fall_back() {
    let spec = spec("0 12 * * 1", "Europe/Amsterdam");
    assert_eq!(
        fires_until(&spec, "2013-10-26T00:00:00Z", "2013-10-29T00:00:00Z"),
        ["2013-10-28T11:00:00Z"]
    );
}

#[test]
fn d09_an_hourly_job_has_the_repeated_hour_twice() {
    let spec = spec("0 * * * *", "US/Pacific");
    assert_eq!(
        fires_until(&spec, "2026-11-01T08:00:00Z", "2026-11-01T10:00:00Z"),
        ["2026-11-01T09:00:00Z", "2026-11-01T10:00:00Z"]
    );
    let day = fires_until(
        &spec,
        "2026-11-01T00:00:00-07:00",
        "2026-11-02T00:00:00-08:00",
    );
    assert_eq!(day.len(), 25);
}

#[test]
fn d11_a_weekly_local_time_keeps_its_hour_in_the_week_after() {
    let spec = spec("0 14 * * 4", "America/Los_Angeles");
    assert_eq!(
        fires(&spec, "2018-03-08T23:00:00-08:00", 1),
        ["2018-03-15T14:00:00-07:00"]
    );
}

#[test]
fn d12_a_daily_time_fires_once_in_the_repeated_hour() {
    let spec = spec("0 2 * * *", "Europe/Berlin");
    assert_eq!(
        fires_until(
            &spec,
            "2023-10-28T12:00:00+02:00",
            "2023-10-30T12:00:00+01:00"
        ),
        ["2023-10-29T00:00:00Z", "2023-10-30T01:00:00Z"]
    );
}

#[test]
fn d16_a_time_in_the_gap_is_not_lost() {
    let spec = spec("0 2 * * *", "US/Pacific");
    let fires = fires_until(
        &spec,
        "2025-03-08T12:00:00-08:00",
        "2025-03-10T12:00:00-07:00",
    );
    assert_eq!(fires, ["2025-03-09T10:00:00Z", "2025-03-10T09:00:00Z"]);
}

#[test]
fn d17_a_gap_at_midnight_does_not_take_the_day() {
    let spec = spec("0 0 */2 * * *", "Africa/Cairo");
    assert_eq!(
        fires(&spec, "2025-04-24T21:10:20+02:00", 5),
        [
            "2025-04-24T22:00:00+02:00",
            "2025-04-25T02:00:00+03:00",
            "2025-04-25T04:00:00+03:00",
            "2025-04-25T06:00:00+03:00",
            "2025-04-25T08:00:00+03:00",
        ]
    );
}

#[test]
fn d19_a_daily_time_in_the_gap_is_at_most_two_days_away() {
    let after = "2026-03-08T06:30:00Z";
    let moved = compile(&spec("30 2 * * *", "America/New_York"));
    assert_eq!(moved.next_fire(ms(after)), Some(ms("2026-03-08T07:00:00Z")));
    let skipped = compile(&skipping_gaps("30 2 * * *", "America/New_York"));
    assert_eq!(
        skipped.next_fire(ms(after)),
        Some(ms("2026-03-09T06:30:00Z"))
    );
    let first = skipped.next(ms(after)).unwrap();
    assert_eq!(first.at_ms, ms("2026-03-08T07:00:00Z"));
    assert_eq!(first.verdict, Verdict::Skip(ScheduleSkip::DstGap));
    for schedule in [moved, skipped] {
        let mut last = ms("2025-01-01T00:00:00Z");
        for _ in 0..1_000 {
            let next = schedule.next_fire(last).unwrap();
            assert!(next - last <= 48 * 3_600_000, "{last} {next}");
            last = next;
        }
    }
}

#[test]
fn d21_a_time_in_the_gap_is_found_in_a_few_steps() {
    let zone = Zone::get("Europe/Amsterdam").unwrap();
    for text in ["30 2 * * *", "30 2 * * 0"] {
        let cron = Cron::parse(text, Dialect::Auto).unwrap();
        let mut steps = Steps::default();
        let next = cron.next_counted(ms("2023-03-25T12:00:00+01:00"), &zone, &mut steps);
        assert_eq!(next, Some(ms("2023-03-26T01:00:00Z")), "{text}");
        assert!(steps.months <= 8 && steps.stretches <= 2, "{steps:?}");
    }
}

#[test]
fn d22_a_day_whose_midnight_does_not_exist_is_still_that_day() {
    let zone = "America/Sao_Paulo";
    assert_eq!(
        fires(&spec("0 0 9 4 * *", zone), "2018-10-05T00:00:00-03:00", 1),
        ["2018-11-04T09:00:00-02:00"]
    );
    assert_eq!(
        fires(&spec("0 0 4 11 *", zone), "2018-10-05T00:00:00-03:00", 1),
        ["2018-11-04T01:00:00-02:00"]
    );
}

#[test]
fn d24_a_zone_with_negative_summer_time_keeps_its_hour() {
    let spec = spec("1 0 18 * * *", "Europe/Dublin");
    assert_eq!(
        fires_until(&spec, "2025-03-29T18:00:01Z", "2025-03-30T18:00:00Z"),
        ["2025-03-30T17:00:01Z"]
    );
    assert_eq!(
        fires_until(&spec, "2025-10-25T18:30:00Z", "2025-10-26T19:00:00Z"),
        ["2025-10-26T18:00:01Z"]
    );
}

#[test]
fn d26_a_next_time_in_the_gap_does_not_panic() {
    let after = "2025-03-09T01:30:00-05:00";
    let zone = "America/New_York";
    assert_eq!(
        compile(&spec("0 2 * * *", zone)).next_fire(ms(after)),
        Some(ms("2025-03-09T07:00:00Z"))
    );
    assert_eq!(
        compile(&skipping_gaps("0 2 * * *", zone)).next_fire(ms(after)),
        Some(ms("2025-03-10T06:00:00Z"))
    );
}

#[test]
fn d27_both_halves_of_the_repeated_hour_are_places_to_start() {
    let patterns = [
        "* * * * *",
        "*/7 * * * * *",
        "3 1 * * *",
        "29 3 1 * * *",
        "30 1 * * *",
        "0 0 * * *",
        "0 1 * * SUN",
        "0 2 27 10 *",
        "0 0 29 2 *",
        "15,45 1 * * *",
        "0 */3 * * *",
        "0 1 L * *",
        "0 1 LW * *",
        "0 1 1W * *",
        "0 1 * * SUNL",
        "0 1 * * SUN#4",
        "0 0 0 1 1 ? 2199",
        "59 59 23 31 12 *",
        "0 22-2 * * *",
        "@hourly",
    ];
    for half in ["2019-10-27T01:03:29+01:00", "2019-10-27T01:03:29+00:00"] {
        for pattern in patterns {
            let next = compile(&spec(pattern, "Europe/London")).next(ms(half));
            assert!(next.unwrap().at_ms > ms(half), "{pattern} {half}");
        }
    }
}

#[test]
fn d29_a_daily_time_just_after_midnight_keeps_its_hour() {
    let spec = spec("1 0 * * *", "Europe/Berlin");
    assert_eq!(
        fires_until(
            &spec,
            "2020-10-24T12:00:00+02:00",
            "2020-10-27T00:01:00+01:00"
        ),
        [
            "2020-10-24T22:01:00Z",
            "2020-10-25T23:01:00Z",
            "2020-10-26T23:01:00Z",
        ]
    );
}

#[test]
fn d31_changes_of_half_an_hour_are_changes_too() {
    let zone = "Australia/Lord_Howe";
    assert_eq!(
        fires(&spec("15 2 * * *", zone), "2025-10-04T12:00:00+10:30", 1),
        ["2025-10-05T02:30:00+11:00"]
    );
    assert_eq!(ms("2025-10-05T02:30:00+11:00"), ms("2025-10-04T15:30:00Z"));
    assert_eq!(
        fires_until(
            &spec("45 1 * * *", zone),
            "2025-04-05T12:00:00+11:00",
            "2025-04-06T12:00:00+10:30"
        ),
        ["2025-04-05T14:45:00Z"]
    );
}

#[test]
fn d34_a_schedule_without_zone_is_utc() {
    let spec = ScheduleSpec {
        cron: Some("0 0 * * *".into()),
        ..ScheduleSpec::default()
    };
    assert_eq!(
        fires(&spec, "2026-01-01T00:00:00Z", 1),
        ["2026-01-02T00:00:00+00:00"]
    );
    assert_eq!(compile(&spec).zone().name(), "UTC");
}

#[test]
fn d36_an_evening_job_is_not_due_in_the_morning() {
    let spec = spec("0 22 * * *", "Europe/Paris");
    assert_eq!(
        compile(&spec).next_fire(ms("2025-07-02T09:21:00Z")),
        Some(ms("2025-07-02T20:00:00Z"))
    );
}
