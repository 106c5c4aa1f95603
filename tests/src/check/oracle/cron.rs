//! A cron expression as six or seven lists of numbers.

use std::cell::Cell;

use punctual::schedule::Dialect;

/// Read, not searched: it only says whether a local time matches.
pub(super) struct Cron {
    /// Second, minute, hour, date, month, weekday (0 is Sunday), year.
    fields: Vec<Vec<i64>>,
    /// Fires in each pass of a repeated hour, and not for times that are left out.
    pub(super) is_interval: bool,
    /// Date and weekday are both restricted, in a dialect where one of them is enough.
    either: bool,
    /// The last day that was asked for: seconds come in rows.
    last: Cell<(i64, (i64, i64, i64))>,
}

const BOUNDS: [(i64, i64); 7] = [
    (0, 59),
    (0, 59),
    (0, 23),
    (1, 31),
    (1, 12),
    (0, 6),
    (1970, 2199),
];
const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

impl Cron {
    pub(super) fn read(text: &str, dialect: Dialect) -> Option<Self> {
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let quartz = match dialect {
            Dialect::Unix => false,
            Dialect::Quartz => true,
            Dialect::Auto => words.len() == 7 || words.contains(&"?"),
        };
        if words.len() == 5 {
            words.insert(0, "0");
        }
        if words.len() == 6 {
            words.push("*");
        }
        if words.len() != BOUNDS.len() {
            return None;
        }
        let fields = words
            .iter()
            .zip(BOUNDS)
            .enumerate()
            .map(|(index, (word, bounds))| field(index, word, bounds, quartz))
            .collect::<Option<Vec<_>>>()?;
        let whole = |index: usize| {
            let (low, high) = BOUNDS[index];
            (low..=high).all(|value| fields[index].contains(&value))
        };
        let is_interval = (0..3).any(|i| words[i].contains(['*', '/']) || whole(i));
        let restricted = |word: &str| !word.starts_with(['*', '?']);
        Some(Self {
            either: !quartz && restricted(words[3]) && restricted(words[5]),
            is_interval,
            fields,
            last: Cell::new((i64::MIN, (0, 0, 0))),
        })
    }

    pub(super) fn matches(&self, civil: i64) -> bool {
        let of_day = civil.rem_euclid(86_400);
        let has = |index: usize, value: i64| self.fields[index].contains(&value);
        if !(has(0, of_day % 60) && has(1, of_day / 60 % 60) && has(2, of_day / 3_600)) {
            return false;
        }
        let day = civil.div_euclid(86_400);
        if self.last.get().0 != day {
            self.last.set((day, civil_date(day)));
        }
        let (year, month, date) = self.last.get().1;
        let (date, weekday) = (has(3, date), has(5, (day + 4).rem_euclid(7)));
        let right_day = if self.either {
            date || weekday
        } else {
            date && weekday
        };
        right_day && has(4, month) && has(6, year)
    }
}

fn field(index: usize, word: &str, (low, high): (i64, i64), quartz: bool) -> Option<Vec<i64>> {
    let shift = i64::from(quartz && index == 5);
    let number = |text: &str| -> Option<i64> {
        let names: &[&str] = match index {
            4 => &MONTHS,
            5 => &WEEKDAYS,
            _ => &[],
        };
        if let Some(place) = names.iter().position(|name| *name == text) {
            return Some(i64::try_from(place).ok()? + low);
        }
        // In Quartz, 1 is Sunday.
        Some(text.parse::<i64>().ok()? - shift)
    };
    let mut all = Vec::new();
    for part in word.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse::<usize>().ok()?),
            None => (part, 1),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" || range == "?" => (low, high),
            Some((from, to)) => (number(from)?, number(to)?),
            None if part.contains('/') => (number(range)?, high),
            None => (number(range)?, number(range)?),
        };
        all.extend((from..=to).step_by(step));
    }
    Some(all)
}

/// Year, month and date of a day since 1970-01-01, by walking year by year and month by month.
pub(super) fn civil_date(day: i64) -> (i64, i64, i64) {
    let leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let mut left = day;
    let mut year = 1970;
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let february = if leap(year) { 29 } else { 28 };
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}
