//! Random expressions that know what they mean: text and meaning are made side by side, by naive
//! rules that share no code with the product.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::select;

/// A field: its text, the values that it stands for, and what its text looks like.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) text: String,
    pub(crate) values: BTreeSet<u32>,
    pub(crate) special: Vec<Special>,
    pub(crate) stepped: bool,
}

/// An item whose days depend on the month.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Special {
    LastDay,
    LastWorkday,
    Nearest(u32),
    /// Weekday (0 is Sunday) and its number in the month.
    Nth(u32, u32),
    LastOf(u32),
}

/// An expression in the Unix dialect, with 5 or 6 fields.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    pub(crate) second: Field,
    pub(crate) minute: Field,
    pub(crate) hour: Field,
    pub(crate) day: Field,
    pub(crate) month: Field,
    pub(crate) weekday: Field,
    pub(crate) seconds: bool,
}

impl Pattern {
    pub(crate) fn text(&self) -> String {
        let five = [
            &self.minute,
            &self.hour,
            &self.day,
            &self.month,
            &self.weekday,
        ];
        let mut texts: Vec<&str> = five.map(|field| field.text.as_str()).to_vec();
        if self.seconds {
            texts.insert(0, &self.second.text);
        }
        texts.join(" ")
    }

    /// An interval, by the letter of the rule.
    pub(crate) fn is_interval(&self) -> bool {
        [(&self.second, 60), (&self.minute, 60), (&self.hour, 24)]
            .iter()
            .any(|(field, all)| field.stepped || field.values.len() == *all)
    }

    /// A day of the month and a weekday that are both restricted: either is enough.
    pub(crate) fn is_either(&self) -> bool {
        [&self.day, &self.weekday]
            .iter()
            .all(|field| !field.text.starts_with(['*', '+']))
    }
}

/// How a field is numbered: smallest, largest, and the names of its numbers.
#[derive(Clone, Copy)]
pub(crate) struct Numbers {
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) names: &'static [&'static str],
}

pub(crate) const SIXTY: Numbers = Numbers {
    min: 0,
    max: 59,
    names: &[],
};
pub(crate) const HOURS: Numbers = Numbers {
    min: 0,
    max: 23,
    names: &[],
};
pub(crate) const DAYS: Numbers = Numbers {
    min: 1,
    max: 31,
    names: &[],
};
pub(crate) const MONTHS: Numbers = Numbers {
    min: 1,
    max: 12,
    names: &[
        "jan", "Feb", "MAR", "apr", "MAY", "jun", "JUL", "aug", "sep", "oct", "nov", "DEC",
    ],
};
pub(crate) const WEEKDAYS: Numbers = Numbers {
    min: 0,
    max: 6,
    names: &["sun", "MON", "tue", "Wed", "thu", "FRI", "sat"],
};

/// The numbers from `from` to `to`, one by one round the end of the field.
fn round(numbers: Numbers, from: u32, to: u32) -> Vec<u32> {
    let mut values = vec![from];
    let mut value = from;
    while value != to {
        value = if value == numbers.max {
            numbers.min
        } else {
            value + 1
        };
        values.push(value);
    }
    values
}

/// One item: text, values, and whether it holds `*` or a step.
fn item(numbers: Numbers) -> BoxedStrategy<(String, Vec<u32>, bool)> {
    let Numbers { min, max, names } = numbers;
    let number = move |value: u32, named: bool| {
        if named && !names.is_empty() {
            names[(value - min) as usize].to_owned()
        } else {
            value.to_string()
        }
    };
    let value = min..=max;
    let step = prop_oneof![4 => 1..=(max / 2).max(2), 1 => 1..=99u32];
    prop_oneof![
        6 => (value.clone(), any::<bool>())
            .prop_map(move |(value, named)| (number(value, named), vec![value], false)),
        2 => (value.clone(), value.clone(), any::<bool>()).prop_map(move |(from, to, named)| {
            let text = format!("{}-{}", number(from, named), number(to, named));
            (text, round(numbers, from, to), false)
        }),
        1 => Just(("*".to_owned(), round(numbers, min, max), true)),
        1 => step.clone().prop_map(move |step| {
            let values = round(numbers, min, max).into_iter().step_by(step as usize);
            (format!("*/{step}"), values.collect(), true)
        }),
        1 => (value.clone(), step.clone()).prop_map(move |(from, step)| {
            let values = round(numbers, from, max).into_iter().step_by(step as usize);
            (format!("{from}/{step}"), values.collect(), true)
        }),
        1 => (value.clone(), value, step).prop_map(move |(from, to, step)| {
            let values = round(numbers, from, to).into_iter().step_by(step as usize);
            (format!("{from}-{to}/{step}"), values.collect(), true)
        }),
    ]
    .boxed()
}

/// A field of up to three items.
pub(crate) fn field(numbers: Numbers) -> BoxedStrategy<Field> {
    prop_oneof![
        6 => prop::collection::vec(item(numbers), 1..=1),
        2 => prop::collection::vec(item(numbers), 2..=3),
    ]
    .prop_map(|items| Field {
        text: items
            .iter()
            .map(|(text, ..)| text.as_str())
            .collect::<Vec<_>>()
            .join(","),
        stepped: items.iter().any(|(_, _, stepped)| *stepped),
        values: items
            .into_iter()
            .flat_map(|(_, values, _)| values)
            .collect(),
        special: Vec::new(),
    })
    .boxed()
}

/// The field that is only `*`.
fn open(numbers: Numbers) -> Field {
    Field {
        text: "*".into(),
        values: round(numbers, numbers.min, numbers.max)
            .into_iter()
            .collect(),
        special: Vec::new(),
        stepped: true,
    }
}

fn special(text: impl Into<String>, special: Special) -> Field {
    Field {
        text: text.into(),
        values: BTreeSet::new(),
        special: vec![special],
        stepped: false,
    }
}

fn day() -> BoxedStrategy<Field> {
    prop_oneof![
        4 => Just(open(DAYS)),
        4 => field(DAYS),
        1 => Just(special("L", Special::LastDay)),
        1 => Just(special("lw", Special::LastWorkday)),
        1 => (1..=31u32).prop_map(|day| special(format!("{day}W"), Special::Nearest(day))),
        1 => (1..=31u32).prop_map(|day| Field {
            values: BTreeSet::from([day]),
            ..special(format!("{day},L"), Special::LastDay)
        }),
    ]
    .boxed()
}

fn weekday() -> BoxedStrategy<Field> {
    prop_oneof![
        4 => Just(open(WEEKDAYS)),
        3 => field(WEEKDAYS),
        // 7 is Sunday as well.
        1 => (1..=6u32).prop_map(|from| Field {
            text: format!("{from}-7"),
            values: (from..=7).map(|day| day % 7).collect(),
            special: Vec::new(),
            stepped: false,
        }),
        1 => (0..=7u32, 1..=5u32)
            .prop_map(|(day, nth)| special(format!("{day}#{nth}"), Special::Nth(day % 7, nth))),
        1 => (0..=6u32).prop_map(|day| {
            let name = WEEKDAYS.names[day as usize];
            special(format!("{name}L"), Special::LastOf(day))
        }),
        1 => field(WEEKDAYS).prop_map(|field| Field {
            text: format!("+{}", field.text),
            ..field
        }),
    ]
    .boxed()
}

/// An expression that fires often enough to be found in a window of some days.
pub(crate) fn pattern() -> impl Strategy<Value = Pattern> {
    let month = prop_oneof![6 => Just(open(MONTHS)), 1 => field(MONTHS)];
    (
        any::<bool>(),
        field(SIXTY),
        prop_oneof![1 => Just(open(SIXTY)), 4 => field(SIXTY)],
        // Most clocks change between 0 and 3 in the morning.
        prop_oneof![1 => Just(open(HOURS)), 2 => field(HOURS), 3 => near_midnight()],
        day(),
        month,
        weekday(),
    )
        .prop_map(
            |(seconds, second, minute, hour, day, month, weekday)| Pattern {
                second: if seconds { second } else { special_zero() },
                minute,
                hour,
                day,
                month,
                weekday,
                seconds,
            },
        )
}

fn special_zero() -> Field {
    Field {
        text: "0".into(),
        values: BTreeSet::from([0]),
        special: Vec::new(),
        stepped: false,
    }
}

fn near_midnight() -> impl Strategy<Value = Field> {
    (select(vec![22u32, 23, 0, 1, 2, 3]), 0..=2u32).prop_map(|(from, length)| {
        let to = (from + length) % 24;
        Field {
            text: if length == 0 {
                from.to_string()
            } else {
                format!("{from}-{to}")
            },
            values: round(HOURS, from, to).into_iter().collect(),
            special: Vec::new(),
            stepped: false,
        }
    })
}
