//! Real clusters: three nodes as processes on an etcd of three members, and everything that can
//! happen to processes, wires and etcd. Each test is one life of a cluster with many faults one
//! after the other; at its end the store's whole history and the ledger that the commands wrote
//! themselves go to the checkers of the simulation: no miss, no duplicate, legal steps, growing
//! tokens, at most one start an attempt, everything ended.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test says what it saw, and fails when it cannot go on"
)]

mod nodes;
mod store;
mod teeth;

use std::path::Path;
use std::time::{Duration, Instant};

use punctual_tests::cluster::Cluster;
use punctual_tests::cluster::report::Report;
use punctual_tests::sim::world::Observed;

fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_punctual"))
}

/// Says when each step of a life begins, so that a failure can be found in the logs.
struct Story {
    start: Instant,
}

impl Story {
    fn begin(title: &str) -> Self {
        println!("== {title}");
        Self {
            start: Instant::now(),
        }
    }

    fn step(&self, what: &str) {
        println!("{:6.1} s  {what}", self.start.elapsed().as_secs_f64());
    }

    /// Comes to rest, judges, and counts.
    fn end(&self, mut cluster: Cluster) -> (Observed, Report) {
        self.step("everything is healed");
        let observed = cluster.settle();
        let violations = Cluster::judge(&observed);
        let report = Report::of(&observed);
        self.step("at rest");
        println!("{report}");
        assert!(
            violations.is_empty(),
            "{violations:#?}\n{}",
            cluster.last_words()
        );
        (observed, report)
    }
}

fn wait(seconds: f64) {
    std::thread::sleep(Duration::from_secs_f64(seconds));
}
