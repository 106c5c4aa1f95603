//! A process that writes is killed with SIGKILL at random moments, again and again on the same
//! directory. After each death: every acknowledged transaction is there, the one under way is
//! whole or absent, and nothing else has changed.
//!
//! The writer is this same binary, started with `CRASH_ROLE`. `CRASH_ROUNDS=500 CRASH_SEED=7
//! cargo test -p punctual-sled --test crash` looks longer and elsewhere.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test with its own main"
)]

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use punctual::backend::{
    BackendError, BackendExt as _, CoordinationBackend as _, Entry, Requirement, Revision, Txn,
};
use punctual::env::TokioEnv;
use punctual_sled::{Durability, OpenError, Options, SledBackend};
use support::{Random, all, commit, leased, open, runtime};

const WRITERS: u64 = 6;
/// Each writer keeps the records of its last transactions and deletes older ones.
const KEPT: u64 = 5;

fn main() -> ExitCode {
    let directory = std::env::var("CRASH_DIRECTORY").unwrap_or_default();
    let directory = Path::new(&directory);
    match std::env::var("CRASH_ROLE").as_deref() {
        Ok("writer") => runtime().block_on(writer(directory)),
        Ok("until-broken") => runtime().block_on(until_broken(directory)),
        _ => {
            let trials = vec![
                Trial::test("survives_sigkill_at_any_moment", || {
                    rounds(Durability::Flush, from_env("CRASH_ROUNDS", 25))
                }),
                Trial::test("survives_sigkill_with_fsync", || {
                    rounds(Durability::Fsync, from_env("CRASH_ROUNDS", 5))
                }),
                Trial::test("a_directory_in_use_by_another_process", in_use),
                Trial::test("breaks_for_good_when_a_write_fails", write_fails),
            ];
            return libtest_mimic::run(&Arguments::from_args(), trials).exit_code();
        }
    }
    ExitCode::SUCCESS
}

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

fn child(role: &str, directory: &Path, durability: Durability) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .env("CRASH_ROLE", role)
        .env("CRASH_DIRECTORY", directory)
        .env("CRASH_DURABILITY", format!("{durability:?}"))
        .stdout(Stdio::piped());
    command
}

fn options() -> Options {
    Options {
        durability: match std::env::var("CRASH_DURABILITY").as_deref() {
            Ok("Fsync") => Durability::Fsync,
            _ => Durability::Flush,
        },
        // Nearly always one under way: deaths must hit rewrites too.
        rewrite_above_bytes: 1,
        ..Options::default()
    }
}

/// Says a line in one piece, so that a death in between leaves no half of it.
fn say(line: &str) {
    std::io::stdout()
        .write_all(format!("{line}\n").as_bytes())
        .unwrap();
}

fn cursor(writer: u64) -> String {
    format!("cursor/{writer}")
}

fn record(writer: u64, number: u64, part: u64) -> String {
    format!("data/{writer}/{number:06}/{part}")
}

/// Now and then a value so large that sled moves it to a file of its own.
fn value(writer: u64, number: u64, part: u64) -> Vec<u8> {
    let mut random = Random(writer << 40 | number << 8 | part);
    let length = match random.below(40) {
        0 => 150_000,
        1..5 => 5_000,
        _ => random.below(400),
    };
    (0..length).map(|i| (i ^ number ^ part) as u8).collect()
}

async fn writer(directory: &Path) {
    let store = SledBackend::open(directory, TokioEnv::shared(), options()).unwrap();
    let lease = store.grant(60_000).await.unwrap().id;
    commit(&store, leased("leased/a", lease)).await;
    say("open");
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| tokio::spawn(write(store.clone(), writer)))
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
}

async fn write(store: SledBackend, writer: u64) {
    let at = store.get(cursor(writer).as_bytes()).await.unwrap();
    let (mut number, mut guard) = match at {
        Some(entry) => (
            String::from_utf8(entry.value).unwrap().parse().unwrap(),
            Requirement::Modified(entry.key, entry.modified),
        ),
        None => (0, Requirement::Absent(cursor(writer).into())),
    };
    loop {
        number += 1;
        let mut txn = Txn::new()
            .require(guard)
            .put(cursor(writer), number.to_string());
        for part in 0..3 {
            txn = txn.put(record(writer, number, part), value(writer, number, part));
            if number > KEPT {
                txn = txn.delete(record(writer, number - KEPT, part));
            }
        }
        let revision = commit(&store, txn).await;
        say(&format!("{writer} {number} {revision}"));
        guard = Requirement::Modified(cursor(writer).into(), revision);
    }
}

fn rounds(durability: Durability, rounds: u64) -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let directory = directory.path().join("db");
    let seed = from_env("CRASH_SEED", 1);
    let mut random = Random(seed);
    let mut acknowledged = BTreeMap::new();
    let mut newest = Revision(1);
    for round in 0..rounds {
        let child = child("writer", &directory, durability).spawn()?;
        // Most die young; some live long enough to rewrite the store a few times.
        let most = if round % 3 == 2 { 700_000 } else { 150_000 };
        let wait = Duration::from_micros(random.below(most));
        kill_after(child, wait, &mut acknowledged, &mut newest);
        let checked = runtime().block_on(check(&directory, &mut acknowledged, newest));
        newest = checked.map_err(|wrong| format!("seed {seed}, round {round}: {wrong}"))?;
    }
    let rewrites = generation(&directory)?;
    println!("{durability:?}: {rewrites} rewrites in {rounds} rounds");
    if rewrites < rounds / 4 {
        return Err(format!("only {rewrites} rewrites in {rounds} rounds prove little").into());
    }
    let written: u64 = acknowledged.values().sum();
    if written < rounds * WRITERS {
        return Err(format!("only {written} transactions in {rounds} rounds prove little").into());
    }
    Ok(())
}

/// The number of the generation that is the store: it counts the rewrites.
fn generation(directory: &Path) -> Result<u64, Failed> {
    let current = std::fs::read_to_string(directory.join("current"))?;
    Ok(current.trim_end().trim_start_matches("gen-").parse()?)
}

/// Reads what the child acknowledges, kills it, and reads what it had said until then.
fn kill_after(
    mut child: Child,
    wait: Duration,
    acknowledged: &mut BTreeMap<u64, u64>,
    newest: &mut Revision,
) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "open");
    let killer = std::thread::spawn(move || {
        std::thread::sleep(wait);
        child.kill().unwrap();
        child.wait().unwrap();
    });
    for line in lines {
        let line = line.unwrap();
        let mut numbers = line.split(' ').map(|n| n.parse::<u64>().unwrap());
        let mut next = || numbers.next().unwrap();
        acknowledged.insert(next(), next());
        *newest = (*newest).max(Revision(next()));
    }
    killer.join().unwrap();
}

async fn check(
    directory: &Path,
    acknowledged: &mut BTreeMap<u64, u64>,
    newest: Revision,
) -> Result<Revision, String> {
    let store = open(directory).map_err(|error| error.to_string())?;
    let (entries, revision) = all(&store).await;
    store.close();
    if revision < newest {
        return Err(format!("revision {revision}, acknowledged was {newest}"));
    }
    let found: BTreeMap<String, Entry> = entries
        .into_iter()
        .map(|entry| (String::from_utf8(entry.key.clone()).unwrap(), entry))
        .collect();
    let mut expected = BTreeMap::new();
    for writer in 0..WRITERS {
        let Some(entry) = found.get(&cursor(writer)) else {
            if acknowledged.contains_key(&writer) {
                return Err(format!("writer {writer} lost everything"));
            }
            continue;
        };
        let at: u64 = String::from_utf8_lossy(&entry.value).parse().unwrap();
        let said = acknowledged.get(&writer).copied().unwrap_or(0);
        // Transactions of earlier rounds that died unacknowledged may stand: one each round.
        if at < said {
            return Err(format!(
                "writer {writer} is at {at}, acknowledged was {said}"
            ));
        }
        expected.insert(cursor(writer), at.to_string().into_bytes());
        for number in at.saturating_sub(KEPT - 1).max(1)..=at {
            for part in 0..3 {
                expected.insert(record(writer, number, part), value(writer, number, part));
            }
        }
    }
    for (key, entry) in &found {
        if entry.modified > revision || entry.created > entry.modified || entry.lease.is_some() {
            return Err(format!("{entry:?} at revision {revision}"));
        }
        if expected.remove(key).as_ref() != Some(&entry.value) {
            return Err(format!("{key} should not stand there like that"));
        }
    }
    match expected.keys().next() {
        Some(missing) => Err(format!("{missing} is missing")),
        None => Ok(revision),
    }
}

fn in_use() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let directory = directory.path().join("db");
    let mut child = child("writer", &directory, Durability::Flush).spawn()?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line)?;
    let error = open(&directory).unwrap_err();
    child.kill()?;
    child.wait()?;
    assert!(matches!(error, OpenError::InUse { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains(&*directory.to_string_lossy()), "{said}");
    assert!(
        said.contains(
            "another punctual server is using this directory; stop it or choose another directory"
        ),
        "{said}"
    );
    open(&directory)?.close();
    Ok(())
}

async fn until_broken(directory: &Path) {
    let store = SledBackend::open(directory, TokioEnv::shared(), options()).unwrap();
    for number in 0..1_000_000u64 {
        let txn = Txn::new().put(format!("k{number:07}"), vec![b'v'; 10_000]);
        match store.commit(&txn).await {
            Ok(_) => say(&format!("ok {number}")),
            Err(error) => {
                say(&format!(
                    "failed {}",
                    matches!(error, BackendError::Broken(_))
                ));
                break;
            }
        }
    }
    let read = store.get(b"k0000000").await;
    let granted = store.grant(2_000).await;
    say(&format!(
        "after {} {}",
        matches!(read, Err(BackendError::Broken(_))),
        matches!(granted, Err(BackendError::Broken(_)))
    ));
}

/// The shell limits the size of the child's files; a write beyond fails as on a full disk.
fn write_fails() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let directory = directory.path().join("db");
    open(&directory)?.close();
    let output = Command::new("sh")
        .arg("-c")
        .arg("trap '' XFSZ; ulimit -f 8000; exec \"$0\"")
        .arg(std::env::current_exe()?)
        .env("CRASH_ROLE", "until-broken")
        .env("CRASH_DIRECTORY", &directory)
        .output()?;
    let said = String::from_utf8(output.stdout)?;
    let lines: Vec<&str> = said.lines().collect();
    let acknowledged = lines.iter().filter(|line| line.starts_with("ok ")).count();
    assert!(acknowledged > 10, "{said}");
    assert_eq!(lines[acknowledged..], ["failed true", "after true true"]);
    let store = open(&directory)?;
    let (entries, _) = runtime().block_on(all(&store));
    assert!(
        entries.len() == acknowledged || entries.len() == acknowledged + 1,
        "{acknowledged} acknowledged, {} found",
        entries.len()
    );
    store.close();
    Ok(())
}
