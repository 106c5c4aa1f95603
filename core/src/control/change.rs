//! Changes of jobs: pure functions from what was read to what must be required and written.
//!
//! Every change requires the job, the partition's `changes` and the cursor as they were read, and
//! rewrites `changes`: two changes never meet, and none slips between a plan and its commit.

use crate::backend::{Entry, Op, Requirement, Revision, Txn, Write};
use crate::job::record::{
    ChangesRecord, CursorRecord, DelayRecord, GoneRecord, JobRecord, Paused, Position, RunRecord,
    Segment, SeqRecord, encode,
};
use crate::job::run::{RunState, SkipReason};
use crate::job::spec::{JobSpec, NotifyEvent, SpecError, schedule_error};
use crate::job::{Definition, Definitions, Job};
use crate::keys::{AttemptKey, Keys};
use crate::leader::fire::pending;
use crate::plan::{first_undecided, owed};
use crate::schedule::{Calendars, Schedule, ScheduleKind};
use crate::time::compact;

use super::types::{ControlError, PutOutcome, RunKind};

/// More segments mean that the leader is far behind.
const MAX_SEGMENTS: usize = 64;
/// So many values of `at` are remembered.
const MAX_AT_SEEN: usize = 64;

/// A job as it was read, if it is there.
#[derive(Clone, Debug)]
pub struct Current {
    /// The job, if it exists and can be decoded.
    pub job: Option<Job>,
    /// Revision of the job's key; present also when the job cannot be decoded.
    pub modified: Option<Revision>,
    /// The newest definition under the id, whoever made it: generations never repeat.
    pub last_generation: u64,
    /// What is remembered of an earlier life.
    pub gone: Option<(GoneRecord, Revision)>,
    /// The last run of the chain, if the job runs some time after its last run.
    pub delay: Option<Entry>,
}

/// The partition as it was read.
#[derive(Clone, Debug)]
pub struct Heads {
    /// The partition.
    pub partition: u16,
    /// Its log of changes.
    pub changes: ChangesRecord,
    /// Guard.
    pub changes_revision: Revision,
    /// How far it is decided.
    pub cursor: CursorRecord,
    /// Guard.
    pub cursor_revision: Revision,
}

/// What one change requires and writes.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// On top of the heads.
    pub require: Vec<Requirement>,
    /// The writes.
    pub ops: Vec<Op>,
    /// For the log: the job, and its version afterwards.
    pub touched: (String, Option<u64>),
}

/// So many of the last changes are known by name.
pub const RECENT_CHANGES: usize = 16;

/// Several changes of one partition as one transaction, which calls itself `name`.
#[must_use]
pub fn transaction(keys: &Keys, heads: &Heads, changes: &[Change], name: u64) -> Txn {
    let mut txn = Txn::new()
        .require(Requirement::Modified(
            keys.changes(heads.partition),
            heads.changes_revision,
        ))
        .require(Requirement::Modified(
            keys.cursor(heads.partition),
            heads.cursor_revision,
        ));
    for change in changes {
        txn.require.extend(change.require.iter().cloned());
        txn.ops.extend(change.ops.iter().cloned());
    }
    let record = next_changes(heads, changes, name);
    txn.put(keys.changes(heads.partition), encode(&record))
}

/// The log of changes behind `changes`.
#[must_use]
pub fn next_changes(heads: &Heads, changes: &[Change], name: u64) -> ChangesRecord {
    let known = &heads.changes.recent;
    let dropped = (known.len() + 1).saturating_sub(RECENT_CHANGES);
    ChangesRecord {
        seq: heads.changes.seq + 1,
        touched: changes.iter().map(|c| c.touched.clone()).collect(),
        recent: known.iter().skip(dropped).copied().chain([name]).collect(),
    }
}

/// When a change takes effect: never inside a window that is being decided, and not before the
/// change before it. That a hold ends by itself later is no change that has been made.
pub(super) fn effective_from(
    now_ms: i64,
    cursor: &CursorRecord,
    record: Option<&JobRecord>,
) -> i64 {
    let last = record
        .and_then(|record| record.made_segments().last())
        .map_or(i64::MIN, |segment| segment.from_ms);
    now_ms.max(cursor.window.until_ms + 1).max(last)
}

/// Appends segments, and drops those that are decided to their ends: all of them when nothing is
/// owed before the new ones, so that a job may be edited for ever while its partition is idle.
pub(super) fn with_segments(
    job: Option<&Job>,
    next: Vec<Segment>,
    cursor: &CursorRecord,
) -> Result<Vec<Segment>, ControlError> {
    let from_ms = next.first().map_or(i64::MIN, |first| first.from_ms);
    let Some(job) = job.filter(|job| owed(job, cursor, from_ms).is_some()) else {
        return Ok(next);
    };
    let mut all: Vec<Segment> = job
        .record
        .segments
        .iter()
        .filter(|segment| segment.from_ms < from_ms)
        .copied()
        .collect();
    all.extend(next);
    // A segment's last instant lies before the next one's first.
    let decided = all
        .windows(2)
        .take_while(|pair| pair[1].from_ms <= cursor.window.from_ms)
        .count();
    all.drain(..decided);
    if all.len() > MAX_SEGMENTS {
        return Err(ControlError::Busy(
            "this job was changed too often while the leader is behind; try again later".into(),
        ));
    }
    Ok(all)
}

/// The segments of a definition from `from_ms` on, under the hold that keeps the job there.
pub(super) fn segments_from(from_ms: i64, generation: u64, hold: Option<&Paused>) -> Vec<Segment> {
    let segment = |from_ms, paused| Segment {
        from_ms,
        generation,
        paused,
    };
    let resumes_ms = hold.and_then(|hold| hold.until_ms);
    let mut all = vec![segment(from_ms, hold.is_some())];
    all.extend(resumes_ms.map(|at_ms| segment(at_ms, false)));
    all
}

fn version_after(current: &Current) -> u64 {
    current.job.as_ref().map_or(1, |job| job.record.version + 1)
}

/// The job's key as it was read.
fn job_guard(keys: &Keys, heads: &Heads, id: &str, current: &Current) -> Requirement {
    let key = keys.job(heads.partition, id);
    match current.modified {
        Some(modified) => Requirement::Modified(key, modified),
        None => Requirement::Absent(key),
    }
}

/// Creates a job or gives it a new definition; `None` when the definition stands already.
///
/// # Errors
/// [`ControlError::Invalid`] for an `at` that is older than the job's `start_deadline`;
/// [`ControlError::Busy`] for too many changes at once.
pub fn put(
    keys: &Keys,
    heads: &Heads,
    current: &Current,
    spec: &JobSpec,
    now_ms: i64,
) -> Result<(PutOutcome, Option<Change>), ControlError> {
    let id = &spec.id;
    let partition = heads.partition;
    let old = current.job.as_ref();
    if old
        .and_then(Job::definition)
        .is_some_and(|d| *d.spec == *spec)
    {
        return Ok((PutOutcome::Unchanged, None));
    }
    let record = old.map(|job| &job.record);
    let from_ms = effective_from(now_ms, &heads.cursor, record);
    let generation = 1 + record
        .map_or(0, |record| record.generation)
        .max(current.gone.as_ref().map_or(0, |(gone, _)| gone.generation))
        .max(current.last_generation);
    let created_ms = record.map_or(now_ms, |record| record.created_ms);
    let schedule = spec
        .check(&Calendars::default(), created_ms)
        .map_err(|findings| invalid(id, findings))?;
    // A new definition must have something ahead of it; an old one may have had its time.
    Schedule::check(&spec.schedule, now_ms, &Calendars::default())
        .map_err(|error| invalid(id, vec![schedule_error(&error)]))?;
    let schedule_kind = schedule.kind();
    let hold = record.and_then(|record| record.paused_at(from_ms));
    let standing = |paused: &Option<Box<Paused>>| paused.clone().filter(|p| p.holds(from_ms));
    // What is written must be readable again, or the job would fall silent.
    if let Err(error) = Definition::decode(&encode(spec), created_ms) {
        let unreadable = SpecError::new("", format!("this definition cannot be stored: {error}"));
        return Err(invalid(id, vec![unreadable]));
    }
    let mut next = JobRecord {
        version: version_after(current),
        generation,
        created_ms,
        updated_ms: now_ms,
        segments: with_segments(old, segments_from(from_ms, generation, hold), &heads.cursor)?,
        paused: record.and_then(|record| standing(&record.paused)),
        paused_all: record.and_then(|record| standing(&record.paused_all)),
        at_seen_ms: record.map_or_else(Vec::new, |record| record.at_seen_ms.clone()),
    };

    let mut change = Change {
        require: vec![job_guard(keys, heads, id, current)],
        touched: (id.clone(), Some(next.version)),
        ..Change::default()
    };
    let mut immediate = None;
    if let ScheduleKind::At(at_ms) = schedule_kind
        && spec.enabled
        && !next.at_seen_ms.contains(&at_ms)
    {
        // None is forgotten: a value that comes back must not fire again.
        if next.at_seen_ms.len() == MAX_AT_SEEN {
            let full = SpecError::new(
                "schedule.at",
                format!("this job has had {MAX_AT_SEEN} different values of `at`"),
            )
            .hint("make a job of its own for each such instant");
            return Err(invalid(id, vec![full]));
        }
        next.at_seen_ms.push(at_ms);
        let decided = old.is_some_and(|job| has_instant(job, at_ms));
        if at_ms < from_ms && hold.is_none() && !decided {
            immediate = Some(past_at(spec, at_ms, now_ms)?);
        }
    }
    if current.modified.is_none() {
        change
            .ops
            .push(Write::put(keys.seq(partition, id), encode(&SeqRecord::default())).into());
    }
    let gone = keys.gone(partition, id);
    match &current.gone {
        Some((_, revision)) => {
            change
                .require
                .push(Requirement::Modified(gone.clone(), *revision));
            change.ops.push(Write::delete(gone).into());
        }
        None if current.modified.is_none() => change.require.push(Requirement::Absent(gone)),
        None => {}
    }
    change
        .ops
        .push(Write::put(keys.job(partition, id), encode(&next)).into());
    change
        .ops
        .push(Write::put(keys.def(partition, id, generation), encode(spec)).into());
    if let Some(at_ms) = immediate {
        let job = Job {
            id: id.as_str().into(),
            // A new job's uid is the revision of this very transaction, which nobody knows yet.
            uid: old.map_or(Revision(0), |job| job.uid),
            modified: Revision(0),
            record: next,
            definitions: Definitions::default(),
        };
        let definition = Definition {
            spec: std::sync::Arc::new(spec.clone()),
            schedule,
        };
        let run = RunRecord {
            run: run_of_change(id, heads.changes.seq + 1, at_ms),
            scheduled_ms: at_ms,
            ..pending(
                &job,
                &definition,
                generation,
                RunKind::Scheduled,
                now_ms,
                now_ms,
            )
        };
        let key = attempt_key(partition, &run);
        // A definition of long ago may have decided this very instant: then it is done, and the
        // change is made all the same.
        let ordinary = format!("{id}@{}", compact(at_ms));
        change.ops.push(Op::Choose {
            require: vec![
                Requirement::Empty(keys.attempts_of(partition, id, &ordinary)),
                Requirement::Empty(keys.done_attempts_of(partition, id, &ordinary)),
            ],
            then: vec![Write::put(keys.run(&key), encode(&run))],
            otherwise: vec![],
        });
    }
    let runs_again = matches!(schedule_kind, ScheduleKind::AfterFinish(_));
    delay(
        &mut change,
        keys,
        id,
        current.delay.as_ref(),
        runs_again,
        now_ms,
    );
    let before = old.and_then(Job::definition).map(|d| &d.spec.after[..]);
    follow(
        &mut change,
        keys,
        id,
        before.unwrap_or_default(),
        &spec.after,
    );
    let told = |spec: &JobSpec| spec.tells(NotifyEvent::Recovered);
    if old.and_then(Job::definition).is_some_and(|d| told(&d.spec)) && !told(spec) {
        // Nobody would take it away again.
        change.ops.push(Write::delete(keys.trouble(id)).into());
    }
    let outcome = if current.modified.is_some() {
        PutOutcome::Updated
    } else {
        PutOutcome::Created
    };
    Ok((outcome, Some(change)))
}

/// Writes down which jobs this one runs after: the transaction of a success looks there. What an
/// unreadable definition left there is found out by the leader, which asks the definition in force.
fn follow(change: &mut Change, keys: &Keys, id: &str, before: &[String], after: &[String]) {
    for job in before.iter().filter(|job| !after.contains(job)) {
        let key = keys.follower(job, id);
        change.ops.push(Write::delete(key).into());
    }
    for job in after.iter().filter(|job| !before.contains(job)) {
        let key = keys.follower(job, id);
        change
            .ops
            .push(Write::put(key, encode(&serde_json::json!({}))).into());
    }
}

/// Begins the chain of a job that runs some time after its last run, ends it, or makes the leader
/// look at it again.
fn delay(
    change: &mut Change,
    keys: &Keys,
    id: &str,
    stands: Option<&Entry>,
    runs_again: bool,
    now_ms: i64,
) {
    let key = keys.delay(id);
    let Some(entry) = stands else {
        if runs_again {
            let first = DelayRecord::starting(now_ms);
            change.require.push(Requirement::Absent(key.clone()));
            change.ops.push(Write::put(key, encode(&first)).into());
        }
        return;
    };
    change
        .require
        .push(Requirement::Modified(key.clone(), entry.modified));
    change.ops.push(if runs_again {
        Write::put(key, entry.value.clone()).into()
    } else {
        Write::delete(key).into()
    });
}

/// `job~a-CHANGE@INSTANT`: the run that a change makes, outside the cursor, of an instant that has
/// passed. The number of the change in the partition's log never repeats, so neither does the id:
/// not when an older definition has fired at the same instant and its record is pruned, and not
/// when the job is deleted and made again.
fn run_of_change(id: &str, seq: u64, at_ms: i64) -> String {
    format!("{id}~a-{seq:016x}@{}", compact(at_ms))
}

/// Whether the job's older definitions have this instant: then it is theirs, decided or about to
/// be. (Its record may be pruned, so the absence of a run proves nothing.)
fn has_instant(job: &Job, at_ms: i64) -> bool {
    first_undecided(job, &Position::end_of(at_ms.saturating_sub(1))) == Some(at_ms)
}

/// An `at` that has passed fires at once, unless it is older than the job allows.
fn past_at(spec: &JobSpec, at_ms: i64, now_ms: i64) -> Result<i64, ControlError> {
    match spec.start_deadline {
        Some(deadline) if now_ms - at_ms > deadline.ms_i64() => Err(invalid(
            &spec.id,
            vec![
                SpecError::new(
                    "schedule.at",
                    "this instant has passed longer ago than `start_deadline` allows",
                )
                .hint("give a later instant, or leave `start_deadline` out to run it at once"),
            ],
        )),
        _ => Ok(at_ms),
    }
}

fn invalid(job: &str, findings: Vec<SpecError>) -> ControlError {
    ControlError::Invalid(findings.into_iter().map(|f| (job.to_owned(), f)).collect())
}

fn attempt_key(partition: u16, run: &RunRecord) -> AttemptKey {
    AttemptKey {
        partition,
        job: run.job.clone(),
        run: run.run.clone(),
        attempt: run.attempt,
    }
}

/// Deletes a job. What it still owes is skipped in the same transaction; runs that exist go on.
#[must_use]
pub fn delete(keys: &Keys, heads: &Heads, job: &Job, now_ms: i64) -> Change {
    let from_ms = effective_from(now_ms, &heads.cursor, Some(&job.record));
    let mut change = skip_owed(keys, heads, job, from_ms, SkipReason::Deleted, now_ms);
    let partition = heads.partition;
    let gone = GoneRecord {
        generation: job.record.generation,
        deleted_ms: now_ms,
    };
    change.require.push(Requirement::Modified(
        keys.job(partition, &job.id),
        job.modified,
    ));
    change
        .ops
        .push(Write::delete(keys.job(partition, &job.id)).into());
    change
        .ops
        .push(Write::delete(keys.seq(partition, &job.id)).into());
    change
        .ops
        .push(Write::put(keys.gone(partition, &job.id), encode(&gone)).into());
    // The leader's next run requires what is deleted here.
    change.ops.push(Write::delete(keys.delay(&job.id)).into());
    change.ops.push(Write::delete(keys.trouble(&job.id)).into());
    let after = job.definition().map(|d| &d.spec.after[..]);
    follow(&mut change, keys, &job.id, after.unwrap_or_default(), &[]);
    change.touched = (job.id.to_string(), None);
    change
}

/// One skip record for all that the job still owes before `from_ms`.
pub(super) fn skip_owed(
    keys: &Keys,
    heads: &Heads,
    job: &Job,
    from_ms: i64,
    reason: SkipReason,
    now_ms: i64,
) -> Change {
    let mut change = Change::default();
    let (Some((first_ms, last_ms, count)), Some(definition)) =
        (owed(job, &heads.cursor, from_ms), job.definition())
    else {
        return change;
    };
    let record = RunRecord {
        run: format!("{}@{}", job.id, compact(last_ms)),
        attempt: 0,
        scheduled_ms: last_ms,
        state: RunState::Skipped,
        skipped: Some(reason),
        ended_ms: Some(now_ms),
        stands_for: count,
        stands_from_ms: (count > 1).then_some(first_ms),
        late_at_ms: None,
        ..pending(
            job,
            definition,
            job.record.generation,
            RunKind::Scheduled,
            now_ms,
            now_ms,
        )
    };
    let key = attempt_key(heads.partition, &record);
    change
        .ops
        .push(Write::put(keys.done(&key), encode(&record)).into());
    change
}

pub(super) fn rewrite(
    change: &mut Change,
    keys: &Keys,
    heads: &Heads,
    job: &Job,
    next: &JobRecord,
) {
    let key = keys.job(heads.partition, &job.id);
    change
        .require
        .push(Requirement::Modified(key.clone(), job.modified));
    change.ops.push(Write::put(key, encode(next)).into());
    change.touched = (job.id.to_string(), Some(next.version));
}
