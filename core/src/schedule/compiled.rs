//! A compiled schedule: what [`ScheduleSpec`] means on the real time line.

use std::iter;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::calendar::Excluded;
use super::cron::Cron;
use super::error::ScheduleError;
use super::moment;
use super::spec::{Calendars, DstRules, Gap, ScheduleSpec};
use super::walk::{self, Hit};
use super::zone::Zone;
use crate::duration::Millis;

/// A schedule, ready to be asked: a pure function of instants. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Schedule(Arc<Inner>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Inner {
    timing: Timing,
    zone: Zone,
    dst: DstRules,
    rare: Option<Box<Rare>>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Timing {
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
struct Rare {
    /// Unix seconds, included.
    start: Option<i64>,
    end: Option<i64>,
    excluded: Excluded,
    jitter_ms: u64,
}

/// What kind of schedule it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleKind {
    /// Calendar times.
    Cron,
    /// A fixed period.
    Every,
    /// Once, at this instant (Unix milliseconds).
    At(i64),
    /// So long after the end of the last run: it has no instants of its own.
    AfterFinish(Millis),
    /// Never by itself.
    OnDemand,
}

/// One instant of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// Unix milliseconds, a whole second.
    pub at_ms: i64,
    /// Whether it fires.
    pub verdict: Verdict,
}

/// What the schedule itself says about one of its instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It fires.
    Fire,
    /// It is skipped, and the skip is recorded.
    Skip(ScheduleSkip),
}

/// Why a schedule skips one of its own instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleSkip {
    /// Its day is in `exclude`.
    Excluded,
    /// Its time does not exist on that day, and `dst.gap` is `skip`.
    DstGap,
}

/// After so many times in gaps without one fire a schedule is taken to fire no more: gaps come
/// twice a year at most, and repeat with the calendar after 400 years.
const MAX_GAPS: u32 = 1_000;

impl Schedule {
    /// Compiles what a job file says.
    ///
    /// `anchor_ms` is the creation of the job (Unix milliseconds): `every` counts from it, cut to
    /// the second, unless there is a `start`.
    ///
    /// # Errors
    /// Names the key at fault; for `cron` also the position. A schedule that never fires is
    /// accepted here, see [`Schedule::check`].
    pub fn compile(
        spec: &ScheduleSpec,
        anchor_ms: i64,
        calendars: &Calendars,
    ) -> Result<Self, ScheduleError> {
        let zone = match &spec.timezone {
            Some(name) => Zone::get(name)?,
            None => Zone::utc(),
        };
        let start = spec
            .start
            .as_ref()
            .map(|text| moment::parse("start", text, &zone, spec.dst))
            .transpose()?;
        let end = spec
            .end
            .as_ref()
            .map(|text| moment::parse("end", text, &zone, spec.dst))
            .transpose()?;
        if let (Some(start), Some(end)) = (start, end)
            && end < start
        {
            return Err(ScheduleError::new("end", "it is earlier than `start`")
                .hint("write an `end` after `start`, or leave one of them out"));
        }
        let rare = Rare {
            // An instant is a whole second: the first one at or after `start`, the last one at or
            // before `end`.
            start: start.map(|ms| -(-ms).div_euclid(1_000)),
            end: end.map(|ms| ms.div_euclid(1_000)),
            excluded: Excluded::compile(&spec.exclude, calendars)?,
            jitter_ms: spec.jitter.map_or(0, Millis::ms),
        };
        let anchor_ms = start.unwrap_or(anchor_ms);
        let timing = timing(spec, anchor_ms, &zone)?;
        Ok(Self(Arc::new(Inner {
            timing,
            zone,
            dst: spec.dst,
            rare: (rare != Rare::default()).then(|| Box::new(rare)),
        })))
    }

    /// Compiles a schedule for a new job: one that has no fire after `now_ms` is refused, such as
    /// 30 February or an `end` in the past. (`at` in the past is the caller's to judge: it fires
    /// at once unless it is older than the job's start deadline.)
    ///
    /// # Errors
    /// As [`Schedule::compile`], and when it would never fire.
    pub fn check(
        spec: &ScheduleSpec,
        now_ms: i64,
        calendars: &Calendars,
    ) -> Result<Self, ScheduleError> {
        let schedule = Self::compile(spec, now_ms, calendars)?;
        let (field, text) = match (&schedule.0.timing, &spec.cron, &spec.at) {
            (Timing::Cron(_), Some(text), _) => ("cron", text.as_str()),
            (Timing::Every(..), ..) => ("every", ""),
            (Timing::At(at), _, Some(text)) => {
                if schedule
                    .verdict_of_at(*at)
                    .is_none_or(|verdict| verdict != Verdict::Fire)
                {
                    return Err(ScheduleError::new(
                        "at",
                        "the schedule never fires: its instant is excluded, or outside `start` and `end`",
                    )
                    .at(0, text.chars().count()));
                }
                return Ok(schedule);
            }
            _ => return Ok(schedule),
        };
        if schedule.next_fire(now_ms).is_some() {
            return Ok(schedule);
        }
        let reason = match &schedule.0.timing {
            Timing::Cron(cron) => cron.never_reason(),
            _ => None,
        };
        let error = ScheduleError::new(
            field,
            match reason {
                Some(reason) => format!("the schedule never fires: {reason}"),
                None => "the schedule never fires again: nothing is left of its years, or between `start`, `end` and `exclude`".to_owned(),
            },
        )
        .hint("write a date that comes, or leave the schedule out to run the job on demand only");
        Err(if text.is_empty() {
            error
        } else {
            error.at(0, text.chars().count())
        })
    }

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
            Timing::Cron(ref cron) => walk::next(cron, &inner.zone, inner.dst, from)?,
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
            Timing::Cron(ref cron) => walk::previous(cron, &inner.zone, inner.dst, from)?,
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
        let mut after_ms = after_ms;
        let mut gaps = 0;
        loop {
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
                    after_ms = self.last_of_exclusion(occurrence.at_ms);
                }
            }
        }
    }

    /// An instant up to which everything is excluded, given one that is: a job may tick every
    /// second of an excluded year. It stays before the next change of the clock, so that local
    /// time runs evenly up to it.
    fn last_of_exclusion(&self, at_ms: i64) -> i64 {
        let at = at_ms / 1_000;
        let stretch = self.0.zone.stretch(at);
        let offset = i64::from(stretch.offset);
        let excluded = self.0.rare.as_deref().map(|rare| &rare.excluded);
        match excluded.and_then(|excluded| excluded.end_of(at + offset)) {
            Some(end) => (end - offset).min(stretch.end - 1).max(at) * 1_000,
            None => at_ms,
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
        match self.0.timing {
            Timing::AfterFinish(_) | Timing::OnDemand => false,
            Timing::Cron(_) | Timing::Every(..) | Timing::At(_) => self.next(i64::MIN).is_none(),
        }
    }

    /// How much later than its instant a run may start, in milliseconds, 0 to `jitter` inclusive.
    /// A hash of job and instant: the same on all nodes.
    #[must_use]
    pub fn jitter_ms(&self, job_id: &str, instant_ms: i64) -> u64 {
        let limit = self.0.rare.as_ref().map_or(0, |rare| rare.jitter_ms);
        if limit == 0 {
            return 0;
        }
        // FNV-1a over both, then a finalizer, since FNV alone leaves neighbouring instants close.
        let bytes = job_id.bytes().chain(instant_ms.to_le_bytes());
        let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^= hash >> 33;
        ((u128::from(hash) * (u128::from(limit) + 1)) >> 64) as u64
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

    fn verdict_of_at(&self, at_ms: i64) -> Option<Verdict> {
        self.next(at_ms - 1).map(|occurrence| occurrence.verdict)
    }

    fn judge(&self, hit: Hit) -> Occurrence {
        // A hit after a gap may stand for times of two days: excluded when both days are.
        let excluded = self.0.rare.as_deref().is_some_and(|rare| {
            rare.excluded.end_of(hit.first).is_some() && rare.excluded.end_of(hit.last).is_some()
        });
        let verdict = if excluded {
            Verdict::Skip(ScheduleSkip::Excluded)
        } else if hit.gap && self.0.dst.gap == Gap::Skip {
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

/// The one of `cron`, `every`, `after_finish` and `at` that is there.
fn timing(spec: &ScheduleSpec, anchor_ms: i64, zone: &Zone) -> Result<Timing, ScheduleError> {
    let given: Vec<&'static str> = [
        ("cron", spec.cron.is_some()),
        ("every", spec.every.is_some()),
        ("after_finish", spec.after_finish.is_some()),
        ("at", spec.at.is_some()),
    ]
    .into_iter()
    .filter_map(|(key, given)| given.then_some(key))
    .collect();
    if let [first, second, ..] = given[..] {
        return Err(ScheduleError::new(
            second,
            format!("`{first}` and `{second}` exclude each other"),
        )
        .hint("keep one of cron, every, after_finish and at, or make it two jobs"));
    }
    if let Some(text) = &spec.cron {
        let cron = Cron::parse_with(text, spec.dialect, Some((anchor_ms, zone)))?;
        return Ok(Timing::Cron(cron));
    }
    if let Some(period) = spec.every {
        if period.ms() < 1_000 || !period.ms().is_multiple_of(1_000) {
            return Err(ScheduleError::new(
                "every",
                format!("{period} is no whole number of seconds, 1 or more"),
            )
            .hint("write 1s, 90s, 6h or 7d"));
        }
        return Ok(Timing::Every(
            anchor_ms.div_euclid(1_000),
            period.ms_i64() / 1_000,
        ));
    }
    if let Some(pause) = spec.after_finish {
        if pause.ms() < 1_000 {
            return Err(ScheduleError::new(
                "after_finish",
                format!("{pause} is less than a second"),
            )
            .hint("write 1s or more"));
        }
        return Ok(Timing::AfterFinish(pause));
    }
    if let Some(text) = &spec.at {
        let at_ms = moment::parse("at", text, zone, spec.dst)?;
        // Up to the whole second: a run is never early.
        return Ok(Timing::At(-(-at_ms).div_euclid(1_000) * 1_000));
    }
    Ok(Timing::OnDemand)
}
