//! Rows C.. of the behaviour table: what an expression means.

use chrono::{DateTime, Utc};
use punctual::schedule::cron::Cron;
use punctual::schedule::explain::{DayRule, Language, explain};
use punctual::schedule::{Calendars, Dialect, Schedule, ScheduleSpec, Steps, Zone};

use crate::helpers::{compile, fires, fires_until, ms, refused, spec, unix};

#[test]
fn c01_the_fourth_weekday_is_not_the_fifth() {
    let fires = fires(&unix("0 0 0 * * 6#4"), "2024-08-02T00:00:00Z", 6);
    let days: Vec<_> = fires.iter().map(|text| &text[..10]).collect();
    assert_eq!(
        days,
        [
            "2024-08-24",
            "2024-09-28",
            "2024-10-26",
            "2024-11-23",
            "2024-12-28",
            "2025-01-25",
        ]
    );
}

#[test]
fn c02_the_last_friday_is_not_every_friday() {
    for text in ["0 0 * * 5L", "0 0 * * FRIL"] {
        let fires = fires(&spec(text, "UTC"), "2024-07-11T00:00:00Z", 2);
        let days: Vec<_> = fires.iter().map(|text| &text[..10]).collect();
        assert_eq!(days, ["2024-07-26", "2024-08-30"], "{text}");
    }
    for text in ["0 0 * * 5#L", "0 0 * * FRI#L"] {
        assert_eq!(refused(text, Dialect::Auto).field, "day of week");
    }
}

#[test]
fn c04_or_and_and_of_the_day_fields_are_told_apart() {
    for (text, rule, expected) in [
        (
            "0 0 1-31 * 4",
            DayRule::Either,
            ["2024-12-02", "2024-12-03", "2024-12-04"],
        ),
        (
            "0 0 1-31 * +4",
            DayRule::Both,
            ["2024-12-05", "2024-12-12", "2024-12-19"],
        ),
    ] {
        let spec = spec(text, "UTC");
        let fires = fires(&spec, "2024-12-01T00:00:00Z", 3);
        let days: Vec<_> = fires.iter().map(|text| &text[..10]).collect();
        assert_eq!(days, expected, "{text}");
        let explained = explain(&spec, 0, &Calendars::default(), 0, Language::English).unwrap();
        assert_eq!(explained.day_rule, Some(rule));
    }
}

#[test]
fn c06_a_question_mark_leaves_the_weekday_alone() {
    assert_eq!(
        fires(&spec("0 0 12 ? * FRI", "UTC"), "2023-04-14T12:00:01Z", 3),
        [
            "2023-04-21T12:00:00+00:00",
            "2023-04-28T12:00:00+00:00",
            "2023-05-05T12:00:00+00:00",
        ]
    );
    for text in [
        "? 0 12 * * FRI",
        "0 ? 12 * * FRI",
        "0 0 ? * * FRI",
        "0 0 12 * ? FRI",
        "0 0 12 * * FRI ?",
    ] {
        assert!(refused(text, Dialect::Auto).message.contains('?'), "{text}");
    }
}

#[test]
fn c07_a_question_mark_and_a_star_mean_the_same() {
    let list = |text| fires(&spec(text, "UTC"), "2026-01-01T00:00:00Z", 10);
    assert_eq!(list("0 0 0 1 * ?"), list("0 0 0 1 * *"));
    assert_eq!(list("0 0 0 1 * ?").len(), 10);
    assert_eq!(refused("0 ? * * * *", Dialect::Auto).at, Some(3));
}

#[test]
fn c09_every_quarter_of_an_hour_is_96_a_day() {
    let fires = fires_until(
        &spec("*/15 * * * *", "UTC"),
        "2025-12-31T23:59:59Z",
        "2026-01-01T23:59:59Z",
    );
    assert_eq!(fires.len(), 96);
    for pair in fires.windows(2) {
        assert_eq!(ms(&pair[1]) - ms(&pair[0]), 900_000);
    }
}

#[test]
fn c11_a_search_from_a_leap_day_does_not_panic() {
    assert_eq!(
        fires(&spec("0 0 0 * * * 2100", "UTC"), "2024-02-29T00:00:00Z", 1),
        ["2100-01-01T00:00:00+00:00"]
    );
    assert_eq!(
        fires(&spec("0 0 29 2 *", "UTC"), "2025-01-01T00:00:00Z", 2),
        ["2028-02-29T00:00:00+00:00", "2032-02-29T00:00:00+00:00"]
    );
}

#[test]
fn c12_a_step_of_zero_is_refused_by_name() {
    for text in ["0 0-10/0 * * * *", "0 0/0 * * * *"] {
        let error = refused(text, Dialect::Auto);
        assert_eq!(error.field, "minute", "{text}");
        assert!(error.message.contains("zero"), "{error}");
    }
}

#[test]
fn c14_a_star_with_step_zero_is_refused() {
    let error = refused("*/0 * * * *", Dialect::Auto);
    assert_eq!((error.field, error.at), ("minute", Some(3)));
}

/// The work of one search forward and one backward.
fn work(text: &str) -> (Option<i64>, Option<i64>, Steps) {
    let cron = Cron::parse(text, Dialect::Auto).unwrap();
    let mut steps = Steps::default();
    let at = ms("2026-01-01T00:00:00Z");
    (
        cron.next_counted(at, &Zone::utc(), &mut steps),
        cron.previous_counted(at, &Zone::utc(), &mut steps),
        steps,
    )
}

#[test]
fn c16_an_impossible_date_costs_nothing() {
    assert_eq!(work("0 0 30 2 *"), (None, None, Steps::default()));
}

#[test]
fn c17_impossible_dates_of_other_months_cost_nothing() {
    for text in ["* * 31 4 *", "0 0 31 2,4,6,9,11 *", "0 0 29 2 +MON#4"] {
        assert_eq!(work(text), (None, None, Steps::default()), "{text}");
        assert!(Cron::parse(text, Dialect::Auto).unwrap().never_fires());
    }
}

#[test]
fn c19_a_dead_schedule_is_refused_at_creation_with_its_reason() {
    let check = |text: &str| {
        Schedule::check(
            &spec(text, "UTC"),
            ms("2026-01-01T00:00:00Z"),
            &Calendars::default(),
        )
    };
    let error = check("0 0 31 2 *").unwrap_err();
    assert_eq!((error.field, error.at), ("cron", Some(1)));
    assert!(error.message.contains("31 February never comes"), "{error}");
    assert!(error.hint.is_some());
    assert!(check("0 0 0 1 1 ? 2025").is_err());
    assert!(check("0 0 29 2 *").is_ok());
}

#[test]
fn c21_weekdays_out_of_range_are_refused() {
    for text in ["* * * * 8", "* * * * 100"] {
        let error = refused(text, Dialect::Auto);
        assert_eq!((error.field, error.at), ("day of week", Some(9)));
    }
}

#[test]
fn c22_a_weekday_step_does_not_add_sunday() {
    let days = |text: &str| {
        let mut days: Vec<_> = compile(&spec(text, "UTC"))
            .after(ms("2026-01-01T00:00:00Z"))
            .take(28)
            .map(|occurrence| {
                DateTime::<Utc>::from_timestamp_millis(occurrence.at_ms)
                    .unwrap()
                    .format("%u %a")
                    .to_string()
            })
            .collect();
        days.sort();
        days.dedup();
        days
    };
    assert_eq!(days("0 9 * * 2/2"), ["2 Tue", "4 Thu", "6 Sat"]);
    assert_eq!(days("0 9 * * 1-7/2"), ["1 Mon", "3 Wed", "5 Fri", "7 Sun"]);
}

#[test]
fn c24_a_plain_weekday_range_is_five_days() {
    let fires = fires(&spec("1 16 * * 1-5", "UTC"), "2026-01-01T00:00:00Z", 50);
    for text in &fires {
        let weekday = DateTime::parse_from_rfc3339(text)
            .unwrap()
            .format("%u")
            .to_string();
        assert!(!["6", "7"].contains(&weekday.as_str()), "{text}");
    }
    assert_eq!(ms(&fires[45]) - ms(&fires[0]), 9 * 7 * 86_400_000);
}

#[test]
fn c26_the_last_weekday_of_the_month() {
    assert_eq!(
        fires(&spec("0 5 LW * *", "UTC"), "2023-10-01T00:00:00Z", 2),
        ["2023-10-31T05:00:00+00:00", "2023-11-30T05:00:00+00:00"]
    );
}

#[test]
fn c27_the_nearest_weekday_stays_in_its_month() {
    assert_eq!(
        fires(&spec("0 12 1W * *", "UTC"), "2026-07-31T00:00:00Z", 2),
        ["2026-08-03T12:00:00+00:00", "2026-09-01T12:00:00+00:00"]
    );
    let error = refused("0 12 1-15W * *", Dialect::Auto);
    assert_eq!((error.field, error.at), ("day of month", Some(6)));
}

#[test]
fn c29_the_fifth_weekday_exists_in_some_months_only() {
    assert_eq!(
        fires(&spec("0 0 12 ? * FRI#5", "UTC"), "2023-09-01T00:00:00Z", 2),
        ["2023-09-29T12:00:00+00:00", "2023-12-29T12:00:00+00:00"]
    );
}

#[test]
fn c31_zone_prefixes_are_refused_with_the_key_to_write() {
    for text in [
        "TZ=TZ=TZ=",
        "TZ=",
        "CRON_TZ=Asia/Tokyo 0 0 * * *",
        "TZ=\0",
        "TZ=Europe/Berlin",
    ] {
        refused(text, Dialect::Auto);
    }
    let error = refused("CRON_TZ=Asia/Tokyo 0 0 * * *", Dialect::Auto);
    assert!(error.hint.unwrap().contains("timezone: Asia/Tokyo"));
}

#[test]
fn c32_a_period_below_a_second_is_never_silently_a_second() {
    for text in ["@every 1ms", "@every 1500ms"] {
        let error = refused(text, Dialect::Auto);
        assert!(error.hint.unwrap().contains("every: 1"), "{text}");
    }
    for period in ["1ms", "999ms", "1500ms", "0s"] {
        let spec = ScheduleSpec {
            every: Some(period.parse().unwrap()),
            ..ScheduleSpec::default()
        };
        let error = Schedule::compile(&spec, 0, &Calendars::default()).unwrap_err();
        assert_eq!(error.field, "every", "{period}");
    }
}

#[test]
fn c34_after_the_last_year_there_is_no_next() {
    let schedule = compile(&spec("0 0 9 1 1 * 2026", "UTC"));
    let last = ms("2026-01-01T09:00:00Z");
    assert_eq!(schedule.next_fire(last - 1), Some(last));
    assert_eq!(schedule.next(last), None);
    assert_eq!(schedule.previous(i64::MAX).unwrap().at_ms, last);
    assert!(!schedule.never_fires());
}
