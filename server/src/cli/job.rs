//! `job`: look at jobs and change them.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use hyper::Method;
use hyper::header::HeaderName;
use punctual::control::{JobObject, JobState, RunObject};
use punctual::job::run::RunState;
use punctual::job::spec::{CommandSpec, HistorySpec, JobSpec, OnLost, Overlap};

use super::args::{Common, JobCommand, TriggerArgs};
use super::failure::{Exit, Failure, Outcome};
use super::{backfill, connect, pause, run};
use crate::api::{Deleted, RunWithAttempts};
use crate::client::{Call, Client, escape};
use crate::files::{hex, random};
use crate::output::{Output, View, say};
use crate::table::pairs;

pub(super) async fn job(common: &Common, output: &Output, command: JobCommand) -> Outcome {
    let mut client = connect(common)?;
    match command {
        JobCommand::Ls => list(&mut client, output).await,
        JobCommand::Show { job } => {
            let job: JobObject = client.get(&path(&job, "")).await?;
            output.object(&job, &job.spec.id, || describe(output, &job))
        }
        JobCommand::Pause(args) => pause::pause(&mut client, output, args).await,
        JobCommand::Resume { job: None, .. } => pause::resume_all(&mut client, output).await,
        JobCommand::Resume { job: Some(job), .. } => pause::resume(&mut client, output, &job).await,
        JobCommand::Rm { jobs } => remove(common, &mut client, output, &jobs).await,
        JobCommand::Backfill(args) => backfill::backfill(common, &mut client, output, args).await,
        JobCommand::Trigger(args) => trigger(common, &mut client, output, args).await,
    }
}

pub(super) fn path(id: &str, rest: &str) -> String {
    format!("/v1/jobs/{}{rest}", escape(id))
}

pub(super) fn changed(output: &Output, job: &JobObject, word: &str) -> Outcome {
    if output.is_data() {
        return output.object(job, &job.spec.id, String::new);
    }
    output.line(&format!("job {} {word}", job.spec.id))
}

async fn list(client: &mut Client, output: &Output) -> Outcome {
    let mut jobs: Vec<JobObject> = client.pages("/v1/jobs", &[], None).await?;
    // The next to fire first; those without a next one last, by their ids.
    jobs.sort_by(|a, b| {
        let key = |job: &JobObject| (job.next_at.is_none(), job.next_at.clone());
        key(a).cmp(&key(b)).then_with(|| a.spec.id.cmp(&b.spec.id))
    });
    let clock = &output.clock;
    let view = View {
        columns: &[
            ("NEXT", false),
            ("LEFT", false),
            ("LAST", false),
            ("PASSED", false),
            ("JOB", false),
            ("STATE", false),
            ("ACTIVE", false),
            ("SCHEDULE", true),
            ("RUNS", true),
            ("QUEUE", true),
            ("NAME", true),
        ],
        row: &|job: &JobObject| {
            let (next, last) = (job.next_at.as_deref(), job.last_at.as_deref());
            vec![
                clock.moment(next),
                clock.distance(next),
                clock.moment(last),
                clock.distance(last),
                job.spec.id.clone(),
                state(job.state).into(),
                job.active_runs.to_string(),
                schedule(&job.spec),
                command(&job.spec),
                job.spec.queue.clone(),
                job.spec.name.clone().unwrap_or_default(),
            ]
        },
        name: &|job| job.spec.id.clone(),
    };
    output.list(&jobs, &view)?;
    if !output.is_data() {
        output.note(&format!(
            "{} listed",
            super::check::count(jobs.len(), "job")
        ));
    }
    Ok(())
}

fn state(state: JobState) -> &'static str {
    match state {
        JobState::Active => "active",
        JobState::Paused => "paused",
        JobState::Disabled => "disabled",
        JobState::Exhausted => "exhausted",
        JobState::OnDemand => "on demand",
    }
}

/// The schedule in a line: `5 0 * * * Asia/Shanghai`, `every 5m`.
fn schedule(spec: &JobSpec) -> String {
    let schedule = &spec.schedule;
    let zone = schedule.timezone.as_deref().unwrap_or_default();
    let when = if let Some(cron) = &schedule.cron {
        cron.clone()
    } else if let Some(every) = schedule.every {
        format!("every {every}")
    } else if let Some(at) = &schedule.at {
        format!("at {at}")
    } else if let Some(pause) = schedule.after_finish {
        format!("{pause} after the last run")
    } else {
        "-".into()
    };
    format!("{when} {zone}").trim_end().to_owned()
}

/// What the job does, in a line.
fn command(spec: &JobSpec) -> String {
    match (&spec.run.command, &spec.run.handler) {
        (Some(CommandSpec::Argv(argv)), _) => argv.join(" "),
        (Some(CommandSpec::Named(name)), _) => format!("command {name}"),
        (None, Some(handler)) => format!("handler {handler}"),
        (None, None) => spec.run.http.as_ref().map_or_else(
            || "-".into(),
            |http| format!("{} {}", http.method.as_str(), http.url),
        ),
    }
}

/// A word as the job file has it.
fn word(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn overlap(spec: &JobSpec) -> String {
    let policy = match spec.overlap {
        Overlap::Queue => format!("queue, {} may wait", spec.queue_limit.unwrap_or(1)),
        _ => word(&spec.overlap),
    };
    match spec.execution_limit() {
        Some(limit) => format!("{policy}, at most {limit} at once"),
        None => policy,
    }
}

fn retry(spec: &JobSpec) -> String {
    let attempts = spec.retry.attempts.unwrap_or(match spec.on_lost {
        OnLost::Fail => 1,
        OnLost::Retry => 3,
    });
    match attempts {
        0 | 1 => "no, 1 attempt".into(),
        _ => format!(
            "{attempts} attempts, {} apart, then {} times longer, at most {}",
            spec.retry.backoff, spec.retry.factor, spec.retry.max_backoff
        ),
    }
}

fn history(kept: &HistorySpec) -> String {
    format!(
        "{} success, {} failed, {} skipped, for {}",
        kept.keep_success, kept.keep_failed, kept.keep_skipped, kept.keep_for
    )
}

fn describe(output: &Output, job: &JobObject) -> String {
    let clock = &output.clock;
    let both = |time: Option<&str>| match time {
        Some(_) => format!("{} ({})", clock.moment(time), clock.distance(time)),
        None => "-".into(),
    };
    let mut lines = vec![
        ("Job", job.spec.id.clone()),
        ("Name", job.spec.name.clone().unwrap_or_default()),
        ("State", state(job.state).into()),
    ];
    if let Some(paused) = &job.paused {
        let until = match &paused.until {
            Some(until) => format!("until {}", both(Some(until))),
            None => "until it is resumed".into(),
        };
        let by = paused.by.as_deref().map(|by| format!(" by {by}"));
        let all = if paused.all { " with all jobs" } else { "" };
        let reason = paused.reason.as_deref().unwrap_or("no reason given");
        lines.push(("Paused", reason.to_owned()));
        let since = both(Some(&paused.since));
        lines.push(("  since", format!("{since}{}{all}", by.unwrap_or_default())));
        lines.push(("  ends", until));
    }
    lines.extend([
        ("Schedule", schedule(&job.spec)),
        ("Next", both(job.next_at.as_deref())),
        ("Last", both(job.last_at.as_deref())),
        ("Runs", command(&job.spec)),
        ("Queue", job.spec.queue.clone()),
        ("Timeout", job.spec.timeout.to_string()),
        ("Overlap", overlap(&job.spec)),
        ("Misfire", word(&job.spec.misfire)),
        ("Catch up", job.spec.catch_up.to_string()),
        ("Retry", retry(&job.spec)),
        ("On lost", word(&job.spec.on_lost)),
        ("History", history(&job.spec.history)),
        ("Active runs", job.active_runs.to_string()),
        ("Generation", job.generation.to_string()),
        ("Revision", job.revision.to_string()),
        ("Created", both(Some(&job.created_at))),
        ("Updated", both(Some(&job.updated_at))),
    ]);
    pairs(&lines)
}

async fn remove(common: &Common, client: &mut Client, output: &Output, jobs: &[String]) -> Outcome {
    // A script knows what it does.
    if !common.yes && std::io::stdin().is_terminal() {
        confirm(
            &format!("Delete {}?", jobs.join(", ")),
            "nothing was deleted",
        )?;
    }
    // All are tried; the first failure decides how the command ends.
    let mut result = Ok(());
    for job in jobs {
        match client
            .bytes(Method::DELETE, &path(job, ""), Call::default())
            .await
        {
            Ok(answer) => {
                if output.is_data() {
                    output.line(job)?;
                } else {
                    output.line(&format!("job {job} deleted"))?;
                }
                // Most deletions have nothing to tell.
                let told = serde_json::from_slice::<Deleted>(&answer).unwrap_or_default();
                for warning in told.warnings {
                    output.note(&format!("warning: {warning}"));
                }
            }
            Err(failure) => {
                if result.is_err() || jobs.len() > 1 {
                    say(&format!("punctual: {job}: {failure}"));
                }
                result = result.and(Err(match jobs.len() {
                    1 => failure,
                    _ => Failure::silent(failure.exit),
                }));
            }
        }
    }
    result
}

/// Asks the person at the terminal before something is done that cannot be undone.
pub(super) fn confirm(question: &str, otherwise: &str) -> Outcome {
    {
        let mut err = std::io::stderr().lock();
        write!(err, "{question} [y/N] ")?;
        err.flush()?;
    }
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new(Exit::Findings, otherwise)),
    }
}

async fn trigger(
    common: &Common,
    client: &mut Client,
    output: &Output,
    args: TriggerArgs,
) -> Outcome {
    let started = Instant::now();
    let mut body = serde_json::Map::new();
    if let Some(text) = &args.payload {
        let payload = serde_json::from_str(text)
            .map_err(|e| Failure::usage(format!("--payload is not JSON: {e}")))?;
        body.insert("payload".into(), payload);
    }
    // The same for every try of this command: a lost answer never makes a second run.
    let key = match args.idempotency_key {
        Some(key) => key,
        None => hex(&random::<16>()?),
    };
    let headers = vec![(HeaderName::from_static("idempotency-key"), key.as_str())];
    let path = path(&args.job, "/trigger");
    let triggered: RunObject = client.post(&path, &body, headers).await?;
    if !args.wait {
        return run::print_run(output, &triggered);
    }
    let waiting = wait(client, &triggered.run_id);
    let ended = match common.timeout.map(Duration::from) {
        None => waiting.await?,
        Some(timeout) => {
            let left = timeout.saturating_sub(started.elapsed());
            let waited = tokio::time::timeout(left, waiting).await;
            waited.map_err(|_| not_ended(&triggered.run_id, timeout))??
        }
    };
    run::print_run(output, &ended)?;
    match ended.state {
        RunState::Success => Ok(()),
        _ => Err(Failure::silent(Exit::Findings)),
    }
}

fn not_ended(run_id: &str, timeout: Duration) -> Failure {
    Failure::new(
        Exit::TimedOut,
        format!("the run {run_id} has not ended in {timeout:?}; it goes on"),
    )
    .hint(format!(
        "look at it with `punctual run show {run_id}`, stop it with `punctual run cancel {run_id}`"
    ))
}

/// Looks until the run has ended, retries included.
async fn wait(client: &mut Client, run_id: &str) -> Outcome<RunObject> {
    let path = format!("/v1/runs/{}", escape(run_id));
    let mut pause_ms = 50;
    loop {
        let found: RunWithAttempts = client.get(&path).await?;
        if found.run.state.is_terminal() {
            return Ok(found.run);
        }
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        pause_ms = (pause_ms * 2).min(1_000);
    }
}
