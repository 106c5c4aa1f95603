//! The `punctual` binary.

use std::io::Write;
use std::process::ExitCode;

use punctual_server::exec;

fn main() -> ExitCode {
    // Before any runtime, any thread and any option: a supervisor must be small and start fast.
    if std::env::args_os().nth(1).as_deref() == Some(exec::SUPERVISE.as_ref()) {
        return exec::supervisor::main();
    }
    // With standard error closed there is nobody to tell.
    let _ = writeln!(std::io::stderr(), "punctual: no such command");
    ExitCode::from(2)
}
