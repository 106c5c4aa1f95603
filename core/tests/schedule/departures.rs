//! Where two other readers of cron expressions part from ours, each by the rule of ours that they
//! do not share, and the rewriting that lets them read the rest.

use punctual::schedule::Dialect;

use crate::random::{MONTHS, WEEKDAYS};

/// Another reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reader {
    /// `cron` 0.17: 6 or 7 fields, weekdays 1-7 from Sunday.
    Cron,
    /// `croner` 4: 5 to 7 fields, either numbering of weekdays.
    Croner,
}

/// An item `A`, `A-B`, `A/S`, `A-B/S`, `*`, `*/S` in numbers.
struct Item {
    from: Option<u32>,
    to: Option<u32>,
    step: Option<u32>,
}

/// Smallest and largest number, largest for `N/S`, and names, by the place of the field among
/// six.
fn limits(place: usize, dialect: Dialect) -> (u32, u32, &'static [&'static str]) {
    match (place, dialect) {
        (0 | 1, _) => (0, 59, &[]),
        (2, _) => (0, 23, &[]),
        (3, _) => (1, 31, &[]),
        (4, _) => (1, 12, &MONTHS),
        (5, Dialect::Quartz) => (1, 7, &WEEKDAYS),
        (5, _) => (0, 6, &WEEKDAYS),
        _ => (1970, 2199, &[]),
    }
}

/// Fields with their places among six; five fields begin with the minute.
fn fields(text: &str) -> Vec<(usize, &str)> {
    let fields: Vec<_> = text.split(' ').collect();
    let shift = usize::from(fields.len() == 5);
    fields
        .into_iter()
        .enumerate()
        .map(|(place, field)| (place + shift, field))
        .collect()
}

/// A plain item in numbers; `None` for one that holds L, W or #.
fn item(text: &str, place: usize, dialect: Dialect) -> Option<Item> {
    let (min, _, names) = limits(place, dialect);
    let number = |text: &str| {
        text.parse().ok().or_else(|| {
            let found = names.iter().position(|name| *name == text)?;
            Some(min + found as u32)
        })
    };
    let (base, step) = match text.split_once('/') {
        Some((base, step)) => (base, Some(step.parse().ok()?)),
        None => (text, None),
    };
    if base == "*" || base == "?" {
        return Some(Item {
            from: None,
            to: None,
            step,
        });
    }
    let (from, to) = match base.split_once('-') {
        Some((from, to)) => (number(from)?, Some(number(to)?)),
        None => (number(base)?, None),
    };
    Some(Item {
        from: Some(from),
        to,
        step,
    })
}

/// The text for a reader. Weekday numbers become names for `cron`, which counts them from 1.
/// For `croner` `N/S` is written out as `N-END/S`, Saturday stands for `L`, and a `+` says that
/// both day fields must match where ours knows it by a `*` (`cron` knows nothing else).
pub(crate) fn rewrite(reader: Reader, text: &str, dialect: Dialect) -> String {
    let mut out: Vec<String> = Vec::new();
    for (place, field) in fields(text) {
        let (min, max, names) = limits(place, dialect);
        // The years of `cron` end in 2100.
        let end = if reader == Reader::Cron {
            max.min(2_100)
        } else {
            max
        };
        let (plus, list) = match field.strip_prefix('+') {
            Some(list) if reader == Reader::Croner => ("+", list),
            Some(list) => ("", list),
            None => ("", field),
        };
        let shown = |value: u32| match (reader, place) {
            (Reader::Cron, 5) => names[((value - min) % 7) as usize].to_owned(),
            _ => value.to_string(),
        };
        let items: Vec<_> = list
            .split(',')
            .map(|text| match item(text, place, dialect) {
                Some(Item {
                    from: Some(from),
                    to: None,
                    step: None,
                }) => shown(from),
                Some(Item {
                    from: Some(from),
                    to: None,
                    step: Some(step),
                }) => format!("{}-{}/{step}", shown(from), shown(end)),
                Some(Item {
                    from: Some(from),
                    to: Some(to),
                    step,
                }) => {
                    let step = step.map(|step| format!("/{step}")).unwrap_or_default();
                    format!("{}-{}{step}", shown(from), shown(to))
                }
                None if text == "L" && place == 5 => shown(max),
                _ => text.to_owned(),
            })
            .collect();
        out.push(format!("{plus}{}", items.join(",")));
    }
    if reader == Reader::Cron && out.len() == 5 {
        out.insert(0, "0".into());
    }
    let (day, weekday) = day_fields(text);
    if reader == Reader::Croner
        && are_both_restricted(day, weekday)
        && (day.starts_with('*') || weekday.starts_with('*'))
        && let Some(last) = out.last_mut()
        && !last.starts_with('+')
    {
        last.insert(0, '+');
    }
    out.join(" ")
}

/// The two texts whose fires together are those of one with two restricted day fields, of which
/// either is enough: `cron` knows no OR.
pub(crate) fn halves(text: &str) -> Option<[String; 2]> {
    let (day, weekday) = day_fields(text);
    if !are_both_restricted(day, weekday) || day.starts_with('*') || weekday.starts_with(['*', '+'])
    {
        return None;
    }
    let half = |open: usize| {
        let fields = fields(text).into_iter();
        let texts: Vec<_> = fields
            .map(|(place, field)| if place == open { "*" } else { field })
            .collect();
        texts.join(" ")
    };
    Some([half(3), half(5)])
}

fn day_fields(text: &str) -> (&str, &str) {
    let fields = fields(text);
    let at = |wanted| {
        let found = fields.iter().find(|(place, _)| *place == wanted);
        found.unwrap().1
    };
    (at(3), at(5))
}

fn are_both_restricted(day: &str, weekday: &str) -> bool {
    !matches!(day, "*" | "?") && !matches!(weekday, "*" | "?")
}

/// The rule of ours that explains why a reader refuses a text, if one does.
pub(crate) fn departure(reader: Reader, text: &str, dialect: Dialect) -> Option<&'static str> {
    let (day, weekday) = day_fields(text);
    let any = |test: &dyn Fn(&Item, usize) -> bool| {
        fields(text).iter().any(|(place, field)| {
            field
                .trim_start_matches('+')
                .split(',')
                .filter_map(|text| item(text, *place, dialect))
                .any(|item| test(&item, *place))
        })
    };
    if any(&|item, _| matches!((item.from, item.to), (Some(from), Some(to)) if from > to)) {
        return Some("ranges wrap");
    }
    if any(&|item, place| {
        let (min, max, _) = limits(place, dialect);
        item.step.is_some_and(|step| step > max - min)
    }) {
        return Some("a step longer than its field fires once a cycle");
    }
    let special = |field: &str, place| {
        let mut items = field.split(',');
        items.any(|text| item(text.trim_start_matches('+'), place, dialect).is_none())
    };
    let year_after_2100 =
        any(&|item, place| place == 6 && item.from.max(item.to).is_some_and(|year| year > 2_100));
    match reader {
        Reader::Cron if special(day, 3) || special(weekday, 5) => Some("L, W and # are read"),
        Reader::Cron if year_after_2100 => Some("years go on after 2100"),
        Reader::Croner if day.contains("L-") => Some("Quartz has L-n and L-nW"),
        _ => None,
    }
}
