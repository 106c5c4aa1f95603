use super::*;
use crate::backend::{Op, Revision, Write, limits};
use crate::job::record::decode;
use crate::job::run::Owner;
use crate::keys::part_of;

fn parent(parts: &Parts, payload: usize) -> Attempt {
    let json = serde_json::json!({
        "job": "j", "run": "j@1", "attempt": 1, "kind": "scheduled", "scheduled_ms": 7_000,
        "job_uid": 5, "generation": 3, "queue": "default", "needs": "command", "priority": 4,
        "deadline_ms": 68_000, "state": "PENDING", "not_before_ms": 8_000, "created_ms": 7_500,
        "stands_for": 9, "stands_from_ms": 1, "concurrency": 2, "payload": "x".repeat(payload),
        "parts": parts,
    });
    Attempt {
        key: AttemptKey {
            partition: 1,
            job: "j".into(),
            run: "j@1".into(),
            attempt: 1,
        },
        record: serde_json::from_value(json).unwrap(),
        modified: Revision(40),
    }
}

fn puts(txn: &Txn) -> Vec<RunRecord> {
    let put = |op: &Op| match op {
        Op::Write(Write::Put { value, .. }) => decode::<RunRecord>(value).ok(),
        _ => None,
    };
    txn.ops.iter().filter_map(put).collect()
}

/// Makes all parts, request by request.
fn all(mut parent: Attempt) -> (Vec<RunRecord>, usize) {
    let keys = Keys::new("t");
    let (mut made, mut requests) = (Vec::new(), 0);
    loop {
        let parts = parent.record.parts.clone().unwrap();
        let (txn, record) = expand(&keys, &parent, &parts, 10_000).unwrap();
        assert_eq!(limits::check_batch(&[], std::slice::from_ref(&txn)), Ok(()));
        assert_eq!(
            txn.require,
            [
                Requirement::Modified(keys.run(&parent.key), parent.modified),
                Requirement::Absent(keys.cancel("j@1")),
            ]
        );
        requests += 1;
        let mut records = puts(&txn);
        assert_eq!(records.pop().as_ref(), Some(&record), "the run counts them");
        assert!(!records.is_empty(), "each request makes some");
        made.extend(records);
        let parts = record.parts.clone().unwrap();
        assert_eq!(usize::try_from(parts.made).unwrap(), made.len());
        parent.record = record;
        parent.modified = Revision(parent.modified.0 + 1);
        if parts.made == parts.total {
            return (made, requests);
        }
    }
}

fn fan_out(total: u32) -> Parts {
    Parts {
        total,
        made: 0,
        nodes: None,
    }
}

#[test]
fn all_parts_are_made_once_in_requests_that_every_store_takes() {
    for (total, payload, most) in [(2, 0, 1), (1_024, 0, 16), (64, 60_000, 8)] {
        let (made, requests) = all(parent(&fan_out(total), payload));
        assert!(requests <= most, "{requests} requests for {total}");
        for (index, part) in (0..total).zip(&made) {
            assert_eq!(part_of(&part.run), Some(("j@1", index)));
            let shard = part.shard.clone().unwrap();
            assert_eq!((shard.index, shard.total, shard.node), (index, total, None));
        }
        assert_eq!(made.len(), usize::try_from(total).unwrap());
    }
}

#[test]
fn a_part_has_what_its_run_has_and_its_own_time() {
    let (made, _) = all(parent(&fan_out(2), 3));
    let part = &made[1];
    assert_eq!(part.run, "j@1~s-0001");
    assert_eq!((part.kind, part.attempt), (RunKind::Shard, 1));
    assert_eq!((part.generation, part.job_uid), (3, 5));
    assert_eq!((part.priority, part.concurrency), (4, Some(2)));
    assert_eq!(part.payload, Some("xxx".into()));
    assert_eq!((part.scheduled_ms, part.not_before_ms), (7_000, 8_000));
    // One minute to be claimed, from now on.
    assert_eq!((part.created_ms, part.deadline_ms), (10_000, 70_000));
    assert_eq!((part.stands_for, part.stands_from_ms), (1, None));
    assert_eq!((part.state, &part.parts), (RunState::Pending, &None));
}

#[test]
fn no_worker_takes_a_run_in_parts_nor_a_part_for_another_node() {
    let keys = Keys::new("t");
    let owner = |node: &str| Owner {
        node: node.into(),
        incarnation: "1".into(),
    };
    let mut whole = parent(&Parts::on(vec!["a".into(), "b".into()]), 0);
    let refused = finish::claim(&keys, &whole, &owner("a"), 0, 0).unwrap_err();
    assert_eq!(refused.to_string(), "claim is not possible while PENDING");
    assert!(!whole.record.is_for("a"));
    let (made, _) = all(whole.clone());
    whole.record = made[1].clone();
    assert!(finish::claim(&keys, &whole, &owner("b"), 0, 0).is_ok());
    let refused = finish::claim(&keys, &whole, &owner("a"), 0, 0).unwrap_err();
    assert_eq!(refused.to_string(), "only node b may take it");
    assert!(whole.record.is_for("b") && !whole.record.is_for("a"));
}

type Last = Option<(RunState, Option<FailReason>, Option<i32>)>;

fn ends(states: &[Last]) -> BTreeMap<u32, RunRecord> {
    let record = parent(&fan_out(2), 0).record;
    (0..)
        .zip(states)
        .filter_map(|(index, end)| {
            let (state, failed, exit_code) = (*end)?;
            let end = RunRecord {
                state,
                failed,
                exit_code,
                ..record.clone()
            };
            Some((index, end))
        })
        .collect()
}

#[test]
fn a_run_ends_as_its_parts_say() {
    const GOOD: Option<(RunState, Option<FailReason>, Option<i32>)> =
        Some((RunState::Success, None, Some(0)));
    let exit = Some((RunState::Failed, Some(FailReason::Exit), Some(3)));
    let lost = Some((RunState::Failed, Some(FailReason::WorkerLost), None));
    let made = |made: u32, total: u32| Parts {
        made,
        ..fan_out(total)
    };
    let table = [
        (made(3, 3), vec![GOOD, GOOD, GOOD], false, "SUCCESS"),
        // Somebody wanted it ended when all was done.
        (made(3, 3), vec![GOOD, GOOD, GOOD], true, "SUCCESS"),
        (
            made(4, 4),
            vec![GOOD, exit, GOOD, lost],
            false,
            "error: 2 of 4 parts failed: 1 (exit 3), 3 (worker_lost)",
        ),
        (
            made(2, 2),
            vec![GOOD, None],
            false,
            "error: 1 of 2 parts failed: 1 (its record is gone)",
        ),
        (
            made(2, 2),
            vec![GOOD, exit],
            true,
            "cancelled: cancelled: 1 of 2 parts succeeded",
        ),
        (
            made(2, 5),
            vec![GOOD, GOOD],
            true,
            "cancelled: cancelled: 2 of 5 parts succeeded",
        ),
        (
            made(2, 5),
            vec![GOOD, GOOD],
            false,
            "cancelled: the job was deleted before all parts were made: 2 of 5 parts succeeded",
        ),
    ];
    for (parts, states, cancelled, expected) in table {
        let verdict = verdict(&parts, &ends(&states), cancelled);
        let told = match (verdict.ending, verdict.error) {
            (Ending::Success, None) => "SUCCESS".to_owned(),
            (Ending::Failed(reason), Some(error)) => format!("{reason}: {error}"),
            other => format!("{other:?}"),
        };
        assert_eq!(told, expected);
    }
    let many = verdict(&made(100, 100), &BTreeMap::new(), false);
    let error = many.error.unwrap();
    assert!(error.starts_with("100 of 100 parts failed: 0 (") && error.ends_with(", ..."));
    assert!(error.len() < 500, "{error}");
}

#[test]
fn the_end_requires_that_no_part_is_alive_and_no_wish_was_overlooked() {
    let keys = Keys::new("t");
    let (_, record) = expand(&keys, &parent(&fan_out(2), 0), &fan_out(2), 10_000).unwrap();
    let parent = Attempt {
        record,
        ..parent(&fan_out(2), 0)
    };
    let verdict = |ending| Verdict {
        ending,
        error: None,
    };
    let failed = verdict(Ending::Failed(FailReason::Error));
    let txn = derive(&keys, &parent, failed, End::default()).unwrap();
    let alive = keys.parts_of(1, "j", "j@1");
    assert!(txn.require.contains(&Requirement::Empty(alive.clone())));
    let wish = Requirement::Absent(keys.cancel("j@1"));
    assert!(txn.require.contains(&wish));
    assert_eq!(limits::check_batch(&[], &[txn]), Ok(()));
    let good = derive(&keys, &parent, verdict(Ending::Success), End::default()).unwrap();
    assert!(good.require.contains(&Requirement::Empty(alive)));
    assert!(!good.require.contains(&wish), "all was done before");
}
