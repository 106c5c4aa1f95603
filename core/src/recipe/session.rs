//! A node's session: a lease, the key that it holds, and the window in which to trust it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::env::SharedEnv;

/// How long a lease may still be relied upon, by the local monotonic clock.
///
/// The store counts a lease from the moment it handles the request; we count from the moment
/// *before* we sent it, and stop a margin early. So while clock rates differ by less than the
/// margin, `remaining_ms() > 0` implies that the store has not ended the lease.
#[derive(Clone)]
pub struct Trust {
    env: SharedEnv,
    until_ms: Arc<AtomicU64>,
}

impl Trust {
    /// Nothing to trust yet.
    #[must_use]
    pub fn none(env: SharedEnv) -> Self {
        Self {
            env,
            until_ms: Arc::new(AtomicU64::new(0)),
        }
    }

    /// Milliseconds for which the lease may still be relied upon; 0 when no more.
    #[must_use]
    pub fn remaining_ms(&self) -> u64 {
        self.until_ms
            .load(Ordering::SeqCst)
            .saturating_sub(self.env.monotonic_ms())
    }

    /// Whether the lease may still be relied upon.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.remaining_ms() > 0
    }

    /// A request that was sent at `start_ms` and answered with `ttl_ms` prolongs the window.
    pub fn extend(&self, start_ms: u64, ttl_ms: u64) {
        let margin_ms = ttl_ms / 10;
        self.until_ms
            .fetch_max(start_ms + ttl_ms - margin_ms, Ordering::SeqCst);
    }

    /// Nothing may be relied upon any more.
    pub fn end(&self) {
        self.until_ms.store(0, Ordering::SeqCst);
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({} ms)", self.remaining_ms())
    }
}
