//! The fire clock: wall time that never goes back and never jumps.
//!
//! What can go wrong: a bad time server steps the wall clock, or a machine boots with a wrong one. A
//! clock that is *ahead* is the worse one: it would drag the cursors into the future, and the real
//! instants between would never fire. So a node believes its wall clock only
//!
//! * once the other live nodes have been heard or have had their chance ([`exchange`]), and no
//!   majority of them shows another time ([`peers`]);
//! * while it does not step by more than `max_skew` against the monotonic clock. A step holds the fire
//!   clock where it stands until the new time has been stable for a minute and the peers agree. One of
//!   more than an hour is not believed by itself: a person sets the clock right, or says that it is
//!   right ([`FireClock::accept`]).
//!
//! Promised: readings never decrease, and never run ahead of what the wall clock has shown without
//! interruption since the last step. A clock that is alone, or in a tie, is believed: nobody can tell.

pub mod exchange;
pub mod peers;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::env::SharedEnv;

use peers::{PeerClock, Tally};

/// The state of the clock, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockState {
    /// It follows the wall clock.
    Following,
    /// It stands still.
    Held {
        /// Why.
        reason: Hold,
    },
}

/// Why a fire clock stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The node has just started, and the others' clocks are not known yet.
    Unconfirmed,
    /// The wall clock stepped; held until it has proven stable.
    Step {
        /// By so many milliseconds.
        step_ms: i64,
        /// Whether the step is so large that a person must decide.
        needs_person: bool,
    },
    /// The clocks of most live nodes show another time.
    Outvoted {
        /// How far this one is ahead of the middle one of theirs, if they have answered.
        ahead_ms: Option<i64>,
    },
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unconfirmed => {
                f.write_str("the clock is not compared with those of the other nodes yet")
            }
            Self::Step {
                step_ms,
                needs_person: false,
            } => write!(f, "the clock stepped by {step_ms} ms and must prove stable"),
            Self::Step { step_ms, .. } => write!(
                f,
                "the clock stepped by {step_ms} ms; set it right, or, if it is right now, \
                 `punctual admin clock accept`"
            ),
            Self::Outvoted {
                ahead_ms: Some(ahead_ms),
            } if *ahead_ms < 0 => write!(
                f,
                "the clock is {} ms behind those of most other nodes; set it right",
                ahead_ms.unsigned_abs()
            ),
            Self::Outvoted {
                ahead_ms: Some(ahead_ms),
            } => write!(
                f,
                "the clock is {ahead_ms} ms ahead of those of most other nodes; set it right"
            ),
            Self::Outvoted { ahead_ms: None } => {
                f.write_str("the clocks of most other nodes show another time; set this one right")
            }
        }
    }
}

/// What became of a person's word that a clock is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Accepted {
    /// The step is believed.
    Step {
        /// It was so many milliseconds.
        step_ms: i64,
    },
    /// The clock was believed already.
    Already,
    /// It is not held for a step, and what it is held for no word can lift.
    Refused(Hold),
    /// It shows another time by now than the one that was spoken of.
    Moved,
}

/// Steps larger than this are not accepted by a running node.
pub const MAX_ACCEPTED_STEP_MS: i64 = 3_600_000;
/// How long a stepped clock must agree with the monotonic one before it is believed, and how long a
/// clock that was outvoted must hear nobody before it is believed again.
pub const STABLE_MS: u64 = 60_000;
/// The anchor follows the wall clock at most so often, so that many small steps are seen as the
/// large one that they add up to.
const REANCHOR_MS: u64 = 10_000;

/// Wall time guarded against steps and wrong clocks.
pub struct FireClock {
    env: SharedEnv,
    max_skew_ms: i64,
    inner: Mutex<Inner>,
}

struct Inner {
    last_ms: i64,
    /// Wall and monotonic time read together when the wall clock was last believed; `None` before.
    anchor: Option<(i64, u64)>,
    /// The same before, as long as nothing speaks against it: a clock that steps between the start of
    /// its node and the first word of a peer has stepped all the same.
    boot: Option<(i64, u64)>,
    /// The same for a step that is not believed yet.
    candidate: Option<(i64, u64)>,
    /// What is known of the other live nodes' clocks.
    peers: Vec<PeerClock>,
    /// Whether they have had their chance to speak.
    asked: bool,
    /// Since a majority was against this clock: when somebody was last, by the monotonic clock. A tie
    /// does not lift the hold, nor does a moment without peers.
    outvoted: Option<u64>,
}

impl FireClock {
    /// A clock that believes the wall clock as it stands now.
    #[must_use]
    pub fn new(env: SharedEnv, max_skew_ms: u64) -> Self {
        let (wall, mono) = (env.wall_ms(), env.monotonic_ms());
        Self::with(env, max_skew_ms, wall, Some((wall, mono)))
    }

    /// A clock that believes nothing until [`FireClock::peers_had_their_chance`].
    #[must_use]
    pub fn unconfirmed(env: SharedEnv, max_skew_ms: u64) -> Self {
        Self::with(env, max_skew_ms, 0, None)
    }

    fn with(env: SharedEnv, max_skew_ms: u64, last_ms: i64, anchor: Option<(i64, u64)>) -> Self {
        let boot = Some((env.wall_ms(), env.monotonic_ms()));
        Self {
            env,
            max_skew_ms: i64::try_from(max_skew_ms).unwrap_or(i64::MAX),
            inner: Mutex::new(Inner {
                last_ms,
                anchor,
                boot,
                candidate: None,
                peers: Vec::new(),
                asked: anchor.is_some(),
                outvoted: None,
            }),
        }
    }

    /// Unix milliseconds by the fire clock; 0 before it was ever believed.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        self.read().0
    }

    /// Whether the clock follows the wall clock.
    #[must_use]
    pub fn state(&self) -> ClockState {
        self.read().1
    }

    /// The best estimate of the time, for records, and never for a decision: a held clock stands
    /// still, and what it dates would expire early. After a step that is the time last believed and
    /// what has passed since by the monotonic clock; against a majority, what that shows.
    #[must_use]
    pub fn record_ms(&self) -> i64 {
        self.record().0
    }

    /// [`FireClock::record_ms`], and the state that it was read in.
    #[must_use]
    pub fn record(&self) -> (i64, ClockState) {
        let (now_ms, state) = self.read();
        let ClockState::Held { reason } = state else {
            return (now_ms, state);
        };
        let inner = self.lock();
        let (wall, mono) = (self.env.wall_ms(), self.env.monotonic_ms());
        let peers = || peers::middle(&inner.peers, mono);
        let estimate_ms = match (reason, inner.anchor) {
            (Hold::Step { .. }, Some(anchor)) => now_ms.max(line(anchor, mono)),
            (_, Some(anchor)) => peers().unwrap_or_else(|| now_ms.max(line(anchor, mono))),
            (_, None) => {
                let booted = || inner.boot.map_or(wall, |boot| line(boot, mono));
                peers().unwrap_or_else(booted)
            }
        };
        (estimate_ms, state)
    }

    /// What is known of the clocks of the live peers; replaces what was known.
    pub fn hear(&self, peers: Vec<PeerClock>) {
        self.lock().peers = peers;
    }

    /// From now on the wall clock is believed unless the peers that were heard are against it.
    pub fn peers_had_their_chance(&self) {
        self.lock().asked = true;
    }

    /// A person says that the wall clock is right. That ends a hold for a step, be it still to prove
    /// stable or too large for that, and no other: a node that a majority is against must not lead,
    /// whoever says so. `shown` is wall and monotonic time of the reading that was spoken of: a
    /// clock that has stepped again since then is not the one that was meant.
    pub fn accept(&self, shown: Option<(i64, u64)>) -> Accepted {
        let step_ms = match self.state() {
            ClockState::Following => return Accepted::Already,
            ClockState::Held {
                reason: Hold::Step { step_ms, .. },
            } => step_ms,
            ClockState::Held { reason } => return Accepted::Refused(reason),
        };
        let mut inner = self.lock();
        let (wall, mono) = (self.env.wall_ms(), self.env.monotonic_ms());
        if inner.outvoted.is_some() {
            let tally = Tally::of(&inner.peers, wall, mono, self.max_skew_ms);
            let ahead_ms = tally.ahead_ms;
            return Accepted::Refused(Hold::Outvoted { ahead_ms });
        }
        let off = |shown| wall.saturating_sub(line(shown, mono)).saturating_abs();
        if shown.is_some_and(|shown| off(shown) > self.max_skew_ms) {
            return Accepted::Moved;
        }
        inner.believe(wall, mono);
        Accepted::Step { step_ms }
    }

    /// What the peers say of the wall clock as it is now.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let inner = self.lock();
        let (wall, mono) = (self.env.wall_ms(), self.env.monotonic_ms());
        Tally::of(&inner.peers, wall, mono, self.max_skew_ms)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> (i64, ClockState) {
        let mut inner = self.lock();
        let (wall, mono) = (self.env.wall_ms(), self.env.monotonic_ms());
        let tally = Tally::of(&inner.peers, wall, mono, self.max_skew_ms);
        inner.outvoted = outvoted(inner.outvoted, &tally, mono);
        let reason = inner.follow(wall, mono, self.max_skew_ms, &tally);
        match reason {
            None => (inner.last_ms, ClockState::Following),
            Some(reason) => (inner.last_ms, ClockState::Held { reason }),
        }
    }
}

impl Inner {
    /// Follows the wall clock, unless there is a reason not to.
    fn follow(&mut self, wall: i64, mono: u64, max_skew_ms: i64, tally: &Tally) -> Option<Hold> {
        let against = self.outvoted.map(|_| Hold::Outvoted {
            ahead_ms: tally.ahead_ms,
        });
        if self.anchor.is_none() {
            if against.is_some() {
                self.boot = None;
                return against;
            }
            let stepped = self.boot.filter(|boot| {
                let step_ms = wall.saturating_sub(line(*boot, mono));
                step_ms.saturating_abs() > max_skew_ms
            });
            if stepped.is_none() {
                let old = |boot: &(i64, u64)| mono.saturating_sub(boot.1) >= REANCHOR_MS;
                if self.boot.as_ref().is_some_and(old) {
                    self.boot = Some((wall, mono));
                }
            }
            if !self.asked {
                return Some(Hold::Unconfirmed);
            }
            match stepped {
                // Nobody says that the new time is right: as on a running node.
                Some(boot) if !tally.is_for() => self.believe(line(boot, mono), mono),
                _ => self.believe(wall, mono),
            }
        }
        let anchor = self.anchor.unwrap_or((wall, mono));
        let step_ms = wall.saturating_sub(line(anchor, mono));
        if step_ms.saturating_abs() <= max_skew_ms {
            self.candidate = None;
            if mono.saturating_sub(anchor.1) >= REANCHOR_MS {
                self.anchor = Some((wall, mono));
            }
            if against.is_none() {
                self.last_ms = self.last_ms.max(wall);
            }
            return against;
        }
        let needs_person = step_ms.saturating_abs() > MAX_ACCEPTED_STEP_MS;
        let candidate = *self.candidate.get_or_insert((wall, mono));
        let off = wall.saturating_sub(line(candidate, mono));
        if off.saturating_abs() > max_skew_ms {
            self.candidate = Some((wall, mono));
        } else if !needs_person
            && against.is_none()
            && mono.saturating_sub(candidate.1) >= STABLE_MS
        {
            self.believe(wall, mono);
            return None;
        }
        Some(Hold::Step {
            step_ms,
            needs_person,
        })
    }

    fn believe(&mut self, wall: i64, mono: u64) {
        self.anchor = Some((wall, mono));
        self.candidate = None;
        // After a step back this stands still until the wall clock has caught up.
        self.last_ms = self.last_ms.max(wall);
    }
}

/// Whether a majority is against the clock, or was and nothing has lifted that since.
fn outvoted(before: Option<u64>, tally: &Tally, mono: u64) -> Option<u64> {
    if tally.is_against() {
        return Some(mono);
    }
    let last = before?;
    if tally.is_for() {
        return None;
    }
    if tally.differing > 0 {
        return Some(mono);
    }
    (mono.saturating_sub(last) < STABLE_MS).then_some(last)
}

/// What the wall clock shows at `mono` if it went on as at the anchor.
fn line(anchor: (i64, u64), mono: u64) -> i64 {
    let elapsed = i64::try_from(mono.saturating_sub(anchor.1)).unwrap_or(i64::MAX);
    anchor.0.saturating_add(elapsed)
}

impl fmt::Debug for FireClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FireClock({:?})", self.read())
    }
}

#[cfg(test)]
mod tests;
