//! Expressions put back into words for errors: weekdays by name, both readings of an ambiguous
//! text, the reason why a date never comes.

use super::ast::{Ast, Field, Item, WEEKDAYS};
use super::cron::{ALL_WEEKDAYS, Cron, weekday_index};
use super::error::ScheduleError;
use super::zone::Zone;

type Reading = Result<Box<Ast>, ScheduleError>;

/// The error about six fields whose weekday is a number, at a place and length in the text. When
/// neither dialect can read them, that is the error.
pub(crate) fn ambiguous(
    unix: Reading,
    quartz: Reading,
    (start, len): (usize, usize),
    example_after_ms: Option<(i64, &Zone)>,
) -> ScheduleError {
    let name = match (&unix, &quartz) {
        (Err(error), Err(_)) => return error.clone(),
        (Ok(ast), _) | (Err(_), Ok(ast)) => weekday_text(&ast.weekday),
    };
    ScheduleError::new(
        "day of week",
        "a weekday number means different days in the two dialects of 6 fields",
    )
    .at(start, len)
    .hint(format!(
        "write the name ({name}), or set `dialect: unix` ({}) or `dialect: quartz` ({})",
        reading(&unix, example_after_ms),
        reading(&quartz, example_after_ms),
    ))
}

impl Cron {
    /// Why it never fires, in words such as `30 February never comes`.
    #[must_use]
    pub fn never_reason(&self) -> Option<String> {
        if !self.never_fires() {
            return None;
        }
        let only = |bits: u32| (bits.count_ones() == 1).then(|| bits.trailing_zeros());
        let plain = self.weekdays == ALL_WEEKDAYS && self.days != 0;
        Some(match (only(self.days), only(u32::from(self.months))) {
            (Some(29), Some(2)) if plain => "29 February does not come in any of its years".into(),
            (Some(day), Some(month)) if plain => {
                format!("{day} {} never comes", MONTH_NAMES[month as usize - 1])
            }
            (Some(day), None) if plain => format!("none of its months has a day {day}"),
            _ => "no day of the calendar matches its day, month, weekday and year fields".into(),
        })
    }
}

/// English names of the months.
pub(crate) const MONTH_NAMES: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// A weekday field with names in the place of numbers, as the dialect means them; each item once.
pub(crate) fn weekday_text(field: &Field) -> String {
    let name = |number: u32| WEEKDAYS[weekday_index(field.limits.numbering, number) as usize];
    let item = |&item: &Item| match item {
        Item::All => "*".to_owned(),
        Item::Any => "?".to_owned(),
        Item::Value(day) => name(day).to_owned(),
        Item::Range(from, to) => format!("{}-{}", name(from), name(to)),
        Item::Nth(day, nth) => format!("{}#{nth}", name(day)),
        Item::LastWeekday(day) => format!("{}L", name(day)),
        stepped => {
            let names: Vec<_> = field.values(stepped).into_iter().map(name).collect();
            names.join(",")
        }
    };
    let mut items: Vec<String> = Vec::new();
    for item in field.items.iter().map(item) {
        if !items.contains(&item) {
            items.push(item);
        }
    }
    shorten(items.join(","))
}

/// Messages stay short, whatever list of 500 characters somebody sends.
fn shorten(mut text: String) -> String {
    const LONGEST: usize = 100;
    if text.len() > LONGEST {
        text.truncate(LONGEST);
        text.push_str("...");
    }
    text
}

/// One reading of an ambiguous expression: its weekdays, and its next dates.
fn reading(
    ast: &Result<Box<Ast>, ScheduleError>,
    example_after_ms: Option<(i64, &Zone)>,
) -> String {
    let ast = match ast {
        Ok(ast) => ast,
        Err(error) => return format!("which refuses it: {}", error.message),
    };
    let days = weekday_text(&ast.weekday);
    let Some((mut after_ms, zone)) = example_after_ms else {
        return days;
    };
    let cron = Cron::compile(ast);
    let mut dates = Vec::new();
    while dates.len() < 3
        && let Some(at_ms) = cron.next(after_ms, zone)
    {
        dates.push(zone.rfc3339(at_ms.div_euclid(1_000))[..10].to_owned());
        after_ms = at_ms;
    }
    if dates.is_empty() {
        return format!("{days}: never");
    }
    format!("{days}: {}", dates.join(", "))
}
