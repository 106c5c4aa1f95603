//! What is told of a run, decided: the notes that a transaction leaves for the leader to send.
//!
//! A note is written by the transaction that makes it true, so no crash can lose one. One note is
//! for one receiver: who is slow or away keeps nobody else waiting.

use serde::{Deserialize, Serialize};

use crate::backend::{Op, Requirement, Revision, Txn, Write};
use crate::keys::{AttemptKey, Keys, NoteKey};

use super::record::{RunRecord, encode};
use super::run::{FailReason, RunState};
use super::spec::{JobSpec, NotifyEvent};

/// So much of an error, and of the end of an output, is in a note.
const MAX_TEXT_BYTES: usize = 1_024;

/// Something to tell one receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoteRecord {
    /// What happened.
    pub event: NotifyEvent,
    /// Who is told.
    pub webhook: String,
    /// When it was written, in Unix milliseconds.
    pub since_ms: i64,
    /// The run as it stood then, its payload left out and its texts shortened.
    pub run: RunRecord,
    /// It is over, sent or given up. It stays until the attempt has ended, so that nobody writes it
    /// again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
}

/// How an attempt ended, as far as people are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Well.
    Good,
    /// FAILED for good.
    Bad,
    /// FAILED for good, and nobody knows whether the work was done.
    Lost,
    /// A retry follows, or somebody wanted this end.
    Quiet,
}

/// What an ended attempt is to those who wait for news. `retried`: another attempt was to follow
/// (if it does not, somebody wanted the run ended, or deleted the job).
#[must_use]
pub fn ending(record: &RunRecord, retried: bool) -> Ending {
    match (record.state, record.failed) {
        (RunState::Success, _) => Ending::Good,
        (RunState::Failed, Some(FailReason::Cancelled)) => Ending::Quiet,
        (RunState::Failed, _) if retried => Ending::Quiet,
        (RunState::Failed, Some(FailReason::WorkerLost)) => Ending::Lost,
        (RunState::Failed, _) => Ending::Bad,
        _ => Ending::Quiet,
    }
}

/// What one receiver hears of an ending, if anything. `recovers`: the last end before was bad.
#[must_use]
pub fn told(ending: Ending, recovers: bool, on: &[NotifyEvent]) -> Option<NotifyEvent> {
    let wanted: &[NotifyEvent] = match ending {
        Ending::Good if recovers => &[NotifyEvent::Recovered],
        Ending::Good | Ending::Quiet => &[],
        Ending::Bad => &[NotifyEvent::Failed],
        // Whoever does not ask for the one hears of it as the other.
        Ending::Lost => &[NotifyEvent::Lost, NotifyEvent::Failed],
    };
    wanted.iter().copied().find(|event| on.contains(event))
}

/// Whether a run is late at `now_ms`: it has not started in time.
#[must_use]
pub fn is_late(record: &RunRecord, now_ms: i64) -> bool {
    let started_ms = record.started_ms.or(record.ended_ms).unwrap_or(now_ms);
    record.late_at_ms.is_some_and(|at_ms| started_ms > at_ms)
}

/// Adds what is told of the end of an attempt.
#[must_use]
pub(super) fn at_end(
    keys: &Keys,
    key: &AttemptKey,
    record: &RunRecord,
    spec: &JobSpec,
    retried: bool,
    mut txn: Txn,
) -> Txn {
    let since_ms = record.ended_ms.unwrap_or(record.created_ms);
    let ending = ending(record, retried);
    let notes = |recovers| {
        let all = spec.notify.iter().enumerate();
        let told = all.filter_map(|(index, to)| Some((index, told(ending, recovers, &to.on)?)));
        told.map(|(index, event)| write(keys, key, record, spec, index, event, since_ms))
            .collect::<Vec<_>>()
    };
    if spec.tells(NotifyEvent::Recovered) {
        let trouble = keys.trouble(&key.job);
        match ending {
            Ending::Good => {
                let mut over = notes(true);
                over.push(Write::delete(trouble.clone()));
                txn = txn.op(Op::Choose {
                    require: vec![Requirement::Absent(trouble)],
                    then: vec![],
                    otherwise: over,
                });
            }
            Ending::Bad | Ending::Lost => {
                // A job that is gone leaves no key of its own.
                let job = keys.job(key.partition, &key.job);
                txn = txn.op(Op::Choose {
                    require: vec![Requirement::Created(job, Revision(record.job_uid))],
                    then: vec![Write::put(trouble, encode(&serde_json::json!({})))],
                    otherwise: vec![],
                });
            }
            Ending::Quiet => {}
        }
    }
    txn.ops.extend(notes(false).into_iter().map(Op::from));
    if is_late(record, since_ms) {
        for write in late(keys, key, record, spec, since_ms) {
            // The leader may have told it while the run was waiting.
            txn = txn.op(Op::Choose {
                require: vec![Requirement::Absent(write.key().to_vec())],
                then: vec![write],
                otherwise: vec![],
            });
        }
    }
    txn
}

/// The notes that a run is late.
#[must_use]
pub fn late(
    keys: &Keys,
    key: &AttemptKey,
    record: &RunRecord,
    spec: &JobSpec,
    now_ms: i64,
) -> Vec<Write> {
    let event = NotifyEvent::Late;
    let all = spec.notify.iter().enumerate();
    all.filter(|(_, to)| to.on.contains(&event))
        .map(|(index, _)| write(keys, key, record, spec, index, event, now_ms))
        .collect()
}

fn write(
    keys: &Keys,
    key: &AttemptKey,
    record: &RunRecord,
    spec: &JobSpec,
    index: usize,
    event: NotifyEvent,
    since_ms: i64,
) -> Write {
    let name = NoteKey {
        run: key.run.clone(),
        attempt: key.attempt,
        event: event.as_str().to_owned(),
        index: u8::try_from(index).unwrap_or(u8::MAX),
    };
    let webhook = spec.notify.get(index).map(|to| to.webhook.clone());
    let note = NoteRecord {
        event,
        webhook: webhook.unwrap_or_default(),
        since_ms,
        run: shortened(record),
        over: false,
    };
    Write::put(keys.note(&name), encode(&note))
}

/// The record without what may be large.
fn shortened(record: &RunRecord) -> RunRecord {
    let mut short = RunRecord {
        payload: None,
        ..record.clone()
    };
    if let Some(error) = &mut short.error {
        let mut end = error.len().min(MAX_TEXT_BYTES);
        while !error.is_char_boundary(end) {
            end -= 1;
        }
        error.truncate(end);
    }
    if let Some(tail) = &short.output_tail
        && tail.len() > MAX_TEXT_BYTES
    {
        let mut from = tail.len() - MAX_TEXT_BYTES;
        while !tail.is_char_boundary(from) {
            from += 1;
        }
        short.output_tail = Some(tail[from..].to_owned());
        short.output_truncated = true;
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
