//! Runs that wait for a slot of their job: the time in which none was free does not count as time in
//! which nobody took them.
//!
//! What can go wrong: a run behind one that takes an hour would be ended as unclaimed after ten
//! minutes. So its time begins anew when an execution of its job ends. A keeper that has just begun
//! knows of none, and begins with itself.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::record::RunRecord;
use crate::job::run::RunState;
use crate::keys::AttemptKey;

/// The executions of limited jobs, as the keeper sees them.
#[derive(Debug)]
pub struct Crowd {
    since_ms: i64,
    jobs: BTreeMap<String, Executing>,
}

#[derive(Debug, Default)]
struct Executing {
    slots: BTreeSet<(u32, AttemptKey)>,
    /// Parts of its runs.
    parts: BTreeSet<AttemptKey>,
    /// When one ended last.
    freed_ms: Option<i64>,
}

impl Crowd {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(now_ms: i64) -> Self {
        Self {
            since_ms: now_ms,
            jobs: BTreeMap::new(),
        }
    }

    /// An attempt stands like this.
    pub fn seen(&mut self, key: &AttemptKey, record: &RunRecord) {
        if let Some(slot) = record.slot {
            let job = self.jobs.entry(key.job.clone()).or_default();
            job.slots.insert((slot, key.clone()));
        }
        if record.shard.is_some() && matches!(record.state, RunState::Locked | RunState::Running) {
            let job = self.jobs.entry(key.job.clone()).or_default();
            job.parts.insert(key.clone());
        }
    }

    /// It stands like this no more.
    pub fn gone(&mut self, key: &AttemptKey, record: &RunRecord, now_ms: i64) {
        if let Some(slot) = record.slot
            && let Some(job) = self.jobs.get_mut(&key.job)
        {
            job.slots.remove(&(slot, key.clone()));
            job.freed_ms = Some(now_ms);
        }
        if let Some(job) = self.jobs.get_mut(&key.job)
            && job.parts.remove(key)
        {
            job.freed_ms = Some(now_ms);
        }
    }

    /// Everything is about to be listed anew.
    pub fn clear(&mut self, now_ms: i64) {
        for job in self.jobs.values_mut() {
            if !job.slots.is_empty() || !job.parts.is_empty() {
                job.slots.clear();
                job.parts.clear();
                job.freed_ms = Some(now_ms);
            }
        }
    }

    /// Nothing of the job is unfinished.
    pub fn forget(&mut self, job: &str) {
        self.jobs.remove(job);
    }

    /// Whether a PENDING run that is past its deadline waits for a slot, or did until a short time
    /// ago: as long as a node has to take a run that could be taken.
    #[must_use]
    pub fn excuses(&self, record: &RunRecord, now_ms: i64) -> bool {
        if record.state != RunState::Pending {
            return false;
        }
        let job = self.jobs.get(&record.job);
        let has_no_chance = match (record.concurrency, &record.shard) {
            (Some(limit), _) => {
                let slots = job.map(|job| &job.slots);
                let taken = slots.map_or(0, BTreeSet::len);
                let last = slots.and_then(BTreeSet::last).map(|(slot, _)| *slot);
                last.is_some_and(|last| last >= limit)
                    || taken >= usize::try_from(limit).unwrap_or(1)
            }
            // Parts wait for their like: that is what a run is divided for.
            (None, Some(_)) => job.is_some_and(|job| !job.parts.is_empty()),
            (None, None) => return false,
        };
        if has_no_chance {
            return true;
        }
        let ready_ms = record.created_ms.max(record.not_before_ms);
        let patience_ms = record.deadline_ms.saturating_sub(ready_ms);
        let free_ms = job.and_then(|job| job.freed_ms).unwrap_or(self.since_ms);
        now_ms <= free_ms.max(self.since_ms).saturating_add(patience_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(state: RunState, slot: Option<u32>, concurrency: Option<u32>) -> RunRecord {
        let json = serde_json::json!({
            "job": "j", "run": "j@1", "attempt": 1, "kind": "scheduled", "scheduled_ms": 0,
            "job_uid": 1, "generation": 1, "queue": "default", "needs": "command",
            "deadline_ms": 1_000, "state": state, "not_before_ms": 400, "created_ms": 0,
            "slot": slot, "concurrency": concurrency,
        });
        serde_json::from_value(json).unwrap()
    }

    fn key(run: &str) -> AttemptKey {
        AttemptKey {
            partition: 0,
            job: "j".into(),
            run: run.into(),
            attempt: 1,
        }
    }

    #[test]
    fn the_time_of_a_run_begins_when_a_slot_is_free() {
        let mut crowd = Crowd::new(100);
        let waiting = record(RunState::Pending, None, Some(1));
        let running = record(RunState::Running, Some(0), Some(1));
        crowd.seen(&key("j@0"), &running);
        assert!(crowd.excuses(&waiting, 1_000_000), "it has no chance");
        crowd.gone(&key("j@0"), &running, 5_000);
        assert!(crowd.excuses(&waiting, 5_600));
        assert!(!crowd.excuses(&waiting, 5_601));
        // One more may run beside the first; above the limit none may.
        let other = record(RunState::Pending, None, Some(2));
        crowd.seen(&key("j@0"), &running);
        assert!(!crowd.excuses(&other, 9_000));
        crowd.seen(&key("j@2"), &record(RunState::Running, Some(3), Some(4)));
        assert!(crowd.excuses(&other, 9_000));
    }

    #[test]
    fn parts_wait_for_their_like() {
        let mut crowd = Crowd::new(0);
        let shard = Some(crate::job::parts::Shard {
            index: 0,
            total: 2,
            node: None,
        });
        let part = |state| RunRecord {
            shard: shard.clone(),
            ..record(state, None, None)
        };
        let waiting = part(RunState::Pending);
        assert!(!crowd.excuses(&waiting, 601));
        crowd.seen(&key("j@1~s-0001"), &part(RunState::Running));
        assert!(crowd.excuses(&waiting, 1_000_000));
        crowd.gone(&key("j@1~s-0001"), &part(RunState::Running), 5_000);
        assert!(crowd.excuses(&waiting, 5_600));
        assert!(!crowd.excuses(&waiting, 5_601));
    }

    #[test]
    fn a_keeper_that_begins_gives_everyone_a_chance_and_others_none() {
        let crowd = Crowd::new(2_000);
        let waiting = record(RunState::Pending, None, Some(1));
        assert!(crowd.excuses(&waiting, 2_600));
        assert!(!crowd.excuses(&waiting, 2_601));
        assert!(!crowd.excuses(&record(RunState::Pending, None, None), 1));
        assert!(!crowd.excuses(&record(RunState::Running, Some(0), Some(1)), 1));
    }

    #[test]
    fn what_a_listing_does_not_show_has_ended_by_then() {
        let mut crowd = Crowd::new(0);
        let running = record(RunState::Running, Some(0), Some(1));
        let waiting = record(RunState::Pending, None, Some(1));
        crowd.seen(&key("j@0"), &running);
        crowd.clear(7_000);
        assert!(crowd.excuses(&waiting, 7_600));
        assert!(!crowd.excuses(&waiting, 7_601));
        crowd.forget("j");
        assert!(!crowd.excuses(&waiting, 7_600));
    }
}
