//! Rows of the catalogue of what went wrong with others (`S`: in the simulation), each with its own
//! numbers. Those on a real etcd are in `tests/tests/rows`; which row is shown where is listed in
//! `docs/simulation.md`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed check panics, that is its answer"
)]

mod by_hand;
mod chain;
mod clocks;
mod divided;
mod dst;
mod duplicate;
mod fencing;
mod hold;
mod lead;
mod misfire;
mod outage;
mod overlap;
mod retry;
mod scale;
mod shutdown;
mod stage;
