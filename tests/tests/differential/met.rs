//! What the episodes met.

use punctual::backend::{BackendError, BackendResult, BatchOutcome, TxnOutcome};
use punctual::model::{Answer, Operation};

/// What was met, so that a run that met nothing is noticed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    pub(crate) answers: u64,
    pub(crate) applied: u64,
    pub(crate) conflicts: u64,
    pub(crate) rejected: u64,
    pub(crate) leases_lost: u64,
    pub(crate) leases_ended: u64,
    pub(crate) compacted: u64,
    pub(crate) batches_judged: u64,
    pub(crate) guards_failed: u64,
    pub(crate) choices: u64,
    pub(crate) changes_watched: u64,
    pub(crate) watches_refused: u64,
    pub(crate) unknown: u64,
    pub(crate) unavailable: u64,
    /// Unknown writes that turned out to have happened.
    pub(crate) unknown_made: u64,
    /// The most states at once.
    pub(crate) most_states: usize,
}

impl Met {
    pub(crate) fn note(&mut self, operation: &Operation, answer: &BackendResult<Answer>) {
        self.answers += 1;
        let count = match answer {
            Ok(Answer::Txn(TxnOutcome::Applied { chosen, .. })) => {
                self.choices += u64::from(!chosen.is_empty());
                &mut self.applied
            }
            Ok(Answer::Txn(TxnOutcome::Conflict { .. })) => &mut self.conflicts,
            Ok(Answer::Batch(BatchOutcome::Judged { .. })) => &mut self.batches_judged,
            Ok(Answer::Batch(BatchOutcome::GuardFailed { .. })) => &mut self.guards_failed,
            Err(BackendError::Rejected(_)) => &mut self.rejected,
            Err(BackendError::LeaseLost) => &mut self.leases_lost,
            Err(BackendError::Compacted { .. }) => &mut self.compacted,
            Err(BackendError::Unknown(_)) if changes_keys(operation) => &mut self.unknown,
            Err(BackendError::Unavailable(_)) => &mut self.unavailable,
            _ => return,
        };
        *count += 1;
    }

    pub(crate) fn sum(all: &[Self]) -> Self {
        all.iter().fold(Self::default(), |sum, one| Self {
            answers: sum.answers + one.answers,
            applied: sum.applied + one.applied,
            conflicts: sum.conflicts + one.conflicts,
            rejected: sum.rejected + one.rejected,
            leases_lost: sum.leases_lost + one.leases_lost,
            leases_ended: sum.leases_ended + one.leases_ended,
            compacted: sum.compacted + one.compacted,
            batches_judged: sum.batches_judged + one.batches_judged,
            guards_failed: sum.guards_failed + one.guards_failed,
            choices: sum.choices + one.choices,
            changes_watched: sum.changes_watched + one.changes_watched,
            watches_refused: sum.watches_refused + one.watches_refused,
            unknown: sum.unknown + one.unknown,
            unavailable: sum.unavailable + one.unavailable,
            unknown_made: sum.unknown_made + one.unknown_made,
            most_states: sum.most_states.max(one.most_states),
        })
    }

    /// A run that never met one of them would prove nothing about it.
    pub(crate) fn check(self) {
        for count in [
            self.applied,
            self.conflicts,
            self.rejected,
            self.leases_lost,
            self.leases_ended,
            self.compacted,
            self.batches_judged,
            self.guards_failed,
            self.choices,
            self.changes_watched,
            self.watches_refused,
            self.unknown,
            self.unavailable,
            self.unknown_made,
            self.unknown - self.unknown_made,
        ] {
            assert!(count * 4_000 > self.answers, "{self:#?}");
        }
        assert!(self.most_states > 1, "{self:#?}");
    }
}

/// Whether it may change what stands or can be read.
pub(crate) fn changes_keys(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Commit(_)
            | Operation::CommitBatch { .. }
            | Operation::Revoke(_)
            | Operation::Compact { .. }
    )
}
