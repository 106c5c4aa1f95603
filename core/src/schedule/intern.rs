//! One compiled schedule for all jobs whose schedules mean the same.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::compiled::Schedule;
use super::error::ScheduleError;
use super::spec::{Calendars, ScheduleSpec};

/// Hands out shared schedules. A million jobs usually have a few hundred distinct schedules, so
/// that a job costs one pointer.
///
/// Schedules are compared by meaning, not by text: `@daily` and `0 0 * * *` are one.
#[derive(Debug, Default)]
pub struct Interner {
    known: BTreeSet<Schedule>,
    /// Size at which schedules that nobody holds any more are dropped.
    sweep_at: usize,
}

/// Below this size nothing is swept.
const SMALL: usize = 1_024;

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
        Schedule::compile(spec, anchor_ms, calendars).map(|schedule| self.share(schedule))
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
