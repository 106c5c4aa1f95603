//! Who was not answered once does not know what became of the request, whatever is heard later.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;
use std::time::Duration;

use punctual::backend::{BackendError, Txn};
use punctual::env::TokioEnv;
use punctual::recipe::retry::Store;
use punctual_memory::MemoryBackend;
use punctual_tests::unsteady::{Mood, Unsteady};

// A person who is told that nothing was changed does it once more, or somewhere else.
#[tokio::test]
async fn a_lost_answer_is_not_forgotten_when_the_store_goes_away_behind_it() {
    let env = TokioEnv::shared();
    let backend = Arc::new(Unsteady::new(MemoryBackend::new(env.clone())));
    let store = Store::new(backend.clone(), env, 2_000).unreported();
    let txn = Txn::new().put("k", "v");
    backend.set(Mood::Mumbling);
    let asked = store.settle_within(&txn, 400);
    let leave = async {
        while backend.commits() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        backend.set(Mood::Away);
    };
    let (answer, ()) = tokio::join!(asked, leave);
    assert!(backend.commits() > 1);
    assert!(
        matches!(answer, Err(BackendError::Unknown(_))),
        "{answer:?}"
    );

    // From the beginning: it is certain that nothing was done.
    let answer = store.settle_within(&txn, 100).await;
    assert!(
        matches!(answer, Err(BackendError::Unavailable(_))),
        "{answer:?}"
    );
}
