//! A long span is listed whole, over quick lines and slow ones.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use punctual::backend::{Span, Txn};
use punctual::env::TokioEnv;
use punctual::recipe::retry::Store;
use punctual_memory::MemoryBackend;
use punctual_tests::unsteady::{Mood, Unsteady};

const ENTRIES: usize = 5_000;

async fn filled() -> (Arc<Unsteady>, Store) {
    let env = TokioEnv::shared();
    let backend = Arc::new(Unsteady::new(MemoryBackend::new(env.clone())));
    let store = Store::new(backend.clone(), env, 2_000).unreported();
    for group in (0..ENTRIES).collect::<Vec<_>>().chunks(100) {
        let put = |txn: Txn, n: &usize| txn.put(format!("k/{n:05}"), "v");
        let txn = group.iter().fold(Txn::new(), put);
        store.try_commit(&txn).await.unwrap().applied().unwrap();
    }
    (backend, store)
}

// The first page comes at once and lets expect that a large one does too; on a line that bursts, or
// before a store that is busy, it does not. A listing that only began anew would never end there.
#[tokio::test]
async fn a_listing_ends_where_only_small_pages_come() {
    let (backend, store) = filled().await;
    let span = Span::prefix("k/");
    let (quick, _) = store.list(&span, None).await.unwrap();
    assert_eq!(quick.len(), ENTRIES);
    backend.set(Mood::Slow(1_000));
    let (slow, _) = store.list(&span, None).await.unwrap();
    assert_eq!(slow, quick);
    backend.set(Mood::Slow(999));
    assert!(store.list(&span, None).await.is_err());
}
