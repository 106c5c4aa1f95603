//! The search against a scan of every minute or second, which asks the zone database about each
//! of them and shares no code with the search.

use std::collections::BTreeMap;

use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use proptest::sample::select;
use punctual::schedule::{
    Calendars, Dialect, DstRules, Gap, Overlap, Schedule, ScheduleSkip, ScheduleSpec, Verdict,
};

use crate::texts::{Pattern, Special, pattern};

/// Zones with all kinds of changes: an hour, half an hour, at midnight, backwards summer time,
/// once only, two hours, before the epoch's rules, none.
pub(crate) const ZONES: &[&str] = &[
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "Europe/Dublin",
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Nuuk",
    "America/Sao_Paulo",
    "America/Santiago",
    "America/St_Johns",
    "Antarctica/Casey",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Kolkata",
    "Asia/Pyongyang",
    "Asia/Shanghai",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Europe/Volgograd",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
];

fn weekday_of(date: Date) -> u32 {
    date.weekday().to_sunday_zero_offset() as u32
}

fn is_workday(date: Date) -> bool {
    (1..=5).contains(&weekday_of(date))
}

/// The days of a date's month, in order.
fn month_of(date: Date) -> impl Iterator<Item = Date> {
    (1..=date.days_in_month()).map(move |day| Date::new(date.year(), date.month(), day).unwrap())
}

fn names_the_day(special: Special, date: Date) -> bool {
    match special {
        Special::LastDay => date.day() == date.days_in_month(),
        Special::LastWorkday => month_of(date).filter(|day| is_workday(*day)).last() == Some(date),
        Special::Nearest(day) => {
            day <= date.days_in_month() as u32
                && month_of(date)
                    .filter(|other| is_workday(*other))
                    .min_by_key(|other| (i64::from(other.day()) - i64::from(day)).abs())
                    == Some(date)
        }
        Special::Nth(weekday, nth) => {
            month_of(date)
                .filter(|other| weekday_of(*other) == weekday)
                .nth(nth as usize - 1)
                == Some(date)
        }
        Special::LastOf(weekday) => {
            month_of(date)
                .filter(|other| weekday_of(*other) == weekday)
                .last()
                == Some(date)
        }
    }
}

fn matches(pattern: &Pattern, local: DateTime) -> bool {
    let date = local.date();
    let special = |list: &[Special]| list.iter().any(|item| names_the_day(*item, date));
    let time = pattern.hour.values.contains(&(local.hour() as u32))
        && pattern.minute.values.contains(&(local.minute() as u32))
        && pattern.second.values.contains(&(local.second() as u32));
    if !time || !pattern.month.values.contains(&(local.month() as u32)) {
        return false;
    }
    let day = pattern.day.values.contains(&(local.day() as u32)) || special(&pattern.day.special);
    let weekday =
        pattern.weekday.values.contains(&weekday_of(date)) || special(&pattern.weekday.special);
    if pattern.is_either() {
        day || weekday
    } else {
        day && weekday
    }
}

/// All instants in `from..=to` (Unix seconds, whole minutes) and their verdicts, by looking at
/// every minute or second.
fn scan(
    pattern: &Pattern,
    zone: &TimeZone,
    dst: DstRules,
    from: i64,
    to: i64,
) -> BTreeMap<i64, Verdict> {
    let unit = if pattern.seconds { 1 } else { 60 };
    let local_at = |unix: i64| zone.to_datetime(Timestamp::from_second(unix).unwrap());
    let mut found = BTreeMap::new();
    let mut before = local_at(from - unit);
    for unix in (from..=to).step_by(unit as usize) {
        let local = local_at(unix);
        if !pattern.is_interval() {
            let gap = local.duration_since(before).as_secs() - unit;
            let mut lost = (1..=gap / unit)
                .map(|step| before + SignedDuration::from_secs(step * unit))
                .filter(|time| matches(pattern, *time));
            if gap > 0 && gap <= 3 * 3_600 && lost.next().is_some() {
                let verdict = match dst.gap {
                    Gap::Fire => Verdict::Fire,
                    Gap::Skip => Verdict::Skip(ScheduleSkip::DstGap),
                };
                found.insert(unix, verdict);
            }
        }
        let second_pass = match zone.to_ambiguous_timestamp(local).offset() {
            AmbiguousOffset::Fold { after, .. } => {
                zone.to_offset(Timestamp::from_second(unix).unwrap()) == after
            }
            _ => false,
        };
        let counts = pattern.is_interval() || !second_pass || dst.overlap == Overlap::Twice;
        if counts && matches(pattern, local) {
            found.insert(unix, Verdict::Fire);
        }
        before = local;
    }
    found
}

fn check(pattern: &Pattern, name: &str, dst: DstRules, near: i64) -> Result<(), TestCaseError> {
    let zone = TimeZoneDatabase::bundled().get(name).unwrap();
    let change = zone
        .following(Timestamp::from_second(near).unwrap())
        .next()
        .map_or(near, |change| change.timestamp().as_second());
    let change = change.div_euclid(60) * 60;
    // Seconds are many: look closely round the change only.
    let reach = if pattern.seconds {
        2 * 3_600
    } else {
        40 * 3_600
    };
    let (from, to) = (change - reach, change + reach);
    let expected: Vec<_> = scan(pattern, &zone, dst, from, to).into_iter().collect();

    let spec = ScheduleSpec {
        cron: Some(pattern.text()),
        timezone: Some(name.into()),
        dialect: Dialect::Unix,
        dst,
        ..ScheduleSpec::default()
    };
    let schedule = Schedule::compile(&spec, 0, &Calendars::default())
        .map_err(|error| TestCaseError::fail(format!("{}: {error}", pattern.text())))?;
    let forward: Vec<_> = schedule
        .after(from * 1_000 - 1)
        .map(|it| (it.at_ms / 1_000, it.verdict))
        .take_while(|(at, _)| *at <= to)
        .collect();
    prop_assert_eq!(
        &forward,
        &expected,
        "{} forward in {}",
        pattern.text(),
        name
    );
    let mut backward: Vec<_> = schedule
        .before(to * 1_000 + 1)
        .map(|it| (it.at_ms / 1_000, it.verdict))
        .take_while(|(at, _)| *at >= from)
        .collect();
    backward.reverse();
    prop_assert_eq!(
        &backward,
        &expected,
        "{} backward in {}",
        pattern.text(),
        name
    );
    Ok(())
}

fn rules() -> impl Strategy<Value = DstRules> {
    (
        select(vec![Gap::Fire, Gap::Skip]),
        select(vec![Overlap::Once, Overlap::Twice]),
    )
        .prop_map(|(gap, overlap)| DstRules { gap, overlap })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Nothing is skipped and nothing added round the changes of the clock.
    #[test]
    fn finds_what_a_scan_of_every_minute_finds(
        pattern in pattern(),
        zone in select(ZONES),
        dst in rules(),
        // 1973 to 2090: since 1972 offsets are whole minutes.
        near in 94_694_400i64..3_786_912_000,
    ) {
        check(&pattern, zone, dst, near)?;
    }
}
