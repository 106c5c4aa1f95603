//! The command line: one file a family of commands.

mod admin;
mod apply;
pub(crate) mod args;
mod backfill;
mod check;
mod doctor;
mod explain;
pub(crate) mod failure;
mod import;
mod job;
mod next;
mod node;
mod pause;
mod run;
#[cfg(test)]
mod spelled;
mod status;
mod store;
mod why;

use std::process::ExitCode;

use clap::Parser as _;

use args::{Cli, Command, Common};
use failure::{Exit, Failure, Outcome};
pub(crate) use run::took;

use crate::client::Client;
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
        Command::Explain(args) => explain::explain(&output, &args),
        Command::Store(command) => store::store(common, &output, command),
        Command::Import(command) => import::run(&output, command),
        Command::Version => version(&output),
        Command::Apply(args) => block_on(apply::apply(common, &output, &args)),
        Command::Diff(args) => block_on(apply::diff(common, &output, &args)),
        Command::Job(command) => block_on(job::job(common, &output, command)),
        Command::Run(command) => block_on(run::run(common, &output, command)),
        Command::Node(command) => block_on(node::node(common, &output, command)),
        Command::Admin(command) => block_on(admin::admin(common, &output, command)),
        Command::Doctor => block_on(doctor::doctor(common, &output)),
        Command::Why { job, at } => block_on(why::why(common, &output, &job, at.as_deref())),
        Command::Status => block_on(status::status(common, &output)),
        Command::Serve(args) => crate::serve::serve(common, *args),
        Command::Demo(args) => crate::demo::demo(common, &output, &args),
    }
}

/// Client commands need one thread.
fn block_on<T>(command: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::new(Exit::Bug, format!("no runtime: {e}")))?;
    runtime.block_on(command)
}

/// A client of the server that the options name, or that is found.
fn connect(common: &Common) -> Outcome<Client> {
    Client::new(crate::discover::find(common)?, common.answer_timeout())
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
