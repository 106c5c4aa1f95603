//! The conformance table on every store, as `backend::area::case`.
//!
//! `cargo test -p punctual-tests --test conformance -- sled::watch` runs a part. A run of all
//! prints how many cases each backend passed; the counts must be equal.
//!
//! On etcd each case has two real ones for itself, from a pool: cases use raw keys and compact,
//! so they can share neither keys nor history. An etcd that is not installed fails its cases.
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
use punctual::backend::{BackendExt as _, CoordinationBackend as _, Span, Txn};
use punctual::env::{BoxFuture, TokioEnv};
use punctual_etcd::{EtcdBackend, EtcdConfig};
use punctual_memory::MemoryBackend;
use punctual_sled::{Options, SledBackend};
use punctual_tests::conformance::{Case, Fixture, table};
use punctual_tests::etcd::{Etcd, Pool};

/// Makes a fixture; etcds come from the pool.
type Make = fn(&Arc<Pool>) -> BoxFuture<'static, Fixture>;

/// A backend under test: its name, and how to make a fixture.
type Backend = (&'static str, Make);

const BACKENDS: [Backend; 3] = [
    ("memory", |_| Box::pin(async { memory() })),
    ("sled", |_| Box::pin(async { sled() })),
    ("etcd", |pool| Box::pin(etcd(Arc::clone(pool)))),
];

/// At most so many etcds at once: each case on etcd has two.
const ETCDS: usize = 16;

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

/// Two etcds, given back when the case is over.
struct Lent {
    pool: Arc<Pool>,
    etcds: Vec<Etcd>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        for etcd in self.etcds.drain(..) {
            self.pool.give_back(etcd);
        }
    }
}

async fn etcd(pool: Arc<Pool>) -> Fixture {
    let lent = Lent {
        etcds: pool.take::<2>().into(),
        pool,
    };
    let connect = |etcd: &Etcd| {
        let mut config = EtcdConfig::new([etcd.endpoint()]);
        // Whatever etcd is on the PATH: nothing here is to be kept.
        config.allow_corrupting_version = true;
        async { EtcdBackend::connect(config).await.unwrap() }
    };
    let (store, elsewhere) = (connect(&lent.etcds[0]).await, connect(&lent.etcds[1]).await);
    for used in [&store, &elsewhere] {
        clear(used).await;
    }
    let compacted = store.clone();
    Fixture {
        a: Arc::new(store),
        // As another node would have it, with connections of its own.
        b: Arc::new(connect(&lent.etcds[0]).await),
        elsewhere: Arc::new(elsewhere),
        env: TokioEnv::shared(),
        compact: Box::new(move |revision| {
            let store = compacted.clone();
            Box::pin(async move { store.compact(revision).await })
        }),
        keep: Box::new(lent),
    }
}

/// Deletes what an earlier case left behind.
async fn clear(store: &EtcdBackend) {
    let all = Span::prefix("");
    let (entries, _) = store.list(&all).await.unwrap();
    for some in entries.chunks(100) {
        let delete = |txn: Txn, key: &Vec<u8>| txn.delete(key.clone());
        let txn = some.iter().map(|entry| &entry.key).fold(Txn::new(), delete);
        assert!(store.commit(&txn).await.unwrap().applied().is_some());
    }
}

fn run(case: Case, fixture: Make, pool: &Arc<Pool>) {
    // Each case has its own runtime: what one leaves running cannot disturb another.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut fixture = fixture(pool).await;
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
    let pool = Arc::new(Pool::new(ETCDS));
    let mut passed = BTreeMap::new();
    let mut trials = Vec::new();
    for (backend, fixture) in BACKENDS {
        let count = Arc::new(AtomicUsize::new(0));
        passed.insert(backend, Arc::clone(&count));
        trials.extend(table().into_iter().map(|case| {
            let (count, pool) = (Arc::clone(&count), Arc::clone(&pool));
            let name = format!("{backend}::{}::{}", case.area, case.name);
            Trial::test(name, move || {
                run(case, fixture, &pool);
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
