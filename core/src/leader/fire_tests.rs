//! What one request may decide, and what it requires.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::backend::{Entry, Revision, limits};
use crate::job::Definitions;
use crate::job::finish::Attempt;
use crate::job::record::{
    ChangesRecord, CursorRecord, JobRecord, Position, Segment, SeqRecord, Window,
};
use crate::job::run::FailReason;
use crate::job::spec::{JobSpec, MAX_SIBLINGS, Misfire};
use crate::plan::{DueIndex, Plan};
use crate::schedule::{Calendars, Schedule};

fn keys() -> Keys {
    Keys::new("t")
}

/// A job whose definitions of generation 1, 2, .. have these policies.
fn partition(overlaps: &[Overlap]) -> Partition {
    let id: Arc<str> = "j".into();
    let definitions = overlaps.iter().zip(1..).map(|(overlap, generation)| {
        let mut spec = JobSpec::handler("j", "h").cron("* * * * * *");
        spec.overlap = *overlap;
        let schedule = Schedule::compile(&spec.schedule, 0, &Calendars::default()).unwrap();
        (
            generation,
            Arc::new(Definition {
                spec: Arc::new(spec),
                schedule,
            }),
        )
    });
    let segment = Segment {
        from_ms: 0,
        generation: 1,
        paused: false,
    };
    let job = Job {
        id: id.clone(),
        uid: Revision(5),
        modified: Revision(5),
        record: JobRecord {
            version: 1,
            generation: 1,
            created_ms: 0,
            updated_ms: 0,
            segments: vec![segment],
            paused: None,
            paused_all: None,
            at_seen_ms: vec![],
        },
        definitions: definitions.collect(),
    };
    let mut partition = Partition::empty(0, CursorRecord::starting_at(0), Revision(7));
    partition.changes = ChangesRecord::default();
    partition.changes_revision = Revision(8);
    partition.jobs.insert(id, job);
    partition.due = DueIndex::default();
    partition
}

/// One run after the other, by these generations.
fn plan(generations: &[u64]) -> Plan {
    let decisions = generations.iter().zip(1..).map(|(generation, second)| {
        let at_ms = second * 1_000;
        let decision = Decision::Run {
            at_ms,
            stands_for: 1,
            from_ms: at_ms,
            generation: *generation,
        };
        (Arc::from("j"), decision)
    });
    Plan {
        decisions: decisions.collect(),
        cursor: CursorRecord {
            position: Position::end_of(99_000),
            window: Window {
                from_ms: 0,
                until_ms: 99_000,
            },
        },
        touched: std::collections::BTreeSet::new(),
    }
}

/// So many unfinished runs, the first of which executes.
fn known(alive: u32) -> Known {
    let keys = keys();
    let entry = |key, value, revision| Entry {
        key,
        value,
        created: Revision(revision),
        modified: Revision(revision),
        lease: None,
    };
    let seq = entry(keys.seq(0, "j"), encode(&SeqRecord { seq: 4 }), 11);
    let runs = (0..alive).map(|n| {
        let run = format!("j@old{n:03}");
        let state = if n == 0 { "RUNNING" } else { "PENDING" };
        let owner = (n == 0).then(|| serde_json::json!({"node": "n", "incarnation": "i"}));
        let record = serde_json::json!({"v": 1, "r": {
            "job": "j", "run": run, "attempt": 1, "kind": "scheduled", "scheduled_ms": 0,
            "job_uid": 5, "generation": 1, "queue": "default", "needs": "handler:h",
            "deadline_ms": 0, "state": state, "not_before_ms": 0, "created_ms": 0,
            "owner": owner,
        }});
        let key = AttemptKey {
            partition: 0,
            job: "j".into(),
            run,
            attempt: 1,
        };
        entry(
            keys.run(&key),
            record.to_string().into_bytes(),
            20 + u64::from(n),
        )
    });
    let siblings = Siblings::with(seq, runs.collect());
    BTreeMap::from([(Arc::from("j"), siblings)])
}

fn fire(overlap: Overlap, alive: u32) -> Fire {
    let partition = partition(&[overlap]);
    let fire = Fire::new(&keys(), &partition, plan(&[1]), &known(alive), 99_000);
    limits::check_txn(&fire.txn).unwrap();
    fire
}

fn record(fire: &Fire, key: &[u8]) -> Option<RunRecord> {
    fire.txn.ops.iter().find_map(|op| match op {
        Op::Write(Write::Put { key: k, value, .. }) if k == key => {
            crate::job::record::decode(value).ok()
        }
        _ => None,
    })
}

fn at(attempt: u32) -> AttemptKey {
    AttemptKey {
        partition: 0,
        job: "j".into(),
        run: "j@19700101T000001Z".into(),
        attempt,
    }
}

#[test]
fn a_queue_with_room_consumes_the_counter_and_a_full_one_proves_that_it_is() {
    let seq = Requirement::Modified(keys().seq(0, "j"), Revision(11));
    let room = fire(Overlap::Queue, 1);
    assert!(room.txn.require.contains(&seq));
    let made = record(&room, &keys().run(&at(1))).unwrap();
    assert_eq!(made.concurrency, Some(1));

    let full = fire(Overlap::Queue, 3);
    let proof = full.txn.require.iter().skip(2);
    let proof: Vec<u64> = proof
        .map(|requirement| match requirement {
            Requirement::Created(_, revision) => revision.0,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(proof, [20, 21], "as many as fill it");
    let skip = record(&full, &keys().done(&at(0))).unwrap();
    assert_eq!(skip.skipped, Some(SkipReason::Overlap));
    assert!(!full.txn.require.contains(&seq), "nothing is created");
}

#[test]
fn a_replacement_ends_who_waits_and_cancels_who_runs() {
    let fire = fire(Overlap::Replace, 2);
    let keys = keys();
    assert!(record(&fire, &keys.run(&at(1))).is_some());
    let old = |n: u32| AttemptKey {
        run: format!("j@old{n:03}"),
        ..at(1)
    };
    let ended = record(&fire, &keys.done(&old(1))).unwrap();
    assert_eq!(ended.failed, Some(FailReason::Cancelled));
    assert_eq!(ended.error.unwrap(), "replaced by j@19700101T000001Z");
    let cancel = keys.cancel("j@old000");
    let told = |op: &Op| matches!(op, Op::Write(Write::Put { key, .. }) if *key == cancel);
    assert!(fire.txn.ops.iter().any(told));
    let there = Requirement::Created(keys.run(&old(0)), Revision(20));
    let as_read = Requirement::Modified(keys.run(&old(1)), Revision(21));
    assert!(fire.txn.require.contains(&there) && fire.txn.require.contains(&as_read));
}

#[test]
fn the_largest_replacement_and_the_largest_proof_fit_into_a_request() {
    let many = fire(Overlap::Replace, 2 * MAX_SIBLINGS);
    let ends = many.txn.ops.iter().filter(
        |op| matches!(op, Op::Write(Write::Put { key, .. }) if keys().all_done().contains(key)),
    );
    assert_eq!(ends.count(), 31, "and the one that runs");
    assert!(limits::txn_width(&many.txn) <= MAX_PARTS);
    let mut partition = partition(&[Overlap::Queue]);
    let mut spec = JobSpec::handler("j", "h").cron("* * * * * *");
    spec.overlap = Overlap::Queue;
    (spec.concurrency, spec.queue_limit) = (Some(MAX_SIBLINGS), Some(MAX_SIBLINGS));
    let schedule = Schedule::compile(&spec.schedule, 0, &Calendars::default()).unwrap();
    let job = partition.jobs.get_mut("j").unwrap();
    job.definitions = Definitions::from_iter([(
        1,
        Arc::new(Definition {
            spec: Arc::new(spec),
            schedule,
        }),
    )]);
    let known = known(2 * MAX_SIBLINGS);
    let fire = Fire::new(&keys(), &partition, plan(&[1]), &known, 99_000);
    assert!(record(&fire, &keys().done(&at(0))).is_some());
    assert!(limits::txn_width(&fire.txn) <= MAX_PARTS);
}

#[test]
fn what_looks_at_other_runs_waits_for_the_request_that_made_them() {
    use Overlap::{Allow, Queue, Replace, Skip};
    for (policies, fit) in [
        (&[Allow, Allow, Allow][..], 3),
        (&[Skip, Skip, Skip], 3),
        (&[Allow, Skip, Skip], 3),
        (&[Allow, Skip, Allow], 2),
        (&[Skip, Allow], 1),
        (&[Queue, Queue], 1),
        (&[Replace, Replace], 1),
        (&[Allow, Queue], 1),
        (&[Skip, Replace], 1),
        (&[Queue, Allow], 1),
        (&[Replace, Skip], 1),
    ] {
        let partition = partition(policies);
        let generations: Vec<u64> = (1..).take(policies.len()).collect();
        assert_eq!(
            independent(&partition, &plan(&generations)),
            fit,
            "{policies:?}"
        );
    }
}

#[test]
fn runs_that_came_or_went_are_no_reason_to_read_the_partition_anew() {
    let mut partition = partition(&[Overlap::Queue]);
    let fire = Fire::new(&keys(), &partition, plan(&[1]), &known(1), 99_000);
    let entry = |modified| {
        Some(Entry {
            key: vec![1],
            value: vec![],
            created: Revision(1),
            modified: Revision(modified),
            lease: None,
        })
    };
    let seen = vec![entry(7), entry(8), entry(12), None];
    let conflict = TxnOutcome::Conflict { seen };
    let verdict = fire.settle(&mut partition, Revision(50), &conflict);
    assert_eq!((verdict, partition.stale), (Verdict::Overtaken, false));
    // The run stands already: that is for the log, and read anew.
    let seen = vec![entry(7), entry(8), entry(11), entry(3)];
    let conflict = TxnOutcome::Conflict { seen };
    let verdict = fire.settle(&mut partition, Revision(50), &conflict);
    assert_eq!((verdict, partition.stale), (Verdict::Stale, true));
    assert!(partition.standing.contains("j@19700101T000001Z"));
    let seen = vec![entry(9), entry(8), entry(12), None];
    let conflict = TxnOutcome::Conflict { seen };
    let verdict = fire.settle(&mut partition, Revision(50), &conflict);
    assert_eq!(verdict, Verdict::Stale, "the cursor has moved");
}

#[test]
fn siblings_that_cannot_be_read_are_told_to_go_too() {
    let mut known = known(1);
    let siblings = known.get_mut("j").unwrap();
    let run = keys().run(&AttemptKey {
        run: "j@odd".into(),
        ..at(1)
    });
    *siblings = Siblings::with(
        siblings.seq().clone(),
        vec![Entry {
            key: run,
            value: b"?".to_vec(),
            created: Revision(30),
            modified: Revision(31),
            lease: None,
        }],
    );
    assert!(Attempt::read(&keys(), &siblings.alive()[0]).is_none());
    let partition = partition(&[Overlap::Replace]);
    let fire = Fire::new(&keys(), &partition, plan(&[1]), &known, 99_000);
    let cancel = keys().cancel("j@odd");
    let told = |op: &Op| matches!(op, Op::Write(Write::Put { key, .. }) if *key == cancel);
    assert!(fire.txn.ops.iter().any(told));
}

/// Instants that nobody decided in time are told by the request that decides them, also when nothing
/// runs; a run is as late as the first instant that it stands for.
#[test]
fn what_is_decided_too_late_is_told_at_once() {
    let mut partition = partition(&[Overlap::Allow]);
    let job = partition.jobs.get_mut("j").unwrap();
    let definition = Arc::make_mut(job.definitions.iter_mut().next().unwrap());
    let spec = Arc::make_mut(&mut definition.spec);
    spec.misfire = Misfire::Skip;
    spec.notify = serde_json::from_value(serde_json::json!([
        { "webhook": "https://a.org/", "on": ["late"], "late_after": "10s" },
        { "webhook": "https://b.org/", "on": ["failed"] },
    ]))
    .unwrap();
    let decisions = [
        Decision::Skip {
            from_ms: 1_000,
            at_ms: 5_000,
            count: 5,
            reason: SkipReason::Misfire,
            generation: 1,
        },
        Decision::Run {
            at_ms: 9_000,
            stands_for: 4,
            from_ms: 6_000,
            generation: 1,
        },
    ];
    for (now_ms, told) in [(11_000, 0), (11_001, 1)] {
        let plan = Plan {
            decisions: decisions.iter().map(|d| ("j".into(), d.clone())).collect(),
            ..plan(&[])
        };
        let fire = Fire::new(&keys(), &partition, plan, &known(0), now_ms);
        let notes = limits::writes_of(std::slice::from_ref(&fire.txn))
            .filter_map(|write| keys().parse_note(write.key()));
        let skip = "j@19700101T000005Z";
        let told_of: Vec<(String, u32)> = notes.map(|note| (note.run, note.attempt)).collect();
        assert_eq!(told_of, vec![(skip.to_owned(), 0); told]);
        let run = AttemptKey {
            run: "j@19700101T000009Z".into(),
            attempt: 1,
            ..at(1)
        };
        let run = record(&fire, &keys().run(&run)).unwrap();
        assert_eq!(run.late_at_ms, Some(16_000));
    }
}
