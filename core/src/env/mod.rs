//! The only door to the outside world: time, sleep, randomness and tasks.
//!
//! Production hands in [`TokioEnv`]; a simulation hands in one whose clock it moves itself. Both
//! run the same code, so nothing in this crate may reach for a clock or a runtime on its own
//! (`clippy.toml` bans every other way).

mod tokio;

pub use self::tokio::TokioEnv;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{self, Either};

/// A boxed future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A shared handle on the outside world.
pub type SharedEnv = Arc<dyn Env>;

/// Time, sleep, randomness and tasks.
pub trait Env: Send + Sync + 'static {
    /// Milliseconds on a clock that never goes back and, where the system has one, counts
    /// suspended time. Its zero means nothing.
    fn monotonic_ms(&self) -> u64;

    /// Milliseconds since 1970-01-01T00:00:00Z by the wall clock, which may jump.
    fn wall_ms(&self) -> i64;

    /// Completes no earlier than `duration` from now on the monotonic clock. A hint: callers look
    /// at the clock again when woken.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// A random number; not for secrets.
    fn random_u64(&self) -> u64;

    /// Runs a task until it ends or the handle is dropped. `name` is for people.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) -> TaskHandle;
}

/// A running task: ends it when dropped.
#[must_use = "dropping the handle ends the task"]
pub struct TaskHandle {
    abort: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl TaskHandle {
    /// A handle whose drop calls `abort`.
    pub fn new(abort: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self {
            abort: Some(Box::new(abort)),
        }
    }

    /// Lets the task run on by itself.
    pub fn detach(mut self) {
        self.abort = None;
    }
}

impl Drop for TaskHandle {
    fn drop(&mut self) {
        if let Some(abort) = self.abort.take() {
            abort();
        }
    }
}

impl std::fmt::Debug for TaskHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TaskHandle")
    }
}

/// Whichever of two futures ends first; `first` when both are ready. The other is dropped.
pub async fn race<A, B>(first: A, second: B) -> Either<A::Output, B::Output>
where
    A: Future,
    B: Future,
{
    match future::select(pin!(first), pin!(second)).await {
        Either::Left((output, _)) => Either::Left(output),
        Either::Right((output, _)) => Either::Right(output),
    }
}

/// The future's output, or `None` when it takes longer than `duration`.
pub async fn timeout<F: Future>(env: &dyn Env, duration: Duration, future: F) -> Option<F::Output> {
    match race(future, env.sleep(duration)).await {
        Either::Left(output) => Some(output),
        Either::Right(()) => None,
    }
}
