//! What is wrong with a node and its cluster, and what to do about it.
//!
//! Each check is a pure function of what was found. A *problem* asks for somebody to act; a
//! *notice* is worth knowing, and wrong for somebody who did not mean it.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use punctual::backend::{BackendResult, Usage};
use punctual::clock::{ClockState, Hold};
use punctual::control::{Control, ControlError, StatusObject};
use serde::{Deserialize, Serialize};

use crate::store::Opened;
use crate::times::{now_ms, span};

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
pub(crate) async fn examine(
    node: &str,
    control: &Control,
    store: &Opened,
    data_dir: &Path,
) -> Report {
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
        checks.push(undecided(status));
        checks.extend(nodes(node, status));
        checks.push(zones(status));
    }
    checks.push(clock(control.clock_state()));
    checks.push(directory(data_dir));
    Report {
        node: node.to_owned(),
        now_ms: now_ms(),
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

fn leader(status: &StatusObject) -> Check {
    match &status.leader {
        Some(leader) => Check::ok("leader", leader.clone()),
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

/// How far the clocks of two machines are apart, by a question and its answer.
pub(crate) fn between(ours_before_ms: i64, theirs_ms: i64, ours_after_ms: i64) -> Check {
    const MOST_MS: i64 = 2_000;
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
mod tests {
    use punctual::backend::BackendError;
    use punctual::control::NodeObject;

    use super::*;

    fn node(name: &str, tzdb: &str) -> NodeObject {
        serde_json::from_value(serde_json::json!({
            "node": name, "incarnation": "0", "tzdb": tzdb, "leader": false, "slots": 4,
            "queues": [], "handlers": [], "since": "2026-01-01T00:00:00.000Z",
        }))
        .unwrap()
    }

    fn status(nodes: Vec<NodeObject>) -> StatusObject {
        StatusObject {
            store: "memory".into(),
            cluster_id: "c".into(),
            tzdb: "2026b".into(),
            leader: Some("a".into()),
            term: Some(1),
            nodes,
            jobs: 1,
            pending: 0,
            locked: 0,
            running: 0,
            undecided_instants: 0,
            cursor_lag_ms: 0,
        }
    }

    fn verdicts(checks: &[Check]) -> Vec<Verdict> {
        checks.iter().map(|check| check.verdict).collect()
    }

    #[test]
    fn space_runs_out_at_seventy_percent() {
        let at = |used_bytes, quota_bytes| {
            space(Ok(Usage {
                used_bytes,
                quota_bytes,
            }))
            .verdict
        };
        assert_eq!(at(69, Some(100)), Verdict::Ok);
        assert_eq!(at(70, Some(100)), Verdict::Problem);
        assert_eq!(at(1 << 40, None), Verdict::Ok);
        let away = space(Err(BackendError::Unavailable("x".into())));
        assert_eq!(away.verdict, Verdict::Problem);
        assert_eq!(mebibytes(5 << 19), "2.5 MiB");
        assert_eq!(complaints(Ok(vec![])).verdict, Verdict::Ok);
        let full = complaints(Ok(vec!["memberID:1 alarm:NOSPACE ".into()]));
        assert_eq!(full.verdict, Verdict::Problem);
    }

    #[test]
    fn a_cluster_without_leader_or_behind_is_a_problem() {
        let mut status = status(vec![node("a", "2026b")]);
        assert_eq!(leader(&status).verdict, Verdict::Ok);
        assert_eq!(undecided(&status).verdict, Verdict::Ok);
        status.leader = None;
        status.undecided_instants = 3;
        assert_eq!(leader(&status).verdict, Verdict::Problem);
        assert_eq!(undecided(&status).verdict, Verdict::Problem);
    }

    #[test]
    fn nodes_that_are_missing_twice_or_old_are_found() {
        let good = status(vec![node("a", "2026b"), node("b", "2026c")]);
        assert_eq!(verdicts(&nodes("a", &good)), [Verdict::Ok]);
        assert_eq!(verdicts(&nodes("c", &good)), [Verdict::Problem]);
        assert_eq!(zones(&good).verdict, Verdict::Ok);
        let bad = status(vec![node("a", "2026b"), node("a", "2026a")]);
        assert_eq!(verdicts(&nodes("a", &bad)), [Verdict::Ok, Verdict::Notice]);
        assert_eq!(zones(&bad).verdict, Verdict::Problem);
    }

    #[test]
    fn clocks_are_compared_within_what_the_question_took() {
        assert_eq!(between(1_000, 1_050, 1_100).verdict, Verdict::Ok);
        assert_eq!(between(1_000, 4_000, 1_100).verdict, Verdict::Problem);
        assert_eq!(between(1_000, -4_000, 1_100).verdict, Verdict::Problem);
        assert_eq!(between(0, 6_000, 10_000).verdict, Verdict::Ok);
        let held = |needs_person| {
            clock(ClockState::Held {
                reason: Hold::Step {
                    step_ms: 5_000,
                    needs_person,
                },
            })
        };
        assert_eq!(held(false).verdict, Verdict::Problem);
        assert_ne!(held(false).advice, held(true).advice);
        assert_eq!(clock(ClockState::Following).verdict, Verdict::Ok);
    }

    #[test]
    fn a_directory_that_others_may_read_is_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        set(dir.path(), 0o700);
        assert_eq!(directory(dir.path()).verdict, Verdict::Problem, "no tokens");
        for name in ["client.json", "tokens.json"] {
            std::fs::write(dir.path().join(name), "{}").unwrap();
            set(&dir.path().join(name), 0o600);
        }
        assert_eq!(directory(dir.path()).verdict, Verdict::Ok);
        set(&dir.path().join("client.json"), 0o640);
        assert_eq!(directory(dir.path()).verdict, Verdict::Problem);
    }
}
