//! From civil times to instants: the rules for changes of the clock.
//!
//! Real time is a row of [stretches](super::zone::Stretch) of constant offset. Inside one, an
//! expression fires where the civil time matches. At the border of two:
//!
//! - the clock goes *forward*: the civil times between do not exist. An interval has nothing
//!   there; a fixed time that falls there fires at the border itself, once for all of them,
//!   unless the gap is longer than [`MAX_GAP`] (a zone that crossed the date line);
//! - the clock goes *back*: the stretch begins with civil times that the one before has had. An
//!   interval fires in both; a fixed time in the first only, unless the rules say `twice`.
//!
//! Day fields are always tested on the civil time, so that a day whose midnight does not exist is
//! still that day.

use super::civil::{DAY, FIRST_CIVIL, LAST_CIVIL};
use super::cron::Cron;
use super::search::Steps;
use super::spec::Overlap;
use super::zone::{Stretch, Zone};

/// The longest gap whose fixed times are caught up, in seconds.
pub(crate) const MAX_GAP: i64 = 3 * 3_600;

/// No two offsets of any zone are further apart: UTC-15:56 to UTC+15:13, with room to spare.
pub(crate) const WIDEST: i64 = 2 * DAY;

/// An instant at which an expression fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Unix seconds.
    pub(crate) at: i64,
    /// The first civil time that it stands for.
    pub(crate) first: i64,
    /// The last civil time that it stands for.
    pub(crate) last: i64,
    /// All of them fell into a gap.
    pub(crate) gap: bool,
}

/// The first whole second strictly after an instant in milliseconds.
pub(crate) fn second_after(ms: i64) -> i64 {
    ms.div_euclid(1_000) + 1
}

/// The last whole second strictly before an instant in milliseconds.
pub(crate) fn second_before(ms: i64) -> i64 {
    ms.saturating_sub(1).div_euclid(1_000)
}

/// The first hit at `from` (Unix seconds) or later.
pub(crate) fn next(cron: &Cron, zone: &Zone, from: i64) -> Option<Hit> {
    next_counted(cron, zone, from, &mut Steps::default())
}

/// The last hit at `from` (Unix seconds) or earlier.
pub(crate) fn previous(cron: &Cron, zone: &Zone, from: i64) -> Option<Hit> {
    previous_counted(cron, zone, from, &mut Steps::default())
}

/// [`next`], with its work counted.
pub(crate) fn next_counted(cron: &Cron, zone: &Zone, from: i64, steps: &mut Steps) -> Option<Hit> {
    if cron.never_fires() || from > LAST_CIVIL + DAY {
        return None;
    }
    let mut at = from.max(FIRST_CIVIL - WIDEST);
    if let Some(offset) = zone.fixed() {
        steps.stretches += 1;
        let offset = i64::from(offset);
        let civil = cron.next_civil(at + offset, steps)?;
        return Some(Hit::direct(civil - offset, civil));
    }
    while steps.stretches < Steps::MAX_STRETCHES {
        steps.stretches += 1;
        let stretch = Edges::of(zone.stretch(at));
        if at == stretch.start
            && let Some(hit) = stretch.border(cron, steps)
        {
            return Some(hit);
        }
        let civil = (at + stretch.offset).max(stretch.first_pass(cron));
        let found = cron.next_civil(civil, steps).unwrap_or(i64::MAX);
        if stretch.end == i64::MAX {
            return (found != i64::MAX).then(|| Hit::direct(found - stretch.offset, found));
        }
        if found < stretch.end + stretch.offset {
            return Some(Hit::direct(found - stretch.offset, found));
        }
        // Nothing matches from `civil` to `found`: stretches in between need no look. A clock
        // set back soon could show times before `civil` once more, so that only far ends count.
        if stretch.end - at < WIDEST || found.saturating_sub(civil) < 2 * WIDEST {
            at = stretch.end;
        } else if found == i64::MAX {
            return None;
        } else {
            at = stretch.end.max(found - stretch.offset - WIDEST);
        }
    }
    None
}

/// [`previous`], with its work counted.
pub(crate) fn previous_counted(
    cron: &Cron,
    zone: &Zone,
    from: i64,
    steps: &mut Steps,
) -> Option<Hit> {
    if cron.never_fires() || from < FIRST_CIVIL - DAY {
        return None;
    }
    let mut at = from.min(LAST_CIVIL + WIDEST);
    if let Some(offset) = zone.fixed() {
        steps.stretches += 1;
        let offset = i64::from(offset);
        let civil = cron.previous_civil(at + offset, steps)?;
        return Some(Hit::direct(civil - offset, civil));
    }
    while steps.stretches < Steps::MAX_STRETCHES {
        steps.stretches += 1;
        let stretch = Edges::of(zone.stretch(at));
        let civil = at + stretch.offset;
        let found = cron.previous_civil(civil, steps).unwrap_or(i64::MIN);
        if stretch.start == i64::MIN {
            return (found != i64::MIN).then(|| Hit::direct(found - stretch.offset, found));
        }
        let first_civil = stretch.start + stretch.offset;
        if found > first_civil && found >= stretch.first_pass(cron) {
            return Some(Hit::direct(found - stretch.offset, found));
        }
        if let Some(hit) = stretch.border(cron, steps) {
            return Some(hit);
        }
        if found == first_civil && found >= stretch.first_pass(cron) {
            return Some(Hit::direct(stretch.start, found));
        }
        // The mirror of the jump in `next_counted`.
        if at - stretch.start < WIDEST || civil.saturating_sub(found) < 2 * WIDEST {
            at = stretch.start - 1;
        } else if found == i64::MIN {
            return None;
        } else {
            at = (stretch.start - 1).min(found - stretch.offset + WIDEST);
        }
    }
    None
}

impl Hit {
    fn direct(at: i64, civil: i64) -> Self {
        Self {
            at,
            first: civil,
            last: civil,
            gap: false,
        }
    }
}

/// A stretch in the numbers that the walk needs.
struct Edges {
    start: i64,
    end: i64,
    offset: i64,
    before: i64,
}

impl Edges {
    fn of(stretch: Stretch) -> Self {
        Self {
            start: stretch.start,
            end: stretch.end,
            offset: i64::from(stretch.offset),
            before: i64::from(stretch.before),
        }
    }

    /// The civil time from which on a hit in this stretch counts: for fixed times that fire once,
    /// the times that the stretch before has had do not.
    fn first_pass(&self, cron: &Cron) -> i64 {
        if self.start == i64::MIN
            || self.before <= self.offset
            || cron.is_interval()
            || cron.dst.overlap == Overlap::Twice
        {
            return i64::MIN;
        }
        self.start + self.before
    }

    /// What the fixed times in the gap before this stretch come to: one hit at its first second.
    fn border(&self, cron: &Cron, steps: &mut Steps) -> Option<Hit> {
        let gap = self.offset - self.before;
        if self.start == i64::MIN || gap <= 0 || gap > MAX_GAP || cron.is_interval() {
            return None;
        }
        let after = self.start + self.offset;
        let first = cron.next_civil(self.start + self.before, steps)?;
        if first >= after {
            return None;
        }
        // A time that exists at the border itself is not lost in the gap.
        let last = cron.previous_civil(after, steps).unwrap_or(first);
        Some(Hit {
            at: self.start,
            first,
            last,
            gap: last < after,
        })
    }
}
