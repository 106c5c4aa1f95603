//! Next-fire: a pure function of a definition and an instant.
//!
//! | our term | meaning |
//! |---|---|
//! | *instant* | a point of real time, in Unix milliseconds; those of a schedule are whole seconds |
//! | *civil time* | date and time as a clock on the wall of a zone shows them |
//! | *interval* | an expression whose second, minute or hour holds `*` or a step, or covers its range |
//! | *fixed time* | every other expression |
//! | *gap*, *overlap* | civil times that do not exist, or exist twice, when the clock is changed |
//!
//! What can go wrong here: a search that does not end, an answer that is not later than the
//! question, an instant lost or doubled when the clock is changed, two nodes that disagree. So
//! every search has a bound that tests count, the zone database is part of the program, and
//! nothing here reads a clock, the system's zone or its zone files.
//!
//! ```
//! use punctual::schedule::{Calendars, Schedule, ScheduleSpec, Verdict};
//!
//! let spec = ScheduleSpec {
//!     cron: Some("30 2 * * *".into()),
//!     timezone: Some("America/New_York".into()),
//!     ..ScheduleSpec::default()
//! };
//! let created_ms = 1_772_866_800_000; // 2026-03-07T02:00:00-05:00
//! let schedule = Schedule::compile(&spec, created_ms, &Calendars::default())?;
//! let fires: Vec<String> = schedule
//!     .after(created_ms)
//!     .filter(|occurrence| occurrence.verdict == Verdict::Fire)
//!     .take(3)
//!     .map(|occurrence| schedule.zone().rfc3339(occurrence.at_ms / 1_000))
//!     .collect();
//! // On 8 March 02:30 does not exist: it fires at the first instant after the gap.
//! assert_eq!(
//!     fires,
//!     [
//!         "2026-03-07T02:30:00-05:00",
//!         "2026-03-08T03:00:00-04:00",
//!         "2026-03-09T02:30:00-04:00",
//!     ]
//! );
//! # Ok::<(), punctual::schedule::ScheduleError>(())
//! ```

mod ast;
mod calendar;
mod civil;
mod compile;
mod compiled;
pub mod cron;
mod days;
mod error;
pub mod explain;
mod intern;
mod items;
mod jitter;
mod mismatch;
mod moment;
mod occurrence;
mod parse;
pub mod query;
mod reading;
mod search;
mod spec;
mod walk;
mod zone;

pub use self::compiled::Schedule;
pub use self::error::ScheduleError;
pub use self::intern::Interner;
pub use self::occurrence::{Occurrence, ScheduleKind, ScheduleSkip, Verdict};
pub use self::parse::MAX_LEN;
pub use self::search::Steps;
pub use self::spec::{Calendars, Dialect, DstRules, Gap, Overlap, ScheduleSpec};
pub use self::zone::{Zone, tzdb_version};
