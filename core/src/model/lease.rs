//! Leases: who lives until when, and which keys die with whom.

use std::collections::{BTreeMap, BTreeSet};

use crate::backend::{BackendError, BackendResult, Entry, Key, Lease, LeaseId, limits};

#[derive(Clone, Debug)]
struct Living {
    ttl_ms: u64,
    deadline_ms: u64,
    keys: BTreeSet<Key>,
}

/// The living leases. A lease that has ended is only remembered by its number not being given
/// out again.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    living: BTreeMap<LeaseId, Living>,
    /// The same leases by when they end, so that looking for the next one costs no search.
    deadlines: BTreeSet<(u64, LeaseId)>,
    next_id: u64,
}

impl Leases {
    pub(super) fn new(next_id: u64) -> Self {
        Self {
            living: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            next_id: next_id.max(1),
        }
    }

    pub(super) fn next_id(&self) -> u64 {
        self.next_id
    }

    pub(super) fn alive(&self, id: LeaseId) -> bool {
        self.living.contains_key(&id)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = LeaseId> {
        self.living.keys().copied()
    }

    pub(super) fn grant(&mut self, ttl_ms: u64, now_ms: u64) -> Lease {
        let id = LeaseId(self.next_id);
        self.next_id += 1;
        let ttl_ms = ttl_ms.max(limits::MIN_LEASE_TTL_MS);
        let deadline_ms = now_ms.saturating_add(ttl_ms);
        self.deadlines.insert((deadline_ms, id));
        self.living.insert(
            id,
            Living {
                ttl_ms,
                deadline_ms,
                keys: BTreeSet::new(),
            },
        );
        Lease { id, ttl_ms }
    }

    pub(super) fn keep_alive(&mut self, id: LeaseId, now_ms: u64) -> BackendResult<Lease> {
        let living = self.living.get_mut(&id).ok_or(BackendError::LeaseLost)?;
        self.deadlines.remove(&(living.deadline_ms, id));
        living.deadline_ms = now_ms.saturating_add(living.ttl_ms);
        self.deadlines.insert((living.deadline_ms, id));
        Ok(Lease {
            id,
            ttl_ms: living.ttl_ms,
        })
    }

    /// Ends a lease; answers the keys that must die with it.
    pub(super) fn end(&mut self, id: LeaseId) -> BackendResult<BTreeSet<Key>> {
        let living = self.living.remove(&id).ok_or(BackendError::LeaseLost)?;
        self.deadlines.remove(&(living.deadline_ms, id));
        Ok(living.keys)
    }

    /// Of the leases that have ended by `now_ms`, the one that ended first.
    pub(super) fn overdue(&self, now_ms: u64) -> Option<LeaseId> {
        let &(deadline_ms, id) = self.deadlines.first()?;
        (deadline_ms <= now_ms).then_some(id)
    }

    pub(super) fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines.first().map(|&(deadline_ms, _)| deadline_ms)
    }

    pub(super) fn attach(&mut self, entry: &Entry) {
        if let Some(living) = entry.lease.and_then(|id| self.living.get_mut(&id)) {
            living.keys.insert(entry.key.clone());
        }
    }

    pub(super) fn detach(&mut self, entry: &Entry) {
        if let Some(living) = entry.lease.and_then(|id| self.living.get_mut(&id)) {
            living.keys.remove(&entry.key);
        }
    }
}
