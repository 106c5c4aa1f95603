//! List, then watch: a span as it changes.
//!
//! What can go wrong: a watch stalls, loses deletes near a compaction, or ends. So a watch is only
//! a hint, and the span is listed anew at fixed intervals; whoever folds these events into a map
//! must replace the map at [`ViewEvent::Listed`], which also repairs whatever a watch lost.

use std::time::Duration;

use futures_util::future::Either;
use tokio::sync::mpsc;

use crate::backend::{BackendError, Changes, Entry, Revision, Span, Watch};
use crate::env::{TaskHandle, race};

use super::retry::{Backoff, Store};

/// What a view reports.
#[derive(Debug)]
pub enum ViewEvent {
    /// The whole span, at one revision; replaces everything known.
    Listed(Vec<Entry>, Revision),
    /// The changes of one revision.
    Changed(Changes),
}

/// A span as it changes.
pub struct View {
    store: Store,
    span: Span,
    relist_ms: u64,
    state: State,
}

enum State {
    /// To be listed.
    Unknown,
    /// Listed at this revision, to be watched from the next one on; to be listed again at a time.
    Listed { next: Revision, relist_at_ms: u64 },
    Watching {
        watch: Box<dyn Watch>,
        next: Revision,
        relist_at_ms: u64,
    },
}

impl View {
    /// A view that lists its span at least every `relist_ms`.
    #[must_use]
    pub fn new(store: Store, span: Span, relist_ms: u64) -> Self {
        Self {
            store,
            span,
            relist_ms,
            state: State::Unknown,
        }
    }

    /// A view of a span that the caller has listed already: watched from revision `next` on.
    #[must_use]
    pub fn resume(store: Store, span: Span, next: Revision, relist_ms: u64) -> Self {
        let relist_at_ms = store.env().monotonic_ms().saturating_add(relist_ms);
        Self {
            store,
            span,
            relist_ms,
            state: State::Listed { next, relist_at_ms },
        }
    }

    /// The next event; waits through failures of the store. Dropping the call loses no event, but a
    /// listing that was under way starts over: see [`forward`].
    pub async fn next(&mut self) -> ViewEvent {
        let mut backoff = Backoff::default();
        loop {
            match &mut self.state {
                State::Unknown => match self.store.list(&self.span, None).await {
                    Ok((entries, revision)) => {
                        self.state = State::Listed {
                            next: Revision(revision.0 + 1),
                            relist_at_ms: self
                                .store
                                .env()
                                .monotonic_ms()
                                .saturating_add(self.relist_ms),
                        };
                        return ViewEvent::Listed(entries, revision);
                    }
                    Err(error) => {
                        crate::recipe::outage::again(&error, "cannot list");
                        backoff.wait(self.store.env()).await;
                    }
                },
                State::Listed { next, relist_at_ms } => {
                    let (next, relist_at_ms) = (*next, *relist_at_ms);
                    match self.store.watch(&self.span, next).await {
                        Ok(watch) => {
                            self.state = State::Watching {
                                watch,
                                next,
                                relist_at_ms,
                            };
                        }
                        Err(BackendError::Compacted { .. }) => self.state = State::Unknown,
                        Err(error) => {
                            crate::recipe::outage::again(&error, "cannot watch");
                            backoff.wait(self.store.env()).await;
                        }
                    }
                }
                State::Watching {
                    watch,
                    next,
                    relist_at_ms,
                } => {
                    let env = self.store.env().clone();
                    let left = relist_at_ms.saturating_sub(env.monotonic_ms());
                    match race(watch.next(), env.sleep(Duration::from_millis(left))).await {
                        Either::Left(Ok(changes)) => {
                            *next = Revision(changes.revision.0 + 1);
                            return ViewEvent::Changed(changes);
                        }
                        Either::Left(Err(error)) => {
                            tracing::debug!(%error, "watch ended; resuming");
                            self.state = match error {
                                BackendError::Compacted { .. } => State::Unknown,
                                _ => State::Listed {
                                    next: *next,
                                    relist_at_ms: *relist_at_ms,
                                },
                            };
                            backoff.wait(&env).await;
                        }
                        Either::Right(()) => self.state = State::Unknown,
                    }
                }
            }
        }
    }
}

/// Runs a view in a task of its own that sends each event to `events`, so that a reader can give up
/// waiting at any time without starting a listing over. Ends with the handle or the receiver.
pub fn forward<E: Send + 'static>(
    mut view: View,
    events: mpsc::Sender<E>,
    map: impl Fn(ViewEvent) -> E + Send + 'static,
) -> TaskHandle {
    let env = view.store.env().clone();
    env.spawn(
        "view",
        Box::pin(async move {
            loop {
                let event = view.next().await;
                if events.send(map(event)).await.is_err() {
                    return;
                }
            }
        }),
    )
}
