//! The next and the previous civil second that an expression matches, on a clock without zone.
//!
//! Nothing here walks seconds or days: a time of day is found by a few shifts, a day by one set of
//! bits a month. The calendar repeats after 400 years and an expression that matches no day of it
//! is known beforehand, so that a search looks at [`Steps::MAX_MONTHS`] months at most.

use super::ast::YEAR_MIN;
use super::civil::{
    DAY, FIRST_CIVIL, FIRST_YEAR, LAST_CIVIL, LAST_YEAR, civil_from_days, days_from_civil,
};
use super::cron::Cron;

/// Counts the work of a query: what bounds its time, whatever the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// Months whose days were computed.
    pub months: u32,
    /// Stretches of time between two changes of the clock that were looked at.
    pub stretches: u32,
}

impl Steps {
    /// The most months that one search of a civil time looks at: 400 years, and the two that it
    /// begins and ends in.
    pub const MAX_MONTHS: u32 = 402 * 12;
    /// After so many stretches a query gives up and answers "never". Only an interval whose every
    /// time falls into a gap (02:00 of the second Sunday of March in New York) comes near it: two
    /// or three stretches a year, for more than the 400 years after which calendar and rules
    /// repeat.
    pub const MAX_STRETCHES: u32 = 2_048;
}

impl Cron {
    /// The first civil second that matches, `from` itself included.
    pub(crate) fn next_civil(&self, from: i64, steps: &mut Steps) -> Option<i64> {
        if self.never_fires() || from > LAST_CIVIL {
            return None;
        }
        let from = from.max(FIRST_CIVIL);
        let (days, second) = (from.div_euclid(DAY), from.rem_euclid(DAY) as u32);
        let (year, month, day) = civil_from_days(days);
        if self.has_month(year, month) {
            steps.months += 1;
            let matching = self.days_of(year, month);
            if matching >> day & 1 == 1
                && let Some(time) = self.time_from(second)
            {
                return Some(days * DAY + i64::from(time));
            }
            let later = matching & (u32::MAX << 1 << day);
            if later != 0 {
                let ahead = later.trailing_zeros() - day;
                return Some((days + i64::from(ahead)) * DAY + self.first_time());
            }
        }
        self.first_day_after(year, month, steps)
            .map(|days| days * DAY + self.first_time())
    }

    /// The last civil second that matches, `from` itself included.
    pub(crate) fn previous_civil(&self, from: i64, steps: &mut Steps) -> Option<i64> {
        if self.never_fires() || from < FIRST_CIVIL {
            return None;
        }
        let from = from.min(LAST_CIVIL);
        let (days, second) = (from.div_euclid(DAY), from.rem_euclid(DAY) as u32);
        let (year, month, day) = civil_from_days(days);
        if self.has_month(year, month) {
            steps.months += 1;
            let matching = self.days_of(year, month);
            if matching >> day & 1 == 1
                && let Some(time) = self.time_until(second)
            {
                return Some(days * DAY + i64::from(time));
            }
            let earlier = matching & !(u32::MAX << day);
            if let Some(found) = earlier.checked_ilog2() {
                return Some((days - i64::from(day - found)) * DAY + self.last_time());
            }
        }
        self.last_day_before(year, month, steps)
            .map(|days| days * DAY + self.last_time())
    }

    /// The first matching day in the months after this one.
    fn first_day_after(&self, mut year: i32, mut month: u32, steps: &mut Steps) -> Option<i64> {
        loop {
            let later = u32::from(self.months) & (u32::MAX << 1 << month);
            if later != 0 && self.has_year(year) {
                month = later.trailing_zeros();
            } else {
                year = self.next_year(year)?;
                month = u32::from(self.months).trailing_zeros();
            }
            steps.months += 1;
            let matching = self.days_of(year, month);
            if matching != 0 {
                return Some(days_from_civil(year, month, matching.trailing_zeros()));
            }
        }
    }

    /// The last matching day in the months before this one.
    fn last_day_before(&self, mut year: i32, mut month: u32, steps: &mut Steps) -> Option<i64> {
        loop {
            let earlier = u32::from(self.months) & !(u32::MAX << month);
            match earlier.checked_ilog2() {
                Some(found) if self.has_year(year) => month = found,
                _ => {
                    year = self.previous_year(year)?;
                    month = self.months.ilog2();
                }
            }
            steps.months += 1;
            if let Some(day) = self.days_of(year, month).checked_ilog2() {
                return Some(days_from_civil(year, month, day));
            }
        }
    }

    fn has_month(&self, year: i32, month: u32) -> bool {
        self.months >> month & 1 == 1 && self.has_year(year)
    }

    /// The next year of the year field, or of the calendar.
    fn next_year(&self, year: i32) -> Option<i32> {
        let Some(years) = self.years() else {
            return (year < LAST_YEAR).then_some(year + 1);
        };
        let from = (year + 1 - YEAR_MIN as i32).max(0) as usize;
        (from..256)
            .find(|index| years[index / 64] >> (index % 64) & 1 == 1)
            .map(|index| index as i32 + YEAR_MIN as i32)
    }

    /// The year before in the year field, or in the calendar.
    fn previous_year(&self, year: i32) -> Option<i32> {
        let Some(years) = self.years() else {
            return (year > FIRST_YEAR).then_some(year - 1);
        };
        let until = (year - YEAR_MIN as i32).clamp(0, 256) as usize;
        (0..until)
            .rfind(|index| years[index / 64] >> (index % 64) & 1 == 1)
            .map(|index| index as i32 + YEAR_MIN as i32)
    }

    /// The first matching second of a day, from `second` on.
    #[inline]
    fn time_from(&self, second: u32) -> Option<u32> {
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        if self.hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1 {
                let seconds = self.seconds >> second << second;
                if seconds != 0 {
                    return Some(hour * 3_600 + minute * 60 + seconds.trailing_zeros());
                }
            }
            let minutes = self.minutes & (u64::MAX << 1 << minute);
            if minutes != 0 {
                let minute = minutes.trailing_zeros();
                return Some(hour * 3_600 + minute * 60 + self.seconds.trailing_zeros());
            }
        }
        let hours = self.hours & (u32::MAX << 1 << hour);
        (hours != 0).then(|| {
            hours.trailing_zeros() * 3_600
                + self.minutes.trailing_zeros() * 60
                + self.seconds.trailing_zeros()
        })
    }

    /// The last matching second of a day, up to `second`.
    fn time_until(&self, second: u32) -> Option<u32> {
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        if self.hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1 {
                let seconds = self.seconds & !(u64::MAX << 1 << second);
                if let Some(second) = seconds.checked_ilog2() {
                    return Some(hour * 3_600 + minute * 60 + second);
                }
            }
            let minutes = self.minutes & !(u64::MAX << minute);
            if let Some(minute) = minutes.checked_ilog2() {
                return Some(hour * 3_600 + minute * 60 + self.seconds.ilog2());
            }
        }
        let hours = self.hours & !(u32::MAX << hour);
        hours
            .checked_ilog2()
            .map(|hour| hour * 3_600 + self.minutes.ilog2() * 60 + self.seconds.ilog2())
    }

    /// The first matching second of any day.
    fn first_time(&self) -> i64 {
        i64::from(
            self.hours.trailing_zeros() * 3_600
                + self.minutes.trailing_zeros() * 60
                + self.seconds.trailing_zeros(),
        )
    }

    /// The last matching second of any day.
    fn last_time(&self) -> i64 {
        i64::from(self.hours.ilog2() * 3_600 + self.minutes.ilog2() * 60 + self.seconds.ilog2())
    }
}
