//! The promise that this project is about, on one machine and for real: a node that fires a job
//! every second is killed with SIGKILL at random moments, and afterwards no instant is missing and
//! none ran twice, by the store's records *and* by what the job itself wrote.
//!
//! `PUNCTUAL_KILL9_KILLS` and `PUNCTUAL_KILL9_SECONDS` make it longer; `cargo xtask kill9` runs ten
//! kills over two minutes.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test says what it saw, and fails when it cannot go on"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_punctual");

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn serve(dir: &Path) -> Child {
    Command::new(BINARY)
        .args(["serve", "--listen", "127.0.0.1:0", "--commands", "any"])
        .args([
            "--session-ttl",
            "2s",
            "--leader-ttl",
            "2s",
            "--lost-grace",
            "8s",
        ])
        .arg("--store")
        .arg(format!("sled:{}", dir.join("data").display()))
        .arg("--jobs")
        .arg(dir.join("jobs.yaml"))
        .env("XDG_STATE_HOME", dir.join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(
            fs::File::options()
                .append(true)
                .create(true)
                .open(dir.join("log"))
                .unwrap(),
        )
        .spawn()
        .unwrap()
}

/// The job's records, or `None` while the node does not answer.
fn records(dir: &Path) -> Option<Vec<Value>> {
    let output = Command::new(BINARY)
        .args(["run", "ls", "--job", "tick", "-o", "json", "--data-dir"])
        .arg(dir.join("data"))
        .env("XDG_STATE_HOME", dir.join("state"))
        .output()
        .unwrap();
    output
        .status
        .success()
        .then(|| serde_json::from_slice(&output.stdout).unwrap())
}

fn text<'a>(record: &'a Value, key: &str) -> &'a str {
    record[key].as_str().unwrap_or_default()
}

/// Whole seconds since the epoch of `2026-08-12T00:05:00.000Z`.
fn seconds(instant: &str) -> i64 {
    chrono::DateTime::parse_from_rfc3339(instant)
        .unwrap()
        .timestamp()
}

#[test]
fn a_job_every_second_survives_kill_9_without_a_miss_or_a_double() {
    let kills = setting("PUNCTUAL_KILL9_KILLS", 3);
    let total = Duration::from_secs(setting("PUNCTUAL_KILL9_SECONDS", 15));
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let effects = dir.join("effects");
    let job = format!(
        "jobs:\n  - id: tick\n    schedule: {{ cron: \"* * * * * *\" }}\n    run:\n      command: [sh, -c, 'sleep 0.2; echo \"$PUNCTUAL_SCHEDULED_AT $PUNCTUAL_RUN_ID $PUNCTUAL_ATTEMPT\" >> {}']\n    history: {{ keep_success: 1000, keep_failed: 1000, keep_skipped: 1000 }}\n",
        effects.display()
    );
    fs::write(dir.join("jobs.yaml"), job).unwrap();

    let mut random = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_nanos();
    let mut node = serve(dir);
    let share = total / u32::try_from(kills).unwrap();
    for kill in 0..kills {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let jitter = Duration::from_millis(u64::try_from(random >> 64 & 0x3ff).unwrap());
        sleep(share.saturating_sub(Duration::from_millis(500)) + jitter);
        node.kill().unwrap();
        node.wait().unwrap();
        println!("kill {} after {share:?} and {jitter:?}", kill + 1);
        node = serve(dir);
    }

    // Every run that was under way when its node died is decided once the grace is over.
    let deadline = Instant::now() + Duration::from_secs(60);
    let settled = loop {
        sleep(Duration::from_secs(1));
        let records = records(dir).unwrap_or_default();
        let before_last_kill: Vec<_> = records
            .iter()
            .filter(|r| matches!(text(r, "state"), "PENDING" | "LOCKED" | "RUNNING"))
            .collect();
        // The newest run may be under way at any moment.
        if records.len() > 3 && before_last_kill.len() <= 1 && deadline.elapsed().is_zero() {
            let oldest_open = before_last_kill
                .first()
                .map(|r| seconds(text(r, "scheduled_at")));
            let newest = records
                .iter()
                .map(|r| seconds(text(r, "scheduled_at")))
                .max();
            if oldest_open.is_none() || oldest_open == newest {
                break true;
            }
        }
        if Instant::now() > deadline {
            break false;
        }
    };
    // Held for good, so that nothing changes while we look.
    let status = Command::new(BINARY)
        .args(["job", "pause", "tick", "--data-dir"])
        .arg(dir.join("data"))
        .env("XDG_STATE_HOME", dir.join("state"))
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    sleep(Duration::from_secs(2));
    let records = records(dir).unwrap();
    node.kill().unwrap();
    node.wait().unwrap();
    let log = fs::read_to_string(dir.join("log")).unwrap();
    assert!(settled, "runs stay undecided\n{records:#?}\n{log}");
    check(&records, &fs::read_to_string(&effects).unwrap(), kills);
}

fn check(records: &[Value], effects: &str, kills: u64) {
    let mut by_instant: BTreeMap<i64, Vec<&Value>> = BTreeMap::new();
    for record in records {
        if text(record, "state") == "SKIPPED" {
            // The pause at the end.
            assert_eq!(text(record, "reason"), "paused", "{record}");
            continue;
        }
        by_instant
            .entry(seconds(text(record, "scheduled_at")))
            .or_default()
            .push(record);
    }
    let first = *by_instant.keys().next().unwrap();
    let last = *by_instant.keys().next_back().unwrap();
    let expected: BTreeSet<i64> = (first..=last).collect();
    let missing: Vec<_> = expected
        .iter()
        .filter(|at| !by_instant.contains_key(at))
        .collect();
    assert!(missing.is_empty(), "instants without a record: {missing:?}");
    for (at, records) in &by_instant {
        assert_eq!(records.len(), 1, "{at} has {records:?}");
    }

    let mut effect_of: BTreeMap<i64, u32> = BTreeMap::new();
    for line in effects.lines() {
        *effect_of
            .entry(seconds(line.split(' ').next().unwrap()))
            .or_default() += 1;
    }
    let twice: Vec<_> = effect_of.iter().filter(|(_, n)| **n > 1).collect();
    assert!(twice.is_empty(), "instants that ran twice: {twice:?}");
    let mut lost = 0;
    for (at, records) in &by_instant {
        let (state, reason) = (text(records[0], "state"), text(records[0], "reason"));
        let ran = effect_of.contains_key(at);
        match (state, reason) {
            ("SUCCESS", _) => assert!(ran, "{at} is SUCCESS, but left no effect"),
            // Unknown whether it ran: it may have, once.
            ("FAILED", "worker_lost") => lost += 1,
            _ => panic!("{at} ended as {state} {reason}"),
        }
    }
    for at in effect_of.keys() {
        assert!(by_instant.contains_key(at), "{at} ran without a record");
    }
    println!(
        "{} instants in {} s, {kills} kills: one record each, {} effects, {lost} worker_lost",
        by_instant.len(),
        last - first + 1,
        effect_of.len(),
    );
}
