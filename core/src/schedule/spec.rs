//! What a job file says under `schedule:` and `calendars:`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::cron::Cron;
use super::error::ScheduleError;
use crate::duration::Millis;

/// The text of a schedule as a job file holds it; [`Schedule::compile`](super::Schedule::compile)
/// gives it its meaning.
///
/// At most one of `cron`, `every`, `after_finish` and `at`; none of them means that the job runs
/// on demand only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSpec {
    /// 5 fields (Unix), 6 (leading seconds), 7 (year, Quartz), or a macro such as `@daily`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// A fixed period of whole seconds, anchored at `start` or at the job's creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Millis>,
    /// How long after the end of the last run the next one starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_finish: Option<Millis>,
    /// Once: an RFC 3339 instant, or a local date and time in `timezone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// IANA name of the zone that dates and times are meant in; UTC when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// How `cron` numbers weekdays and what its fields are.
    #[serde(skip_serializing_if = "is_default")]
    pub dialect: Dialect,
    /// What happens to fixed times when the clock is changed.
    #[serde(skip_serializing_if = "is_default")]
    pub dst: DstRules,
    /// No instant before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// No instant after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<String>,
    /// Days on which instants are skipped: `2026-12-25`, `2026-12-24..2027-01-02`, or the name of
    /// a calendar of the job file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// A run may start up to this much later than its instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Millis>,
}

impl ScheduleSpec {
    /// The same with `auto` replaced by the dialect that it comes to, as it is stored with a job:
    /// what a text meant when it was accepted is what it means for ever.
    ///
    /// # Errors
    /// When `cron` is no expression.
    pub fn with_dialect_decided(mut self) -> Result<Self, ScheduleError> {
        if let Some(text) = &self.cron {
            self.dialect = Cron::dialect_of(text, self.dialect)?;
        }
        Ok(self)
    }
}

/// Which rules a cron expression is read by.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// 5 fields are Unix, 7 fields or a `?` are Quartz, 6 fields are Unix unless the weekday is a
    /// number, which is refused because the two count weekdays differently.
    #[default]
    Auto,
    /// 5 fields, or 6 with leading seconds; weekday 0-7, 0 and 7 are Sunday.
    Unix,
    /// 6 fields, or 7 with the year; weekday 1-7, 1 is Sunday.
    Quartz,
}

/// What becomes of fixed times (expressions without `*` and steps
/// in second, minute and hour) when the clock is changed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields, default)]
pub struct DstRules {
    /// The clock goes forward and the time does not exist.
    pub gap: Gap,
    /// The clock goes back and the time exists twice.
    pub overlap: Overlap,
}

/// A fixed time that does not exist on that day.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Gap {
    /// It fires at the first instant after the gap, once however many times fall into it.
    #[default]
    Fire,
    /// It is skipped, and the skip is recorded.
    Skip,
}

/// A fixed time that exists twice on that day.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Overlap {
    /// The first of the two fires.
    #[default]
    Once,
    /// Both fire.
    Twice,
}

/// Named calendars of a job file: lists of dates `2026-12-25` and ranges `2026-12-24..2027-01-02`
/// that `exclude` may name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Calendars(pub BTreeMap<String, Vec<String>>);

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
