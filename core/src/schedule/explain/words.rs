//! An expression as the parts of a sentence, in no language.

use super::super::ast::{Ast, Field, Item};
use super::super::cron::{Cron, weekday_index};
use super::DayRule;

/// Up to so many times of day are listed one by one.
const FEW_TIMES: u32 = 6;

/// Up to so many days or months that a step gives are listed one by one.
const FEW_VALUES: usize = 6;

/// The parts of the sentence. Numbers of weekdays are 0-6, 0 is Sunday.
pub(super) struct CronWords {
    /// Times of day `09:30` or `09:30:15`, when they are few; the clock fields are empty then.
    pub(super) times: Vec<String>,
    /// Items of the second; empty when it need not be said.
    pub(super) seconds: Vec<Item>,
    /// Items of the minute; empty when it need not be said.
    pub(super) minutes: Vec<Item>,
    /// Items of the hour; empty when it need not be said.
    pub(super) hours: Vec<Item>,
    /// Items of the day of the month; empty when every day will do.
    pub(super) days: Vec<Item>,
    /// Items of the weekday; empty when every one will do.
    pub(super) weekdays: Vec<Item>,
    /// How the two go together.
    pub(super) day_rule: DayRule,
    /// Months, 1-12; empty for all.
    pub(super) months: Vec<Item>,
    /// Items of the year; empty for all.
    pub(super) years: Vec<Item>,
    /// Whether it fires more often than once a minute, hour or day by a `*` or a step.
    pub(super) interval: bool,
}

impl CronWords {
    pub(super) fn new(ast: &Ast, cron: &Cron) -> Self {
        let day_rule = match (ast.day.is_open(), ast.weekday.is_open()) {
            (true, true) => DayRule::EveryDay,
            (false, true) => DayRule::DayOfMonth,
            (true, false) => DayRule::Weekday,
            (false, false) if cron.either_day => DayRule::Either,
            (false, false) => DayRule::Both,
        };
        let mut words = Self {
            times: times(cron),
            seconds: Vec::new(),
            minutes: Vec::new(),
            hours: Vec::new(),
            days: restricted(&ast.day),
            weekdays: weekdays(&ast.weekday),
            day_rule,
            months: restricted(&ast.month),
            years: ast
                .year
                .as_ref()
                .filter(|year| !year.is_open())
                .map(|year| year.items.clone())
                .unwrap_or_default(),
            interval: cron.is_interval(),
        };
        if words.times.is_empty() {
            words.clock(ast);
        }
        words
    }

    /// The clock fields, less what goes without saying: second 0, and `*` after something that
    /// is itself a `*` or a step.
    fn clock(&mut self, ast: &Ast) {
        let repeats = |items: &[Item]| matches!(items, [Item::All | Item::AllStep(_)]);
        let mut said = false;
        let (seconds, minutes, hours) = (
            real_steps(&ast.second),
            real_steps(&ast.minute),
            real_steps(&ast.hour),
        );
        if seconds != [Item::Value(0)] {
            self.seconds = seconds;
            said = repeats(&self.seconds);
        }
        if !(said && minutes == [Item::All]) {
            said = repeats(&minutes);
            self.minutes = minutes;
        }
        if !(said && hours == [Item::All]) {
            self.hours = hours;
        }
    }
}

/// The times of day of an expression that is no interval, when they are few.
fn times(cron: &Cron) -> Vec<String> {
    let count = cron.hours.count_ones() * cron.minutes.count_ones() * cron.seconds.count_ones();
    if cron.is_interval() || count > FEW_TIMES {
        return Vec::new();
    }
    let set = |bits: u64| (0..60u32).filter(move |bit| bits >> bit & 1 == 1);
    let with_seconds = cron.seconds != 1;
    let mut times = Vec::new();
    for hour in set(u64::from(cron.hours)) {
        for minute in set(cron.minutes) {
            for second in set(cron.seconds) {
                times.push(if with_seconds {
                    format!("{hour:02}:{minute:02}:{second:02}")
                } else {
                    format!("{hour:02}:{minute:02}")
                });
            }
        }
    }
    times
}

/// The items of a field; a step that is longer than its field is the one value that it gives.
fn real_steps(field: &Field) -> Vec<Item> {
    field
        .items
        .iter()
        .map(|&item| match (item, &field.values(item)[..]) {
            (Item::AllStep(_) | Item::FromStep(..), &[only]) => Item::Value(only),
            _ => item,
        })
        .collect()
}

/// The items of a day or month field, none when it restricts nothing; a few steps one by one,
/// since nobody counts months in fives.
fn restricted(field: &Field) -> Vec<Item> {
    if field.is_open() {
        return Vec::new();
    }
    field
        .items
        .iter()
        .flat_map(|&item| match item {
            Item::AllStep(_) | Item::FromStep(..) | Item::RangeStep(..) => {
                let values = field.values(item);
                if values.len() <= FEW_VALUES {
                    values.into_iter().map(Item::Value).collect()
                } else {
                    vec![item]
                }
            }
            _ => vec![item],
        })
        .collect()
}

/// Weekday items in one numbering; steps as the days that they come to.
fn weekdays(field: &Field) -> Vec<Item> {
    if field.is_open() {
        return Vec::new();
    }
    let index = |number| weekday_index(field.limits.numbering, number);
    field
        .items
        .iter()
        .flat_map(|&item| match item {
            Item::Value(day) => vec![Item::Value(index(day))],
            Item::Range(from, to) => vec![Item::Range(index(from), index(to))],
            Item::Nth(day, nth) => vec![Item::Nth(index(day), nth)],
            Item::LastWeekday(day) => vec![Item::LastWeekday(index(day))],
            stepped => field
                .values(stepped)
                .into_iter()
                .map(|day| Item::Value(index(day)))
                .collect(),
        })
        .collect()
}
