//! The `punctual` program: node, command line and HTTP API of the job scheduler.

mod cli;
mod config;
mod jobfile;
mod output;
mod table;
mod times;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
