//! `demo`: a node with sample jobs on a store that is thrown away, and what they do as it happens.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use punctual::control::{Control, RunFilter, RunObject};
use punctual::job::run::RunState;

use crate::cli::args::{Common, DemoArgs};
use crate::cli::failure::{Exit, Failure, Outcome};
use crate::cli::took;
use crate::config::{Commands, DEFAULT_PORT, LogFormat, ServeArgs, ServeConfig, StoreAt};
use crate::output::{Output, say};
use crate::serve::{run_to_end, stop};
use crate::server::{Server, apply_until_done};
use crate::signals::{Signals, Told};
use crate::telemetry;
use crate::times::now_ms;
use punctual_server::jobfile::{Format, JobFile, Source, shorten};

const JOBS: &str = include_str!("demo.yaml");
/// How often the terminal is brought up to date.
const LOOK: Duration = Duration::from_millis(200);
/// More than the jobs can do between two looks.
const RECENT: usize = 100;

pub(crate) fn demo(common: &Common, output: &Output, args: &DemoArgs) -> Outcome {
    let file = samples()?;
    let level = match common.verbose {
        // The table is what there is to see.
        0 => tracing::Level::WARN,
        more => telemetry::level(false, more - 1),
    };
    telemetry::start(LogFormat::Text, level);
    let dir = tempfile::Builder::new()
        .prefix("punctual-demo-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir()
        .map_err(|e| Failure::usage(format!("cannot make a temporary directory: {e}")))?;
    let config = ServeConfig {
        notify_allow: Vec::new(),
        http_allow: Vec::new(),
        store: StoreAt::Sled(dir.path().to_owned()),
        listen: args
            .listen
            .unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT))),
        data_dir: dir.path().to_owned(),
        // Nobody else writes into this store.
        commands: Commands::Any,
        log_format: LogFormat::Text,
        args: ServeArgs::default(),
    };
    if !config.listen.ip().is_loopback() {
        return Err(Failure::usage(
            "--listen: the demo is for this machine only",
        ));
    }
    let result = run_to_end(run(&config, output, &file, args.listen.is_none()));
    // Also after a failure; the store is closed by now.
    let removed = dir.close();
    result?;
    removed.map_err(|e| Failure::new(Exit::Bug, format!("the directory of the demo stays: {e}")))
}

fn samples() -> Outcome<JobFile> {
    let source = Source {
        name: "demo.yaml".into(),
        format: Format::Yaml,
        text: JOBS.into(),
    };
    let file = JobFile::parse(&[source], now_ms());
    match file.findings.first() {
        None => Ok(file),
        Some(finding) => Err(Failure::new(Exit::Bug, finding.to_string())),
    }
}

async fn run(config: &ServeConfig, output: &Output, file: &JobFile, any_port: bool) -> Outcome {
    let mut signals = Signals::listen()?;
    let mut server = Server::start(config, file, any_port).await?;
    greet(&server, config);
    let control = server.control.clone();
    let watch = async {
        apply_until_done(&control, &file.jobs)
            .await
            .map_err(|e| Failure::new(Exit::Bug, format!("the sample jobs: {e}")))?;
        show_runs(&control, file, output).await
    };
    let watched = tokio::select! {
        watched = watch => watched,
        ended = server.ended() => {
            server.close().await;
            return ended;
        }
        () = until_stopped(&mut signals) => Ok(()),
    };
    let stopped = stop(server, &mut signals).await;
    say(&format!(
        "punctual: {} is removed",
        config.data_dir.display()
    ));
    watched.and(stopped)
}

async fn until_stopped(signals: &mut Signals) {
    while signals.next().await == Told::Reload {}
}

fn greet(server: &Server, config: &ServeConfig) {
    // The name that it was called by works for the next call too.
    let name = std::env::args().next().unwrap_or_else(|| "punctual".into());
    let punctual = server.client_command(&name);
    say(&format!(
        "punctual {} demo on {} (temporary store in {})\n\nTry in another terminal:\n  \
         {punctual} job ls\n  \
         {punctual} job trigger hello --payload '{{\"to\":\"you\"}}' --wait\n  \
         {punctual} run ls --job report --limit 10\n\n\
         Ctrl-C ends the demo and removes its store.\n",
        env!("CARGO_PKG_VERSION"),
        server.url,
        config.data_dir.display(),
    ));
}

/// Prints each attempt when it has ended, for ever.
async fn show_runs(control: &Control, file: &JobFile, output: &Output) -> Outcome {
    let mut shown = BTreeSet::new();
    let color = io::stdout().is_terminal();
    print(output, &header())?;
    loop {
        let mut ended = Vec::new();
        for job in &file.jobs {
            let filter = RunFilter {
                job: Some(job.id.clone()),
                states: Vec::new(),
            };
            // A store that is away comes back, or the node ends.
            let Ok(page) = control.runs(&filter, None, RECENT).await else {
                continue;
            };
            let new = page.items.into_iter().filter(|run| run.state.is_terminal());
            ended.extend(new.filter(|run| shown.insert((run.run_id.clone(), run.attempt))));
        }
        ended.sort_by(|a, b| a.ended_at.cmp(&b.ended_at));
        for run in &ended {
            print(output, &row(run, output, color))?;
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn print(output: &Output, line: &str) -> Outcome {
    output.line(line)?;
    io::stdout().lock().flush()?;
    Ok(())
}

fn header() -> String {
    format!(
        "{:<27}  {:<10} {:<8} {:>3}  {:>6}  {}",
        "SCHEDULED", "JOB", "STATE", "TRY", "TOOK", "OUTPUT"
    )
}

fn row(run: &RunObject, output: &Output, color: bool) -> String {
    let text = run.output_tail.as_deref().or(run.error.as_deref());
    let last = text.unwrap_or_default().trim_end().lines().last();
    let state = format!("{:<8}", run.state);
    let state = match (color, run.state) {
        (true, RunState::Success) => format!("\u{1b}[32m{state}\u{1b}[0m"),
        (true, RunState::Failed) => format!("\u{1b}[31m{state}\u{1b}[0m"),
        _ => state,
    };
    let line = format!(
        "{:<27}  {:<10} {state} {:>3}  {:>6}  {}",
        output.clock.moment(Some(&run.scheduled_at)),
        run.job_id,
        run.attempt,
        took(run),
        shorten(last.unwrap_or_default(), 60)
    );
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_jobs_are_valid() {
        let ids: Vec<String> = samples().unwrap().jobs.into_iter().map(|j| j.id).collect();
        assert_eq!(ids, ["tick", "report", "shanghai", "hello"]);
    }
}
