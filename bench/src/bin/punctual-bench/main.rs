//! `punctual-bench SCENARIO [--etcd URL] [-o json]`: the figures of docs/performance.md.
//!
//! Each scenario starts an etcd of its own unless it is given one, runs the product as it is used
//! (nodes are processes of their own), and ends with a count of what was missed or doubled.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks on its streams"
)]

mod failover;
mod nodes;
mod recorder;

use std::process::ExitCode;

use punctual_tests::etcd::EtcdCluster;

const USAGE: &str = "usage: punctual-bench failover [--etcd URL] [--rounds N] [--only crash|store-crash] \
     [--overdue-takeover-ms N] [-o json]";

/// So many members has an etcd that the benchmark starts itself.
const MEMBERS: usize = 3;

/// What the command line asks for.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) etcd: Option<String>,
    pub(crate) rounds: usize,
    /// Whether the leader is killed, and asked to leave.
    pub(crate) crash: bool,
    /// Whether it is killed together with etcd's.
    pub(crate) store_crash: bool,
    pub(crate) overdue_takeover_ms: u64,
    pub(crate) json: bool,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let scenario = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let answer = match scenario.as_str() {
        "failover" => parse(&rest).and_then(|options| in_runtime(measure(options))),
        // The benchmark starts itself again as a node that it can kill.
        nodes::NODE => nodes::Settings::parse(&rest).and_then(|s| in_runtime(nodes::live(s))),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("punctual-bench: {why}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(options: Options) -> Result<(), String> {
    let store = match &options.etcd {
        Some(given) => failover::Store::Given(given.clone()),
        None => failover::Store::Own(EtcdCluster::start(MEMBERS)),
    };
    let report = failover::run(store, &options).await?;
    if options.json {
        println!("{}", report.json());
    } else {
        println!("{}", report.table());
    }
    report.verdict()
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        etcd: None,
        rounds: 10,
        crash: true,
        store_crash: true,
        overdue_takeover_ms: 1_000,
        json: false,
    };
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        let value = rest
            .next()
            .ok_or(format!("{name} needs a value. {USAGE}"))?;
        let number = || {
            let parsed = value.parse::<u64>();
            parsed.map_err(|_| format!("{name}: `{value}` is no number"))
        };
        match name.as_str() {
            "--etcd" => options.etcd = Some(value.clone()),
            "--rounds" => options.rounds = usize::try_from(number()?).unwrap_or(usize::MAX),
            "--overdue-takeover-ms" => options.overdue_takeover_ms = number()?,
            "--only" if value == "crash" => options.store_crash = false,
            "--only" if value == "store-crash" => options.crash = false,
            "-o" if value == "json" => options.json = true,
            _ => return Err(format!("`{name} {value}`? {USAGE}")),
        }
    }
    Ok(options)
}

fn in_runtime(work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?
        .block_on(work)
}
