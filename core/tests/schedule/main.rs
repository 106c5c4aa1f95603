//! Tests of next-fire from outside. Rows of the behaviour table (ways in which schedulers have
//! failed people) that a schedule alone decides are tests named by their id.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod brute;
mod corpus;
mod creation;
mod departures;
mod differential;
mod dst;
mod helpers;
mod hostile;
mod keys;
mod parsing;
mod periods;
mod properties;
mod random;
mod texts;
