//! A real cluster under random faults for as long as one likes: `cargo xtask soak`.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a command line tool"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use punctual_tests::cluster::soak::{Options, soak};

const USAGE: &str = "usage: soak --punctual BINARY [--minutes N] [--seed N] [--jobs N] \
                     [--per-second N] [--between-seconds N]";

fn main() -> ExitCode {
    let (binary, options) = match parse(std::env::args().skip(1)) {
        Ok(parsed) => parsed,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    println!("seed {}, {options:?}", options.seed);
    let outcome = soak(&binary, &options, &mut |line| println!("{line}"));
    println!("faults:");
    for (kind, count) in &outcome.faults {
        println!("  {kind}: {count}");
    }
    println!("  in all: {}", outcome.faults.values().sum::<u64>());
    println!("{}", outcome.report);
    let missed = outcome.count(&["no miss"]);
    let twice = outcome.count(&["no duplicate", "at most one start an attempt"]);
    let lost = outcome.report.ends.get("failed: worker_lost").unwrap_or(&0);
    println!(
        "missed: {missed}, duplicates: {twice}, lost with their worker: {lost}, violations: {}",
        outcome.violations.len()
    );
    for violation in &outcome.violations {
        println!("  {violation:?}");
    }
    if outcome.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<(PathBuf, Options), String> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut options = Options {
        duration: Duration::from_secs(600),
        seed: since.map_or(1, |since| since.as_secs()),
        jobs: 200,
        per_second: 15,
        between: Duration::from_secs(5),
    };
    let mut binary = None;
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
            _ => return Err(format!("{word} is no option")),
        }
    }
    let binary = binary.ok_or("--punctual is missing")?;
    let binary = std::path::absolute(binary).map_err(|error| error.to_string())?;
    Ok((binary, options))
}
