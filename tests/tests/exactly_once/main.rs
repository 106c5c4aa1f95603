//! The recipes of `docs/exactly-once.md`: on SQLite, with attempts of real nodes and of the
//! simulation.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a failed check panics, and a campaign says what it saw"
)]

#[path = "../../examples/exactly_once/sink.rs"]
mod sink;

mod page;
mod simulated;
mod sqlite;
