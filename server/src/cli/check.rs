//! `check`: job files without a server. And what `apply` and `diff` do with files first.

use std::path::PathBuf;

use punctual::job::spec::{CommandSpec, JobSpec};
use punctual::schedule::Calendars;
use punctual::schedule::explain::{Language, LintCode, explain};

use super::failure::{Exit, Failure, Outcome};
use crate::output::{Output, say};
use crate::times::now_ms;
use punctual_server::jobfile::{Finding, JobFile, read_all};

/// The most notes about schedules that are shown.
const MAX_NOTES: usize = 20;

/// Reads job files; input that cannot be read at all is a wrong use.
pub(super) fn read(files: &[PathBuf]) -> Outcome<JobFile> {
    let sources = read_all(files).map_err(|failures| {
        let lines: Vec<String> = failures.iter().map(ToString::to_string).collect();
        Failure::usage(lines.join("\npunctual: "))
    })?;
    Ok(JobFile::parse(&sources, now_ms()))
}

pub(super) fn check(output: &Output, files: &[PathBuf]) -> Outcome {
    let file = read(files)?;
    if output.is_data() {
        output.list(
            &file.findings,
            &crate::output::View {
                columns: &[],
                row: &|_: &Finding| Vec::new(),
                name: &|finding| format!("{}:{}:{}", finding.file, finding.line, finding.column),
            },
        )?;
    } else {
        for finding in &file.findings {
            output.line(&finding.to_string())?;
        }
    }
    for (job, name) in foreign_commands(&file) {
        output.note(&format!(
            "note: {job} runs the command `{name}`, which stands in none of these files; the node's own files must declare it"
        ));
    }
    note_oddities(output, &file);
    match file.findings.len() {
        0 => {
            output.note(&format!("ok: {}", count(file.jobs.len(), "job")));
            Ok(())
        }
        found => {
            output.note(&count(found, "finding"));
            Err(Failure::silent(Exit::Findings))
        }
    }
}

/// Says what is valid and may not be meant; `explain` says more.
fn note_oddities(output: &Output, file: &JobFile) {
    let now_ms = now_ms();
    let odd: Vec<String> = file
        .jobs
        .iter()
        .flat_map(|job| oddities(job, now_ms))
        .collect();
    for line in odd.iter().take(MAX_NOTES) {
        output.note(&format!("note: {line}"));
    }
    if odd.len() > MAX_NOTES {
        output.note(&format!(
            "and {} like these",
            count(odd.len() - MAX_NOTES, "note")
        ));
    }
}

/// Oddities that change when the job fires, as opposed to those that are worth knowing.
fn oddities(job: &JobSpec, now_ms: i64) -> Vec<String> {
    let Some(cron) = &job.schedule.cron else {
        return Vec::new();
    };
    // Most expressions have none, and there may be very many jobs.
    let fields = cron.split_whitespace().filter(|field| *field != "*");
    if !cron.contains('/') && fields.count() < 2 {
        return Vec::new();
    }
    let calendars = Calendars::default();
    let explained = explain(&job.schedule, now_ms, &calendars, 0, Language::English);
    let lints = explained.map_or_else(|_| Vec::new(), |explained| explained.lints);
    let seen = [
        LintCode::UnevenStep,
        LintCode::StepBeyondField,
        LintCode::BothDayFields,
    ];
    lints
        .into_iter()
        .filter(|lint| seen.contains(&lint.code))
        .map(|lint| format!("{}: schedule.cron: {}", job.id, lint.message))
        .collect()
}

/// Jobs that name a command which the same files do not declare. The node's may: no finding.
fn foreign_commands(file: &JobFile) -> impl Iterator<Item = (&str, &str)> {
    file.jobs.iter().filter_map(|job| match &job.run.command {
        Some(CommandSpec::Named(name)) if !file.commands.contains_key(name) => {
            Some((job.id.as_str(), name.as_str()))
        }
        _ => None,
    })
}

/// Reads job files that must be valid; findings go to standard error.
pub(super) fn read_valid(files: &[PathBuf]) -> Outcome<JobFile> {
    let file = read(files)?;
    if file.findings.is_empty() {
        return Ok(file);
    }
    for finding in &file.findings {
        say(&finding.to_string());
    }
    Err(Failure::usage(format!(
        "{}; nothing was changed",
        count(file.findings.len(), "finding")
    )))
}

/// `1 job`, `2 jobs`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}
