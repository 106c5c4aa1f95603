//! Instructions, counted by valgrind's callgrind: the same on every machine, whatever else it does.

use std::error::Error;
use std::process::Command;

const FEW: u64 = 10;
const MANY: u64 = 30;

/// Instructions of one repetition of what this program does when it is started with `arguments` and
/// a number of repetitions behind them.
///
/// Runs itself under valgrind twice, with few repetitions and with many; the difference over their
/// number is free of what starting costs.
///
/// # Errors
/// When there is no valgrind, or the program fails under it.
pub fn instructions(arguments: &[&str]) -> Result<u64, Box<dyn Error>> {
    Ok((whole(arguments, MANY)? - whole(arguments, FEW)?) / (MANY - FEW))
}

fn whole(arguments: &[&str], times: u64) -> Result<u64, Box<dyn Error>> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe()?)
        .args(arguments)
        .arg(times.to_string())
        .output()?;
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    let collected = report
        .lines()
        .find_map(|line| line.split("Collected :").nth(1))
        .ok_or_else(|| format!("valgrind says nothing of instructions: {report}"))?;
    Ok(collected.trim().parse()?)
}
