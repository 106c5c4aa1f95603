//! A cron expression as it was written: fields and their items, before it is reduced to bits.
//! The compiler and `explain` read it.

use super::spec::Dialect;

/// One of the seven fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FieldKind {
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Weekday,
    Year,
}

/// A dialect after `auto` has been decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Numbering {
    Unix,
    Quartz,
}

impl Numbering {
    /// The same, as a job file names it.
    pub(crate) const fn dialect(self) -> Dialect {
        match self {
            Self::Unix => Dialect::Unix,
            Self::Quartz => Dialect::Quartz,
        }
    }
}

/// What a field accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) kind: FieldKind,
    pub(crate) numbering: Numbering,
    /// As errors name it.
    pub(crate) name: &'static str,
    pub(crate) min: u32,
    /// Largest number that may be written.
    pub(crate) max: u32,
    /// Where `N/step` and `*/step` end.
    pub(crate) step_end: u32,
    /// Length of the cycle in which ranges wrap; 0 when they do not.
    pub(crate) cycle: u32,
    /// Names, the first of them for the number `first_name`.
    pub(crate) names: &'static [&'static str],
    pub(crate) first_name: u32,
}

pub(crate) const WEEKDAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
pub(crate) const MONTHS: &[&str] = &[
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];

/// First year of a Quartz year field.
pub(crate) const YEAR_MIN: u32 = 1970;
/// Last year of a Quartz year field.
pub(crate) const YEAR_MAX: u32 = 2199;

impl Limits {
    /// The limits of a field in a dialect.
    pub(crate) const fn of(kind: FieldKind, numbering: Numbering) -> Self {
        let (name, min, max, step_end, cycle) = match (kind, numbering) {
            (FieldKind::Second, _) => ("second", 0, 59, 59, 60),
            (FieldKind::Minute, _) => ("minute", 0, 59, 59, 60),
            (FieldKind::Hour, _) => ("hour", 0, 23, 23, 24),
            (FieldKind::Day, _) => ("day of month", 1, 31, 31, 31),
            (FieldKind::Month, _) => ("month", 1, 12, 12, 12),
            (FieldKind::Weekday, Numbering::Unix) => ("day of week", 0, 7, 6, 7),
            (FieldKind::Weekday, Numbering::Quartz) => ("day of week", 1, 7, 7, 7),
            (FieldKind::Year, _) => ("year", YEAR_MIN, YEAR_MAX, YEAR_MAX, 0),
        };
        let (names, first_name): (&'static [&'static str], u32) = match (kind, numbering) {
            (FieldKind::Month, _) => (MONTHS, 1),
            (FieldKind::Weekday, Numbering::Unix) => (WEEKDAYS, 0),
            (FieldKind::Weekday, Numbering::Quartz) => (WEEKDAYS, 1),
            _ => (&[], 0),
        };
        Self {
            kind,
            numbering,
            name,
            min,
            max,
            step_end,
            cycle,
            names,
            first_name,
        }
    }
}

/// One member of a list, in the numbers of its dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// `*`
    All,
    /// `?`
    Any,
    /// `N`
    Value(u32),
    /// `A-B`
    Range(u32, u32),
    /// `*/S`
    AllStep(u32),
    /// `N/S`
    FromStep(u32, u32),
    /// `A-B/S`
    RangeStep(u32, u32, u32),
    /// `L`, `L-n`: n days before the last day of the month.
    Last(u32),
    /// `nW`: the weekday (Monday to Friday) nearest to day n, in the same month.
    Nearest(u32),
    /// `LW`, `L-nW`: the weekday nearest to n days before the last day of the month.
    LastNearest(u32),
    /// `n#k`: the k-th such weekday of the month.
    Nth(u32, u32),
    /// `nL`: the last such weekday of the month.
    LastWeekday(u32),
}

/// A field as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) limits: Limits,
    /// 0-based position of its first character.
    pub(crate) start: usize,
    /// Its length in characters; 0 when it was not written (seconds of a 5-field text, a macro).
    pub(crate) len: usize,
    /// Its text begins with `*`.
    pub(crate) star: bool,
    /// Its text begins with `+`: both day fields must match.
    pub(crate) plus: bool,
    pub(crate) items: Vec<Item>,
}

impl Field {
    /// Whether it is nothing but `*` or `?`.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.items[..], [Item::All | Item::Any])
    }

    /// Whether it holds a `*` or a step.
    pub(crate) fn is_stepped(&self) -> bool {
        self.items.iter().any(|item| {
            matches!(
                item,
                Item::All | Item::AllStep(_) | Item::FromStep(..) | Item::RangeStep(..)
            )
        })
    }

    /// The numbers that an item stands for, in the numbers of the dialect (a Unix 7 stays 7);
    /// empty for items that depend on the month. At most 230 of them.
    pub(crate) fn values(&self, item: Item) -> Vec<u32> {
        let Limits {
            min,
            step_end,
            cycle,
            ..
        } = self.limits;
        match item {
            Item::All | Item::Any => (min..=step_end).collect(),
            Item::AllStep(step) => (min..=step_end).step_by(step as usize).collect(),
            Item::Value(value) => vec![value],
            // A Unix Sunday written as 7 runs on from 0, its other name.
            Item::FromStep(from, step) if from > step_end => {
                (min..=step_end).step_by(step as usize).collect()
            }
            Item::FromStep(from, step) => (from..=step_end).step_by(step as usize).collect(),
            Item::Range(from, to) => walk(from, to, 1, min, cycle),
            Item::RangeStep(from, to, step) => walk(from, to, step, min, cycle),
            Item::Last(_)
            | Item::Nearest(_)
            | Item::LastNearest(_)
            | Item::Nth(..)
            | Item::LastWeekday(_) => Vec::new(),
        }
    }
}

/// From `from` to `to` in steps, round the end of the cycle when `to` is the smaller one.
fn walk(from: u32, to: u32, step: u32, min: u32, cycle: u32) -> Vec<u32> {
    let end = if from <= to { to } else { to + cycle };
    (from..=end)
        .step_by(step as usize)
        .map(|value| {
            if from <= to {
                value
            } else {
                (value - min) % cycle + min
            }
        })
        .collect()
}

/// A whole expression as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ast {
    pub(crate) numbering: Numbering,
    pub(crate) second: Field,
    pub(crate) minute: Field,
    pub(crate) hour: Field,
    pub(crate) day: Field,
    pub(crate) month: Field,
    pub(crate) weekday: Field,
    /// The weekday field's text; `None` in a macro.
    pub(crate) weekday_source: Option<Box<str>>,
    pub(crate) year: Option<Field>,
}
