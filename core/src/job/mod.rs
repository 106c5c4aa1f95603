//! Jobs (templates) and runs (their fires).

pub mod run;
pub mod spec;
