//! What a store means: a pure state machine, without clock, lock or disk.
//!
//! Everything that a store may answer is decided here. The in-memory store is this model behind a
//! lock, the embedded one is this model in front of a disk, and etcd is held to it by the same
//! tests, so an argument about semantics is settled by reading this file.
//!
//! # The rules
//! * A fresh store stands at revision 1. A request that changes something makes exactly one
//!   revision, larger by one; a delete of an absent key changes nothing, a put always does.
//! * All requirements of a request are judged on the state before it, and
//!   [`limits`] refuses every request in which the order of judging could matter.
//! * A put names its lease anew each time: without one it detaches the key. A write that would
//!   attach a key to a lease that has ended fails its whole request, and only if it would be
//!   made at all: a conflict is a conflict, whatever leases it names.
//! * The end of a lease deletes its keys as one revision, in key order. Numbers of leases are
//!   never used again.
//! * Reads and watches reach back as far as the history is kept ([`Retention`]), and say
//!   [`Compacted`](BackendError::Compacted) beyond: never an older state, never a gap.
//!
//! # Time
//! The model has none. Its shell says what time it is ([`Model::advance`]) before each request;
//! leases end then and only then. A time that goes back is ignored.
//!
//! # Cost
//! A request costs its own size times the logarithm of the number of keys. Nothing clones the
//! state; a value is held once for the present, the past and the log together.

mod history;
mod judge;
mod lease;
mod operation;
mod space;

pub use history::{Change, Retention, Revised, Seek};
pub use operation::{Answer, Operation};

use std::sync::Arc;

use self::history::History;
use self::judge::{Verdict, all_hold, judge};
use self::lease::Leases;
use self::space::{Space, page};
use crate::backend::{
    BackendError, BackendResult, BatchOutcome, Changes, Entry, Key, Lease, LeaseId, Page,
    PageLimit, Requirement, Revision, Span, Txn, TxnOutcome, Write, limits,
};

/// The answer to a request, and what it changed: a shell makes these changes durable, and shows
/// them to watchers, before it lets the answer out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the changes must be made durable and published"]
pub struct Step<T> {
    /// The answer.
    pub answer: BackendResult<T>,
    /// The revisions made, oldest first. A request makes at most one; a move of time makes one
    /// for each lease that ended with keys.
    pub revised: Vec<Arc<Revised>>,
}

impl<T> Step<T> {
    fn new(answer: BackendResult<T>, revised: Option<Arc<Revised>>) -> Self {
        Self {
            answer,
            revised: revised.into_iter().collect(),
        }
    }
}

/// The state of a store.
#[derive(Clone, Debug)]
pub struct Model {
    space: Space,
    leases: Leases,
    history: History,
    retention: Retention,
    revision: Revision,
    /// The oldest revision at which the keys can still be read.
    readable_from: Revision,
    now_ms: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self::new(Retention::default())
    }
}

/// What a shell remembered of a store over a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// All entries.
    pub entries: Vec<Entry>,
    /// The last revision.
    pub revision: Revision,
    /// The number of the next lease.
    pub next_lease: u64,
}

impl Model {
    /// An empty store.
    #[must_use]
    pub fn new(retention: Retention) -> Self {
        Self {
            space: Space::default(),
            leases: Leases::new(1),
            history: History::new(Revision(1)),
            retention,
            revision: Revision(1),
            readable_from: Revision(1),
            now_ms: 0,
        }
    }

    /// A store after a restart: its leases have ended with the process that kept them, so their
    /// keys are deleted as one revision, first of all. History before the restart is compacted.
    pub fn restore(restored: Restored, retention: Retention) -> Step<Self> {
        let leased: Vec<Key> = restored
            .entries
            .iter()
            .filter(|entry| entry.lease.is_some())
            .map(|entry| entry.key.clone())
            .collect();
        let complete_from = match restored.revision {
            Revision(1) => Revision(1), // A store begins there, and nothing was changed by it.
            Revision(last) => Revision(last + 1),
        };
        let mut model = Self {
            space: Space::restored(restored.entries),
            leases: Leases::new(restored.next_lease),
            history: History::new(complete_from),
            retention,
            revision: restored.revision,
            readable_from: restored.revision,
            now_ms: 0,
        };
        let revised = model.delete_all(leased);
        Step::new(Ok(model), revised)
    }

    /// The newest revision.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The number that the next lease will get.
    #[must_use]
    pub fn next_lease(&self) -> u64 {
        self.leases.next_id()
    }

    /// The living leases.
    pub fn leases(&self) -> impl Iterator<Item = LeaseId> {
        self.leases.ids()
    }

    /// When the next lease ends, if none is prolonged.
    #[must_use]
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.leases.next_deadline_ms()
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.space.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the keys and values held, those of the kept history included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.space.bytes() + self.history.bytes()
    }

    /// Bytes of the keys and values that stand now.
    #[must_use]
    pub fn live_bytes(&self) -> usize {
        self.space.bytes()
    }

    /// The entries of a span as they stand now, in key order.
    pub fn entries(&self, span: &Span) -> impl Iterator<Item = &Arc<Entry>> {
        self.space.live(span)
    }

    /// See [`CoordinationBackend::range`](crate::backend::CoordinationBackend::range).
    ///
    /// # Errors
    /// [`BackendError::Compacted`] when `at` is gone, [`BackendError::Rejected`] when it lies in
    /// the future.
    pub fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        let revision = at.unwrap_or(self.revision);
        self.check_revision(revision)?;
        if revision < self.readable_from {
            return Err(BackendError::Compacted {
                oldest: self.readable_from,
            });
        }
        let (entries, more) = if revision == self.revision {
            page(self.space.live(span), limit)
        } else {
            page(self.space.at(span, revision), limit)
        };
        Ok(Page {
            entries,
            revision,
            more,
        })
    }

    /// See [`CoordinationBackend::commit`](crate::backend::CoordinationBackend::commit).
    pub fn commit(&mut self, txn: &Txn) -> Step<TxnOutcome> {
        if let Err(rejected) = limits::check_txn(txn) {
            return Step::new(Err(rejected), None);
        }
        let (writes, chosen) = match judge(&self.space, txn) {
            Verdict::Conflict { seen } => {
                return Step::new(Ok(TxnOutcome::Conflict { seen }), None);
            }
            Verdict::Apply { writes, chosen } => (writes, chosen),
        };
        let lost = writes.iter().any(|write| match write {
            Write::Put { lease, .. } => lease.is_some_and(|id| !self.leases.alive(id)),
            Write::Delete { .. } => false,
        });
        if lost {
            return Step::new(Err(BackendError::LeaseLost), None);
        }
        let revised = self.write(writes);
        let revision = self.revision;
        Step::new(Ok(TxnOutcome::Applied { revision, chosen }), revised)
    }

    /// See
    /// [`CoordinationBackend::commit_batch`](crate::backend::CoordinationBackend::commit_batch).
    pub fn commit_batch(&mut self, guard: &[Requirement], txns: &[Txn]) -> Step<BatchOutcome> {
        if let Err(rejected) = limits::check_batch(guard, txns) {
            return Step::new(Err(rejected), None);
        }
        if let Err(seen) = all_hold(&self.space, guard) {
            return Step::new(Ok(BatchOutcome::GuardFailed { seen }), None);
        }
        let verdicts: Vec<Verdict<'_>> = txns.iter().map(|txn| judge(&self.space, txn)).collect();
        let writes = verdicts
            .iter()
            .flat_map(|verdict| match verdict {
                Verdict::Apply { writes, .. } => writes.as_slice(),
                Verdict::Conflict { .. } => &[],
            })
            .copied()
            .collect();
        let revised = self.write(writes);
        let revision = self.revision;
        let outcomes = verdicts
            .into_iter()
            .map(|verdict| match verdict {
                Verdict::Apply { chosen, .. } => TxnOutcome::Applied { revision, chosen },
                Verdict::Conflict { seen } => TxnOutcome::Conflict { seen },
            })
            .collect();
        Step::new(Ok(BatchOutcome::Judged { revision, outcomes }), revised)
    }

    /// See [`CoordinationBackend::grant`](crate::backend::CoordinationBackend::grant).
    pub fn grant(&mut self, ttl_ms: u64) -> Step<Lease> {
        Step::new(Ok(self.leases.grant(ttl_ms, self.now_ms)), None)
    }

    /// See [`CoordinationBackend::keep_alive`](crate::backend::CoordinationBackend::keep_alive).
    pub fn keep_alive(&mut self, lease: LeaseId) -> Step<Lease> {
        Step::new(self.leases.keep_alive(lease, self.now_ms), None)
    }

    /// See [`CoordinationBackend::revoke`](crate::backend::CoordinationBackend::revoke).
    pub fn revoke(&mut self, lease: LeaseId) -> Step<()> {
        match self.leases.end(lease) {
            Ok(keys) => Step::new(Ok(()), self.delete_all(keys)),
            Err(lost) => Step::new(Err(lost), None),
        }
    }

    /// Time moves on: leases whose time is over end, the earliest first.
    pub fn advance(&mut self, now_ms: u64) -> Step<()> {
        self.now_ms = self.now_ms.max(now_ms);
        let mut revised = Vec::new();
        while let Some(id) = self.leases.overdue(self.now_ms) {
            if let Ok(keys) = self.leases.end(id) {
                revised.extend(self.delete_all(keys));
            }
        }
        Step {
            answer: Ok(()),
            revised,
        }
    }

    /// Forgets what stood before `revision`, which stays readable. Nothing happens when it is
    /// forgotten already.
    ///
    /// # Errors
    /// [`BackendError::Rejected`] when the revision lies in the future.
    pub fn compact(&mut self, revision: Revision) -> BackendResult<()> {
        self.check_revision(revision)?;
        if revision > self.readable_from {
            for revised in self.history.between(self.readable_from, revision) {
                for change in &revised.changes {
                    self.space.forget_before(change.key(), revision);
                }
            }
            self.history.forget_before(revision);
            self.readable_from = revision;
        }
        Ok(())
    }

    /// One step of a watch of `span`, standing at `from`.
    ///
    /// # Errors
    /// [`BackendError::Compacted`] when not every change since `from` is known any more.
    pub fn seek(&self, span: &Span, from: Revision) -> BackendResult<Seek> {
        self.history.seek(span, from, Revision(self.revision.0 + 1))
    }

    /// All that a watch of `span` from `from` on has to report by now.
    ///
    /// # Errors
    /// [`BackendError::Compacted`] when not every change since `from` is known any more.
    pub fn history(&self, span: &Span, from: Revision) -> BackendResult<Vec<Changes>> {
        let mut all = Vec::new();
        let mut from = from;
        loop {
            let Seek { changes, next } = self.seek(span, from)?;
            match changes {
                Some(changes) => all.push(changes),
                None => return Ok(all),
            }
            from = next;
        }
    }

    fn check_revision(&self, revision: Revision) -> BackendResult<()> {
        if revision > self.revision {
            return Err(BackendError::Rejected(format!(
                "revision {revision} lies in the future, the store stands at {}",
                self.revision
            )));
        }
        Ok(())
    }

    fn delete_all(&mut self, keys: impl IntoIterator<Item = Key>) -> Option<Arc<Revised>> {
        let writes: Vec<Write> = keys.into_iter().map(Write::delete).collect();
        self.write(writes.iter().collect())
    }

    /// Makes the writes of one request, each of another key, as one revision, if they change
    /// anything.
    fn write(&mut self, mut writes: Vec<&Write>) -> Option<Arc<Revised>> {
        writes.sort_unstable_by_key(|write| write.key());
        let revision = Revision(self.revision.0 + 1);
        let changes: Vec<Change> = writes
            .into_iter()
            .filter_map(|write| self.write_one(write, revision))
            .collect();
        if changes.is_empty() {
            return None;
        }
        let revised = Arc::new(Revised { revision, changes });
        self.revision = revision;
        self.history.push(Arc::clone(&revised));
        if let Some(oldest) = self.history.overfull(self.retention) {
            // Cannot fail: the log holds no revision of the future.
            let _ = self.compact(oldest);
        }
        Some(revised)
    }

    fn write_one(&mut self, write: &Write, revision: Revision) -> Option<Change> {
        match write {
            Write::Delete { key } => {
                let before = self.space.delete(key, revision)?;
                self.leases.detach(&before);
                Some(Change::Delete { before })
            }
            Write::Put { key, value, lease } => {
                let created = self.space.get(key).map_or(revision, |e| e.created);
                let entry = Arc::new(Entry {
                    key: key.clone(),
                    value: value.clone(),
                    created,
                    modified: revision,
                    lease: *lease,
                });
                let before = self.space.put(Arc::clone(&entry));
                if let Some(before) = &before {
                    self.leases.detach(before);
                }
                self.leases.attach(&entry);
                Some(Change::Put { entry, before })
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod shell_tests;
#[cfg(test)]
mod tests;
