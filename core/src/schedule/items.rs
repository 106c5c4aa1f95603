//! The items of one field: numbers, names, ranges, steps, `L`, `W` and `#`.

use super::ast::{Field, FieldKind, Item, Limits, MONTHS, Numbering, WEEKDAYS};
use super::error::{ScheduleError, quote};

/// Whether a weekday field names a day by its number, which means another day in the other
/// dialect. Steps (`*/2`) and the `k` of `MON#k` are no weekdays.
pub(crate) fn has_weekday_number(text: &str) -> bool {
    text.split(',').any(|item| {
        let days = item.split(['/', '#']).next().unwrap_or_default();
        days.bytes().any(|byte| byte.is_ascii_digit())
    })
}

/// Parses a field that starts at character `start` (0-based) of the expression.
pub(crate) fn field(limits: Limits, start: usize, text: &str) -> Result<Field, ScheduleError> {
    let mut field = Field {
        limits,
        start,
        len: text.len(),
        star: text.starts_with('*'),
        plus: false,
        items: Vec::new(),
    };
    let mut from = 0;
    if limits.kind == FieldKind::Weekday && text.starts_with('+') {
        if limits.numbering == Numbering::Quartz {
            return Err(
                ScheduleError::new(limits.name, "`+` exists in Unix expressions only")
                    .at(start, 1)
                    .hint("set `dialect: unix`"),
            );
        }
        field.plus = true;
        from = 1;
    }
    if text == "?" {
        field.items.push(question(limits, start)?);
        return Ok(field);
    }
    for item in text[from..].split(',') {
        let mut cursor = Cursor {
            limits,
            text: item,
            start: start + from,
            at: 0,
        };
        field.items.push(cursor.item()?);
        from += item.len() + 1;
    }
    Ok(field)
}

fn question(limits: Limits, start: usize) -> Result<Item, ScheduleError> {
    let error = |message: &str| ScheduleError::new(limits.name, message).at(start, 1);
    match limits.kind {
        FieldKind::Day | FieldKind::Weekday if limits.numbering == Numbering::Quartz => {
            Ok(Item::Any)
        }
        FieldKind::Day | FieldKind::Weekday => Err(error("`?` exists in Quartz expressions only")
            .hint("write `*`, or 6 fields with `dialect: quartz`")),
        _ => Err(error("`?` belongs into a day field only").hint("write `*`")),
    }
}

/// A place in one item.
struct Cursor<'t> {
    limits: Limits,
    text: &'t str,
    /// Where the item begins in the expression, 0-based.
    start: usize,
    at: usize,
}

impl Cursor<'_> {
    /// The whole item.
    fn item(&mut self) -> Result<Item, ScheduleError> {
        if self.text.is_empty() {
            return Err(self
                .error("an item of the list is empty", 1)
                .hint("take the surplus comma away"));
        }
        if self.text.contains('?') {
            self.at = self.text.find('?').unwrap_or_default();
            return Err(self
                .error("`?` stands alone in its field", 1)
                .hint("take it out of the list, range or step"));
        }
        let item = match self.limits.kind {
            FieldKind::Day => self.day_special()?,
            FieldKind::Weekday => self.weekday_special()?,
            _ => None,
        };
        match item {
            Some(item) => Ok(item),
            None => self.plain(),
        }
    }

    /// `*`, `N`, `A-B`, each with an optional step.
    fn plain(&mut self) -> Result<Item, ScheduleError> {
        let name = self.limits.name;
        let base = match self.peek() {
            Some(b'*') => {
                self.at += 1;
                Item::All
            }
            Some(b'/') => {
                return Err(self
                    .error("a step needs something to step through", 1)
                    .hint(format!("write {}", quote(&format!("*{}", self.text)))));
            }
            _ => {
                let from = self.value()?;
                if self.eat(b'-') {
                    let to_at = self.at;
                    let to = self.value()?;
                    self.check_range(from, to, to_at)?;
                    Item::Range(from, to)
                } else {
                    Item::Value(from)
                }
            }
        };
        if !self.eat(b'/') {
            return self.end(base);
        }
        let step_at = self.at;
        let Some(step) = self.number(None)? else {
            return Err(self
                .error("a number must follow `/`", 1)
                .hint("write a step of 1 or more, such as `*/5`"));
        };
        if step == 0 {
            self.at = step_at;
            return Err(self
                .error(&format!("the step of the {name} is zero"), 1)
                .hint("write a step of 1 or more"));
        }
        let item = match base {
            Item::Value(from) => Item::FromStep(from, step),
            Item::Range(from, to) => Item::RangeStep(from, to, step),
            _ => Item::AllStep(step),
        };
        self.end(item)
    }

    fn check_range(&mut self, from: u32, to: u32, to_at: usize) -> Result<(), ScheduleError> {
        if from > to && self.limits.cycle == 0 {
            self.at = to_at;
            return Err(self
                .error(
                    &format!("the range ends at {to}, before it begins at {from}"),
                    self.text.len() - to_at,
                )
                .hint("years do not come round again: write the smaller one first"));
        }
        Ok(())
    }

    /// `L`, `L-n`, `LW`, `L-nW`, `nW`.
    fn day_special(&mut self) -> Result<Option<Item>, ScheduleError> {
        let upper = self.text.to_ascii_uppercase();
        if let Some(rest) = upper.strip_prefix('L') {
            self.at = 1;
            return match rest {
                "" => Ok(Some(Item::Last(0))),
                "W" => Ok(Some(Item::LastNearest(0))),
                _ if rest.starts_with('-') => self.last_minus(rest.ends_with('W')).map(Some),
                _ => Err(self
                    .error(&format!("{} does not follow L", quote(rest)), rest.len())
                    .hint("write L (the last day), LW (the last weekday, Monday to Friday) or, in Quartz, L-3")),
            };
        }
        let Some(day) = upper.strip_suffix('W') else {
            return Ok(None);
        };
        if day.is_empty() || !day.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(self
                .error("W needs one day of the month before it", self.text.len())
                .hint("write 15W for the weekday (Monday to Friday) nearest to the 15th, or LW"));
        }
        let day = self.value()?;
        Ok(Some(Item::Nearest(day)))
    }

    /// `L-n` or `L-nW`, from the minus sign on.
    fn last_minus(&mut self, nearest: bool) -> Result<Item, ScheduleError> {
        if self.limits.numbering == Numbering::Unix {
            return Err(self
                .error(
                    "an offset from L exists in Quartz expressions only",
                    self.text.len() - 1,
                )
                .hint("set `dialect: quartz` and write 6 fields, or name the day"));
        }
        self.at = 2;
        let days = self.number(None)?.filter(|days| (1..=30).contains(days));
        let Some(days) = days else {
            self.at = 1;
            return Err(self
                .error("the offset from L is not 1-30", self.text.len() - 1)
                .hint("write L-3 for three days before the last one, L for the last one"));
        };
        if nearest {
            self.at += 1;
            return self.end(Item::LastNearest(days));
        }
        self.end(Item::Last(days))
    }

    /// `L`, `nL`, `n#k`.
    fn weekday_special(&mut self) -> Result<Option<Item>, ScheduleError> {
        let upper = self.text.to_ascii_uppercase();
        if upper == "L" {
            return match self.limits.numbering {
                Numbering::Quartz => Ok(Some(Item::Value(7))),
                Numbering::Unix => Err(self
                    .error("L alone is a weekday in Quartz only", 1)
                    .hint("write SAT, or FRIL for the last Friday of the month")),
            };
        }
        if upper.contains('#') {
            let day = self.value()?;
            if !self.eat(b'#') {
                return self.end(Item::Value(day)).map(Some);
            }
            let at = self.at;
            let nth = self.number(None)?;
            let Some(nth) = nth.filter(|nth| (1..=5).contains(nth)) else {
                self.at = at;
                return Err(self
                    .error("the number after # is not 1-5", self.text.len() - at)
                    .hint("write FRI#3 for the third Friday of the month, FRIL for the last one"));
            };
            return self.end(Item::Nth(day, nth)).map(Some);
        }
        // JUL ends with an L too, but is the name of a month.
        match upper.strip_suffix('L') {
            Some(day) if !day.is_empty() && !MONTHS.contains(&upper.as_str()) => {
                let day = self.value_of(day.len())?;
                if !self.text[self.at..].eq_ignore_ascii_case("L") {
                    return self.end(Item::Value(day)).map(Some);
                }
                Ok(Some(Item::LastWeekday(day)))
            }
            _ => Ok(None),
        }
    }

    /// A number or a name of this field.
    fn value(&mut self) -> Result<u32, ScheduleError> {
        self.value_of(self.text.len())
    }

    /// A number or a name of this field that ends at `end` of the item at the latest.
    fn value_of(&mut self, end: usize) -> Result<u32, ScheduleError> {
        let at = self.at;
        let Limits { name, min, max, .. } = self.limits;
        if let Some(number) = self.number(Some((min, max)))? {
            return Ok(number);
        }
        let word = &self.text[at..end];
        let length = word.bytes().take_while(u8::is_ascii_alphabetic).count();
        if length == 0 {
            return Err(self.no_value());
        }
        let word = &word[..length];
        let found = |names: &[&str]| names.iter().position(|n| n.eq_ignore_ascii_case(word));
        if let Some(index) = found(self.limits.names) {
            self.at += length;
            return Ok(self.limits.first_name + index as u32);
        }
        let error = |message: String| self.error(&message, length);
        if found(WEEKDAYS).is_some() || found(MONTHS).is_some() {
            return Err(error(format!(
                "the name {} belongs into another field",
                quote(word)
            ))
            .hint(self.expected()));
        }
        Err(error(format!("{} is not a {name}", quote(word))).hint(self.expected()))
    }

    fn no_value(&self) -> ScheduleError {
        let error = match self.peek() {
            None => self.error("the range has no end", 1),
            Some(b'-') => self.error("a number or name must stand before and after `-`", 1),
            Some(_) => {
                let shown = self.text[self.at..].chars().next().unwrap_or(' ');
                self.error(&format!("`{shown}` is not a number or name"), 1)
            }
        };
        error.hint(self.expected())
    }

    /// A number at the cursor, if a digit stands there.
    fn number(&mut self, limits: Option<(u32, u32)>) -> Result<Option<u32>, ScheduleError> {
        let digits = self.text[self.at..]
            .bytes()
            .take_while(u8::is_ascii_digit)
            .count();
        if digits == 0 {
            return Ok(None);
        }
        let text = &self.text[self.at..self.at + digits];
        let (min, max) = limits.unwrap_or((0, u32::MAX));
        match text.parse::<u32>() {
            Ok(number) if (min..=max).contains(&number) => {
                self.at += digits;
                Ok(Some(number))
            }
            Err(_) if limits.is_none() => Err(self
                .error(&format!("the number {} is too large", quote(text)), digits)
                .hint("write a smaller one")),
            _ => Err(self
                .error(
                    &format!("{} is out of range {min}-{max}", quote(text)),
                    digits,
                )
                .hint(self.expected())),
        }
    }

    /// What the field accepts, as advice.
    fn expected(&self) -> String {
        let Limits {
            kind,
            numbering,
            min,
            max,
            ..
        } = self.limits;
        match (kind, numbering) {
            (FieldKind::Month, _) => "write 1-12 or JAN-DEC".into(),
            (FieldKind::Weekday, Numbering::Unix) => {
                "write SUN-SAT, or 0-7 where 0 and 7 are Sunday".into()
            }
            (FieldKind::Weekday, Numbering::Quartz) => {
                "write SUN-SAT, or 1-7 where 1 is Sunday".into()
            }
            _ => format!("write a number {min}-{max}"),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        self.at += usize::from(there);
        there
    }

    /// `item`, when nothing follows it.
    fn end(&self, item: Item) -> Result<Item, ScheduleError> {
        let rest = &self.text[self.at..];
        if rest.is_empty() {
            return Ok(item);
        }
        let message = match (item, rest.as_bytes()[0]) {
            (_, b'/') => "a second `/`".to_owned(),
            (Item::Range(..), b'-') => "a second `-`".to_owned(),
            _ => format!("{} does not belong here", quote(rest)),
        };
        Err(self.error(&message, rest.len()).hint(
            "an item is a number, a name, `*` or a range `A-B`, each with an optional step `/N`",
        ))
    }

    /// An error at the cursor, `len` characters long.
    fn error(&self, message: &str, len: usize) -> ScheduleError {
        ScheduleError::new(self.limits.name, message).at(self.start + self.at, len)
    }
}
