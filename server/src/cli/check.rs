//! `check`: job files without a server. And what `apply` and `diff` do with files first.

use std::path::PathBuf;

use super::failure::{Exit, Failure, Outcome};
use crate::jobfile::{Finding, JobFile, read_all};
use crate::output::{Output, say};
use crate::times::now_ms;

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
