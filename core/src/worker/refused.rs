//! A claim that found no free slot, and what the store holds of a job's slots.

use crate::backend::{Entry, Requirement, Seen, Txn};
use crate::job::finish::Attempt;
use crate::job::record::{SlotRecord, decode};
use crate::job::run::RunState;
use crate::keys::{AttemptKey, Keys};

use super::Worker;

impl Worker {
    /// The store refused this claim of a limited run: the run changed, or its slot is held, or one at
    /// or above the limit is.
    pub(super) fn slot_refused(&mut self, txn: &Txn, seen: &Seen) {
        let keys = &self.context.keys;
        let Some(entry) = seen.first().and_then(Option::as_ref) else {
            return;
        };
        let attempt = Attempt::read(keys, entry);
        let Some(attempt) = attempt.filter(|a| a.record.state == RunState::Pending) else {
            return;
        };
        let now_ms = self.context.clock.now_ms();
        let unchanged = matches!(txn.require.first(),
            Some(Requirement::Modified(_, revision)) if *revision == attempt.modified);
        if unchanged {
            let held = seen.iter().skip(1).flatten();
            let held: Vec<_> = held.filter_map(|entry| holder(keys, entry)).collect();
            self.queue.refused(attempt, &held, now_ms);
        } else {
            self.queue.offer(attempt, now_ms);
        }
    }

    /// Looks at the slots of jobs whose runs have waited for one for long: the news that one is free
    /// may be lost.
    pub(super) async fn ask_for_slots(&mut self) {
        for (partition, job) in self.queue.to_ask(self.context.clock.now_ms()) {
            let span = self.context.keys.slots_of(partition, &job);
            match self.context.store.list(&span, None).await {
                Ok((entries, _)) => {
                    let keys = &self.context.keys;
                    let held: Vec<_> = entries.iter().filter_map(|e| holder(keys, e)).collect();
                    self.queue.told(&job, &held, self.context.clock.now_ms());
                }
                Err(error) => {
                    tracing::debug!(job, %error, "cannot look for a free slot; trying again");
                    return;
                }
            }
        }
    }
}

fn holder(keys: &Keys, entry: &Entry) -> Option<(AttemptKey, u32)> {
    let (partition, job, slot) = keys.parse_slot(&entry.key)?;
    let record: SlotRecord = decode(&entry.value).ok()?;
    let key = AttemptKey {
        partition,
        job,
        run: record.run,
        attempt: record.attempt,
    };
    Some((key, slot))
}
