//! Jobs of a real cluster, as a job file.

use std::fmt::Write as _;
use std::path::Path;

use crate::sim::rng::Rng;

/// One job.
#[derive(Clone, Debug)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// `cron: "..."` or `every: ...`.
    pub schedule: String,
    /// How long its command takes, in fifths of a second.
    pub beats: u64,
    /// How its command ends.
    pub status: u8,
    /// Further lines.
    pub more: &'static str,
}

const RETRY: &str = "idempotent: true, on_lost: retry";
const SKIP: &str = "overlap: skip";
const FAILS: &str = "retry: { attempts: 2, backoff: 1s }";
const FENCED: &str = "overlap: skip, self_fence: true, idempotent: true, on_lost: retry";
const FEW: &str = "history: { keep_success: 3 }";

fn job(id: &str, schedule: &str, beats: u64, status: u8, more: &'static str) -> Job {
    Job {
        id: id.to_owned(),
        schedule: schedule.to_owned(),
        beats,
        status,
        more,
    }
}

/// A few of every kind: short and long, retried and not, that may overlap or not, with a short
/// history and a long one.
#[must_use]
pub fn few() -> Vec<Job> {
    vec![
        job("tick", "cron: \"* * * * * *\"", 0, 0, ""),
        job("short-history", "cron: \"*/2 * * * * *\"", 0, 0, FEW),
        job("long", "every: 4s", 15, 0, ""),
        job("long-retry", "every: 5s", 15, 0, RETRY),
        job("alone", "cron: \"*/3 * * * * *\"", 20, 0, SKIP),
        job("fenced", "cron: \"1-59/4 * * * * *\"", 25, 0, FENCED),
        job("fails", "cron: \"*/7 * * * * *\"", 0, 3, FAILS),
        job("fifth", "cron: \"*/5 * * * * *\"", 1, 0, ""),
    ]
}

/// So many, of all kinds, that fire about `per_second` times a second together.
#[must_use]
pub fn many(rng: &mut Rng, count: usize, per_second: u64) -> Vec<Job> {
    let period = (count as u64 / per_second.max(1)).clamp(2, 59);
    (0..count)
        .map(|n| {
            let seconds = rng.range(period.div_ceil(2), period + period / 2 + 1);
            let schedule = if rng.permille(500) {
                format!("every: {seconds}s")
            } else {
                let at = rng.range(0, seconds);
                format!("cron: \"{at}-59/{seconds} * * * * *\"")
            };
            let (beats, status, more) = match rng.range(0, 10) {
                0 => (15, 0, ""),
                1 => (15, 0, RETRY),
                2 => (20, 0, SKIP),
                3 => (20, 0, FENCED),
                4 => (0, 3, FAILS),
                5 => (0, 0, FEW),
                _ => (0, 0, ""),
            };
            job(&format!("job-{n:03}"), &schedule, beats, status, more)
        })
        .collect()
}

/// A job file; `program` is what [`super::ledger::write_program`] wrote. Jobs that are off have no
/// instants from then on.
#[must_use]
pub fn file(jobs: &[Job], program: &Path, enabled: bool) -> String {
    let mut text = String::from("jobs:\n");
    for job in jobs {
        let Job {
            id,
            schedule,
            beats,
            status,
            more,
        } = job;
        let program = program.display();
        let comma = if more.is_empty() { "" } else { ", " };
        // A string takes every write, so this cannot fail.
        let _ = writeln!(
            text,
            "  - {{ id: {id}, schedule: {{ {schedule} }}, run: {{ command: [sh, \"{program}\", \"{beats}\", \"{status}\"] }}, timeout: 30s, enabled: {enabled}{comma}{more} }}"
        );
    }
    text
}
