//! Requests and answers as values, for those who record, replay or compare them.

use std::sync::Arc;

use super::{Model, Revised, Step};
use crate::backend::{
    BackendResult, BatchOutcome, Lease, LeaseId, Page, PageLimit, Requirement, Revision, Span, Txn,
    TxnOutcome,
};

/// Something that happens to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// [`Model::range`].
    Range {
        /// Which keys.
        span: Span,
        /// How many of them.
        limit: PageLimit,
        /// At which revision.
        at: Option<Revision>,
    },
    /// [`Model::commit`].
    Commit(Txn),
    /// [`Model::commit_batch`].
    CommitBatch {
        /// Required by all transactions.
        guard: Vec<Requirement>,
        /// Each applies or conflicts alone.
        txns: Vec<Txn>,
    },
    /// [`Model::grant`].
    Grant {
        /// The time to live asked for.
        ttl_ms: u64,
    },
    /// [`Model::keep_alive`].
    KeepAlive(LeaseId),
    /// [`Model::revoke`].
    Revoke(LeaseId),
    /// [`Model::advance`].
    Advance {
        /// The time that it is now.
        now_ms: u64,
    },
    /// [`Model::compact`].
    Compact {
        /// The oldest revision to keep.
        revision: Revision,
    },
}

/// What the store says to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To a range.
    Page(Page),
    /// To a transaction.
    Txn(TxnOutcome),
    /// To a batch.
    Batch(BatchOutcome),
    /// To a grant or a keep-alive.
    Lease(Lease),
    /// To everything else.
    Done,
}

impl Model {
    /// Applies one operation: `(state, operation) -> (state, answer)`.
    pub fn apply(&mut self, operation: &Operation) -> Step<Answer> {
        match operation {
            Operation::Range { span, limit, at } => {
                only(self.range(span, *limit, *at).map(Answer::Page))
            }
            Operation::Commit(txn) => self.commit(txn).map(Answer::Txn),
            Operation::CommitBatch { guard, txns } => {
                self.commit_batch(guard, txns).map(Answer::Batch)
            }
            Operation::Grant { ttl_ms } => self.grant(*ttl_ms).map(Answer::Lease),
            Operation::KeepAlive(lease) => self.keep_alive(*lease).map(Answer::Lease),
            Operation::Revoke(lease) => self.revoke(*lease).map(|()| Answer::Done),
            Operation::Advance { now_ms } => self.advance(*now_ms).map(|()| Answer::Done),
            Operation::Compact { revision } => only(self.compact(*revision).map(|()| Answer::Done)),
        }
    }
}

impl<T> Step<T> {
    /// The same step with its answer in other words.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Step<U> {
        Step {
            answer: self.answer.map(f),
            revised: self.revised,
        }
    }
}

fn only<T>(answer: BackendResult<T>) -> Step<T> {
    let revised: Vec<Arc<Revised>> = Vec::new();
    Step { answer, revised }
}
