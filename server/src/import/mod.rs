//! Jobs of other schedulers as a job file: crontabs, and CronJobs of Kubernetes.
//!
//! What can go wrong: a job that fires at other times than before, or does something else, without
//! anybody being told. So the times are kept exactly (dialect and zone are written out), what cannot
//! be kept is said line by line, and what comes out is checked like any other definition.

mod cronjob;
mod crontab;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use punctual::job::spec::{JobSpec, MAX_ID_LEN};
use punctual::schedule::Calendars;
use serde::Serialize;

/// What there is to say about a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// Counts from 1; 0 for all of the file.
    pub line: usize,
    /// Whether the line could not be taken over at all.
    pub refused: bool,
    /// For people.
    pub text: String,
}

/// What came of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imported {
    /// The jobs, in the order of the file.
    pub jobs: Vec<JobSpec>,
    /// What is different from before, in the order of the lines.
    pub notes: Vec<Note>,
}

/// How to read a file.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A crontab of the system, whose lines name a user; `None`: as its name and lines look.
    pub system: Option<bool>,
    /// The zone that its times are meant in, where it does not say itself.
    pub timezone: Option<String>,
}

/// Reads a crontab, or the YAML of CronJobs.
pub fn import(name: &str, text: &str, options: &Options, now_ms: i64) -> Imported {
    let mut imported = if cronjob::is(text) {
        cronjob::read(text)
    } else {
        crontab::read(name, text, options)
    };
    let jobs = std::mem::take(&mut imported.jobs_with_lines);
    let mut out = Imported {
        jobs: Vec::new(),
        notes: imported.notes,
    };
    for (line, job) in jobs {
        match job.check(&Calendars::default(), now_ms) {
            Ok(_) => out.jobs.push(job),
            Err(findings) => out.notes.extend(findings.into_iter().map(|finding| {
                let hint = finding.hint.as_ref().map(|hint| format!(" ({hint})"));
                Note {
                    line,
                    refused: true,
                    text: format!(
                        "left out: {}: {}{}",
                        finding.path,
                        finding.message,
                        hint.unwrap_or_default()
                    ),
                }
            })),
        }
    }
    out.notes.sort_by_key(|note| note.line);
    out
}

/// A file that is being read.
#[derive(Default)]
struct Reading {
    jobs_with_lines: Vec<(usize, JobSpec)>,
    notes: Vec<Note>,
    ids: BTreeSet<String>,
}

impl Reading {
    fn note(&mut self, line: usize, text: impl Into<String>) {
        self.notes.push(Note {
            line,
            refused: false,
            text: text.into(),
        });
    }

    fn refuse(&mut self, line: usize, text: impl Into<String>) {
        self.notes.push(Note {
            line,
            refused: true,
            text: format!("left out: {}", text.into()),
        });
    }

    /// An id that no other job of the file has, as near to `wanted` as ids go.
    fn id(&mut self, wanted: &str) -> String {
        let mut base = slug(wanted);
        base.truncate(MAX_ID_LEN - 6);
        let mut id = base.clone();
        let mut number = 2;
        while !self.ids.insert(id.clone()) {
            id = format!("{base}-{number}");
            number += 1;
        }
        id
    }
}

/// Lower case letters, digits, `.`, `_` and `-`, beginning with one of the first two.
fn slug(text: &str) -> String {
    let mut out = String::new();
    for c in text.to_ascii_lowercase().chars() {
        match c {
            'a'..='z' | '0'..='9' => out.push(c),
            '.' | '_' | '-' if !out.is_empty() => out.push(c),
            _ if !out.is_empty() && !out.ends_with('-') => out.push('-'),
            _ => {}
        }
    }
    let out = out.trim_end_matches(['-', '.', '_']);
    match out {
        "" => "job".into(),
        out => out.into(),
    }
}
