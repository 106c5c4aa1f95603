//! The vocabulary of the store: keys, revisions, requirements, writes, and their outcomes.

use std::fmt;

/// A position in the store's history. Every request that changes something makes exactly one
/// new revision, larger than all before; an empty store stands at revision 1, as etcd's does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A lease, as named by the store. Never reused within one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// What `grant` answered: the lease and the time to live that really counts, which may be
/// longer than the one asked for (the minimum is [`crate::backend::limits::MIN_LEASE_TTL_MS`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The lease's name.
    pub id: LeaseId,
    /// Milliseconds after which the store may end it, counted from the grant or last keep-alive.
    pub ttl_ms: u64,
}

/// A key. UTF-8 by convention of [`crate::keys`]; the store compares bytes.
pub type Key = Vec<u8>;

/// A key and what the store holds under it.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// The value last put.
    pub value: Vec<u8>,
    /// The revision that created the key (again, after its last delete).
    pub created: Revision,
    /// The revision of the last put.
    pub modified: Revision,
    /// The lease that the last put attached, if any.
    pub lease: Option<LeaseId>,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}@{}..{} ({} bytes{})",
            String::from_utf8_lossy(&self.key),
            self.created,
            self.modified,
            self.value.len(),
            if self.lease.is_some() { ", leased" } else { "" }
        )
    }
}

/// A half-open range of keys: `start <= key < end`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// First key that belongs to the span.
    pub start: Key,
    /// First key behind the span; `None` runs to the end of the keyspace.
    pub end: Option<Key>,
}

impl Span {
    /// All keys that begin with `prefix`.
    #[must_use]
    pub fn prefix(prefix: impl Into<Key>) -> Self {
        let start = prefix.into();
        let mut end = start.clone();
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                return Self {
                    start,
                    end: Some(end),
                };
            }
        }
        Self { start, end: None }
    }

    /// Exactly one key.
    #[must_use]
    pub fn key(key: impl Into<Key>) -> Self {
        let start = key.into();
        let mut end = start.clone();
        end.push(0);
        Self {
            start,
            end: Some(end),
        }
    }

    /// The part of this span that comes after `key`: the next page.
    #[must_use]
    pub fn after(&self, key: &[u8]) -> Self {
        let mut start = key.to_vec();
        start.push(0);
        Self {
            start: start.max(self.start.clone()),
            end: self.end.clone(),
        }
    }

    /// Whether `key` belongs to the span.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.start.as_slice() && self.end.as_deref().is_none_or(|end| key < end)
    }

    /// Whether no key can belong to the span.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }
}

/// One page of a [`range`](crate::backend::CoordinationBackend::range).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Entries in key order.
    pub entries: Vec<Entry>,
    /// The revision that the page shows; pass it as `at` to read the next page of the same view.
    pub revision: Revision,
    /// Whether the span holds more entries behind the last one.
    pub more: bool,
}

/// How much of a span one page may hold. A page holds at least one entry if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLimit {
    /// At most so many entries.
    pub entries: usize,
    /// Stop before the keys and values exceed so many bytes.
    pub bytes: usize,
}

impl Default for PageLimit {
    fn default() -> Self {
        Self {
            entries: 1_000,
            bytes: 1 << 20,
        }
    }
}

/// A condition on the state *before* the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// The key does not exist. Decides, but does not guard against a late copy of the request.
    Absent(Key),
    /// The key exists since this revision (it was not deleted and made again).
    Created(Key, Revision),
    /// The key was last put at this revision.
    Modified(Key, Revision),
    /// No key of the span exists. Decides, but does not guard.
    Empty(Span),
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Set the key; a lease, if given, deletes the key when it ends.
    Put {
        /// The key.
        key: Key,
        /// Its new value.
        value: Vec<u8>,
        /// The lease to attach; `None` detaches.
        lease: Option<LeaseId>,
    },
    /// Remove the key; no change when it does not exist.
    Delete {
        /// The key.
        key: Key,
    },
}

impl Write {
    /// A put without a lease.
    #[must_use]
    pub fn put(key: impl Into<Key>, value: impl Into<Vec<u8>>) -> Self {
        Self::Put {
            key: key.into(),
            value: value.into(),
            lease: None,
        }
    }

    /// A delete.
    #[must_use]
    pub fn delete(key: impl Into<Key>) -> Self {
        Self::Delete { key: key.into() }
    }

    /// The key that the write changes.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// An unconditional write.
    Write(Write),
    /// A decision taken inside the transaction: `then` when all of `require` holds, else
    /// `otherwise`. Never makes the transaction conflict; does not nest.
    Choose {
        /// Conditions on the state before the request.
        require: Vec<Requirement>,
        /// Applied when all conditions hold.
        then: Vec<Write>,
        /// Applied when one does not.
        otherwise: Vec<Write>,
    },
}

impl From<Write> for Op {
    fn from(write: Write) -> Self {
        Self::Write(write)
    }
}

/// A guarded transaction: all writes as one revision, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// All of these must hold on the state before the request.
    pub require: Vec<Requirement>,
    /// Applied together when they do.
    pub ops: Vec<Op>,
}

impl Txn {
    /// An empty transaction.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether it asks what stands somewhere, and would write nothing whatever the answer.
    #[must_use]
    pub fn is_lookup(&self) -> bool {
        self.ops.is_empty()
    }

    /// Adds a requirement.
    #[must_use]
    pub fn require(mut self, requirement: Requirement) -> Self {
        self.require.push(requirement);
        self
    }

    /// Adds a write or a choice.
    #[must_use]
    pub fn op(mut self, op: impl Into<Op>) -> Self {
        self.ops.push(op.into());
        self
    }

    /// Adds a put without a lease.
    #[must_use]
    pub fn put(self, key: impl Into<Key>, value: impl Into<Vec<u8>>) -> Self {
        self.op(Write::put(key, value))
    }

    /// Adds a delete.
    #[must_use]
    pub fn delete(self, key: impl Into<Key>) -> Self {
        self.op(Write::delete(key))
    }
}

/// What the store held where a requirement looked: the key's entry, or for
/// [`Requirement::Empty`] the first entry of the span. One for each requirement, in their order.
pub type Seen = Vec<Option<Entry>>;

/// The definite answer to a transaction. A lost compare-and-set is a value, not an error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a transaction that conflicted wrote nothing"]
pub enum TxnOutcome {
    /// Every requirement held and every write was made.
    Applied {
        /// The store's revision after the request (unchanged if nothing was written).
        revision: Revision,
        /// For each [`Op::Choose`], in order: whether `then` was taken.
        chosen: Vec<bool>,
    },
    /// A requirement did not hold; nothing was written.
    Conflict {
        /// What stood there instead.
        seen: Seen,
    },
}

impl TxnOutcome {
    /// The revision if the transaction was applied.
    #[must_use]
    pub fn applied(&self) -> Option<Revision> {
        match self {
            Self::Applied { revision, .. } => Some(*revision),
            Self::Conflict { .. } => None,
        }
    }
}

/// The definite answer to a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "transactions of a batch conflict one by one"]
pub enum BatchOutcome {
    /// The shared guard held; each transaction applied or conflicted alone, all at one revision.
    Judged {
        /// The store's revision after the request.
        revision: Revision,
        /// One outcome a transaction, in their order.
        outcomes: Vec<TxnOutcome>,
    },
    /// The shared guard did not hold; nothing was written.
    GuardFailed {
        /// What stood where the guard looked.
        seen: Seen,
    },
}

/// A change, as a watch reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The key was put; the entry as it stood after the put.
    Put(Entry),
    /// The key was deleted, by a write or by the end of its lease.
    Delete {
        /// The key.
        key: Key,
        /// The revision of the delete.
        revision: Revision,
    },
}

impl Event {
    /// The key that changed.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Delete { key, .. } => key,
        }
    }

    /// The revision of the change.
    #[must_use]
    pub fn revision(&self) -> Revision {
        match self {
            Self::Put(entry) => entry.modified,
            Self::Delete { revision, .. } => *revision,
        }
    }
}

/// All changes that one revision made to a watched span, in key order. Never split, never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The revision that made them.
    pub revision: Revision,
    /// The changes.
    pub events: Vec<Event>,
}
