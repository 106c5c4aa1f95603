//! Writes whose answer is lost, that arrive twice, that never arrive; reads that are stale.

use std::time::{Duration, Instant};

use punctual::backend::{
    BackendError, BackendExt as _, CoordinationBackend as _, Requirement, Revision, Span, Txn,
    TxnOutcome,
};
use punctual::duration::Millis;
use punctual::job::spec::{JobSpec, Overlap};
use punctual_tests::cluster::Cluster;
use punctual_tests::cluster::inside::{HANDLER, Inside};
use punctual_tests::cluster::report::Report;
use punctual_tests::etcd::{Etcd, EtcdCluster};
use punctual_tests::meddler::Meddling;
use punctual_tests::proxy::{Proxy, Wire};
use serde_json::json;

use crate::{connect, put, standing};

fn jobs() -> Vec<JobSpec> {
    (0..6)
        .map(|n| {
            let mut job = JobSpec::handler(format!("job-{n}"), HANDLER);
            job = match n % 3 {
                0 => job.cron("* * * * * *"),
                1 => job.every(Millis::from_secs(1)),
                _ => job.cron("*/2 * * * * *"),
            };
            if n == 5 {
                job.overlap = Overlap::Skip;
            }
            job.payload = json!({ "ms": n * 300 });
            job
        })
        .collect()
}

fn live(meddling: Meddling) -> (u64, u64) {
    let cluster = Inside::start(2, meddling);
    let jobs = jobs();
    cluster.apply(&jobs);
    cluster.wait_until("executions", |cluster| cluster.executed() >= 40);
    let observed = cluster.settle(&jobs);
    let violations = Cluster::judge(&observed);
    println!("{}", Report::of(&observed));
    assert!(violations.is_empty(), "{violations:#?}");
    (cluster.meddler.meddled(), cluster.meddler.copies_applied())
}

/// P01: the answer of every third write is lost after it was made: claims, starts, results, fires.
/// Whoever wrote it finds out that it was its own, and each run is executed once.
#[test]
fn p01_a_write_whose_answer_is_lost_is_known_as_our_own() {
    let (lost, _) = live(Meddling::LoseAnswer { every: 3 });
    println!("{lost} answers were lost");
    assert!(lost >= 10);
}

/// P02: every fifth write arrives a second time, later. No copy changes anything: what it requires,
/// the first one consumed.
#[test]
fn p02_a_write_that_arrives_twice_is_made_once() {
    for after_ms in [0, 700] {
        let (repeated, applied) = live(Meddling::Repeat {
            every: 5,
            after: Duration::from_millis(after_ms),
        });
        println!("{repeated} writes came twice, {applied} of the copies applied");
        assert!(repeated >= 5);
        assert_eq!(applied, 0);
    }
}

/// S07: a black hole. Every call ends within 5 s, and works again when the way is open.
#[tokio::test]
async fn s07_every_call_into_a_black_hole_ends() {
    let etcd = Etcd::start();
    let proxy = Proxy::start(etcd.port(), 1);
    let store = connect(&[format!("http://127.0.0.1:{}", proxy.port())]).await;
    put(&store, "k", "1").await;
    let lease = store.grant(60_000).await.unwrap();
    let mut watch = store.watch(&Span::key("k"), Revision(2)).await.unwrap();
    assert!(watch.next().await.is_ok());

    proxy.set(Wire::HELD);
    let most = Duration::from_secs(5);
    let everything = Span::prefix("k");
    let txn = Txn::new().put("k", "2");
    let batch = [txn.clone()];
    for _ in 0..2 {
        let start = Instant::now();
        let (read, write, many, granted, kept, revoked, watched) = tokio::join!(
            store.get(b"k"),
            store.commit(&txn),
            store.commit_batch(&[], &batch),
            store.grant(5_000),
            store.keep_alive(lease.id),
            store.revoke(lease.id),
            store.watch(&everything, Revision(2)),
        );
        assert!(start.elapsed() < most, "{:?}", start.elapsed());
        assert!(
            matches!(read, Err(BackendError::Unavailable(_))),
            "{read:?}"
        );
        assert!(watched.is_err());
        let unknown = [
            write.map(|_| ()),
            many.map(|_| ()),
            granted.map(|_| ()),
            kept.map(|_| ()),
            revoked,
        ];
        for answer in unknown {
            assert!(
                answer.as_ref().is_err_and(BackendError::is_transient),
                "{answer:?}"
            );
        }
    }
    let start = Instant::now();
    let silent = watch.next().await;
    assert!(silent.is_err(), "{silent:?}");
    println!("the watch ended after another {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(10));

    proxy.set(Wire::default());
    let start = Instant::now();
    while let Err(error) = store.get(b"k").await {
        assert!(error.is_transient(), "{error}");
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "it does not come back"
        );
    }
}

/// U09: a member that cannot ask the others does not answer reads, and what was read before it was
/// cut off cannot be claimed any more.
#[tokio::test]
async fn u09_a_lagging_member_neither_serves_reads_nor_lets_a_claim_through() {
    let etcd = EtcdCluster::start(3);
    let alone = (etcd.leader() + 1) % 3;
    let all = connect(&etcd.endpoints()).await;
    let cut_off = connect(&[etcd.endpoints()[alone].clone()]).await;
    put(&all, "run", "PENDING").await;
    let read = standing(&cut_off, "run").await.unwrap();

    // Its state is frozen, and its process lives on: the others stand still.
    let others: Vec<usize> = (0..3).filter(|member| *member != alone).collect();
    for member in &others {
        etcd.pause(*member, true);
    }
    for _ in 0..2 {
        let stale = cut_off.get(b"run").await;
        assert!(
            matches!(stale, Err(BackendError::Unavailable(_))),
            "{stale:?}"
        );
    }
    for member in &others {
        etcd.pause(*member, false);
    }
    let claim = |who: &str| {
        Txn::new()
            .require(Requirement::Modified(b"run".to_vec(), read.modified))
            .put("run", who)
    };
    let start = Instant::now();
    let mut claimed = Vec::new();
    for (store, who) in [(&all, "LOCKED by a"), (&cut_off, "LOCKED by b")] {
        let definite = loop {
            match store.commit(&claim(who)).await {
                Ok(definite) => break definite,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
            assert!(start.elapsed() < Duration::from_secs(30), "no answer");
        };
        claimed.push(matches!(definite, TxnOutcome::Applied { .. }));
    }
    assert!(!claimed[1], "the second claim of one state");
    let stands = standing(&all, "run").await.unwrap();
    assert_eq!(stands.value, b"LOCKED by a");
}
