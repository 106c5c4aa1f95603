//! Election: whoever creates the leader key leads, as long as that very key stands.
//!
//! What is promised: at most one key, hence at most one term, exists at any revision of the store.
//! What is *not* promised: that no other node believes to lead. A paused leader may wake up and go
//! on believing; its writes fail, because every one of them requires the key that was created at
//! its term. So correctness never rests on who believes what, nor on clocks, nor on lease times.

use crate::backend::{BackendError, Entry, Event, Span};

use super::retry::{Backoff, Store};
use super::session::{Opened, Session};
use super::view::{View, ViewEvent};

/// A standby looks at the leader's key at least so often.
const RELIST_MS: u64 = 10_000;

/// Waits until nobody leads, and then tries to lead with a fresh lease. Comes back only as leader.
/// To resign is to close the session: the next leader takes over at once.
pub async fn campaign(
    store: &Store,
    key: &[u8],
    relist_ms: u64,
    ttl_ms: u64,
    value: impl Fn() -> Vec<u8> + Send,
) -> Session {
    // One small read, and all firing waits for it: a watch that lost the end of the last leader
    // must not cost a minute.
    let relist_ms = relist_ms.min(RELIST_MS);
    let mut view = View::new(store.clone(), Span::key(key), relist_ms);
    let mut backoff = Backoff::default();
    let mut vacant = false;
    loop {
        while !vacant {
            vacant = is_vacant(&view.next().await).unwrap_or(vacant);
        }
        match try_lead(store, key, value(), ttl_ms).await {
            Tried::Leads(session) => return session,
            // The view lags behind what the store just said: wait for its next word.
            Tried::Taken(_) => vacant = false,
            Tried::Failed => backoff.wait(store.env()).await,
        }
    }
}

/// What became of a try to lead.
pub enum Tried {
    /// The key is ours.
    Leads(Session),
    /// Somebody else has it (or an earlier lease of ours).
    Taken(Entry),
    /// The store did not do it; try again after a pause.
    Failed,
}

/// Tries once to lead, with a fresh lease.
pub async fn try_lead(store: &Store, key: &[u8], value: Vec<u8>, ttl_ms: u64) -> Tried {
    match Session::open(store, key.to_vec(), value, ttl_ms).await {
        Ok(Opened::Ours(session)) => Tried::Leads(session),
        Ok(Opened::Taken(entry)) => Tried::Taken(entry),
        Err(BackendError::Broken(reason)) => {
            tracing::error!(reason, "the store is broken; standing by");
            Tried::Failed
        }
        Err(error) => {
            crate::recipe::outage::again(&error, "campaign failed");
            Tried::Failed
        }
    }
}

/// Whether the key is absent after the event; `None` when the event does not say.
fn is_vacant(event: &ViewEvent) -> Option<bool> {
    match event {
        ViewEvent::Listed(entries, _) => Some(entries.is_empty()),
        ViewEvent::Changed(changes) => changes
            .events
            .last()
            .map(|event| matches!(event, Event::Delete { .. })),
    }
}
