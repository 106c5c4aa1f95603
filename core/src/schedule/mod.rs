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
