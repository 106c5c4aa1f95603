//! Records of ours that we know nothing of: the answer to a claim was lost for good.

use crate::backend::Entry;
use crate::handler::Execution;
use crate::job::finish::{self, Attempt, End};
use crate::job::run::{FailReason, RunEvent, RunState};

use super::{Worker, WorkerContext};

impl Worker {
    /// Records that name this incarnation although nothing here holds them: LOCKED goes back, and
    /// RUNNING was never executed (whatever we execute, we hold until its end is durable).
    pub(super) async fn give_back_strays(&mut self, entries: &[Entry]) {
        for entry in entries {
            let Some(attempt) = Attempt::read(&self.context.keys, entry) else {
                continue;
            };
            if attempt.record.owner.as_ref() != Some(&self.context.owner)
                || self.held.contains_key(&attempt.key)
            {
                continue;
            }
            tracing::warn!(run = attempt.key.run, state = %attempt.record.state, "a stray of ours; given back");
            match attempt.record.state {
                RunState::Locked => self.decline_stray(&attempt).await,
                RunState::Running => self.end_unstarted(&attempt).await,
                _ => {}
            }
        }
    }

    async fn decline_stray(&self, attempt: &Attempt) {
        let event = RunEvent::Decline(self.context.owner.clone());
        if let Ok(txn) = finish::give_back(&self.context.keys, attempt, &event) {
            // A conflict says that it has moved on already.
            let _ = self.context.store.settle(&txn).await;
        }
    }

    async fn end_unstarted(&mut self, attempt: &Attempt) {
        // Its definition says whether another attempt follows: one does, unless the job is gone.
        // Without knowing, nothing is decided.
        let WorkerContext { store, keys, .. } = &*self.context;
        let attempts = std::slice::from_ref(attempt);
        let found = self.definitions.of(store, keys, attempts).await;
        let definition = match found.into_iter().next() {
            Some(Ok(definition)) => definition,
            None => return,
            Some(Err(error)) => {
                crate::recipe::outage::again(&error, "cannot read the definition of a stray");
                self.reconciled = None;
                return;
            }
        };
        let execution = Execution::failed(FailReason::NotStarted, "it was never started");
        let end = End {
            now_ms: self.context.clock.record_ms(),
            nonce: self.context.store.env().random_u64(),
            epoch: self.context.epoch,
            execution: Some(&execution),
            error: None,
            spec: definition.as_ref().map(|d| &*d.spec),
            uncertain: false,
            late: false,
        };
        let event = finish::finished(&self.context.owner, &execution);
        if let Ok(txn) = finish::end(&self.context.keys, attempt, &event, &end) {
            let _ = self.context.store.settle(&txn).await;
        }
    }
}
