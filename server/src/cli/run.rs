//! `run`: look at runs and cancel them.

use std::collections::BTreeSet;

use hyper::header::HeaderName;
use punctual::control::RunObject;

use super::args::{Common, RunCommand, RunLsArgs};
use super::check::count;
use super::connect;
use super::failure::Outcome;
use crate::api::RunWithAttempts;
use crate::client::{Client, escape};
use crate::files::{hex, random};
use crate::output::{Output, View};
use crate::table::pairs;
use crate::times::{ms_of, span};

pub(super) async fn run(common: &Common, output: &Output, command: RunCommand) -> Outcome {
    let mut client = connect(common)?;
    match command {
        RunCommand::Retry {
            run,
            idempotency_key,
        } => {
            let key = match idempotency_key {
                Some(key) => key,
                None => hex(&random::<16>()?),
            };
            let headers = vec![(HeaderName::from_static("idempotency-key"), key.as_str())];
            let path = format!("/v1/runs/{}/retry", escape(&run));
            let body = serde_json::json!({ "force": common.yes });
            let run: RunObject = client.post(&path, &body, headers).await?;
            print_run(output, &run)
        }
        RunCommand::Ls(args) => list(&mut client, output, &args).await,
        RunCommand::Show { run } => {
            let path = format!("/v1/runs/{}", escape(&run));
            let found: RunWithAttempts = client.get(&path).await?;
            output.object(&found, &found.run.run_id, || {
                describe(output, &found.run, &found.attempts, &found.parts)
            })
        }
        RunCommand::Cancel { run } => {
            let path = format!("/v1/runs/{}/cancel", escape(&run));
            let run: RunObject = client.post(&path, &(), vec![]).await?;
            if output.is_data() {
                return output.object(&run, &run.run_id, String::new);
            }
            output.line(&format!(
                "run {} is told to stop ({})",
                run.run_id, run.state
            ))
        }
    }
}

async fn list(client: &mut Client, output: &Output, args: &RunLsArgs) -> Outcome {
    let states: Vec<&str> = args.states.iter().map(|state| state.as_str()).collect();
    let states = states.join(",");
    let mut query = Vec::new();
    if let Some(job) = &args.job {
        query.push(("job", job.as_str()));
    }
    if !states.is_empty() {
        query.push(("state", &states));
    }
    // The server lists a job's runs newest first, but job after job.
    let limit = args.limit.filter(|_| args.job.is_some());
    let mut runs: Vec<RunObject> = client.pages("/v1/runs", &query, limit).await?;
    if args.job.is_none() {
        runs.sort_by(|a, b| b.scheduled_at.cmp(&a.scheduled_at));
        runs.truncate(args.limit.unwrap_or(usize::MAX));
    }
    output.list(&runs, &view(&row_of(output)))?;
    if !output.is_data() {
        output.note(&footer(&runs));
    }
    Ok(())
}

/// What is listed are attempts; several may be of one run.
fn footer(attempts: &[RunObject]) -> String {
    let ids: BTreeSet<(&str, Option<u32>)> = attempts
        .iter()
        .map(|run| (run.run_id.as_str(), run.shard))
        .collect();
    let runs = count(ids.len(), "run");
    match attempts.len() {
        same if same == ids.len() => format!("{runs} listed"),
        more => format!("{runs}, {} listed", count(more, "attempt")),
    }
}

const COLUMNS: [(&str, bool); 11] = [
    ("SCHEDULED", false),
    ("JOB", false),
    ("STATE", false),
    ("REASON", false),
    ("TRY", false),
    ("TOOK", false),
    ("NODE", true),
    ("KIND", true),
    ("PART", true),
    ("EXIT", true),
    ("RUN", false),
];

fn view(row: &dyn Fn(&RunObject) -> Vec<String>) -> View<'_, RunObject> {
    View {
        columns: &COLUMNS,
        row,
        name: &|run| run.run_id.clone(),
    }
}

fn row_of(output: &Output) -> impl Fn(&RunObject) -> Vec<String> + '_ {
    |run| {
        vec![
            output.clock.show(Some(&run.scheduled_at)),
            run.job_id.clone(),
            run.state.to_string(),
            run.reason.clone().unwrap_or_default(),
            run.attempt.to_string(),
            took(run),
            run.node.clone().unwrap_or_default(),
            kind(run),
            part(run),
            run.exit_code
                .map(|code| code.to_string())
                .unwrap_or_default(),
            run.run_id.clone(),
        ]
    }
}

/// As in JSON: `scheduled`.
fn kind(run: &RunObject) -> String {
    let value = serde_json::to_value(run.kind).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

/// `3 of 8`, counted from 0 as everywhere; of a run that is divided, how many there are.
fn part(run: &RunObject) -> String {
    match (run.shard, run.shards) {
        (Some(index), Some(total)) => format!("{index} (of 0 to {})", total.saturating_sub(1)),
        (None, Some(1)) => "1 part".into(),
        (None, Some(total)) => format!("{total} parts"),
        _ => String::new(),
    }
}

/// How long it ran, if it has ended.
pub(crate) fn took(run: &RunObject) -> String {
    let ms = |time: &Option<String>| time.as_deref().and_then(ms_of);
    match (ms(&run.started_at), ms(&run.ended_at)) {
        (Some(started), Some(ended)) => span((ended - started).max(0)),
        _ => String::new(),
    }
}

fn progress(output: &Output, run: &RunObject) -> String {
    let said = run.progress.as_ref();
    said.map_or_else(String::new, |said| {
        format!("{said}, {}", output.clock.distance(Some(&said.at)))
    })
}

/// From where the next attempt can go on.
fn checkpoint(output: &Output, run: &RunObject) -> String {
    let kept = run.checkpoint.as_ref();
    kept.map_or_else(String::new, |kept| {
        let size = match kept.bytes {
            1 => "1 byte".to_owned(),
            many => format!("{many} bytes"),
        };
        let attempt = kept.attempt;
        format!(
            "{size} of attempt {attempt}, {}",
            output.clock.distance(Some(&kept.at))
        )
    })
}

/// Prints a run that something was done with.
pub(super) fn print_run(output: &Output, run: &RunObject) -> Outcome {
    output.object(run, &run.run_id, || describe(output, run, &[], &[]))
}

fn describe(
    output: &Output,
    run: &RunObject,
    attempts: &[RunObject],
    parts: &[RunObject],
) -> String {
    let clock = &output.clock;
    let time = |time: &Option<String>| match time.as_deref() {
        None => String::new(),
        time => format!("{} ({})", clock.moment(time), clock.distance(time)),
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let stands_for = match run.stands_for {
        0 | 1 => String::new(),
        many => format!("{many} instants, the first {}", text(&run.stands_from)),
    };
    let tail = match (run.output_truncated, text(&run.output_tail)) {
        (true, tail) => format!("(the end of it)\n{tail}"),
        (false, tail) => tail,
    };
    let lines = [
        ("Run", run.run_id.clone()),
        ("Job", run.job_id.clone()),
        ("Kind", kind(run)),
        ("Scheduled", time(&Some(run.scheduled_at.clone()))),
        ("State", run.state.to_string()),
        ("Reason", text(&run.reason)),
        ("Error", text(&run.error)),
        ("Attempt", run.attempt.to_string()),
        ("Part", part(run)),
        ("Node", text(&run.node)),
        ("Created", time(&Some(run.created_at.clone()))),
        ("Started", time(&run.started_at)),
        ("Ended", time(&run.ended_at)),
        ("Took", took(run)),
        ("Progress", progress(output, run)),
        ("Checkpoint", checkpoint(output, run)),
        ("Waits until", time(&run.not_before)),
        (
            "Exit code",
            run.exit_code.map(|c| c.to_string()).unwrap_or_default(),
        ),
        ("Stands for", stands_for),
        ("Triggered by", text(&run.triggered_by)),
        ("Late result", text(&run.late_result)),
        ("Trace", run.trace_id.clone()),
        ("Output", tail),
    ];
    let shown: Vec<(&str, String)> = lines
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .collect();
    let mut out = pairs(&shown);
    if attempts.len() > 1 {
        out.push_str("\nAttempts, oldest first:\n");
        for attempt in attempts {
            let reason = attempt.reason.as_deref().unwrap_or_default();
            out.push_str(&format!(
                "{:>4}  {:<8} {reason:<12} {}\n",
                attempt.attempt,
                attempt.state,
                took(attempt)
            ));
        }
    }
    if !parts.is_empty() {
        out.push_str("\nParts:\n");
        for part in parts {
            let index = part.shard.map(|i| i.to_string()).unwrap_or_default();
            let reason = part.reason.as_deref().unwrap_or_default();
            let node = part.node.as_deref().unwrap_or_default();
            let line = format!(
                "{index:>4}  {:<8} {reason:<12} try {:<3} {:<8} {node}",
                part.state.as_str(),
                part.attempt,
                took(part)
            );
            out.push_str(line.trim_end());
            out.push('\n');
        }
    }
    out
}
