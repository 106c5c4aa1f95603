//! Instructions a query, counted by valgrind's callgrind, beside `cron` and `croner`:
//! `cargo run --release -p punctual-bench --bin schedule-instructions`.
#![allow(
    clippy::print_stdout,
    reason = "a command line tool talks on its streams"
)]

use std::error::Error;
use std::hint::black_box;

use punctual_bench::callgrind::instructions;
use punctual_bench::{AFTER_MS, EXPRESSIONS, LIBRARIES, Reader};

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
                        let index = index.to_string();
                        instructions(&[library, zone, &index])?.to_string()
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
