//! A watch: a place in the history, and a wait for the revision to move.

use async_trait::async_trait;
use punctual::backend::{BackendError, BackendResult, Changes, Revision, Span, Watch};
use tokio::sync::watch as newest;

use super::MemoryBackend;

pub(super) struct MemoryWatch {
    /// Keeps the store alive: an open watch is a handle.
    store: MemoryBackend,
    revision: newest::Receiver<Revision>,
    span: Span,
    next: Revision,
    over: Option<BackendError>,
}

impl MemoryWatch {
    pub(super) fn new(store: &MemoryBackend, span: &Span, from: Revision) -> Self {
        Self {
            revision: store.shared.revision.subscribe(),
            store: store.clone(),
            span: span.clone(),
            next: from,
            over: None,
        }
    }

    fn seek(&mut self) -> BackendResult<Option<Changes>> {
        // Marked as seen before looking, so that a revision made meanwhile wakes us again.
        self.revision.borrow_and_update();
        let seek = self.store.shared.lock()?.seek(&self.span, self.next)?;
        self.next = seek.next;
        Ok(seek.changes)
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
            // Cancel safe: the place in the history moves only with an answer. Cannot fail: the
            // store that sends is ours.
            if self.revision.changed().await.is_err() {
                return Err(BackendError::Unavailable("the store is closed".into()));
            }
        }
    }
}
