//! Ends leases on a store that nobody calls.

use std::sync::{Arc, Weak};
use std::time::Duration;

use punctual::env::{SharedEnv, TaskHandle, race};
use tokio::sync::Notify;

use super::Shared;

/// Starts the reaper. It holds the store only while it looks at it, so the last handle's drop
/// ends both.
pub(super) fn spawn(shared: &Arc<Shared>) -> TaskHandle {
    let env = Arc::clone(&shared.env);
    let earlier = Arc::clone(&shared.earlier);
    let task = reap(Arc::downgrade(shared), env, earlier);
    shared.env.spawn("memory lease reaper", Box::pin(task))
}

async fn reap(store: Weak<Shared>, env: SharedEnv, earlier: Arc<Notify>) {
    loop {
        let deadline_ms = {
            let Some(store) = store.upgrade() else { return };
            // Locking ends what is overdue and tells the watchers.
            match store.lock() {
                Ok(model) => model.next_deadline_ms(),
                Err(_) => return,
            }
        };
        match deadline_ms {
            None => earlier.notified().await,
            Some(deadline_ms) => {
                let wait = Duration::from_millis(deadline_ms.saturating_sub(env.monotonic_ms()));
                race(earlier.notified(), env.sleep(wait)).await;
            }
        }
    }
}
