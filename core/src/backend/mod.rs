//! The contract between the scheduler and its store.
//!
//! Seven primitives, no default methods, no associated types: what etcd, an embedded store and a
//! simulated one can all do alike. Everything larger (election, sessions, views) is built once
//! on top in [`crate::recipe`], so that no store can get it differently. The exact semantics
//! are those of the pure [`crate::model`]; every store passes one conformance table.

mod error;
pub mod ext;
pub mod limits;
mod types;

pub use error::{BackendError, BackendResult};
pub use ext::BackendExt;
pub use types::{
    BatchOutcome, Changes, Entry, Event, Key, Lease, LeaseId, Op, Page, PageLimit, Requirement,
    Revision, Seen, Span, Txn, TxnOutcome, Write,
};

use std::sync::Arc;

use async_trait::async_trait;

/// A linearizable, durable key-value store with transactions, leases and watches.
///
/// What an implementation promises:
/// * an `Ok` answer to a write is durable and will survive a crash;
/// * all requirements of one request, those inside [`Op::Choose`] too, are judged on the state
///   before the request, and its writes make one revision;
/// * no call is repeated behind the caller's back: a write whose answer was lost is
///   [`BackendError::Unknown`].
#[async_trait]
pub trait CoordinationBackend: Send + Sync + 'static {
    /// Entries of `span` in key order, at revision `at` or (`None`) at the newest one,
    /// linearizably. Errors with [`BackendError::Compacted`] when `at` is gone, and
    /// [`BackendError::Rejected`] when `at` lies in the future.
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page>;

    /// If every requirement holds, applies all writes as one revision.
    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome>;

    /// Many transactions in one request, under one shared guard: each applies or conflicts
    /// alone, all writes make one revision. If the guard does not hold, none is applied.
    /// No put of a batch may name a lease.
    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome>;

    /// Makes a lease of at least `ttl_ms` milliseconds by the store's clock.
    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease>;

    /// Prolongs a lease to its full time from now. [`BackendError::LeaseLost`] when it has ended.
    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease>;

    /// Ends a lease; the keys attached to it are deleted as one revision.
    /// [`BackendError::LeaseLost`] when it had ended already.
    async fn revoke(&self, lease: LeaseId) -> BackendResult<()>;

    /// Every change of `span` from revision `from` on (inclusive), in order, none left out.
    /// `from` may lie in the future. An error, [`BackendError::Compacted`] among them, may come
    /// from here or from the first [`Watch::next`].
    async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>>;
}

/// A shared handle is the store that it points to.
#[async_trait]
impl<T: CoordinationBackend + ?Sized> CoordinationBackend for Arc<T> {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        (**self).range(span, limit, at).await
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        (**self).commit(txn).await
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        (**self).commit_batch(guard, txns).await
    }

    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        (**self).grant(ttl_ms).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        (**self).keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        (**self).revoke(lease).await
    }

    async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>> {
        (**self).watch(span, from).await
    }
}

/// An open watch. Dropping it ends it.
#[async_trait]
pub trait Watch: Send {
    /// The next revision that changed the span, complete. After an error the watch is over.
    /// Cancel safe: a call that is dropped while it waits loses nothing.
    async fn next(&mut self) -> BackendResult<Changes>;
}

/// What only some stores know. Apart from [`CoordinationBackend`] because the scheduler must
/// work without it.
#[async_trait]
pub trait BackendInfo: Send + Sync {
    /// Name and version of the store, for people: `sled 0.34.7`.
    fn version(&self) -> String;
    /// Space used and allowed, where the store has such a thing.
    async fn usage(&self) -> BackendResult<Usage>;
}

/// Space that a store uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes on disk or in memory.
    pub used_bytes: u64,
    /// Bytes at which the store stops to accept writes, if it has such a limit.
    pub quota_bytes: Option<u64>,
}
