//! The ledger that executed commands write themselves: one line, one write, at the end of one file.

use std::collections::BTreeMap;
use std::path::Path;

use crate::check::oracle::rfc3339;

/// What the jobs of a real cluster run: `work.sh BEATS STATUS`. It says that it begins, then every
/// fifth of a second that it is still there, then that it ends, and ends with the status.
const WORK: &str = r#"#!/bin/sh
note() {
    echo "$1 $PUNCTUAL_JOB_ID $PUNCTUAL_RUN_ID $PUNCTUAL_ATTEMPT $PUNCTUAL_FENCING_TOKEN" \
        "$PUNCTUAL_SCHEDULED_AT $$ $(date +%s%3N)" >>"LEDGER"
}
note start
beats=$1
while [ "$beats" -gt 0 ]; do
    sleep 0.2
    note beat
    beats=$((beats - 1))
done
note end
exit "$2"
"#;

/// Writes the program that jobs run, which writes to `ledger`.
///
/// # Panics
/// When it cannot be written.
pub fn write_program(at: &Path, ledger: &Path) {
    let text = WORK.replace("LEDGER", ledger.to_str().unwrap());
    std::fs::write(at, text).unwrap();
}

/// One execution, as its lines tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// The job.
    pub job: String,
    /// The run.
    pub run: String,
    /// The attempt.
    pub attempt: u32,
    /// The fencing token.
    pub token: u64,
    /// The instant it was told.
    pub scheduled_ms: i64,
    /// The process.
    pub pid: u32,
    /// Unix milliseconds of its first line.
    pub start_ms: i64,
    /// Of the last one.
    pub last_ms: i64,
    /// Whether that one says that it came to its end.
    pub completed: bool,
}

impl Execution {
    /// Whether its process still runs.
    #[must_use]
    pub fn lives(&self) -> bool {
        // Numbers come again; the run's name does not.
        let environment = std::fs::read(format!("/proc/{}/environ", self.pid));
        let run = format!("PUNCTUAL_RUN_ID={}", self.run);
        environment.is_ok_and(|all| all.split(|b| *b == 0).any(|one| one == run.as_bytes()))
    }
}

/// All executions, in the order of their starts. Two processes are two executions, whatever they
/// were told.
///
/// # Panics
/// When the ledger holds what no program of ours writes.
#[must_use]
pub fn read(ledger: &Path) -> Vec<Execution> {
    // Nothing has run yet, if it is not there.
    let text = std::fs::read_to_string(ledger).unwrap_or_default();
    let mut all: Vec<Execution> = Vec::new();
    let mut places: BTreeMap<(String, u32, u32), usize> = BTreeMap::new();
    // The last line may be on its way.
    for line in text.split_inclusive('\n').filter(|l| l.ends_with('\n')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [what, job, run, attempt, token, scheduled, pid, at] = words[..] else {
            panic!("a torn line in the ledger: {line:?}");
        };
        let (attempt, pid) = (attempt.parse().unwrap(), pid.parse().unwrap());
        let at_ms: i64 = at.parse().unwrap();
        let key = (run.to_owned(), attempt, pid);
        if what == "start" {
            places.insert(key, all.len());
            all.push(Execution {
                job: job.to_owned(),
                run: run.to_owned(),
                attempt,
                token: token.parse().unwrap(),
                scheduled_ms: rfc3339(scheduled).unwrap() * 1_000,
                pid,
                start_ms: at_ms,
                last_ms: at_ms,
                completed: false,
            });
        } else {
            let place = places.get(&key).expect("a beat after a start");
            all[*place].last_ms = at_ms;
            all[*place].completed = what == "end";
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_program_writes_what_is_read() {
        let place = tempfile::tempdir().unwrap();
        let (program, ledger) = (place.path().join("work.sh"), place.path().join("ledger"));
        write_program(&program, &ledger);
        assert_eq!(read(&ledger), []);
        let run = |beats: &str, status: &str| {
            let ended = Command::new("sh")
                .arg(&program)
                .args([beats, status])
                .env("PUNCTUAL_JOB_ID", "a")
                .env("PUNCTUAL_RUN_ID", "a@20260301T000000Z")
                .env("PUNCTUAL_ATTEMPT", "2")
                .env("PUNCTUAL_FENCING_TOKEN", "1234")
                .env("PUNCTUAL_SCHEDULED_AT", "2026-03-01T00:00:00.000Z")
                .status();
            ended.unwrap().code()
        };
        assert_eq!(run("2", "0"), Some(0));
        assert_eq!(run("0", "3"), Some(3));
        let all = read(&ledger);
        assert_eq!(all.len(), 2, "the same attempt twice is two executions");
        assert!(all.iter().all(|one| one.completed && !one.lives()));
        assert!(all[0].last_ms - all[0].start_ms >= 400, "{all:?}");
        assert_eq!((all[0].attempt, all[0].token), (2, 1_234));
        assert_eq!(all[0].scheduled_ms, 1_772_323_200_000);
    }
}
