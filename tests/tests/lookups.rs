//! Many keys are looked up with few requests, and when an answer does not come in time, with more.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

use std::sync::Arc;

use punctual::backend::{BackendError, CoordinationBackend, Key, Requirement, Span, Txn};
use punctual::env::TokioEnv;
use punctual::recipe::retry::Store;
use punctual_memory::MemoryBackend;
use punctual_tests::unsteady::{Mood, Unsteady};

const KEYS: usize = 100;
/// As many as are looked up in one request.
const A_REQUEST: usize = 64;

fn key(index: usize) -> Key {
    format!("key/{index:03}").into_bytes()
}

/// A store in which every third key stands, with its index as its value; and the keys.
async fn stage() -> (Arc<Unsteady>, Store, Vec<Key>) {
    let env = TokioEnv::shared();
    let memory = MemoryBackend::new(env.clone());
    for index in (0..KEYS).step_by(3) {
        let put = Txn::new().put(key(index), index.to_string());
        assert!(memory.commit(&put).await.unwrap().applied().is_some());
    }
    let backend = Arc::new(Unsteady::new(memory));
    let store = Store::new(backend.clone(), env, 2_000);
    (backend, store, (0..KEYS).map(key).collect())
}

/// The answer, and the requests that it took.
async fn look(
    backend: &Unsteady,
    store: &Store,
    keys: &[Key],
) -> (Result<Vec<Option<usize>>, BackendError>, usize) {
    let before = backend.commits();
    let found = store.get_each(keys).await.map(|entries| {
        let value = |value: Vec<u8>| String::from_utf8(value).unwrap().parse().unwrap();
        let entries = entries.into_iter();
        entries.map(|e| e.map(|e| value(e.value))).collect()
    });
    (found, backend.commits() - before)
}

fn all() -> Vec<Option<usize>> {
    let stands = |index: usize| index.is_multiple_of(3).then_some(index);
    (0..KEYS).map(stands).collect()
}

#[tokio::test]
async fn what_does_not_come_in_time_is_asked_for_in_halves() {
    let (backend, store, keys) = stage().await;
    assert_eq!(look(&backend, &store, &keys).await, (Ok(all()), 2));
    // 64, 32, 16 and 8 at once are too many; what was learnt of that is heeded for the rest.
    for (most, tries) in [(63, 1), (32, 1), (10, 3), (5, 4), (1, 6)] {
        backend.set(Mood::Slow(most));
        let step = A_REQUEST >> tries;
        let requests = tries + KEYS.div_ceil(step);
        let found = look(&backend, &store, &keys).await;
        assert_eq!(found, (Ok(all()), requests), "{most} at once");
    }
    // None of these stands: the transaction has nothing to do, and wrote nothing.
    backend.set(Mood::Well);
    let absent: Vec<Key> = (KEYS..2 * KEYS).map(key).collect();
    assert_eq!(
        look(&backend, &store, &absent).await,
        (Ok(vec![None; KEYS]), 2)
    );
    assert_eq!(look(&backend, &store, &[]).await, (Ok(vec![]), 0));
}

/// A single key that is not answered ends it; so does what asking again cannot help.
#[tokio::test]
async fn it_ends_with_the_error_when_halves_do_not_help() {
    let (backend, store, keys) = stage().await;
    // Nothing was to be written: that the answer is missing leaves nothing unknown.
    let silent = BackendError::Unavailable("no answer".into());
    for (mood, error, requests) in [
        (Mood::Slow(0), silent, 7),
        (Mood::Away, BackendError::Unavailable("away".into()), 7),
        (
            Mood::Broken,
            BackendError::Broken("no space left".into()),
            1,
        ),
    ] {
        backend.set(mood);
        let found = look(&backend, &store, &keys).await;
        assert_eq!(found, (Err(error.clone()), requests), "{mood:?}");
        let one = look(&backend, &store, &keys[..1]).await;
        assert_eq!(one, (Err(error), 1), "{mood:?}");
    }
}

#[tokio::test]
async fn the_first_entry_of_each_span_is_told_in_its_place() {
    let (backend, store, _) = stage().await;
    backend.set(Mood::Slow(1));
    let places = [
        Requirement::Empty(Span::prefix("key/01")),
        Requirement::Absent(key(13)),
        Requirement::Empty(Span::prefix("key/9")),
        Requirement::Absent(key(99)),
    ];
    let seen = store.look_each(&places).await.unwrap();
    let seen: Vec<_> = seen.into_iter().map(|e| e.map(|e| e.key)).collect();
    assert_eq!(seen, [Some(key(12)), None, None, Some(key(99))]);
}
