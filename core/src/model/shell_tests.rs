//! The model behind a lock, for tests of code that needs a store.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::{Model, Retention};
use crate::backend::{
    BackendError, BackendResult, BatchOutcome, CoordinationBackend, Entry, Lease, LeaseId, Page,
    PageLimit, Requirement, Revision, Span, Txn, TxnOutcome, Watch,
};

/// Nobody watches it, and its time stands still, so that no lease ends.
pub(crate) struct Shell(Mutex<Model>);

impl Shell {
    pub(crate) fn shared() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Model::new(Retention::default()))))
    }

    /// Past everything.
    pub(crate) fn write(&self, txn: &Txn) {
        let outcome = self.0.lock().unwrap().commit(txn).answer.unwrap();
        assert!(outcome.applied().is_some(), "{outcome:?}");
    }

    pub(crate) fn entries(&self, span: &Span) -> Vec<Entry> {
        let model = self.0.lock().unwrap();
        model.entries(span).map(|e| Entry::clone(e)).collect()
    }
}

#[async_trait]
impl CoordinationBackend for Shell {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        self.0.lock().unwrap().range(span, limit, at)
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        self.0.lock().unwrap().commit(txn).answer
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        self.0.lock().unwrap().commit_batch(guard, txns).answer
    }

    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        self.0.lock().unwrap().grant(ttl_ms).answer
    }

    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        self.0.lock().unwrap().keep_alive(lease).answer
    }

    async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        self.0.lock().unwrap().revoke(lease).answer
    }

    async fn watch(&self, _: &Span, _: Revision) -> BackendResult<Box<dyn Watch>> {
        Err(BackendError::Rejected("nobody watches this store".into()))
    }
}
