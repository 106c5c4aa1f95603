//! A watch: a place in the history, and a wait for a revision that touches its span.
//!
//! Most revisions concern few watches. One that a revision does not concern is not woken by it,
//! and does not fall behind: it has nothing to read, however far the history is compacted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use punctual::backend::{BackendError, BackendResult, Changes, Revision, Span, Watch};
use punctual::model::Revised;
use tokio::sync::Notify;

use super::MemoryBackend;

/// The open watches of a store. Its lock is taken under the model's, never the other way round.
#[derive(Default)]
pub(super) struct Watches(Mutex<Open>);

#[derive(Default)]
struct Open {
    next_id: u64,
    places: BTreeMap<u64, Arc<Place>>,
}

/// What a watch and the store's writers share. `unread` is only touched under the model's lock.
struct Place {
    span: Span,
    /// The first revision that may hold something to report; `NOTHING` when there is none.
    unread: AtomicU64,
    wake: Notify,
}

const NOTHING: u64 = u64::MAX;

impl Watches {
    // Nothing in here panics halfway.
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many are open.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().places.len()
    }

    /// Tells those whose span these revisions touched. The caller holds the model.
    pub(super) fn tell(&self, revised: &[Arc<Revised>]) {
        if revised.is_empty() {
            return;
        }
        for place in self.lock().places.values() {
            // What is unread already, the watch reads before it waits again.
            if place.unread.load(Ordering::Relaxed) == NOTHING
                && let Some(first) = revised.iter().find(|r| r.touches(&place.span))
            {
                place.unread.store(first.revision.0, Ordering::Relaxed);
                place.wake.notify_one();
            }
        }
    }
}

pub(super) struct MemoryWatch {
    /// Keeps the store alive: an open watch is a handle.
    store: MemoryBackend,
    id: u64,
    place: Arc<Place>,
    next: Revision,
    over: Option<BackendError>,
}

impl MemoryWatch {
    /// The caller holds the model, so that no revision comes in between.
    pub(super) fn new(store: &MemoryBackend, span: &Span, from: Revision) -> Self {
        let place = Arc::new(Place {
            span: span.clone(),
            unread: AtomicU64::new(from.0),
            wake: Notify::new(),
        });
        let mut open = store.shared.watches.lock();
        let id = open.next_id;
        open.next_id += 1;
        open.places.insert(id, place.clone());
        Self {
            store: store.clone(),
            id,
            place,
            next: from,
            over: None,
        }
    }

    fn seek(&mut self) -> BackendResult<Option<Changes>> {
        let model = self.store.shared.lock()?;
        let unread = self.place.unread.load(Ordering::Relaxed);
        if unread == NOTHING {
            return Ok(None);
        }
        let from = self.next.max(Revision(unread));
        let seek = model.seek(&self.place.span, from)?;
        self.next = seek.next;
        let unread = match &seek.changes {
            // More may follow.
            Some(_) => seek.next.0,
            None => NOTHING,
        };
        self.place.unread.store(unread, Ordering::Relaxed);
        Ok(seek.changes)
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        let place = self.store.shared.watches.lock().places.remove(&self.id);
        drop(place);
    }
}

#[async_trait]
impl Watch for MemoryWatch {
    async fn next(&mut self) -> BackendResult<Changes> {
        if let Some(over) = &self.over {
            return Err(over.clone());
        }
        loop {
            match self.seek() {
                Ok(Some(changes)) => return Ok(changes),
                Ok(None) => {}
                Err(error) => {
                    self.over = Some(error.clone());
                    return Err(error);
                }
            }
            // Cancel safe: the place in the history moves only with an answer, and a call that is
            // dropped after it was woken leaves what woke it unread. A revision made since we
            // looked has left a permit, so it wakes us at once.
            self.place.wake.notified().await;
        }
    }
}
