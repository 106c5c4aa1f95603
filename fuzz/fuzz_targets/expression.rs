//! Any text in any dialect, asked at any instant in any zone: no panic, no answer that is not
//! later than the question, no search past its bound.
//!
//! `cargo +nightly fuzz run expression -- -max_total_time=600 -timeout=1 -rss_limit_mb=512
//! -malloc_limit_mb=16 -dict=fuzz/cron.dict`
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use punctual::schedule::cron::Cron;
use punctual::schedule::{Dialect, DstRules, Gap, Overlap, Steps, Zone};

const ZONES: [&str; 8] = [
    "UTC",
    "America/New_York",
    "Europe/Dublin",
    "Australia/Lord_Howe",
    "America/Nuuk",
    "Africa/Casablanca",
    "Pacific/Apia",
    "Asia/Kolkata",
];

#[derive(Debug, Arbitrary)]
struct Input<'t> {
    dialect: u8,
    zone: u8,
    rules: u8,
    at_ms: i64,
    text: &'t str,
}

fuzz_target!(|input: Input<'_>| {
    let dialect = [Dialect::Auto, Dialect::Unix, Dialect::Quartz][usize::from(input.dialect % 3)];
    let cron = match Cron::parse(input.text, dialect) {
        Ok(cron) => cron,
        Err(error) => {
            let length = input.text.chars().count();
            assert!(error.at.is_some_and(|at| (1..=length + 1).contains(&at)));
            assert!(error.to_string().len() < 1_000);
            return;
        }
    };
    let rules = DstRules {
        gap: if input.rules & 1 == 0 { Gap::Fire } else { Gap::Skip },
        overlap: if input.rules & 2 == 0 { Overlap::Once } else { Overlap::Twice },
    };
    let cron = cron.with_dst(rules);
    let zone = Zone::get(ZONES[usize::from(input.zone % 8)]).unwrap();
    // Half of the instants in the years that people live in.
    let at_ms = if input.rules & 4 == 0 {
        input.at_ms
    } else {
        input.at_ms.rem_euclid(6_311_433_600_000) - 315_619_200_000
    };
    let mut at = at_ms;
    for _ in 0..3 {
        let mut steps = Steps::default();
        let next = cron.next_counted(at, &zone, &mut steps);
        check(steps);
        let Some(next) = next else { break };
        assert!(next > at && next % 1_000 == 0);
        assert_eq!(cron.next(next - 1, &zone), Some(next));
        let mut steps = Steps::default();
        let previous = cron.previous_counted(next, &zone, &mut steps);
        check(steps);
        assert!(previous.is_none_or(|previous| previous <= at));
        assert!(!cron.never_fires());
        at = next;
    }
    if let Some(previous) = cron.previous(at_ms, &zone) {
        assert!(previous < at_ms && previous % 1_000 == 0);
        assert!(cron.next(previous, &zone).is_none_or(|next| next >= at_ms));
    }
});

fn check(steps: Steps) {
    assert!(steps.stretches <= Steps::MAX_STRETCHES);
    assert!(steps.months <= Steps::MAX_MONTHS + 4 * steps.stretches);
}
