//! Every row of `cases/schedules.json`: expressions with the right answers, forward and backward,
//! and texts that must be refused.

use chrono::DateTime;
use punctual::schedule::cron::Cron;
use punctual::schedule::{Calendars, Dialect, Schedule, ScheduleSpec, Verdict, Zone};
use serde::Deserialize;

#[derive(Deserialize)]
struct Corpus {
    cases: Vec<Case>,
    invalid: Vec<Invalid>,
    oversized: Vec<Oversized>,
}

#[derive(Deserialize)]
struct Case {
    expr: String,
    dialect: String,
    tz: String,
    after: String,
    expected: Vec<String>,
    complete: bool,
    class: String,
}

#[derive(Deserialize)]
struct Invalid {
    expr: String,
    dialect: String,
    reason: String,
}

#[derive(Deserialize)]
struct Oversized {
    dialect: String,
    expr_gen: Generated,
}

#[derive(Deserialize)]
struct Generated {
    prefix: String,
    repeat: String,
    times: usize,
    suffix: String,
}

fn corpus() -> Corpus {
    serde_json::from_str(include_str!("../cases/schedules.json")).unwrap()
}

fn dialect(name: &str) -> Dialect {
    match name {
        "unix5" | "unix6" => Dialect::Unix,
        "quartz" => Dialect::Quartz,
        other => panic!("unknown dialect {other}"),
    }
}

fn ms(text: &str) -> i64 {
    DateTime::parse_from_rfc3339(text)
        .unwrap()
        .timestamp_millis()
}

fn schedule(case: &Case) -> Schedule {
    let spec = ScheduleSpec {
        cron: Some(case.expr.clone()),
        timezone: Some(case.tz.clone()),
        dialect: dialect(&case.dialect),
        ..ScheduleSpec::default()
    };
    Schedule::compile(&spec, 0, &Calendars::default())
        .unwrap_or_else(|error| panic!("{}: {error}", case.expr))
}

#[test]
fn fires_when_it_should_forward() {
    let corpus = corpus();
    assert_eq!(corpus.cases.len(), 217);
    let mut wrong = Vec::new();
    for case in &corpus.cases {
        let (schedule, zone) = (schedule(case), Zone::get(&case.tz).unwrap());
        let mut after = ms(&case.after);
        for expected in &case.expected {
            let occurrence = schedule.next(after);
            let got = occurrence.map(|it| zone.rfc3339(it.at_ms / 1_000));
            if got.as_ref() != Some(expected) {
                wrong.push(format!(
                    "{} {} {}: {got:?} where {expected} is right",
                    case.class, case.expr, case.tz
                ));
                break;
            }
            let occurrence = occurrence.unwrap();
            assert_eq!(occurrence.verdict, Verdict::Fire);
            after = occurrence.at_ms;
        }
        let horizon = ms("2086-01-01T00:00:00Z");
        if case.complete
            && let Some(more) = schedule.next(after)
            && more.at_ms < horizon
        {
            wrong.push(format!("{} {}: one too many", case.class, case.expr));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn fires_when_it_should_backward() {
    let mut checked = 0;
    let mut wrong = Vec::new();
    for case in &corpus().cases {
        let (schedule, zone) = (schedule(case), Zone::get(&case.tz).unwrap());
        for pair in case.expected.windows(2) {
            let got = schedule.previous(ms(&pair[1]));
            let got = got.map(|it| zone.rfc3339(it.at_ms / 1_000));
            checked += 1;
            if got.as_ref() != Some(&pair[0]) {
                wrong.push(format!(
                    "{} {} {} before {}: {got:?} where {} is right",
                    case.class, case.expr, case.tz, pair[1], pair[0]
                ));
            }
        }
    }
    assert!(checked > 600, "{checked}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn refuses_what_is_no_expression() {
    let corpus = corpus();
    assert_eq!(corpus.invalid.len(), 83);
    let mut wrong = Vec::new();
    for case in &corpus.invalid {
        match Cron::parse(&case.expr, dialect(&case.dialect)) {
            Ok(_) => wrong.push(format!("{} {:?}: {}", case.dialect, case.expr, case.reason)),
            Err(error) => {
                assert!(error.hint.is_some(), "{:?}: {error}", case.expr);
                if let Some(at) = error.at {
                    let length = case.expr.chars().count();
                    assert!((1..=length + 1).contains(&at), "{:?}: {error}", case.expr);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn refuses_what_is_too_long() {
    for case in corpus().oversized {
        let Generated {
            prefix,
            repeat,
            times,
            suffix,
        } = case.expr_gen;
        let text = format!("{prefix}{}{suffix}", repeat.repeat(times));
        let error = Cron::parse(&text, dialect(&case.dialect)).unwrap_err();
        assert!(error.message.contains("512"), "{error}");
        assert!(error.to_string().len() < 300, "{error}");
    }
}
