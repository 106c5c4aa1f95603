//! Memory of compiled schedules, beside `cron` and `croner`:
//! `cargo run --release -p punctual-bench --bin schedule-memory`.
//!
//! Each case runs in a process of its own and reports by how much its resident memory grew.
#![allow(
    clippy::print_stdout,
    reason = "a command line tool talks on its streams"
)]

use std::error::Error;
use std::process::Command;
use std::str::FromStr;
use std::time::Instant;

use punctual::schedule::{Calendars, Interner, Schedule, ScheduleSpec, Zone};

/// Name of a case, and how many schedules it holds.
const CASES: [(&str, usize); 5] = [
    ("distinct", 1_000_000),
    ("interned", 1_000_000),
    ("quartz", 1_000_000),
    ("cron", 100_000),
    ("croner", 20_000),
];

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(case) = std::env::args().nth(1) {
        return measure(&case);
    }
    println!("| case | schedules | grown by | bytes a schedule | compiled in |");
    println!("|---|---|---|---|---|");
    for (case, _) in CASES {
        let output = Command::new(std::env::current_exe()?).arg(case).output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        print!("{}", String::from_utf8_lossy(&output.stdout));
    }
    Ok(())
}

fn measure(case: &str) -> Result<(), Box<dyn Error>> {
    let (_, count) = CASES
        .into_iter()
        .find(|(name, _)| *name == case)
        .ok_or("no such case")?;
    // The zones are shared and a matter of kilobytes: they are there before the count begins.
    for zone in ZONES {
        Zone::get(zone)?;
    }
    let before = resident_bytes()?;
    let started = Instant::now();
    match case {
        "distinct" => report(case, count, before, started, ours(count, unix, count)?),
        "quartz" => report(case, count, before, started, ours(count, quartz, count)?),
        "interned" => {
            let mut interner = Interner::new();
            let mut schedules = Vec::with_capacity(count);
            for n in 0..count {
                let spec = spec(unix(n % 500), n % 500);
                schedules.push(interner.compile(&spec, 0, &Calendars::default())?);
            }
            report(case, count, before, started, (schedules, interner))
        }
        "cron" => {
            let mut schedules = Vec::with_capacity(count);
            for n in 0..count {
                schedules.push(cron::Schedule::from_str(&format!("0 {}", unix(n)))?);
            }
            report(case, count, before, started, schedules)
        }
        _ => {
            let mut schedules = Vec::with_capacity(count);
            for n in 0..count {
                schedules.push(croner::Cron::from_str(&unix(n))?);
            }
            report(case, count, before, started, schedules)
        }
    }
}

const ZONES: [&str; 4] = ["UTC", "Asia/Shanghai", "America/New_York", "Europe/Berlin"];

/// The `n`-th of a million different expressions.
fn unix(n: usize) -> String {
    format!(
        "{} {} {} {} *",
        n % 60,
        n / 60 % 24,
        n / 1_440 % 28 + 1,
        match n / 40_320 % 12 {
            0 => "*".to_owned(),
            month => format!("1,{}", month + 1),
        }
    )
}

/// One that needs what few expressions use: the weekday nearest to a day, and a year.
fn quartz(n: usize) -> String {
    format!(
        "{} {} {} {}W * ? {}",
        n % 60,
        n / 60 % 60,
        n / 3_600 % 24,
        n / 86_400 % 28 + 1,
        2_026 + n % 100
    )
}

fn spec(text: String, n: usize) -> ScheduleSpec {
    ScheduleSpec {
        cron: Some(text),
        timezone: Some(ZONES[n % ZONES.len()].to_owned()),
        ..ScheduleSpec::default()
    }
}

fn ours(
    count: usize,
    text: fn(usize) -> String,
    distinct: usize,
) -> Result<Vec<Schedule>, Box<dyn Error>> {
    let mut schedules = Vec::with_capacity(count);
    for n in 0..count {
        let spec = spec(text(n % distinct), n);
        schedules.push(Schedule::compile(&spec, 0, &Calendars::default())?);
    }
    Ok(schedules)
}

fn report<T>(
    case: &str,
    count: usize,
    before: u64,
    started: Instant,
    held: T,
) -> Result<(), Box<dyn Error>> {
    let seconds = started.elapsed().as_secs_f64();
    let grown = resident_bytes()?.saturating_sub(before);
    drop(held);
    println!(
        "| {case} | {count} | {:.1} MB | {:.0} | {seconds:.2} s |",
        grown as f64 / 1e6,
        grown as f64 / count as f64
    );
    Ok(())
}

/// Resident memory of this process.
fn resident_bytes() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("no VmRSS")?;
    let kilobytes = line.trim().trim_end_matches(" kB").trim().parse::<u64>()?;
    Ok(kilobytes * 1_024)
}
