//! CronJobs of Kubernetes (`batch/v1`).

use punctual::duration::Millis;
use punctual::job::spec::{CommandSpec, JobSpec, Overlap, RunSpec};
use punctual::schedule::{Dialect, ScheduleSpec};
use serde_json::Value;

use super::Reading;

/// Kubernetes makes so many further attempts if nobody says.
const BACKOFF_LIMIT: u64 = 6;
/// Its first wait between attempts, and the longest.
const BACKOFF: Millis = Millis::from_secs(10);
const MAX_BACKOFF: Millis = Millis::from_secs(360);
/// Kubernetes stops nothing by itself; we always have a limit.
const TIMEOUT: Millis = Millis::from_secs(24 * 3_600);

/// Whether a text is about CronJobs.
pub(super) fn is(text: &str) -> bool {
    text.lines().any(|line| {
        let line = line.trim_start_matches(['-', ' ']).trim_end();
        line.strip_prefix("kind:")
            .is_some_and(|kind| kind.trim() == "CronJob")
    })
}

pub(super) fn read(text: &str) -> Reading {
    let mut reading = Reading::default();
    for (line, document) in documents(text) {
        let value: Value = match serde_saphyr::from_str(&document) {
            Ok(value) => value,
            Err(error) => {
                let first = error.to_string();
                let first = first.lines().next().unwrap_or_default().to_owned();
                reading.refuse(line, format!("this is no YAML: {first}"));
                continue;
            }
        };
        match value["kind"].as_str() {
            Some("List") => {
                for item in value["items"].as_array().into_iter().flatten() {
                    cronjob(&mut reading, line, item);
                }
            }
            Some(_) => cronjob(&mut reading, line, &value),
            None => {}
        }
    }
    if !reading.jobs_with_lines.is_empty() {
        reading.note(
            0,
            "containers: a node runs the command itself, with its own files and programs; the image \
             is not used",
        );
        reading.note(
            0,
            format!("time limit: without activeDeadlineSeconds `timeout: {TIMEOUT}` was written"),
        );
    }
    reading
}

/// The documents of a file, each with the line that it begins at.
fn documents(text: &str) -> Vec<(usize, String)> {
    let mut all = vec![(1, String::new())];
    for (index, line) in text.lines().enumerate() {
        if line.trim_end() == "---" {
            all.push((index + 2, String::new()));
        } else if let Some((_, document)) = all.last_mut() {
            document.push_str(line);
            document.push('\n');
        }
    }
    let is_empty = |text: &str| {
        text.lines()
            .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
    };
    all.retain(|(_, document)| !is_empty(document));
    all
}

fn cronjob(reading: &mut Reading, line: usize, object: &Value) {
    let kind = object["kind"].as_str().unwrap_or("?");
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    if kind != "CronJob" {
        return reading.refuse(line, format!("{kind} {name}: only CronJobs are taken over"));
    }
    let spec = &object["spec"];
    let Some(cron) = spec["schedule"].as_str() else {
        return reading.refuse(line, format!("{name}: it has no schedule"));
    };
    if cron.contains('=') {
        return reading.refuse(
            line,
            format!("{name}: a zone inside the schedule (`{cron}`): write it as spec.timeZone"),
        );
    }
    let pod = &spec["jobTemplate"]["spec"]["template"]["spec"];
    let containers = pod["containers"].as_array().map_or(&[][..], Vec::as_slice);
    let [container] = containers else {
        let count = containers.len();
        return reading.refuse(
            line,
            format!("{name}: it has {count} containers; a job here is one command"),
        );
    };
    let words = |key: &str| -> Vec<String> {
        let items = container[key].as_array().into_iter().flatten();
        items
            .filter_map(|item| item.as_str().map(str::to_owned))
            .collect()
    };
    if container["command"].as_array().is_none_or(Vec::is_empty) {
        let image = container["image"].as_str().unwrap_or("?");
        return reading.refuse(
            line,
            format!(
                "{name}: it runs what the image {image} begins with, which is not in this file: name \
                 its command"
            ),
        );
    }
    let id = reading.id(name);
    if id != name {
        reading.note(line, format!("{name} is called {id} here"));
    }
    let mut job = JobSpec::handler(id, "");
    job.schedule = ScheduleSpec {
        cron: Some(cron.to_owned()),
        dialect: Dialect::Unix,
        timezone: spec["timeZone"].as_str().map(str::to_owned),
        ..ScheduleSpec::default()
    };
    job.run = RunSpec {
        command: Some(CommandSpec::Argv(
            [words("command"), words("args")].concat(),
        )),
        ..RunSpec::default()
    };
    environment(reading, line, name, container, &mut job);
    policies(reading, line, name, spec, &mut job);
    let labels = object["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten();
    job.labels = labels
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect();
    for (is, what) in [
        (container["image"].is_string(), "the image is not used"),
        (
            container["resources"].is_object(),
            "resources are not limited",
        ),
        (
            pod["volumes"].is_array() || container["volumeMounts"].is_array(),
            "nothing is mounted",
        ),
        (
            container["envFrom"].is_array(),
            "envFrom is not read: set the variables",
        ),
        (
            pod["initContainers"].is_array(),
            "initContainers are not run",
        ),
        (
            spec["timeZone"].is_null(),
            "no timeZone: Kubernetes takes its controller's zone, here it is UTC",
        ),
    ] {
        if is {
            reading.note(line, format!("{name}: {what}"));
        }
    }
    reading.jobs_with_lines.push((line, job));
}

fn environment(
    reading: &mut Reading,
    line: usize,
    name: &str,
    container: &Value,
    job: &mut JobSpec,
) {
    for variable in container["env"].as_array().into_iter().flatten() {
        let key = variable["name"].as_str().unwrap_or_default();
        match &variable["value"] {
            Value::String(value) => {
                job.run.env.insert(key.to_owned(), value.clone());
            }
            Value::Null if variable["valueFrom"].is_null() => {
                job.run.env.insert(key.to_owned(), String::new());
            }
            Value::Null => {
                reading.note(
                    line,
                    format!("{name}: {key} comes from elsewhere (valueFrom): set it"),
                );
            }
            other => {
                job.run.env.insert(key.to_owned(), other.to_string());
            }
        }
    }
}

fn policies(reading: &mut Reading, line: usize, name: &str, spec: &Value, job: &mut JobSpec) {
    match spec["concurrencyPolicy"].as_str() {
        Some("Forbid") => job.overlap = Overlap::Skip,
        Some("Replace") => {
            job.overlap = Overlap::Skip;
            reading.note(
                line,
                format!(
                    "{name}: concurrencyPolicy Replace ends the run before; `overlap: skip` was \
                     written, which leaves the new one out"
                ),
            );
        }
        _ => {}
    }
    let seconds = |value: &Value| value.as_u64().map(Millis::from_secs);
    job.start_deadline = seconds(&spec["startingDeadlineSeconds"]);
    if spec["suspend"].as_bool() == Some(true) {
        job.enabled = false;
        reading.note(line, format!("{name} is suspended: `enabled: false`"));
    }
    let count = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
    if let Some(kept) = count(&spec["successfulJobsHistoryLimit"]) {
        job.history.keep_success = kept;
    }
    if let Some(kept) = count(&spec["failedJobsHistoryLimit"]) {
        job.history.keep_failed = kept;
    }
    let template = &spec["jobTemplate"]["spec"];
    job.timeout = seconds(&template["activeDeadlineSeconds"]).unwrap_or(TIMEOUT);
    let further = template["backoffLimit"].as_u64().unwrap_or(BACKOFF_LIMIT);
    job.retry.attempts = u32::try_from(further.saturating_add(1)).ok();
    job.retry.backoff = BACKOFF;
    job.retry.max_backoff = MAX_BACKOFF;
    for key in ["parallelism", "completions"] {
        if template[key].as_u64().is_some_and(|n| n > 1) {
            reading.note(
                line,
                format!("{name}: {key} is not kept, a fire is one run"),
            );
        }
    }
}
