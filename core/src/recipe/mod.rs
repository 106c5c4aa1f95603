//! Built once on the store's primitives, so that no store can get it differently.

pub mod committer;
pub mod election;
pub(crate) mod outage;
pub mod retry;
pub mod session;
pub mod view;
