//! The bounded log of what past revisions changed: what a watch replays.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::backend::{
    BackendError, BackendResult, Changes, Entry, Event, Revision, Span, limits::MAX_REQUEST_BYTES,
};

/// How much of the past a store keeps. Whichever bound is reached first compacts; the newest
/// revision is always kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// At most so many revisions.
    pub revisions: usize,
    /// At most so many bytes of keys and values in them, so that large values under churn cannot
    /// turn "the last 10,000 revisions" into gigabytes.
    pub bytes: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            revisions: 10_000,
            bytes: 64 * MAX_REQUEST_BYTES,
        }
    }
}

/// What one revision did to one key, with what stood there before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key was put.
    Put {
        /// The entry since then.
        entry: Arc<Entry>,
        /// The entry until then.
        before: Option<Arc<Entry>>,
    },
    /// The key was deleted, by a write or by the end of its lease.
    Delete {
        /// The entry until then.
        before: Arc<Entry>,
    },
}

impl Change {
    /// The key that changed.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put { entry, .. } => &entry.key,
            Self::Delete { before } => &before.key,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Put { entry, .. } => entry.key.len() + entry.value.len(),
            Self::Delete { before } => before.key.len(),
        }
    }

    fn event(&self, revision: Revision) -> Event {
        match self {
            Self::Put { entry, .. } => Event::Put(Entry::clone(entry)),
            Self::Delete { before } => Event::Delete {
                key: before.key.clone(),
                revision,
            },
        }
    }
}

/// Everything that one revision changed, in key order, each key once. What a shell persists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revised {
    /// The revision.
    pub revision: Revision,
    /// Its changes; never empty.
    pub changes: Vec<Change>,
}

impl Revised {
    /// What a watch of `span` reports for this revision; `None` when it touched no key of it.
    #[must_use]
    pub fn within(&self, span: &Span) -> Option<Changes> {
        let from = self
            .changes
            .partition_point(|change| change.key() < span.start.as_slice());
        let events: Vec<Event> = self.changes[from..]
            .iter()
            .take_while(|change| span.contains(change.key()))
            .map(|change| change.event(self.revision))
            .collect();
        (!events.is_empty()).then_some(Changes {
            revision: self.revision,
            events,
        })
    }

    /// Whether it changed a key of the span: whether [`Revised::within`] has something to report.
    #[must_use]
    pub fn touches(&self, span: &Span) -> bool {
        let first = self
            .changes
            .partition_point(|change| change.key() < span.start.as_slice());
        self.changes
            .get(first)
            .is_some_and(|change| span.contains(change.key()))
    }

    /// Bytes of the keys and values that it holds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.changes.iter().map(Change::bytes).sum()
    }
}

/// One step of a watch: the next changes of its span, if there are any yet, and where to look
/// for those that follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seek {
    /// The first revision at or after the place asked for that changed the span.
    pub changes: Option<Changes>,
    /// The revision to seek from next. Everything before it was reported or lies outside the span.
    pub next: Revision,
}

/// A gapless run of revisions, the newest last.
#[derive(Clone, Debug)]
pub(super) struct History {
    log: VecDeque<Arc<Revised>>,
    /// From this revision on every change is known. It may lie before the log's first record
    /// (revision 1 of a fresh store changed nothing) and one past the newest revision (a restored
    /// store does not know what its last revision changed).
    complete_from: Revision,
    bytes: usize,
}

impl History {
    pub(super) fn new(complete_from: Revision) -> Self {
        Self {
            log: VecDeque::new(),
            complete_from,
            bytes: 0,
        }
    }

    pub(super) fn push(&mut self, revised: Arc<Revised>) {
        self.bytes += revised.bytes();
        self.log.push_back(revised);
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The revision to compact to so that the bounds hold, if they do not.
    pub(super) fn overfull(&self, retention: Retention) -> Option<Revision> {
        let mut surplus = self.log.len().saturating_sub(retention.revisions.max(1));
        let mut bytes = self.bytes - self.log.range(..surplus).map(|r| r.bytes()).sum::<usize>();
        while bytes > retention.bytes && surplus + 1 < self.log.len() {
            bytes -= self.log[surplus].bytes();
            surplus += 1;
        }
        (surplus > 0).then(|| self.log[surplus].revision)
    }

    /// The records after `after` up to and including `upto`.
    pub(super) fn between(
        &self,
        after: Revision,
        upto: Revision,
    ) -> impl Iterator<Item = &Arc<Revised>> {
        self.log
            .range(self.position(Revision(after.0 + 1))..self.position(Revision(upto.0 + 1)))
    }

    /// Forgets the records before `revision`; its own is kept, so that a watch may start there.
    pub(super) fn forget_before(&mut self, revision: Revision) {
        while self.log.front().is_some_and(|r| r.revision < revision) {
            if let Some(gone) = self.log.pop_front() {
                self.bytes -= gone.bytes();
            }
        }
        self.complete_from = self.complete_from.max(revision);
    }

    /// A step of a watch; `upcoming` is the first revision that is still to come.
    pub(super) fn seek(
        &self,
        span: &Span,
        from: Revision,
        upcoming: Revision,
    ) -> BackendResult<Seek> {
        if from < self.complete_from {
            return Err(BackendError::Compacted {
                oldest: self.complete_from,
            });
        }
        for revised in self.log.range(self.position(from)..) {
            if let Some(changes) = revised.within(span) {
                return Ok(Seek {
                    changes: Some(changes),
                    next: Revision(revised.revision.0 + 1),
                });
            }
        }
        Ok(Seek {
            changes: None,
            next: from.max(upcoming),
        })
    }

    /// The place in the log of the first record at or after `revision`.
    fn position(&self, revision: Revision) -> usize {
        let Some(front) = self.log.front() else {
            return 0;
        };
        let offset = revision.0.saturating_sub(front.revision.0);
        usize::try_from(offset).map_or(self.log.len(), |offset| offset.min(self.log.len()))
    }
}
