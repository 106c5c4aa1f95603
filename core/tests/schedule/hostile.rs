//! Texts that mean harm: the parser answers each of them, and what it reads can be asked.
//!
//! The test takes a sample; `PUNCTUAL_HOSTILE_TEXTS=1000000 cargo test --release -p punctual
//! --test schedule hostile` takes a million.

use punctual::schedule::cron::Cron;
use punctual::schedule::query::{NextAnswer, NextQuery, answer};
use punctual::schedule::{Dialect, MAX_LEN, Steps, Zone};

use crate::random::{Random, hostile};

fn sample() -> u64 {
    match std::env::var("PUNCTUAL_HOSTILE_TEXTS") {
        Ok(text) => text.parse().unwrap(),
        Err(_) => 30_000,
    }
}

/// Reads a text in all dialects and asks what was read; true when one of them read it.
fn survive(text: &str) -> bool {
    let zone = Zone::get("America/New_York").unwrap();
    let mut read = false;
    for dialect in [Dialect::Auto, Dialect::Unix, Dialect::Quartz] {
        let cron = match Cron::parse(text, dialect) {
            Ok(cron) => cron,
            Err(error) => {
                let length = text.chars().count();
                let at = error.at.unwrap_or_else(|| panic!("{text:?}: {error}"));
                assert!((1..=length + 1).contains(&at), "{text:?}: {error}");
                assert!(error.to_string().len() < 1_000, "{text:?}: {error}");
                continue;
            }
        };
        read = true;
        let mut steps = Steps::default();
        let mut at = 1_767_225_600_000;
        for _ in 0..3 {
            let Some(next) = cron.next_counted(at, &zone, &mut steps) else {
                break;
            };
            assert!(next > at, "{text:?}");
            let previous = cron.previous_counted(next, &zone, &mut steps);
            assert!(previous.is_none_or(|it| it <= at), "{text:?}");
            at = next;
        }
        // Six searches; each looks at two stretches and 400 years of months at most, unless it
        // meets nothing but gaps.
        assert!(
            steps.stretches <= 6 * Steps::MAX_STRETCHES,
            "{text:?}: {steps:?}"
        );
        assert!(
            steps.months <= 6 * 4 * Steps::MAX_MONTHS,
            "{text:?}: {steps:?}"
        );
    }
    read
}

#[test]
fn c31_random_texts_do_no_harm() {
    let mut random = Random(0xbad);
    let read = (0..sample())
        .filter(|_| survive(&hostile(&mut random)))
        .count() as u64;
    // Both ways through the parser are walked.
    assert!(read > sample() / 20 && read < sample() / 2, "{read}");
}

#[test]
fn c31_random_bytes_do_no_harm() {
    let mut random = Random(0xb17e);
    for _ in 0..sample() {
        let bytes: Vec<u8> = (0..random.number(0, 64))
            .map(|_| random.next() as u8)
            .collect();
        survive(&String::from_utf8_lossy(&bytes));
    }
}

#[test]
fn long_texts_are_refused_or_read_at_their_limit() {
    let longest = format!("{} * * * *", vec!["1"; (MAX_LEN - 8) / 2].join(","));
    assert!(longest.len() <= MAX_LEN);
    assert!(survive(&longest));
    for text in [
        "1,".repeat(300),
        " ".repeat(MAX_LEN + 1),
        "é".repeat(MAX_LEN),
        format!("{longest}   {}", " ".repeat(MAX_LEN)),
    ] {
        assert!(!survive(&text));
    }
}

/// Found by fuzzing: a list of 500 characters stood in the message three times.
#[test]
fn messages_stay_short_whatever_is_sent() {
    let numbers = ["1", "2-5", "6#3"].repeat(40).join(",");
    for text in [
        format!("0 0 0 * * {numbers}"),
        format!("TZ={}", "A".repeat(500)),
        format!("@every {}", "9".repeat(500)),
        format!("@{}", "\"".repeat(500)),
        format!("/{} * * * *", "9".repeat(490)),
        format!("{} * * * *", "Z".repeat(490)),
    ] {
        assert!(text.len() <= MAX_LEN, "{}", text.len());
        let error = Cron::parse(&text, Dialect::Auto).unwrap_err().to_string();
        assert!(error.len() < 600, "{} {error}", error.len());
    }
}

#[test]
fn questions_with_wild_fields_are_answered() {
    for (tz, after, count) in [
        (Some("../../etc/passwd"), None, None),
        (Some("/usr/share/zoneinfo/UTC"), None, None),
        (Some("EST5EDT4,M3.2.0,M11.1.0"), None, None),
        (Some(":UTC"), None, None),
        (Some("localtime"), None, None),
        (Some(""), None, None),
        (Some("é"), None, None),
        (None, Some("9999-12-31T23:59:60Z"), None),
        (None, Some("-0001-01-01T00:00:00Z"), None),
        (None, Some("2026-02-30T00:00:00Z"), None),
        (None, None, Some(usize::MAX)),
        (None, None, Some(0)),
    ] {
        let query = NextQuery {
            expr: "* * * * *".into(),
            dialect: Dialect::Auto,
            tz: tz.map(str::to_owned),
            after: after.map(str::to_owned),
            count,
        };
        match answer(&query, 0) {
            NextAnswer::Error { error, .. } => assert!(error.len() < 300, "{error}"),
            NextAnswer::Fires { next } => {
                assert!(next.is_empty(), "{query:?} was answered: {next:?}");
            }
        }
    }
}
