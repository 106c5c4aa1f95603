//! The conformance table on every store, as `backend::area::case`.
//!
//! `cargo test -p punctual-tests --test conformance -- sled::watch` runs a part. A run of all
//! prints how many cases each backend passed; the counts must be equal.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test with its own main"
)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use libtest_mimic::{Arguments, Trial};
use punctual::env::TokioEnv;
use punctual_memory::MemoryBackend;
use punctual_sled::{Options, SledBackend};
use punctual_tests::conformance::{Case, Fixture, table};

/// A backend under test: its name, and how to make a fixture.
type Backend = (&'static str, fn() -> Fixture);

const BACKENDS: [Backend; 2] = [("memory", memory), ("sled", sled)];

fn memory() -> Fixture {
    let env = TokioEnv::shared();
    let store = MemoryBackend::new(Arc::clone(&env));
    let compacted = store.handle();
    Fixture {
        a: Arc::new(store.handle()),
        b: Arc::new(store),
        elsewhere: Arc::new(MemoryBackend::new(Arc::clone(&env))),
        env,
        compact: Box::new(move |revision| {
            let answer = compacted.compact(revision);
            Box::pin(async move { answer })
        }),
        keep: Box::new(()),
    }
}

fn sled() -> Fixture {
    let env = TokioEnv::shared();
    let place = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        let directory = place.path().join(name);
        SledBackend::open(directory, Arc::clone(&env), Options::default()).unwrap()
    };
    let store = open("db");
    let compacted = store.clone();
    Fixture {
        a: Arc::new(store.clone()),
        b: Arc::new(store),
        elsewhere: Arc::new(open("elsewhere")),
        env,
        compact: Box::new(move |revision| {
            let store = compacted.clone();
            Box::pin(async move { store.compact(revision).await })
        }),
        keep: Box::new(place),
    }
}

fn run(case: Case, fixture: fn() -> Fixture) {
    // Each case has its own runtime: what one leaves running cannot disturb another.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut fixture = fixture();
        let keep = std::mem::replace(&mut fixture.keep, Box::new(()));
        let ended = tokio::spawn((case.run)(fixture)).await;
        drop(keep);
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic.into_panic());
        }
    });
}

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Cases wait for leases to end more than they work.
    arguments.test_threads.get_or_insert(16);
    let mut passed = BTreeMap::new();
    let mut trials = Vec::new();
    for (backend, fixture) in BACKENDS {
        let count = Arc::new(AtomicUsize::new(0));
        passed.insert(backend, Arc::clone(&count));
        trials.extend(table().into_iter().map(|case| {
            let count = Arc::clone(&count);
            let name = format!("{backend}::{}::{}", case.area, case.name);
            Trial::test(name, move || {
                run(case, fixture);
                count.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        }));
    }
    let whole = arguments.filter.is_none() && arguments.skip.is_empty() && !arguments.list;
    let conclusion = libtest_mimic::run(&arguments, trials);
    let watch = table().iter().filter(|case| case.area == "watch").count();
    let counts: Vec<usize> = passed.values().map(|n| n.load(Ordering::Relaxed)).collect();
    for (backend, count) in passed.keys().zip(&counts) {
        println!(
            "conformance: {backend} passed {count} of {} cases",
            table().len()
        );
    }
    println!(
        "conformance: {watch} of {} cases are about watch",
        table().len()
    );
    if whole && counts.iter().any(|count| *count != counts[0]) {
        println!("conformance: the counts differ");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}
