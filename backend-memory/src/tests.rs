use std::time::Duration;

use punctual::backend::{Event, Write};
use punctual::env::{TokioEnv, timeout};

use super::*;

fn leased(key: &str, lease: LeaseId) -> Txn {
    Txn::new().op(Write::Put {
        key: key.into(),
        value: vec![],
        lease: Some(lease),
    })
}

#[tokio::test]
async fn the_reaper_tells_a_watcher_without_traffic_even_when_a_shorter_lease_comes_later() {
    let env = TokioEnv::shared();
    let store = MemoryBackend::new(Arc::clone(&env));
    let long = store.grant(60_000).await.unwrap();
    let _ = store.commit(&leased("long", long.id)).await.unwrap();
    // Let the reaper fall asleep on the long lease.
    env.sleep(Duration::from_millis(50)).await;
    let short = store.grant(0).await.unwrap();
    let _ = store.commit(&leased("short", short.id)).await.unwrap();
    let from = Revision(store.revision().unwrap().0 + 1);
    let mut watch = store.watch(&Span::prefix(""), from).await.unwrap();
    let changes = timeout(&*env, Duration::from_secs(10), watch.next())
        .await
        .expect("nobody called the store, the reaper must have")
        .unwrap();
    assert_eq!(
        changes.events,
        [Event::Delete {
            key: b"short".to_vec(),
            revision: from
        }]
    );
    assert_eq!(store.leases().unwrap(), [long.id]);
}

#[tokio::test]
async fn the_last_handle_ends_the_store_and_its_reaper() {
    let store = MemoryBackend::new(TokioEnv::shared());
    let _ = store.grant(60_000).await.unwrap();
    tokio::task::yield_now().await;
    let weak = Arc::downgrade(&store.shared);
    drop(store.handle());
    assert!(weak.upgrade().is_some());
    drop(store);
    assert!(weak.upgrade().is_none(), "the reaper must not hold it");
}

#[tokio::test]
async fn a_panic_inside_breaks_the_store_for_good() {
    let store = MemoryBackend::new(TokioEnv::shared());
    let other = store.handle();
    std::thread::scope(|scope| {
        let crash = scope.spawn(move || other.shared.run::<()>(|_| panic!("as a bug would")));
        assert!(crash.join().is_err());
    });
    let answer = store.commit(&Txn::new().put("a", "1")).await;
    assert!(matches!(answer, Err(BackendError::Broken(_))), "{answer:?}");
}

/// Polls it once.
fn poll(watch: &mut Box<dyn Watch>) -> Option<BackendResult<punctual::backend::Changes>> {
    let mut next = watch.next();
    let waker = std::task::Waker::noop();
    match next
        .as_mut()
        .poll(&mut std::task::Context::from_waker(waker))
    {
        std::task::Poll::Ready(answer) => Some(answer),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test]
async fn a_watch_with_nothing_to_read_does_not_fall_behind() {
    let retention = Retention {
        revisions: 3,
        bytes: usize::MAX,
    };
    let store = MemoryBackend::with_retention(TokioEnv::shared(), retention);
    let mut quiet = store.watch(&Span::key("quiet"), Revision(1)).await.unwrap();
    let mut busy = store.watch(&Span::key("busy"), Revision(1)).await.unwrap();
    assert!(poll(&mut quiet).is_none());
    assert!(poll(&mut busy).is_none());
    for round in 0..20 {
        let txn = Txn::new().put("busy", format!("{round}"));
        let _ = store.commit(&txn).await.unwrap();
    }
    let _ = store.commit(&Txn::new().put("quiet", "1")).await.unwrap();
    let changes = poll(&mut quiet).expect("it was woken").unwrap();
    assert_eq!(changes.revision, store.revision().unwrap());
    assert!(poll(&mut quiet).is_none());
    let behind = poll(&mut busy).expect("it has something to read");
    assert!(matches!(behind, Err(BackendError::Compacted { .. })));
}

#[tokio::test]
async fn a_call_that_is_dropped_after_it_was_woken_loses_nothing() {
    let store = MemoryBackend::new(TokioEnv::shared());
    let mut watch = store.watch(&Span::key("a"), Revision(1)).await.unwrap();
    for round in 0..3 {
        // Waits, is woken, and is dropped unread; the next call reads.
        let mut next = watch.next();
        let waker = std::task::Waker::noop();
        let mut context = std::task::Context::from_waker(waker);
        assert!(next.as_mut().poll(&mut context).is_pending());
        let txn = Txn::new().put("a", format!("{round}"));
        let _ = store.commit(&txn).await.unwrap();
        drop(next);
        let changes = poll(&mut watch).expect("it is there").unwrap();
        assert_eq!(changes.revision, store.revision().unwrap());
    }
    assert!(poll(&mut watch).is_none());
    drop(watch);
    assert_eq!(
        store.shared.watches.count(),
        0,
        "a closed watch is forgotten"
    );
}
