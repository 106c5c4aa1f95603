//! How `cron` and `croner` do on the corpus that ours must get right without exception:
//! `cargo run --release -p punctual-bench --bin schedule-corpus`.
//!
//! They get every help: seconds are put before 5 fields, Unix weekday numbers are put into the
//! numbering of `cron`, `croner` is told which numbering a row has.
#![allow(
    clippy::print_stdout,
    reason = "a command line tool talks on its streams"
)]

use std::error::Error;
use std::str::FromStr;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeZone};
use chrono_tz::Tz;
use croner::parser::{CronParser, Seconds};
use punctual::schedule::cron::Cron;
use punctual::schedule::{Dialect, Zone};
use serde_json::Value;

/// What became of one library.
#[derive(Default)]
struct Score {
    right: usize,
    refused: usize,
    wrong: usize,
    /// Answers that are not later than the question.
    not_later: usize,
    accepted_invalid: usize,
    slowest: (Duration, String),
}

fn main() -> Result<(), Box<dyn Error>> {
    let corpus: Value =
        serde_json::from_str(include_str!("../../../core/tests/cases/schedules.json"))?;
    println!(
        "| library | right | wrong | refused | answers not later | invalid texts read | slowest text |"
    );
    println!("|---|---|---|---|---|---|---|");
    for library in ["ours", "cron", "croner"] {
        let score = score(library, &corpus)?;
        println!(
            "| {library} | {} | {} | {} | {} | {} | {:.3} s `{}` |",
            score.right,
            score.wrong,
            score.refused,
            score.not_later,
            score.accepted_invalid,
            score.slowest.0.as_secs_f64(),
            score.slowest.1.escape_debug()
        );
    }
    Ok(())
}

fn score(library: &str, corpus: &Value) -> Result<Score, Box<dyn Error>> {
    let mut score = Score::default();
    let list = |name: &str| corpus[name].as_array().ok_or("no list").cloned();
    for case in list("cases")? {
        let text = |name: &str| case[name].as_str().unwrap_or_default().to_owned();
        let expected: Vec<String> = serde_json::from_value(case["expected"].clone())?;
        let started = Instant::now();
        let mut at = DateTime::parse_from_rfc3339(&text("after"))?.timestamp_millis();
        let mut right = true;
        let mut read = true;
        // One more than expected where nothing more may come.
        let extra = usize::from(case["complete"] == true);
        for n in 0..expected.len() + extra {
            let next = next(library, &text("expr"), &text("dialect"), &text("tz"), at);
            let Ok(next) = next else {
                read = false;
                break;
            };
            if next.is_some_and(|next| next <= at) {
                score.not_later += 1;
            }
            let wanted = match expected.get(n) {
                Some(text) => Some(DateTime::parse_from_rfc3339(text)?.timestamp_millis()),
                None => None,
            };
            if next != wanted {
                right = false;
                break;
            }
            at = next.unwrap_or(at);
        }
        match (read, right) {
            (false, _) => score.refused += 1,
            (true, true) => score.right += 1,
            (true, false) => score.wrong += 1,
        }
        score.time(started, text("expr"));
    }
    for case in list("invalid")? {
        let text = |name: &str| case[name].as_str().unwrap_or_default().to_owned();
        let started = Instant::now();
        // A text is read only if it can be asked, too.
        if next(library, &text("expr"), &text("dialect"), "UTC", 0).is_ok() {
            score.accepted_invalid += 1;
        }
        score.time(started, text("expr"));
    }
    Ok(score)
}

impl Score {
    fn time(&mut self, started: Instant, text: String) {
        let taken = started.elapsed();
        if taken > self.slowest.0 {
            self.slowest = (taken, text);
        }
    }
}

/// The next fire in Unix milliseconds; an error when the text is refused.
fn next(
    library: &str,
    text: &str,
    dialect: &str,
    zone: &str,
    after_ms: i64,
) -> Result<Option<i64>, Box<dyn Error>> {
    let quartz = dialect == "quartz";
    if library == "ours" {
        let dialect = if quartz {
            Dialect::Quartz
        } else {
            Dialect::Unix
        };
        return Ok(Cron::parse(text, dialect)?.next(after_ms, &Zone::get(zone)?));
    }
    let tz = Tz::from_str(zone)?;
    let after = tz
        .timestamp_millis_opt(after_ms)
        .single()
        .ok_or("no instant")?;
    if library == "cron" {
        let schedule = cron::Schedule::from_str(&for_cron(text, quartz))?;
        let next = schedule.after(&after).next();
        return Ok(next.map(|next| next.timestamp_millis()));
    }
    let parser = CronParser::builder()
        .seconds(Seconds::Optional)
        .alternative_weekdays(quartz)
        .build();
    let schedule = parser.parse(text)?;
    let next = schedule.find_next_occurrence(&after, false);
    Ok(next.ok().map(|next| next.timestamp_millis()))
}

/// Seconds before 5 fields, and Unix weekday numbers counted from 1.
fn for_cron(text: &str, quartz: bool) -> String {
    let mut fields: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    if quartz || !matches!(fields.len(), 5 | 6) {
        return text.to_owned();
    }
    if fields.len() == 5 {
        fields.insert(0, "0".into());
    }
    let mut counted = String::new();
    // Neither a step nor the number of a weekday is one.
    let mut is_weekday = true;
    for c in fields[5].chars() {
        match c {
            '/' | '#' => is_weekday = false,
            ',' => is_weekday = true,
            _ => {}
        }
        match c.to_digit(10) {
            Some(day) if is_weekday && day <= 7 => counted.push_str(&(day % 7 + 1).to_string()),
            _ => counted.push(c),
        }
    }
    fields[5] = counted;
    fields.join(" ")
}
