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
    /// Declined here, and when to look at them again: a node may learn of a command meanwhile.
    avoided: BTreeMap<AttemptKey, i64>,
}

/// A run that was declined is looked at again after so long.
const AVOID_MS: i64 = 10_000;

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
            avoided: BTreeMap::new(),
        }
    }

    /// A PENDING attempt, new or changed.
    pub fn offer(&mut self, attempt: Attempt) {
        self.remove(&attempt.key);
        let record = &attempt.record;
        if !self.queues.contains(&record.queue) || !self.needs.contains(&record.needs) {
            return;
        }
        self.later
            .insert((self.ready_ms(&attempt), attempt.key.clone()));
        self.attempts.insert(attempt.key.clone(), attempt);
    }

    /// When the attempt may be taken here.
    fn ready_ms(&self, attempt: &Attempt) -> i64 {
        let avoided = self.avoided.get(&attempt.key).copied();
        attempt
            .record
            .not_before_ms
            .max(avoided.unwrap_or(i64::MIN))
    }

    /// It is PENDING no more.
    pub fn remove(&mut self, key: &AttemptKey) {
        if let Some(attempt) = self.attempts.remove(key) {
            self.later.remove(&(self.ready_ms(&attempt), key.clone()));
            self.ready.remove(&rank(&attempt));
        }
    }

    /// It cannot run here, for the time being.
    pub fn avoid(&mut self, key: &AttemptKey, now_ms: i64) {
        self.remove(key);
        self.avoided.insert(key.clone(), now_ms + AVOID_MS);
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
