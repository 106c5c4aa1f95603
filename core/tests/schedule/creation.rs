//! What is decided when a job is created: instants and zones are read, dialects settled, dead
//! schedules refused.

use punctual::schedule::{
    Calendars, Dialect, DstRules, Gap, Overlap, Schedule, ScheduleError, ScheduleKind, ScheduleSpec,
};

use crate::helpers::{compile, fires, ms, spec};

fn error(spec: &ScheduleSpec) -> ScheduleError {
    Schedule::compile(spec, 0, &Calendars::default()).unwrap_err()
}

fn at(text: &str, zone: Option<&str>) -> ScheduleSpec {
    ScheduleSpec {
        at: Some(text.into()),
        timezone: zone.map(str::to_owned),
        ..ScheduleSpec::default()
    }
}

#[test]
fn at_fires_once() {
    let once = |spec: &ScheduleSpec| {
        let schedule = compile(spec);
        let ScheduleKind::At(at_ms) = schedule.kind() else {
            panic!("{:?}", schedule.kind());
        };
        assert_eq!(schedule.next(at_ms - 1).map(|it| it.at_ms), Some(at_ms));
        assert_eq!(schedule.next(at_ms), None);
        assert_eq!(schedule.previous(at_ms), None);
        assert_eq!(schedule.previous(at_ms + 1).map(|it| it.at_ms), Some(at_ms));
        at_ms
    };
    let utc = ms("2026-05-01T01:00:00Z");
    assert_eq!(once(&at("2026-05-01T01:00:00Z", None)), utc);
    assert_eq!(once(&at("2026-05-01T09:00:00+08:00", None)), utc);
    assert_eq!(once(&at("2026-05-01T09:00:00", Some("Asia/Shanghai"))), utc);
    assert_eq!(once(&at("2026-05-01 09:00", Some("Asia/Shanghai"))), utc);
    // Instants are whole seconds, and a run is never early.
    assert_eq!(once(&at("2026-05-01T01:00:00.250Z", None)), utc + 1_000);
    // The repeated hour: the first pass.
    assert_eq!(
        once(&at("2026-11-01T01:30:00", Some("America/New_York"))),
        ms("2026-11-01T01:30:00-04:00")
    );
    // The gap: the first instant after it, or a refusal that says so.
    let in_the_gap = at("2026-03-08T02:30:00", Some("America/New_York"));
    assert_eq!(once(&in_the_gap), ms("2026-03-08T03:00:00-04:00"));
    let skip = ScheduleSpec {
        dst: DstRules {
            gap: Gap::Skip,
            overlap: Overlap::Once,
        },
        ..in_the_gap
    };
    let error = error(&skip);
    assert_eq!(error.field, "at");
    assert!(error.hint.unwrap().contains("2026-03-08T03:00:00-04:00"));
}

#[test]
fn instants_that_are_none_are_refused() {
    for text in [
        "",
        "tomorrow",
        "2026-05-01",
        "2026-02-30T00:00:00",
        "99999-01-01T00:00:00Z",
    ] {
        assert_eq!(error(&at(text, None)).field, "at", "{text}");
    }
}

#[test]
fn zones_come_from_the_built_in_database_only() {
    for (name, hint) in [
        ("Asia/Shangai", "Asia/Shanghai"),
        ("Shanghai", "Asia/Shanghai"),
        ("+08:00", "Etc/GMT-8"),
        ("UTC+8", "Etc/GMT-8"),
        ("Middle/Earth", "IANA"),
        ("EST5EDT4,M3.2.0,M11.1.0", "IANA"),
    ] {
        let error = error(&spec("@daily", name));
        assert_eq!(error.field, "timezone");
        assert!(
            error.hint.clone().unwrap().contains(hint),
            "{name}: {error}"
        );
    }
    // Rules of 2025 and later: British Columbia stays on summer time from 2026 on.
    let winter = fires(
        &spec("0 12 1 12 *", "America/Vancouver"),
        "2026-06-01T00:00:00Z",
        1,
    );
    assert_eq!(winter, ["2026-12-01T12:00:00-07:00"]);
    assert!(punctual::schedule::tzdb_version() >= "2026");
}

#[test]
fn a_schedule_without_a_future_is_refused_at_creation() {
    let now = ms("2026-06-01T00:00:00Z");
    let check = |spec: &ScheduleSpec| Schedule::check(spec, now, &Calendars::default());
    let dead = |spec: &ScheduleSpec| check(spec).unwrap_err().field;
    let ended = ScheduleSpec {
        end: Some("2026-05-01T00:00:00Z".into()),
        ..spec("@daily", "UTC")
    };
    assert_eq!(dead(&ended), "cron");
    let all_excluded = ScheduleSpec {
        exclude: vec!["2026-06-01..9999-12-31".into()],
        ..spec("@daily", "UTC")
    };
    assert_eq!(dead(&all_excluded), "cron");
    let short = ScheduleSpec {
        every: Some("1d".parse().unwrap()),
        end: Some("2026-06-01T12:00:00Z".into()),
        ..ScheduleSpec::default()
    };
    assert_eq!(dead(&short), "every");
    let excluded = ScheduleSpec {
        exclude: vec!["2026-07-01".into()],
        ..at("2026-07-01T12:00:00Z", None)
    };
    assert_eq!(dead(&excluded), "at");
    // Only gaps: 02:30 of the second Sunday of March, skipped each year.
    let gaps = ScheduleSpec {
        dst: DstRules {
            gap: Gap::Skip,
            overlap: Overlap::Once,
        },
        ..spec("0 30 2 ? 3 SUN#2", "America/New_York")
    };
    assert_eq!(dead(&gaps), "cron");
    // An instant in the past is for the caller to judge.
    assert!(check(&at("2020-01-01T00:00:00Z", None)).is_ok());
    assert!(check(&ScheduleSpec::default()).is_ok());
    assert!(check(&spec("@daily", "UTC")).is_ok());
}

#[test]
fn six_fields_with_a_weekday_number_are_refused_with_both_readings() {
    let error = Schedule::compile(
        &spec("0 0 12 * * 1-5", "Asia/Shanghai"),
        ms("2026-01-01T00:00:00Z"),
        &Calendars::default(),
    )
    .unwrap_err();
    assert_eq!(
        (error.field, error.at, error.len),
        ("day of week", Some(12), 3)
    );
    assert_eq!(
        error.hint.unwrap(),
        "write the name (MON-FRI), or set `dialect: unix` (MON-FRI: 2026-01-01, 2026-01-02, 2026-01-05) or `dialect: quartz` (SUN-THU: 2026-01-01, 2026-01-04, 2026-01-05)"
    );
    for clear in [
        "0 0 12 * * *",
        "0 0 12 * * */2",
        "0 0 12 * * MON-FRI",
        "0 0 12 * * MON#2",
    ] {
        assert!(Schedule::compile(&spec(clear, "UTC"), 0, &Calendars::default()).is_ok());
    }
    for number in [
        "0 0 12 * * 0",
        "0 0 12 * * 5L",
        "0 0 12 * * MON,3",
        "0 0 12 1 * 2",
    ] {
        let result = Schedule::compile(&spec(number, "UTC"), 0, &Calendars::default());
        assert_eq!(result.unwrap_err().field, "day of week", "{number}");
    }
}

#[test]
fn a_weekday_number_does_not_hide_another_error() {
    for (text, field) in [
        ("0 99 12 * * 1", "minute"),
        ("0 0 12 * 13 1-5", "month"),
        ("0 0 12 * * 9", "day of week"),
    ] {
        let error = error(&spec(text, "UTC"));
        assert_eq!(error.field, field, "{error}");
        assert!(!error.message.contains("two dialects"), "{error}");
    }
    // One of the dialects refuses it: the number is open all the same, and the hint says so.
    let error = error(&spec("0 0 12 15 * 1", "UTC"));
    assert!(
        error.hint.unwrap().contains("refuses it"),
        "{}",
        error.message
    );
}

#[test]
fn the_dialect_is_decided_once() {
    for (text, dialect) in [
        ("0 0 * * *", Dialect::Unix),
        ("0 0 0 * * MON", Dialect::Unix),
        ("@daily", Dialect::Unix),
        ("0 0 0 * * ?", Dialect::Quartz),
        ("0 0 0 * * * 2030", Dialect::Quartz),
    ] {
        let decided = spec(text, "UTC").with_dialect_decided().unwrap();
        assert_eq!(decided.dialect, dialect, "{text}");
        assert_eq!(compile(&decided), compile(&spec(text, "UTC")));
        assert_eq!(decided.clone().with_dialect_decided().unwrap(), decided);
    }
    assert!(spec("0 0 0 * * 1", "UTC").with_dialect_decided().is_err());
    let every = ScheduleSpec {
        every: Some("1h".parse().unwrap()),
        ..ScheduleSpec::default()
    };
    assert_eq!(every.clone().with_dialect_decided().unwrap(), every);
}
