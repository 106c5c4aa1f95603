//! What a worker could claim: the most urgent first, the future apart.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::handler::Executors;
use crate::job::finish::Attempt;
use crate::keys::AttemptKey;

/// Higher priority first, then the older instant.
type Rank = (Reverse<i8>, i64, AttemptKey);

/// PENDING runs that this node can run.
#[derive(Debug)]
pub struct Queue {
    queues: BTreeSet<String>,
    needs: BTreeSet<String>,
    attempts: BTreeMap<AttemptKey, Attempt>,
    ready: BTreeSet<Rank>,
    later: BTreeSet<(i64, AttemptKey)>,
    /// Declined here; offered again after the next full listing.
    avoided: BTreeSet<AttemptKey>,
}

impl Queue {
    /// For a node that serves these queues with these executors.
    #[must_use]
    pub fn new(queues: &[String], executors: &Executors) -> Self {
        let mut needs: BTreeSet<String> = executors
            .handlers
            .keys()
            .map(|name| format!("handler:{name}"))
            .collect();
        if executors.commands.is_some() {
            needs.insert("command".into());
        }
        Self {
            queues: queues.iter().cloned().collect(),
            needs,
            attempts: BTreeMap::new(),
            ready: BTreeSet::new(),
            later: BTreeSet::new(),
            avoided: BTreeSet::new(),
        }
    }

    /// A PENDING attempt, new or changed.
    pub fn offer(&mut self, attempt: Attempt) {
        self.remove(&attempt.key);
        let record = &attempt.record;
        if !self.queues.contains(&record.queue)
            || !self.needs.contains(&record.needs)
            || self.avoided.contains(&attempt.key)
        {
            return;
        }
        self.later
            .insert((record.not_before_ms, attempt.key.clone()));
        self.attempts.insert(attempt.key.clone(), attempt);
    }

    /// It is PENDING no more.
    pub fn remove(&mut self, key: &AttemptKey) {
        if let Some(attempt) = self.attempts.remove(key) {
            self.later
                .remove(&(attempt.record.not_before_ms, key.clone()));
            self.ready.remove(&rank(&attempt));
        }
    }

    /// It cannot run here.
    pub fn avoid(&mut self, key: &AttemptKey) {
        self.remove(key);
        self.avoided.insert(key.clone());
    }

    /// Forgets everything, before a full listing is offered.
    pub fn clear(&mut self) {
        self.attempts.clear();
        self.ready.clear();
        self.later.clear();
        self.avoided.clear();
    }

    /// Takes up to `limit` of those that may start now.
    pub fn take(&mut self, limit: usize, now_ms: i64) -> Vec<Attempt> {
        while let Some((not_before, _)) = self.later.first()
            && *not_before <= now_ms
            && let Some((_, key)) = self.later.pop_first()
        {
            if let Some(attempt) = self.attempts.get(&key) {
                self.ready.insert(rank(attempt));
            }
        }
        let mut taken = Vec::new();
        while taken.len() < limit
            && let Some((_, _, key)) = self.ready.pop_first()
        {
            taken.extend(self.attempts.remove(&key));
        }
        taken
    }

    /// Milliseconds until the next one may start; `u64::MAX` if none waits for its time.
    #[must_use]
    pub fn wait_ms(&self, now_ms: i64) -> u64 {
        self.later.first().map_or(u64::MAX, |(not_before, _)| {
            u64::try_from(not_before.saturating_sub(now_ms)).unwrap_or(0)
        })
    }
}

fn rank(attempt: &Attempt) -> Rank {
    (
        Reverse(attempt.record.priority),
        attempt.record.scheduled_ms,
        attempt.key.clone(),
    )
}
