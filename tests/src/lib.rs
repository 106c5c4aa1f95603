//! What must hold of every store, node and interleaving.
//!
//! Nothing but tests depends on this package. A check lives here when it is about the product as a whole or
//! about all stores alike; what only one crate knows is tested in that crate.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed check panics, that is its answer"
)]

pub mod check;
pub mod cluster;
pub mod conformance;
pub mod etcd;
mod frames;
pub mod leash;
pub mod manual;
pub mod meddler;
pub mod ports;
pub mod proxy;
pub mod sim;
pub mod unsteady;
