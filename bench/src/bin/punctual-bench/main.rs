//! `punctual-bench SCENARIO [--etcd URL] [-o json]`: the figures of docs/performance.md.
//!
//! Each scenario starts an etcd of its own unless it is given one, runs the product as it is used
//! (nodes are processes of their own), and ends with a count of what was missed or doubled.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool talks on its streams"
)]

mod counted;
mod failover;
mod figures;
mod lateness;
mod million;
mod nodes;
mod plot;
mod procs;
mod recorder;
mod rival;
mod stage;
mod throughput;

use std::process::ExitCode;

use mimalloc::MiMalloc;

use punctual_tests::etcd::EtcdCluster;
use serde_json::Value;

use stage::Stage;
use throughput::What;

/// As `punctual` itself has it.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const USAGE: &str =
    "usage: punctual-bench decisions|runs|lateness|jobs-1m|failover|all [--etcd URL] [--rounds N] [-o json]
       punctual-bench jobs-1m [--jobs N] ...
       punctual-bench plot FILE    (what `-o json` printed, as SVG on standard output)
       punctual-bench failover [--etcd URL] [--rounds N] [--only crash|store-crash] \
     [--overdue-takeover-ms N] [-o json]";

/// So many members has an etcd that the benchmark starts itself, where its deaths matter.
const MEMBERS: usize = 3;

/// Rounds of `failover` in `all`, which should take less than a quarter of an hour.
const ROUNDS_OF_ALL: usize = 3;

/// What the command line asks for.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) etcd: Option<String>,
    pub(crate) rounds: Option<usize>,
    /// Whether the leader is killed, and asked to leave.
    pub(crate) crash: bool,
    /// Whether it is killed together with etcd's.
    pub(crate) store_crash: bool,
    pub(crate) overdue_takeover_ms: u64,
    /// How many jobs `jobs-1m` creates.
    pub(crate) jobs: usize,
    pub(crate) json: bool,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let scenario = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let answer = match scenario.as_str() {
        // The benchmark starts itself again as a node that it can kill.
        nodes::NODE => nodes::Settings::parse(&rest).and_then(|s| in_runtime(nodes::live(s))),
        "decisions" | "runs" | "lateness" | "jobs-1m" | "failover" | "all" => {
            parse(&rest).and_then(|options| in_runtime(measure(&scenario, options)))
        }
        "plot" => rest
            .first()
            .ok_or_else(|| "plot FILE".to_owned())
            .and_then(|file| std::fs::read_to_string(file).map_err(|error| error.to_string()))
            .and_then(|lines| plot::draw(&lines))
            .map(|svg| print!("{svg}")),
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

async fn measure(scenario: &str, options: Options) -> Result<(), String> {
    let wanted = |name: &str| scenario == name || scenario == "all";
    let rounds = options.rounds.unwrap_or(throughput::ROUNDS);
    let mut verdicts = Vec::new();
    for what in [What::Decisions, What::Runs] {
        if wanted(what.name()) {
            // An etcd of its own for each: what one has written is no burden to the next.
            let stage = Stage::open(options.etcd.as_deref(), 1);
            let report = throughput::run(&stage, what, rounds).await?;
            tell(options.json, &report.json(), &report.table());
            verdicts.push(report.verdict());
        }
    }
    if wanted("lateness") {
        let mut report =
            lateness::run(&Stage::open(options.etcd.as_deref(), 1), lateness::RATES).await?;
        if options.etcd.is_none() {
            let rates = match scenario {
                "all" => lateness::FEW_RATES,
                _ => lateness::RATES,
            };
            report.extend(lateness::run(&Stage::open(None, MEMBERS), rates).await?);
        }
        tell(options.json, &report.json(), &report.table());
        verdicts.push(report.verdict());
    }
    if wanted("jobs-1m") {
        let stage = Stage::open(options.etcd.as_deref(), 1);
        let report = million::run(&stage, options.jobs).await?;
        tell(options.json, &report.json(), &report.table());
        verdicts.push(report.verdict());
    }
    if wanted("failover") {
        let store = match &options.etcd {
            Some(given) => failover::Store::Given(given.clone()),
            None => failover::Store::Own(EtcdCluster::start(MEMBERS)),
        };
        let mut options = options;
        if scenario == "all" {
            // The death of etcd's leader takes a minute of calm before each round: not here.
            options.rounds = Some(ROUNDS_OF_ALL);
            options.store_crash = false;
        }
        let report = failover::run(store, &options).await?;
        tell(options.json, &report.json(), &report.table());
        verdicts.push(report.verdict());
    }
    verdicts.into_iter().collect()
}

/// One object a line for programs, a table for people.
fn tell(json: bool, object: &Value, table: &str) {
    if json {
        println!("{object}");
    } else {
        println!("{table}\n");
    }
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        etcd: None,
        rounds: None,
        crash: true,
        store_crash: true,
        overdue_takeover_ms: 1_000,
        jobs: 1_000_000,
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
            "--rounds" => options.rounds = usize::try_from(number()?).ok(),
            "--overdue-takeover-ms" => options.overdue_takeover_ms = number()?,
            "--jobs" => options.jobs = usize::try_from(number()?).unwrap_or(usize::MAX),
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
