//! A clock that moves only when a test says so.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use punctual::env::{BoxFuture, Env, SharedEnv, TaskHandle};
use std::sync::Arc;

/// An [`Env`] whose time stands still until [`ManualEnv::advance`]. Tasks are not run: a store
/// under test must be right without a helper in the background.
#[derive(Debug, Default)]
pub struct ManualEnv {
    clock: Arc<Clock>,
    random: AtomicU64,
}

#[derive(Debug, Default)]
struct Clock {
    now_ms: AtomicU64,
    sleepers: Mutex<Vec<Waker>>,
}

impl ManualEnv {
    /// A clock at zero.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The same clock as the stores take it.
    #[must_use]
    pub fn shared(self: &Arc<Self>) -> SharedEnv {
        Arc::clone(self) as SharedEnv
    }

    /// Lets time pass; answers what time it is then.
    pub fn advance(&self, by_ms: u64) -> u64 {
        let now_ms = self.clock.now_ms.fetch_add(by_ms, Ordering::SeqCst) + by_ms;
        let sleepers = std::mem::take(&mut *self.clock.sleepers.lock().unwrap());
        sleepers.into_iter().for_each(Waker::wake);
        now_ms
    }
}

impl Env for ManualEnv {
    fn monotonic_ms(&self) -> u64 {
        self.clock.now_ms.load(Ordering::SeqCst)
    }

    fn wall_ms(&self) -> i64 {
        i64::try_from(self.monotonic_ms()).unwrap()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let clock = Arc::clone(&self.clock);
        let until_ms = self.monotonic_ms() + u64::try_from(duration.as_millis()).unwrap();
        Box::pin(std::future::poll_fn(move |context| {
            let mut sleepers = clock.sleepers.lock().unwrap();
            if clock.now_ms.load(Ordering::SeqCst) >= until_ms {
                return Poll::Ready(());
            }
            sleepers.push(context.waker().clone());
            Poll::Pending
        }))
    }

    fn random_u64(&self) -> u64 {
        self.random.fetch_add(1, Ordering::SeqCst)
    }

    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) -> TaskHandle {
        drop(task);
        TaskHandle::new(|| {})
    }
}
