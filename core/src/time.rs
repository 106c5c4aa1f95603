//! Instants as text.

use chrono::{DateTime, SecondsFormat, Utc};

/// RFC 3339 in UTC with milliseconds: `2026-08-12T00:05:00.000Z`.
#[must_use]
pub fn rfc3339_ms(unix_ms: i64) -> String {
    datetime(unix_ms).to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// As in run ids: `20260812T000500Z`, with milliseconds only where there are some.
#[must_use]
pub fn compact(unix_ms: i64) -> String {
    let at = datetime(unix_ms);
    if unix_ms.rem_euclid(1_000) == 0 {
        at.format("%Y%m%dT%H%M%SZ").to_string()
    } else {
        at.format("%Y%m%dT%H%M%S%.3fZ").to_string()
    }
}

/// The instant as chrono's type; the epoch for what lies outside its range.
#[must_use]
pub fn datetime(unix_ms: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(unix_ms).unwrap_or_default()
}
