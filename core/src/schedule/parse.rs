//! From text to [`Ast`]: fields, macros and the choice of a dialect.

use super::ast::{Ast, Field, FieldKind, Item, Limits, Numbering};
use super::error::{ScheduleError, quote};
use super::items;
use super::spec::Dialect;

/// Longest text that is read, in bytes.
pub const MAX_LEN: usize = 512;

/// The macros and what they stand for.
const MACROS: &[(&str, &str)] = &[
    ("yearly", "0 0 1 1 *"),
    ("annually", "0 0 1 1 *"),
    ("monthly", "0 0 1 * *"),
    ("weekly", "0 0 * * SUN"),
    ("daily", "0 0 * * *"),
    ("midnight", "0 0 * * *"),
    ("hourly", "0 * * * *"),
];

/// What reading a text came to.
#[derive(Debug)]
pub(crate) enum Parsed {
    Done(Box<Ast>),
    /// Six fields whose weekday is a number: what each dialect makes of it, and where the weekday
    /// field stands.
    Ambiguous {
        unix: Result<Box<Ast>, ScheduleError>,
        quartz: Result<Box<Ast>, ScheduleError>,
        start: usize,
        len: usize,
    },
}

/// Reads a text. Time and memory are bounded by [`MAX_LEN`].
pub(crate) fn parse(text: &str, dialect: Dialect) -> Result<Parsed, ScheduleError> {
    check_characters(text)?;
    let fields = split(text);
    let Some(&(first, first_text)) = fields.first() else {
        return Err(ScheduleError::new("cron", "the expression is empty")
            .at(0, text.len())
            .hint("write 5 fields, such as `0 5 * * *` for 05:00 every day"));
    };
    if first_text.starts_with('@') {
        return parse_macro(text, dialect, first).map(|ast| Parsed::Done(Box::new(ast)));
    }
    if let Some(zone) = first_text
        .strip_prefix("CRON_TZ=")
        .or_else(|| first_text.strip_prefix("TZ="))
    {
        return Err(
            ScheduleError::new("cron", "a zone is not part of the expression")
                .at(first, first_text.len())
                .hint(format!(
                    "write {} beside it",
                    quote(&format!("timezone: {zone}"))
                )),
        );
    }
    let question = fields.iter().any(|(_, field)| field.contains('?'));
    let numbering = match (dialect, fields.len()) {
        (Dialect::Unix, 5 | 6) | (Dialect::Auto, 5) => Numbering::Unix,
        (Dialect::Quartz, 6 | 7) | (Dialect::Auto, 7) => Numbering::Quartz,
        (Dialect::Auto, 6) if question => Numbering::Quartz,
        (Dialect::Auto, 6) => {
            let (start, weekday) = fields[5];
            if !items::has_weekday_number(weekday) {
                Numbering::Unix
            } else {
                return Ok(Parsed::Ambiguous {
                    unix: assemble(&fields, Numbering::Unix).map(Box::new),
                    quartz: assemble(&fields, Numbering::Quartz).map(Box::new),
                    start,
                    len: weekday.len(),
                });
            }
        }
        (_, count) => return Err(wrong_count(dialect, count, &fields)),
    };
    assemble(&fields, numbering).map(|ast| Parsed::Done(Box::new(ast)))
}

fn check_characters(text: &str) -> Result<(), ScheduleError> {
    if text.len() > MAX_LEN {
        return Err(ScheduleError::new(
            "cron",
            format!(
                "the expression is {} bytes long, more than {MAX_LEN}",
                text.len()
            ),
        )
        .at(MAX_LEN, 1)
        .hint("write ranges and steps instead of long lists, or make it several jobs"));
    }
    let stray = text
        .char_indices()
        .find(|(_, c)| !(c.is_ascii_graphic() || matches!(c, ' ' | '\t')));
    match stray {
        // All before the first stray character is ASCII: bytes are characters.
        Some((at, c)) => Err(ScheduleError::new(
            "cron",
            format!(
                "the character {} does not belong here",
                quote(&c.to_string())
            ),
        )
        .at(at, 1)
        .hint("write ASCII on one line, fields separated by spaces")),
        None => Ok(()),
    }
}

/// Fields and their 0-based positions.
fn split(text: &str) -> Vec<(usize, &str)> {
    let mut fields = Vec::new();
    let mut start = None;
    for (at, byte) in text.bytes().chain([b' ']).enumerate() {
        match (byte == b' ' || byte == b'\t', start) {
            (true, Some(from)) => {
                fields.push((from, &text[from..at]));
                start = None;
            }
            (false, None) => start = Some(at),
            _ => {}
        }
    }
    fields
}

fn parse_macro(text: &str, dialect: Dialect, start: usize) -> Result<Ast, ScheduleError> {
    let written = text[start..].trim_end_matches([' ', '\t']);
    let error = |message: String| ScheduleError::new("cron", message).at(start, written.len());
    if dialect == Dialect::Quartz {
        return Err(error("Quartz has no macros".into())
            .hint("write the fields, such as `0 0 0 * * ?` for @daily, or set `dialect: unix`"));
    }
    let name = written[1..].to_ascii_lowercase();
    if name == "every" || name.starts_with("every ") {
        let period = name.strip_prefix("every").unwrap_or_default().trim();
        let period = if period.is_empty() { "6h" } else { period };
        return Err(
            error("@every is not a calendar expression".into()).hint(format!(
                "write {} instead of `cron`",
                quote(&format!("every: {period}"))
            )),
        );
    }
    if name == "reboot" {
        return Err(error("@reboot names no instant".into()).hint(
            "leave out the schedule and trigger the job from the start-up script: `punctual job trigger JOB`",
        ));
    }
    let Some((_, meaning)) = MACROS.iter().find(|(known, _)| *known == name) else {
        return Err(error(format!("{} is not a macro", quote(written))).hint(
            "write @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly, or the fields",
        ));
    };
    let mut ast = assemble(&split(meaning), Numbering::Unix)?;
    ast.weekday_source = None;
    for field in [
        &mut ast.minute,
        &mut ast.hour,
        &mut ast.day,
        &mut ast.month,
        &mut ast.weekday,
    ] {
        (field.start, field.len) = (start, 0);
    }
    Ok(ast)
}

fn wrong_count(dialect: Dialect, count: usize, fields: &[(usize, &str)]) -> ScheduleError {
    let (most, wanted, hint) = match dialect {
        Dialect::Auto => (
            7,
            "5, 6 or 7 fields",
            "minute hour day month weekday; 6 fields begin with the second, 7 end with the year",
        ),
        Dialect::Unix => (
            6,
            "5 fields, or 6 with leading seconds",
            "minute hour day month weekday; a year needs `dialect: quartz`",
        ),
        Dialect::Quartz => (
            7,
            "6 fields, or 7 with the year",
            "second minute hour day month weekday; 5 fields are `dialect: unix`",
        ),
    };
    let (start, text) = fields[count.min(most + 1) - 1];
    let few_or_many = if count > most { "many" } else { "few" };
    ScheduleError::new(
        "cron",
        format!("too {few_or_many} fields: {count}, where {wanted} are needed"),
    )
    .at(start, text.len())
    .hint(hint)
}

/// Parses all fields of a text with a number of them that the dialect has.
fn assemble(fields: &[(usize, &str)], numbering: Numbering) -> Result<Ast, ScheduleError> {
    let field =
        |kind, (start, text): (usize, &str)| items::field(Limits::of(kind, numbering), start, text);
    // Five fields are those of six without the second.
    let shift = usize::from(fields.len() > 5);
    let second = if shift == 1 {
        field(FieldKind::Second, fields[0])?
    } else {
        Field {
            limits: Limits::of(FieldKind::Second, numbering),
            start: 0,
            len: 0,
            star: false,
            plus: false,
            items: vec![Item::Value(0)],
        }
    };
    let ast = Ast {
        numbering,
        second,
        minute: field(FieldKind::Minute, fields[shift])?,
        hour: field(FieldKind::Hour, fields[shift + 1])?,
        day: field(FieldKind::Day, fields[shift + 2])?,
        month: field(FieldKind::Month, fields[shift + 3])?,
        weekday: field(FieldKind::Weekday, fields[shift + 4])?,
        weekday_source: Some(fields[shift + 4].1.into()),
        year: match fields.get(6) {
            Some(&year) => Some(field(FieldKind::Year, year)?),
            None => None,
        },
    };
    if numbering == Numbering::Quartz {
        check_quartz_days(&ast)?;
    }
    Ok(ast)
}

/// Quartz: one of the day fields is `?`, or at least `*`.
fn check_quartz_days(ast: &Ast) -> Result<(), ScheduleError> {
    let (day, weekday) = (&ast.day, &ast.weekday);
    if day.items == [Item::Any] && weekday.items == [Item::Any] {
        return Err(
            ScheduleError::new("day of week", "`?` stands in both day fields")
                .at(weekday.start, weekday.len)
                .hint("write `*` in one of them"),
        );
    }
    if !day.is_open() && !weekday.is_open() {
        return Err(ScheduleError::new(
            "day of week",
            "Quartz cannot restrict the day of the month and the weekday together",
        )
        .at(weekday.start, weekday.len)
        .hint("write `?` in one of them, or set `dialect: unix`"));
    }
    Ok(())
}
