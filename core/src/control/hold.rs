//! Holding jobs and letting them go: pure functions, as in [`change`](super::change).
//!
//! A hold is a paused segment; one that ends by itself is followed by an open segment that begins
//! at its end. So the end needs no timer and nobody to look: which instants are held follows from
//! the record alone, whoever decides them and whenever.
//!
//! Invariant: every acknowledged hold stands until its own end. Another one on top of it may make
//! the job wait longer, never shorter; only to resume ends a hold early.

use crate::job::Job;
use crate::job::record::{JobRecord, Paused, Segment};
use crate::job::run::SkipReason;
use crate::keys::Keys;

use super::change::{
    Change, Heads, effective_from, rewrite, segments_from, skip_owed, with_segments,
};
use super::types::ControlError;

/// Which of a job's two holds is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The one on this job.
    Job,
    /// The one on all jobs.
    All,
}

/// Holds a job until `wish` ends. `None` when it is held for as long already.
///
/// # Errors
/// [`ControlError::Busy`] for too many changes at once.
pub fn pause(
    keys: &Keys,
    heads: &Heads,
    job: &Job,
    scope: Scope,
    wish: &Paused,
    now_ms: i64,
) -> Result<Option<Change>, ControlError> {
    let from_ms = effective_from(now_ms, &heads.cursor, Some(&job.record));
    let record = &job.record;
    let standing = match scope {
        Scope::Job => &record.paused,
        Scope::All => &record.paused_all,
    };
    // A window that is being decided may reach past the end: then it is the next instant.
    let until_ms = wish.until_ms.map(|until_ms| until_ms.max(from_ms + 1));
    let hold = match standing.as_ref().filter(|paused| paused.holds(from_ms)) {
        Some(standing) => {
            let is_longer = standing
                .until_ms
                .is_some_and(|ends_ms| until_ms.is_none_or(|until_ms| until_ms > ends_ms));
            if !is_longer {
                return Ok(None);
            }
            Paused {
                since_ms: standing.since_ms,
                until_ms,
                by: wish.by.clone().or_else(|| standing.by.clone()),
                reason: wish.reason.clone().or_else(|| standing.reason.clone()),
            }
        }
        None => Paused {
            until_ms,
            ..wish.clone()
        },
    };
    let hold = Box::new(hold);
    let (paused, paused_all) = match scope {
        Scope::Job => (Some(hold), record.paused_all.clone()),
        Scope::All => (record.paused.clone(), Some(hold)),
    };
    with_holds(keys, heads, job, paused, paused_all, from_ms, now_ms).map(Some)
}

/// Lets a job fire again: ends both holds, or only the one on all jobs. `None` when there is none.
///
/// # Errors
/// [`ControlError::Busy`] for too many changes at once.
pub fn resume(
    keys: &Keys,
    heads: &Heads,
    job: &Job,
    scope: Scope,
    now_ms: i64,
) -> Result<Option<Change>, ControlError> {
    let from_ms = effective_from(now_ms, &heads.cursor, Some(&job.record));
    let record = &job.record;
    let (own, all) = (record.paused.as_ref(), record.paused_all.as_ref());
    let mut ended = match scope {
        Scope::Job => [own, all].into_iter().flatten(),
        Scope::All => [None, all].into_iter().flatten(),
    };
    if !ended.any(|paused| paused.holds(from_ms)) {
        return Ok(None);
    }
    let own = match scope {
        Scope::Job => None,
        Scope::All => record.paused.clone(),
    };
    with_holds(keys, heads, job, own, None, from_ms, now_ms).map(Some)
}

/// The change after which these holds stand.
fn with_holds(
    keys: &Keys,
    heads: &Heads,
    job: &Job,
    paused: Option<Box<Paused>>,
    paused_all: Option<Box<Paused>>,
    from_ms: i64,
    now_ms: i64,
) -> Result<Change, ControlError> {
    let standing = |paused: Option<Box<Paused>>| paused.filter(|paused| paused.holds(from_ms));
    let mut next = JobRecord {
        version: job.record.version + 1,
        updated_ms: now_ms,
        paused: standing(paused),
        paused_all: standing(paused_all),
        ..job.record.clone()
    };
    let was_held = job.record.paused_at(from_ms).is_some();
    let hold = next.paused_at(from_ms);
    let mut change = Change::default();
    next.segments = match hold {
        Some(_) if !was_held => {
            // What the job still owes is skipped in the same transaction, so that nothing of it is
            // created afterwards.
            change = skip_owed(keys, heads, job, from_ms, SkipReason::Paused, now_ms);
            segments_from(from_ms, job.record.generation, hold)
        }
        // It goes on as it began; only its end is another one.
        Some(hold) => {
            let made = job.record.made_segments().copied();
            let resumes = hold.until_ms.map(|from_ms| Segment {
                from_ms,
                generation: job.record.generation,
                paused: false,
            });
            made.chain(resumes).collect()
        }
        None => {
            let open = segments_from(from_ms, job.record.generation, None);
            with_segments(Some(job), open, &heads.cursor)?
        }
    };
    rewrite(&mut change, keys, heads, job, &next);
    Ok(change)
}
