//! `serve`: a node until somebody stops it.

use std::path::Path;
use std::time::Duration;

use punctual::control::ControlError;
use punctual::job::spec::JobSpec;
use tokio::task::JoinHandle;

use crate::cli::args::Common;
use crate::cli::failure::{Exit, Failure, Outcome};
use crate::commands::read_files;
use crate::config::ServeArgs;
use crate::job_files::Standing;
use crate::logs;
use crate::output::say;
use crate::server::{Server, apply_until_done};
use crate::signals::{Signals, Told, die};
use crate::telemetry;
use punctual_server::jobfile::JobFile;

/// Runs a node as the options say.
pub(crate) fn serve(common: &Common, args: ServeArgs) -> Outcome {
    let config = args.resolve(common.data_dir.clone())?;
    let files = config.args.jobs.clone().unwrap_or_default();
    let file = read_files(&files)?;
    telemetry::start(
        config.log_format,
        telemetry::level(common.quiet, common.verbose),
    );
    punctual_server::exec::raise_file_limit();
    run_to_end(async {
        // Before anything is opened: a signal must not leave it half-way.
        let mut signals = Signals::listen()?;
        let server = Server::start(&config, &file, false).await?;
        if !config.listen.ip().is_loopback() {
            say(&format!(
                "warning: {} is open to other machines without encryption: whoever listens on the\n  \
                 network learns the token. This node runs no commands.",
                config.listen
            ));
        }
        greet(&server, &config.data_dir);
        tokio::select! {
            ended = run(server, &mut signals, file) => ended,
            () = logs::keep_tidy(&config.data_dir) => Ok(()),
        }
    })
}

/// Runs a node's life on a runtime of its own.
pub(crate) fn run_to_end(life: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::new(Exit::Bug, format!("no runtime: {e}")))?;
    let result = runtime.block_on(life);
    // Somebody's huge job file may still be being read.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

/// Where it listens, and what to do next.
fn greet(server: &Server, data_dir: &Path) {
    say(&format!(
        "punctual {} listens on {}\n  node {}, store {}, data directory {}",
        env!("CARGO_PKG_VERSION"),
        server.url,
        server.node_id,
        server.store,
        data_dir.display()
    ));
    if let Some(token) = &server.new_token {
        say(&format!(
            "  admin token, shown this once: {token}\n  \
             (on this machine the command line finds it by itself)"
        ));
    }
    say(&format!(
        "  next: {} job ls (then: apply -f jobs.yaml, run ls, status)",
        server.client_command("punctual")
    ));
}

async fn run(mut server: Server, signals: &mut Signals, file: JobFile) -> Outcome {
    let mut applying = start_apply(&server, file.jobs);
    loop {
        tokio::select! {
            // By itself it ends only when it cannot go on.
            ended = server.ended() => {
                applying.abort();
                server.close().await;
                return ended;
            }
            told = signals.next() => match told {
                Told::Stop(_) => {
                    applying.abort();
                    return stop(server, signals).await;
                }
                Told::Reload => match server.read_files_again() {
                    Ok(jobs) => {
                        applying.abort();
                        applying = start_apply(&server, jobs);
                    }
                    Err(failure) => {
                        tracing::error!("the job files stay as they were: {failure}");
                        server.job_files.set(Standing::Refused(failure.to_string()));
                    }
                },
            },
        }
    }
}

/// Brings the jobs into force beside everything else: the node must run for it.
fn start_apply(server: &Server, jobs: Vec<JobSpec>) -> JoinHandle<()> {
    let control = server.control.clone();
    let refused = server.webhooks.refused(&jobs);
    let stand = server.job_files.clone();
    stand.set(match jobs.is_empty() {
        true => Standing::Empty,
        false => Standing::Applying,
    });
    tokio::spawn(async move {
        if jobs.is_empty() {
            return;
        }
        let applied = match refused.is_empty() {
            true => apply_until_done(&control, &jobs).await,
            false => Err(ControlError::Invalid(refused)),
        };
        match applied {
            Ok(report) => {
                tracing::info!(
                    created = report.created.len(),
                    updated = report.updated.len(),
                    unchanged = report.unchanged,
                    "job files applied"
                );
                stand.set(Standing::Applied(jobs.len()));
            }
            Err(ControlError::Invalid(findings)) => {
                let mut why = Vec::new();
                for (job, finding) in findings {
                    tracing::error!(job, %finding, "the job files were refused");
                    why.push(format!("{job}: {finding}"));
                }
                stand.set(Standing::Refused(why.join("; ")));
            }
            Err(error) => {
                tracing::error!(%error, "the job files could not be applied");
                stand.set(Standing::Refused(error.to_string()));
            }
        }
    })
}

/// Ends in good order; told so again, at once.
pub(crate) async fn stop(mut server: Server, signals: &mut Signals) -> Outcome {
    server.begin_stop();
    say("punctual: stopping; runs may finish. The same signal again stops at once.");
    let ended = loop {
        tokio::select! {
            ended = server.ended() => break ended,
            told = signals.next() => {
                if let Told::Stop(signal) = told {
                    die(signal);
                }
            }
        }
    };
    server.close().await;
    ended
}
