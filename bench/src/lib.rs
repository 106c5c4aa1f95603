//! What the benchmarks of next-fire share: the expressions, and one way to ask three libraries.

pub mod callgrind;

use std::str::FromStr;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use croner::parser::{CronParser, Seconds};
use punctual::schedule::cron::Cron;
use punctual::schedule::{Dialect, ScheduleError, Zone};

/// The instant after which the benchmarks ask: 2026-03-01T00:00:30Z, Unix milliseconds.
pub const AFTER_MS: i64 = 1_772_323_230_000;

/// An expression, as each library writes it.
pub struct Expression {
    /// As ours reads it.
    pub ours: &'static str,
    /// As `cron` does: seconds first, weekdays by name. `None` when it has no form for it.
    pub cron: Option<&'static str>,
    /// As `croner` does.
    pub croner: &'static str,
}

/// The expressions of the published table.
pub const EXPRESSIONS: [Expression; 7] = [
    Expression {
        ours: "* * * * *",
        cron: Some("0 * * * * *"),
        croner: "* * * * *",
    },
    Expression {
        ours: "30 2 * * *",
        cron: Some("0 30 2 * * *"),
        croner: "30 2 * * *",
    },
    Expression {
        ours: "0 9-17 * * 1-5",
        cron: Some("0 0 9-17 * * MON-FRI"),
        croner: "0 9-17 * * 1-5",
    },
    Expression {
        ours: "*/10 * * * * *",
        cron: Some("*/10 * * * * *"),
        croner: "*/10 * * * * *",
    },
    Expression {
        ours: "0 0 12 L * ?",
        cron: None,
        croner: "0 0 12 L * ?",
    },
    Expression {
        ours: "0 0 29 2 *",
        cron: Some("0 0 0 29 2 *"),
        croner: "0 0 29 2 *",
    },
    Expression {
        ours: "0 0 30 2 *",
        cron: Some("0 0 0 30 2 *"),
        croner: "0 0 30 2 *",
    },
];

/// A compiled expression of one of the libraries, ready to be asked.
pub enum Reader {
    /// Ours, and the zone.
    Ours(Box<Cron>, Zone),
    /// `cron`.
    Cron(Box<cron::Schedule>, Tz),
    /// `croner`.
    Croner(Box<croner::Cron>, Tz),
}

/// The names of the libraries.
pub const LIBRARIES: [&str; 3] = ["ours", "cron", "croner"];

impl Reader {
    /// A library's reading of an expression in a zone; `None` when it cannot read it.
    #[must_use]
    pub fn new(library: &str, expression: &Expression, zone: &str) -> Option<Self> {
        let tz = Tz::from_str(zone).ok()?;
        match library {
            "ours" => {
                let read = |text| -> Result<_, ScheduleError> {
                    Ok((Cron::parse(text, Dialect::Auto)?, Zone::get(zone)?))
                };
                let (cron, zone) = read(expression.ours).ok()?;
                Some(Self::Ours(Box::new(cron), zone))
            }
            "cron" => {
                let schedule = cron::Schedule::from_str(expression.cron?).ok()?;
                Some(Self::Cron(Box::new(schedule), tz))
            }
            _ => {
                let parser = CronParser::builder().seconds(Seconds::Optional).build();
                let schedule = parser.parse(expression.croner).ok()?;
                Some(Self::Croner(Box::new(schedule), tz))
            }
        }
    }

    /// The next fire after an instant, both in Unix milliseconds.
    #[must_use]
    pub fn next(&self, after_ms: i64) -> Option<i64> {
        if let Self::Ours(cron, zone) = self {
            return cron.next(after_ms, zone);
        }
        let utc = DateTime::<Utc>::from_timestamp_millis(after_ms)?;
        match self {
            Self::Ours(..) => None,
            Self::Cron(schedule, tz) => {
                let next = schedule.after(&utc.with_timezone(tz)).next()?;
                Some(next.timestamp_millis())
            }
            Self::Croner(schedule, tz) => {
                let after = utc.with_timezone(tz);
                let next = schedule.find_next_occurrence(&after, false).ok()?;
                Some(next.timestamp_millis())
            }
        }
    }
}
