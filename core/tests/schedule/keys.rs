//! The keys under `schedule:` of a job file, beside `cron`.

use std::collections::BTreeMap;

use punctual::schedule::{
    Calendars, Dialect, DstRules, Gap, Interner, Overlap, Schedule, ScheduleKind, ScheduleSkip,
    ScheduleSpec, Verdict,
};

use crate::helpers::{compile, fires, ms, spec};

fn verdicts(spec: &ScheduleSpec, after: &str, count: usize) -> Vec<(String, Verdict)> {
    let schedule = compile(spec);
    schedule
        .after(ms(after))
        .take(count)
        .map(|it| (schedule.zone().rfc3339(it.at_ms / 1_000), it.verdict))
        .collect()
}

fn error(spec: &ScheduleSpec) -> punctual::schedule::ScheduleError {
    Schedule::compile(spec, 0, &Calendars::default()).unwrap_err()
}

#[test]
fn the_keys_are_those_of_the_contract() {
    let json = r#"{"cron":"0 5 * * *","timezone":"Asia/Shanghai","dialect":"unix","dst":{"gap":"skip","overlap":"twice"},"start":"2026-01-01T00:00:00Z","end":"2027-01-01T00:00:00Z","exclude":["2026-12-25","holidays"],"jitter":"30s"}"#;
    let spec: ScheduleSpec = serde_json::from_str(json).unwrap();
    assert_eq!(spec.dialect, Dialect::Unix);
    assert_eq!(
        spec.dst,
        DstRules {
            gap: Gap::Skip,
            overlap: Overlap::Twice
        }
    );
    assert_eq!(serde_json::to_string(&spec).unwrap(), json);
    // Defaults are not written, and what is not written is a default.
    assert_eq!(
        serde_json::to_string(&ScheduleSpec::default()).unwrap(),
        "{}"
    );
    let partly: ScheduleSpec =
        serde_json::from_str(r#"{"every":"6h","dst":{"gap":"skip"}}"#).unwrap();
    assert_eq!(partly.dst.overlap, Overlap::Once);
    for unknown in [
        r#"{"corn":"* * * * *"}"#,
        r#"{"dst":{"gaps":"skip"}}"#,
        r#"{"dialect":"Unix"}"#,
        r#"{"dst":{"gap":"both"}}"#,
        r#"{"every":"5"}"#,
    ] {
        assert!(
            serde_json::from_str::<ScheduleSpec>(unknown).is_err(),
            "{unknown}"
        );
    }
}

#[test]
fn one_of_the_four_kinds_at_most() {
    let kind = |spec: &ScheduleSpec| compile(spec).kind();
    assert_eq!(kind(&ScheduleSpec::default()), ScheduleKind::OnDemand);
    assert_eq!(kind(&spec("@daily", "UTC")), ScheduleKind::Cron);
    let pause = "10m".parse().unwrap();
    let after_finish = ScheduleSpec {
        after_finish: Some(pause),
        ..ScheduleSpec::default()
    };
    assert_eq!(kind(&after_finish), ScheduleKind::AfterFinish(pause));
    for lazy in [&ScheduleSpec::default(), &after_finish] {
        let schedule = compile(lazy);
        assert_eq!(schedule.next(0), None);
        assert_eq!(schedule.previous(0), None);
        assert!(!schedule.never_fires());
    }
    let both = ScheduleSpec {
        every: Some(pause),
        ..spec("@daily", "UTC")
    };
    let error = error(&both);
    assert_eq!(error.field, "every");
    assert!(error.message.contains("`cron` and `every`"), "{error}");
}

#[test]
fn excluded_days_are_skipped_with_a_verdict() {
    let spec = ScheduleSpec {
        exclude: vec!["2026-01-02".into(), "2026-01-04..2026-01-05".into()],
        ..spec("0 12 * * *", "Asia/Tokyo")
    };
    let skip = Verdict::Skip(ScheduleSkip::Excluded);
    assert_eq!(
        verdicts(&spec, "2026-01-01T00:00:00+09:00", 6),
        [
            ("2026-01-01T12:00:00+09:00".into(), Verdict::Fire),
            ("2026-01-02T12:00:00+09:00".into(), skip),
            ("2026-01-03T12:00:00+09:00".into(), Verdict::Fire),
            ("2026-01-04T12:00:00+09:00".into(), skip),
            ("2026-01-05T12:00:00+09:00".into(), skip),
            ("2026-01-06T12:00:00+09:00".into(), Verdict::Fire),
        ]
    );
    let before = compile(&spec).previous(ms("2026-01-03T00:00:00+09:00"));
    assert_eq!(before.unwrap().verdict, skip);
}

#[test]
fn calendars_are_named_days() {
    let calendars = Calendars(BTreeMap::from([(
        "holidays".to_owned(),
        vec!["2026-05-01..2026-05-05".to_owned(), "2026-10-01".to_owned()],
    )]));
    let spec = ScheduleSpec {
        exclude: vec!["holidays".into()],
        ..spec("0 9 1 * *", "Asia/Shanghai")
    };
    let schedule = Schedule::compile(&spec, 0, &calendars).unwrap();
    let months: Vec<_> = schedule
        .after(ms("2026-01-02T00:00:00Z"))
        .take(10)
        .filter(|it| it.verdict == Verdict::Fire)
        .map(|it| schedule.zone().rfc3339(it.at_ms / 1_000)[5..7].to_owned())
        .collect();
    assert_eq!(months, ["02", "03", "04", "06", "07", "08", "09", "11"]);

    let unknown = ScheduleSpec {
        exclude: vec!["holiday".into()],
        ..spec
    };
    let error = Schedule::compile(&unknown, 0, &calendars).unwrap_err();
    assert!(error.hint.unwrap().contains("holidays"));
    let broken = Calendars(BTreeMap::from([(
        "holiday".to_owned(),
        vec!["May Day".to_owned()],
    )]));
    let error = Schedule::compile(&unknown, 0, &broken).unwrap_err();
    assert_eq!(error.field, "calendars");
    assert_eq!(broken.check().unwrap_err(), error);
    assert!(calendars.check().is_ok());
    // A name may begin like a date.
    let year = Calendars(BTreeMap::from([(
        "2026-holidays".to_owned(),
        vec!["2026-05-01".to_owned()],
    )]));
    let spec = ScheduleSpec {
        exclude: vec!["2026-holidays".into()],
        ..ScheduleSpec {
            cron: Some("@daily".into()),
            ..ScheduleSpec::default()
        }
    };
    let schedule = Schedule::compile(&spec, 0, &year).unwrap();
    let skipped = schedule.next(ms("2026-04-30T12:00:00Z")).unwrap();
    assert_eq!(skipped.verdict, Verdict::Skip(ScheduleSkip::Excluded));
}

#[test]
fn days_that_are_none_are_refused() {
    for text in [
        "2026-02-30",
        "2026-13-01",
        "2026-1-1",
        "2026-01-05..2026-01-04",
        "2026-01-05..",
        "20260105",
        "0000-01-01",
    ] {
        let spec = ScheduleSpec {
            exclude: vec![text.into()],
            ..spec("@daily", "UTC")
        };
        assert_eq!(error(&spec).field, "exclude", "{text}");
    }
}

/// A time in a gap at the end of a day belongs to that day, though it fires on the next.
#[test]
fn a_moved_fire_is_excluded_by_the_day_that_it_was_meant_for() {
    let with = |day: &str| ScheduleSpec {
        exclude: vec![day.into()],
        ..spec("30 23 * * *", "America/Nuuk")
    };
    let first = |spec| verdicts(&spec, "2026-03-28T12:00:00Z", 1).remove(0);
    let at = "2026-03-29T00:00:00-01:00".to_owned();
    let skip = Verdict::Skip(ScheduleSkip::Excluded);
    assert_eq!(first(with("2026-03-28")), (at.clone(), skip));
    assert_eq!(first(with("2026-03-29")), (at, Verdict::Fire));
    // With a fire of its own at midnight the instant stands for both days.
    let both = |days: &[&str]| ScheduleSpec {
        exclude: days.iter().map(|day| (*day).to_owned()).collect(),
        ..spec("0,30 23,0 * * *", "America/Nuuk")
    };
    assert_eq!(first(both(&["2026-03-28"])).1, Verdict::Fire);
    assert_eq!(first(both(&["2026-03-29"])).1, Verdict::Fire);
    assert_eq!(first(both(&["2026-03-28", "2026-03-29"])).1, skip);
}

/// In Newfoundland the clock went back at one minute past midnight: the day before came again.
#[test]
fn a_day_that_comes_again_is_not_passed_over() {
    let spec = ScheduleSpec {
        exclude: vec!["2010-11-07..2010-12-31".into()],
        ..spec("* * * * *", "America/St_Johns")
    };
    let schedule = compile(&spec);
    let excluded = schedule.next(ms("2010-11-06T23:59:00-02:30")).unwrap();
    assert_eq!(excluded.at_ms, ms("2010-11-07T00:00:00-02:30"));
    assert_eq!(excluded.verdict, Verdict::Skip(ScheduleSkip::Excluded));
    assert_eq!(
        schedule.next_fire(ms("2010-11-06T23:59:00-02:30")),
        Some(ms("2010-11-06T23:01:00-03:30"))
    );
    assert_eq!(
        schedule.next_fire(ms("2010-11-06T23:59:00-03:30")),
        Some(ms("2011-01-01T00:00:00-03:30"))
    );
}

/// Every second of a thousand years is excluded: the next fire is found all the same.
#[test]
fn long_exclusions_are_passed_in_one_step() {
    for zone in ["UTC", "America/New_York", "Asia/Tokyo", "Pacific/Apia"] {
        let spec = ScheduleSpec {
            exclude: vec!["2026-01-01..3025-12-31".into()],
            ..spec("* * * * * *", zone)
        };
        let schedule = compile(&spec);
        let next = schedule.next_fire(ms("2026-06-01T00:00:00Z")).unwrap();
        let text = schedule.zone().rfc3339(next / 1_000);
        assert!(text.starts_with("3026-01-01T00:00:00"), "{text}");
        let ever = ScheduleSpec {
            exclude: vec!["0001-01-01..9999-12-31".into()],
            ..spec
        };
        assert_eq!(compile(&ever).next_fire(ms("9000-01-01T00:00:00Z")), None);
    }
}

#[test]
fn start_and_end_are_part_of_the_schedule() {
    let spec = ScheduleSpec {
        start: Some("2026-01-01T10:00:00Z".into()),
        end: Some("2026-01-01T12:00:00Z".into()),
        ..spec("0 * * * *", "UTC")
    };
    assert_eq!(
        fires(&spec, "1990-01-01T00:00:00Z", 10),
        [
            "2026-01-01T10:00:00+00:00",
            "2026-01-01T11:00:00+00:00",
            "2026-01-01T12:00:00+00:00",
        ]
    );
    let schedule = compile(&spec);
    let back: Vec<_> = schedule.before(i64::MAX).map(|it| it.at_ms).collect();
    assert_eq!(back.len(), 3);
    assert!(back.is_sorted_by(|a, b| a > b));
    // A fraction of a second after an instant excludes it, one before does not.
    let fractions = ScheduleSpec {
        start: Some("2026-01-01T10:00:00.001Z".into()),
        end: Some("2026-01-01T11:59:59.999Z".into()),
        ..spec.clone()
    };
    assert_eq!(
        fires(&fractions, "1990-01-01T00:00:00Z", 10),
        ["2026-01-01T11:00:00+00:00"]
    );
    let backwards = ScheduleSpec {
        end: Some("2025-01-01T00:00:00Z".into()),
        ..spec
    };
    assert_eq!(error(&backwards).field, "end");
}

#[test]
fn a_start_anchors_a_period() {
    let spec = ScheduleSpec {
        every: Some("7h".parse().unwrap()),
        start: Some("2026-01-01T00:00:00".into()),
        timezone: Some("Asia/Shanghai".into()),
        ..ScheduleSpec::default()
    };
    let schedule = Schedule::compile(&spec, ms("2026-06-01T03:04:05Z"), &Calendars::default());
    let first = schedule.unwrap().next(0).unwrap();
    assert_eq!(first.at_ms, ms("2026-01-01T07:00:00+08:00"));
}

#[test]
fn schedules_cross_threads() {
    fn assert_shared<T: Send + Sync + Clone + 'static>() {}
    assert_shared::<Schedule>();
    assert_shared::<punctual::schedule::Zone>();
}

#[test]
fn jobs_share_what_means_the_same() {
    let mut interner = Interner::new();
    for text in ["@daily", "0 0 * * *", "00 00 * * *", "0 0 */1 * *"] {
        interner
            .compile(&spec(text, "Asia/Tokyo"), 0, &Calendars::default())
            .unwrap();
    }
    assert_eq!(interner.len(), 1);
    interner
        .compile(&spec("@daily", "UTC"), 0, &Calendars::default())
        .unwrap();
    assert_eq!(interner.len(), 2);
}
