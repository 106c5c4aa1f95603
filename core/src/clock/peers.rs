//! What the other nodes' clocks say of ours: pure, from exchanges to a verdict.
//!
//! An exchange is the four readings of NTP. We write at `T1` by our monotonic clock; the peer reads
//! that at `T2` and writes at `T3` by its wall clock; we read that at `T4`. The peer's clock showed
//! `T3` at the latest at our `T4`, and `T2` at the earliest at our `T1`. Nothing is assumed of delays,
//! nor of the age of a record: late delivery makes the two bounds looser, never wrong. That a reading
//! is counted on our *monotonic* clock keeps it true when our wall clock steps.

/// Clocks run by at most so much of a thousand faster or slower than true: bounds of an exchange are
/// widened by it as they age.
const RATE_ERROR_PERMILLE: i64 = 10;
/// What is older says nothing any more: a peer writes every minute.
const MAX_AGE_MS: u64 = 150_000;

/// What one exchange told of a peer's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerClock {
    /// At this monotonic time of ours it showed at least this.
    pub least: (u64, i64),
    /// At this monotonic time of ours it showed at most this; `None` when the peer has not answered
    /// us yet.
    pub most: Option<(u64, i64)>,
    /// For so long by its own clock the peer held our record before it wrote.
    pub hold_ms: u64,
}

/// What one peer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opinion {
    /// Nothing yet, or nothing any more.
    None,
    Agrees,
    Differs,
}

impl PeerClock {
    /// Between which readings it is at `mono_ms`.
    fn between(&self, mono_ms: u64) -> (i64, Option<i64>) {
        let since = |at: u64| i64::try_from(mono_ms.saturating_sub(at)).unwrap_or(i64::MAX / 4);
        let slack = |ms: i64| ms / 1_000 * RATE_ERROR_PERMILLE + RATE_ERROR_PERMILLE;
        let aged = since(self.least.0);
        let least = self
            .least
            .1
            .saturating_add(aged)
            .saturating_sub(slack(aged));
        let hold_ms = i64::try_from(self.hold_ms).unwrap_or(i64::MAX / 4);
        let most = self.most.map(|(at, wall)| {
            let aged = since(at);
            let slack = slack(aged).saturating_add(slack(hold_ms));
            wall.saturating_add(aged).saturating_add(slack)
        });
        (least, most)
    }

    fn opinion(&self, wall_ms: i64, mono_ms: u64, max_skew_ms: i64) -> Opinion {
        if mono_ms.saturating_sub(self.least.0) > MAX_AGE_MS {
            return Opinion::None;
        }
        let (least, most) = self.between(mono_ms);
        if least.saturating_sub(wall_ms) > max_skew_ms {
            return Opinion::Differs;
        }
        match most {
            None => Opinion::None,
            Some(most) if most.saturating_sub(wall_ms) < -max_skew_ms => Opinion::Differs,
            // Perhaps it differs by a little more: shown is nothing.
            Some(_) => Opinion::Agrees,
        }
    }

    /// The middle of what it may show.
    fn middle(&self, mono_ms: u64) -> Option<i64> {
        let (least, most) = self.between(mono_ms);
        let half = most?.saturating_sub(least) / 2;
        Some(least.saturating_add(half))
    }
}

/// What the peers say of a reading of our wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Peers whose clocks may be within the skew that is allowed.
    pub agreeing: usize,
    /// Peers whose clocks are surely not.
    pub differing: usize,
    /// How far ours is ahead of the middle one of theirs.
    pub ahead_ms: Option<i64>,
}

impl Tally {
    /// Asks the peers.
    #[must_use]
    pub fn of(peers: &[PeerClock], wall_ms: i64, mono_ms: u64, max_skew_ms: i64) -> Self {
        let opinion = |peer: &PeerClock| peer.opinion(wall_ms, mono_ms, max_skew_ms);
        let count = |wanted| peers.iter().filter(|p| opinion(p) == wanted).count();
        Self {
            agreeing: count(Opinion::Agrees),
            differing: count(Opinion::Differs),
            ahead_ms: middle(peers, mono_ms).map(|theirs| wall_ms.saturating_sub(theirs)),
        }
    }

    /// Whether those that differ are more than those that agree and ourselves: then it is our clock
    /// that is wrong. Alone or in a tie it is not.
    #[must_use]
    pub fn is_against(&self) -> bool {
        self.differing > self.agreeing + 1
    }

    /// Whether some agree, and they and ourselves are more than those that differ.
    #[must_use]
    pub fn is_for(&self) -> bool {
        self.agreeing > 0 && self.agreeing + 1 > self.differing
    }

    /// Whether the peers that were heard are so many.
    #[must_use]
    pub fn heard(&self) -> usize {
        self.agreeing + self.differing
    }
}

/// What the peers' clocks show at `mono_ms`: the middle one, when there are two or more the lower of
/// the two middle ones; `None` when nobody has answered.
#[must_use]
pub fn middle(peers: &[PeerClock], mono_ms: u64) -> Option<i64> {
    let mut all: Vec<i64> = peers
        .iter()
        .filter(|peer| mono_ms.saturating_sub(peer.least.0) <= MAX_AGE_MS)
        .filter_map(|peer| peer.middle(mono_ms))
        .collect();
    all.sort_unstable();
    let index = all.len().checked_sub(1)? / 2;
    all.get(index).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer whose clock is `offset` ahead of ours (ours shows `1_000_000 + mono`), and what is seen
    /// of it when the messages take so long.
    fn peer(offset: i64, there_ms: u64, held_ms: u64, back_ms: u64) -> PeerClock {
        let wall = |mono: u64| 1_000_000 + mono.cast_signed() + offset;
        let t1 = 50_000;
        let (t2, t3) = (t1 + there_ms, t1 + there_ms + held_ms);
        PeerClock {
            least: (t3 + back_ms, wall(t3)),
            most: Some((t1, wall(t2))),
            hold_ms: held_ms,
        }
    }

    fn tally(peers: &[PeerClock]) -> Tally {
        Tally::of(peers, 1_060_000, 60_000, 2_000)
    }

    #[test]
    fn an_exchange_bounds_the_offset_whatever_the_delays() {
        for offset in [-86_400_000, -5_000, -1_000, 0, 700, 3_000, 31_536_000_000] {
            for (there, held, back) in [(0, 0, 0), (5, 2, 3), (3_000, 0, 1), (1, 6_000, 2_000)] {
                let (least, most) = peer(offset, there, held, back).between(60_000);
                let true_reading = 1_060_000 + offset;
                assert!(least <= true_reading, "{offset} {there} {held} {back}");
                assert!(most.unwrap() >= true_reading);
                let slack = 200 + 20 * 10;
                let width = (there + back).cast_signed() + slack;
                assert!(
                    most.unwrap() - least <= width,
                    "{offset} {there} {held} {back}"
                );
            }
        }
    }

    /// Offsets of the peers that were heard, whether the verdict is against us, whether for us.
    #[test]
    fn verdicts() {
        let day = 86_400_000;
        let table: &[(&[i64], bool, bool)] = &[
            // Alone, and a tie of two: we go on.
            (&[], false, false),
            (&[day], false, false),
            (&[0], false, true),
            (&[1_900], false, true),
            // Two against one.
            (&[day, day], true, false),
            (&[-day, -day], true, false),
            (&[3_000, 3_000], true, false),
            // Three clocks, three times: nobody has a majority.
            (&[day, -day], true, false),
            // The other one is wrong.
            (&[day, 0], false, true),
            // Four: two and two is a tie.
            (&[day, day, 0], false, false),
            (&[day, day, day], true, false),
            (&[day, 0, 0], false, true),
            // Five.
            (&[day, day, day, 0], true, false),
            (&[day, day, 0, 0], false, true),
        ];
        for (offsets, against, agreed) in table {
            let peers: Vec<PeerClock> = offsets.iter().map(|o| peer(*o, 2, 1, 2)).collect();
            let tally = tally(&peers);
            assert_eq!(tally.heard(), offsets.len(), "{offsets:?}");
            assert_eq!(tally.is_against(), *against, "{offsets:?}");
            assert_eq!(tally.is_for(), *agreed, "{offsets:?}");
        }
    }

    #[test]
    fn one_who_has_not_answered_speaks_only_when_it_is_surely_ahead() {
        let mut silent = peer(0, 2, 1, 2);
        silent.most = None;
        assert_eq!(tally(&[silent]).heard(), 0);
        let mut ahead = peer(60_000, 2, 1, 2);
        ahead.most = None;
        assert_eq!(tally(&[ahead]).differing, 1);
    }

    #[test]
    fn slow_messages_prove_little_and_old_ones_nothing() {
        // Three seconds ahead, but it may as well be the message that took three seconds.
        assert_eq!(tally(&[peer(-3_000, 2_000, 0, 0)]).agreeing, 1);
        assert_eq!(tally(&[peer(-3_000, 100, 0, 0)]).differing, 1);
        let old = [peer(86_400_000, 2, 1, 2)];
        let later = 50_000 + MAX_AGE_MS + 1_000;
        let wall = 1_000_000 + later.cast_signed();
        assert_eq!(Tally::of(&old, wall, later, 2_000).heard(), 0);
        assert_eq!(middle(&old, later), None);
    }

    #[test]
    fn a_minute_of_drift_is_not_taken_for_a_wrong_clock() {
        // 0.4 % too fast or too slow, and 1.8 s off besides.
        for (offset, drift) in [(1_800, 240), (-1_800, -240)] {
            let heard = [peer(offset, 2, 1, 2)];
            let wall = 1_110_000 - drift;
            assert_eq!(Tally::of(&heard, wall, 110_000, 2_000).agreeing, 1);
        }
    }

    #[test]
    fn the_middle_of_the_peers_is_what_one_wrong_clock_cannot_move() {
        let day = 86_400_000;
        let heard = [peer(100, 0, 0, 0), peer(day, 0, 0, 0), peer(-50, 0, 0, 0)];
        let middle = middle(&heard, 60_000).unwrap();
        assert!((middle - 1_060_100).abs() <= 120, "{middle}");
        assert!((tally(&heard).ahead_ms.unwrap() + 100).abs() <= 120);
    }
}
