//! The keys: what stands now, and what stood at the revisions that can still be read.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::iter::Peekable;
use std::ops::Bound;
use std::sync::Arc;

use crate::backend::{Entry, Key, PageLimit, Revision, Span};

/// An entry ordered by its key, so that the key is stored once.
#[derive(Clone, Debug)]
struct ByKey(Arc<Entry>);

impl Borrow<[u8]> for ByKey {
    fn borrow(&self) -> &[u8] {
        &self.0.key
    }
}

impl Ord for ByKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.key.cmp(&other.0.key)
    }
}

impl PartialOrd for ByKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ByKey {}

/// What stood under a key until (but not at) a revision.
#[derive(Clone, Debug)]
struct Past {
    entry: Option<Arc<Entry>>,
    until: Revision,
}

/// The past is kept apart from the present, so that a read of the present never wades through
/// the graves of deleted keys, and a change costs the same however long the history is.
#[derive(Clone, Debug, Default)]
pub(super) struct Space {
    live: BTreeSet<ByKey>,
    past: BTreeMap<Key, VecDeque<Past>>,
    bytes: usize,
}

impl Space {
    /// The keys as some earlier process left them.
    pub(super) fn restored(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut bytes = 0;
        let live = entries
            .into_iter()
            .map(|entry| {
                bytes += entry.key.len() + entry.value.len();
                ByKey(Arc::new(entry))
            })
            .collect();
        Self {
            live,
            past: BTreeMap::new(),
            bytes,
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Arc<Entry>> {
        self.live.get(key).map(|ByKey(entry)| entry)
    }

    pub(super) fn first(&self, span: &Span) -> Option<&Arc<Entry>> {
        self.live(span).next()
    }

    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What stands now in `span`, in key order.
    pub(super) fn live(&self, span: &Span) -> impl Iterator<Item = &Arc<Entry>> {
        self.live
            .range::<[u8], _>(bounds(span))
            .map(|ByKey(entry)| entry)
    }

    /// What stood in `span` at a revision whose past is kept, in key order.
    pub(super) fn at(&self, span: &Span, at: Revision) -> impl Iterator<Item = &Arc<Entry>> {
        Merge {
            live: self.live(span).peekable(),
            past: self.past.range::<[u8], _>(bounds(span)).peekable(),
            at,
        }
    }

    /// Puts an entry; answers what stood there before.
    pub(super) fn put(&mut self, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        let revision = entry.modified;
        self.bytes += entry.key.len() + entry.value.len();
        let key = entry.key.clone();
        let before = self.live.replace(ByKey(entry)).map(|ByKey(before)| before);
        self.supersede(key, before.clone(), revision);
        before
    }

    /// Deletes a key; answers what stood there before.
    pub(super) fn delete(&mut self, key: &[u8], revision: Revision) -> Option<Arc<Entry>> {
        let ByKey(before) = self.live.take(key)?;
        self.supersede(key.to_vec(), Some(before.clone()), revision);
        Some(before)
    }

    fn supersede(&mut self, key: Key, entry: Option<Arc<Entry>>, until: Revision) {
        if let Some(entry) = &entry {
            self.bytes -= entry.key.len() + entry.value.len();
        }
        self.past
            .entry(key)
            .or_default()
            .push_back(Past { entry, until });
    }

    /// Forgets what stood under `key` before `revision`.
    pub(super) fn forget_before(&mut self, key: &[u8], revision: Revision) {
        if let Some(past) = self.past.get_mut(key) {
            while past.front().is_some_and(|p| p.until <= revision) {
                past.pop_front();
            }
            if past.is_empty() {
                self.past.remove(key);
            }
        }
    }
}

/// A page of `entries`: bounded by count and bytes, with at least one entry if there is one.
/// Answers also whether more follow.
pub(super) fn page<'a>(
    entries: impl Iterator<Item = &'a Arc<Entry>>,
    limit: PageLimit,
) -> (Vec<Entry>, bool) {
    let mut page: Vec<Entry> = Vec::new();
    let mut bytes = 0usize;
    for entry in entries {
        bytes = bytes.saturating_add(entry.key.len() + entry.value.len());
        if !page.is_empty() && (page.len() >= limit.entries || bytes > limit.bytes) {
            return (page, true);
        }
        page.push(Entry::clone(entry));
    }
    (page, false)
}

fn bounds(span: &Span) -> (Bound<&[u8]>, Bound<&[u8]>) {
    let end = match &span.end {
        // A tree panics when asked for a range that ends before it starts.
        Some(end) => Bound::Excluded(end.as_slice().max(&span.start)),
        None => Bound::Unbounded,
    };
    (Bound::Included(&span.start), end)
}

/// Walks the present and the past side by side.
struct Merge<'a, L, P>
where
    L: Iterator<Item = &'a Arc<Entry>>,
    P: Iterator<Item = (&'a Key, &'a VecDeque<Past>)>,
{
    live: Peekable<L>,
    past: Peekable<P>,
    at: Revision,
}

impl<'a, L, P> Iterator for Merge<'a, L, P>
where
    L: Iterator<Item = &'a Arc<Entry>>,
    P: Iterator<Item = (&'a Key, &'a VecDeque<Past>)>,
{
    type Item = &'a Arc<Entry>;

    fn next(&mut self) -> Option<&'a Arc<Entry>> {
        loop {
            let Some((key, past)) = self.past.peek().copied() else {
                return self.live.next();
            };
            if self.live.peek().is_some_and(|entry| entry.key < *key) {
                return self.live.next();
            }
            self.past.next();
            let live = self.live.next_if(|entry| entry.key == *key);
            let index = past.partition_point(|past| past.until <= self.at);
            let visible = match past.get(index) {
                Some(past) => past.entry.as_ref(),
                None => live,
            };
            if visible.is_some() {
                return visible;
            }
        }
    }
}
