//! Why an instant is none of a schedule's: which field does not match, in words.

use super::ast::{Ast, Field, WEEKDAYS};
use super::civil::{DAY, civil_from_days, weekday};
use super::compiled::{Schedule, Timing};
use super::cron::Cron;
use super::error::{ScheduleError, quote};
use super::reading::MONTH_NAMES;
use super::spec::{Calendars, ScheduleSpec};

impl Schedule {
    /// Why the schedule of `spec` has no instant at `at_ms` (Unix milliseconds), most telling reason
    /// first; empty when it has one. `anchor_ms` as in [`Schedule::compile`].
    ///
    /// # Errors
    /// As [`Schedule::compile`].
    pub fn mismatch(
        spec: &ScheduleSpec,
        anchor_ms: i64,
        at_ms: i64,
    ) -> Result<Vec<String>, ScheduleError> {
        let schedule = Self::compile(spec, anchor_ms, &Calendars::default())?;
        if schedule.next(at_ms.saturating_sub(1)).map(|o| o.at_ms) == Some(at_ms) {
            return Ok(Vec::new());
        }
        let show = |at_ms: i64| schedule.zone().rfc3339(at_ms.div_euclid(1_000));
        let mut reasons = Vec::new();
        let rare = schedule.0.rare.as_deref();
        let second = at_ms.div_euclid(1_000);
        if let Some(start) = rare
            .and_then(|rare| rare.start)
            .filter(|start| second < *start)
        {
            reasons.push(format!(
                "it lies before the schedule's `start`, {}",
                show(start * 1_000)
            ));
        }
        if let Some(end) = rare.and_then(|rare| rare.end).filter(|end| second > *end) {
            reasons.push(format!(
                "it lies behind the schedule's `end`, {}",
                show(end * 1_000)
            ));
        }
        match (&schedule.0.timing, &spec.cron) {
            (Timing::Cron(_), Some(text)) => {
                let (ast, cron) = Cron::read(text, spec.dialect, None)?;
                let offset = i64::from(schedule.zone().offset(second));
                reasons.extend(fields(text, &ast, &cron, second + offset));
                if reasons.is_empty() && at_ms.rem_euclid(1_000) == 0 {
                    // The clock shows this time twice, or the rules moved it.
                    reasons.push(
                        "every field matches what the clock shows, but the clock was set back: it \
                         shows this time twice, and the schedule takes the first one"
                            .into(),
                    );
                }
            }
            (Timing::At(only_ms), _) => {
                reasons.push(format!("it fires once only, at {}", show(*only_ms)));
            }
            (Timing::Every(..), _) => {
                let before = schedule.previous(at_ms).map(|o| show(o.at_ms));
                let after = schedule.next(at_ms).map(|o| show(o.at_ms));
                let period = spec.every.unwrap_or_default();
                reasons.push(match (before, after) {
                    (Some(before), Some(after)) => format!(
                        "`every: {period}` has {before} and {after}, and nothing between them"
                    ),
                    (None, Some(after)) => {
                        format!("`every: {period}` begins with {after}")
                    }
                    (Some(before), None) => format!("`every: {period}` ended with {before}"),
                    (None, None) => format!("`every: {period}` has no instant"),
                });
            }
            (Timing::AfterFinish(_), _) => {
                reasons.push("it has no instants of its own: it follows the end of runs".into());
            }
            _ => reasons.push("it has no schedule: it runs on demand only".into()),
        }
        if at_ms.rem_euclid(1_000) != 0 {
            reasons.push("instants are whole seconds".into());
        }
        Ok(reasons)
    }
}

/// The fields that a civil second does not match.
fn fields(text: &str, ast: &Ast, cron: &Cron, civil: i64) -> Vec<String> {
    let days = civil.div_euclid(DAY);
    let (year, month, day) = civil_from_days(days);
    let day_second = civil.rem_euclid(DAY);
    let (hour, minute, second) = (day_second / 3_600, day_second / 60 % 60, day_second % 60);
    let mut reasons = Vec::new();
    if !cron.has_year(year)
        && let Some(field) = &ast.year
    {
        reasons.push(format!("year {year} is not in {}", written(text, field)));
    }
    if cron.months >> month & 1 == 0 {
        let name = MONTH_NAMES[month as usize - 1];
        reasons.push(format!(
            "{name} is not in month {}",
            written(text, &ast.month)
        ));
    }
    if cron.days_of(year, month) >> day & 1 == 0 {
        let name = WEEKDAYS[weekday(days) as usize];
        reasons.push(match (ast.day.is_open(), ast.weekday.is_open()) {
            (false, true) => format!(
                "day {day} is not in day of month {}",
                written(text, &ast.day)
            ),
            (true, _) => format!(
                "{name} is not in day of week {}",
                written(text, &ast.weekday)
            ),
            (false, false) if cron.either_day => format!(
                "neither is day {day} in day of month {}, nor {name} in day of week {}",
                written(text, &ast.day),
                written(text, &ast.weekday)
            ),
            (false, false) => format!(
                "day {day}, a {name}, is not in day of month {} and day of week {} at once",
                written(text, &ast.day),
                written(text, &ast.weekday)
            ),
        });
    }
    for (bits, value, name, field) in [
        (u64::from(cron.hours), hour, "hour", &ast.hour),
        (cron.minutes, minute, "minute", &ast.minute),
        (cron.seconds, second, "second", &ast.second),
    ] {
        if bits >> value & 1 == 0 {
            reasons.push(match field.len {
                0 => format!("{name} {value:02} is not 00, which {} means", quote(text)),
                _ => format!("{name} {value:02} is not in {}", written(text, field)),
            });
        }
    }
    reasons
}

/// A field as it stands in the text; of a macro, the whole.
fn written(text: &str, field: &Field) -> String {
    let words: String = text.chars().skip(field.start).take(field.len).collect();
    match words.as_str() {
        "" => quote(text),
        words => quote(words),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duration::Millis;

    fn ms(text: &str) -> i64 {
        text.parse::<jiff::Timestamp>().unwrap().as_millisecond()
    }

    fn why(cron: &str, zone: &str, at: &str) -> Vec<String> {
        let spec = ScheduleSpec {
            cron: Some(cron.into()),
            timezone: Some(zone.into()),
            ..ScheduleSpec::default()
        };
        Schedule::mismatch(&spec, 0, ms(at)).unwrap()
    }

    #[test]
    fn the_field_that_does_not_match_is_named() {
        // 2026-03-04 is a Wednesday.
        for (cron, at, reasons) in [
            ("*/5 * * * *", "2026-03-04T10:10:00Z", &[][..]),
            (
                "*/5 * * * *",
                "2026-03-04T10:07:00Z",
                &["minute 07 is not in `*/5`"],
            ),
            (
                "*/5 * * * *",
                "2026-03-04T10:07:30Z",
                &[
                    "minute 07 is not in `*/5`",
                    "second 30 is not 00, which `*/5 * * * *` means",
                ],
            ),
            (
                "0 9-17 * * MON-FRI",
                "2026-03-08T18:00:00Z",
                &[
                    "SUN is not in day of week `MON-FRI`",
                    "hour 18 is not in `9-17`",
                ],
            ),
            (
                "0 0 1 * *",
                "2026-03-04T00:00:00Z",
                &["day 4 is not in day of month `1`"],
            ),
            (
                "0 0 1 * FRI",
                "2026-03-04T00:00:00Z",
                &["neither is day 4 in day of month `1`, nor WED in day of week `FRI`"],
            ),
            (
                "0 0 0 ? JAN MON 2027",
                "2026-01-05T00:00:00Z",
                &["year 2026 is not in `2027`"],
            ),
            (
                "0 0 * JAN,FEB *",
                "2026-03-04T00:00:00Z",
                &["March is not in month `JAN,FEB`"],
            ),
            (
                "@daily",
                "2026-03-04T01:00:00Z",
                &["hour 01 is not 00, which `@daily` means"],
            ),
            (
                "0 0 L * *",
                "2026-02-27T00:00:00Z",
                &["day 27 is not in day of month `L`"],
            ),
            (
                "* * * * *",
                "2026-03-04T00:00:00.500Z",
                &["instants are whole seconds"],
            ),
        ] {
            assert_eq!(why(cron, "UTC", at), reasons, "{cron} {at}");
        }
        // In the zone of the schedule.
        assert_eq!(
            why("5 0 * * *", "Asia/Shanghai", "2026-03-04T00:05:00Z"),
            ["hour 08 is not in `0`"]
        );
        let twice = why("30 1 * * *", "America/New_York", "2026-11-01T06:30:00Z");
        assert!(twice[0].contains("takes the first one"), "{twice:?}");
    }

    #[test]
    fn rhythms_and_single_times_say_what_they_have() {
        let spec = ScheduleSpec {
            every: Some(Millis::from_secs(3_600)),
            ..ScheduleSpec::default()
        };
        assert_eq!(
            Schedule::mismatch(&spec, 0, 5_000_000).unwrap(),
            [
                "`every: 1h` has 1970-01-01T01:00:00+00:00 and 1970-01-01T02:00:00+00:00, and \
                 nothing between them"
            ]
        );
        assert!(Schedule::mismatch(&spec, 0, 7_200_000).unwrap().is_empty());
        let spec = ScheduleSpec {
            at: Some("1970-01-01T01:00:00Z".into()),
            ..ScheduleSpec::default()
        };
        assert_eq!(
            Schedule::mismatch(&spec, 0, 0).unwrap(),
            ["it fires once only, at 1970-01-01T01:00:00+00:00"]
        );
        let spec = ScheduleSpec {
            start: Some("1970-01-02T00:00:00Z".into()),
            cron: Some("0 * * * *".into()),
            ..ScheduleSpec::default()
        };
        let reasons = Schedule::mismatch(&spec, 0, 3_600_000).unwrap();
        assert_eq!(
            reasons,
            ["it lies before the schedule's `start`, 1970-01-02T00:00:00+00:00"]
        );
    }

    /// Whatever a schedule says of an instant, it agrees with what the schedule fires.
    #[test]
    fn a_reason_is_given_exactly_where_nothing_fires() {
        for cron in [
            "*/7 3 * * *",
            "30 2 * * *",
            "15 */6 L * *",
            "0 12 * 3 TUE#2",
        ] {
            for zone in ["UTC", "America/New_York", "Australia/Lord_Howe"] {
                let spec = ScheduleSpec {
                    cron: Some(cron.into()),
                    timezone: Some(zone.into()),
                    ..ScheduleSpec::default()
                };
                let schedule = Schedule::compile(&spec, 0, &Calendars::default()).unwrap();
                let from = ms("2026-03-01T00:00:00Z");
                for minute in 0..40 * 24 * 12 {
                    let at_ms = from + minute * 300_000;
                    let fires = schedule.next(at_ms - 1).is_some_and(|o| o.at_ms == at_ms);
                    let reasons = Schedule::mismatch(&spec, 0, at_ms).unwrap();
                    assert_eq!(fires, reasons.is_empty(), "{cron} {zone} {at_ms}");
                }
            }
        }
    }
}
