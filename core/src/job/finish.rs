//! Steps of the run state machine as guarded transactions.
//!
//! Each consumes the record that it was planned from, so it applies at most once however often it
//! is delivered, and a conflict on that record is final: somebody else took the step first.

use crate::backend::{Entry, Key, Op, Requirement, Revision, Txn, Write};
use crate::handler::{Execution, FencingToken};
use crate::keys::{AttemptKey, Keys, part_of};

use super::notes;
use super::record::{RunRecord, SlotRecord, TodoRecord, decode, encode};
use super::run::{
    Ending, FailReason, IllegalTransition, Owner, Phase, RunEvent, RunState, transition,
};
use super::spec::{JobSpec, OnLost};

/// An attempt as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Attempt {
    /// Which.
    pub key: AttemptKey,
    /// Its record.
    pub record: RunRecord,
    /// The revision of the record: the guard of the next step.
    pub modified: Revision,
}

impl Attempt {
    /// An entry under `run/`; `None` when it is no attempt or cannot be decoded.
    #[must_use]
    pub fn read(keys: &Keys, entry: &Entry) -> Option<Self> {
        let key = keys.parse_attempt(&entry.key)?;
        let mut record: RunRecord = match decode(&entry.value) {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(run = key.run, %error, "this run is set aside");
                return None;
            }
        };
        if record.job_uid == 0 {
            // Made by the transaction that made its job.
            record.job_uid = entry.created.0;
        }
        Some(Self {
            key,
            record,
            modified: entry.modified,
        })
    }

    /// Where it stands. A record that contradicts itself counts as PENDING without an owner only
    /// in its name: no event but `Abandon` and `Claim` applies to it.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.record.phase().unwrap_or(Phase::Pending)
    }

    /// The fencing token of a RUNNING attempt: its record was last written when it became so.
    #[must_use]
    pub fn token(&self, epoch: u8) -> Option<FencingToken> {
        let executes = self.record.state == RunState::Running && self.record.parts.is_none();
        executes.then(|| FencingToken::new(epoch, self.modified.0, self.record.place.unwrap_or(0)))
    }

    /// Whether the run may have said how far it has come: no code of it has run before its first
    /// attempt is RUNNING, and what is divided into parts has no code.
    #[must_use]
    pub fn may_have_progress(&self) -> bool {
        let started = self.record.attempt > 1 || self.record.state == RunState::Running;
        started && self.record.parts.is_none()
    }

    /// The wishes that end it: for itself, and for the run that it is a part of.
    #[must_use]
    pub fn cancels(&self, keys: &Keys) -> Vec<Key> {
        let run = &self.key.run;
        let runs = [Some(run.as_str()), part_of(run).map(|(whole, _)| whole)];
        runs.into_iter().flatten().map(|r| keys.cancel(r)).collect()
    }

    pub(super) fn guard(&self, keys: &Keys) -> Txn {
        Txn::new().require(Requirement::Modified(keys.run(&self.key), self.modified))
    }
}

/// A worker with a live session takes the attempt. (The session is the guard of the batch.)
///
/// One whose concurrency is limited takes `slot` with it, one below its limit: no more executions
/// than that have a slot then, since none is held at or above the limit. The slot goes in the
/// transaction that ends the attempt or gives it back, whoever writes that.
///
/// # Errors
/// [`IllegalTransition`] when the attempt is not PENDING.
pub fn claim(
    keys: &Keys,
    attempt: &Attempt,
    owner: &Owner,
    slot: u32,
    now_ms: i64,
) -> Result<(Txn, RunRecord), IllegalTransition> {
    transition(&attempt.phase(), &RunEvent::Claim(owner.clone()))?;
    if let Some(node) = attempt.record.home().filter(|home| *home != owner.node) {
        return Err(IllegalTransition::OtherNode { node: node.into() });
    }
    let limit = attempt.record.concurrency;
    // Never one at the limit or above it, whoever asks.
    let slot = limit.map(|limit| slot.min(limit.saturating_sub(1)));
    let record = RunRecord {
        state: RunState::Locked,
        owner: Some(owner.clone()),
        locked_ms: Some(now_ms),
        slot,
        ..attempt.record.clone()
    };
    let mut txn = rewrite(keys, attempt, &record);
    if let (Some(limit), Some(slot)) = (limit, slot) {
        let AttemptKey { partition, job, .. } = &attempt.key;
        let held = SlotRecord {
            run: attempt.key.run.clone(),
            attempt: attempt.key.attempt,
        };
        let key = keys.slot(*partition, job, slot);
        txn = txn
            .require(Requirement::Absent(key.clone()))
            // An edit may have lowered the limit: what runs under the old one counts too.
            .require(Requirement::Empty(keys.slots_from(
                *partition,
                job,
                limit.max(1),
            )))
            .put(key, encode(&held));
    }
    Ok((txn, record))
}

/// Frees the slot that the attempt holds. It is its own: whoever takes the attempt out of LOCKED or
/// RUNNING consumes the record that says so.
fn free_slot(keys: &Keys, attempt: &Attempt, txn: Txn) -> Txn {
    match attempt.record.slot {
        Some(slot) => txn.delete(keys.slot(attempt.key.partition, &attempt.key.job, slot)),
        None => txn,
    }
}

/// What a record says of an attempt that is about to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Its place in the batch.
    pub place: u8,
    /// When, in Unix milliseconds.
    pub now_ms: i64,
    /// When the leader ends the attempt for a worker that is wedged.
    pub deadline_ms: i64,
    /// How long the worker may need to stop it once its session is gone.
    pub grace_ms: u64,
}

/// The owner is about to start the user's code; not if somebody wants the run ended.
///
/// # Errors
/// [`IllegalTransition`] when the attempt is not LOCKED by `owner`.
pub fn start(
    keys: &Keys,
    attempt: &Attempt,
    owner: &Owner,
    start: Start,
) -> Result<(Txn, RunRecord), IllegalTransition> {
    transition(&attempt.phase(), &RunEvent::Start(owner.clone()))?;
    let record = RunRecord {
        state: RunState::Running,
        started_ms: Some(start.now_ms),
        deadline_ms: start.deadline_ms,
        grace_ms: start.grace_ms,
        place: Some(start.place),
        ..attempt.record.clone()
    };
    let cancels = attempt.cancels(keys).into_iter();
    let txn = cancels.fold(rewrite(keys, attempt, &record), |txn, cancel| {
        txn.require(Requirement::Absent(cancel))
    });
    Ok((txn, record))
}

/// LOCKED goes back to PENDING: its owner declines, or is gone. Nothing has run.
///
/// # Errors
/// [`IllegalTransition`] when the attempt is not LOCKED.
pub fn give_back(
    keys: &Keys,
    attempt: &Attempt,
    event: &RunEvent,
) -> Result<Txn, IllegalTransition> {
    transition(&attempt.phase(), event)?;
    let record = RunRecord {
        state: RunState::Pending,
        owner: None,
        locked_ms: None,
        slot: None,
        ..attempt.record.clone()
    };
    Ok(free_slot(keys, attempt, rewrite(keys, attempt, &record)))
}

fn rewrite(keys: &Keys, attempt: &Attempt, record: &RunRecord) -> Txn {
    attempt
        .guard(keys)
        .put(keys.run(&attempt.key), encode(record))
}

/// What is known at the end of an attempt.
#[derive(Clone, Debug, Default)]
pub struct End<'a> {
    /// When.
    pub now_ms: i64,
    /// Tells this write from another's.
    pub nonce: u64,
    /// The namespace's epoch, for the fencing token.
    pub epoch: u8,
    /// What the execution left.
    pub execution: Option<&'a Execution>,
    /// For people, when there was no execution.
    pub error: Option<String>,
    /// The definition that the run follows; without it there is no retry, and nobody is told.
    pub spec: Option<&'a JobSpec>,
    /// The code may still be at it, so this is as uncertain as a lost worker: another attempt
    /// follows only where two of them do no harm.
    pub uncertain: bool,
    /// It is a run in parts of which none started in time, however early it was divided.
    pub late: bool,
}

/// Ends an attempt: its record moves from `run/` to `done/`, and a retry, if the policy has one,
/// is created in the same transaction (unless somebody wants the run ended, or the job is gone).
/// Without one, what the run has said of itself goes with it.
/// A success leaves a note for the leader when other jobs run after it, and whatever somebody wants to
/// be told of leaves a note for each of them.
///
/// # Errors
/// [`IllegalTransition`] when the diagram has no such edge.
pub fn end(
    keys: &Keys,
    attempt: &Attempt,
    event: &RunEvent,
    end: &End<'_>,
) -> Result<Txn, IllegalTransition> {
    let phase = transition(&attempt.phase(), event)?;
    let (state, failed) = match phase {
        Phase::Success => (RunState::Success, None),
        Phase::Failed(reason) => (RunState::Failed, Some(reason)),
        Phase::Pending | Phase::Locked(_) | Phase::Running(_) | Phase::Whole | Phase::InParts => {
            return Err(IllegalTransition::WrongState {
                state: attempt.record.state,
                event: event.name(),
            });
        }
    };
    let execution = end.execution;
    let record = RunRecord {
        state,
        failed,
        ended_ms: Some(end.now_ms),
        token: attempt.token(end.epoch).map(|token| token.0),
        exit_code: execution.and_then(|e| e.exit_code),
        error: execution
            .and_then(|e| e.failure.as_ref())
            .map(|f| f.message.clone())
            .or_else(|| end.error.clone()),
        output_tail: execution.and_then(|e| e.output_tail.clone()),
        output_truncated: execution.is_some_and(|e| e.output_truncated),
        slot: None,
        nonce: end.nonce,
        ..attempt.record.clone()
    };
    let mut txn = attempt
        .guard(keys)
        .require(Requirement::Absent(keys.done(&attempt.key)))
        .delete(keys.run(&attempt.key))
        .put(keys.done(&attempt.key), encode(&record));
    txn = free_slot(keys, attempt, txn);

    let cancel = keys.cancel(&attempt.key.run);
    let progress = attempt.may_have_progress().then(|| {
        let AttemptKey {
            partition,
            job,
            run,
            ..
        } = &attempt.key;
        Write::delete(keys.progress(*partition, job, run))
    });
    let next = retry(&record, end);
    let retried = next.is_some();
    match next {
        Some(next) => {
            let key = AttemptKey {
                attempt: next.attempt,
                ..attempt.key.clone()
            };
            let job = keys.job(key.partition, &key.job);
            let wishes = attempt.cancels(keys).into_iter();
            let mut require: Vec<Requirement> = wishes.map(Requirement::Absent).collect();
            require.push(Requirement::Created(job, Revision(record.job_uid)));
            txn = txn.op(Op::Choose {
                require,
                then: vec![Write::put(keys.run(&key), encode(&next))],
                otherwise: [Write::delete(cancel)]
                    .into_iter()
                    .chain(progress)
                    .collect(),
            });
        }
        None => {
            txn = progress
                .into_iter()
                .fold(txn.delete(cancel), |txn, delete| txn.op(delete));
        }
    }
    // What follows a run in parts follows all of it.
    if record.state == RunState::Success && record.shard.is_none() {
        // Whoever wants to run after this is known to the transaction alone.
        let todo = TodoRecord {
            job: record.job.clone(),
            hops: record.cause.as_ref().map_or(0, |cause| cause.hops),
            done: Vec::new(),
        };
        txn = txn.op(Op::Choose {
            require: vec![Requirement::Empty(keys.followers_of(&record.job))],
            then: vec![],
            otherwise: vec![Write::put(keys.todo(&record.run), encode(&todo))],
        });
    }
    let told = notes::End {
        retried,
        late: end.late,
    };
    Ok(match end.spec {
        // Whoever wants to know of a run in parts wants to know what became of the whole.
        Some(spec) if !spec.notify.is_empty() && record.shard.is_none() => {
            notes::at_end(keys, &attempt.key, &record, spec, told, txn)
        }
        _ => txn,
    })
}

/// The attempt that follows one that ended as `ended`, if the policy has one.
fn retry(ended: &RunRecord, end: &End<'_>) -> Option<RunRecord> {
    if ended.parts.is_some() {
        // Its parts have been retried.
        return None;
    }
    let spec = end
        .spec
        .filter(|spec| !end.uncertain || spec.on_lost == OnLost::Retry)?;
    let reason = ended.failed?;
    let attempt = ended.attempt + 1;
    let unstarted = ended.unstarted + u32::from(reason == FailReason::NotStarted);
    // Executions are what counts: those so far, and the next one.
    let execution = attempt.saturating_sub(unstarted);
    let more = execution <= spec.attempts();
    let (wanted, wait_ms) = match reason {
        // Nothing has run, so nothing was used up: another attempt, whatever the policy.
        FailReason::NotStarted => (true, 0),
        FailReason::Exit | FailReason::Error | FailReason::Panic | FailReason::Timeout => {
            (more, spec.backoff_ms(execution))
        }
        // It may have done its work, or half of it.
        FailReason::WorkerLost | FailReason::Fenced => (
            more && spec.on_lost == OnLost::Retry,
            spec.backoff_ms(execution),
        ),
        FailReason::Cancelled | FailReason::Expired | FailReason::NoHandler => (false, 0),
    };
    let not_before_ms = end
        .now_ms
        .saturating_add(i64::try_from(wait_ms).unwrap_or(i64::MAX));
    wanted.then(|| RunRecord {
        attempt,
        unstarted,
        state: RunState::Pending,
        owner: None,
        failed: None,
        not_before_ms,
        deadline_ms: not_before_ms.saturating_add(spec.unclaimed_after.ms_i64()),
        // A run is late once: this attempt stands for its first one only if nobody was told yet.
        late_at_ms: ended
            .late_at_ms
            .filter(|_| reason == FailReason::NotStarted && !notes::is_late(ended, end.now_ms)),
        created_ms: end.now_ms,
        locked_ms: None,
        started_ms: None,
        ended_ms: None,
        place: None,
        grace_ms: 0,
        token: None,
        exit_code: None,
        error: None,
        output_tail: None,
        output_truncated: false,
        nonce: 0,
        ..ended.clone()
    })
}

/// The event that reports an execution.
#[must_use]
pub fn finished(owner: &Owner, execution: &Execution) -> RunEvent {
    let ending = match &execution.failure {
        None => Ending::Success,
        Some(failure) => Ending::Failed(failure.reason),
    };
    RunEvent::Finish(owner.clone(), ending)
}
