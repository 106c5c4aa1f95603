use super::*;
use crate::job::finish::{self, Attempt};
use crate::job::parts::{Parts, Shard};
use crate::job::record::decode;
use crate::job::run;
use crate::job::spec::NotifySpec;

fn record(state: RunState, failed: Option<FailReason>) -> RunRecord {
    let json = serde_json::json!({
        "job": "j", "run": "j@1", "attempt": 1, "kind": "scheduled", "scheduled_ms": 0,
        "job_uid": 1, "generation": 1, "queue": "default", "needs": "command",
        "deadline_ms": 1_000, "state": state, "failed": failed, "not_before_ms": 400,
        "created_ms": 0,
    });
    serde_json::from_value(json).unwrap()
}

/// Every way to end, whether a retry was to follow, whether the end before was bad: what a
/// receiver of everything hears, and one that knows of failures only.
#[test]
fn what_is_told_of_each_ending() {
    use NotifyEvent::{Failed, Late, Lost, Recovered};
    let everything = NotifyEvent::ALL;
    let good = record(RunState::Success, None);
    let hears = |record: &RunRecord, retried, recovers, on: &[NotifyEvent]| {
        told(ending(record, retried), recovers, on)
    };
    assert_eq!(hears(&good, false, true, &everything), Some(Recovered));
    assert_eq!(hears(&good, false, false, &everything), None);
    assert_eq!(hears(&good, false, true, &[Failed, Lost, Late]), None);
    for reason in FailReason::ALL {
        let bad = record(RunState::Failed, Some(reason));
        let (all, failures) = match reason {
            FailReason::Cancelled => (None, None),
            FailReason::WorkerLost => (Some(Lost), Some(Failed)),
            _ => (Some(Failed), Some(Failed)),
        };
        for recovers in [false, true] {
            assert_eq!(hears(&bad, false, recovers, &everything), all, "{reason}");
            assert_eq!(
                hears(&bad, false, recovers, &[Failed]),
                failures,
                "{reason}"
            );
            assert_eq!(hears(&bad, false, recovers, &[Late, Recovered]), None);
            assert_eq!(hears(&bad, true, recovers, &everything), None, "{reason}");
        }
    }
    for state in [RunState::Pending, RunState::Locked, RunState::Running] {
        assert_eq!(ending(&record(state, None), false), Ending::Quiet);
    }
}

#[test]
fn late_is_what_has_not_started_in_time() {
    let mut run = record(RunState::Pending, None);
    assert!(!is_late(&run, i64::MAX), "nobody asked");
    run.late_at_ms = Some(100);
    assert!(!is_late(&run, 100));
    assert!(is_late(&run, 101));
    run.started_ms = Some(100);
    assert!(
        !is_late(&run, 5_000),
        "it runs for long, which is another matter"
    );
    run.started_ms = Some(101);
    assert!(is_late(&run, 101));
    run.started_ms = None;
    run.ended_ms = Some(99);
    assert!(!is_late(&run, 5_000));
}

#[test]
fn a_note_is_small_whatever_the_run_left() {
    let mut run = record(RunState::Failed, Some(FailReason::Exit));
    run.payload = Some(serde_json::json!("p".repeat(60_000)));
    run.error = Some("\u{e4}".repeat(4_000));
    run.output_tail = Some(format!("{}end", "\u{20ac}".repeat(4_000)));
    let short = shortened(&run);
    assert!(encode(&short).len() < 3_000);
    assert_eq!(short.error.unwrap().len(), MAX_TEXT_BYTES);
    assert!(short.output_tail.unwrap().ends_with("\u{20ac}end"));
    assert!(short.output_truncated && short.payload.is_none());
}

fn spec(on: &[NotifyEvent]) -> JobSpec {
    let mut spec = JobSpec::handler("j", "h");
    spec.notify = vec![NotifySpec {
        webhook: "https://a.org/".into(),
        on: on.to_vec(),
        late_after: None,
    }];
    spec
}

/// The notes among the writes of a transaction that are not chosen.
fn notes(keys: &Keys, ops: &[Op]) -> Vec<(NoteKey, NoteRecord)> {
    let note = |op: &Op| match op {
        Op::Write(Write::Put { key, value, .. }) => {
            Some((keys.parse_note(key)?, decode(value).unwrap()))
        }
        _ => None,
    };
    ops.iter().filter_map(note).collect()
}

fn part(state: RunState, started_ms: Option<i64>, ended_ms: Option<i64>) -> RunRecord {
    RunRecord {
        late_at_ms: Some(100),
        started_ms,
        ended_ms,
        ..record(state, None)
    }
}

/// Rows: when each part started (or none), the time, whether their run is late.
#[test]
fn a_run_in_parts_is_late_while_all_its_parts_wait() {
    let run = RunRecord {
        parts: Some(Parts {
            total: 3,
            made: 2,
            nodes: None,
        }),
        started_ms: Some(10),
        ..part(RunState::Running, None, None)
    };
    for (parts, now_ms, late) in [
        (vec![None, None], 100, false),
        (vec![None, None], 101, true),
        (vec![None, Some(101)], 101, true),
        (vec![Some(100), None], 101, false),
        // One has ended already, and has not waited for ever.
        (vec![None], 101, false),
        (vec![], 101, false),
    ] {
        let alive: Vec<RunRecord> = parts
            .iter()
            .map(|started_ms| part(RunState::Pending, *started_ms, None))
            .collect();
        assert_eq!(parts_are_late(&run, &alive, now_ms), late, "{parts:?}");
    }
    let nobody_asks = RunRecord {
        late_at_ms: None,
        ..run
    };
    let waits = [
        part(RunState::Pending, None, None),
        part(RunState::Pending, None, None),
    ];
    assert!(!parts_are_late(&nobody_asks, &waits, i64::MAX));
}

#[test]
fn a_run_in_parts_was_late_if_no_part_had_started_in_time() {
    let run = part(RunState::Running, None, None);
    let (in_time, later) = (
        part(RunState::Success, Some(100), Some(900)),
        part(RunState::Success, Some(101), Some(900)),
    );
    let (ended_first, ended_later) = (
        part(RunState::Failed, None, Some(100)),
        part(RunState::Failed, None, Some(101)),
    );
    assert!(no_part_started(&run, [&later, &ended_later]));
    assert!(!no_part_started(&run, [&later, &in_time]));
    assert!(!no_part_started(&run, [&later, &ended_first]));
    assert!(!no_part_started(&run, []), "there was nothing to start");
    assert!(!no_part_started(&record(RunState::Running, None), [&later]));
}

#[test]
fn the_whole_is_told_and_its_parts_are_not() {
    let keys = Keys::new("t");
    let spec = JobSpec {
        fan_out: Some(2),
        ..spec(&[NotifyEvent::Failed, NotifyEvent::Late])
    };
    let attempt = |record: RunRecord| Attempt {
        key: AttemptKey {
            partition: 1,
            job: "j".into(),
            run: record.run.clone(),
            attempt: 1,
        },
        record,
        modified: Revision(40),
    };
    let parts = Parts {
        total: 2,
        made: 2,
        nodes: Some(vec!["n".repeat(64); 500]),
    };
    let parent = attempt(RunRecord {
        parts: Some(parts),
        started_ms: Some(10),
        ..part(RunState::Running, None, None)
    });
    let end = |late| finish::End {
        now_ms: 900,
        late,
        spec: Some(&spec),
        ..finish::End::default()
    };
    let failed = run::Ending::Failed(FailReason::Error);
    let of = |late| {
        let event = run::RunEvent::Derive(failed);
        finish::end(&keys, &parent, &event, &end(late)).unwrap()
    };
    let (in_time, late) = (of(false), of(true));
    let told = notes(&keys, &in_time.ops);
    assert_eq!(told.len(), 1);
    assert_eq!(
        (&*told[0].0.run, told[0].1.event),
        ("j@1", NotifyEvent::Failed)
    );
    assert!(encode(&told[0].1).len() < 1_000, "without the nodes");
    assert_eq!(
        late.ops.len(),
        in_time.ops.len() + 1,
        "and that it was late"
    );
    // Its parts have had their attempts: it is not run again.
    let runs = late.ops.iter().filter(|op| {
        matches!(op, Op::Choose { then, .. }
        if then.iter().any(|write| keys.runs().contains(write.key())))
    });
    assert_eq!(runs.count(), 0);

    let shard = attempt(RunRecord {
        shard: Some(Shard {
            index: 0,
            total: 2,
            node: None,
        }),
        ..part(RunState::Pending, None, None)
    });
    let event = run::RunEvent::Abandon(FailReason::Expired);
    let txn = finish::end(&keys, &shard, &event, &end(false)).unwrap();
    assert_eq!(notes(&keys, &txn.ops), []);
}

/// Rows: why, the policy, when it was decided, whether that is told as late.
#[test]
fn instants_that_nobody_decided_in_time_are_told_although_nothing_runs() {
    const LATE: i64 = 300_000;
    let keys = Keys::new("t");
    let key = AttemptKey {
        partition: 1,
        job: "j".into(),
        run: "j@1".into(),
        attempt: 0,
    };
    for (reason, misfire, decided_ms, told) in [
        (SkipReason::Misfire, Misfire::Skip, LATE + 1, true),
        (SkipReason::Misfire, Misfire::Skip, LATE, false),
        // A run stands for them, which is late itself.
        (SkipReason::Misfire, Misfire::Latest, LATE + 1, false),
        (SkipReason::Deadline, Misfire::Latest, LATE + 1, true),
        (SkipReason::Paused, Misfire::Skip, LATE + 1, false),
        (SkipReason::Overlap, Misfire::Skip, LATE + 1, false),
        (SkipReason::Excluded, Misfire::Skip, LATE + 1, false),
        (SkipReason::Deleted, Misfire::Skip, LATE + 1, false),
    ] {
        let spec = JobSpec {
            misfire,
            ..spec(&[NotifyEvent::Late])
        };
        let skip = RunRecord {
            attempt: 0,
            skipped: Some(reason),
            scheduled_ms: 200_000,
            stands_from_ms: Some(0),
            ended_ms: Some(decided_ms),
            ..record(RunState::Skipped, None)
        };
        let writes = missed(&keys, &key, &skip, &spec).into_iter().map(Op::from);
        let found = notes(&keys, &writes.collect::<Vec<_>>());
        assert_eq!(found.len(), usize::from(told), "{reason:?} {misfire:?}");
        let quiet = JobSpec {
            notify: vec![],
            ..spec
        };
        assert!(missed(&keys, &key, &skip, &quiet).is_empty());
    }
}
