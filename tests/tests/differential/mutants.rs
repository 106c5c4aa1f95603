//! Stores with faults that have been made before, by others or by us: each must be found out.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use punctual::backend::{
    BackendError, BackendResult, BatchOutcome, Changes, CoordinationBackend, Event, Lease, LeaseId,
    Page, PageLimit, Requirement, Revision, Span, Txn, TxnOutcome, Watch,
};
use punctual_etcd::EtcdBackend;

use crate::client::Wrap;

/// The faults by name.
pub(crate) const MUTANTS: &[(&str, Wrap)] = &[
    ("a blind retry of writes", |store| {
        wrap(store, Fault::RetriesBlindly)
    }),
    ("unknown outcomes called certain", |store| {
        wrap(store, Fault::ClaimsUnavailable)
    }),
    ("a batch made one by one", |store| {
        wrap(store, Fault::TakesBatchesApart)
    }),
    ("reads of an older state", |store| {
        wrap(store, Fault::ReadsThePast)
    }),
    ("a dead lease called alive", |store| {
        wrap(store, Fault::RevivesLeases)
    }),
    ("a watch that loses deletes", |store| {
        wrap(store, Fault::LosesDeletes)
    }),
    ("a conflict that hides what it saw", |store| {
        wrap(store, Fault::HidesConflicts)
    }),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    RetriesBlindly,
    ClaimsUnavailable,
    TakesBatchesApart,
    ReadsThePast,
    RevivesLeases,
    LosesDeletes,
    HidesConflicts,
}

struct Mutant {
    store: EtcdBackend,
    fault: Fault,
    reads: AtomicU64,
}

fn wrap(store: EtcdBackend, fault: Fault) -> Arc<dyn CoordinationBackend> {
    Arc::new(Mutant {
        store,
        fault,
        reads: AtomicU64::new(0),
    })
}

impl Mutant {
    /// What becomes of the answer to a write; `again` repeats it.
    async fn write<T, F: Future<Output = BackendResult<T>>>(
        &self,
        first: BackendResult<T>,
        again: impl FnOnce() -> F,
    ) -> BackendResult<T> {
        match (self.fault, first) {
            (Fault::RetriesBlindly, Err(BackendError::Unknown(_))) => again().await,
            (Fault::ClaimsUnavailable, Err(BackendError::Unknown(why))) => {
                Err(BackendError::Unavailable(why))
            }
            (_, first) => first,
        }
    }
}

#[async_trait]
impl CoordinationBackend for Mutant {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        let page = self.store.range(span, limit, at).await?;
        let often = self.reads.fetch_add(1, Ordering::SeqCst) % 10 == 9;
        if self.fault == Fault::ReadsThePast && often && at.is_none() && page.revision.0 > 1 {
            let before = Some(Revision(page.revision.0 - 1));
            let old = self.store.range(span, limit, before).await;
            // What stood before, said to be what stands.
            return Ok(Page {
                revision: page.revision,
                ..old.unwrap_or(page)
            });
        }
        Ok(page)
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        let first = self.store.commit(txn).await;
        let answer = self.write(first, || self.store.commit(txn)).await;
        match answer {
            Ok(TxnOutcome::Conflict { seen }) if self.fault == Fault::HidesConflicts => {
                let seen = vec![None; seen.len()];
                Ok(TxnOutcome::Conflict { seen })
            }
            answer => answer,
        }
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        let whole = self.fault != Fault::TakesBatchesApart || txns.len() < 2;
        if whole || !guard.is_empty() {
            let first = self.store.commit_batch(guard, txns).await;
            return self
                .write(first, || self.store.commit_batch(guard, txns))
                .await;
        }
        let mut outcomes = Vec::new();
        for txn in txns {
            outcomes.push(self.store.commit(txn).await?);
        }
        let last = outcomes.iter().filter_map(TxnOutcome::applied).max();
        match last {
            Some(revision) => Ok(BatchOutcome::Judged { revision, outcomes }),
            None => self.store.commit_batch(guard, txns).await,
        }
    }

    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        self.store.grant(ttl_ms).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        match self.store.keep_alive(lease).await {
            Err(BackendError::LeaseLost) if self.fault == Fault::RevivesLeases => Ok(Lease {
                id: lease,
                ttl_ms: 2_000,
            }),
            answer => answer,
        }
    }

    async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        let first = self.store.revoke(lease).await;
        self.write(first, || self.store.revoke(lease)).await
    }

    async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>> {
        let watch = self.store.watch(span, from).await?;
        Ok(match self.fault {
            Fault::LosesDeletes => Box::new(Deaf(watch)),
            _ => watch,
        })
    }
}

/// A watch that hears of no deletes.
struct Deaf(Box<dyn Watch>);

#[async_trait]
impl Watch for Deaf {
    async fn next(&mut self) -> BackendResult<Changes> {
        loop {
            let mut changes = self.0.next().await?;
            changes
                .events
                .retain(|event| matches!(event, Event::Put(_)));
            if !changes.events.is_empty() {
                return Ok(changes);
            }
        }
    }
}
