//! `apply` and `diff`: from job files to the server.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use hyper::Method;
use hyper::header::ACCEPT;
use punctual::control::JobObject;
use punctual::job::spec::JobSpec;
use serde::Serialize;
use serde_json::Value;

use super::args::{ApplyArgs, Common, DiffArgs};
use super::check::{count, read_valid};
use super::connect;
use super::failure::{Exit, Failure, Outcome};
use super::job::confirm;
use crate::api::{ApplyAnswer, ApplyLine, NDJSON};
use crate::client::{Call, Client, escape, failure_of, with_query};
use crate::output::{Output, say};
use punctual_server::jobfile::JobFile;

/// How many changed jobs `diff` looks into.
const MAX_DETAILS: usize = 200;

#[derive(Serialize)]
struct Body<'a> {
    jobs: &'a [JobSpec],
}

pub(super) async fn apply(common: &Common, output: &Output, args: &ApplyArgs) -> Outcome {
    let file = read_valid(&args.files)?;
    note_commands(output, &file);
    let mut client = connect(common)?;
    // A script knows what it does.
    if args.prune && !args.dry_run && !common.yes && std::io::stdin().is_terminal() {
        let planned = plan(&mut client, &file.jobs, true).await?;
        if !planned.report.deleted.is_empty() {
            confirm(&question(&planned.report.deleted), "nothing was changed")?;
        }
    }
    let answer = if args.dry_run {
        plan(&mut client, &file.jobs, args.prune).await?
    } else {
        send(&mut client, output, common, &file.jobs, args.prune).await?
    };
    warn(output, &answer);
    if output.is_data() {
        return output.object(&answer, "", String::new);
    }
    let tense = if args.dry_run { "would be " } else { "" };
    let all = output.verbose > 0 || changes(&answer) <= 20;
    for (ids, word) in [
        (&answer.report.created, "created"),
        (&answer.report.updated, "updated"),
        (&answer.report.deleted, "deleted"),
    ] {
        // Who reads of a number of deleted jobs must see which.
        if all || word == "deleted" {
            for id in ids {
                output.line(&format!("job {id} {tense}{word}"))?;
            }
        }
    }
    output.line(&summary(&answer, tense))
}

/// Whether to delete the jobs that the files do not have: how many, and the first of them.
fn question(deleted: &[String]) -> String {
    let first: Vec<&str> = deleted.iter().take(5).map(String::as_str).collect();
    let more = match deleted.len() - first.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "Delete {} that the files do not have ({}{more})?",
        count(deleted.len(), "job"),
        first.join(", ")
    )
}

fn changes(answer: &ApplyAnswer) -> usize {
    let report = &answer.report;
    report.created.len() + report.updated.len() + report.deleted.len()
}

fn summary(answer: &ApplyAnswer, tense: &str) -> String {
    let report = &answer.report;
    format!(
        "{} {tense}created, {} updated, {} unchanged, {} deleted",
        count(report.created.len(), "job"),
        report.updated.len(),
        report.unchanged,
        report.deleted.len()
    )
}

fn warn(output: &Output, answer: &ApplyAnswer) {
    for warning in &answer.warnings {
        output.note(&format!("warning: {warning}"));
    }
}

fn note_commands(output: &Output, file: &JobFile) {
    if !file.commands.is_empty() {
        output.note(
            "note: `commands:` is not sent; a node takes it only from its own files (serve --jobs)",
        );
    }
}

fn body(jobs: &[JobSpec]) -> Outcome<Vec<u8>> {
    serde_json::to_vec(&Body { jobs }).map_err(|e| Failure::new(Exit::Bug, e.to_string()))
}

async fn plan(client: &mut Client, jobs: &[JobSpec], prune: bool) -> Outcome<ApplyAnswer> {
    let mut query = vec![("dry_run", "true")];
    if prune {
        query.push(("prune", "true"));
    }
    let call = Call {
        body: body(jobs)?,
        headers: Vec::new(),
    };
    client
        .json(Method::POST, &with_query("/v1/apply", &query), call)
        .await
}

async fn send(
    client: &mut Client,
    output: &Output,
    common: &Common,
    jobs: &[JobSpec],
    prune: bool,
) -> Outcome<ApplyAnswer> {
    let call = Call {
        body: body(jobs)?,
        headers: vec![(ACCEPT, NDJSON)],
    };
    let path = with_query(
        "/v1/apply",
        &[("prune", if prune { "true" } else { "false" })],
    );
    let response = client.send(Method::POST, &path, call).await?;
    let mut frames = response.into_body();
    let mut progress = Progress::new(!common.quiet && !output.is_data());
    let mut buffer: Vec<u8> = Vec::new();
    let timeout = common.answer_timeout();
    loop {
        // As long as it goes on, it may take as long as it needs.
        let frame = tokio::time::timeout(timeout, frames.frame())
            .await
            .map_err(|_| interrupted(Exit::TimedOut, "the server has fallen silent"))?;
        let Some(frame) = frame else {
            return Err(interrupted(Exit::Unreachable, "the connection was lost"));
        };
        let frame = frame.map_err(|e| interrupted(Exit::Unreachable, &e.to_string()))?;
        buffer.extend_from_slice(frame.data_ref().map_or(&[][..], |data| &data[..]));
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let line = serde_json::from_slice(&line)
                .map_err(|e| interrupted(Exit::Bug, &format!("the answer makes no sense: {e}")))?;
            match line {
                ApplyLine::Progress { done, total } => progress.show(done, total),
                ApplyLine::Done(answer) => {
                    progress.end();
                    return Ok(answer);
                }
                ApplyLine::Failed(problem) => {
                    progress.end();
                    return Err(failure_of(&problem));
                }
            }
        }
    }
}

fn interrupted(exit: Exit, what: &str) -> Failure {
    Failure::new(exit, what).hint("some jobs may be in force already; apply again to finish")
}

/// How far it is: a bar on a terminal, else a line every few seconds.
struct Progress {
    wanted: bool,
    terminal: bool,
    last: Instant,
    shown: bool,
}

impl Progress {
    fn new(wanted: bool) -> Self {
        Self {
            wanted,
            terminal: std::io::stderr().is_terminal(),
            last: Instant::now(),
            shown: false,
        }
    }

    fn show(&mut self, done: usize, total: usize) {
        let pause = if self.terminal { 100 } else { 3_000 };
        if !self.wanted || self.last.elapsed() < Duration::from_millis(pause) {
            return;
        }
        self.last = Instant::now();
        self.shown = true;
        let percent = done.saturating_mul(100) / total.max(1);
        if self.terminal {
            let full = percent * 30 / 100;
            let bar = format!("{}{}", "#".repeat(full), ".".repeat(30 - full.min(30)));
            let _ = write!(std::io::stderr(), "\r[{bar}] {done}/{total} jobs ");
        } else {
            say(&format!("applied {done} of {total} jobs ({percent} %)"));
        }
    }

    fn end(&self) {
        if self.shown && self.terminal {
            let _ = write!(std::io::stderr(), "\r{:60}\r", "");
        }
    }
}

pub(super) async fn diff(common: &Common, output: &Output, args: &DiffArgs) -> Outcome {
    let file = read_valid(&args.files)?;
    let mut client = connect(common)?;
    let answer = plan(&mut client, &file.jobs, args.prune).await?;
    warn(output, &answer);
    if output.is_data() {
        output.object(&answer, "", String::new)?;
    } else {
        for id in &answer.report.created {
            output.line(&format!("+ {id}"))?;
        }
        for (index, id) in answer.report.updated.iter().enumerate() {
            output.line(&format!("~ {id}"))?;
            let new = file.jobs.iter().find(|job| job.id == *id);
            if let (Some(new), true) = (new, index < MAX_DETAILS) {
                let old: JobObject = client.get(&format!("/v1/jobs/{}", escape(id))).await?;
                for line in differences(&old.spec, new)? {
                    output.line(&format!("    {line}"))?;
                }
            }
        }
        for id in &answer.report.deleted {
            output.line(&format!("- {id}"))?;
        }
    }
    if !args.prune && !output.is_data() {
        let pruned = plan(&mut client, &file.jobs, true).await?;
        if let Some(first) = pruned.report.deleted.first() {
            let others = match pruned.report.deleted.len() {
                1 => String::new(),
                n => format!(" and {} more", n - 1),
            };
            output.note(&format!(
                "note: the server has {first}{others}, which these files do not have; \
                 `--prune` would delete them"
            ));
        }
    }
    match changes(&answer) {
        0 => {
            output.note("no differences");
            Ok(())
        }
        _ => Err(Failure::silent(Exit::Findings)),
    }
}

/// Which keys differ, and how: `timeout: 1h -> 5m`.
fn differences(old: &JobSpec, new: &JobSpec) -> Outcome<Vec<String>> {
    let json = |spec: &JobSpec| {
        serde_json::to_value(spec).map_err(|e| Failure::new(Exit::Bug, e.to_string()))
    };
    let mut lines = Vec::new();
    // As it will be stored.
    let new = new.clone().with_dialect_decided();
    compare("", &json(old)?, &json(&new)?, &mut lines);
    Ok(lines)
}

fn compare(path: &str, old: &Value, new: &Value, lines: &mut Vec<String>) {
    if let (Value::Object(before), Value::Object(after)) = (old, new) {
        let mut keys: Vec<&String> = before.keys().chain(after.keys()).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            let path = match path {
                "" => key.clone(),
                path => format!("{path}.{key}"),
            };
            let value = |map: &serde_json::Map<String, Value>| map.get(key).cloned();
            compare(
                &path,
                &value(before).unwrap_or_default(),
                &value(after).unwrap_or_default(),
                lines,
            );
        }
    } else if old != new {
        let show = |value: &Value| match value {
            Value::Null => "(default)".to_owned(),
            Value::String(text) => punctual_server::jobfile::shorten(text, 80),
            other => punctual_server::jobfile::shorten(&other.to_string(), 80),
        };
        lines.push(format!("{path}: {} -> {}", show(old), show(new)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_counts_what_goes() {
        let ids: Vec<String> = (1..=7).map(|n| format!("j{n}")).collect();
        assert_eq!(
            question(&ids),
            "Delete 7 jobs that the files do not have (j1, j2, j3, j4, j5 and 2 more)?"
        );
        assert_eq!(
            question(&ids[..1]),
            "Delete 1 job that the files do not have (j1)?"
        );
    }

    #[test]
    fn differences_name_the_keys() {
        let old = JobSpec::handler("a", "h")
            .cron("0 * * * *")
            .with_dialect_decided();
        let mut new = JobSpec::handler("a", "h").cron("5 * * * *");
        new.timeout = "5m".parse().unwrap();
        assert_eq!(
            differences(&old, &new).unwrap(),
            [
                "schedule.cron: 0 * * * * -> 5 * * * *",
                "timeout: (default) -> 5m"
            ]
        );
        assert!(differences(&old, &old).unwrap().is_empty());
    }
}
