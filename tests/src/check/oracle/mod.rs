//! When a job should fire, by brute force: every second is looked at. Shares no code with the
//! product's `schedule`; of the zone database it asks one question only, the offset of an instant.

mod cron;

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use punctual::job::spec::JobSpec;
use punctual::schedule::{Gap, Overlap, ScheduleSpec};

use cron::{Cron, civil_date};

/// Whether an instant fires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does.
    Fire,
    /// Its date is excluded.
    Excluded,
    /// Its local time does not exist, and the job leaves such times out.
    DstGap,
}

/// An instant of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// Unix milliseconds.
    pub at_ms: i64,
    /// Whether it fires.
    pub verdict: Verdict,
}

/// The longest gap whose times are caught up, in seconds.
const MAX_GAP: i64 = 3 * 3_600;
/// No clock is set back twice in so many seconds.
const ONE_CHANGE: i64 = 4 * 3_600;

/// Every instant of the schedule in `from_ms <= instant < until_ms`, in Unix milliseconds; `None`
/// for a schedule that this oracle cannot read (it reads what the simulation makes: fields of
/// numbers, names, lists, ranges and steps, in both dialects).
#[must_use]
pub fn instants(spec: &JobSpec, created_ms: i64, from_ms: i64, until_ms: i64) -> Option<Vec<i64>> {
    let found = occurrences(spec, created_ms, from_ms, until_ms)?;
    Some(found.into_iter().map(|found| found.at_ms).collect())
}

/// As [`instants`], with what becomes of each by the schedule itself.
#[must_use]
pub fn occurrences(
    spec: &JobSpec,
    created_ms: i64,
    from_ms: i64,
    until_ms: i64,
) -> Option<Vec<Occurrence>> {
    if !spec.enabled {
        return Some(vec![]);
    }
    let schedule = &spec.schedule;
    let Some(rule) = Rule::read(schedule, created_ms)? else {
        return Some(vec![]);
    };
    let zone = zone(schedule.timezone.as_deref())?;
    let excluded = schedule
        .exclude
        .iter()
        .map(|text| days(text))
        .collect::<Option<Vec<_>>>()?;
    let is_excluded = |civil: i64| {
        let day = civil.div_euclid(86_400);
        excluded.iter().any(|(from, to)| *from <= day && day <= *to)
    };
    let first = from_ms.div_euclid(1_000) + i64::from(from_ms.rem_euclid(1_000) != 0);
    let all = (first..).take_while(|second| second * 1_000 < until_ms);
    let hits = all.filter_map(|second| Some((second, rule.hit(schedule, &zone, second)?)));
    let judged = hits.map(|(second, hit)| Occurrence {
        at_ms: second * 1_000,
        verdict: if is_excluded(hit.first) && is_excluded(hit.last) {
            Verdict::Excluded
        } else if hit.gap && schedule.dst.gap == Gap::Skip {
            Verdict::DstGap
        } else {
            Verdict::Fire
        },
    });
    Some(judged.collect())
}

enum Rule {
    Cron(Cron),
    /// Anchor and period in seconds.
    Every(i64, i64),
    At(i64),
}

/// The local times that a second stands for.
struct Hit {
    first: i64,
    last: i64,
    gap: bool,
}

impl Rule {
    /// `Some(None)`: a job without a schedule.
    fn read(schedule: &ScheduleSpec, created_ms: i64) -> Option<Option<Self>> {
        Some(Some(if let Some(text) = &schedule.cron {
            Self::Cron(Cron::read(text, schedule.dialect)?)
        } else if let Some(every) = &schedule.every {
            Self::Every(created_ms.div_euclid(1_000), every.ms_i64() / 1_000)
        } else if let Some(at) = &schedule.at {
            Self::At(rfc3339(at)?)
        } else {
            return Some(None);
        }))
    }

    fn hit(&self, schedule: &ScheduleSpec, zone: &Offsets, second: i64) -> Option<Hit> {
        let offset = zone.at(second);
        let civil = second + offset;
        let plain = |is: bool| {
            is.then_some(Hit {
                first: civil,
                last: civil,
                gap: false,
            })
        };
        match self {
            Self::Every(anchor, period) => {
                plain(second > *anchor && (second - anchor) % period == 0)
            }
            Self::At(at) => plain(second == *at),
            Self::Cron(cron) if cron.is_interval => plain(cron.matches(civil)),
            Self::Cron(cron) => {
                let twice = schedule.dst.overlap == Overlap::Twice;
                let direct = cron.matches(civil) && (twice || !zone.is_second_pass(second, offset));
                let before = zone.at(second - 1);
                let gap = offset - before;
                if gap <= 0 || gap > MAX_GAP {
                    return plain(direct);
                }
                let lost: Vec<i64> = (second + before..civil)
                    .filter(|civil| cron.matches(*civil))
                    .collect();
                let Some(first) = lost.first() else {
                    return plain(direct);
                };
                let last = if direct { Some(&civil) } else { lost.last() };
                Some(Hit {
                    first: *first,
                    last: *last?,
                    gap: !direct,
                })
            }
        }
    }
}

/// What a zone's clock shows, second by second. `None`: UTC.
struct Offsets(Option<TimeZone>);

fn zone(name: Option<&str>) -> Option<Offsets> {
    let zone = |name| TimeZoneDatabase::bundled().get(name).ok();
    Some(Offsets(match name {
        None | Some("UTC") => None,
        Some(name) => Some(zone(name)?),
    }))
}

impl Offsets {
    fn at(&self, second: i64) -> i64 {
        let offset = |zone: &TimeZone| {
            let at = Timestamp::from_second(second).expect("an instant of these centuries");
            i64::from(zone.to_offset(at).seconds())
        };
        self.0.as_ref().map_or(0, offset)
    }

    /// Whether the clock has shown the same before it was set back.
    fn is_second_pass(&self, second: i64, offset: i64) -> bool {
        let earlier = self.at(second - ONE_CHANGE);
        earlier > offset && self.at(second - (earlier - offset)) == earlier
    }
}

/// `2026-03-01` or `2026-03-01..2026-03-04` as days since 1970-01-01.
fn days(text: &str) -> Option<(i64, i64)> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    Some((date(from)?, date(to)?))
}

fn date(text: &str) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (year, month, date) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let mut day = (year - 1970) * 365;
    // Leap years until then: enough of the calendar for dates near the simulation's.
    day += i64::try_from((1972..year).step_by(4).count()).ok()?;
    (day..day + 366).find(|day| civil_date(*day) == (year, month, date))
}

/// `2026-03-01T00:00:00.000Z` as Unix seconds.
pub(crate) fn rfc3339(text: &str) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    Some(date(text)? * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests;
