//! Leases and leads.

use std::time::{Duration, Instant};

use punctual::backend::{
    BackendExt as _, BackendInfo as _, CoordinationBackend as _, Span, Txn, TxnOutcome,
};
use punctual::env::TokioEnv;
use punctual::recipe::session::{Opened, Session};
use punctual_tests::etcd::{Etcd, EtcdCluster};

use crate::{connect, standing};

/// E06: three candidates; the lease of whoever leads is ended under it. The next one leads by a key
/// and a lease that can be read back, and the deposed one can write nothing in the leader's name,
/// whether it knows or not.
#[tokio::test]
async fn e06_who_leads_is_who_holds_the_key() {
    let etcd = Etcd::start();
    let store = connect(&[etcd.endpoint()]).await;
    let candidate = |name: &'static str| {
        let store = store.clone();
        tokio::spawn(async move {
            let value = name.as_bytes().to_vec();
            (
                name,
                store
                    .elect(TokioEnv::shared(), b"leader", value, 5_000)
                    .await,
            )
        })
    };
    let mut waiting = Vec::from(["a", "b", "c"].map(candidate));
    let mut deposed = Vec::new();
    while !waiting.is_empty() {
        let (name, session) = next_leader(&mut waiting).await;
        let stands = standing(&store, "leader").await.unwrap();
        assert_eq!(stands.value, name.as_bytes());
        assert_eq!(stands.created, session.revision, "its own key");
        let lease = stands.lease.expect("a lead is leased");
        assert!(store.keep_alive(lease).await.is_ok(), "and the lease lives");
        let mark = Txn::new().require(session.guard()).put("mark", name);
        assert!(matches!(
            store.commit(&mark).await,
            Ok(TxnOutcome::Applied { .. })
        ));
        for old in &deposed {
            let old: &Session = old;
            let forged = Txn::new().require(old.guard()).put("mark", "old");
            let answer = store.commit(&forged).await;
            assert!(
                matches!(answer, Ok(TxnOutcome::Conflict { .. })),
                "{answer:?}"
            );
        }
        store.revoke(lease).await.unwrap();
        let over = tokio::time::timeout(Duration::from_secs(10), session.ended()).await;
        assert!(over.is_ok(), "it hears that it leads no more");
        assert!(!session.trust.holds());
        deposed.push(session);
    }
    assert_ne!(standing(&store, "mark").await.unwrap().value, b"old");
}

type Candidate = tokio::task::JoinHandle<(&'static str, Session)>;

/// The one of them that is elected; the others go on waiting.
async fn next_leader(waiting: &mut Vec<Candidate>) -> (&'static str, Session) {
    let start = Instant::now();
    loop {
        if let Some(place) = waiting.iter().position(Candidate::is_finished) {
            return waiting.swap_remove(place).await.unwrap();
        }
        assert!(start.elapsed() < Duration::from_secs(30), "nobody leads");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// L04: etcd's leader changes three times under a long lease. Its time counts from the last
/// keep-alive, whatever etcd remembers of the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l04_a_lease_outlives_three_leaders_of_etcd() {
    let etcd = EtcdCluster::start(3);
    let store = connect(&etcd.endpoints()).await;
    let opened = store.session(TokioEnv::shared(), b"node".to_vec(), b"1".to_vec(), 9_000);
    let Ok(Opened::Ours(session)) = opened.await else {
        panic!("the key is free");
    };
    for _ in 0..3 {
        let before = etcd.leader();
        let after = tokio::task::block_in_place(|| etcd.move_leader()).unwrap();
        assert_ne!(before, after);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let stands = standing(&store, "node").await.expect("it is kept alive");
        assert_eq!(stands.created, session.revision);
    }
    // Longer than its time since the grant: only keep-alives hold it.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(session.trust.holds());
    assert_eq!(
        standing(&store, "node").await.unwrap().created,
        session.revision
    );
}

/// P09: fifty nodes that do nothing but live. Nothing is written, so nothing grows.
#[tokio::test]
async fn p09_heartbeats_write_nothing() {
    let etcd = Etcd::start();
    let store = connect(&[etcd.endpoint()]).await;
    let mut sessions = Vec::new();
    for n in 0..50 {
        let key = format!("node/{n}").into_bytes();
        let opened = store.session(TokioEnv::shared(), key, b"1".to_vec(), 2_000);
        let Ok(Opened::Ours(session)) = opened.await else {
            panic!("the key is free");
        };
        sessions.push(session);
    }
    let span = Span::prefix("node/");
    let (entries, before) = store.list(&span).await.unwrap();
    assert_eq!(entries.len(), 50);
    // etcd writes its pages a little later.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let used = store.usage().await.unwrap().used_bytes;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let (entries, after) = store.list(&span).await.unwrap();
    assert_eq!(entries.len(), 50, "five times their time to live");
    assert_eq!(after, before, "no revision was made");
    let grown = store.usage().await.unwrap().used_bytes.saturating_sub(used);
    println!("etcd uses {grown} bytes more");
    // A few pages for books of its own; 1,000 puts would take 25 times as much.
    assert!(grown <= 16 << 10, "{grown}");
}
