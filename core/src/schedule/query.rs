//! Questions from outside about an expression: `punctual next`, `next --batch`, `/v1/next`.

use chrono::DateTime;
use serde::{Deserialize, Serialize};

use super::cron::Cron;
use super::error::{ScheduleError, quote};
use super::spec::Dialect;
use super::zone::Zone;

/// Most fires in one answer.
pub const MAX_COUNT: usize = 10_000;
/// Fires in an answer when the question names no number.
pub const DEFAULT_COUNT: usize = 5;

/// One line of `next --batch`: `{"expr","dialect","tz","after","count"}`. All but `expr` may be
/// left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextQuery {
    /// The cron expression.
    pub expr: String,
    /// The dialect that it is read by.
    #[serde(default)]
    pub dialect: Dialect,
    /// IANA name of the zone; UTC when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tz: Option<String>,
    /// RFC 3339; fires are strictly later. Now when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// How many fires, up to [`MAX_COUNT`]; [`DEFAULT_COUNT`] when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
}

/// The answer to a [`NextQuery`]: `{"next":[..]}` or `{"error":"..","at":column}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NextAnswer {
    /// The next fires, RFC 3339 with the zone's offset. Empty: it never fires again.
    Fires {
        /// In ascending order.
        next: Vec<String>,
    },
    /// The question makes no sense.
    Error {
        /// What is wrong and what to write instead.
        error: String,
        /// 1-based position in the expression (or, of a line that is no JSON, in the line); null
        /// when it lies in another field.
        at: Option<usize>,
    },
}

/// Answers one question; `now_ms` (Unix milliseconds) stands for an absent `after`.
#[must_use]
pub fn answer(query: &NextQuery, now_ms: i64) -> NextAnswer {
    match fires(query, now_ms) {
        Ok(next) => NextAnswer::Fires { next },
        Err(error) => NextAnswer::Error {
            error: error.to_string(),
            at: error.at,
        },
    }
}

/// Answers one line of JSON.
#[must_use]
pub fn answer_line(line: &str, now_ms: i64) -> NextAnswer {
    match serde_json::from_str::<NextQuery>(line) {
        Ok(query) => answer(&query, now_ms),
        Err(error) => NextAnswer::Error {
            error: format!("the line is no question: {error}"),
            at: Some(error.column().max(1)),
        },
    }
}

/// The next fires of a question, RFC 3339 with the zone's offset.
///
/// # Errors
/// When expression, zone, `after` or `count` make no sense.
pub fn fires(query: &NextQuery, now_ms: i64) -> Result<Vec<String>, ScheduleError> {
    let count = query.count.unwrap_or(DEFAULT_COUNT);
    if count > MAX_COUNT {
        return Err(
            ScheduleError::new("count", format!("{count} is more than {MAX_COUNT}"))
                .hint("ask again from the last answer on"),
        );
    }
    let zone = match &query.tz {
        Some(name) => Zone::get(name)?,
        None => Zone::utc(),
    };
    let mut after_ms = match &query.after {
        Some(text) => instant("after", text)?,
        None => now_ms,
    };
    let cron = Cron::parse_with(&query.expr, query.dialect, Some((after_ms, &zone)))?;
    let mut next = Vec::new();
    while next.len() < count
        && let Some(at_ms) = cron.next(after_ms, &zone)
    {
        next.push(zone.rfc3339(at_ms.div_euclid(1_000)));
        after_ms = at_ms;
    }
    Ok(next)
}

/// Unix milliseconds of an RFC 3339 text.
///
/// # Errors
/// When it is none; `field` is what the error names.
pub fn instant(field: &'static str, text: &str) -> Result<i64, ScheduleError> {
    DateTime::parse_from_rfc3339(text.trim())
        .map(|instant| instant.timestamp_millis())
        .map_err(|_| {
            ScheduleError::new(field, format!("{} is no RFC 3339 instant", quote(text)))
                .hint("write 2026-01-01T09:00:00Z or 2026-01-01T09:00:00+08:00")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(line: &str) -> String {
        serde_json::to_string(&answer_line(line, 0)).unwrap()
    }

    #[test]
    fn answers_lines() {
        assert_eq!(
            json(
                r#"{"expr":"5 0 * * *","dialect":"unix","tz":"Asia/Shanghai","after":"2025-12-31T16:00:00Z","count":2}"#
            ),
            r#"{"next":["2026-01-01T00:05:00+08:00","2026-01-02T00:05:00+08:00"]}"#
        );
        assert_eq!(
            json(r#"{"expr":"0 0 30 2 *","after":"2026-01-01T00:00:00Z"}"#),
            r#"{"next":[]}"#
        );
        assert_eq!(
            json(r#"{"expr":"0 * * * *","count":1}"#),
            r#"{"next":["1970-01-01T01:00:00+00:00"]}"#
        );
    }

    #[test]
    fn says_where_a_line_is_wrong() {
        let at = |line| match answer_line(line, 0) {
            NextAnswer::Error { at, error } => (at, error),
            NextAnswer::Fires { next } => panic!("{next:?}"),
        };
        assert_eq!(at(r#"{"expr":"0 0 32 * *"}"#).0, Some(5));
        assert_eq!(at(r#"{"expr":"0 0 1-32 * *"}"#).0, Some(7));
        assert_eq!(at(r#"{"expr":"* * * * *","tz":"Mars"}"#).0, None);
        assert_eq!(at(r#"{"expr":"* * * * *","count":10001}"#).0, None);
        assert_eq!(at(r#"{"expr":"* * * * *","after":"now"}"#).0, None);
        assert!(at("nonsense").1.contains("no question"));
        assert!(
            at(r#"{"expr":"* * * * *","zone":"UTC"}"#)
                .1
                .contains("zone")
        );
    }
}
