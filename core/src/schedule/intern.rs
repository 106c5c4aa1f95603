//! One compiled schedule for all jobs whose schedules mean the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use super::compiled::Schedule;
use super::error::ScheduleError;
use super::spec::{Calendars, ScheduleSpec};

/// Hands out shared schedules. A million jobs usually have a few hundred distinct schedules, so
/// that a job costs one pointer.
///
/// Schedules are compared by meaning, not by text: `@daily` and `0 0 * * *` are one. Texts are
/// remembered too, so that one which comes again is not read again.
#[derive(Debug, Default)]
pub struct Interner {
    known: BTreeSet<Schedule>,
    /// Size at which schedules that nobody holds any more are dropped.
    sweep_at: usize,
    /// Schedules by what their jobs say, the last [`TEXTS`] of them or fewer.
    texts: BTreeMap<Box<str>, Schedule>,
    /// Where a key is put together, kept for its memory.
    key: String,
}

/// Below this size nothing is swept.
const SMALL: usize = 1_024;

/// Most texts that are remembered. Jobs whose schedules are all different gain nothing from them.
const TEXTS: usize = 2_048;

impl Interner {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// [`Schedule::compile`], shared with every earlier schedule that means the same.
    ///
    /// # Errors
    /// As [`Schedule::compile`].
    pub fn compile(
        &mut self,
        spec: &ScheduleSpec,
        anchor_ms: i64,
        calendars: &Calendars,
    ) -> Result<Schedule, ScheduleError> {
        if !self.write_key(spec) {
            return Schedule::compile(spec, anchor_ms, calendars).map(|it| self.share(it));
        }
        if let Some(known) = self.texts.get(self.key.as_str()) {
            return Ok(known.clone());
        }
        let schedule = Schedule::compile(spec, anchor_ms, calendars).map(|it| self.share(it))?;
        if self.texts.len() >= TEXTS {
            self.texts.clear();
        }
        self.texts
            .insert(self.key.as_str().into(), schedule.clone());
        Ok(schedule)
    }

    /// Puts into `key` all that a schedule depends on; false when that is more than the commonest
    /// keys: the job's creation, calendars, bounds.
    fn write_key(&mut self, spec: &ScheduleSpec) -> bool {
        let ScheduleSpec {
            cron: Some(cron),
            every: None,
            after_finish: None,
            at: None,
            timezone,
            dialect,
            dst,
            start: None,
            end: None,
            exclude,
            jitter,
        } = spec
        else {
            return false;
        };
        self.key.clear();
        let zone = timezone.as_deref().unwrap_or_default();
        let numbers = [*dialect as u8, dst.gap as u8, dst.overlap as u8];
        // No zone and no expression holds the character between them.
        let written = write!(self.key, "{zone}\0{numbers:?}{jitter:?}\0{cron}");
        exclude.is_empty() && written.is_ok()
    }

    /// The one of its meaning that is already held, or else this one.
    pub fn share(&mut self, schedule: Schedule) -> Schedule {
        if let Some(known) = self.known.get(&schedule) {
            return known.clone();
        }
        if self.known.len() >= self.sweep_at.max(SMALL) {
            self.known.retain(|held| Arc::strong_count(&held.0) > 1);
            self.sweep_at = self.known.len() * 2;
        }
        self.known.insert(schedule.clone());
        schedule
    }

    /// How many distinct schedules it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daily_at(minute: usize) -> Schedule {
        let spec = ScheduleSpec {
            cron: Some(format!("{} {} * * *", minute % 60, minute / 60)),
            ..ScheduleSpec::default()
        };
        Schedule::compile(&spec, 0, &Calendars::default()).unwrap()
    }

    #[test]
    fn shares_what_means_the_same() {
        let mut interner = Interner::new();
        let (first, same, other) = (daily_at(0), daily_at(0), daily_at(1));
        let first = interner.share(first);
        assert!(Arc::ptr_eq(&first.0, &interner.share(same).0));
        assert!(!Arc::ptr_eq(&first.0, &interner.share(other).0));
        assert_eq!(interner.len(), 2);
    }

    #[test]
    fn tells_texts_apart_by_all_that_they_say() {
        use super::super::spec::{Dialect, DstRules, Gap, Overlap};
        let base = ScheduleSpec {
            cron: Some("0 0 2 ? * MON".into()),
            ..ScheduleSpec::default()
        };
        let specs = [
            base.clone(),
            ScheduleSpec {
                timezone: Some("Europe/Berlin".into()),
                ..base.clone()
            },
            ScheduleSpec {
                dst: DstRules {
                    gap: Gap::Skip,
                    overlap: Overlap::Once,
                },
                ..base.clone()
            },
            ScheduleSpec {
                dst: DstRules {
                    gap: Gap::Fire,
                    overlap: Overlap::Twice,
                },
                ..base.clone()
            },
            ScheduleSpec {
                jitter: Some("1s".parse().unwrap()),
                ..base.clone()
            },
            ScheduleSpec {
                exclude: vec!["2026-01-01".into()],
                ..base.clone()
            },
            ScheduleSpec {
                start: Some("2026-01-01T00:00:00Z".into()),
                ..base.clone()
            },
        ];
        let mut interner = Interner::new();
        for round in 0..2 {
            for spec in &specs {
                let shared = interner.compile(spec, 0, &Calendars::default()).unwrap();
                let alone = Schedule::compile(spec, 0, &Calendars::default()).unwrap();
                assert_eq!(shared, alone, "round {round}");
            }
            assert_eq!(interner.len(), specs.len());
        }
        // A dialect that refuses the text, and two keys that exclude each other, still do.
        for spec in [
            ScheduleSpec {
                dialect: Dialect::Unix,
                ..base.clone()
            },
            ScheduleSpec {
                every: Some("1h".parse().unwrap()),
                ..base
            },
        ] {
            assert!(interner.compile(&spec, 0, &Calendars::default()).is_err());
        }
    }

    #[test]
    fn remembers_a_bounded_number_of_texts() {
        let mut interner = Interner::new();
        for second in 0..3 * TEXTS {
            let spec = ScheduleSpec {
                cron: Some(format!(
                    "{} {} {} * * *",
                    second % 60,
                    second / 60 % 60,
                    second / 3_600
                )),
                ..ScheduleSpec::default()
            };
            interner.compile(&spec, 0, &Calendars::default()).unwrap();
            assert!(interner.texts.len() <= TEXTS);
        }
        // Those that only a forgotten text held are forgotten too.
        assert!(interner.len() <= 2 * TEXTS + SMALL, "{}", interner.len());
    }

    #[test]
    fn forgets_what_nobody_holds() {
        let mut interner = Interner::new();
        let held: Vec<_> = (0..10).map(|n| interner.share(daily_at(n))).collect();
        for round in 0..20 {
            for minute in 0..1_440 {
                let _ = interner.share(daily_at(minute));
            }
            assert!(interner.len() <= 1_440, "round {round}: {}", interner.len());
        }
        for (n, schedule) in held.iter().enumerate() {
            assert!(Arc::ptr_eq(&schedule.0, &interner.share(daily_at(n)).0));
        }
        let _ = interner.share(daily_at(1_439));
        assert!(interner.len() > 10);
    }
}
