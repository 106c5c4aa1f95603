//! How long firing stands still when the leader dies, and when it leaves.
//!
//! Three nodes, a hundred jobs that fire every second. The figure is the time from the first
//! instant that fell due after the leader was gone (or from its death, if that came later) to the
//! moment when somebody outside hears that it is decided.

use std::time::Duration;

use punctual::control::Control;
use punctual::duration::Millis;
use punctual::env::{SharedEnv, TokioEnv};
use punctual::job::spec::JobSpec;
use punctual::node::NodeConfig;
use punctual::schedule::ScheduleSpec;
use serde_json::{Value, json};

use crate::Options;
use crate::nodes::{HANDLER, Nodes, connect};
use crate::recorder::{Heard, Recorder};

const JOBS: usize = 100;
const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// Long enough for a dead node's lease and session to end, and for one that returned to settle.
const SETTLE: Duration = Duration::from_secs(13);
/// A failover that takes longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was measured.
#[derive(Debug)]
pub(crate) struct Report {
    crash_ms: Vec<i64>,
    graceful_ms: Vec<i64>,
    leader_ttl_ms: u64,
    overdue_takeover_ms: u64,
    decided: usize,
    missed: usize,
    duplicates: usize,
}

impl Report {
    pub(crate) fn json(&self) -> Value {
        json!({
            "crash_ms": self.crash_ms,
            "graceful_ms": self.graceful_ms,
            "leader_ttl_ms": self.leader_ttl_ms,
            "overdue_takeover_ms": self.overdue_takeover_ms,
            "decided": self.decided,
            "missed": self.missed,
            "duplicates": self.duplicates,
        })
    }

    pub(crate) fn table(&self) -> String {
        let row = |name: &str, all: &[i64]| {
            let (low, middle, high) = spread(all);
            format!("{name:<22}{middle:>8}{low:>8}{high:>8}\n")
        };
        format!(
            "{:<22}{:>8}{:>8}{:>8}\n{}{}{} instants decided, {} missed, {} duplicates",
            "ms, next fire after",
            "median",
            "min",
            "max",
            row("kill -9 of the leader", &self.crash_ms),
            row("its resignation", &self.graceful_ms),
            self.decided,
            self.missed,
            self.duplicates
        )
    }

    /// An error when anything was missed or doubled.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        match (self.missed, self.duplicates) {
            (0, 0) if self.decided > 0 => Ok(()),
            _ => Err("something was missed or doubled".into()),
        }
    }
}

/// Smallest, median, largest.
fn spread(all: &[i64]) -> (i64, i64, i64) {
    let mut sorted = all.to_vec();
    sorted.sort_unstable();
    let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
    (
        at(0),
        at(sorted.len() / 2),
        at(sorted.len().saturating_sub(1)),
    )
}

pub(crate) async fn run(etcd: &str, options: &Options) -> Result<Report, String> {
    let env: SharedEnv = TokioEnv::shared();
    let namespace = format!("failover-{:08x}", env.random_u64() >> 32);
    let backend = connect(etcd).await?;
    let from = backend
        .range(
            &punctual::backend::Span::prefix(format!("/{namespace}/")),
            punctual::backend::PageLimit::default(),
            None,
        )
        .await
        .map_err(|error| error.to_string())?
        .revision;
    let recorder = Recorder::start(
        backend.clone(),
        env.clone(),
        &namespace,
        punctual::backend::Revision(from.0 + 1),
    );
    let mut nodes = Nodes::new(etcd, &namespace, options.overdue_takeover_ms);
    for node in NODES {
        nodes.start(node)?;
    }
    let control = Control::new(backend, env.clone(), &namespace);
    apply(&control).await?;
    tokio::time::sleep(SETTLE).await;

    let mut report = Report {
        crash_ms: Vec::new(),
        graceful_ms: Vec::new(),
        leader_ttl_ms: NodeConfig::default().leader_ttl_ms,
        overdue_takeover_ms: options.overdue_takeover_ms,
        decided: 0,
        missed: 0,
        duplicates: 0,
    };
    for round in 0..options.rounds {
        // Anywhere in the second.
        tokio::time::sleep(Duration::from_millis(env.random_u64() % 1_000)).await;
        let leader = leader(&recorder)?;
        let gone_ms = env.wall_ms();
        nodes.kill(&leader)?;
        let ms = next_fire_ms(&recorder, &env, gone_ms).await?;
        eprintln!(
            "round {}: {leader} killed, next fire after {ms} ms",
            round + 1
        );
        report.crash_ms.push(ms);
        nodes.start(&leader)?;
        tokio::time::sleep(SETTLE).await;

        tokio::time::sleep(Duration::from_millis(env.random_u64() % 1_000)).await;
        let leader = self::leader(&recorder)?;
        let gone_ms = env.wall_ms();
        nodes.ask_to_leave(&leader)?;
        let ms = next_fire_ms(&recorder, &env, gone_ms).await?;
        eprintln!(
            "round {}: {leader} resigned, next fire after {ms} ms",
            round + 1
        );
        report.graceful_ms.push(ms);
        nodes.wait(&leader)?;
        nodes.start(&leader)?;
        tokio::time::sleep(SETTLE).await;
    }
    drop(nodes);
    recorder.heard(|heard| count(heard, &mut report));
    Ok(report)
}

async fn apply(control: &Control) -> Result<(), String> {
    let jobs: Vec<JobSpec> = (0..JOBS)
        .map(|n| {
            let mut job = JobSpec::handler(format!("job-{n:03}"), HANDLER);
            job.schedule = ScheduleSpec {
                every: Some(Millis::from_secs(1)),
                ..ScheduleSpec::default()
            };
            job
        })
        .collect();
    for _ in 0..100 {
        if control.apply(jobs.clone(), false, &|_, _| {}).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Err("the jobs cannot be applied".into())
}

fn leader(recorder: &Recorder) -> Result<String, String> {
    recorder
        .heard(|heard| heard.leader.clone())
        .ok_or_else(|| "nobody leads, though nothing is wrong".into())
}

/// Waits for the next decision of an instant that was not decided when the leader went. How long
/// after it was due (or after the leader went) it was heard.
async fn next_fire_ms(recorder: &Recorder, env: &SharedEnv, gone_ms: i64) -> Result<i64, String> {
    let last = recorder.heard(|heard| heard.newest.map(|(instant, _)| instant));
    let begun = env.monotonic_ms();
    loop {
        let next = recorder.heard(|heard| {
            heard
                .first
                .iter()
                .find(|(instant, at)| Some(**instant) > last && **at > gone_ms)
                .map(|(instant, at)| (*instant, *at))
        });
        if let Some((instant, at)) = next {
            return Ok(at - instant.max(gone_ms));
        }
        if u128::from(env.monotonic_ms() - begun) > PATIENCE.as_millis() {
            return Err("no fire after a minute".into());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Every second between a job's first and last decision has one, and only one.
fn count(heard: &Heard, report: &mut Report) {
    let end = heard.newest.map_or(0, |(instant, _)| instant);
    for instants in heard.decisions.values() {
        let first = instants.keys().next().copied().unwrap_or_default();
        let due = (end - first) / 1_000 + 1;
        let due = usize::try_from(due).unwrap_or_default();
        report.decided += instants.len();
        // The last second may be half decided when the nodes end.
        report.missed += due.saturating_sub(instants.len() + 1);
        report.duplicates += instants.values().filter(|times| **times > 1).count();
    }
    report.missed += JOBS - heard.decisions.len().min(JOBS);
}
