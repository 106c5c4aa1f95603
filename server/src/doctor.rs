//! What is wrong with a node and its cluster, and what to do about it.
//!
//! Each check is a pure function of what was found. A *problem* asks for somebody to act; a
//! *notice* is worth knowing, and wrong for somebody who did not mean it.

mod notify;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use punctual::backend::{BackendResult, Usage};
use punctual::clock::{ClockState, Hold};
use punctual::control::{Control, ControlError, JobObject, NodeObject, StatusObject};
use punctual::job::spec::JobSpec;
use serde::{Deserialize, Serialize};

use crate::api::Api;
use crate::calls::NodeCalls;
use crate::job_files::Standing;
use crate::store::Opened;
use crate::times::{now_ms, span};

/// So many jobs are named by a check.
const NAMED_AT_MOST: usize = 20;
/// So many jobs are read at once.
const PAGE: usize = 500;

/// What a check says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    Notice,
    Problem,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Check {
    pub(crate) check: String,
    pub(crate) verdict: Verdict,
    pub(crate) detail: String,
    /// What to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) advice: Option<String>,
}

/// What a node says about itself and the cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) node: String,
    /// The wall clock of the node, in Unix milliseconds.
    pub(crate) now_ms: i64,
    /// How long the node looked, until it read its clock.
    #[serde(default)]
    pub(crate) took_ms: u64,
    pub(crate) checks: Vec<Check>,
}

impl Check {
    fn new(check: &str, verdict: Verdict, detail: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            verdict,
            detail: detail.into(),
            advice: None,
        }
    }

    fn ok(check: &str, detail: impl Into<String>) -> Self {
        Self::new(check, Verdict::Ok, detail)
    }

    pub(crate) fn problem(check: &str, detail: impl Into<String>, advice: &str) -> Self {
        Self::new(check, Verdict::Problem, detail).advise(advice)
    }

    fn advise(self, advice: &str) -> Self {
        Self {
            advice: Some(advice.into()),
            ..self
        }
    }
}

/// Looks at everything that this node can see.
pub(crate) async fn examine(api: &Api) -> Report {
    let Api {
        node,
        control,
        store,
        data_dir,
        webhooks,
        calls,
        ..
    } = api;
    let began = Instant::now();
    let status = control.status(store.info.version()).await;
    let mut checks = vec![answer(&store.info.version(), &status, began.elapsed())];
    checks.extend(release(store));
    checks.push(space(store.info.usage().await));
    if let Some(etcd) = &store.etcd {
        checks.push(complaints(etcd.complaints().await));
    }
    if let Ok(status) = &status {
        checks.push(leader(status));
        checks.extend(drained(status));
        if let Ok(jobs) = all_jobs(control).await {
            checks.push(unserved(&jobs, &status.nodes));
            checks.extend(uncalled(&jobs, calls));
            let untold = control.untold().await;
            checks.extend(notify::check(&jobs, webhooks, untold, now_ms()));
        }
        checks.push(undecided(status));
        checks.extend(partitions(status));
        checks.extend(nodes(node, status));
        checks.push(zones(status));
    }
    checks.push(clock(control.clock_state()));
    checks.extend(job_files(&api.job_files.standing()));
    checks.push(directory(data_dir));
    Report {
        node: node.clone(),
        now_ms: now_ms(),
        took_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        checks,
    }
}

fn answer(version: &str, status: &Result<StatusObject, ControlError>, took: Duration) -> Check {
    match status {
        Ok(_) => Check::ok(
            "store",
            format!("{version}, read within {} ms", took.as_millis()),
        ),
        Err(error) => Check::problem(
            "store",
            format!("{version}: {error}"),
            "look whether the store runs and has a majority; nothing fires until it answers",
        ),
    }
}

fn release(store: &Opened) -> Option<Check> {
    store.etcd.as_ref()?;
    let version = store.info.version();
    let number = version.strip_prefix("etcd ")?;
    Some(match punctual_etcd::upgrade_of(number) {
        None => Check::ok("release", format!("{version} has no fault that we know of")),
        Some(mended) => Check::new(
            "release",
            Verdict::Notice,
            format!("{version} lacks fixes for known faults"),
        )
        .advise(&format!("upgrade etcd to {mended} or later")),
    })
}

/// What a full store still takes differs; none takes everything.
fn space(usage: BackendResult<Usage>) -> Check {
    const ADVICE: &str = "compact and defragment, or raise the quota (docs/operations.md); a store \
                          that is full soon takes no results and no changes";
    let usage = match usage {
        Ok(usage) => usage,
        Err(error) => {
            return Check::problem("space", error.to_string(), "see the check of the store");
        }
    };
    let used = mebibytes(usage.used_bytes);
    let Some(quota) = usage.quota_bytes.filter(|quota| *quota > 0) else {
        return Check::ok("space", format!("{used} used; this store tells no quota"));
    };
    let percent = u128::from(usage.used_bytes) * 100 / u128::from(quota);
    let detail = format!("{used} of {} used ({percent} %)", mebibytes(quota));
    if percent >= 70 {
        Check::problem("space", detail, ADVICE)
    } else {
        Check::ok("space", detail)
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, ((bytes & 0xf_ffff) * 10) >> 20)
}

fn complaints(found: BackendResult<Vec<String>>) -> Check {
    match found {
        Err(error) => Check::problem("alarms", error.to_string(), "see the check of the store"),
        Ok(none) if none.is_empty() => Check::ok("alarms", "etcd raises none"),
        Ok(some) => Check::problem(
            "alarms",
            some.join("; "),
            "NOSPACE: make room, then `etcdctl alarm disarm` (docs/operations.md); CORRUPT: replace \
             the member; no leader: bring the majority back",
        ),
    }
}

async fn all_jobs(control: &Control) -> Result<Vec<JobObject>, ControlError> {
    let mut jobs = Vec::new();
    let mut cursor = None;
    loop {
        let page = control.jobs(cursor.as_deref(), PAGE).await?;
        jobs.extend(page.items);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(jobs);
        }
    }
}

fn all_drained(status: &StatusObject) -> bool {
    !status.nodes.is_empty() && status.nodes.iter().all(|node| node.drained)
}

/// Who is drained, if somebody is.
fn drained(status: &StatusObject) -> Option<Check> {
    let out: BTreeSet<&str> = status
        .nodes
        .iter()
        .filter(|node| node.drained)
        .map(|node| node.node.as_str())
        .collect();
    if out.is_empty() {
        return None;
    }
    let names = out.into_iter().collect::<Vec<_>>().join(", ");
    Some(if all_drained(status) {
        Check::problem(
            "drained",
            format!("all nodes are drained ({names}), so none leads and nothing fires"),
            "punctual node undrain NODE",
        )
    } else {
        Check::new(
            "drained",
            Verdict::Notice,
            format!("{names}: no work, no lead"),
        )
        .advise("punctual node undrain NODE, when it may work again")
    })
}

/// Whether a node takes runs of a job.
fn serves(node: &NodeObject, job: &JobSpec) -> bool {
    let can = match &job.run.handler {
        Some(handler) => node.handlers.contains(handler),
        None if job.run.http.is_some() => node.http,
        None => node.commands,
    };
    can && node.queues.contains(&job.queue)
}

/// Jobs whose runs no node takes.
fn unserved(jobs: &[JobObject], nodes: &[NodeObject]) -> Check {
    const NAMED: usize = 5;
    // Where all are drained that is what is wrong.
    let some_work = nodes.iter().any(|node| !node.drained);
    let nodes = || nodes.iter().filter(|node| !(some_work && node.drained));
    let idle: Vec<String> = jobs
        .iter()
        .map(|job| &job.spec)
        .filter(|job| job.enabled && !nodes().any(|node| serves(node, job)))
        .map(|job| match &job.run.handler {
            Some(handler) => format!("{} (handler {handler}, queue {})", job.id, job.queue),
            None if job.run.http.is_some() => format!("{} (a URL, queue {})", job.id, job.queue),
            None => format!("{} (a command, queue {})", job.id, job.queue),
        })
        .collect();
    if idle.is_empty() {
        return Check::ok("jobs", format!("each of {} has a node for it", jobs.len()));
    }
    let mut detail = idle
        .iter()
        .take(NAMED)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if idle.len() > NAMED {
        detail.push_str(&format!(" and {} more", idle.len() - NAMED));
    }
    Check::problem(
        "jobs",
        format!("no node takes the runs of {detail}"),
        "start a node with --queues, --commands or the handler that they need; their runs wait, and \
         end as no_handler after `unclaimed_after`",
    )
}

/// Jobs whose calls this node would not make, although it takes their runs.
fn uncalled(jobs: &[JobObject], calls: &NodeCalls) -> Option<Check> {
    let specs = jobs.iter().map(|job| &job.spec);
    let refused = specs.filter_map(|spec| Some(format!("{}: {}", spec.id, calls.refusal(spec)?)));
    let refused: Vec<String> = refused.collect();
    if refused.is_empty() {
        return None;
    }
    let shown = refused.len().min(NAMED_AT_MOST);
    let more = match refused.len() - shown {
        0 => String::new(),
        more => format!("; and {more} more"),
    };
    Some(Check::problem(
        "http",
        format!("{}{more}", refused[..shown].join("; ")),
        "a run that this node takes fails: start all nodes with the same --http-allow and secrets, or \
         change the job",
    ))
}

fn leader(status: &StatusObject) -> Check {
    match &status.leader {
        Some(leader) => Check::ok("leader", leader.clone()),
        None if all_drained(status) => Check::problem(
            "leader",
            "nobody leads, because all nodes are drained",
            "undrain one",
        ),
        None => Check::problem(
            "leader",
            "nobody leads, so nothing fires",
            "it takes a few seconds after a death; if it lasts, the nodes' logs say why none of \
             them stands",
        ),
    }
}

fn undecided(status: &StatusObject) -> Check {
    let lag = span(i64::try_from(status.cursor_lag_ms).unwrap_or(i64::MAX));
    match status.undecided_instants {
        0 => Check::ok("instants", "everything that is due is decided"),
        some => Check::problem(
            "instants",
            format!("{some} due and not decided, the oldest {lag} late"),
            "they are late and not lost; the leader's log says what holds it up",
        ),
    }
}

fn partitions(status: &StatusObject) -> Vec<Check> {
    let damaged = status.damaged_partitions.iter();
    damaged
        .map(|damaged| {
            Check::problem(
                "partition",
                format!(
                    "partition {} does not fire: {}",
                    damaged.partition, damaged.what
                ),
                "put the record back (docs/operations.md, \"A record that cannot be read\"); it \
                 goes on by itself then, and the other partitions fire meanwhile",
            )
        })
        .collect()
}

fn nodes(own: &str, status: &StatusObject) -> Vec<Check> {
    let mut seen = BTreeSet::new();
    let mut twice = BTreeSet::new();
    let mut slots = 0_u64;
    for node in &status.nodes {
        slots += u64::from(node.slots);
        if !seen.insert(node.node.as_str()) {
            twice.insert(node.node.as_str());
        }
    }
    let list = |set: &BTreeSet<&str>| set.iter().copied().collect::<Vec<_>>().join(", ");
    let mut checks = vec![if seen.contains(own) {
        Check::ok(
            "nodes",
            format!("{}: {} ({slots} slots)", seen.len(), list(&seen)),
        )
    } else {
        Check::problem(
            "nodes",
            format!(
                "this node, {own}, is not registered; there are: {}",
                list(&seen)
            ),
            "it takes no runs until it is; its log says why",
        )
    }];
    if !twice.is_empty() {
        checks.push(
            Check::new(
                "names",
                Verdict::Notice,
                format!("registered twice: {}", list(&twice)),
            )
            .advise(
                "after a kill -9 it passes within --session-ttl; if it stays, two nodes have one \
                 --node-id",
            ),
        );
    }
    checks
}

fn zones(status: &StatusObject) -> Check {
    let behind: BTreeSet<&str> = status
        .nodes
        .iter()
        .filter(|node| node.tzdb < status.tzdb)
        .map(|node| node.node.as_str())
        .collect();
    if behind.is_empty() {
        return Check::ok("time zones", format!("data {} everywhere", status.tzdb));
    }
    Check::problem(
        "time zones",
        format!(
            "the cluster reckons with data {}, and these with older: {}",
            status.tzdb,
            behind.into_iter().collect::<Vec<_>>().join(", ")
        ),
        "upgrade them: they run jobs, but may not lead",
    )
}

fn clock(state: ClockState) -> Check {
    match state {
        ClockState::Following => Check::ok("clock", "it goes evenly since the node started"),
        ClockState::Held { reason } => Check::problem(
            "clock",
            format!("{reason}; until then this node neither leads nor works"),
            match reason {
                Hold::Unconfirmed => "the others' clocks are asked for; ask again in a few seconds",
                Hold::Step {
                    needs_person: false,
                    ..
                } => "if it stays as it is for a minute, it is believed; look at the time service",
                Hold::Step { .. } => {
                    "look at the clock of this machine; set it right, or, if it is right now, \
                                   `punctual admin clock accept`"
                }
                Hold::Outvoted { .. } => "look at the time service of this machine",
            },
        ),
    }
}

/// How far the clocks of two machines are apart, by a question and its answer. `took_ms`: how much of
/// the time between the two the other side needed before it read its clock.
pub(crate) fn between(asked_ms: i64, took_ms: u64, theirs_ms: i64, ours_after_ms: i64) -> Check {
    const MOST_MS: i64 = 2_000;
    let took_ms = i64::try_from(took_ms).unwrap_or(i64::MAX);
    // The clocks may go at different paces; it did not read its clock after it answered.
    let ours_before_ms = asked_ms.saturating_add(took_ms).min(ours_after_ms);
    let middle = ours_before_ms.midpoint(ours_after_ms);
    let apart = theirs_ms - middle;
    let detail = format!("the node's clock is {apart} ms from this machine's");
    if apart.abs() > MOST_MS + (ours_after_ms - ours_before_ms) / 2 {
        Check::problem(
            "clocks",
            detail,
            "one of the two is wrong: look at the time service of both",
        )
    } else {
        Check::ok("clocks", detail)
    }
}

/// Nothing where the node has no job files.
fn job_files(standing: &Standing) -> Option<Check> {
    const NAME: &str = "job files";
    match standing {
        Standing::Empty => None,
        Standing::Applying => Some(
            Check::new(NAME, Verdict::Notice, "they are not in force yet")
                .advise("they wait for the store and the node; the node's log says for what"),
        ),
        Standing::Applied(jobs) => Some(Check::ok(
            NAME,
            format!("their {jobs} jobs were brought into force when they were read last"),
        )),
        Standing::Refused(why) => Some(Check::problem(
            NAME,
            format!(
                "the files of --jobs are refused, and what was in force before stays: {}",
                why.split_whitespace().collect::<Vec<_>>().join(" ")
            ),
            "mend them (or the options of the node that they ask for) and send the node SIGHUP (kill -HUP \
             PID), or start it again; a node whose files cannot be read does not start",
        )),
    }
}

/// Tokens lie in it.
fn directory(path: &Path) -> Check {
    let shown = path.display();
    for name in ["", "client.json", "tokens.json"] {
        let path = path.join(name);
        let mode = match std::fs::metadata(&path) {
            Ok(found) => found.permissions().mode(),
            Err(error) => {
                return Check::problem(
                    "data directory",
                    format!("{}: {error}", path.display()),
                    "the node needs it: give it back, or restart the node with another one",
                );
            }
        };
        if mode & 0o077 != 0 {
            return Check::problem(
                "data directory",
                format!(
                    "others may use {} (mode {:o})",
                    path.display(),
                    mode & 0o777
                ),
                &format!("chmod -R go= {shown}"),
            );
        }
    }
    if let Err(error) = tempfile::Builder::new()
        .prefix(".doctor-")
        .tempfile_in(path)
    {
        return Check::problem(
            "data directory",
            format!("cannot write to {shown}: {error}"),
            "results of runs that cannot be reported are kept there: make room",
        );
    }
    Check::ok("data directory", format!("{shown}, its owner's alone"))
}

#[cfg(test)]
mod tests;
