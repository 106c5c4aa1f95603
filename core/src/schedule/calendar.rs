//! Days on which a schedule does not fire: `exclude`, and the named calendars of a job file.

use super::civil::{DAY, days_from_civil, days_in_month};
use super::error::{ScheduleError, quote};
use super::spec::Calendars;

/// Excluded days: ranges of days since 1970-01-01, both ends included, ascending and apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Excluded(Box<[(i64, i64)]>);

impl Excluded {
    /// Reads dates, ranges and names of calendars.
    pub(crate) fn compile(texts: &[String], calendars: &Calendars) -> Result<Self, ScheduleError> {
        let mut ranges = Vec::new();
        for text in texts {
            match (range(text), calendars.0.get(text.trim())) {
                (Ok(Some(range)), _) => ranges.push(range),
                (_, Some(days)) => ranges.extend(calendar(text.trim(), days)?),
                (Ok(None), None) => return Err(unknown(text, calendars)),
                (Err(error), None) => return Err(error),
            }
        }
        ranges.sort_unstable();
        let mut merged: Vec<(i64, i64)> = Vec::new();
        for (from, to) in ranges {
            match merged.last_mut() {
                Some((_, end)) if from <= *end + 1 => *end = to.max(*end),
                _ => merged.push((from, to)),
            }
        }
        Ok(Self(merged.into()))
    }

    /// The last excluded civil second of the days around a civil second, if its day is excluded.
    pub(crate) fn end_of(&self, civil: i64) -> Option<i64> {
        let day = civil.div_euclid(DAY);
        let index = self.0.partition_point(|&(_, end)| end < day);
        let &(from, to) = self.0.get(index)?;
        (from <= day).then_some((to + 1) * DAY - 1)
    }
}

impl Calendars {
    /// Reads all calendars, also those that no job names.
    ///
    /// # Errors
    /// Names the calendar and the entry that is no date.
    pub fn check(&self) -> Result<(), ScheduleError> {
        for (name, days) in &self.0 {
            calendar(name, days)?;
        }
        Ok(())
    }
}

/// The days of a calendar.
fn calendar(name: &str, days: &[String]) -> Result<Vec<(i64, i64)>, ScheduleError> {
    let read = |day: &String| match range(day) {
        Ok(Some(range)) => Ok(range),
        _ => Err(ScheduleError::new(
            "calendars",
            format!("{} is no date, in calendar {}", quote(day), quote(name)),
        )
        .hint("write 2026-12-25 or 2026-12-24..2027-01-02")),
    };
    days.iter().map(read).collect()
}

/// `2026-12-25` or `2026-12-24..2027-01-02`; `None` when the text is neither, but a name.
fn range(text: &str) -> Result<Option<(i64, i64)>, ScheduleError> {
    let text = text.trim();
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(None);
    }
    let (from, to) = match text.split_once("..") {
        Some((from, to)) => (date(text, from)?, date(text, to)?),
        None => {
            let day = date(text, text)?;
            (day, day)
        }
    };
    if from > to {
        return Err(ScheduleError::new(
            "exclude",
            format!("{} ends before it begins", quote(text)),
        )
        .hint("write the earlier date first"));
    }
    Ok(Some((from, to)))
}

fn date(whole: &str, text: &str) -> Result<i64, ScheduleError> {
    parse_date(text.trim()).ok_or_else(|| {
        ScheduleError::new("exclude", format!("{} is no date", quote(whole)))
            .hint("write 2026-12-25 or 2026-12-24..2027-01-02")
    })
}

/// Days since 1970-01-01 of `YYYY-MM-DD`, if there is such a day.
pub(crate) fn parse_date(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return None;
    }
    let number = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse::<u32>().ok())
            .flatten()
    };
    let year = number(text.get(..4)?)?.cast_signed();
    let (month, day) = (number(text.get(5..7)?)?, number(text.get(8..)?)?);
    let valid =
        year > 0 && (1..=12).contains(&month) && (1..=days_in_month(year, month)).contains(&day);
    valid.then(|| days_from_civil(year, month, day))
}

fn unknown(text: &str, calendars: &Calendars) -> ScheduleError {
    let error = ScheduleError::new(
        "exclude",
        format!("{} is neither a date nor a calendar", quote(text)),
    );
    if calendars.0.is_empty() {
        return error.hint("write 2026-12-25 or 2026-12-24..2027-01-02, or declare `calendars:`");
    }
    let names: Vec<_> = calendars.0.keys().take(10).map(String::as_str).collect();
    error.hint(format!("the calendars are {}", names.join(", ")))
}
