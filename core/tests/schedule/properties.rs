//! What holds for every expression, zone and instant.

use chrono::{DateTime, Utc};
use jiff::Timestamp;
use jiff::tz::TimeZoneDatabase;
use proptest::prelude::*;
use proptest::sample::select;
use punctual::schedule::cron::Cron;
use punctual::schedule::{
    Calendars, Dialect, Occurrence, Schedule, ScheduleSpec, Steps, Verdict, Zone,
};

use crate::brute::ZONES;
use crate::texts::pattern;

/// Unix milliseconds of the years 0 to 9999.
const ANY_TIME: std::ops::Range<i64> = -62_167_219_200_000..253_402_300_800_000;

fn compile(text: String, zone: &str) -> Schedule {
    let spec = ScheduleSpec {
        cron: Some(text),
        timezone: Some(zone.into()),
        dialect: Dialect::Unix,
        ..ScheduleSpec::default()
    };
    Schedule::compile(&spec, 0, &Calendars::default()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn instants_strictly_increase_and_decrease(
        pattern in pattern(),
        zone in select(ZONES),
        at in ANY_TIME,
    ) {
        let schedule = compile(pattern.text(), zone);
        let mut last = at;
        for Occurrence { at_ms, .. } in schedule.after(at).take(20) {
            prop_assert!(at_ms > last);
            prop_assert_eq!(at_ms % 1_000, 0);
            last = at_ms;
        }
        let mut last = at;
        for Occurrence { at_ms, .. } in schedule.before(at).take(20) {
            prop_assert!(at_ms < last);
            last = at_ms;
        }
    }

    #[test]
    fn previous_is_the_mirror_of_next(
        pattern in pattern(),
        zone in select(ZONES),
        at in ANY_TIME,
    ) {
        let schedule = compile(pattern.text(), zone);
        if let Some(next) = schedule.next(at) {
            // Nothing lies between: the one before the next is not later than the question.
            let previous = schedule.previous(next.at_ms).map(|it| it.at_ms);
            prop_assert!(previous.is_none_or(|it| it <= at), "{:?} {:?}", previous, next);
            prop_assert_eq!(schedule.previous(next.at_ms + 1), Some(next));
            prop_assert_eq!(schedule.next(next.at_ms - 1), Some(next));
        }
        if let Some(previous) = schedule.previous(at) {
            let next = schedule.next(previous.at_ms).map(|it| it.at_ms);
            prop_assert!(next.is_none_or(|it| it >= at), "{:?} {:?}", previous, next);
        }
    }

    #[test]
    fn work_is_bounded(pattern in pattern(), zone in select(ZONES), at in ANY_TIME) {
        let cron = Cron::parse(&pattern.text(), Dialect::Unix).unwrap();
        let zone = Zone::get(zone).unwrap();
        let mut forward = Steps::default();
        let _ = cron.next_counted(at, &zone, &mut forward);
        let mut backward = Steps::default();
        let _ = cron.previous_counted(at, &zone, &mut backward);
        for steps in [forward, backward] {
            prop_assert!(steps.stretches <= Steps::MAX_STRETCHES, "{:?}", steps);
            prop_assert!(steps.months <= Steps::MAX_MONTHS + 4 * steps.stretches, "{:?}", steps);
        }
    }

    #[test]
    fn a_dead_expression_has_no_instant_and_a_live_one_has(pattern in pattern(), at in ANY_TIME) {
        let cron = Cron::parse(&pattern.text(), Dialect::Unix).unwrap();
        let utc = Zone::utc();
        let found = cron.next(at, &utc).or_else(|| cron.previous(at, &utc));
        prop_assert_eq!(cron.never_fires(), found.is_none());
        prop_assert_eq!(cron.never_fires(), cron.never_reason().is_some());
    }

    #[test]
    fn the_edge_speaks_chrono(pattern in pattern(), zone in select(ZONES), at in 0i64..4_102_444_800_000) {
        let schedule = compile(pattern.text(), zone);
        let after = DateTime::<Utc>::from_timestamp_millis(at).unwrap();
        let next = schedule.next_after(after);
        prop_assert_eq!(next.map(|it| it.timestamp_millis()), schedule.next_fire(at));
        prop_assert!(next.is_none_or(|it| it > after));
    }
}

/// The date of an instant in UTC, so many days later.
fn date(unix: i64, days: i64) -> String {
    let shifted = DateTime::<Utc>::from_timestamp(unix + days * 86_400, 0).unwrap();
    shifted.format("%Y-%m-%d").to_string()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Fires are the instants that are not skipped, also where exclusions are passed in one step.
    #[test]
    fn exclusions_hide_no_fire(
        pattern in pattern(),
        zone in select(ZONES),
        near in 94_694_400i64..3_786_912_000,
        ranges in prop::collection::vec((-4i64..4, 0i64..6), 1..4),
    ) {
        prop_assume!(!pattern.seconds);
        let tz = TimeZoneDatabase::bundled().get(zone).unwrap();
        let change = tz
            .following(Timestamp::from_second(near).unwrap())
            .next()
            .map_or(near, |change| change.timestamp().as_second());
        let spec = ScheduleSpec {
            cron: Some(pattern.text()),
            timezone: Some(zone.into()),
            dialect: Dialect::Unix,
            exclude: ranges
                .iter()
                .map(|(from, days)| {
                    format!("{}..{}", date(change, *from), date(change, from + days))
                })
                .collect(),
            ..ScheduleSpec::default()
        };
        let schedule = Schedule::compile(&spec, 0, &Calendars::default()).unwrap();
        let (from, to) = ((change - 6 * 86_400) * 1_000, (change + 12 * 86_400) * 1_000);
        let expected: Vec<_> = schedule
            .after(from)
            .take_while(|it| it.at_ms <= to)
            .filter(|it| it.verdict == Verdict::Fire)
            .map(|it| it.at_ms)
            .take(500)
            .collect();
        let mut fires = Vec::new();
        let mut at = from;
        while fires.len() < 500
            && let Some(next) = schedule.next_fire(at).filter(|next| *next <= to)
        {
            fires.push(next);
            at = next;
        }
        prop_assert_eq!(fires, expected);
    }
}

#[test]
fn the_ends_of_time_are_no_trap() {
    for text in [
        "* * * * *",
        "* * * * * *",
        "0 0 29 2 *",
        "30 2 * * *",
        "0 0 1 1 *",
    ] {
        for zone in ZONES {
            let schedule = compile(text.into(), zone);
            for at in [i64::MIN, i64::MIN + 1, -62_167_219_200_000] {
                let next = schedule.next(at).unwrap();
                assert!(next.verdict == Verdict::Fire && schedule.previous(at).is_none());
                assert!(
                    schedule
                        .zone()
                        .rfc3339(next.at_ms / 1_000)
                        .starts_with("000")
                );
            }
            for at in [i64::MAX, i64::MAX - 1, 253_402_300_800_000] {
                let previous = schedule.previous(at).unwrap();
                assert!(schedule.next(at).is_none());
                let text = schedule.zone().rfc3339(previous.at_ms / 1_000);
                assert!(text.starts_with("99"), "{text}");
            }
        }
    }
}

/// An interval whose every time falls into a gap: each year brings a candidate, and none is real.
#[test]
fn a_search_that_only_meets_gaps_gives_up() {
    let cron = Cron::parse("0 * 2 ? 3 SUN#2", Dialect::Auto).unwrap();
    let zone = Zone::get("America/New_York").unwrap();
    let mut steps = Steps::default();
    let from_2026 = 1_767_225_600_000;
    assert_eq!(cron.next_counted(from_2026, &zone, &mut steps), None);
    assert_eq!(steps.stretches, Steps::MAX_STRETCHES);
    assert!(steps.months < 4 * Steps::MAX_STRETCHES, "{steps:?}");
    // Before 2007 the clock went forward in April.
    assert!(cron.previous(from_2026, &zone).is_some());
}
