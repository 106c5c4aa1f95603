//! Words that the cases are written in.

use std::time::Duration;

use punctual::backend::{
    BackendError, BackendExt as _, BackendResult, BatchOutcome, Changes, CoordinationBackend,
    Entry, Event, Key, LeaseId, Op, Page, PageLimit, Requirement, Revision, Seen, Span, Txn,
    TxnOutcome, Watch, Write,
};
use punctual::env::timeout;

use super::Fixture;

/// So long may anything take before it counts as never.
const PATIENCE: Duration = Duration::from_secs(15);
/// So long must nothing happen before it counts as nothing.
const QUIET: Duration = Duration::from_millis(120);

pub(super) async fn apply(store: &dyn CoordinationBackend, txn: Txn) -> Revision {
    match store.commit(&txn).await {
        Ok(TxnOutcome::Applied { revision, .. }) => revision,
        other => panic!("{txn:?} should apply: {other:?}"),
    }
}

pub(super) async fn put(
    store: &dyn CoordinationBackend,
    key: impl Into<Key>,
    value: impl Into<Vec<u8>>,
) -> Revision {
    apply(store, Txn::new().put(key, value)).await
}

pub(super) async fn delete(store: &dyn CoordinationBackend, key: &str) -> Revision {
    apply(store, Txn::new().delete(key)).await
}

/// The answers to the choices of a transaction that applies.
pub(super) async fn chosen(store: &dyn CoordinationBackend, txn: Txn) -> Vec<bool> {
    match store.commit(&txn).await {
        Ok(TxnOutcome::Applied { chosen, .. }) => chosen,
        other => panic!("{txn:?} should apply: {other:?}"),
    }
}

/// What a transaction that conflicts has seen, as `key=value`.
pub(super) async fn conflict(store: &dyn CoordinationBackend, txn: Txn) -> Vec<String> {
    match store.commit(&txn).await {
        Ok(TxnOutcome::Conflict { seen }) => shown_seen(&seen),
        other => panic!("{txn:?} should conflict: {other:?}"),
    }
}

pub(super) async fn judged(
    store: &dyn CoordinationBackend,
    guard: &[Requirement],
    txns: &[Txn],
) -> (Revision, Vec<TxnOutcome>) {
    match store.commit_batch(guard, txns).await {
        Ok(BatchOutcome::Judged { revision, outcomes }) => (revision, outcomes),
        other => panic!("the batch should be judged: {other:?}"),
    }
}

pub(super) async fn get(store: &dyn CoordinationBackend, key: &str) -> Option<Entry> {
    store.get(key.as_bytes()).await.unwrap()
}

/// The first page of the keys with a prefix.
pub(super) async fn read(
    store: &dyn CoordinationBackend,
    prefix: &str,
    at: Option<Revision>,
) -> BackendResult<Page> {
    let span = Span::prefix(prefix);
    store.range(&span, PageLimit::default(), at).await
}

/// The span of a prefix as `key=value`, now or at a revision.
pub(super) async fn shown(
    store: &dyn CoordinationBackend,
    prefix: &str,
    at: Option<Revision>,
) -> Vec<String> {
    let page = read(store, prefix, at).await.unwrap();
    assert!(!page.more);
    page.entries.iter().map(shown_entry).collect()
}

pub(super) fn shown_seen(seen: &Seen) -> Vec<String> {
    let shown = |entry: &Option<Entry>| entry.as_ref().map_or("nothing".into(), shown_entry);
    seen.iter().map(shown).collect()
}

fn shown_entry(entry: &Entry) -> String {
    format!("{}={}", text(&entry.key), text(&entry.value))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The events of one revision as `key=value` and `-key`.
pub(super) fn events(changes: &Changes) -> Vec<String> {
    for event in &changes.events {
        assert_eq!(event.revision(), changes.revision, "{changes:?}");
    }
    let shown = |event: &Event| match event {
        Event::Put(entry) => shown_entry(entry),
        Event::Delete { key, .. } => format!("-{}", text(key)),
    };
    changes.events.iter().map(shown).collect()
}

#[track_caller]
pub(super) fn assert_rejected<T: std::fmt::Debug>(answer: BackendResult<T>) {
    assert!(
        matches!(answer, Err(BackendError::Rejected(_))),
        "should be rejected: {answer:?}"
    );
}

#[track_caller]
pub(super) fn assert_lost<T: std::fmt::Debug>(answer: BackendResult<T>) {
    assert!(
        matches!(answer, Err(BackendError::LeaseLost)),
        "the lease should be lost: {answer:?}"
    );
}

pub(super) fn absent(key: &str) -> Requirement {
    Requirement::Absent(key.into())
}

pub(super) fn created(key: &str, revision: Revision) -> Requirement {
    Requirement::Created(key.into(), revision)
}

pub(super) fn modified(key: &str, revision: Revision) -> Requirement {
    Requirement::Modified(key.into(), revision)
}

pub(super) fn empty(prefix: &str) -> Requirement {
    Requirement::Empty(Span::prefix(prefix))
}

pub(super) fn choose(require: Requirement, then: Write, otherwise: Write) -> Op {
    Op::Choose {
        require: vec![require],
        then: vec![then],
        otherwise: vec![otherwise],
    }
}

pub(super) fn leased(key: &str, value: &str, lease: LeaseId) -> Write {
    Write::Put {
        key: key.into(),
        value: value.into(),
        lease: Some(lease),
    }
}

/// A lease that nobody prolongs: dead before a case is over.
pub(super) async fn short_lease(store: &dyn CoordinationBackend) -> LeaseId {
    store.grant(0).await.unwrap().id
}

/// A lease that outlives any case.
pub(super) async fn long_lease(store: &dyn CoordinationBackend) -> LeaseId {
    store.grant(600_000).await.unwrap().id
}

impl Fixture {
    pub(super) async fn watch(&self, prefix: &str, from: Revision) -> Box<dyn Watch> {
        self.a.watch(&Span::prefix(prefix), from).await.unwrap()
    }

    /// The next revision of a watch, which must come.
    pub(super) async fn next(&self, watch: &mut Box<dyn Watch>) -> Changes {
        match timeout(&*self.env, PATIENCE, watch.next()).await {
            Some(changes) => changes.unwrap(),
            None => panic!("the watch never reported it"),
        }
    }

    /// The events of the next revision of a watch.
    pub(super) async fn next_events(&self, watch: &mut Box<dyn Watch>) -> Vec<String> {
        events(&self.next(watch).await)
    }

    /// The end of a watch, which must come: from its opening or from its first call.
    pub(super) async fn end(&self, watch: BackendResult<Box<dyn Watch>>) -> BackendError {
        let mut watch = match watch {
            Ok(watch) => watch,
            Err(error) => return error,
        };
        match timeout(&*self.env, PATIENCE, watch.next()).await {
            Some(answer) => answer.unwrap_err(),
            None => panic!("the watch never ended"),
        }
    }

    /// Asserts that a watch has nothing to report.
    pub(super) async fn quiet(&self, watch: &mut Box<dyn Watch>) {
        if let Some(unexpected) = timeout(&*self.env, QUIET, watch.next()).await {
            panic!("nothing should be reported: {unexpected:?}");
        }
    }

    pub(super) async fn pass(&self, ms: u64) {
        self.env.sleep(Duration::from_millis(ms)).await;
    }

    /// The revision at which the store stands.
    pub(super) async fn now(&self) -> Revision {
        read(&*self.a, "nothing", None).await.unwrap().revision
    }

    /// The first revision that is still to come.
    pub(super) async fn upcoming(&self) -> Revision {
        after(self.now().await)
    }
}

pub(super) fn after(revision: Revision) -> Revision {
    Revision(revision.0 + 1)
}
