//! A real store behind somebody who meddles: loses answers of writes that were made, or sends
//! writes twice, some time later.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use punctual::backend::{
    BackendError, BackendResult, BatchOutcome, CoordinationBackend, Lease, LeaseId, Page,
    PageLimit, Requirement, Revision, Span, Txn, TxnOutcome, Watch,
};

/// What happens to every so manieth write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meddling {
    /// Nothing.
    None,
    /// It is made, and the caller hears "unknown".
    LoseAnswer {
        /// Every so manieth.
        every: u64,
    },
    /// A copy is sent after the answer, once the caller has gone on.
    Repeat {
        /// Every so manieth.
        every: u64,
        /// So much later.
        after: Duration,
    },
}

/// A store, meddled with. Clones count together.
#[derive(Clone)]
pub struct Meddler {
    store: Arc<dyn CoordinationBackend>,
    meddling: Meddling,
    writes: Arc<AtomicU64>,
    meddled: Arc<AtomicU64>,
    copies_applied: Arc<AtomicU64>,
}

impl fmt::Debug for Meddler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meddler")
            .field("meddling", &self.meddling)
            .field("meddled", &self.meddled)
            .finish_non_exhaustive()
    }
}

impl Meddler {
    /// In front of `store`.
    #[must_use]
    pub fn new(store: Arc<dyn CoordinationBackend>, meddling: Meddling) -> Self {
        Self {
            store,
            meddling,
            writes: Arc::default(),
            meddled: Arc::default(),
            copies_applied: Arc::default(),
        }
    }

    /// How often it meddled.
    #[must_use]
    pub fn meddled(&self) -> u64 {
        self.meddled.load(Ordering::SeqCst)
    }

    /// How many of the copies wrote something.
    #[must_use]
    pub fn copies_applied(&self) -> u64 {
        self.copies_applied.load(Ordering::SeqCst)
    }

    /// Whether this write is one to meddle with.
    fn turn(&self) -> bool {
        let every = match self.meddling {
            Meddling::None => return false,
            Meddling::LoseAnswer { every } | Meddling::Repeat { every, .. } => every,
        };
        let turn = self
            .writes
            .fetch_add(1, Ordering::SeqCst)
            .is_multiple_of(every);
        if turn {
            self.meddled.fetch_add(1, Ordering::SeqCst);
        }
        turn
    }

    /// The answer that the caller hears; `copy` is the same write once more.
    fn answer<T: Send + 'static>(
        &self,
        answer: BackendResult<T>,
        copy: impl Future<Output = BackendResult<bool>> + Send + 'static,
    ) -> BackendResult<T> {
        if answer.is_err() || !self.turn() {
            return answer;
        }
        match self.meddling {
            Meddling::None => answer,
            Meddling::LoseAnswer { .. } => Err(BackendError::Unknown("the answer was lost".into())),
            Meddling::Repeat { after, .. } => {
                let applied = Arc::clone(&self.copies_applied);
                tokio::spawn(async move {
                    tokio::time::sleep(after).await;
                    if copy.await == Ok(true) {
                        applied.fetch_add(1, Ordering::SeqCst);
                    }
                });
                answer
            }
        }
    }
}

#[async_trait]
impl CoordinationBackend for Meddler {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        self.store.range(span, limit, at).await
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        let answer = self.store.commit(txn).await;
        let (store, txn) = (Arc::clone(&self.store), txn.clone());
        self.answer(answer, async move {
            let again = store.commit(&txn).await?;
            Ok(matches!(again, TxnOutcome::Applied { .. }))
        })
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        let answer = self.store.commit_batch(guard, txns).await;
        let (store, guard, txns) = (Arc::clone(&self.store), guard.to_vec(), txns.to_vec());
        self.answer(answer, async move {
            let again = store.commit_batch(&guard, &txns).await?;
            Ok(applied_any(&again))
        })
    }

    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        self.store.grant(ttl_ms).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        self.store.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        self.store.revoke(lease).await
    }

    async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>> {
        self.store.watch(span, from).await
    }
}

fn applied_any(outcome: &BatchOutcome) -> bool {
    match outcome {
        BatchOutcome::Judged { outcomes, .. } => outcomes
            .iter()
            .any(|outcome| matches!(outcome, TxnOutcome::Applied { .. })),
        BatchOutcome::GuardFailed { .. } => false,
    }
}
