//! What a schedule answers.

use crate::duration::Millis;

/// What kind of schedule it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleKind {
    /// Calendar times.
    Cron,
    /// A fixed period.
    Every,
    /// Once, at this instant (Unix milliseconds).
    At(i64),
    /// So long after the end of the last run: it has no instants of its own.
    AfterFinish(Millis),
    /// Never by itself.
    OnDemand,
}

/// One instant of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// Unix milliseconds, a whole second.
    pub at_ms: i64,
    /// Whether it fires.
    pub verdict: Verdict,
}

/// What the schedule itself says about one of its instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It fires.
    Fire,
    /// It is skipped, and the skip is recorded.
    Skip(ScheduleSkip),
}

/// Why a schedule skips one of its own instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleSkip {
    /// Its day is in `exclude`.
    Excluded,
    /// Its time does not exist on that day, and `dst.gap` is `skip`.
    DstGap,
}

impl ScheduleSkip {
    /// The reason as records, JSON and metrics name it: `excluded` or `dst_gap`.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Excluded => "excluded",
            Self::DstGap => "dst_gap",
        }
    }
}
