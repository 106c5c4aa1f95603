//! The `punctual` program: node, command line and HTTP API of the job scheduler.

mod api;
mod calls;
mod cli;
mod client;
mod commands;
mod config;
mod demo;
mod discover;
mod doctor;
mod etcd;
mod files;
mod job_files;
mod logs;
mod metrics;
mod notify;
mod output;
mod probe;
mod serve;
mod server;
mod signals;
mod spool;
mod store;
mod table;
mod telemetry;
mod times;

use std::process::ExitCode;

use mimalloc::MiMalloc;
use punctual_server::exec;

/// A node makes and drops many small things; the system's allocator took a third of its time.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    // Before any runtime, any thread and any option: a supervisor must be small and start fast.
    if std::env::args_os().nth(1).as_deref() == Some(exec::SUPERVISE.as_ref()) {
        return exec::supervisor::main();
    }
    cli::main()
}
