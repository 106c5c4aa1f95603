//! A compiled schedule: the instants of a [`ScheduleSpec`](super::ScheduleSpec) on the real time
//! line.

use std::iter;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::calendar::Excluded;
use super::cron::Cron;
use super::occurrence::{Occurrence, ScheduleKind, ScheduleSkip, Verdict};
use super::spec::{DstRules, Gap};
use super::walk::{self, Hit, WIDEST};
use super::zone::Zone;
use crate::duration::Millis;

/// A schedule, ready to be asked: a pure function of instants. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Schedule(pub(crate) Arc<Inner>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Inner {
    pub(crate) timing: Timing,
    pub(crate) zone: Zone,
    pub(crate) rare: Option<Box<Rare>>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timing {
    Cron(Cron),
    /// Unix seconds of the anchor, and the period in seconds.
    Every(i64, i64),
    /// Unix milliseconds, a whole second.
    At(i64),
    AfterFinish(Millis),
    OnDemand,
}

/// What few schedules have.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rare {
    /// Unix seconds, included.
    pub(crate) start: Option<i64>,
    pub(crate) end: Option<i64>,
    pub(crate) excluded: Excluded,
    pub(crate) jitter_ms: u64,
}

/// After so many times in gaps without one fire a schedule is taken to fire no more: gaps come
/// twice a year at most, and repeat with the calendar after 400 years.
const MAX_GAPS: u32 = 1_000;

impl Schedule {
    /// What kind of schedule it is.
    #[must_use]
    pub fn kind(&self) -> ScheduleKind {
        match self.0.timing {
            Timing::Cron(_) => ScheduleKind::Cron,
            Timing::Every(..) => ScheduleKind::Every,
            Timing::At(at_ms) => ScheduleKind::At(at_ms),
            Timing::AfterFinish(pause) => ScheduleKind::AfterFinish(pause),
            Timing::OnDemand => ScheduleKind::OnDemand,
        }
    }

    /// The zone that its dates and times are meant in.
    #[must_use]
    pub fn zone(&self) -> &Zone {
        &self.0.zone
    }

    /// No run before the first and after the second of these, in Unix milliseconds.
    #[must_use]
    pub fn bounds(&self) -> (Option<i64>, Option<i64>) {
        let rare = self.0.rare.as_deref();
        let ms = |seconds: i64| seconds.saturating_mul(1_000);
        (
            rare.and_then(|rare| rare.start).map(ms),
            rare.and_then(|rare| rare.end).map(ms),
        )
    }

    /// Its rules for changes of the clock.
    pub(crate) fn dst(&self) -> DstRules {
        match &self.0.timing {
            Timing::Cron(cron) => cron.dst,
            _ => DstRules::default(),
        }
    }

    /// The anchor of `every`, Unix seconds.
    pub(crate) fn anchor(&self) -> Option<i64> {
        match self.0.timing {
            Timing::Every(anchor, _) => Some(anchor),
            _ => None,
        }
    }

    /// Whether it has instants of its own: not on demand, not after the last run.
    #[must_use]
    pub fn is_on_the_time_line(&self) -> bool {
        !matches!(self.0.timing, Timing::AfterFinish(_) | Timing::OnDemand)
    }

    /// The first instant strictly after one (Unix milliseconds), skipped ones included; `None` is
    /// never. Depends on nothing but its arguments, in a bounded number of steps.
    #[must_use]
    pub fn next(&self, after_ms: i64) -> Option<Occurrence> {
        let inner = &*self.0;
        let rare = inner.rare.as_deref();
        let mut from = walk::second_after(after_ms);
        if let Some(start) = rare.and_then(|rare| rare.start) {
            from = from.max(start);
        }
        let hit = match inner.timing {
            Timing::Cron(ref cron) => walk::next(cron, &inner.zone, from)?,
            Timing::Every(anchor, period) => {
                // The first multiple of the period, at least one, that is not before `from`.
                let periods = -(anchor.saturating_sub(from).div_euclid(period));
                self.plain_hit(anchor + periods.max(1) * period)?
            }
            Timing::At(at_ms) if at_ms / 1_000 >= from => self.plain_hit(at_ms / 1_000)?,
            Timing::At(_) | Timing::AfterFinish(_) | Timing::OnDemand => return None,
        };
        if rare.is_some_and(|rare| rare.end.is_some_and(|end| hit.at > end)) {
            return None;
        }
        Some(self.judge(hit))
    }

    /// The last instant strictly before one; the mirror of [`Schedule::next`].
    #[must_use]
    pub fn previous(&self, before_ms: i64) -> Option<Occurrence> {
        let inner = &*self.0;
        let rare = inner.rare.as_deref();
        let mut from = walk::second_before(before_ms);
        if let Some(end) = rare.and_then(|rare| rare.end) {
            from = from.min(end);
        }
        let hit = match inner.timing {
            Timing::Cron(ref cron) => walk::previous(cron, &inner.zone, from)?,
            Timing::Every(anchor, period) => {
                let latest = from.min(super::civil::LAST_CIVIL);
                let periods = latest.saturating_sub(anchor).div_euclid(period);
                if periods < 1 {
                    return None;
                }
                self.plain_hit(anchor + periods * period)?
            }
            Timing::At(at_ms) if at_ms / 1_000 <= from => self.plain_hit(at_ms / 1_000)?,
            Timing::At(_) | Timing::AfterFinish(_) | Timing::OnDemand => return None,
        };
        if rare.is_some_and(|rare| rare.start.is_some_and(|start| hit.at < start)) {
            return None;
        }
        Some(self.judge(hit))
    }

    /// All instants strictly after one, in order, skipped ones included.
    pub fn after(&self, after_ms: i64) -> impl Iterator<Item = Occurrence> + use<> {
        let schedule = self.clone();
        iter::successors(schedule.next(after_ms), move |last| {
            schedule.next(last.at_ms)
        })
    }

    /// All instants strictly before one, backwards, skipped ones included.
    pub fn before(&self, before_ms: i64) -> impl Iterator<Item = Occurrence> + use<> {
        let schedule = self.clone();
        iter::successors(schedule.previous(before_ms), move |last| {
            schedule.previous(last.at_ms)
        })
    }

    /// The first instant strictly after one that fires (Unix milliseconds).
    #[must_use]
    pub fn next_fire(&self, after_ms: i64) -> Option<i64> {
        self.next_fire_counted(after_ms, &mut 0)
    }

    /// [`Schedule::next_fire`], with the instants that it looked at counted.
    fn next_fire_counted(&self, after_ms: i64, looked_at: &mut u32) -> Option<i64> {
        let mut after_ms = after_ms;
        let mut gaps = 0;
        loop {
            *looked_at += 1;
            let occurrence = self.next(after_ms)?;
            match occurrence.verdict {
                Verdict::Fire => return Some(occurrence.at_ms),
                Verdict::Skip(ScheduleSkip::DstGap) => {
                    gaps += 1;
                    if gaps > MAX_GAPS {
                        return None;
                    }
                    after_ms = occurrence.at_ms;
                }
                Verdict::Skip(ScheduleSkip::Excluded) => {
                    after_ms = self.last_of_exclusion(occurrence.at_ms / 1_000) * 1_000;
                }
            }
        }
    }

    /// An instant (Unix seconds) up to which everything is excluded, given one that is: a job may
    /// tick every second of an excluded year.
    fn last_of_exclusion(&self, at: i64) -> i64 {
        let stretch = self.0.zone.stretch(at);
        let offset = i64::from(stretch.offset);
        let excluded = self.0.rare.as_deref().map(|rare| &rare.excluded);
        let Some(end) = excluded.and_then(|excluded| excluded.end_of(at + offset)) else {
            return at;
        };
        let same_offset = (end - offset).min(stretch.end - 1);
        // A clock set back soon could show the days before the exclusion once more, and one that
        // is changed near its end shows that earlier or later: both stay two days away.
        let far = end - offset - WIDEST;
        if stretch.end - at > WIDEST {
            same_offset.max(far).max(at)
        } else {
            same_offset.max(at)
        }
    }

    /// The first fire strictly after an instant, in chrono's type.
    #[must_use]
    pub fn next_after(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        // A fraction of a millisecond does not matter: fires are whole seconds.
        self.next_fire(after.timestamp_millis())
            .and_then(DateTime::from_timestamp_millis)
    }

    /// Whether no instant is left at any time, past or future. False for schedules that are not
    /// on the time line: on demand, after the last run.
    #[must_use]
    pub fn never_fires(&self) -> bool {
        self.is_on_the_time_line() && self.next(i64::MIN).is_none()
    }

    /// An instant of `every` or `at`, which follow no civil time; inside the years that fire.
    fn plain_hit(&self, at: i64) -> Option<Hit> {
        let civil = at + i64::from(self.0.zone.offset(at));
        (super::civil::FIRST_CIVIL..=super::civil::LAST_CIVIL)
            .contains(&civil)
            .then_some(Hit {
                at,
                first: civil,
                last: civil,
                gap: false,
            })
    }

    pub(crate) fn verdict_of_at(&self, at_ms: i64) -> Option<Verdict> {
        self.next(at_ms - 1).map(|occurrence| occurrence.verdict)
    }

    fn judge(&self, hit: Hit) -> Occurrence {
        // A hit after a gap may stand for times of two days: excluded when both days are.
        let excluded = self.0.rare.as_deref().is_some_and(|rare| {
            rare.excluded.end_of(hit.first).is_some() && rare.excluded.end_of(hit.last).is_some()
        });
        let verdict = if excluded {
            Verdict::Skip(ScheduleSkip::Excluded)
        } else if hit.gap && self.dst().gap == Gap::Skip {
            Verdict::Skip(ScheduleSkip::DstGap)
        } else {
            Verdict::Fire
        };
        Occurrence {
            at_ms: hit.at * 1_000,
            verdict,
        }
    }
}

/// A million distinct schedules fit into 100 MB: 56 bytes, two reference counts and what an
/// allocator adds.
const _: () = assert!(size_of::<Inner>() <= 56);

#[cfg(test)]
mod tests {
    use super::super::spec::{Calendars, DstRules, Gap, Overlap, ScheduleSpec};
    use super::*;

    /// Found by fuzzing: five thousand excluded years were walked change by change.
    #[test]
    fn an_exclusion_of_any_length_is_passed_in_a_few_looks() {
        for zone in [
            "UTC",
            "America/New_York",
            "Asia/Tokyo",
            "Pacific/Apia",
            "Africa/Casablanca",
        ] {
            for text in ["* * * * * *", "30 2 * * *", "0 0 * * *"] {
                let spec = ScheduleSpec {
                    cron: Some(text.into()),
                    timezone: Some(zone.into()),
                    dst: DstRules {
                        gap: Gap::Skip,
                        overlap: Overlap::Twice,
                    },
                    exclude: vec!["2026-01-01..7013-02-01".into()],
                    ..ScheduleSpec::default()
                };
                let schedule = Schedule::compile(&spec, 0, &Calendars::default()).unwrap();
                let mut looked_at = 0;
                let fire = schedule.next_fire_counted(1_772_866_800_000, &mut looked_at);
                let first = schedule.zone().rfc3339(fire.unwrap() / 1_000);
                assert!(first.starts_with("7013-02-02T0"), "{text} {zone}: {first}");
                // Seconds of the last two days are looked at stretch by stretch, days one by one.
                assert!(looked_at <= 8, "{text} {zone}: {looked_at}");
            }
        }
    }
}
