//! The fire clock on two clocks that a test moves.

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
            reason: Hold::Step {
                needs_person: true,
                ..
            }
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
