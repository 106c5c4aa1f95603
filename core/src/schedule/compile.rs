//! From the text of a job file to a [`Schedule`], and the refusal of schedules that never fire.

use std::sync::Arc;

use super::calendar::Excluded;
use super::compiled::{Inner, Rare, Schedule, Timing};
use super::cron::Cron;
use super::error::ScheduleError;
use super::moment;
use super::occurrence::Verdict;
use super::spec::{Calendars, ScheduleSpec};
use super::zone::Zone;
use crate::duration::Millis;

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
        return Ok(Timing::Cron(cron.with_dst(spec.dst)));
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
