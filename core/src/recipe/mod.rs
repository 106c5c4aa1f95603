//! Built once on the store's primitives, so that no store can get it differently.

pub mod committer;
pub mod election;
pub(crate) mod outage;
mod paging;
pub mod retry;
pub mod session;
pub mod view;
