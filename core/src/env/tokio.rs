//! The real world: the system's clocks and the tokio runtime that the caller runs.
#![allow(
    clippy::disallowed_methods,
    reason = "the one place where the outside world enters"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(target_os = "linux"))]
use std::time::Instant;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{BoxFuture, Env, SharedEnv, TaskHandle};

/// [`Env`] on the system's clocks and the current tokio runtime.
#[derive(Debug)]
pub struct TokioEnv {
    #[cfg(not(target_os = "linux"))]
    started: Instant,
    random: AtomicU64,
}

impl TokioEnv {
    /// A shared handle, as every part of the crate takes it.
    #[must_use]
    pub fn shared() -> SharedEnv {
        Arc::new(Self {
            #[cfg(not(target_os = "linux"))]
            started: Instant::now(),
            random: AtomicU64::new(seed()),
        })
    }
}

/// The standard library seeds its hasher from the system's random source: enough to tell nodes
/// and tries apart, which is all that `random_u64` is for.
fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

impl Env for TokioEnv {
    #[cfg(target_os = "linux")]
    fn monotonic_ms(&self) -> u64 {
        // Unlike `Instant`, this counts the time that a laptop sleeps: a lease does too.
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let ms = now.tv_sec.saturating_mul(1_000) + now.tv_nsec / 1_000_000;
        u64::try_from(ms).unwrap_or(0)
    }

    #[cfg(not(target_os = "linux"))]
    fn monotonic_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn wall_ms(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
        }
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn random_u64(&self) -> u64 {
        // SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
        let mut z = self
            .random
            .fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
            .wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) -> TaskHandle {
        let handle = tokio::spawn(task).abort_handle();
        TaskHandle::new(move || handle.abort())
    }
}
