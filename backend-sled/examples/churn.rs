//! A day of a scheduler's writes against the embedded store, as fast as it goes: does its disk
//! use reach a plateau?
//!
//! `cargo run --release -p punctual-sled --example churn -- [JOBS] [HISTORY] [RUNS] [MIB]`
//! (default: 100 jobs that keep 100 records each, 144,000 runs: one a minute for a day; rewrites above 8 MiB) prints a
//! line of JSON for each twentieth of the way: bytes of live keys and values, bytes on disk, and
//! their ratio.

use std::error::Error;
use std::io::Write as _;
use std::time::Instant;

use punctual::backend::{BackendInfo as _, CoordinationBackend as _, Txn};
use punctual::env::TokioEnv;
use punctual_sled::{Options, SledBackend};

/// About what a run record and its output tail take.
const RECORD_BYTES: usize = 400;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse::<u64>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (jobs, history, runs, mib) = (next(100)?, next(100)?, next(144_000)?, next(8)?);
    let directory = tempfile::tempdir()?;
    let store = SledBackend::open(
        directory.path().join("db"),
        TokioEnv::shared(),
        Options {
            rewrite_above_bytes: mib << 20,
            ..Options::default()
        },
    )?;
    let started = Instant::now();
    let mut live = 0i64;
    for run in 0..runs {
        live += one_run(&store, run % jobs, run / jobs, history).await?;
        if (run + 1) % (runs / 20).max(1) == 0 {
            let disk = store.usage().await?.used_bytes;
            writeln!(
                std::io::stdout(),
                r#"{{"runs":{},"live_bytes":{live},"disk_bytes":{disk},"ratio":{:.2},"seconds":{:.1}}}"#,
                run + 1,
                disk as f64 / live as f64,
                started.elapsed().as_secs_f64()
            )?;
        }
    }
    Ok(())
}

/// The four transactions in the life of a run; answers by how much the live data grew.
async fn one_run(
    store: &SledBackend,
    job: u64,
    number: u64,
    history: u64,
) -> Result<i64, Box<dyn Error>> {
    let run = format!("run/07/job-{job:05}/{number:012}/1");
    let done = |number: u64| format!("done/07/job-{job:05}/{number:012}/1");
    let record = vec![b'x'; RECORD_BYTES];
    for _ in ["PENDING", "LOCKED", "RUNNING"] {
        let txn = Txn::new()
            .put(run.clone(), record.clone())
            .put("cursor/07", number.to_string());
        let _ = store.commit(&txn).await?;
    }
    let mut txn = Txn::new().delete(run).put(done(number), record);
    let size = (done(0).len() + RECORD_BYTES) as i64;
    let mut grown = size;
    if number >= history {
        txn = txn.delete(done(number - history));
        grown -= size;
    }
    let _ = store.commit(&txn).await?;
    Ok(grown)
}
