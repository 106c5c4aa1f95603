//! A real cluster for minutes or hours, under one random fault after the other.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use punctual::keys::Keys;

use super::report::Report;
use super::{Cluster, jobs};
use crate::check::Violation;
use crate::proxy::{Way, Wire};
use crate::sim::rng::Rng;
use crate::sim::world::NAMESPACE;

/// What to do to which cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long faults go on.
    pub duration: Duration,
    /// Which faults, and when.
    pub seed: u64,
    /// How many jobs there are.
    pub jobs: usize,
    /// How often they fire, all together.
    pub per_second: u64,
    /// How long from one fault to the next, on average.
    pub between: Duration,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Numbers.
    pub report: Report,
    /// Everything that was wrong.
    pub violations: Vec<Violation>,
}

/// How many violations are of these invariants.
#[must_use]
pub fn count(violations: &[Violation], invariants: &[&str]) -> usize {
    let of = |violation: &&Violation| invariants.contains(&violation.invariant);
    violations.iter().filter(of).count()
}

/// What a fault leaves to be undone.
#[derive(Clone, Copy, Debug)]
enum Undo {
    Start(usize),
    GoOn(usize),
    Mend(usize),
    StartMember(usize),
    GoOnMember(usize),
    StartEtcd,
}

struct Soak<'a> {
    cluster: Cluster,
    rng: Rng,
    agenda: Vec<(Instant, Undo)>,
    node_troubled: Vec<bool>,
    etcd_troubled: bool,
    faults: BTreeMap<&'static str, u64>,
    say: &'a mut dyn FnMut(&str),
    start: Instant,
}

/// Runs a cluster of three nodes on an etcd of three, heals it, and judges.
///
/// # Panics
/// When it does not come up, or does not come to rest.
pub fn soak(binary: &Path, options: &Options, say: &mut dyn FnMut(&str)) -> Outcome {
    let mut rng = Rng::new(options.seed);
    let jobs = jobs::many(&mut rng.branch("jobs", 0), options.jobs, options.per_second);
    let cluster = Cluster::start(binary, 3, jobs, rng.next_u64());
    let nodes = cluster.nodes.len();
    let mut soak = Soak {
        cluster,
        rng: rng.branch("faults", 0),
        agenda: Vec::new(),
        node_troubled: vec![false; nodes],
        etcd_troubled: false,
        faults: BTreeMap::new(),
        say,
        start: Instant::now(),
    };
    soak.cluster.wait_for_fires(10);
    soak.run(options);
    soak.say("healing");
    let observed = soak.cluster.settle();
    soak.say("at rest; judging");
    Outcome {
        faults: soak.faults,
        report: Report::of(&observed),
        violations: Cluster::judge(&observed),
    }
}

impl Soak<'_> {
    fn say(&mut self, what: &str) {
        let at = self.start.elapsed().as_secs_f64();
        (self.say)(&format!("{at:7.1} s  {what}"));
    }

    fn run(&mut self, options: &Options) {
        let end = Instant::now() + options.duration;
        let mut next = Instant::now();
        while Instant::now() < end {
            let now = Instant::now();
            if let Some(due) = self.agenda.iter().position(|(at, _)| *at <= now) {
                let (_, undo) = self.agenda.swap_remove(due);
                self.undo(undo);
            } else if next <= now {
                self.fault();
                // Distances of a Poisson process, from 53 random bits.
                let uniform = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
                let distance = -(1.0 - uniform).ln();
                next = now + options.between.mul_f64(distance.min(6.0));
            } else {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn later(&mut self, from_ms: u64, to_ms: u64, undo: Undo) {
        let after = Duration::from_millis(self.rng.range(from_ms, to_ms));
        self.agenda.push((Instant::now() + after, undo));
    }

    /// A node that nothing is wrong with: the leader in half of the cases, if it is one.
    fn sound(&mut self) -> Option<usize> {
        let leader = self.cluster.tap.leader().map(|(owner, _)| owner.node);
        let sound: Vec<usize> = (0..self.node_troubled.len())
            .filter(|node| !self.node_troubled[*node])
            .collect();
        let leads = |node: &&usize| Some(&self.cluster.nodes[**node].name) == leader.as_ref();
        let leader = sound.iter().find(leads).copied();
        if sound.is_empty() {
            return None;
        }
        match leader {
            Some(leader) if self.rng.permille(500) => Some(leader),
            _ => Some(self.rng.pick(&sound)),
        }
    }

    fn fault(&mut self) {
        let kind = self.rng.range(0, 100);
        match kind {
            0..60 => {
                if let Some(node) = self.sound() {
                    self.node_fault(node, kind);
                }
            }
            60..92 if !self.etcd_troubled => self.etcd_fault(kind),
            60..92 => {}
            _ if !self.etcd_troubled => self.key_fault(kind),
            _ => {}
        }
    }

    fn note(&mut self, kind: &'static str, whom: &str) {
        *self.faults.entry(kind).or_default() += 1;
        self.say(&format!("{kind} {whom}"));
    }

    fn node_fault(&mut self, node: usize, kind: u64) {
        let name = self.cluster.nodes[node].name.clone();
        self.node_troubled[node] = true;
        let wires: [(&'static str, Wire); 5] = [
            ("hold all of", Wire::HELD),
            ("hold answers to", Wire::ANSWERS_HELD),
            ("hold requests of", Wire::REQUESTS_HELD),
            ("lose answers to", Wire::ANSWERS_LOST),
            (
                "slow down",
                Wire {
                    requests: Way::Slow(Duration::from_millis(150)),
                    answers: Way::Slow(Duration::from_millis(150)),
                },
            ),
        ];
        match kind {
            0..14 => {
                self.note("kill node", &name);
                self.cluster.nodes[node].kill();
                self.later(0, 12_000, Undo::Start(node));
            }
            14..26 => {
                self.note("pause node", &name);
                self.cluster.nodes[node].pause();
                self.later(500, 10_000, Undo::GoOn(node));
            }
            26..31 => {
                self.note("stop node by SIGTERM", &name);
                let status = self.cluster.nodes[node].leave(Duration::from_secs(60));
                assert_eq!(status, Some(0), "{}", self.cluster.last_words());
                self.later(0, 5_000, Undo::Start(node));
            }
            31..56 => {
                let (what, wire) = self.rng.pick(&wires);
                self.note(what, &name);
                self.cluster.nodes[node].wire(wire);
                self.later(300, 10_000, Undo::Mend(node));
            }
            _ => {
                self.note("kill connections of", &name);
                self.cluster.nodes[node].kill_connections();
                self.node_troubled[node] = false;
            }
        }
    }

    fn etcd_fault(&mut self, kind: u64) {
        // An election of etcd's may be under way.
        let leader = self.cluster.etcd.leader();
        let member = if self.rng.permille(500) {
            leader
        } else {
            self.rng.index(self.cluster.etcd.size())
        };
        let name = format!("{member}");
        match kind {
            60..70 => {
                self.note("kill etcd member", &name);
                self.etcd_troubled = true;
                self.cluster.etcd.kill(member);
                self.later(500, 10_000, Undo::StartMember(member));
            }
            70..80 => {
                self.note("pause etcd member", &name);
                self.etcd_troubled = true;
                self.cluster.etcd.pause(member, true);
                self.later(500, 8_000, Undo::GoOnMember(member));
            }
            80..88 => {
                if self.cluster.etcd.move_leader().is_ok() {
                    self.note("move etcd's lead", "");
                }
            }
            _ => {
                self.note("kill all of etcd", "");
                self.etcd_troubled = true;
                self.cluster.etcd.kill_all();
                self.later(1_000, 12_000, Undo::StartEtcd);
            }
        }
    }

    fn key_fault(&mut self, kind: u64) {
        if kind < 96 {
            self.note("delete the leader's key", "");
            self.cluster.tap.delete(&Keys::new(NAMESPACE).leader());
            return;
        }
        let sessions = self.cluster.tap.sessions();
        let Some((owner, entry)) = sessions.first() else {
            return;
        };
        self.note("delete the session of", &owner.node);
        self.cluster.tap.delete(&entry.key);
    }

    fn undo(&mut self, undo: Undo) {
        let nodes = &mut self.cluster.nodes;
        let etcd = &mut self.cluster.etcd;
        match undo {
            Undo::Start(node) => nodes[node].start(),
            Undo::GoOn(node) => nodes[node].go_on(),
            Undo::Mend(node) => nodes[node].wire(Wire::default()),
            Undo::StartMember(member) => etcd.start_one(member),
            Undo::GoOnMember(member) => etcd.pause(member, false),
            Undo::StartEtcd => etcd.start_all(),
        }
        match undo {
            Undo::Start(node) | Undo::GoOn(node) | Undo::Mend(node) => {
                self.node_troubled[node] = false;
            }
            Undo::StartMember(_) | Undo::GoOnMember(_) | Undo::StartEtcd => {
                self.etcd_troubled = false;
            }
        }
    }
}
