//! Calendar arithmetic on whole seconds.
//!
//! A *civil second* is a local date and time counted as seconds since 1970-01-01T00:00:00 on a
//! clock without zone, so that `civil = unix + offset`. The calendar is the proleptic Gregorian
//! one; its pattern of dates and weekdays repeats every 400 years (146,097 days, whole weeks).

/// Seconds of a day.
pub(crate) const DAY: i64 = 86_400;
/// The first year in which anything fires.
pub(crate) const FIRST_YEAR: i32 = 1;
/// The last year in which anything fires.
pub(crate) const LAST_YEAR: i32 = 9990;
/// First civil second of [`FIRST_YEAR`].
pub(crate) const FIRST_CIVIL: i64 = days_from_civil(FIRST_YEAR, 1, 1) * DAY;
/// Last civil second of [`LAST_YEAR`].
pub(crate) const LAST_CIVIL: i64 = days_from_civil(LAST_YEAR + 1, 1, 1) * DAY - 1;

/// Days since 1970-01-01 of a date. `month` is 1-12; `day` may run past the month's end.
pub(crate) const fn days_from_civil(year: i32, month: u32, day: u32) -> i64 {
    // The year begins in March here, so that the leap day is its last one.
    let year = year as i64 - (month <= 2) as i64;
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month as i64 + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day as i64 - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Year, month (1-12) and day (1-31) of a number of days since 1970-01-01.
///
/// The caller keeps `days` within a few years of the range in which anything fires.
pub(crate) const fn civil_from_days(days: i64) -> (i32, u32, u32) {
    // Within an era of 400 years everything fits 32 bits, whose divisions are the cheap ones.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097) as u32;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era as i32 + era as i32 * 400 + (month <= 2) as i32;
    (year, month, day)
}

/// Weekday of a number of days since 1970-01-01 (a Thursday); 0 is Sunday.
pub(crate) const fn weekday(days: i64) -> u32 {
    (days + 4).rem_euclid(7) as u32
}

/// Whether a year has a 29 February.
pub(crate) const fn is_leap(year: i32) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Days of a month.
pub(crate) const fn days_in_month(year: i32, month: u32) -> u32 {
    match month {
        2 => 28 + is_leap(year) as u32,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// RFC 3339 of an instant at an offset from UTC, both in seconds.
///
/// RFC 3339 has no seconds in an offset, local mean times of the 19th century do: such an offset
/// is rounded to the minute, and the time beside it is still the same instant.
pub(crate) fn rfc3339(unix: i64, offset: i32) -> String {
    let minutes = (f64::from(offset) / 60.0).round() as i64;
    let civil = unix + minutes * 60;
    let (year, month, day) = civil_from_days(civil.div_euclid(DAY));
    let second = civil.rem_euclid(DAY);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let sign = if minutes < 0 { '-' } else { '+' };
    let (oh, om) = (minutes.abs() / 60, minutes.abs() % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{sign}{oh:02}:{om:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_the_calendar_follows_the_one_before() {
        let first = days_from_civil(FIRST_YEAR - 1, 1, 1);
        let last = days_from_civil(LAST_YEAR + 2, 1, 1);
        let (mut year, mut month, mut day) = (FIRST_YEAR - 1, 1, 1);
        for days in first..last {
            assert_eq!(civil_from_days(days), (year, month, day));
            assert_eq!(days_from_civil(year, month, day), days);
            day += 1;
            if day > days_in_month(year, month) {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
        assert_eq!((year, month, day), (LAST_YEAR + 2, 1, 1));
    }

    #[test]
    fn weekdays_and_texts_are_known_ones() {
        assert_eq!(weekday(days_from_civil(2026, 1, 1)), 4);
        assert_eq!(weekday(days_from_civil(2000, 2, 29)), 2);
        assert_eq!(weekday(days_from_civil(1, 1, 1)), 1);
        assert_eq!(rfc3339(1_767_197_100, 28_800), "2026-01-01T00:05:00+08:00");
        assert_eq!(rfc3339(0, -5_400), "1969-12-31T22:30:00-01:30");
        // Local mean time of Amsterdam, 19 min 32 s east: 20 minutes, and the same instant.
        assert_eq!(rfc3339(-1, 1_172), "1970-01-01T00:19:59+00:20");
    }
}
