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
fn a_person_accepts_a_step_of_hours_and_it_is_followed_at_once() {
    for hours in [2, -2] {
        let (env, clock) = clock();
        env.pass(600_000);
        let before = clock.now_ms();
        env.step(hours * 3_600_000);
        assert_eq!(clock.now_ms(), before);
        let step_ms = hours * 3_600_000;
        assert_eq!(clock.accept(None), Accepted::Step { step_ms });
        assert_eq!(clock.state(), ClockState::Following);
        assert_eq!(clock.accept(None), Accepted::Already, "told twice");
        env.pass(1_000);
        let shown = if hours > 0 { env.wall_ms() } else { before };
        assert_eq!(clock.now_ms(), shown, "and it never goes back");
    }
}

#[test]
fn nothing_is_accepted_that_is_not_a_step_or_was_not_shown() {
    let (env, clock) = clock();
    assert_eq!(clock.accept(None), Accepted::Already);
    env.step(2 * 3_600_000);
    let shown = (env.wall_ms(), env.monotonic_ms());
    env.pass(5_000);
    env.step(YEAR_MS);
    assert_eq!(clock.accept(Some(shown)), Accepted::Moved);
    assert_eq!(clock.now_ms(), 1_000_000);
    env.step(-YEAR_MS);
    let accepted = clock.accept(Some(shown));
    assert!(matches!(accepted, Accepted::Step { .. }));
    let (_env, unconfirmed) = booting(0);
    let reason = Hold::Unconfirmed;
    assert_eq!(unconfirmed.accept(None), Accepted::Refused(reason));
}

#[test]
fn no_word_helps_against_a_majority() {
    let (env, clock) = clock();
    env.step(2 * 3_600_000);
    let theirs = peer(&env, 1_000_000, 0);
    clock.hear(vec![theirs, theirs]);
    let refused = |accepted| matches!(accepted, Accepted::Refused(Hold::Outvoted { .. }));
    assert!(refused(clock.accept(None)));
    assert_eq!(clock.now_ms(), 1_000_000);
    // Theirs were wrong and are set right.
    let theirs = peer(&env, 1_000_000 + 2 * 3_600_000, 0);
    clock.hear(vec![theirs, theirs]);
    assert!(matches!(clock.accept(None), Accepted::Step { .. }));
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

/// A peer that was just heard, so far ahead of `env`'s wall clock without its steps.
fn peer(env: &TwoClocks, true_wall_ms: i64, ahead_ms: i64) -> PeerClock {
    let mono = env.monotonic_ms();
    PeerClock {
        least: (mono, true_wall_ms + ahead_ms),
        most: Some((mono, true_wall_ms + ahead_ms + 3)),
        hold_ms: 0,
    }
}

const YEAR_MS: i64 = 365 * 86_400_000;

fn booting(ahead_ms: i64) -> (Arc<TwoClocks>, FireClock) {
    let env = Arc::new(TwoClocks::default());
    env.step(1_000_000 + ahead_ms);
    let clock = FireClock::unconfirmed(env.clone(), 2_000);
    (env, clock)
}

fn is_outvoted(clock: &FireClock) -> bool {
    let outvoted = |state| {
        matches!(
            state,
            ClockState::Held {
                reason: Hold::Outvoted { .. }
            }
        )
    };
    outvoted(clock.state())
}

#[test]
fn a_clock_that_is_not_confirmed_stands_at_the_beginning_of_time() {
    let (env, clock) = booting(0);
    env.pass(5_000);
    assert_eq!(clock.now_ms(), 0);
    let reason = Hold::Unconfirmed;
    assert_eq!(clock.state(), ClockState::Held { reason });
    assert_eq!(clock.record_ms(), 1_005_000);
    clock.peers_had_their_chance();
    assert_eq!(clock.now_ms(), 1_005_000);
    assert_eq!(clock.state(), ClockState::Following);
}

#[test]
fn k07_a_node_that_boots_a_year_ahead_is_not_believed_until_its_clock_is_right() {
    let (env, clock) = booting(YEAR_MS);
    clock.hear(vec![peer(&env, 1_000_000, 0), peer(&env, 1_000_000, 300)]);
    clock.peers_had_their_chance();
    assert!(is_outvoted(&clock));
    assert_eq!(
        clock.now_ms(),
        0,
        "not a moment of the wrong time was shown"
    );
    let off = (clock.record_ms() - 1_000_000).abs();
    assert!(off < 400, "its records are dated by the others: {off}");
    // Set right: the others agree, and no person and no minute is needed.
    env.step(-YEAR_MS);
    env.pass(500);
    assert_eq!(clock.now_ms(), 1_000_500);
    assert_eq!(clock.state(), ClockState::Following);
}

#[test]
fn alone_and_in_a_tie_a_clock_is_believed() {
    let (env, clock) = booting(YEAR_MS);
    clock.hear(vec![peer(&env, 1_000_000, 0)]);
    clock.peers_had_their_chance();
    assert_eq!(clock.state(), ClockState::Following);
    assert_eq!(clock.tally().differing, 1, "and this is what is warned of");
}

#[test]
fn neither_a_tie_nor_a_moment_alone_lifts_a_hold() {
    let (env, clock) = booting(YEAR_MS);
    let one = peer(&env, 1_000_000, 0);
    clock.hear(vec![one, one]);
    clock.peers_had_their_chance();
    assert!(is_outvoted(&clock));
    clock.hear(vec![one]);
    env.pass(10_000);
    assert!(is_outvoted(&clock), "one of the two has died");
    clock.hear(vec![]);
    env.pass(STABLE_MS.try_into().unwrap_or(u32::MAX) - 1_000);
    assert!(is_outvoted(&clock), "both restart");
    env.pass(2_000);
    assert_eq!(clock.state(), ClockState::Following, "nobody is there");
}

#[test]
fn a_stable_step_is_not_believed_against_the_peers() {
    for (theirs_ms, believed) in [(0, false), (600_000, true)] {
        let (env, clock) = clock();
        env.step(600_000);
        assert_eq!(clock.now_ms(), 1_000_000);
        for second in 1..=70 {
            env.pass(1_000);
            let theirs = peer(&env, 1_000_000 + second * 1_000, theirs_ms);
            clock.hear(vec![theirs, theirs]);
            assert_eq!(
                clock.state() == ClockState::Following,
                believed && second >= 60
            );
        }
    }
}

#[test]
fn a_clock_that_creeps_away_is_found_by_the_others() {
    let (env, clock) = clock();
    for turn in 1..=10_i64 {
        env.pass(11_000);
        env.step(500);
        let theirs = peer(&env, 1_000_000 + turn * 11_000, 0);
        clock.hear(vec![theirs, theirs]);
        assert_eq!(is_outvoted(&clock), turn * 500 > 2_020, "{turn}");
    }
}

/// What a node creates while its clock is held must not look older than it is.
#[test]
fn records_are_dated_by_the_time_last_believed_and_what_passed_since() {
    let (env, clock) = clock();
    env.pass(5_000);
    assert_eq!(clock.record_ms(), clock.now_ms());
    env.step(YEAR_MS);
    env.pass(300_000);
    assert_eq!(
        clock.now_ms(),
        1_005_000,
        "what is due is not decided by it"
    );
    assert_eq!(clock.record_ms(), 1_305_000);
    env.step(-2 * YEAR_MS);
    assert_eq!(clock.record_ms(), 1_305_000);
}

/// Seed 41201 of the simulation: the store was away when the node started, and the clock stepped
/// before the node could register.
#[test]
fn a_step_before_the_clock_is_confirmed_is_a_step_unless_the_peers_agree() {
    for agreed in [false, true] {
        let (env, clock) = booting(0);
        env.pass(40_000);
        env.step(8 * 3_600_000);
        if agreed {
            clock.hear(vec![peer(&env, 1_040_000 + 8 * 3_600_000, 0)]);
        }
        clock.peers_had_their_chance();
        if agreed {
            assert_eq!(clock.now_ms(), 1_040_000 + 8 * 3_600_000);
            continue;
        }
        assert_eq!(clock.now_ms(), 1_040_000);
        assert_eq!(clock.record_ms(), 1_040_000);
        env.step(-8 * 3_600_000);
        env.pass(1_000);
        assert_eq!(clock.now_ms(), 1_041_000);
        assert_eq!(clock.state(), ClockState::Following);
    }
}

/// Seed 41349: the monotonic clock runs a little fast, and is no better a clock for that.
#[test]
fn while_it_waits_to_be_confirmed_the_wall_clock_counts_and_not_the_monotonic_one() {
    let (env, clock) = booting(0);
    for _ in 0..20 {
        env.pass(5_000);
        env.step(-20);
        assert_eq!(clock.now_ms(), 0);
    }
    clock.peers_had_their_chance();
    assert_eq!(clock.now_ms(), 1_000_000 + 20 * 4_980);
}
