//! The node of the punctual job scheduler: what the `punctual` binary is made of.

pub mod exec;
pub mod import;
pub mod jobfile;
pub mod outbound;
