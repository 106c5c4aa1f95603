//! What follows the end of an attempt: one table for all reasons and policies, and the guards of
//! the transactions.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use punctual::backend::{Entry, Op, Requirement, Revision, Txn, Write};
use punctual::handler::Execution;
use punctual::job::finish::{Attempt, End, Start, claim, end, finished, give_back, start};
use punctual::job::record::{RunRecord, decode};
use punctual::job::run::{FailReason, Owner, RunEvent, RunState};
use punctual::job::spec::{JobSpec, OnLost};
use punctual::keys::Keys;

fn owner() -> Owner {
    Owner {
        node: "n".into(),
        incarnation: "1".into(),
    }
}

fn attempt(keys: &Keys, state: RunState, number: u32) -> Attempt {
    let owned = matches!(state, RunState::Locked | RunState::Running);
    let json = serde_json::json!({"v": 1, "r": {
        "job": "j", "run": "j@20260812T000500Z", "attempt": number, "kind": "scheduled",
        "scheduled_ms": 0, "job_uid": 5, "generation": 1, "queue": "default", "needs": "command",
        "deadline_ms": 0, "state": state, "not_before_ms": 0, "created_ms": 0, "place": 3,
        "owner": owned.then(owner),
    }});
    let key = punctual::keys::AttemptKey {
        partition: 1,
        job: "j".into(),
        run: "j@20260812T000500Z".into(),
        attempt: number,
    };
    let entry = Entry {
        key: keys.run(&key),
        value: json.to_string().into_bytes(),
        created: Revision(40),
        modified: Revision(42),
        lease: None,
    };
    Attempt::read(keys, &entry).unwrap()
}

/// The retry that the transaction creates, if it does.
fn retry_of(txn: &Txn) -> Option<RunRecord> {
    txn.ops.iter().find_map(|op| match op {
        Op::Choose { then, .. } => match then.first()? {
            Write::Put { value, .. } => decode(value).ok(),
            Write::Delete { .. } => None,
        },
        Op::Write(_) => None,
    })
}

#[test]
fn r01_which_ends_are_followed_by_another_attempt() {
    let keys = Keys::new("t");
    // Reason; followed with on_lost: fail; with on_lost: retry.
    let table = [
        (FailReason::Exit, true, true),
        (FailReason::Error, true, true),
        (FailReason::Panic, true, true),
        (FailReason::Timeout, true, true),
        (FailReason::Cancelled, false, false),
        (FailReason::Fenced, false, true),
        (FailReason::WorkerLost, false, true),
        (FailReason::NotStarted, true, true),
    ];
    for (reason, with_fail, with_retry) in table {
        for (on_lost, expected) in [(OnLost::Fail, with_fail), (OnLost::Retry, with_retry)] {
            let mut spec = JobSpec::handler("j", "h");
            spec.retry.attempts = Some(3);
            spec.on_lost = on_lost;
            let running = attempt(&keys, RunState::Running, 1);
            let execution = Execution::failed(reason, "x");
            let report = End {
                now_ms: 1_000,
                spec: Some(&spec),
                execution: Some(&execution),
                ..End::default()
            };
            let txn = end(&keys, &running, &finished(&owner(), &execution), &report).unwrap();
            assert_eq!(retry_of(&txn).is_some(), expected, "{reason} {on_lost:?}");
        }
    }
    // A lost worker, as the leader ends it.
    for (on_lost, expected) in [(OnLost::Fail, false), (OnLost::Retry, true)] {
        let mut spec = JobSpec::handler("j", "h");
        spec.on_lost = on_lost;
        let running = attempt(&keys, RunState::Running, 1);
        let report = End {
            now_ms: 1_000,
            spec: Some(&spec),
            ..End::default()
        };
        let txn = end(&keys, &running, &RunEvent::Recover, &report).unwrap();
        assert_eq!(retry_of(&txn).is_some(), expected);
    }
}

#[test]
fn r04_backoff_grows_to_its_limit_and_attempts_are_counted() {
    let keys = Keys::new("t");
    let mut spec = JobSpec::handler("j", "h");
    spec.retry.attempts = Some(6);
    spec.retry.max_backoff = punctual::duration::Millis::from_secs(10);
    let execution = Execution::failed(FailReason::Error, "x");
    let mut waits = Vec::new();
    for number in 1..=6 {
        let running = attempt(&keys, RunState::Running, number);
        let report = End {
            now_ms: 0,
            spec: Some(&spec),
            execution: Some(&execution),
            ..End::default()
        };
        let txn = end(&keys, &running, &finished(&owner(), &execution), &report).unwrap();
        waits.push(retry_of(&txn).map(|next| (next.attempt, next.not_before_ms)));
    }
    assert_eq!(
        waits,
        [
            Some((2, 1_000)),
            Some((3, 2_000)),
            Some((4, 4_000)),
            Some((5, 8_000)),
            Some((6, 10_000)),
            None
        ]
    );
}

#[test]
fn an_attempt_that_was_never_started_is_not_counted() {
    let keys = Keys::new("t");
    let mut spec = JobSpec::handler("j", "h");
    spec.retry.attempts = Some(2);
    let ends = [
        (FailReason::NotStarted, Some((2, 0))),
        (FailReason::Error, Some((3, 1_000))),
        (FailReason::NotStarted, Some((4, 0))),
        (FailReason::Error, None),
    ];
    let mut running = attempt(&keys, RunState::Running, 1);
    for (reason, expected) in ends {
        let execution = Execution::failed(reason, "x");
        let report = End {
            spec: Some(&spec),
            execution: Some(&execution),
            ..End::default()
        };
        let txn = end(&keys, &running, &finished(&owner(), &execution), &report).unwrap();
        let next = retry_of(&txn);
        assert_eq!(
            next.as_ref().map(|n| (n.attempt, n.not_before_ms)),
            expected,
            "{reason}"
        );
        if let Some(next) = next {
            running.key.attempt = next.attempt;
            running.record = RunRecord {
                state: RunState::Running,
                owner: Some(owner()),
                ..next
            };
        }
    }
}

#[test]
fn every_step_consumes_the_record_it_was_planned_from() {
    let keys = Keys::new("t");
    let pending = attempt(&keys, RunState::Pending, 1);
    let locked = attempt(&keys, RunState::Locked, 1);
    let running = attempt(&keys, RunState::Running, 1);
    let execution = Execution::success();
    let report = End {
        execution: Some(&execution),
        ..End::default()
    };
    let steps = [
        claim(&keys, &pending, &owner(), 0, 0).unwrap().0,
        start(&keys, &locked, &owner(), Start::default()).unwrap().0,
        give_back(&keys, &locked, &RunEvent::Recover).unwrap(),
        end(&keys, &running, &finished(&owner(), &execution), &report).unwrap(),
        end(
            &keys,
            &pending,
            &RunEvent::Abandon(FailReason::Cancelled),
            &report,
        )
        .unwrap(),
    ];
    let key = keys.run(&pending.key);
    for txn in steps {
        assert_eq!(
            txn.require[0],
            Requirement::Modified(key.clone(), Revision(42))
        );
        let writes = txn.ops.iter().any(|op| match op {
            Op::Write(write) => write.key() == key,
            Op::Choose { .. } => false,
        });
        assert!(writes, "{txn:?}");
    }
}

/// Whether the transaction deletes, or puts, this key.
fn writes(txn: &Txn, key: &[u8]) -> Option<bool> {
    txn.ops.iter().find_map(|op| match op {
        Op::Write(Write::Put { key: k, .. }) if k == key => Some(true),
        Op::Write(Write::Delete { key: k }) if k == key => Some(false),
        _ => None,
    })
}

#[test]
fn a_limited_run_takes_a_slot_and_every_way_out_frees_it() {
    let keys = Keys::new("t");
    let slot = keys.slot(1, "j", 1);
    let mut pending = attempt(&keys, RunState::Pending, 1);
    let (txn, record) = claim(&keys, &pending, &owner(), 1, 0).unwrap();
    assert_eq!((record.slot, writes(&txn, &slot)), (None, None), "no limit");
    pending.record.concurrency = Some(2);
    let (txn, record) = claim(&keys, &pending, &owner(), 1, 0).unwrap();
    assert_eq!(record.slot, Some(1));
    assert_eq!(writes(&txn, &slot), Some(true));
    let wanted = [
        Requirement::Absent(slot.clone()),
        Requirement::Empty(keys.slots_from(1, "j", 2)),
    ];
    assert_eq!(txn.require[1..], wanted);
    // Whoever asks for one that does not exist.
    let (_, clamped) = claim(&keys, &pending, &owner(), 7, 0).unwrap();
    assert_eq!(clamped.slot, Some(1));

    let locked = Attempt {
        record: record.clone(),
        ..pending.clone()
    };
    let (started, running) = start(&keys, &locked, &owner(), Start::default()).unwrap();
    assert_eq!((running.slot, writes(&started, &slot)), (Some(1), None));
    let running = Attempt {
        record: running,
        ..pending.clone()
    };
    let mut spec = JobSpec::handler("j", "h");
    spec.retry.attempts = Some(2);
    let execution = Execution::failed(FailReason::Exit, "x");
    let report = End {
        execution: Some(&execution),
        spec: Some(&spec),
        ..End::default()
    };
    let ended = end(&keys, &running, &finished(&owner(), &execution), &report).unwrap();
    let next = retry_of(&ended).unwrap();
    assert_eq!((next.slot, next.concurrency), (None, Some(2)));
    let back = give_back(&keys, &locked, &RunEvent::Recover).unwrap();
    let lost = end(&keys, &running, &RunEvent::Recover, &End::default()).unwrap();
    let cancelled = RunEvent::Abandon(FailReason::Cancelled);
    let abandoned = end(&keys, &locked, &cancelled, &End::default()).unwrap();
    for txn in [ended, back, lost, abandoned] {
        assert_eq!(writes(&txn, &slot), Some(false), "{txn:?}");
    }
}

#[test]
fn what_a_run_said_of_itself_goes_with_its_last_end_and_no_sooner() {
    let keys = Keys::new("t");
    let key = keys.progress(1, "j", "j@20260812T000500Z");
    let mut spec = JobSpec::handler("j", "h");
    spec.retry.attempts = Some(2);
    let execution = Execution::failed(FailReason::Exit, "x");
    let report = End {
        execution: Some(&execution),
        spec: Some(&spec),
        ..End::default()
    };
    let event = finished(&owner(), &execution);
    let last = attempt(&keys, RunState::Running, 2);
    let txn = end(&keys, &last, &event, &report).unwrap();
    assert_eq!(writes(&txn, &key), Some(false), "no attempt follows");
    // Whether one follows is known to the transaction alone: a wish to end the run, a deleted job.
    let first = attempt(&keys, RunState::Running, 1);
    let txn = end(&keys, &first, &event, &report).unwrap();
    assert_eq!(writes(&txn, &key), None);
    let otherwise = txn.ops.iter().find_map(|op| match op {
        Op::Choose { otherwise, .. } => Some(otherwise.contains(&Write::delete(key.clone()))),
        Op::Write(_) => None,
    });
    assert_eq!(otherwise, Some(true));
    // A retry that waits is not RUNNING, but the attempt before it was.
    let cancelled = RunEvent::Abandon(FailReason::Cancelled);
    let never_ran = attempt(&keys, RunState::Pending, 1);
    let txn = end(&keys, &never_ran, &cancelled, &report).unwrap();
    assert_eq!(writes(&txn, &key), None, "there can be nothing");
    let waits = attempt(&keys, RunState::Pending, 2);
    let txn = end(&keys, &waits, &cancelled, &report).unwrap();
    assert_eq!(writes(&txn, &key), Some(false));
}

#[test]
fn the_token_is_epoch_revision_and_place() {
    let keys = Keys::new("t");
    let running = attempt(&keys, RunState::Running, 1);
    let token = running.token(2).unwrap().0;
    assert_eq!(token, (2 << 56) + 42 * 128 + 3);
    assert_eq!(attempt(&keys, RunState::Locked, 1).token(2), None);
}
