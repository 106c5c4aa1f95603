use punctual::backend::{Entry, LeaseId, Revision};
use punctual::job::finish::{self, Attempt, End, Start};
use punctual::job::record::{RunRecord, encode};
use punctual::job::run::{Ending, Owner, RunEvent};
use punctual::job::spec::{JobSpec, OnLost};

use super::*;

fn at(run: &str) -> AttemptKey {
    AttemptKey {
        partition: 1,
        job: "a".into(),
        run: run.into(),
        attempt: 1,
    }
}

/// A first attempt that may start at 5,000 and was made at 2,000 for the instant 1,000.
fn pending(run: &str) -> Attempt {
    let record = serde_json::json!({
        "job": "a", "run": run, "attempt": 1, "kind": "scheduled", "scheduled_ms": 1_000,
        "job_uid": 7, "generation": 1, "queue": "default", "needs": "command",
        "deadline_ms": 99_000, "state": "PENDING", "not_before_ms": 5_000, "created_ms": 2_000,
    });
    let record: RunRecord = serde_json::from_value(record).unwrap();
    Attempt {
        key: at(run),
        record,
        modified: Revision(10),
    }
}

fn made(keys: &Keys, attempt: &Attempt) -> Txn {
    let key = keys.run(&attempt.key);
    Txn::new()
        .require(Requirement::Modified(keys.cursor(1), Revision(3)))
        .require(Requirement::Absent(key.clone()))
        .put(key, encode(&attempt.record))
        .put(keys.cursor(1), "passed")
}

fn told(txn: &Txn, chosen: &[bool]) -> Vec<String> {
    let mut told = Vec::new();
    Reader::new("n").applied(txn, chosen, |did| told.push(format!("{did:?}")));
    told
}

fn told_refused(txn: &Txn, seen: &Seen) -> Vec<String> {
    let mut told = Vec::new();
    Reader::new("n").refused(txn, seen, |did| told.push(format!("{did:?}")));
    told
}

fn entry(key: Key, created: u64, lease: Option<LeaseId>) -> Entry {
    Entry {
        key,
        value: b"x".to_vec(),
        created: Revision(created),
        modified: Revision(created),
        lease,
    }
}

/// Each step of a run that is lost is told once, as what it is: to be given back is no fire, and its
/// retry is none either.
#[test]
fn the_steps_of_a_run_are_told_by_what_they_write() {
    let keys = Keys::new("n");
    let owner = Owner {
        node: "w".into(),
        incarnation: "0123456789abcdef".into(),
    };
    let first = pending("a@19700101T000001Z");
    let fired = made(&keys, &first);
    assert_eq!(
        told(&fired, &[]),
        ["Fired { job: \"a\", at_ms: Some(1000) }"]
    );
    // Ready since 5,000, whenever it was made.
    let (claim, locked) = finish::claim(&keys, &first, &owner, 0, 6_500).unwrap();
    assert_eq!(told(&claim, &[]), [""; 0]);
    let locked = Attempt {
        record: locked,
        ..first.clone()
    };
    let back = finish::give_back(&keys, &locked, &RunEvent::Decline(owner.clone())).unwrap();
    assert_eq!(told(&back, &[]), [""; 0]);
    let start = Start {
        now_ms: 7_000,
        deadline_ms: 99_000,
        ..Start::default()
    };
    let (start, running) = finish::start(&keys, &locked, &owner, start).unwrap();
    assert_eq!(told(&start, &[]), ["Started { waited_ms: 1500 }"]);
    let running = Attempt {
        record: running,
        ..locked
    };
    let mut spec: JobSpec = serde_json::from_value(serde_json::json!({
        "id": "a", "run": { "command": ["true"] },
    }))
    .unwrap();
    spec.on_lost = OnLost::Retry;
    spec.retry.attempts = Some(3);
    let end = End {
        now_ms: 9_000,
        spec: Some(&spec),
        ..End::default()
    };
    let lost = finish::end(&keys, &running, &RunEvent::Recover, &end).unwrap();
    let retries = |op: &Op| matches!(op, Op::Choose { then, .. } if !then.is_empty());
    assert!(lost.ops.iter().any(retries), "{lost:?}");
    assert_eq!(told(&lost, &[true]), ["Lost"]);
    let event = RunEvent::Finish(owner, Ending::Success);
    let success = finish::end(&keys, &running, &event, &end).unwrap();
    assert_eq!(told(&success, &[true]), [""; 0]);
    let late = Txn::new().put(keys.late(&running.key), "SUCCESS");
    assert_eq!(told(&late, &[]), ["CameLate"]);
}

/// Only an instant of the schedule can be late, and a part of a run is no run.
#[test]
fn what_is_asked_for_has_no_instant_and_parts_are_not_told() {
    let keys = Keys::new("n");
    for run in ["a~m-01", "a~a-0000000000000001@19700101T000001Z", "a~f-01"] {
        let txn = made(&keys, &pending(run));
        assert_eq!(
            told(&txn, &[]),
            ["Fired { job: \"a\", at_ms: None }"],
            "{run}"
        );
    }
    let part = made(&keys, &pending("a@19700101T000001Z~s-0003"));
    assert_eq!(told(&part, &[]), [""; 0]);
}

/// What was there already, and what the writer had no right to any more; not a run that others
/// overtook.
#[test]
fn a_refusal_tells_why() {
    let keys = Keys::new("n");
    let (first, other) = (pending("a@19700101T000001Z"), pending("a@19700101T000002Z"));
    let txn = made(&keys, &first).require(Requirement::Absent(keys.run(&other.key)));
    let stood = |key: Key| Some(entry(key, 4, None));
    let seen = vec![stood(keys.cursor(1)), stood(keys.run(&first.key)), None];
    assert_eq!(told_refused(&txn, &seen), ["Met { job: \"a\" }"]);
    assert_eq!(
        told_refused(&txn, &vec![stood(keys.cursor(1)), None, None]),
        [""; 0]
    );
    let node = keys.node("w", "0123456789abcdef");
    let under = |key: &Key| Txn::new().require(Requirement::Created(key.clone(), Revision(4)));
    for (key, op) in [(keys.leader(), LEAD), (node, WORK)] {
        let fenced = [format!("Fenced {{ op: \"{op}\" }}")];
        assert_eq!(told_refused(&under(&key), &vec![None]), fenced);
        let another = Some(entry(key.clone(), 5, None));
        assert_eq!(told_refused(&under(&key), &vec![another]), fenced);
        assert_eq!(
            told_refused(&under(&key), &vec![stood(key.clone())]),
            [""; 0]
        );
    }
    let job = keys.job(1, "a");
    assert_eq!(told_refused(&under(&job), &vec![None]), [""; 0]);
}

/// To lead is told once, although the answer may be lost: then the key is found under the own lease.
#[test]
fn a_lead_is_told_when_the_key_is_ours() {
    let keys = Keys::new("n");
    let leader = keys.leader();
    let ours = LeaseId(3);
    let txn = Txn::new()
        .require(Requirement::Absent(leader.clone()))
        .op(Write::Put {
            key: leader.clone(),
            value: b"me".to_vec(),
            lease: Some(ours),
        });
    assert_eq!(told(&txn, &[]), ["Led"]);
    let under = |lease| vec![Some(entry(leader.clone(), 4, lease))];
    assert_eq!(told_refused(&txn, &under(Some(ours))), ["Led"]);
    assert_eq!(told_refused(&txn, &under(Some(LeaseId(4)))), [""; 0]);
    assert_eq!(told_refused(&txn, &under(None)), [""; 0]);
}
