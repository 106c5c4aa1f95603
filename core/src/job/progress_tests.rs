//! Who may write, and what an answer means.

use super::*;
use crate::backend::Span;
use crate::job::record::{RunRecord, decode};
use crate::keys::AttemptKey;
use crate::model::{Model, Retention};

fn attempt(modified: u64) -> Attempt {
    let record = serde_json::json!({
        "job": "j", "run": "j@1", "attempt": 2, "kind": "scheduled", "scheduled_ms": 1,
        "job_uid": 1, "generation": 1, "queue": "default", "needs": "command",
        "deadline_ms": 0, "state": "RUNNING", "not_before_ms": 0, "created_ms": 0,
        "owner": {"node": "n", "incarnation": "i"},
    });
    let record: RunRecord = serde_json::from_value(record).unwrap();
    Attempt {
        key: AttemptKey {
            partition: 0,
            job: "j".into(),
            run: "j@1".into(),
            attempt: 2,
        },
        record,
        modified: Revision(modified),
    }
}

fn record(fraction: f64, bytes: &[u8], nonce: u64) -> ProgressRecord {
    ProgressRecord {
        attempt: 2,
        token: 7,
        progress: Some(Progress {
            fraction,
            note: None,
            at_ms: 1,
        }),
        checkpoint: Some(Checkpoint {
            attempt: 2,
            at_ms: 1,
            bytes: bytes.to_vec(),
        }),
        nonce,
    }
}

/// A store in which the attempt is RUNNING, and the revision of its record.
fn store(keys: &Keys) -> (Model, Attempt) {
    let mut model = Model::new(Retention::default());
    let mut attempt = attempt(0);
    let put = Txn::new().put(keys.run(&attempt.key), encode(&attempt.record));
    attempt.modified = model.commit(&put).answer.unwrap().applied().unwrap();
    (model, attempt)
}

fn standing(keys: &Keys, model: &Model) -> Option<ProgressRecord> {
    let key = keys.progress(0, "j", "j@1");
    let entry = model.entries(&Span::key(key)).next()?;
    Some(decode(&entry.value).unwrap())
}

#[test]
fn bytes_are_read_back_as_written_and_stand_as_text() {
    let all: Vec<u8> = (0..=255).collect();
    let written = encode(&record(0.5, &all, 1));
    assert_eq!(
        decode::<ProgressRecord>(&written).unwrap(),
        record(0.5, &all, 1)
    );
    assert!(std::str::from_utf8(&written).is_ok());
    let spoilt = String::from_utf8(encode(&record(0.5, b"abc", 1))).unwrap();
    let spoilt = spoilt.replace("YWJj", "Y!Jj");
    assert!(decode::<ProgressRecord>(spoilt.as_bytes()).is_err());
}

#[test]
fn a_late_copy_of_an_older_write_changes_nothing() {
    let keys = Keys::new("t");
    let (mut model, attempt) = store(&keys);
    let (one, two) = (record(0.1, b"one", 1), record(0.2, b"two", 2));
    let first = write(&keys, &attempt, None, &one);
    let outcome = model.commit(&first).answer.unwrap();
    let Written::Stands(revision) = written(&attempt, &one, &outcome) else {
        panic!("{outcome:?}");
    };
    // Its answer was lost, and it is sent again: it stands.
    let again = model.commit(&first).answer.unwrap();
    assert_eq!(written(&attempt, &one, &again), Written::Stands(revision));
    let second = write(&keys, &attempt, Some(revision), &two);
    let outcome = model.commit(&second).answer.unwrap();
    assert!(matches!(
        written(&attempt, &two, &outcome),
        Written::Stands(_)
    ));
    let late = model.commit(&first).answer.unwrap();
    assert!(matches!(
        written(&attempt, &one, &late),
        Written::Other(Some(_))
    ));
    assert_eq!(standing(&keys, &model), Some(two));
}

#[test]
fn an_attempt_that_was_decided_otherwise_writes_nothing_whatever_stands() {
    let keys = Keys::new("t");
    let (mut model, attempt) = store(&keys);
    let gone = Txn::new().delete(keys.run(&attempt.key));
    let _ = model.commit(&gone).answer.unwrap();
    let late = record(0.9, b"late", 1);
    let txn = write(&keys, &attempt, None, &late);
    let outcome = model.commit(&txn).answer.unwrap();
    assert_eq!(written(&attempt, &late, &outcome), Written::Fenced);
    assert_eq!(standing(&keys, &model), None);
    // The same when the run's record is there again, but is another one.
    let put = Txn::new().put(keys.run(&attempt.key), encode(&attempt.record));
    let _ = model.commit(&put).answer.unwrap();
    let outcome = model.commit(&txn).answer.unwrap();
    assert_eq!(written(&attempt, &late, &outcome), Written::Fenced);
    assert_eq!(standing(&keys, &model), None);
}

#[test]
fn the_largest_record_fits_into_a_request() {
    let largest = crate::progress::MAX_CHECKPOINT_BYTES;
    let keys = Keys::new("t");
    let txn = write(
        &keys,
        &attempt(5),
        Some(Revision(6)),
        &record(1.0, &vec![255; largest], 1),
    );
    crate::backend::limits::check_txn(&txn).unwrap();
    // Ten of them would, so other runs' ends never wait for one.
    assert!(
        crate::backend::limits::txn_bytes(&txn) * 10 < crate::backend::limits::MAX_REQUEST_BYTES
    );
}
