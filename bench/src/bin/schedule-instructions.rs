//! Instructions a query, counted by valgrind's callgrind, beside `cron` and `croner`:
//! `cargo run --release -p punctual-bench --bin schedule-instructions`.
//!
//! Runs itself under valgrind twice, with few and with many queries; the difference over the
//! number of queries is free of what start and parsing cost.
#![allow(
    clippy::print_stdout,
    reason = "a command line tool talks on its streams"
)]

use std::error::Error;
use std::hint::black_box;
use std::process::Command;

use punctual_bench::{AFTER_MS, EXPRESSIONS, LIBRARIES, Reader};

const FEW: u64 = 10;
const MANY: u64 = 30;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [library, zone, index, times] = &arguments[..] {
        return ask(library, zone, index.parse()?, times.parse()?);
    }
    println!("| zone | expression | ours | cron | croner |");
    println!("|---|---|---|---|---|");
    for zone in ["UTC", "America/New_York"] {
        for (index, expression) in EXPRESSIONS.iter().enumerate() {
            let mut row = format!("| {zone} | `{}` |", expression.ours);
            for library in LIBRARIES {
                let cell = match Reader::new(library, expression, zone) {
                    Some(_) => {
                        let few = count(library, zone, index, FEW)?;
                        let many = count(library, zone, index, MANY)?;
                        ((many - few) / (MANY - FEW)).to_string()
                    }
                    None => "-".into(),
                };
                row.push_str(&format!(" {cell} |"));
            }
            println!("{row}");
        }
    }
    Ok(())
}

/// Asks the same question so many times.
fn ask(library: &str, zone: &str, index: usize, times: u64) -> Result<(), Box<dyn Error>> {
    let reader = Reader::new(library, &EXPRESSIONS[index], zone).ok_or("it cannot read this")?;
    for _ in 0..times {
        black_box(reader.next(black_box(AFTER_MS)));
    }
    Ok(())
}

/// Instructions of a whole run.
fn count(library: &str, zone: &str, index: usize, times: u64) -> Result<u64, Box<dyn Error>> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args([library, zone, &index.to_string(), &times.to_string()])
        .output()?;
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    let collected = report
        .lines()
        .find_map(|line| line.split("Collected :").nth(1))
        .ok_or_else(|| format!("valgrind says nothing of instructions: {report}"))?;
    Ok(collected.trim().parse()?)
}
