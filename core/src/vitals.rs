//! What a node shows of itself while it runs, to whoever measures it. No decision rests on it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::env::SharedEnv;

/// It does not lead, so that there is nothing to turn.
const NEVER: u64 = u64::MAX;

/// How busy a node is, and whether what it does as a leader goes on.
pub struct Vitals {
    env: SharedEnv,
    slots: usize,
    busy: AtomicUsize,
    /// When the loop that fires turned last, by the monotonic clock.
    ticked_ms: AtomicU64,
}

impl std::fmt::Debug for Vitals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Vitals({} of {} busy)", self.busy(), self.slots)
    }
}

impl Vitals {
    /// Those of a node that takes so many runs at once.
    #[must_use]
    pub fn new(env: SharedEnv, slots: usize) -> Self {
        Self {
            env,
            slots,
            busy: AtomicUsize::new(0),
            ticked_ms: AtomicU64::new(NEVER),
        }
    }

    /// Runs that the node is claiming or has, up to the end of their reports.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    /// How many more it would take.
    #[must_use]
    pub fn free(&self) -> usize {
        self.slots.saturating_sub(self.busy())
    }

    /// For how long the loop that fires has not turned, in milliseconds; none while this node does not
    /// lead. It turns twice a second at least, unless the store does not answer it.
    #[must_use]
    pub fn tick_age_ms(&self) -> Option<u64> {
        let ticked_ms = self.ticked_ms.load(Ordering::Relaxed);
        (ticked_ms != NEVER).then(|| self.env.monotonic_ms().saturating_sub(ticked_ms))
    }

    /// So many slots are taken now.
    pub(crate) fn set_busy(&self, busy: usize) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// The loop that fires turns.
    pub(crate) fn tick(&self) {
        self.ticked_ms
            .store(self.env.monotonic_ms(), Ordering::Relaxed);
    }

    /// The node leads until the answer is dropped.
    pub(crate) fn lead(&self) -> Leading<'_> {
        self.tick();
        Leading(self)
    }
}

/// A lead, however it ends.
pub(crate) struct Leading<'a>(&'a Vitals);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        self.0.ticked_ms.store(NEVER, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::env::TokioEnv;

    #[tokio::test]
    async fn slots_and_the_age_of_a_tick_are_shown() {
        let env = TokioEnv::shared();
        let vitals = Vitals::new(env.clone(), 3);
        assert_eq!((vitals.busy(), vitals.free()), (0, 3));
        vitals.set_busy(2);
        assert_eq!((vitals.busy(), vitals.free()), (2, 1));
        assert_eq!(vitals.tick_age_ms(), None);
        let leading = vitals.lead();
        env.sleep(Duration::from_millis(30)).await;
        assert!(vitals.tick_age_ms().unwrap() >= 29, "{vitals:?}");
        let before_ms = env.monotonic_ms();
        vitals.tick();
        assert!(vitals.tick_age_ms().unwrap() <= env.monotonic_ms() - before_ms);
        drop(leading);
        assert_eq!(vitals.tick_age_ms(), None);
    }
}
