//! A real cluster under random faults, or on a slow store, for as long as one likes:
//! `cargo xtask soak`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a command line tool"
)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use punctual_tests::check::Violation;
use punctual_tests::cluster::report::Report;
use punctual_tests::cluster::slow;
use punctual_tests::cluster::soak::{Options, count, soak};

const USAGE: &str = "usage: soak --punctual BINARY [--minutes N] [--seed N] [--jobs N] \
                     [--per-second N] [--between-seconds N | --slow-ms N]";

fn main() -> ExitCode {
    let (binary, options, slow_ms) = match parse(std::env::args().skip(1)) {
        Ok(parsed) => parsed,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match slow_ms {
        Some(slow_ms) => be_slow(&binary, &options, slow_ms),
        None => break_things(&binary, &options),
    }
}

fn break_things(binary: &Path, options: &Options) -> ExitCode {
    println!("seed {}, {options:?}", options.seed);
    let outcome = soak(binary, options, &mut |line| println!("{line}"));
    println!("faults:");
    for (kind, count) in &outcome.faults {
        println!("  {kind}: {count}");
    }
    println!("  in all: {}", outcome.faults.values().sum::<u64>());
    println!("{}", outcome.report);
    judge(&outcome.report, &outcome.violations, 0)
}

fn be_slow(binary: &Path, options: &Options, slow_ms: u64) -> ExitCode {
    let options = slow::Options {
        duration: options.duration,
        delay: Duration::from_millis(slow_ms),
        seed: options.seed,
        jobs: options.jobs,
        per_second: options.per_second,
    };
    println!("seed {}, {options:?}", options.seed);
    let outcome = slow::slow(binary, &options, &mut |line| println!("{line}"));
    println!(
        "a write took: {} ({} writes)",
        outcome.writes, outcome.probes
    );
    println!("{}", outcome.report);
    println!(
        "leader changes after the first election: {}, sessions opened anew: {}",
        outcome.leader_changes, outcome.sessions_lost
    );
    judge(&outcome.report, &outcome.violations, outcome.leader_changes)
}

/// Says what went wrong; nothing may.
fn judge(report: &Report, violations: &[Violation], flapped: u64) -> ExitCode {
    let missed = count(violations, &["no miss"]);
    let twice = count(
        violations,
        &["no duplicate", "at most one start an attempt"],
    );
    let lost = report.ends.get("failed: worker_lost").unwrap_or(&0);
    println!(
        "missed: {missed}, duplicates: {twice}, lost with their worker: {lost}, violations: {}",
        violations.len()
    );
    for violation in violations {
        println!("  {violation:?}");
    }
    if violations.is_empty() && flapped == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}

fn parse(
    mut words: impl Iterator<Item = String>,
) -> Result<(PathBuf, Options, Option<u64>), String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut options = Options {
        duration: Duration::from_secs(600),
        seed: since.map_or(1, |since| since.as_secs()),
        jobs: 200,
        per_second: 15,
        between: Duration::from_secs(5),
    };
    let (mut binary, mut slow_ms) = (None, None);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("{word}: a value"))?;
        let number = || {
            let number: Result<u64, _> = value.parse();
            number.map_err(|_| format!("{word} {value}: a number"))
        };
        match word.as_str() {
            "--punctual" => binary = Some(PathBuf::from(&value)),
            "--minutes" => options.duration = Duration::from_secs(number()? * 60),
            "--seed" => options.seed = number()?,
            "--jobs" => options.jobs = usize::try_from(number()?).unwrap_or(usize::MAX),
            "--per-second" => options.per_second = number()?,
            "--between-seconds" => options.between = Duration::from_secs(number()?),
            "--slow-ms" => slow_ms = Some(number()?),
            _ => return Err(format!("{word} is no option")),
        }
    }
    let binary = binary.ok_or("--punctual is missing")?;
    let binary = std::path::absolute(binary).map_err(|error| error.to_string())?;
    Ok((binary, options, slow_ms))
}
