//! A node's clocks, and its `Env`.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use punctual::env::{BoxFuture, Env, TaskHandle};

use super::executor::{Executor, Proc};
use super::rng::Rng;

/// How a node's clocks differ from true time.
#[derive(Debug)]
pub struct NodeClock {
    /// Unix milliseconds of virtual time 0.
    pub epoch_ms: i64,
    /// Where the monotonic clock starts.
    pub mono_base_ms: u64,
    /// How much faster it goes, in parts per million.
    pub drift_ppm: i64,
    /// How far ahead the wall clock is.
    pub offset_ms: AtomicI64,
}

impl NodeClock {
    /// True time on both clocks.
    #[must_use]
    pub fn exact(epoch_ms: i64) -> Arc<Self> {
        Arc::new(Self {
            epoch_ms,
            mono_base_ms: 0,
            drift_ppm: 0,
            offset_ms: AtomicI64::new(0),
        })
    }

    fn mono_ms(&self, now_ms: u64) -> u64 {
        let drift = now_ms.cast_signed() * self.drift_ppm / 1_000_000;
        (self.mono_base_ms + now_ms).saturating_add_signed(drift)
    }

    /// Virtual milliseconds in which the monotonic clock moves by `ms`, rounded up.
    fn stretch(&self, ms: u64) -> u64 {
        let rate = 1_000_000_i128 + i128::from(self.drift_ppm);
        let virtual_ms = (i128::from(ms) * 1_000_000 + rate - 1) / rate;
        // One more for the rounding of both readings.
        u64::try_from(virtual_ms)
            .unwrap_or(u64::MAX / 4)
            .min(u64::MAX / 4)
            + u64::from(self.drift_ppm != 0)
    }
}

/// The outside world of one process.
pub struct SimEnv {
    executor: Executor,
    proc: Proc,
    clock: Arc<NodeClock>,
    rng: Mutex<Rng>,
}

impl SimEnv {
    /// A shared handle.
    #[must_use]
    pub fn shared(executor: Executor, proc: Proc, clock: Arc<NodeClock>, rng: Rng) -> Arc<Self> {
        Arc::new(Self {
            executor,
            proc,
            clock,
            rng: Mutex::new(rng),
        })
    }
}

impl Env for SimEnv {
    fn monotonic_ms(&self) -> u64 {
        self.clock.mono_ms(self.executor.now_ms())
    }

    fn wall_ms(&self) -> i64 {
        self.clock.epoch_ms
            + self.executor.now_ms().cast_signed()
            + self.clock.offset_ms.load(Ordering::SeqCst)
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let ms = u64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
        let at_ms = self
            .executor
            .now_ms()
            .saturating_add(self.clock.stretch(ms));
        Box::pin(self.executor.sleep_until(at_ms))
    }

    fn random_u64(&self) -> u64 {
        self.rng.lock().unwrap().next_u64()
    }

    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) -> TaskHandle {
        let id = self.executor.spawn(self.proc, task);
        let executor = self.executor.clone();
        TaskHandle::new(move || executor.abort(id))
    }
}
