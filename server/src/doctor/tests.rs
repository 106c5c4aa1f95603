//! What is found wrong, by table.

use super::*;
use punctual::backend::BackendError;
use punctual::control::DamagedPartition;

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
        damaged_partitions: vec![],
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
    assert_eq!(partitions(&status), []);
    status.damaged_partitions = vec![DamagedPartition {
        partition: 4,
        what: "a record is missing".into(),
    }];
    assert_eq!(verdicts(&partitions(&status)), [Verdict::Problem]);
}

#[test]
fn drained_nodes_are_named_and_all_of_them_are_why_nobody_leads() {
    let mut status = status(vec![node("a", "2026b"), node("b", "2026b")]);
    assert!(drained(&status).is_none());
    status.nodes[0].drained = true;
    assert_eq!(drained(&status).unwrap().verdict, Verdict::Notice);
    status.nodes[1].drained = true;
    status.leader = None;
    assert_eq!(drained(&status).unwrap().verdict, Verdict::Problem);
    assert!(leader(&status).detail.contains("all nodes are drained"));
}

#[test]
fn a_job_that_no_node_may_run_is_a_problem() {
    let job = |spec: JobSpec| -> JobObject {
        serde_json::from_value(serde_json::json!({
            "spec": spec, "generation": 1, "revision": 1, "state": "active", "paused": null,
            "created_at": "", "updated_at": "", "next_at": null, "last_at": null,
            "active_runs": 0,
        }))
        .unwrap()
    };
    let handler = job(JobSpec::handler("h", "known"));
    let mut elsewhere = job(JobSpec::handler("q", "known"));
    elsewhere.spec.queue = "gpu".into();
    let command = serde_json::json!({ "id": "c", "run": { "command": ["true"] } });
    let command = job(serde_json::from_value(command).unwrap());
    let call = serde_json::json!({ "id": "u", "run": { "http": { "url": "https://a.org" } } });
    let call = job(serde_json::from_value(call).unwrap());
    let mut able = node("a", "2026b");
    able.queues = vec!["default".into()];
    able.handlers = vec!["known".into()];
    let verdict =
        |job: &JobObject, nodes: &[NodeObject]| unserved(std::slice::from_ref(job), nodes).verdict;
    assert_eq!(verdict(&handler, &[able.clone()]), Verdict::Ok);
    assert_eq!(verdict(&elsewhere, &[able.clone()]), Verdict::Problem);
    assert_eq!(verdict(&command, &[able.clone()]), Verdict::Problem);
    let mut runs = able.clone();
    runs.commands = true;
    assert_eq!(
        verdict(&command, &[able.clone(), runs.clone()]),
        Verdict::Ok
    );
    assert_eq!(verdict(&call, &[runs.clone()]), Verdict::Problem);
    runs.http = true;
    assert_eq!(verdict(&call, &[runs.clone()]), Verdict::Ok);
    runs.drained = true;
    assert_eq!(verdict(&command, &[able, runs.clone()]), Verdict::Problem);
    assert_eq!(verdict(&command, &[runs]), Verdict::Ok, "told as drained");
    let off = JobObject {
        spec: JobSpec {
            enabled: false,
            ..command.spec.clone()
        },
        ..command
    };
    assert_eq!(verdict(&off, &[]), Verdict::Ok);
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
    assert_eq!(between(1_000, 0, 1_050, 1_100).verdict, Verdict::Ok);
    assert_eq!(between(1_000, 0, 4_000, 1_100).verdict, Verdict::Problem);
    assert_eq!(between(1_000, 0, -4_000, 1_100).verdict, Verdict::Problem);
    assert_eq!(between(0, 0, 6_000, 10_000).verdict, Verdict::Ok);
    // The node asked a slow store for ten seconds: its clock is right, and said to be.
    let slow = between(0, 9_990, 9_995, 10_000);
    assert_eq!(slow.verdict, Verdict::Ok);
    assert!(slow.detail.contains(" 0 ms"), "{}", slow.detail);
    assert_eq!(between(0, 9_990, 6_000, 10_000).verdict, Verdict::Problem);
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
