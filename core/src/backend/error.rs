//! Failures, sorted by what the caller may do next.

use super::types::Revision;

/// A failure of the store. A kind exists only where callers act differently; a lost
/// compare-and-set is not a failure but [`TxnOutcome::Conflict`](super::TxnOutcome::Conflict).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// Certainly not applied, and never will be. Try again later.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// Perhaps applied, perhaps *later*. The only cure is to resubmit the same guarded
    /// transaction until the answer is definite. Every failure of a write that fits no other
    /// kind is of this one.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// The revision asked for is gone; read the state anew.
    #[error("history before revision {oldest} is compacted")]
    Compacted {
        /// The oldest revision that can still be read or watched.
        oldest: Revision,
    },
    /// The lease named in the request does not exist (any more); nothing was written.
    #[error("the lease has ended")]
    LeaseLost,
    /// The request breaks the contract: a bug of the caller. Repeating it cannot help.
    #[error("request rejected: {0}")]
    Rejected(String),
    /// The store contradicts itself or cannot be trusted any more. Stop.
    #[error("store broken: {0}")]
    Broken(String),
}

impl BackendError {
    /// Whether the same request may be sent again: nothing definite is known, or nothing happened.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Unknown(_))
    }
}

/// The result of a call to the store.
pub type BackendResult<T> = Result<T, BackendError>;
