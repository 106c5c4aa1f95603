//! The texts in English.

use super::super::ast::{FieldKind, Item, Numbering};
use super::super::reading::MONTH_NAMES;
use super::super::spec::{Gap, Overlap, ScheduleSpec};
use super::lint::{Fact, GapEffect};
use super::words::CronWords;
use super::{ClockRule, DayRule, Texts};

pub(super) struct English;

const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

impl Texts for English {
    fn cron(&self, words: &CronWords) -> String {
        let mut parts = Vec::new();
        if !words.times.is_empty() {
            parts.push(format!("at {}", join(&words.times, "and")));
        }
        for (unit, items) in [
            ("second", &words.seconds),
            ("minute", &words.minutes),
            ("hour", &words.hours),
        ] {
            if !items.is_empty() {
                let preposition = if parts.is_empty() { "at" } else { "in" };
                parts.push(clock(unit, items, preposition));
            }
        }
        match words.day_rule {
            DayRule::EveryDay if words.interval || !words.months.is_empty() => {}
            DayRule::EveryDay => parts.push("every day".into()),
            DayRule::DayOfMonth => parts.push(format!("on {}", days(&words.days))),
            DayRule::Weekday => parts.push(format!("on {}", weekdays(&words.weekdays))),
            DayRule::Either => parts.push(format!(
                "on {}, and also on {}",
                days(&words.days),
                weekdays(&words.weekdays)
            )),
            DayRule::Both => parts.push(format!(
                "on {}, but only if it is {}",
                days(&words.days),
                weekdays(&words.weekdays).replace(" and ", " or ")
            )),
        }
        if !words.months.is_empty() {
            let every_day = words.day_rule == DayRule::EveryDay && !words.interval;
            let lead = if every_day { "every day in" } else { "in" };
            let name = |month: u32| MONTH_NAMES[month as usize - 1].to_owned();
            parts.push(format!("{lead} {}", list(&words.months, "month", name)));
        }
        if !words.years.is_empty() {
            let years = list(&words.years, "year", |year| year.to_string());
            parts.push(format!("in {years}"));
        }
        capital(&parts.join(", "))
    }

    fn every(&self, period: &str, anchor: &str) -> String {
        format!("Every {period}, counted from {anchor}")
    }

    fn once(&self, at: &str) -> String {
        format!("Once, at {at}")
    }

    fn after_finish(&self, pause: &str) -> String {
        format!("{pause} after the end of the last run")
    }

    fn on_demand(&self) -> String {
        "On demand only: it has no schedule".into()
    }

    fn day_rule(&self, rule: DayRule) -> String {
        match rule {
            DayRule::EveryDay => "no day field restricts the day",
            DayRule::DayOfMonth => "the day of the month decides",
            DayRule::Weekday => "the weekday decides",
            DayRule::Either => {
                "OR: day of month and weekday are both restricted, and a day that matches either of them fires; write + before the weekday for AND"
            }
            DayRule::Both => "AND: a day must match both day of month and weekday",
        }
        .into()
    }

    fn clock_rule(&self, rule: ClockRule, spec: &ScheduleSpec) -> String {
        let ClockRule::FixedTime = rule else {
            return "an interval: it follows real time, has nothing in a gap of the clock and fires in both passes of a repeated hour".into();
        };
        let gap = match spec.dst.gap {
            Gap::Fire => "fires once at the first instant after the gap",
            Gap::Skip => "is skipped, with a record",
        };
        let overlap = match spec.dst.overlap {
            Overlap::Once => "fires the first time only",
            Overlap::Twice => "fires both times",
        };
        format!(
            "a fixed time: one that does not exist when the clock goes forward {gap}; one that comes twice when it goes back {overlap}"
        )
    }

    fn lint(&self, fact: &Fact) -> String {
        match fact {
            Fact::Never(Some((day, month))) => format!(
                "it never fires: {day} {} never comes",
                MONTH_NAMES[*month as usize - 1]
            ),
            Fact::Never(None) => "it never fires: no day of the calendar matches".into(),
            Fact::Ended(Some(last)) => format!("it fires no more; its last instant was {last}"),
            Fact::Ended(None) => "it fires no more, and never has".into(),
            Fact::UnevenStep(FieldKind::Day, step, _) => format!(
                "every {step} days begins anew on the first of each month, so that the step across its end is another one; `every: {step}d` is even"
            ),
            Fact::UnevenStep(kind, step, rest) => format!(
                "the step of {step} does not divide its cycle: the last one before the {} begins anew is {rest}",
                cycle(*kind)
            ),
            Fact::StepBeyond(kind, step) => format!(
                "the step of {step} is longer than its field: it fires once in each {}",
                cycle(*kind)
            ),
            Fact::ShortMonths(days) => {
                let days: Vec<_> = days.iter().map(|&day| ordinal(day)).collect();
                format!(
                    "months without a {} are left out; L is the last day of every month",
                    join(&days, "or")
                )
            }
            Fact::WeekdayNumber { here, other, there } => {
                let other = match other {
                    Numbering::Unix => "unix",
                    Numbering::Quartz => "quartz",
                };
                match there {
                    Some(there) => format!(
                        "the weekday number means {here} here and {there} in the dialect {other}; write {here}"
                    ),
                    None => format!(
                        "the weekday number means {here} here and nothing in the dialect {other}; write {here}"
                    ),
                }
            }
            Fact::BothDays(true) => {
                "day of month and weekday are both restricted: either is enough (OR)".into()
            }
            Fact::BothDays(false) => {
                "day of month and weekday are both restricted: both must match (AND)".into()
            }
            Fact::Gap {
                lost,
                until,
                zone,
                effect,
            } => {
                let effect = match effect {
                    GapEffect::Moved => format!("it fires at {until} instead"),
                    GapEffect::Skipped => "it is skipped, with a record".to_owned(),
                    GapEffect::Nothing => format!("nothing fires until {until}"),
                };
                format!("{lost} does not exist in {zone}: {effect}")
            }
            Fact::Overlap { time, zone, twice } => {
                let effect = if *twice {
                    "it fires both times"
                } else {
                    "it fires the first time only"
                };
                format!("{time} comes twice in {zone}: {effect}")
            }
        }
    }
}

/// A clock field: `every 15 minutes`, `at minute 5 and 35`, `in hours 9 to 17`.
fn clock(unit: &str, items: &[Item], preposition: &str) -> String {
    match *items {
        [Item::All | Item::AllStep(1)] => format!("every {unit}"),
        [Item::AllStep(step)] => format!("every {step} {unit}s"),
        [Item::FromStep(from, step)] => format!("every {step} {unit}s from {unit} {from} on"),
        [Item::RangeStep(from, to, step)] => {
            format!("every {step} {unit}s from {unit} {from} to {to}")
        }
        [Item::Value(value)] => format!("{preposition} {unit} {value}"),
        _ => format!(
            "{preposition} {unit}s {}",
            list(items, unit, |value| value.to_string())
        ),
    }
}

fn list(items: &[Item], unit: &str, name: impl Fn(u32) -> String) -> String {
    let items: Vec<_> = items
        .iter()
        .map(|item| match *item {
            Item::All | Item::Any => format!("every {unit}"),
            Item::Value(value) => name(value),
            Item::Range(from, to) => format!("{} to {}", name(from), name(to)),
            Item::AllStep(step) => format!("every {} {unit}", ordinal(step)),
            Item::FromStep(from, step) => {
                format!("every {} {unit} from {} on", ordinal(step), name(from))
            }
            Item::RangeStep(from, to, step) => format!(
                "every {} {unit} from {} to {}",
                ordinal(step),
                name(from),
                name(to)
            ),
            Item::Last(_)
            | Item::Nearest(_)
            | Item::LastNearest(_)
            | Item::Nth(..)
            | Item::LastWeekday(_) => special(*item),
        })
        .collect();
    join(&items, "and")
}

fn days(items: &[Item]) -> String {
    let numbers = items
        .iter()
        .all(|item| matches!(item, Item::Value(_) | Item::Range(..)));
    let listed = list(items, "day", |day| day.to_string());
    if numbers {
        format!("day {listed} of the month")
    } else {
        listed
    }
}

fn weekdays(items: &[Item]) -> String {
    list(items, "weekday", |day| WEEKDAYS[day as usize].to_owned())
}

fn special(item: Item) -> String {
    match item {
        Item::Last(0) => "the last day of the month".into(),
        Item::Last(1) => "the day before the last one of the month".into(),
        Item::Last(days) => format!("the day {days} days before the last one of the month"),
        Item::Nearest(day) => {
            format!("the weekday (Monday to Friday) nearest to day {day} of the month")
        }
        Item::LastNearest(0) => "the last weekday (Monday to Friday) of the month".into(),
        Item::LastNearest(days) => format!(
            "the weekday (Monday to Friday) nearest to {days} days before the last day of the month"
        ),
        Item::Nth(day, nth) => {
            format!(
                "the {} {} of the month",
                ordinal(nth),
                WEEKDAYS[day as usize]
            )
        }
        Item::LastWeekday(day) => format!("the last {} of the month", WEEKDAYS[day as usize]),
        _ => String::new(),
    }
}

fn cycle(kind: FieldKind) -> &'static str {
    match kind {
        FieldKind::Second => "minute",
        FieldKind::Minute => "hour",
        FieldKind::Hour => "day",
        FieldKind::Day => "month",
        FieldKind::Month => "year",
        FieldKind::Weekday => "week",
        FieldKind::Year => "year field",
    }
}

fn ordinal(number: u32) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}

fn join(items: &[String], word: &str) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., last] => format!("{} {word} {last}", most.join(", ")),
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars
        .next()
        .map(|first| first.to_ascii_uppercase().to_string() + chars.as_str())
        .unwrap_or_default()
}
