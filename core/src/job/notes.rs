//! What is told of a run, decided: the notes that a transaction leaves for the leader to send.
//!
//! A note is written by the transaction that makes it true, so no crash can lose one. One note is
//! for one receiver: who is slow or away keeps nobody else waiting.

use serde::{Deserialize, Serialize};

use crate::backend::{Op, Requirement, Revision, Txn, Write};
use crate::keys::{AttemptKey, Keys};

use super::record::{RunRecord, encode};
use super::run::{FailReason, RunState, SkipReason};
use super::spec::{JobSpec, Misfire, NotifyEvent};

/// So much of an error, and of the end of an output, is in a note.
const MAX_TEXT_BYTES: usize = 1_024;

/// What is to be told to whom: which attempt, which event, and the receiver's place in the job's list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NoteKey {
    /// The run.
    pub run: String,
    /// The attempt.
    pub attempt: u32,
    /// What happened to it, in one word.
    pub event: String,
    /// Which receiver.
    pub index: u8,
}

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

/// Whether a run in parts is late although it was divided in time: all parts that are made are among
/// `alive`, and none of these has started in time.
pub fn parts_are_late<'a>(
    parent: &RunRecord,
    alive: impl IntoIterator<Item = &'a RunRecord>,
    now_ms: i64,
) -> bool {
    let made = parent.parts.as_ref().map_or(0, |parts| parts.made);
    if parent.late_at_ms.is_none_or(|at_ms| now_ms <= at_ms) {
        return false;
    }
    let mut late = 0;
    for part in alive {
        if !is_late(part, now_ms) {
            return false;
        }
        late += 1;
    }
    made > 0 && late == made
}

/// Whether no attempt of a part of this run had started in time. `ended`: all of them.
pub fn no_part_started<'a>(
    parent: &RunRecord,
    ended: impl IntoIterator<Item = &'a RunRecord>,
) -> bool {
    let Some(late_at_ms) = parent.late_at_ms else {
        return false;
    };
    let mut any = false;
    for part in ended {
        any = true;
        // Its code never began; another attempt stands for it.
        if part.failed == Some(FailReason::NotStarted) {
            continue;
        }
        let started_ms = part.started_ms.or(part.ended_ms);
        if started_ms.is_some_and(|at_ms| at_ms <= late_at_ms) {
            return false;
        }
    }
    any
}

/// What is known of an end beside its record.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    /// Another attempt was to follow.
    pub(super) retried: bool,
    /// It is late, whatever its record says.
    pub(super) late: bool,
}

/// Adds what is told of the end of an attempt.
#[must_use]
pub(super) fn at_end(
    keys: &Keys,
    key: &AttemptKey,
    record: &RunRecord,
    spec: &JobSpec,
    end: End,
    mut txn: Txn,
) -> Txn {
    let since_ms = record.ended_ms.unwrap_or(record.created_ms);
    let ending = ending(record, end.retried);
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
    if end.late || is_late(record, since_ms) {
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

/// The notes that instants were decided so late that they do not run any more: nothing starts that
/// could be late. `record` says so. Not of those that a later run stands for; it is late itself.
#[must_use]
pub fn missed(keys: &Keys, key: &AttemptKey, record: &RunRecord, spec: &JobSpec) -> Vec<Write> {
    let nobody_decided = match record.skipped {
        Some(SkipReason::Deadline) => true,
        Some(SkipReason::Misfire) => spec.misfire != Misfire::Latest,
        _ => false,
    };
    let first_ms = record.stands_from_ms.unwrap_or(record.scheduled_ms);
    let since_ms = record.ended_ms.unwrap_or(record.created_ms);
    let is_late = spec
        .late_at_ms(first_ms)
        .is_some_and(|at_ms| since_ms > at_ms);
    if nobody_decided && is_late {
        late(keys, key, record, spec, since_ms)
    } else {
        Vec::new()
    }
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
    if let Some(parts) = &mut short.parts {
        parts.nodes = None;
    }
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
#[path = "notes_tests.rs"]
mod tests;
