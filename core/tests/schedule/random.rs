//! Random expressions as text, many and fast: for comparison with other readers, and hostile ones.

/// A small generator (SplitMix64): the same texts on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number in `from..=to`.
    pub(crate) fn number(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from + 1)
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.next().is_multiple_of(times)
    }

    pub(crate) fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[(self.next() % from.len() as u64) as usize]
    }
}

pub(crate) const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];
pub(crate) const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];

/// A sane item list of a field, numbers in `min..=max`.
fn list(random: &mut Random, min: u64, max: u64, names: &[&str]) -> String {
    let count = if random.once_in(4) {
        random.number(2, 3)
    } else {
        1
    };
    let items: Vec<_> = (0..count).map(|_| item(random, min, max, names)).collect();
    items.join(",")
}

fn item(random: &mut Random, min: u64, max: u64, names: &[&str]) -> String {
    let named = !names.is_empty() && random.once_in(2);
    let show = |value: u64| {
        if named {
            names[(value - min) as usize].to_owned()
        } else {
            value.to_string()
        }
    };
    let (a, b) = (random.number(min, max), random.number(min, max));
    // A range that wraps now and then.
    let (from, to) = if random.once_in(8) {
        (a, b)
    } else {
        (a.min(b), a.max(b))
    };
    let step = if random.once_in(20) {
        random.number(1, 100)
    } else {
        random.number(1, (max - min) / 2 + 1)
    };
    match random.number(0, 9) {
        0..=4 => show(a),
        5 | 6 => format!("{}-{}", show(from), show(to)),
        7 => format!("*/{step}"),
        8 => format!("{}-{}/{step}", show(from), show(to)),
        _ => format!("{a}/{step}"),
    }
}

fn or_star(random: &mut Random, times: u64, text: impl FnOnce(&mut Random) -> String) -> String {
    if random.once_in(times) {
        text(random)
    } else {
        "*".into()
    }
}

fn clock(random: &mut Random) -> [String; 2] {
    let minute = if random.once_in(5) {
        "*".into()
    } else {
        list(random, 0, 59, &[])
    };
    [
        minute,
        or_star(random, 2, |random| list(random, 0, 23, &[])),
    ]
}

/// An expression of the Unix dialect, 5 fields, or 6 with the weekday's day by name.
pub(crate) fn unix(random: &mut Random) -> String {
    let [minute, hour] = clock(random);
    let day = or_star(random, 2, |random| match random.number(0, 11) {
        0 => "L".into(),
        1 => "LW".into(),
        2 => format!("{}W", random.number(1, 31)),
        _ => list(random, 1, 31, &[]),
    });
    let month = or_star(random, 4, |random| list(random, 1, 12, &MONTHS));
    let weekday = or_star(random, 2, |random| match random.number(0, 11) {
        0 => format!("{}L", random.number(0, 6)),
        1 => format!("{}#{}", random.number(0, 6), random.number(1, 5)),
        2 => format!("+{}", list(random, 0, 6, &WEEKDAYS)),
        3 => "7".into(),
        _ => list(random, 0, 6, &WEEKDAYS),
    });
    let five = format!("{minute} {hour} {day} {month} {weekday}");
    if random.once_in(3) {
        format!("{} {five}", list(random, 0, 59, &[]))
    } else {
        five
    }
}

/// An expression of the Quartz dialect, 6 or 7 fields.
pub(crate) fn quartz(random: &mut Random) -> String {
    let second = if random.once_in(2) {
        "0".into()
    } else {
        list(random, 0, 59, &[])
    };
    let [minute, hour] = clock(random);
    let month = or_star(random, 4, |random| list(random, 1, 12, &MONTHS));
    let (day, weekday) = match random.number(0, 4) {
        0 => ("*".into(), "?".into()),
        1 => ("*".into(), "*".into()),
        2 => (quartz_day(random), random.pick(&["?", "*"]).into()),
        _ => (random.pick(&["?", "*"]).into(), quartz_weekday(random)),
    };
    let six = format!("{second} {minute} {hour} {day} {month} {weekday}");
    if random.once_in(4) {
        let year = match random.number(0, 3) {
            0 => "*".into(),
            1 => format!("{}/{}", random.number(1970, 2100), random.number(1, 20)),
            2 => {
                let from = random.number(1970, 2090);
                let last = if random.once_in(4) { 2199 } else { 2100 };
                format!("{from}-{}", random.number(from, last))
            }
            _ => random.number(2019, 2110).to_string(),
        };
        format!("{six} {year}")
    } else {
        six
    }
}

fn quartz_day(random: &mut Random) -> String {
    match random.number(0, 11) {
        0 => "L".into(),
        1 => "LW".into(),
        2 => format!("L-{}", random.number(1, 30)),
        3 => format!("{}W", random.number(1, 31)),
        4 => format!("L-{}W", random.number(1, 30)),
        _ => list(random, 1, 31, &[]),
    }
}

fn quartz_weekday(random: &mut Random) -> String {
    match random.number(0, 11) {
        0 => format!("{}L", random.number(1, 7)),
        1 => format!("{}#{}", random.number(1, 7), random.number(1, 5)),
        2 => "L".into(),
        _ => list(random, 1, 7, &WEEKDAYS),
    }
}

/// Anything: mostly characters of expressions, in any order; half of them a sane text damaged.
pub(crate) fn hostile(random: &mut Random) -> String {
    const PARTS: &[&str] = &[
        "*",
        "/",
        "-",
        ",",
        "?",
        "L",
        "W",
        "#",
        "+",
        " ",
        "  ",
        "\t",
        "0",
        "1",
        "5",
        "7",
        "9",
        "31",
        "59",
        "60",
        "99",
        "4294967296",
        "18446744073709551616",
        "MON",
        "SUN",
        "jan",
        "@",
        "@daily",
        "TZ=",
        "CRON_TZ=",
        "\0",
        "\n",
        "é",
        "３",
        "\u{202e}",
        "x",
        "0x",
        ".",
        "1-",
        "*/",
        "LW",
        "~",
        "2199",
        "1970",
        "H",
    ];
    let mut text = match random.number(0, 3) {
        0 => unix(random),
        1 => quartz(random),
        _ => String::new(),
    };
    let edits = if text.is_empty() { 12 } else { 4 };
    for _ in 0..random.number(0, edits) {
        let at = random.number(0, text.len() as u64) as usize;
        let at = (0..=at)
            .rev()
            .find(|at| text.is_char_boundary(*at))
            .unwrap_or(0);
        if random.once_in(4) && at < text.len() {
            text.remove(at);
        } else {
            text.insert_str(at, random.pick(PARTS));
        }
    }
    text
}
