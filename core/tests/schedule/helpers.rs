//! What the tests of this file's neighbours share.

use chrono::DateTime;
use punctual::schedule::cron::Cron;
use punctual::schedule::{
    Calendars, Dialect, DstRules, Gap, Overlap, Schedule, ScheduleError, ScheduleSpec, Verdict,
    Zone,
};

pub(crate) fn ms(text: &str) -> i64 {
    DateTime::parse_from_rfc3339(text)
        .unwrap()
        .timestamp_millis()
}

pub(crate) fn spec(text: &str, zone: &str) -> ScheduleSpec {
    ScheduleSpec {
        cron: Some(text.into()),
        timezone: Some(zone.into()),
        ..ScheduleSpec::default()
    }
}

pub(crate) fn unix(text: &str) -> ScheduleSpec {
    ScheduleSpec {
        dialect: Dialect::Unix,
        ..spec(text, "UTC")
    }
}

pub(crate) fn skipping_gaps(text: &str, zone: &str) -> ScheduleSpec {
    ScheduleSpec {
        dst: DstRules {
            gap: Gap::Skip,
            overlap: Overlap::Once,
        },
        ..spec(text, zone)
    }
}

pub(crate) fn compile(spec: &ScheduleSpec) -> Schedule {
    Schedule::compile(spec, 0, &Calendars::default()).unwrap()
}

/// The next `count` fires, local with offset.
pub(crate) fn fires(spec: &ScheduleSpec, after: &str, count: usize) -> Vec<String> {
    let schedule = compile(spec);
    schedule
        .after(ms(after))
        .filter(|occurrence| occurrence.verdict == Verdict::Fire)
        .take(count)
        .map(|occurrence| schedule.zone().rfc3339(occurrence.at_ms / 1_000))
        .collect()
}

/// All fires in `after < t <= until`, UTC.
pub(crate) fn fires_until(spec: &ScheduleSpec, after: &str, until: &str) -> Vec<String> {
    let until = ms(until);
    compile(spec)
        .after(ms(after))
        .take_while(|occurrence| occurrence.at_ms <= until)
        .filter(|occurrence| occurrence.verdict == Verdict::Fire)
        .map(|occurrence| Zone::utc().rfc3339(occurrence.at_ms / 1_000))
        .map(|text| text.replace("+00:00", "Z"))
        .collect()
}

pub(crate) fn refused(text: &str, dialect: Dialect) -> ScheduleError {
    match Cron::parse(text, dialect) {
        Ok(_) => panic!("{text:?} was read"),
        Err(error) => error,
    }
}
