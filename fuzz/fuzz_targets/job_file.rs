//! Any `schedule:` of a job file: compiling, explaining and asking it neither panics nor runs
//! away, and what is read is written back as it was.
//!
//! `cargo +nightly fuzz run job_file -- -max_total_time=600 -timeout=1 -rss_limit_mb=512
//! -malloc_limit_mb=16`
#![no_main]

use libfuzzer_sys::fuzz_target;
use punctual::schedule::explain::{Language, explain};
use punctual::schedule::query::answer_line;
use punctual::schedule::{Calendars, Schedule, ScheduleSpec};

const NOW_MS: i64 = 1_767_225_600_000;

fuzz_target!(|text: &str| {
    let _ = answer_line(text, NOW_MS);
    let Ok(spec) = serde_json::from_str::<ScheduleSpec>(text) else {
        return;
    };
    let written = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<ScheduleSpec>(&written).unwrap(), spec);
    let calendars = Calendars::default();
    let Ok(schedule) = Schedule::compile(&spec, NOW_MS, &calendars) else {
        return;
    };
    let mut last = NOW_MS;
    for occurrence in schedule.after(NOW_MS).take(5) {
        assert!(occurrence.at_ms > last);
        last = occurrence.at_ms;
    }
    let mut last = NOW_MS;
    for occurrence in schedule.before(NOW_MS).take(5) {
        assert!(occurrence.at_ms < last);
        last = occurrence.at_ms;
    }
    let fire = schedule.next_fire(NOW_MS);
    assert!(fire.is_none_or(|fire| fire > NOW_MS));
    let _ = Schedule::check(&spec, NOW_MS, &calendars);
    let language = if text.len() % 2 == 0 { Language::English } else { Language::Chinese };
    let explained = explain(&spec, NOW_MS, &calendars, 3, language).unwrap();
    assert!(!explained.words.is_empty());
});
