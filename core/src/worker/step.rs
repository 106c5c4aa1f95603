//! One step of several runs at once: a request of independent transactions under the session.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backend::{BackendResult, BatchOutcome, Requirement, Revision, Txn, limits};
use crate::job::Definition;
use crate::job::finish::Attempt;
use crate::job::record::RunRecord;
use crate::keys::AttemptKey;
use crate::recipe::retry::Store;

/// Claims of a request have so many bytes at most: their starts, which write somewhat more, must fit
/// into one as well.
const STEP_BYTES: usize = limits::MAX_REQUEST_BYTES / 2;

/// The transactions of a request, and what each of them makes of its run.
#[derive(Default)]
pub(super) struct Step {
    pub(super) txns: Vec<Txn>,
    pub(super) records: Vec<(AttemptKey, RunRecord)>,
    bytes: usize,
}

impl Step {
    /// Whether the request stays small enough with this one. The first one always has a place.
    pub(super) fn fits(&self, txn: &Txn) -> bool {
        self.txns.is_empty() || self.bytes + limits::txn_bytes(txn) <= STEP_BYTES
    }

    pub(super) fn add(&mut self, key: AttemptKey, txn: Txn, record: RunRecord) {
        self.bytes += limits::txn_bytes(&txn);
        self.txns.push(txn);
        self.records.push((key, record));
    }
}

/// Runs as they stand before they start, and what they follow.
pub(super) type Following = BTreeMap<AttemptKey, (Attempt, Arc<Definition>)>;

/// A step that starts runs.
#[derive(Default)]
pub(super) struct Starts {
    pub(super) step: Step,
    /// Which ones.
    pub(super) of: Following,
    /// No later than the time from which the leader counts their time limits, by the monotonic clock.
    pub(super) begun_ms: u64,
}

/// Commits a step until its answer is definite. One without transactions needs no store.
pub(super) async fn send(
    store: &Store,
    guard: &[Requirement],
    txns: &[Txn],
) -> BackendResult<BatchOutcome> {
    if txns.is_empty() {
        return Ok(BatchOutcome::Judged {
            revision: Revision::default(),
            outcomes: Vec::new(),
        });
    }
    store.settle_batch(guard, txns).await
}
