//! Effects that happen once although attempts are repeated: see `docs/exactly-once.md`.
//!
//! `cargo run -p punctual-tests --example exactly_once`
#![allow(clippy::print_stdout, reason = "it shows what happens")]

mod sink;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use punctual::cancel::{Canceller, StopCause};
use punctual::control::Control;
use punctual::duration::Millis;
use punctual::env::TokioEnv;
use punctual::handler::{Executors, RunContext};
use punctual::job::spec::JobSpec;
use punctual::node::{Node, NodeConfig};
use punctual_memory::MemoryBackend;
use sink::Answer;

/// Pays 250 cents, and hears the first time that the connection was lost.
fn bill(database: &Path, run: &RunContext) -> Answer<()> {
    let paid = sink::pay(&sink::open(database)?, &run.run_id, 250)?;
    println!("{} attempt {}: paid now: {paid}", run.run_id, run.attempt);
    match run.attempt {
        1 => Err("the answer was lost".into()),
        _ => Ok(()),
    }
}

/// Writes the report under the token of this attempt, which nobody older passes from its beginning on.
fn report(database: &Path, run: &RunContext) -> Answer<()> {
    let (database, token) = (sink::open(database)?, run.fencing_token);
    sink::or_stop(sink::write(&database, "daily", token, "in the making"))?;
    let text = format!("as {} saw it", run.run_id);
    sink::or_stop(sink::rewrite(&database, "daily", token, &text))
}

/// A handler that calls `code`, which blocks, where it may block.
fn handler(
    database: PathBuf,
    code: fn(&Path, &RunContext) -> Answer<()>,
) -> impl Fn(RunContext) -> futures_util::future::BoxFuture<'static, Result<(), String>> {
    move |run| {
        let database = database.clone();
        Box::pin(async move {
            let work = tokio::task::spawn_blocking(move || code(&database, &run));
            work.await
                .map_err(|error| error.to_string())?
                .map_err(|error| error.to_string())
        })
    }
}

#[tokio::main]
async fn main() -> Answer<()> {
    let place = tempfile::tempdir()?;
    let database = place.path().join("effects.db");
    sink::open(&database)?;

    let mut executors = Executors::default();
    let handlers = &mut executors.handlers;
    handlers.insert("bill".into(), Arc::new(handler(database.clone(), bill)));
    handlers.insert("report".into(), Arc::new(handler(database.clone(), report)));
    let env = TokioEnv::shared();
    let backend = MemoryBackend::new(env.clone());
    let config = NodeConfig::default();
    let control = Control::new(Arc::new(backend.clone()), env.clone(), &config.namespace);
    let node = Node::new(Arc::new(backend), env, executors, config)?;
    let (stop, stopping) = Canceller::new();
    let life = tokio::spawn(node.run(stopping));
    tokio::time::sleep(Duration::from_millis(500)).await;

    let mut bills = JobSpec::handler("bills", "bill").every(Millis::from_secs(2));
    bills.retry.attempts = Some(3);
    bills.retry.backoff = Millis::from_ms(200);
    let reports = JobSpec::handler("reports", "report").every(Millis::from_secs(1));
    control
        .apply(vec![bills, reports], false, &|_, _| {})
        .await?;
    tokio::time::sleep(Duration::from_secs(7)).await;
    stop.stop(StopCause::Cancelled);
    life.await??;

    let effects = sink::open(&database)?;
    let paid = "SELECT count(*), sum(cents) FROM payment";
    let (times, cents): (i64, i64) =
        effects.query_row(paid, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let text: String = effects.query_row("SELECT text FROM report", [], |row| row.get(0))?;
    println!("paid {times} times, {cents} cents in all; the report is {text}");
    Ok(())
}
