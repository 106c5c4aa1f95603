//! Jobs (templates) and runs (their fires).

pub mod run;
