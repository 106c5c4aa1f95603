//! Which executions of limited jobs this worker sees, and so which slots seem free. A hint: the claim
//! decides.

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::AttemptKey;

/// Slots that are held, as far as is known here.
#[derive(Debug, Default)]
pub(super) struct Slots {
    by_attempt: BTreeMap<AttemptKey, u32>,
    by_job: BTreeMap<String, BTreeSet<(u32, AttemptKey)>>,
}

impl Slots {
    /// The attempt holds this slot.
    pub(super) fn hold(&mut self, key: &AttemptKey, slot: u32) {
        self.free(key);
        self.by_attempt.insert(key.clone(), slot);
        let held = self.by_job.entry(key.job.clone()).or_default();
        held.insert((slot, key.clone()));
    }

    /// The attempt holds none. Whether it held one until now.
    pub(super) fn free(&mut self, key: &AttemptKey) -> bool {
        let Some(slot) = self.by_attempt.remove(key) else {
            return false;
        };
        if let Some(held) = self.by_job.get_mut(&key.job) {
            held.remove(&(slot, key.clone()));
            if held.is_empty() {
                self.by_job.remove(&key.job);
            }
        }
        true
    }

    /// Forgets what is known of a job.
    pub(super) fn forget(&mut self, job: &str) {
        for (_, key) in self.by_job.remove(job).unwrap_or_default() {
            self.by_attempt.remove(&key);
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.by_attempt.clear();
        self.by_job.clear();
    }

    /// The lowest free slot below `limit`; none while one is held at or above it.
    #[must_use]
    pub(super) fn pick(&self, job: &str, limit: u32) -> Option<u32> {
        let mut free = 0;
        for (slot, _) in self.by_job.get(job).into_iter().flatten() {
            if *slot >= limit {
                return None;
            }
            // In order, and one slot may be told of twice while news are under way.
            if *slot == free {
                free += 1;
            }
        }
        (free < limit).then_some(free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(run: &str) -> AttemptKey {
        AttemptKey {
            partition: 0,
            job: "j".into(),
            run: run.into(),
            attempt: 1,
        }
    }

    #[test]
    fn the_lowest_free_slot_below_the_limit() {
        let mut slots = Slots::default();
        assert_eq!(slots.pick("j", 2), Some(0));
        slots.hold(&key("a"), 0);
        slots.hold(&key("b"), 1);
        assert_eq!(slots.pick("j", 2), None);
        assert_eq!(slots.pick("j", 3), Some(2));
        assert_eq!(slots.pick("k", 1), Some(0));
        assert!(slots.free(&key("a")));
        assert!(!slots.free(&key("a")));
        assert_eq!(slots.pick("j", 2), Some(0));
        // An edit lowered the limit: what holds a slot above it counts.
        assert_eq!(slots.pick("j", 1), None);
        slots.forget("j");
        assert!(!slots.free(&key("b")));
        assert_eq!(slots.pick("j", 1), Some(0));
    }

    #[test]
    fn news_that_come_twice_or_out_of_order_do_no_harm() {
        let mut slots = Slots::default();
        slots.hold(&key("a"), 0);
        slots.hold(&key("b"), 0);
        slots.hold(&key("b"), 0);
        assert_eq!(slots.pick("j", 2), Some(1));
        slots.hold(&key("b"), 1);
        assert!(slots.free(&key("a")));
        assert_eq!(slots.pick("j", 2), Some(0));
    }
}
