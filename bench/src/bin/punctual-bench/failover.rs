//! How long firing stands still when the leader dies, when it leaves, and when it dies together with
//! the leader of etcd.
//!
//! Three nodes, a hundred jobs that fire every second. The figure is the time from the first
//! instant that fell due after the leader was gone (or from its death, if that came later) to the
//! moment when somebody outside hears that it is decided. With etcd's leader it is the time from the
//! death, because that is what the time until etcd takes writes again counts from; there is always
//! an instant that fell due meanwhile.

use std::time::{Duration, Instant};

use punctual::control::Control;
use punctual::duration::Millis;
use punctual::env::{SharedEnv, TokioEnv};
use punctual::job::spec::JobSpec;
use punctual::node::NodeConfig;
use punctual::schedule::ScheduleSpec;
use punctual_tests::etcd::{EtcdCluster, first_write};
use serde_json::{Value, json};

use crate::Options;
use crate::nodes::{HANDLER, Nodes, connect};
use crate::recorder::{Heard, Recorder};

const JOBS: usize = 100;
const ROUNDS: usize = 10;
const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// Long enough for a dead node's lease and session to end, and for one that returned to settle.
const SETTLE: Duration = Duration::from_secs(13);
/// A store that was away is remembered for a minute, in which nodes are more patient with a leader.
const CALM: Duration = Duration::from_secs(61);
/// A failover that takes longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What was measured.
#[derive(Debug)]
pub(crate) struct Report {
    crash_ms: Vec<i64>,
    graceful_ms: Vec<i64>,
    store_crash_ms: Vec<i64>,
    store_election_ms: Vec<i64>,
    leader_ttl_ms: u64,
    overdue_takeover_ms: u64,
    decided: usize,
    missed: usize,
    duplicates: usize,
}

impl Report {
    pub(crate) fn json(&self) -> Value {
        json!({
            "scenario": "failover",
            "crash_ms": self.crash_ms,
            "graceful_ms": self.graceful_ms,
            "store_crash_ms": self.store_crash_ms,
            "store_election_ms": self.store_election_ms,
            "leader_ttl_ms": self.leader_ttl_ms,
            "overdue_takeover_ms": self.overdue_takeover_ms,
            "decided": self.decided,
            "missed": self.missed,
            "duplicates": self.duplicates,
        })
    }

    pub(crate) fn table(&self) -> String {
        let row = |name: &str, all: &[i64]| {
            if all.is_empty() {
                return format!("{name:<38}{:>8}\n", "-");
            }
            let (low, middle, high) = spread(all);
            format!("{name:<38}{middle:>8}{low:>8}{high:>8}\n")
        };
        let rounds = self.store_crash_ms.iter().zip(&self.store_election_ms);
        let beyond: Vec<i64> = rounds.map(|(fire, election)| fire - election).collect();
        format!(
            "{:<38}{:>8}{:>8}{:>8}\n{}{}{}{}{}{} instants decided, {} missed, {} duplicates",
            "ms, next fire after",
            "median",
            "min",
            "max",
            row("kill -9 of the leader", &self.crash_ms),
            row("its resignation", &self.graceful_ms),
            row("kill -9 of it and of etcd's leader", &self.store_crash_ms),
            row("  until etcd took writes again", &self.store_election_ms),
            row("  next fire after that", &beyond),
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

/// What the nodes share.
pub(crate) enum Store {
    /// An etcd of ours, whose members can be killed.
    Own(EtcdCluster),
    /// One that was there before.
    Given(String),
}

impl Store {
    fn endpoints(&self) -> Vec<String> {
        match self {
            Self::Own(etcd) => etcd.endpoints(),
            Self::Given(given) => given.split(',').map(str::to_owned).collect(),
        }
    }
}

pub(crate) async fn run(store: Store, options: &Options) -> Result<Report, String> {
    let env: SharedEnv = TokioEnv::shared();
    let namespace = format!("failover-{:08x}", env.random_u64() >> 32);
    let endpoints = store.endpoints();
    let backend = connect(&endpoints.join(",")).await?;
    let from = backend
        .range(
            &punctual::backend::Span::prefix(format!("/{namespace}/")),
            punctual::backend::PageLimit::default(),
            None,
        )
        .await
        .map_err(|error| error.to_string())?
        .revision;
    let mut members = Vec::new();
    for endpoint in &endpoints {
        members.push(connect(endpoint).await?);
    }
    let from = punctual::backend::Revision(from.0 + 1);
    let mut bench = Bench {
        recorder: Recorder::start(members, &env, &namespace, from),
        nodes: Nodes::new(
            &endpoints.join(","),
            &namespace,
            options.overdue_takeover_ms,
        ),
        env: env.clone(),
        store,
    };
    for node in NODES {
        bench.nodes.start(node)?;
    }
    let control = Control::new(backend, env, &namespace);
    apply(&control).await?;
    tokio::time::sleep(SETTLE).await;

    let mut report = Report {
        crash_ms: Vec::new(),
        graceful_ms: Vec::new(),
        store_crash_ms: Vec::new(),
        store_election_ms: Vec::new(),
        leader_ttl_ms: NodeConfig::default().leader_ttl_ms,
        overdue_takeover_ms: options.overdue_takeover_ms,
        decided: 0,
        missed: 0,
        duplicates: 0,
    };
    let store_dies = options.store_crash && matches!(bench.store, Store::Own(_));
    for round in 1..=options.rounds.unwrap_or(ROUNDS) {
        if options.crash {
            eprint!("round {round}: ");
            report.crash_ms.push(bench.crash().await?);
            eprint!("round {round}: ");
            report.graceful_ms.push(bench.resign().await?);
        }
    }
    for round in 1..=options.rounds.unwrap_or(ROUNDS) {
        if store_dies {
            eprint!("round {round}: ");
            let (fire_ms, election_ms) = bench.crash_both().await?;
            report.store_crash_ms.push(fire_ms);
            report.store_election_ms.push(election_ms);
        }
    }
    let Bench {
        recorder, nodes, ..
    } = bench;
    drop(nodes);
    recorder.heard(|heard| count(heard, &mut report));
    Ok(report)
}

/// A cluster at rest between two measurements.
struct Bench {
    recorder: Recorder,
    nodes: Nodes,
    env: SharedEnv,
    store: Store,
}

impl Bench {
    /// Kills the leader; the next fire after that.
    async fn crash(&mut self) -> Result<i64, String> {
        let leader = self.leader().await?;
        let gone_ms = self.env.wall_ms();
        self.nodes.kill(&leader)?;
        let ms = next_fire(&self.recorder, &self.env, gone_ms).await?.late_ms;
        eprintln!("{leader} killed, next fire after {ms} ms");
        self.nodes.start(&leader)?;
        tokio::time::sleep(SETTLE).await;
        Ok(ms)
    }

    /// Asks the leader to leave; the next fire after that.
    async fn resign(&mut self) -> Result<i64, String> {
        let leader = self.leader().await?;
        let gone_ms = self.env.wall_ms();
        self.nodes.ask_to_leave(&leader)?;
        let ms = next_fire(&self.recorder, &self.env, gone_ms).await?.late_ms;
        eprintln!("{leader} resigned, next fire after {ms} ms");
        self.nodes.wait(&leader)?;
        self.nodes.start(&leader)?;
        tokio::time::sleep(SETTLE).await;
        Ok(ms)
    }

    /// Kills the leader and etcd's leader; the next fire after that, and when etcd took writes
    /// again, by somebody who is none of the nodes.
    async fn crash_both(&mut self) -> Result<(i64, i64), String> {
        let Store::Own(etcd) = &mut self.store else {
            return Err("an etcd that is not ours is not killed".into());
        };
        // Nodes talk to the first member that serves them: theirs shall die.
        while etcd.leader() != 0 {
            etcd.move_leader()?;
        }
        tokio::time::sleep(CALM).await;
        let leader = self.leader().await?;
        let Store::Own(etcd) = &mut self.store else {
            return Err("an etcd that is not ours is not killed".into());
        };
        let member = etcd.leader();
        let (gone_ms, gone) = (self.env.wall_ms(), Instant::now());
        let nodes = &mut self.nodes;
        std::thread::scope(|both| {
            let killed = both.spawn(|| nodes.kill(&leader));
            etcd.kill(member);
            killed.join().map_err(|_| "cannot kill".to_owned())?
        })?;
        let live = etcd.live_ports();
        let election = tokio::task::spawn_blocking(move || first_write(&live, gone));
        let fire = next_fire(&self.recorder, &self.env, gone_ms).await?;
        let ms = fire.after_ms;
        let election = election.await.map_err(|error| error.to_string())??;
        let election_ms = i64::try_from(election.as_millis()).unwrap_or(i64::MAX);
        eprintln!(
            "{leader} and etcd's leader killed, etcd took writes after {election_ms} ms, \
             next fire after {ms} ms"
        );
        etcd.start_all();
        self.nodes.start(&leader)?;
        tokio::time::sleep(SETTLE).await;
        Ok((ms, election_ms))
    }

    /// Who leads, some time later: anywhere in a second.
    async fn leader(&self) -> Result<String, String> {
        tokio::time::sleep(Duration::from_millis(self.env.random_u64() % 1_000)).await;
        self.recorder
            .heard(|heard| heard.leader.clone())
            .ok_or_else(|| "nobody leads, though nothing is wrong".into())
    }
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

/// The first fire after a death.
struct Fire {
    /// How long after it was due (or after the death, if that came later) it was heard of.
    late_ms: i64,
    /// How long after the death.
    after_ms: i64,
}

/// Waits for the next decision of an instant that was not decided when the leader went.
async fn next_fire(recorder: &Recorder, env: &SharedEnv, gone_ms: i64) -> Result<Fire, String> {
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
            return Ok(Fire {
                late_ms: at - instant.max(gone_ms),
                after_ms: at - gone_ms,
            });
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
