//! The only door for what a leader writes.

use std::sync::Arc;

use crate::backend::{BackendError, BackendResult, BatchOutcome, Revision, Txn, TxnOutcome};
use crate::recipe::retry::Store;
use crate::recipe::session::Session;

/// A leadership, as the right to write.
///
/// Refuses locally once trust is spent, and always requires the term: a leader that was deposed
/// while a request was under way writes nothing.
#[derive(Clone)]
pub struct Authority {
    store: Store,
    session: Arc<Session>,
}

/// The answer to a leader's batch.
#[must_use = "a deposed leader must stop"]
pub enum Ruling {
    /// Each transaction applied or conflicted alone.
    Judged(Revision, Vec<TxnOutcome>),
    /// Not sent: the lease may have ended. Wait for it to be prolonged.
    Untrusted,
    /// Somebody else leads, or nobody.
    Deposed,
}

impl Authority {
    /// The right that comes with `session`.
    #[must_use]
    pub fn new(store: Store, session: Arc<Session>) -> Self {
        Self { store, session }
    }

    /// Whether a commit would be sent.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.session.trust.holds()
    }

    /// Commits the batch under the term, resubmitting it until the answer is definite.
    ///
    /// # Errors
    /// Only kinds that repeating cannot help.
    pub async fn commit(&self, txns: &[Txn]) -> BackendResult<Ruling> {
        if !self.is_trusted() {
            return Ok(Ruling::Untrusted);
        }
        Ok(
            match self
                .store
                .settle_batch(&[self.session.guard()], txns)
                .await?
            {
                BatchOutcome::Judged { revision, outcomes } => Ruling::Judged(revision, outcomes),
                BatchOutcome::GuardFailed { .. } => Ruling::Deposed,
            },
        )
    }

    /// Commits transactions that do not depend on each other, together if they fit into a request.
    /// One that no store takes is left out and named in the log. Whether this still leads.
    ///
    /// # Errors
    /// Only kinds that repeating cannot help.
    pub async fn commit_each(&self, txns: &[Txn]) -> BackendResult<bool> {
        match self.commit(txns).await {
            Ok(Ruling::Judged(..)) => Ok(true),
            Ok(Ruling::Untrusted | Ruling::Deposed) => Ok(false),
            Err(BackendError::Rejected(why)) => match txns {
                [] | [_] => {
                    tracing::error!(why, "the store refuses this request; left undone");
                    Ok(true)
                }
                several => {
                    let (left, right) = several.split_at(several.len() / 2);
                    Ok(Box::pin(self.commit_each(left)).await?
                        && Box::pin(self.commit_each(right)).await?)
                }
            },
            Err(error) => Err(error),
        }
    }
}
