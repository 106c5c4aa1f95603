//! A real cluster: an etcd of several members, several nodes as processes, wires between them that
//! can be cut, and two witnesses: the store's whole history, and a ledger that the executed
//! commands write themselves. What they saw goes to the same checkers as the simulation's.

pub mod inside;
pub mod jobs;
pub mod ledger;
pub mod node;
pub mod observed;
pub mod report;
pub mod slow;
pub mod soak;
pub mod tap;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use punctual::backend::Revision;
use punctual::job::run::{Owner, RunState};
use tempfile::TempDir;

use crate::check::{History, Violation, check, exactly_once};
use crate::etcd::EtcdCluster;
use crate::proxy::{Proxy, Wire};
use crate::sim::world::Observed;
use jobs::Job;
use node::NodeProcess;
use tap::Tap;

/// A watchdog: so long may anything take that has to happen.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Unix milliseconds.
#[must_use]
pub fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}

/// A cluster. Dropping it ends all of it.
#[derive(Debug)]
pub struct Cluster {
    /// The nodes.
    pub nodes: Vec<NodeProcess>,
    /// The store's history.
    pub tap: Tap,
    /// The store.
    pub etcd: EtcdCluster,
    jobs: Vec<Job>,
    /// How often `apply` was called, whatever came of it.
    applied: usize,
    seed: u64,
    place: TempDir,
}

impl Cluster {
    /// A cluster of which nothing runs but the wires. `binary` is the program.
    ///
    /// # Panics
    /// When there is no etcd.
    #[must_use]
    pub fn new(binary: &Path, nodes: usize, jobs: Vec<Job>, seed: u64) -> Self {
        Self::with_times(binary, nodes, jobs, seed, node::SHORT_TIMES)
    }

    /// The same, with other options of the nodes for how long things take; none for the defaults.
    ///
    /// # Panics
    /// When there is no etcd.
    #[must_use]
    pub fn with_times(
        binary: &Path,
        nodes: usize,
        jobs: Vec<Job>,
        seed: u64,
        times: &'static [&'static str],
    ) -> Self {
        let place = tempfile::tempdir().unwrap();
        let etcd = EtcdCluster::new(3);
        let epoch_ms = unix_ms();
        let nodes = (0..nodes)
            .map(|n| {
                let wires = (0..etcd.size())
                    .map(|member| Proxy::start(etcd.port(member), seed ^ (n * 16 + member) as u64))
                    .collect();
                NodeProcess::new(&format!("n{n}"), binary, place.path(), wires, times)
            })
            .collect();
        let cluster = Self {
            nodes,
            tap: Tap::start(etcd.endpoints(), epoch_ms),
            etcd,
            jobs,
            applied: 0,
            seed,
            place,
        };
        ledger::write_program(&cluster.program(), &cluster.ledger());
        cluster
    }

    /// The same, with everything started and the jobs applied.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start(binary: &Path, nodes: usize, jobs: Vec<Job>, seed: u64) -> Self {
        let mut cluster = Self::new(binary, nodes, jobs, seed);
        cluster.etcd.start_all();
        for node in &mut cluster.nodes {
            node.start();
        }
        cluster.wait_for_all();
        cluster.apply(true);
        cluster
    }

    fn program(&self) -> PathBuf {
        self.place.path().join("work.sh")
    }

    fn ledger(&self) -> PathBuf {
        self.place.path().join("ledger")
    }

    /// Looks until there is an answer.
    ///
    /// # Panics
    /// When there is none in time; says what the nodes said.
    #[track_caller]
    pub fn wait_for<T>(&mut self, what: &str, mut look: impl FnMut(&mut Self) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "waited in vain for {what}\n{}",
                self.last_words()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The end of what each node wrote to its log.
    #[must_use]
    pub fn last_words(&self) -> String {
        let tail = |node: &NodeProcess| {
            let log = node.log();
            let lines: Vec<&str> = log.lines().collect();
            let from = lines.len().saturating_sub(25);
            format!("-- {}\n{}\n", node.name, lines[from..].join("\n"))
        };
        self.nodes.iter().map(tail).collect()
    }

    /// Waits until every node that runs has a session and one of them leads.
    ///
    /// # Panics
    /// When that does not come.
    #[track_caller]
    pub fn wait_for_all(&mut self) {
        self.wait_for("a session for every node, and a leader", |cluster| {
            let sessions = cluster.tap.sessions();
            let running = cluster.nodes.iter().filter(|node| node.runs());
            let mut named = running.map(|node| {
                let of = |(owner, _): &&(Owner, _)| owner.node == node.name;
                sessions.iter().filter(of).count()
            });
            let (owner, _) = cluster.tap.leader()?;
            let led = sessions.iter().any(|(session, _)| *session == owner);
            (named.all(|count| count == 1) && led).then_some(())
        });
    }

    /// The node that leads, and its term.
    ///
    /// # Panics
    /// When none does.
    #[track_caller]
    pub fn leader(&mut self) -> (usize, Revision) {
        self.leader_since(Revision(0))
    }

    /// The node that leads with a term later than `term`.
    ///
    /// # Panics
    /// When none does.
    #[track_caller]
    pub fn leader_since(&mut self, term: Revision) -> (usize, Revision) {
        self.wait_for("a leader", |cluster| {
            let (owner, since) = cluster.tap.leader()?;
            let named = |node: &NodeProcess| node.runs() && node.name == owner.node;
            let place = cluster.nodes.iter().position(named)?;
            (since > term).then_some((place, since))
        })
    }

    /// A node that does not lead.
    ///
    /// # Panics
    /// When nobody leads, or nobody else runs.
    #[track_caller]
    pub fn standby(&mut self) -> usize {
        let (leader, _) = self.leader();
        let others = self.nodes.iter().enumerate();
        let mut standing = others.filter(|(place, node)| *place != leader && node.runs());
        standing.next().expect("another node runs").0
    }

    /// Waits until `count` more runs have become RUNNING or ended well than now.
    ///
    /// # Panics
    /// When that does not come.
    #[track_caller]
    pub fn wait_for_fires(&mut self, count: usize) {
        let before = ledger::read(&self.ledger()).len();
        self.wait_for("executions", |cluster| {
            (ledger::read(&cluster.ledger()).len() >= before + count).then_some(())
        });
    }

    /// A node other than `but` that runs something just now.
    ///
    /// # Panics
    /// When there is none for too long.
    #[track_caller]
    pub fn busy(&mut self, but: usize) -> usize {
        self.wait_for("a node with running work", |cluster| {
            let unfinished = cluster.tap.unfinished();
            let works = |node: &NodeProcess| {
                unfinished.iter().any(|record| {
                    record.state == RunState::Running
                        && record.job.starts_with("long")
                        && record.owner.as_ref().is_some_and(|o| o.node == node.name)
                })
            };
            let places = 0..cluster.nodes.len();
            places
                .into_iter()
                .find(|place| *place != but && works(&cluster.nodes[*place]))
        })
    }

    /// Brings the jobs into force, or takes all their instants away from now on.
    ///
    /// # Panics
    /// When no node does it.
    #[track_caller]
    pub fn apply(&mut self, enabled: bool) {
        let text = jobs::file(&self.jobs, &self.program(), enabled);
        let file = self.place.path().join("jobs.yaml");
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap().to_owned();
        self.wait_for("apply", |cluster| {
            let node = cluster.nodes.iter().find(|node| node.runs())?;
            cluster.applied += 1;
            let ended = node.ask(&["apply", "-f", &file]);
            match ended.status.code() {
                Some(0) => Some(()),
                // Not reachable yet, or its store is not.
                Some(6) => None,
                _ => panic!("{ended:?}"),
            }
        });
    }

    /// How a node's jobs differ from what was applied last.
    #[must_use]
    pub fn differences(&self, node: usize) -> std::process::Output {
        let file = self.place.path().join("jobs.yaml");
        self.nodes[node].ask(&["diff", "-f", file.to_str().unwrap()])
    }

    /// Undoes every fault, takes all further instants away, and waits until what was due is
    /// decided and has ended. What was witnessed until then.
    ///
    /// # Panics
    /// When it does not come to rest.
    #[track_caller]
    pub fn settle(&mut self) -> Observed {
        for member in 0..self.etcd.size() {
            if self.etcd.runs(member) {
                self.etcd.pause(member, false);
            }
        }
        self.etcd.start_all();
        for node in &mut self.nodes {
            node.wire(Wire::default());
            node.go_on();
            node.note_if_gone();
            if !node.runs() {
                node.start();
            }
        }
        self.wait_for_all();
        self.apply(false);
        self.wait_for("the end of all runs", |cluster| {
            if !cluster.tap.unfinished().is_empty() {
                return None;
            }
            let so_far = cluster.observe(cluster.tap.log());
            let missing = exactly_once::check(&History::new(&so_far));
            missing.is_empty().then_some(())
        });
        self.wait_for_all();
        let log = self.tap.complete();
        let observed = self.observe(log);
        self.check_definitions(&History::new(&observed));
        observed
    }

    /// A request to define a job does so at most once.
    #[track_caller]
    fn check_definitions(&self, history: &History<'_>) {
        for job in &self.jobs {
            let of_job = history
                .definitions
                .iter()
                .filter(|((id, _), _)| *id == job.id);
            let times: usize = of_job.map(|(_, puts)| puts.len()).sum();
            assert!(
                (1..=self.applied).contains(&times),
                "{} was defined {times} times by {} requests",
                job.id,
                self.applied
            );
        }
    }

    fn observe(&self, log: Vec<crate::sim::tap::Logged>) -> Observed {
        let lives: Vec<observed::NodeLives> = self
            .nodes
            .iter()
            .map(|node| (node.name.clone(), node.lives.clone()))
            .collect();
        observed::observe(
            &lives,
            log,
            &ledger::read(&self.ledger()),
            self.tap.epoch_ms(),
            unix_ms(),
            self.seed,
        )
    }

    /// Everything that is wrong with what was witnessed.
    #[must_use]
    pub fn judge(observed: &Observed) -> Vec<Violation> {
        check(observed)
    }
}
