//! Whether a standby should depose the leader. Pure: time comes in as numbers.
//!
//! What can go wrong: two clocks differ, so an instant that is due here may not be due at the
//! leader; a store is slow, so a change of the leader helps nobody; a leader catches up after an
//! outage, and is at it. So a standby waits for `takeover_ms` on top of how late decisions are seen
//! when all is well (skew and the store's way are both in that), any move of a cursor counts as
//! life, and each takeover makes the whole cluster more patient until some calm has passed.
//!
//! Nothing here is needed for safety: a deposed leader's transactions fail, whoever was right.

use std::collections::VecDeque;

/// So many takeovers are free; each further one doubles the patience.
const FREE_TAKEOVERS: u32 = 1;
/// The patience grows no further than this many times two.
const MAX_DOUBLINGS: u32 = 6;
/// One takeover is forgotten after so long a time in which the leader was not late.
const FORGET_MS: u64 = 10_000;
/// How long a late decision, of whichever leader, is remembered.
const REMEMBER_MS: u64 = 60_000;
/// Samples kept.
const SAMPLES: usize = 64;

/// What the node is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long an instant may stay undecided; 0: for ever.
    pub takeover_ms: u64,
    /// How far clocks may differ.
    pub max_skew_ms: u64,
}

/// What a standby sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Its fire clock.
    pub now_ms: i64,
    /// The first instant that is not decided, past or future.
    pub oldest_ms: Option<i64>,
    /// For how long there was no sign of the leader's life, and this node could see.
    pub quiet_ms: u64,
    /// Takeovers that still count.
    pub takeovers: u32,
    /// How late decisions are seen here, by this node's clock; `None`: not known yet.
    pub lateness_ms: Option<i64>,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Nothing is planned, or takeovers are off.
    Rest,
    /// Not yet: look again then.
    Wait {
        /// Milliseconds.
        ms: u64,
    },
    /// Ask the store whether it is so; if it is, depose the leader.
    Overdue,
}

/// The judgement.
#[must_use]
pub fn judge(policy: Policy, sight: &Sight) -> Judgement {
    let Some(oldest_ms) = sight.oldest_ms.filter(|_| policy.takeover_ms > 0) else {
        return Judgement::Rest;
    };
    let patience_ms = patience_ms(policy, sight.takeovers, sight.lateness_ms);
    let patience = i64::try_from(patience_ms).unwrap_or(i64::MAX);
    let until_due = oldest_ms
        .saturating_add(patience)
        .saturating_sub(sight.now_ms);
    let until_quiet = patience.saturating_sub(i64::try_from(sight.quiet_ms).unwrap_or(i64::MAX));
    match u64::try_from(until_due.max(until_quiet)) {
        Ok(ms) if ms > 0 => Judgement::Wait { ms },
        _ => Judgement::Overdue,
    }
}

/// For how long an instant may be undecided.
#[must_use]
pub fn patience_ms(policy: Policy, takeovers: u32, lateness_ms: Option<i64>) -> u64 {
    let doublings = takeovers.saturating_sub(FREE_TAKEOVERS).min(MAX_DOUBLINGS);
    // Nodes that differ by more do not lead, so this is the most that a healthy one can be behind.
    let lateness = lateness_ms.map_or(policy.max_skew_ms, |ms| {
        u64::try_from(ms).unwrap_or(0).min(policy.max_skew_ms)
    });
    (policy.takeover_ms << doublings).saturating_add(lateness)
}

/// How many of the takeovers that led to a lead still count after so much calm.
#[must_use]
pub fn counted(takeovers: u32, calm_ms: u64) -> u32 {
    takeovers.saturating_sub(times(calm_ms))
}

/// How many takeovers are forgotten in so much calm.
fn times(calm_ms: u64) -> u32 {
    u32::try_from(calm_ms / FORGET_MS).unwrap_or(u32::MAX)
}

/// Signs of the leader's life, as a standby hears them. Monotonic milliseconds come in as `at_ms`.
#[derive(Clone, Debug)]
pub struct Pulse {
    /// The last sign of life, or since when this node can see; may lie ahead.
    sign_ms: u64,
    calm_since_ms: u64,
    /// Takeovers before this lead that were forgotten in calm before `calm_since_ms`.
    forgotten: u32,
    /// When, and how late.
    samples: VecDeque<(u64, i64)>,
    /// The newest sample of the present leader.
    of_lead_ms: Option<i64>,
}

impl Pulse {
    /// Nothing is heard yet.
    #[must_use]
    pub fn new(at_ms: u64) -> Self {
        Self {
            sign_ms: at_ms,
            calm_since_ms: at_ms,
            forgotten: 0,
            samples: VecDeque::new(),
            of_lead_ms: None,
        }
    }

    /// Another lead began; seen so late after the time that its record names, when seen live.
    pub fn lead_began(&mut self, at_ms: u64, late_ms: Option<i64>) {
        self.sign_ms = self.sign_ms.max(at_ms);
        self.calm_since_ms = at_ms;
        self.forgotten = 0;
        self.of_lead_ms = None;
        self.sample(at_ms, late_ms);
    }

    /// The leader decided something. `late_ms`: this node's clock, less the leader's when it opened
    /// the window. Whatever the way of the news was, the clocks differ by no more.
    pub fn decided(&mut self, at_ms: u64, late_ms: Option<i64>) {
        self.sign_ms = self.sign_ms.max(at_ms);
        self.sample(at_ms, late_ms);
    }

    fn sample(&mut self, at_ms: u64, late_ms: Option<i64>) {
        let Some(late_ms) = late_ms else { return };
        self.of_lead_ms = Some(late_ms);
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((at_ms, late_ms));
    }

    /// This node could not see, or has reason to doubt it, until `at_ms`.
    pub fn blind_until(&mut self, at_ms: u64) {
        self.sign_ms = self.sign_ms.max(at_ms);
    }

    /// What is seen, for [`judge`].
    #[must_use]
    pub fn sight(&self, at_ms: u64, now_ms: i64, oldest_ms: Option<i64>, takeovers: u32) -> Sight {
        let recent = self
            .samples
            .iter()
            .filter(|(seen_ms, _)| at_ms.saturating_sub(*seen_ms) <= REMEMBER_MS)
            .map(|(_, late_ms)| *late_ms)
            .max();
        Sight {
            now_ms,
            oldest_ms,
            quiet_ms: at_ms.saturating_sub(self.sign_ms),
            takeovers: counted(
                takeovers.saturating_sub(self.forgotten),
                at_ms.saturating_sub(self.calm_since_ms),
            ),
            lateness_ms: self.of_lead_ms.map(|ms| recent.map_or(ms, |r| r.max(ms))),
        }
    }

    /// Calm begins anew while something is late. What was forgotten until then stays so: a leader
    /// that dies once a month must not be waited for longer each time.
    pub fn note(&mut self, policy: Policy, at_ms: u64, sight: &Sight) {
        if is_late(policy, sight) {
            let calm_ms = at_ms.saturating_sub(self.calm_since_ms);
            self.forgotten = self.forgotten.saturating_add(times(calm_ms));
            self.calm_since_ms = at_ms;
        }
    }
}

/// Whether an instant has waited so long that a lead which begins now counts as a takeover,
/// whoever of the standbys ended the last one.
#[must_use]
pub fn is_late(policy: Policy, sight: &Sight) -> bool {
    let half = i64::try_from(policy.takeover_ms / 2).unwrap_or(i64::MAX);
    policy.takeover_ms > 0
        && i64::try_from(sight.quiet_ms).unwrap_or(i64::MAX) > half
        && sight
            .oldest_ms
            .is_some_and(|oldest| sight.now_ms.saturating_sub(oldest) > half)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy {
        takeover_ms: 1_000,
        max_skew_ms: 2_000,
    };

    fn sight(late_ms: i64, quiet_ms: u64, takeovers: u32, lateness_ms: Option<i64>) -> Sight {
        Sight {
            now_ms: 1_000_000,
            oldest_ms: Some(1_000_000 - late_ms),
            quiet_ms,
            takeovers,
            lateness_ms,
        }
    }

    #[test]
    fn the_judgement_by_table() {
        let wait = |ms| Judgement::Wait { ms };
        for (why, seen, expected) in [
            ("due just now", sight(0, 60_000, 0, Some(0)), wait(1_000)),
            ("due later", sight(-5_000, 60_000, 0, Some(0)), wait(6_000)),
            ("almost", sight(999, 60_000, 0, Some(0)), wait(1)),
            (
                "a second late",
                sight(1_000, 60_000, 0, Some(0)),
                Judgement::Overdue,
            ),
            ("it catches up", sight(600_000, 100, 0, Some(0)), wait(900)),
            (
                "it stopped to",
                sight(600_000, 1_000, 0, Some(0)),
                Judgement::Overdue,
            ),
            (
                "we are 900 ms ahead",
                sight(1_000, 60_000, 0, Some(905)),
                wait(905),
            ),
            (
                "so it is late",
                sight(1_905, 60_000, 0, Some(905)),
                Judgement::Overdue,
            ),
            (
                "we are behind",
                sight(1_000, 60_000, 0, Some(-900)),
                Judgement::Overdue,
            ),
            ("skew not known", sight(2_999, 60_000, 0, None), wait(1)),
            (
                "more than any skew",
                sight(3_000, 60_000, 0, None),
                Judgement::Overdue,
            ),
            (
                "old news of an hour",
                sight(3_000, 60_000, 0, Some(3_600_000)),
                Judgement::Overdue,
            ),
            (
                "the first is free",
                sight(1_000, 60_000, 1, Some(0)),
                Judgement::Overdue,
            ),
            (
                "the second is not",
                sight(1_000, 60_000, 2, Some(0)),
                wait(1_000),
            ),
            ("it doubles", sight(1_000, 60_000, 4, Some(0)), wait(7_000)),
            (
                "not for ever",
                sight(1_000, 600_000, 99, Some(0)),
                wait(63_000),
            ),
        ] {
            assert_eq!(judge(POLICY, &seen), expected, "{why}");
        }
        let nothing = Sight {
            oldest_ms: None,
            ..sight(0, 60_000, 0, Some(0))
        };
        assert_eq!(judge(POLICY, &nothing), Judgement::Rest);
        let off = Policy {
            takeover_ms: 0,
            ..POLICY
        };
        assert_eq!(
            judge(off, &sight(900_000, 900_000, 0, Some(0))),
            Judgement::Rest
        );
        assert!(!is_late(off, &sight(900_000, 900_000, 0, Some(0))));
    }

    #[test]
    fn takeovers_are_forgotten_in_calm_only() {
        assert_eq!(counted(3, 9_999), 3);
        assert_eq!(counted(3, 10_000), 2);
        assert_eq!(counted(3, 3_600_000), 0);
        let mut pulse = Pulse::new(0);
        pulse.lead_began(0, Some(5));
        assert_eq!(pulse.sight(25_000, 0, None, 3).takeovers, 1);
        let late = pulse.sight(25_000, 25_000, Some(24_000), 3);
        assert!(is_late(POLICY, &late));
        pulse.note(POLICY, 25_000, &late);
        // Two are forgotten for good; what is late begins the calm anew.
        assert_eq!(pulse.sight(25_000, 0, None, 3).takeovers, 1);
        pulse.note(POLICY, 34_000, &late);
        assert_eq!(pulse.sight(34_000, 0, None, 3).takeovers, 1);
        assert_eq!(pulse.sight(44_000, 0, None, 3).takeovers, 0);
    }

    /// Ten leaders die half a minute apart; the tenth is waited for as long as the first.
    #[test]
    fn deaths_with_calm_between_them_do_not_add_up() {
        let mut pulse = Pulse::new(0);
        let mut takeovers = 0;
        for death in 1..=10_u64 {
            let at_ms = death * 30_000;
            let late = pulse.sight(at_ms, 0, Some(-1_000), takeovers);
            assert!(is_late(POLICY, &late));
            pulse.note(POLICY, at_ms, &late);
            let seen = pulse.sight(at_ms, 0, Some(-1_000), takeovers).takeovers;
            assert_eq!(patience_ms(POLICY, seen, Some(0)), 1_000, "death {death}");
            takeovers = seen + 1;
            pulse.lead_began(at_ms, Some(5));
        }
    }

    #[test]
    fn lateness_is_that_of_the_lead_and_of_the_last_minute() {
        let late = |pulse: &Pulse, at_ms| pulse.sight(at_ms, 0, None, 0).lateness_ms;
        let mut pulse = Pulse::new(0);
        assert_eq!(late(&pulse, 10), None);
        pulse.lead_began(1_000, Some(30));
        pulse.decided(2_000, Some(700));
        pulse.decided(3_000, Some(10));
        pulse.decided(4_000, None);
        assert_eq!(late(&pulse, 5_000), Some(700), "a slow store is remembered");
        assert_eq!(late(&pulse, 62_001), Some(10));
        assert_eq!(
            late(&pulse, 900_000),
            Some(10),
            "the newest one always counts"
        );
        pulse.lead_began(900_000, None);
        assert_eq!(late(&pulse, 900_001), None, "another leader, another clock");
    }

    /// A standby whose clock is ahead of the leader's by any skew that is allowed never deposes a
    /// leader that decides every instant at once by its own clock.
    #[test]
    fn skew_alone_deposes_nobody() {
        for ahead_ms in [-2_000, -900, 0, 900, 1_500, 1_990] {
            let mut pulse = Pulse::new(0);
            // Seen by a listing: nothing is known of its clock.
            pulse.lead_began(0, None);
            let mut oldest_ms = 10_000;
            for at_ms in (0..120_000_u64).step_by(5) {
                let leader_ms = i64::try_from(at_ms).unwrap();
                let now_ms = leader_ms + ahead_ms;
                if leader_ms == oldest_ms + 10 {
                    pulse.decided(at_ms, Some(now_ms - oldest_ms));
                    oldest_ms += 5_000;
                }
                let sight = pulse.sight(at_ms, now_ms, Some(oldest_ms), 0);
                assert_ne!(
                    judge(POLICY, &sight),
                    Judgement::Overdue,
                    "{ahead_ms} {at_ms}"
                );
            }
        }
    }
}
