//! A real cluster whose store answers late to everything, and nothing else is wrong: whoever leads
//! must go on leading.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use punctual::backend::{CoordinationBackend as _, Event, Txn};
use punctual::keys::Keys;
use punctual_etcd::{EtcdBackend, EtcdConfig};

use super::report::{Lateness, Report};
use super::tap::runtime;
use super::{Cluster, jobs};
use crate::check::Violation;
use crate::etcd::EtcdCluster;
use crate::proxy::{Proxy, Wire};
use crate::sim::rng::Rng;
use crate::sim::tap::Logged;
use crate::sim::world::NAMESPACE;

/// How often it is said how far it is.
const WORD: Duration = Duration::from_secs(300);

/// How slow, and for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// For how long.
    pub duration: Duration,
    /// How much later every request arrives at the store.
    pub delay: Duration,
    /// Which jobs.
    pub seed: u64,
    /// How many jobs there are.
    pub jobs: usize,
    /// How often they fire, all together.
    pub per_second: u64,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// Terms after the first one, while the store was slow.
    pub leader_changes: u64,
    /// Sessions that nodes had to open anew meanwhile.
    pub sessions_lost: usize,
    /// How long somebody's writes took who has such wires as the nodes have, and nothing else to do.
    pub writes: Lateness,
    /// How many writes those were.
    pub probes: usize,
    /// Numbers of the time until the store was quick again.
    pub report: Report,
    /// Everything that was wrong.
    pub violations: Vec<Violation>,
}

/// Runs three nodes with their default times on an etcd of three members behind slow wires, then
/// makes these quick, lets the cluster come to rest, and judges.
///
/// # Panics
/// When it does not come up, or does not come to rest.
pub fn slow(binary: &Path, options: &Options, say: &mut dyn FnMut(&str)) -> Outcome {
    let start = Instant::now();
    let mut say = |what: &str| {
        let at = start.elapsed().as_secs_f64();
        say(&format!("{at:7.1} s  {what}"));
    };
    let mut rng = Rng::new(options.seed);
    let jobs = jobs::many(&mut rng.branch("jobs", 0), options.jobs, options.per_second);
    let mut cluster = Cluster::with_times(binary, 3, jobs, rng.next_u64(), &[]);
    let wire = Wire::requests_late(options.delay);
    cluster.etcd.start_all();
    for node in &mut cluster.nodes {
        node.wire(wire);
        node.start();
    }
    cluster.wait_for_all();
    cluster.apply(true);
    cluster.wait_for_fires(1);
    let (leader, mut term) = cluster.leader();
    say(&format!("{} leads", cluster.nodes[leader].name));

    let probe = Probe::start(&cluster.etcd, wire);
    let end = Instant::now() + options.duration;
    let mut next_word = Instant::now() + WORD;
    while Instant::now() < end {
        std::thread::sleep(Duration::from_secs(1).min(end - Instant::now()));
        if let Some((owner, since)) = cluster.tap.leader()
            && since != term
        {
            term = since;
            say(&format!("{} leads", owner.node));
        }
        if Instant::now() >= next_word {
            next_word += WORD;
            let fires = Report::of(&cluster.observe(cluster.tap.log())).fires;
            say(&format!("{fires} fires so far"));
        }
    }
    let writes = probe.end();
    let log = cluster.tap.log();
    let report = Report::of(&cluster.observe(log.clone()));
    let sessions = sessions(&log);
    say("the store is quick again");
    let observed = cluster.settle();
    say("at rest; judging");
    let mut violations = Cluster::judge(&observed);
    for node in cluster.nodes.iter().filter(|node| node.lives.len() > 1) {
        let what = format!("{}: {:?}", node.name, node.lives);
        violations.push(Violation::new("a slow store ends no node", what));
    }
    Outcome {
        leader_changes: report.terms.saturating_sub(1),
        sessions_lost: sessions.saturating_sub(cluster.nodes.len()),
        probes: writes.len(),
        writes: Lateness::of(writes),
        report,
        violations,
    }
}

/// How many sessions nodes have opened.
fn sessions(log: &[Logged]) -> usize {
    let keys = Keys::new(NAMESPACE);
    let opened = |event: &&Event| match event {
        Event::Put(entry) => {
            entry.created == entry.modified && keys.parse_node(&entry.key).is_some()
        }
        Event::Delete { .. } => false,
    };
    let events = log.iter().flat_map(|logged| &logged.events);
    events.filter(opened).count()
}

/// Somebody who writes now and then, through wires of its own.
struct Probe {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<i64>>,
}

impl Probe {
    fn start(etcd: &EtcdCluster, wire: Wire) -> Self {
        let wires: Vec<Proxy> = (0..etcd.size())
            .map(|member| Proxy::start(etcd.port(member), 0))
            .collect();
        wires.iter().for_each(|proxy| proxy.set(wire));
        let over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&over);
        let thread = std::thread::spawn(move || runtime().block_on(write_until(&ends, &wires)));
        Self { over, thread }
    }

    /// How long each write took, in milliseconds.
    fn end(self) -> Vec<i64> {
        self.over.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

async fn write_until(over: &AtomicBool, wires: &[Proxy]) -> Vec<i64> {
    let mut config = EtcdConfig::new(wires.iter().map(Proxy::endpoint));
    config.allow_corrupting_version = true;
    let store = EtcdBackend::connect(config).await.expect("etcd answers");
    let mut times_ms = Vec::new();
    let mut number = 0_u64;
    while !over.load(Ordering::SeqCst) {
        let txn = Txn::new().put("/probe", number.to_string());
        let start = Instant::now();
        // One that is not answered took as long as it was waited for.
        let _ = store.commit(&txn).await;
        times_ms.push(i64::try_from(start.elapsed().as_millis()).unwrap_or(i64::MAX));
        number += 1;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    times_ms
}
