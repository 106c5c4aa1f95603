//! What the sequences met.

use std::iter::Sum;

use punctual::backend::{BackendError, BackendResult, BatchOutcome, TxnOutcome};
use punctual::model::Answer;

/// How often things happened, over all sequences.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    applied: u64,
    conflicts: u64,
    rejected: u64,
    leases_lost: u64,
    compacted: u64,
    batches_judged: u64,
    guards_failed: u64,
    pub(crate) leases_ended: u64,
    pub(crate) changes_watched: u64,
    pub(crate) watches_ended: u64,
    pub(crate) watches_quiet: u64,
    requests: u64,
}

impl Counts {
    pub(crate) fn note(&mut self, answer: &BackendResult<Answer>) {
        self.requests += 1;
        let count = match answer {
            Ok(Answer::Txn(TxnOutcome::Applied { .. })) => &mut self.applied,
            Ok(Answer::Txn(TxnOutcome::Conflict { .. })) => &mut self.conflicts,
            Ok(Answer::Batch(BatchOutcome::Judged { .. })) => &mut self.batches_judged,
            Ok(Answer::Batch(BatchOutcome::GuardFailed { .. })) => &mut self.guards_failed,
            Err(BackendError::Rejected(_)) => &mut self.rejected,
            Err(BackendError::LeaseLost) => &mut self.leases_lost,
            Err(BackendError::Compacted { .. }) => &mut self.compacted,
            _ => return,
        };
        *count += 1;
    }

    /// A run that never met one of them would prove nothing about it.
    pub(crate) fn check(self) {
        println!("{self:#?}");
        for count in [
            self.applied,
            self.conflicts,
            self.rejected,
            self.leases_lost,
            self.compacted,
            self.batches_judged,
            self.guards_failed,
            self.leases_ended,
            self.changes_watched,
            self.watches_ended,
            self.watches_quiet,
        ] {
            assert!(count * 500 > self.requests, "{self:#?}");
        }
    }
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, counts| Self {
            applied: sum.applied + counts.applied,
            conflicts: sum.conflicts + counts.conflicts,
            rejected: sum.rejected + counts.rejected,
            leases_lost: sum.leases_lost + counts.leases_lost,
            compacted: sum.compacted + counts.compacted,
            batches_judged: sum.batches_judged + counts.batches_judged,
            guards_failed: sum.guards_failed + counts.guards_failed,
            leases_ended: sum.leases_ended + counts.leases_ended,
            changes_watched: sum.changes_watched + counts.changes_watched,
            watches_ended: sum.watches_ended + counts.watches_ended,
            watches_quiet: sum.watches_quiet + counts.watches_quiet,
            requests: sum.requests + counts.requests,
        })
    }
}
