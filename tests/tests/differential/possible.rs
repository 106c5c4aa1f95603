//! One state of the store that all answers so far allow.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use punctual::backend::{
    BackendResult, Changes, Entry, LeaseId, Page, Requirement, Revision, Span, Txn,
};
use punctual::keys::fnv1a;
use punctual::model::{Answer, Change, Model, Operation, Retention, Revised};

/// A request, in the order in which they were begun.
pub(crate) type Id = u64;

/// A state that the store may be in, and what it has still to do in that case.
#[derive(Clone, Debug)]
pub(crate) struct Possible {
    model: Arc<Model>,
    /// All that ever happened, compacted or not.
    log: Arc<Vec<Arc<Revised>>>,
    /// Of the whole log: two states with equal ones have the same past.
    hash: u64,
    pub(crate) compacted: Revision,
    /// Requests that may take effect from here on: those in flight, and writes whose outcome is
    /// unknown.
    pub(crate) todo: BTreeSet<Id>,
    /// Requests in flight that have taken effect, and what they must answer.
    pub(crate) done: BTreeMap<Id, BackendResult<Answer>>,
    /// So many writes of unknown outcome have been made.
    pub(crate) unknown_made: u64,
    /// So many leases have ended by themselves.
    pub(crate) leases_ended: u64,
}

impl Possible {
    pub(crate) fn fresh() -> Self {
        // Compacts when told to, as etcd does.
        let retention = Retention {
            revisions: usize::MAX,
            bytes: usize::MAX,
        };
        Self {
            model: Arc::new(Model::new(retention)),
            log: Arc::default(),
            hash: 0,
            compacted: Revision(1),
            todo: BTreeSet::new(),
            done: BTreeMap::new(),
            unknown_made: 0,
            leases_ended: 0,
        }
    }

    pub(crate) fn model(&self) -> &Arc<Model> {
        &self.model
    }

    pub(crate) fn revision(&self) -> Revision {
        self.model.revision()
    }

    /// The state after an operation, what it answers, and whether it changed anything.
    pub(crate) fn after(&self, operation: &Operation) -> (Self, BackendResult<Answer>, bool) {
        let mut next = self.clone();
        if let Operation::Range { span, limit, at } = operation {
            let answer = self.model.range(span, *limit, *at).map(Answer::Page);
            return (next, answer, false);
        }
        let mut model = Model::clone(&self.model);
        let step = model.apply(operation);
        let mut changed = !step.revised.is_empty();
        if step.answer.is_ok() {
            match operation {
                Operation::Compact { revision } if *revision > self.compacted => {
                    next.compacted = *revision;
                    changed = true;
                }
                Operation::Grant { .. } | Operation::Revoke(_) => changed = true,
                _ => {}
            }
        }
        if !changed {
            return (next, step.answer, false);
        }
        next.model = Arc::new(model);
        for revised in &step.revised {
            next.hash = chain(next.hash, revised);
        }
        if !step.revised.is_empty() {
            Arc::make_mut(&mut next.log).extend(step.revised);
        }
        (next, step.answer, true)
    }

    /// Whether both states answer alike for ever.
    pub(crate) fn same(&self, other: &Self) -> bool {
        self.same_keys(other)
            && self.todo == other.todo
            && self.model.leases().eq(other.model.leases())
    }

    /// Whether this state can become the other one at any time, without anybody noticing: what is
    /// unknown never happens there, and leases without keys that may `end` have done so.
    pub(crate) fn can_become(&self, other: &Self, end: impl Fn(LeaseId) -> bool) -> bool {
        let ends = |lease| !self.has_keys(lease) && end(lease);
        let mut leases = self.model.leases();
        self.same_keys(other)
            && other.todo.is_subset(&self.todo)
            && other.model.leases().all(|lease| self.alive(lease))
            && leases.all(|lease| other.alive(lease) || ends(lease))
    }

    fn same_keys(&self, other: &Self) -> bool {
        self.hash == other.hash
            && self.revision() == other.revision()
            && self.compacted == other.compacted
            && self.done == other.done
    }

    /// What a watch of `span` that stands at `next` has to report.
    pub(crate) fn next_of(&self, span: &Span, next: Revision) -> Option<Changes> {
        let from = self.log.partition_point(|revised| revised.revision < next);
        self.log[from..]
            .iter()
            .find_map(|revised| revised.within(span))
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Whether the whole store is, or can only become, another one than was seen: at some past
    /// revisions, and last at the newest one.
    pub(crate) fn contradicts(&self, seen: &[Page]) -> bool {
        let Some(newest) = seen.last() else {
            return false;
        };
        let gone = |entry: &Entry| entry.modified <= self.revision() && !self.stands(entry);
        let all = Span::prefix("");
        self.revision() > newest.revision
            || newest.entries.iter().any(gone)
            || seen
                .iter()
                .find(|page| page.revision == self.revision())
                .is_some_and(|page| {
                    let stands = self.model.entries(&all).map(|entry| &**entry);
                    !stands.eq(&page.entries)
                })
    }

    /// Whether this very entry stands.
    pub(crate) fn stands(&self, entry: &Entry) -> bool {
        let key = Span::key(entry.key.clone());
        self.model.entries(&key).any(|other| **other == *entry)
    }

    pub(crate) fn alive(&self, lease: LeaseId) -> bool {
        self.model.leases().any(|id| id == lease)
    }

    /// Whether keys would end with this lease.
    pub(crate) fn has_keys(&self, lease: LeaseId) -> bool {
        let all = Span::prefix("");
        self.model
            .entries(&all)
            .any(|entry| entry.lease == Some(lease))
    }

    /// Whether the operation can change nothing any more, whenever it comes: what it requires is a
    /// revision that has passed, and revisions do not return.
    pub(crate) fn is_spent(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Commit(txn) => self.is_txn_spent(txn),
            Operation::CommitBatch { guard, txns } => {
                guard.iter().any(|one| self.is_consumed(one))
                    || txns.iter().all(|txn| self.is_txn_spent(txn))
            }
            Operation::Revoke(lease) => !self.alive(*lease),
            Operation::Compact { revision } => *revision <= self.compacted,
            _ => true,
        }
    }

    fn is_txn_spent(&self, txn: &Txn) -> bool {
        txn.require.iter().any(|one| self.is_consumed(one))
    }

    fn is_consumed(&self, requirement: &Requirement) -> bool {
        let (key, at, created) = match requirement {
            Requirement::Created(key, at) => (key, *at, true),
            Requirement::Modified(key, at) => (key, *at, false),
            Requirement::Absent(_) | Requirement::Empty(_) => return false,
        };
        let stands = self.model.entries(&Span::key(key.clone())).next();
        let stands_at = stands.map(|e| if created { e.created } else { e.modified });
        at <= self.revision() && stands_at != Some(at)
    }
}

fn chain(hash: u64, revised: &Revised) -> u64 {
    let mut bytes = hash.to_be_bytes().to_vec();
    bytes.extend(revised.revision.0.to_be_bytes());
    for change in &revised.changes {
        bytes.extend((change.key().len() as u64).to_be_bytes());
        bytes.extend(change.key());
        if let Change::Put { entry, .. } = change {
            bytes.extend((entry.value.len() as u64).to_be_bytes());
            bytes.extend(&entry.value);
            bytes.extend(entry.lease.map_or(0, |lease| lease.0).to_be_bytes());
        }
    }
    fnv1a(&bytes)
}
