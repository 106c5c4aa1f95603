//! A node inside your own program: two handlers, an embedded store, and what fires.
//!
//! `cargo run -p punctual-sled --example embedded`
#![allow(clippy::print_stdout, reason = "it shows what fires")]

use std::{error::Error, sync::Arc, time::Duration};

use punctual::cancel::{Canceller, StopCause};
use punctual::control::Control;
use punctual::env::TokioEnv;
use punctual::handler::{Executors, RunContext};
use punctual::job::spec::JobSpec;
use punctual::node::{Node, NodeConfig};
use punctual_sled::{Options, SledBackend};

async fn greet(run: RunContext) -> Result<(), String> {
    println!("{} says hello", run.run_id);
    Ok(())
}

async fn bill(run: RunContext) -> Result<(), String> {
    // `run_id` is the same for all attempts: hand it to the bank as idempotency key.
    println!("{} bills, attempt {}", run.run_id, run.attempt);
    match run.attempt {
        1 => Err("the bank did not answer".into()),
        _ => Ok(()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let env = TokioEnv::shared();
    let database = directory.path().join("db");
    let backend = Arc::new(SledBackend::open(
        database,
        env.clone(),
        Options::default(),
    )?);

    let mut executors = Executors::default();
    executors.handlers.insert("greet".into(), Arc::new(greet));
    executors.handlers.insert("bill".into(), Arc::new(bill));
    let config = NodeConfig::default();
    let namespace = config.namespace.clone();
    let node = Node::new(backend.clone(), env.clone(), executors, config)?;
    let control = Control::with_clock(backend, env, &namespace, node.clock());

    let (stop, stopping) = Canceller::new();
    let life = tokio::spawn(node.run(stopping));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let greetings = JobSpec::handler("greetings", "greet").cron("*/2 * * * * *");
    let mut bills = JobSpec::handler("bills", "bill").cron("*/5 * * * * *");
    bills.retry.attempts = Some(3);
    control
        .apply(vec![greetings, bills], false, &|_, _| {})
        .await?;

    tokio::time::sleep(Duration::from_secs(12)).await;
    stop.stop(StopCause::Cancelled);
    life.await??;
    Ok(())
}
