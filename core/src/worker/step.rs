//! One step of several runs at once: a request of independent transactions under the session.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backend::{BackendResult, BatchOutcome, Requirement, Revision, Txn};
use crate::job::Definition;
use crate::job::finish::Attempt;
use crate::job::record::RunRecord;
use crate::keys::AttemptKey;
use crate::recipe::retry::Store;

/// The transactions of a request, and what each of them makes of its run.
#[derive(Default)]
pub(super) struct Step {
    pub(super) txns: Vec<Txn>,
    pub(super) records: Vec<(AttemptKey, RunRecord)>,
}

impl Step {
    pub(super) fn add(&mut self, key: AttemptKey, txn: Txn, record: RunRecord) {
        self.txns.push(txn);
        self.records.push((key, record));
    }
}

/// A step that starts runs.
#[derive(Default)]
pub(super) struct Starts {
    pub(super) step: Step,
    /// As they stand before it, and what they follow.
    pub(super) of: BTreeMap<AttemptKey, (Attempt, Arc<Definition>)>,
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
