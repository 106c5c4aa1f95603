//! The command line: one file a family of commands.

pub(crate) mod args;
mod check;
pub(crate) mod failure;
mod next;

use std::process::ExitCode;

use clap::Parser as _;

use args::{Cli, Command};
use failure::{Exit, Outcome};

use crate::output::{Output, say};

/// Runs the command that the arguments name.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help goes to standard output; that it is cut off there is no error.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    match run(cli) {
        Ok(()) => Exit::Done.into(),
        Err(failure) => {
            if !failure.message.is_empty() {
                say(&format!("punctual: {failure}"));
            }
            failure.exit.into()
        }
    }
}

fn run(cli: Cli) -> Outcome {
    let common = &cli.common;
    let output = Output::new(common);
    match cli.command {
        Command::Check(args) => check::check(&output, &args.files),
        Command::Next(args) => next::next(&output, args),
        Command::Version => version(&output),
        _ => Ok(()),
    }
}

fn version(output: &Output) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    let object = serde_json::json!({
        "name": "punctual",
        "version": version,
        "tzdb": punctual::schedule::tzdb_version(),
    });
    output.object(&object, version, || format!("punctual {version}\n"))
}
