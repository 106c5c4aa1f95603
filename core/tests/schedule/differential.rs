//! Random expressions against two other readers, `cron` and `croner`, in UTC. What they read they
//! must answer as ours does (`cron` until its years end in 2100); what they refuse must have a name:
//! a rule of ours that they do not share. The texts are rewritten for each, so that they can read
//! as many as possible (see [`rewrite`]), and `cron`, which knows no OR, is asked both halves.
//!
//! The test takes a sample; `PUNCTUAL_RANDOM_EXPRESSIONS=100000 cargo test --release -p punctual
//! --test schedule differential -- --nocapture` takes 100,000 expressions a dialect.

use std::collections::BTreeMap;
use std::str::FromStr;

use chrono::{DateTime, Datelike, Utc};
use croner::parser::{CronParser, Seconds};
use punctual::schedule::cron::Cron;
use punctual::schedule::{Dialect, Zone};

use crate::departures::{Reader, departure, halves, rewrite};
use crate::random::{self, Random};

type Fires = Vec<DateTime<Utc>>;

/// Questions are asked in the years 2020 to 2090, Unix seconds.
const FIRST: i64 = 1_577_836_800;
const LAST: i64 = 3_786_912_000;

/// How many fires are compared.
const FIRES: usize = 5;

fn sample() -> u64 {
    match std::env::var("PUNCTUAL_RANDOM_EXPRESSIONS") {
        Ok(text) => text.parse().unwrap(),
        Err(_) => 20_000,
    }
}

fn ours(cron: &Cron, after: DateTime<Utc>) -> Fires {
    let (mut at, mut fires) = (after.timestamp_millis(), Vec::new());
    while fires.len() < FIRES
        && let Some(next) = cron.next(at, &Zone::utc())
    {
        fires.push(DateTime::from_timestamp_millis(next).unwrap());
        at = next;
    }
    fires
}

/// What another reader makes of a text; `None` when it refuses it.
fn theirs(reader: Reader, text: &str, dialect: Dialect, after: DateTime<Utc>) -> Option<Fires> {
    if reader == Reader::Cron
        && let Some(halves) = halves(text)
    {
        let mut fires = Fires::new();
        for half in halves {
            fires.extend(theirs(reader, &half, dialect, after)?);
        }
        fires.sort();
        fires.dedup();
        fires.truncate(FIRES);
        return Some(fires);
    }
    let text = rewrite(reader, text, dialect);
    match reader {
        Reader::Cron => {
            let schedule = cron::Schedule::from_str(&text).ok()?;
            Some(schedule.after(&after).take(FIRES).collect())
        }
        Reader::Croner => {
            let parser = CronParser::builder()
                .seconds(Seconds::Optional)
                .alternative_weekdays(dialect == Dialect::Quartz)
                .build();
            let schedule = parser.parse(&text).ok()?;
            Some(schedule.iter_after(after).take(FIRES).collect())
        }
    }
}

/// Compares a sample of a dialect and returns what was counted under each name.
#[allow(clippy::print_stdout, reason = "a report, shown with --nocapture")]
fn compare(dialect: Dialect) -> BTreeMap<(Reader, &'static str), u64> {
    let mut random = Random(0x5eed);
    let mut counts = BTreeMap::new();
    let mut unnamed = Vec::new();
    for _ in 0..sample() {
        let text = match dialect {
            Dialect::Quartz => random::quartz(&mut random),
            _ => random::unix(&mut random),
        };
        let after = random.number(FIRST as u64, LAST as u64) as i64;
        let after = DateTime::from_timestamp_secs(after).unwrap();
        let cron = Cron::parse(&text, dialect).unwrap_or_else(|error| panic!("{text}: {error}"));
        let fires = ours(&cron, after);
        let late = fires.iter().any(|fire| fire.year() > 2_100);
        for reader in [Reader::Cron, Reader::Croner] {
            let name = if reader == Reader::Croner && is_far(&fires, after) {
                "not asked: rare"
            } else {
                match theirs(reader, &text, dialect, after) {
                    Some(theirs) if theirs == fires => "same",
                    // Its years end in 2100, so that it lists fewer.
                    Some(theirs) if late && fires.starts_with(&theirs) => "years go on after 2100",
                    Some(theirs) => {
                        unnamed.push(format!(
                            "{reader:?} {text} after {after}: ours {fires:?} theirs {theirs:?}"
                        ));
                        "ANOTHER ANSWER"
                    }
                    None => departure(reader, &text, dialect).unwrap_or_else(|| {
                        unnamed.push(format!("{reader:?} {text}: refused"));
                        "REFUSED WITHOUT A NAME"
                    }),
                }
            };
            *counts.entry((reader, name)).or_insert(0) += 1;
        }
    }
    println!("{dialect:?}: {} expressions", sample());
    for ((reader, name), count) in &counts {
        println!("  {reader:?}: {count:>7} {name}");
    }
    unnamed.truncate(40);
    assert!(unnamed.is_empty(), "{}", unnamed.join("\n"));
    counts
}

/// `croner` walks to a far year for seconds: what is more than 12 years away, or never comes, is
/// left to `cron` and to the scan.
fn is_far(fires: &Fires, after: DateTime<Utc>) -> bool {
    match fires.get(FIRES - 1) {
        Some(last) => last.signed_duration_since(after).num_days() > 12 * 366,
        None => true,
    }
}

#[test]
fn differential_unix() {
    let counts = compare(Dialect::Unix);
    // Most of the sample is compared, not excused.
    assert!(counts[&(Reader::Cron, "same")] > sample() / 2);
    assert!(counts[&(Reader::Croner, "same")] > sample() / 2);
}

#[test]
fn differential_quartz() {
    let counts = compare(Dialect::Quartz);
    assert!(counts[&(Reader::Cron, "same")] > sample() / 2);
    assert!(counts[&(Reader::Croner, "same")] > sample() / 2);
}
