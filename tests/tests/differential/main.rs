//! Random requests of several clients to a real etcd, behind networks that fail, against the model:
//! after each answer there must be a state that explains all of them.
//!
//! `DIFFERENTIAL_OPERATIONS=100000 cargo test -p punctual-tests --test differential` looks longer;
//! `DIFFERENTIAL_SEED=7` asks other questions. A failure tells the seed of its episode, what came
//! last and which states were left. What is asked follows from the seed, who is served first does
//! not: that is up to a real network and a real store.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and says what it met"
)]

mod checker;
mod client;
mod leases;
mod met;
mod mutants;
mod possible;
#[path = "../model/steps.rs"]
#[allow(dead_code, reason = "restarts are for stores that live in a file")]
mod steps;

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use punctual_tests::etcd::Etcd;
use punctual_tests::sim::rng::Rng;
use tokio::sync::Mutex;

use checker::{Checked, Checker, Violation};
use client::{CALL, Client, LATE, Watcher, Wrap, connect};
use met::Met;
use mutants::MUTANTS;

const CLIENTS: u64 = 3;
/// An episode has an etcd of its own, and few enough unknown outcomes to keep them apart.
const OPERATIONS_AN_EPISODE: usize = 500;
/// They wait more than they work.
const EPISODES_AT_ONCE: usize = 6;

fn told(name: &str, otherwise: usize) -> usize {
    std::env::var(name).map_or(otherwise, |told| told.parse().unwrap())
}

/// Some clients ask so many things of an etcd that nobody has used.
fn episode(seed: u64, operations: usize, wrap: Wrap) -> Checked<Met> {
    let etcd = Etcd::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let left = Cell::new(operations);
    runtime.block_on(async {
        let root = Rng::new(seed);
        let watcher = Watcher {
            checker: Mutex::new(Checker::new()),
            direct: connect(etcd.endpoint(), CALL * 10).await,
        };
        let clients = (0..CLIENTS).map(|index| {
            let (name, rng) = (format!("c{index}."), root.branch("client", index));
            Client::connect(etcd.port(), wrap, name, rng)
        });
        let mut clients = join_all(clients).await;
        try_join_all(clients.iter_mut().map(|c| c.work(&watcher, &left))).await?;
        // Until everything that is on its way has arrived.
        tokio::time::sleep(CALL + LATE).await;
        for client in &mut clients {
            client.finish(&watcher).await?;
        }
        Ok(watcher.checker.into_inner().met())
    })
}

/// Runs episodes until all are over or one fails; says what they met, and the seed of a failure.
fn episodes(count: usize, seed: u64, wrap: Wrap) -> (Vec<Met>, Option<(u64, Violation)>) {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut met = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::SeqCst);
            if index >= count {
                return (met, None);
            }
            let seed = seed.wrapping_add(index as u64);
            match episode(seed, OPERATIONS_AN_EPISODE, wrap) {
                Ok(one) => met.push(one),
                Err(violation) => {
                    next.store(count, Ordering::SeqCst);
                    return (met, Some((seed, violation)));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..EPISODES_AT_ONCE.min(count))
            .map(|_| scope.spawn(work))
            .collect();
        let mut all = (Vec::new(), None);
        for thread in threads {
            let (met, failure) = thread.join().unwrap();
            all.0.extend(met);
            all.1 = all.1.or(failure);
        }
        all
    })
}

#[test]
fn etcd_answers_as_the_model_does_though_the_network_fails() {
    let operations = told("DIFFERENTIAL_OPERATIONS", 10_000);
    let seed = told("DIFFERENTIAL_SEED", 1) as u64;
    let start = Instant::now();
    let count = operations.div_ceil(OPERATIONS_AN_EPISODE);
    let (met, failure) = episodes(count, seed, |store| std::sync::Arc::new(store));
    if let Some((seed, Violation(what))) = failure {
        panic!("seed {seed}: {what}");
    }
    let met = Met::sum(&met);
    println!("{operations} operations in {:?}: {met:#?}", start.elapsed());
    met.check();
}

/// The test above can fail: each of these faults is found.
#[test]
fn a_store_that_errs_is_found_out() {
    const MOST_EPISODES: usize = 40;
    for (name, wrap) in MUTANTS {
        let start = Instant::now();
        let (met, failure) = episodes(MOST_EPISODES, 1, *wrap);
        let took: Duration = start.elapsed();
        let Some((seed, Violation(what))) = failure else {
            panic!("{name} was not found out in {MOST_EPISODES} episodes");
        };
        let first = what.lines().next().unwrap_or_default();
        println!(
            "{name}: found by seed {seed} after {} whole episodes, {took:?}: {first:.200}",
            met.len()
        );
    }
}
