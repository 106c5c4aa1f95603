//! The `punctual` program: node, command line and HTTP API of the job scheduler.
mod jobfile;
fn main() {}
