//! The fire clock: wall time that never goes back and never jumps.
//!
//! What can go wrong: a bad time server steps the wall clock. A step *forward* is the worse one:
//! it would drag the cursors into the future, and the real instants between would never fire. So
//! the wall clock is checked against the monotonic one at every reading, and a step beyond
//! `max_skew` holds the fire clock where it stands until the new time has been stable for a
//! minute. A step of more than an hour on a running node is not believed at all: a person decides,
//! by restarting the node once its clock is right.
//!
//! Promised: readings never decrease, and never run ahead of what the wall clock has shown without
//! interruption since the last step.

use std::sync::{Mutex, PoisonError};

use crate::env::SharedEnv;

/// The state of the clock, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockState {
    /// It follows the wall clock.
    Following,
    /// The wall clock stepped by so many milliseconds; held until it has proven stable.
    Held {
        /// The step.
        step_ms: i64,
        /// Whether the step is so large that a person must decide.
        needs_person: bool,
    },
}

/// Steps larger than this are not accepted by a running node.
pub const MAX_ACCEPTED_STEP_MS: i64 = 3_600_000;
/// How long a stepped clock must agree with the monotonic one before it is believed.
pub const STABLE_MS: u64 = 60_000;
/// The anchor follows the wall clock at most so often, so that many small steps are seen as the
/// large one that they add up to.
const REANCHOR_MS: u64 = 10_000;

/// Wall time guarded against steps.
pub struct FireClock {
    env: SharedEnv,
    max_skew_ms: i64,
    inner: Mutex<Inner>,
}

struct Inner {
    last_ms: i64,
    /// Wall and monotonic time read together when the wall clock was last believed.
    anchor: (i64, u64),
    /// The same for a step that is not believed yet.
    candidate: Option<(i64, u64)>,
}

impl FireClock {
    /// A clock that believes the wall clock as it stands now.
    #[must_use]
    pub fn new(env: SharedEnv, max_skew_ms: u64) -> Self {
        let (wall, mono) = (env.wall_ms(), env.monotonic_ms());
        Self {
            env,
            max_skew_ms: i64::try_from(max_skew_ms).unwrap_or(i64::MAX),
            inner: Mutex::new(Inner {
                last_ms: wall,
                anchor: (wall, mono),
                candidate: None,
            }),
        }
    }

    /// Unix milliseconds by the fire clock.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        self.read().0
    }

    /// Whether the clock follows the wall clock.
    #[must_use]
    pub fn state(&self) -> ClockState {
        self.read().1
    }

    fn read(&self) -> (i64, ClockState) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (wall, mono) = (self.env.wall_ms(), self.env.monotonic_ms());
        let step = deviation(inner.anchor, wall, mono);
        if step.abs() <= self.max_skew_ms {
            inner.candidate = None;
            if mono.saturating_sub(inner.anchor.1) >= REANCHOR_MS {
                inner.anchor = (wall, mono);
            }
            inner.last_ms = inner.last_ms.max(wall);
            return (inner.last_ms, ClockState::Following);
        }
        let needs_person = step.abs() > MAX_ACCEPTED_STEP_MS;
        let candidate = *inner.candidate.get_or_insert((wall, mono));
        if deviation(candidate, wall, mono).abs() > self.max_skew_ms {
            inner.candidate = Some((wall, mono));
        } else if !needs_person && mono.saturating_sub(candidate.1) >= STABLE_MS {
            inner.anchor = (wall, mono);
            inner.candidate = None;
            // After a step back this stands still until the wall clock has caught up.
            inner.last_ms = inner.last_ms.max(wall);
            return (inner.last_ms, ClockState::Following);
        }
        (
            inner.last_ms,
            ClockState::Held {
                step_ms: step,
                needs_person,
            },
        )
    }
}

/// How far the wall clock is from where an anchor and the monotonic clock say it should be.
fn deviation(anchor: (i64, u64), wall: i64, mono: u64) -> i64 {
    let elapsed = i64::try_from(mono.saturating_sub(anchor.1)).unwrap_or(i64::MAX);
    wall.saturating_sub(anchor.0.saturating_add(elapsed))
}

impl std::fmt::Debug for FireClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FireClock({:?})", self.read())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::env::{BoxFuture, Env, TaskHandle};

    #[derive(Default)]
    struct TwoClocks {
        wall: AtomicI64,
        mono: AtomicU64,
    }

    impl Env for TwoClocks {
        fn monotonic_ms(&self) -> u64 {
            self.mono.load(Ordering::SeqCst)
        }
        fn wall_ms(&self) -> i64 {
            self.wall.load(Ordering::SeqCst)
        }
        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
        fn random_u64(&self) -> u64 {
            0
        }
        fn spawn(&self, _: &'static str, _: BoxFuture<'static, ()>) -> TaskHandle {
            TaskHandle::new(|| {})
        }
    }

    impl TwoClocks {
        fn pass(&self, ms: u32) {
            self.mono.fetch_add(u64::from(ms), Ordering::SeqCst);
            self.wall.fetch_add(i64::from(ms), Ordering::SeqCst);
        }
        fn step(&self, ms: i64) {
            self.wall.fetch_add(ms, Ordering::SeqCst);
        }
    }

    fn clock() -> (Arc<TwoClocks>, FireClock) {
        let env = Arc::new(TwoClocks::default());
        env.step(1_000_000);
        let clock = FireClock::new(env.clone(), 2_000);
        (env, clock)
    }

    #[test]
    fn follows_the_wall_and_small_steps() {
        let (env, clock) = clock();
        env.pass(500);
        assert_eq!(clock.now_ms(), 1_000_500);
        env.step(1_500);
        assert_eq!(clock.now_ms(), 1_002_000);
        env.step(-1_500);
        assert_eq!(clock.now_ms(), 1_002_000, "never goes back");
        env.pass(1_600);
        assert_eq!(clock.now_ms(), 1_002_100);
    }

    #[test]
    fn a_large_step_holds_it_until_stable_for_a_minute() {
        let (env, clock) = clock();
        env.step(600_000);
        assert_eq!(clock.now_ms(), 1_000_000);
        env.pass(59_000);
        assert_eq!(clock.now_ms(), 1_000_000);
        env.pass(2_000);
        assert_eq!(clock.now_ms(), 1_661_000);
        assert_eq!(clock.state(), ClockState::Following);
    }

    #[test]
    fn k04_a_jump_that_is_taken_back_leaves_no_trace() {
        let (env, clock) = clock();
        env.step(8 * 3_600_000);
        env.pass(30_000);
        assert_eq!(clock.now_ms(), 1_000_000);
        env.step(-8 * 3_600_000);
        assert_eq!(clock.now_ms(), 1_030_000);
        assert_eq!(clock.state(), ClockState::Following);
    }

    #[test]
    fn k01_after_an_accepted_step_back_it_waits_for_the_wall() {
        let (env, clock) = clock();
        env.step(-600_000);
        assert_eq!(clock.now_ms(), 1_000_000);
        env.pass(61_000);
        assert_eq!(clock.now_ms(), 1_000_000);
        assert_eq!(clock.state(), ClockState::Following);
        env.pass(539_500);
        assert_eq!(clock.now_ms(), 1_000_500);
    }

    #[test]
    fn a_step_of_hours_waits_for_a_person() {
        let (env, clock) = clock();
        env.step(2 * 3_600_000);
        env.pass(600_000);
        assert_eq!(clock.now_ms(), 1_000_000);
        env.pass(600_000);
        assert!(matches!(
            clock.state(),
            ClockState::Held {
                needs_person: true,
                ..
            }
        ));
    }

    #[test]
    fn many_small_steps_are_seen_as_a_large_one() {
        let (env, clock) = clock();
        for _ in 0..5 {
            env.step(1_000);
            env.pass(100);
            let _ = clock.now_ms();
        }
        assert!(matches!(clock.state(), ClockState::Held { .. }));
    }
}
