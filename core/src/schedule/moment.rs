//! Single instants in a job file: `at`, `start`, `end`.

use chrono::{DateTime, NaiveDateTime};

use super::civil::{DAY, FIRST_CIVIL, LAST_CIVIL};
use super::error::{ScheduleError, quote};
use super::spec::{DstRules, Gap};
use super::zone::Zone;

/// Reads RFC 3339, or a local date and time in `zone`, into Unix milliseconds.
pub(crate) fn parse(
    field: &'static str,
    text: &str,
    zone: &Zone,
    dst: DstRules,
) -> Result<i64, ScheduleError> {
    let text = text.trim();
    let error = |message: &str| {
        ScheduleError::new(field, format!("{} {message}", quote(text))).at(0, text.chars().count())
    };
    let ms = if let Ok(instant) = DateTime::parse_from_rfc3339(text) {
        instant.timestamp_millis()
    } else {
        let civil_ms = local_ms(text).ok_or_else(|| {
            error("is no instant").hint(
                "write 2026-01-01T09:00:00Z, 2026-01-01T09:00:00+08:00, or 2026-01-01T09:00:00 for the time in `timezone`",
            )
        })?;
        let civil = civil_ms.div_euclid(1_000);
        let Some(unix) = first_instant(civil, zone) else {
            let border = border_after(civil, zone);
            if dst.gap == Gap::Skip {
                return Err(error(&format!(
                    "does not exist in {}: the clock is set forward there",
                    zone.name()
                ))
                .hint(format!(
                    "the first time after it is {}",
                    zone.rfc3339(border)
                )));
            }
            return Ok(border * 1_000);
        };
        unix * 1_000 + civil_ms.rem_euclid(1_000)
    };
    if (FIRST_CIVIL + DAY..=LAST_CIVIL - DAY).contains(&ms.div_euclid(1_000)) {
        Ok(ms)
    } else {
        Err(error("is outside the years 1-9990"))
    }
}

/// Civil milliseconds of a local date and time.
fn local_ms(text: &str) -> Option<i64> {
    [
        "%Y-%m-%dT%H:%M:%S%.f",
        "%Y-%m-%d %H:%M:%S%.f",
        "%Y-%m-%dT%H:%M",
        "%Y-%m-%d %H:%M",
    ]
    .iter()
    .find_map(|format| NaiveDateTime::parse_from_str(text, format).ok())
    .map(|local| local.and_utc().timestamp_millis())
}

/// The first Unix second at which the clocks of a zone show a civil second; `None` in a gap.
fn first_instant(civil: i64, zone: &Zone) -> Option<i64> {
    let mut stretch = zone.stretch(civil - 2 * DAY);
    loop {
        let unix = civil - i64::from(stretch.offset);
        if unix < stretch.start {
            return None;
        }
        if unix < stretch.end {
            return Some(unix);
        }
        stretch = zone.stretch(stretch.end);
    }
}

/// The instant at which the gap that holds a civil second ends.
fn border_after(civil: i64, zone: &Zone) -> i64 {
    let mut stretch = zone.stretch(civil - 2 * DAY);
    while stretch.end != i64::MAX && civil - i64::from(stretch.offset) >= stretch.start {
        stretch = zone.stretch(stretch.end);
    }
    stretch.start
}
