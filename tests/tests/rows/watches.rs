//! Watches that lose, stall, or lie still.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use punctual::backend::{
    BackendError, BackendExt as _, CoordinationBackend as _, Entry, Event, Revision, Span, Txn,
};
use punctual::env::TokioEnv;
use punctual::recipe::retry::Store;
use punctual::recipe::view::{View, ViewEvent};
use punctual_tests::etcd::{Etcd, EtcdCluster};
use punctual_tests::proxy::{Proxy, Wire};

use crate::{connect, put, standing};

const LONG: Duration = Duration::from_secs(30);

/// What a view makes of its events.
fn fold(known: &mut BTreeMap<Vec<u8>, Entry>, event: ViewEvent) {
    match event {
        ViewEvent::Listed(entries, _) => {
            *known = entries.into_iter().map(|e| (e.key.clone(), e)).collect();
        }
        ViewEvent::Changed(changes) => {
            for event in changes.events {
                match event {
                    Event::Put(entry) => known.insert(entry.key.clone(), entry),
                    Event::Delete { key, .. } => known.remove(&key),
                };
            }
        }
    }
}

/// W01: history is compacted at the very revision of a delete that a watcher has not heard of.
#[tokio::test]
async fn w01_a_delete_at_the_compacted_revision_is_found_by_listing() {
    let etcd = Etcd::start();
    let direct = connect(&[etcd.endpoint()]).await;
    let proxy = Proxy::start(etcd.port(), 1);
    let behind = connect(&[format!("http://127.0.0.1:{}", proxy.port())]).await;
    put(&direct, "job/a", "1").await;
    put(&direct, "job/b", "1").await;
    let store = Store::new(Arc::new(behind), TokioEnv::shared(), 2_000);
    let mut view = View::new(store, Span::prefix("job/"), 60_000);
    let mut known = BTreeMap::new();
    fold(&mut known, view.next().await);
    assert_eq!(known.len(), 2);
    put(&direct, "job/c", "1").await;
    fold(&mut known, view.next().await);
    assert_eq!(known.len(), 3, "it watches");

    proxy.set(Wire::HELD);
    let gone = direct.commit(&Txn::new().delete("job/a")).await.unwrap();
    direct.compact(gone.applied().unwrap()).await.unwrap();
    proxy.kill_connections();
    proxy.set(Wire::default());
    let repaired = async {
        while known.contains_key(b"job/a".as_slice()) {
            fold(&mut known, view.next().await);
        }
    };
    tokio::time::timeout(LONG, repaired).await.unwrap();
    assert_eq!(known.len(), 2);
}

/// W02: a watch that opens where history was compacted must not leave out the delete there.
#[tokio::test]
async fn w02_a_watch_from_the_compacted_revision_tells_its_delete_or_ends() {
    let etcd = Etcd::start();
    let store = connect(&[etcd.endpoint()]).await;
    put(&store, "k", "1").await;
    let gone = store.commit(&Txn::new().delete("k")).await.unwrap();
    let gone = gone.applied().unwrap();
    put(&store, "other", "1").await;
    store.compact(gone).await.unwrap();
    let first = match store.watch(&Span::key("k"), gone).await {
        Ok(mut watch) => tokio::time::timeout(LONG, watch.next()).await.unwrap(),
        Err(error) => Err(error),
    };
    match first {
        Ok(changes) => assert_eq!(
            changes.events,
            [Event::Delete {
                key: b"k".to_vec(),
                revision: gone
            }]
        ),
        Err(error) => assert!(matches!(error, BackendError::Compacted { .. }), "{error}"),
    }
}

/// W04: the member that holds the stream stands still. The loss is noticed within 10 s, and the
/// watch goes on at another member.
#[tokio::test]
async fn w04_a_watch_leaves_a_member_that_stands_still() {
    let etcd = EtcdCluster::start(3);
    let held = (etcd.leader() + 1) % 3;
    let mut endpoints = etcd.endpoints();
    endpoints.rotate_left(held);
    let store = connect(&endpoints).await;
    let other = connect(&endpoints[1..]).await;
    let from = put(&other, "k", "1").await;
    let mut watch = store.watch(&Span::key("k"), from).await.unwrap();
    assert_eq!(watch.next().await.unwrap().revision, from);

    etcd.pause(held, true);
    let start = Instant::now();
    let missed = put(&other, "k", "2").await;
    let ended = tokio::time::timeout(LONG, watch.next()).await.unwrap();
    println!("noticed after {:?}", start.elapsed());
    assert!(
        matches!(ended, Err(BackendError::Unavailable(_))),
        "{ended:?}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    let mut again = store.watch(&Span::key("k"), missed).await.unwrap();
    let heard = tokio::time::timeout(LONG, again.next()).await.unwrap();
    assert_eq!(heard.unwrap().revision, missed);
    etcd.pause(held, false);
}

/// W06: every connection is killed ten times while a hundred keys change; what a view knows in the
/// end is what stands.
#[tokio::test]
async fn w06_a_view_survives_its_connections() {
    let etcd = Etcd::start();
    let direct = connect(&[etcd.endpoint()]).await;
    let proxies = [1, 2].map(|seed| Proxy::start(etcd.port(), seed));
    let endpoints = proxies
        .iter()
        .map(|proxy| format!("http://127.0.0.1:{}", proxy.port()))
        .collect::<Vec<_>>();
    let store = Store::new(
        Arc::new(connect(&endpoints).await),
        TokioEnv::shared(),
        2_000,
    );
    // No listing comes to the help of the watch.
    let mut view = View::new(store, Span::prefix("job/"), 3_600_000);
    let mut known = BTreeMap::new();
    fold(&mut known, view.next().await);
    let mut last = Revision(0);
    for turn in 0..10 {
        for n in 0..100 {
            let key = format!("job/{n:02}");
            last = if (n + turn) % 7 == 0 {
                let gone = direct.commit(&Txn::new().delete(key)).await.unwrap();
                gone.applied().unwrap()
            } else {
                put(&direct, &key, &turn.to_string()).await
            };
            if n == 50 {
                proxies.iter().for_each(Proxy::kill_connections);
            }
        }
        // The view reads as it goes.
        let so_far = async {
            loop {
                fold(&mut known, view.next().await);
            }
        };
        let _ = tokio::time::timeout(Duration::from_millis(200), so_far).await;
    }
    let end = put(&direct, "job/end", "1").await;
    assert!(end > last);
    let to_the_end = async {
        while !known.contains_key(b"job/end".as_slice()) {
            fold(&mut known, view.next().await);
        }
    };
    tokio::time::timeout(LONG, to_the_end).await.unwrap();
    let (stands, _) = direct.list(&Span::prefix("job/")).await.unwrap();
    assert_eq!(known.into_values().collect::<Vec<_>>(), stands);
}

/// W07: an idle watch stays open, for longer than all its timers, and hears the next change
/// at once.
#[tokio::test]
async fn w07_an_idle_watch_hears_the_next_change() {
    let etcd = Etcd::start();
    let store = connect(&[etcd.endpoint()]).await;
    let other = connect(&[etcd.endpoint()]).await;
    put(&store, "k", "0").await;
    let from = Revision(standing(&store, "k").await.unwrap().modified.0 + 1);
    let mut watch = store.watch(&Span::key("k"), from).await.unwrap();
    let idle = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
    assert!(idle.is_err(), "nothing happened, and still: {idle:?}");
    let put_at = put(&other, "k", "1").await;
    let start = Instant::now();
    let heard = tokio::time::timeout(LONG, watch.next()).await.unwrap();
    println!("heard after {:?}", start.elapsed());
    assert_eq!(heard.unwrap().revision, put_at);
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
}
