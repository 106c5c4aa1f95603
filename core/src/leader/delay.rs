//! A fixed delay between runs: `schedule.after_finish`.
//!
//! Such a job has no instants of its own, so the cursor does not know it. `delay/{job}` names the
//! last run of its chain instead. When that run has ended for as long as the definition in force
//! says, the leader makes the next one in one transaction: it consumes `delay`, requires that no
//! attempt of the last run is alive and that the job is as it was read. So there is one next run,
//! whoever leads; a pause or an edit that was acknowledged before is heeded; and a run that ended in
//! any way at all, or vanished, is followed: the chain cannot break.

use std::collections::BTreeMap;

use crate::backend::{BackendResult, Entry, Event, Requirement, Revision, Txn};
use crate::control::types::RunKind;
use crate::job::record::{DelayRecord, RunRecord, decode, encode};
use crate::job::{Definition, Job};
use crate::keys::{AttemptKey, Keys, partition_of};
use crate::recipe::retry::Store;
use crate::recipe::view::ViewEvent;
use crate::schedule::ScheduleKind;

use super::LeaderContext;
use super::authority::Authority;
use super::chain::{Stands, read};
use super::fire::pending;
use super::siblings::Siblings;

/// A job that is paused, or cannot be read, is looked at again after so long.
const LOOK_AGAIN_MS: i64 = 2_000;
/// Next runs that are made in one request.
const STEPS_A_REQUEST: usize = 8;

/// When a job is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// At once: something may have changed.
    Now,
    /// When its last run has ended.
    AfterRun,
    /// At that time of the fire clock.
    At(i64),
}

#[derive(Clone, Debug)]
struct Waiting {
    record: DelayRecord,
    modified: Revision,
    due: Due,
    /// Since when its last run is known to be over, when nothing that can be believed says when it
    /// ended, and what does say so. A new leader counts anew.
    over: Option<(Option<i64>, i64)>,
}

/// The jobs whose next run depends on the last one's end.
#[derive(Debug, Default)]
pub struct Delays {
    jobs: BTreeMap<String, Waiting>,
}

/// What a look at a job found.
enum Look {
    /// Nothing to do before then.
    Wait(Due),
    /// The next run, or the end of the chain.
    Step(Txn),
}

impl Delays {
    /// Takes in what the view tells.
    pub fn take(&mut self, context: &LeaderContext, event: ViewEvent) {
        let keys = &context.keys;
        match event {
            ViewEvent::Listed(entries, _) => {
                let before = std::mem::take(&mut self.jobs);
                entries.iter().for_each(|entry| self.insert(context, entry));
                // Since when a run is over is known from here alone.
                for (job, waiting) in &mut self.jobs {
                    let known = before.get(job);
                    let known = known.filter(|known| known.modified == waiting.modified);
                    waiting.over = known.and_then(|known| known.over);
                }
            }
            ViewEvent::Changed(changes) => {
                for event in changes.events {
                    match event {
                        Event::Put(entry) => self.insert(context, &entry),
                        Event::Delete { key, .. } => {
                            if let Some(job) = keys.parse_delay(&key) {
                                self.jobs.remove(&job);
                            }
                        }
                    }
                }
            }
        }
    }

    fn insert(&mut self, context: &LeaderContext, entry: &Entry) {
        let Some(job) = context.keys.parse_delay(&entry.key) else {
            return;
        };
        // Without the name of the last run the chain goes on from here.
        let record = decode(&entry.value).unwrap_or_else(|error| {
            tracing::error!(job, %error, "cannot read which run of this job was the last");
            DelayRecord::starting(context.clock.now_ms())
        });
        let waiting = Waiting {
            record,
            modified: entry.modified,
            due: Due::Now,
            over: None,
        };
        self.jobs.insert(job, waiting);
    }

    /// Makes the next runs that are due. `alive`: whether a job's run has an attempt that has not
    /// ended, as far as is known here; the transaction makes sure.
    ///
    /// # Errors
    /// Those of the store; nothing is lost, the rest is done at the next tick.
    pub async fn tick(
        &mut self,
        context: &LeaderContext,
        authority: &Authority,
        alive: impl Fn(&str, &str) -> bool,
    ) -> BackendResult<()> {
        let now_ms = context.clock.now_ms();
        let ripe: Vec<String> = self
            .jobs
            .iter()
            .filter(|(job, waiting)| match waiting.due {
                Due::Now => true,
                Due::At(at_ms) => at_ms <= now_ms,
                Due::AfterRun => {
                    let last = waiting.record.run.as_deref();
                    last.is_none_or(|run| !alive(job, run))
                }
            })
            .map(|(job, _)| job.clone())
            .collect();
        for jobs in ripe.chunks(STEPS_A_REQUEST) {
            let mut txns = Vec::new();
            for id in jobs {
                let Some(waiting) = self.jobs.get_mut(id) else {
                    continue;
                };
                match look(context, id, waiting, now_ms).await? {
                    Look::Wait(due) => waiting.due = due,
                    Look::Step(txn) => txns.push(txn),
                }
            }
            if !txns.is_empty() && !authority.commit_each(&txns).await? {
                return Ok(());
            }
            // The view brings what was written; whatever conflicted is due still.
        }
        Ok(())
    }
}

async fn look(
    context: &LeaderContext,
    id: &str,
    waiting: &mut Waiting,
    now_ms: i64,
) -> BackendResult<Look> {
    let keys = &context.keys;
    let partition = partition_of(id, context.meta.partitions);
    let delay_key = keys.delay(id);
    let txn = Txn::new().require(Requirement::Modified(delay_key.clone(), waiting.modified));
    let (job, definition, siblings) = match read(context, partition, id).await? {
        Stands::Gone => {
            // Deleted by hand: whoever deletes a job deletes this too.
            let absent = Requirement::Absent(keys.job(partition, id));
            return Ok(Look::Step(txn.require(absent).delete(delay_key)));
        }
        Stands::Unreadable => return Ok(Look::Wait(Due::At(now_ms + LOOK_AGAIN_MS))),
        Stands::Job(job, definition, siblings) => (job, definition, siblings),
    };
    let stands = Requirement::Modified(keys.job(partition, id), job.modified);
    if !matches!(definition.schedule.kind(), ScheduleKind::AfterFinish(_)) {
        return Ok(Look::Step(txn.require(stands).delete(delay_key)));
    }
    if job.record.paused_at(now_ms).is_some() || !definition.spec.enabled {
        return Ok(Look::Wait(Due::At(now_ms + LOOK_AGAIN_MS)));
    }
    let record = &waiting.record;
    if record.run.is_none() {
        // Whoever has spoilt the record has not ended its last run.
        let (alive, _) = context
            .store
            .list(&keys.runs_of(partition, id), None)
            .await?;
        let of_chain = |entry: &Entry| {
            let key = keys.parse_attempt(&entry.key);
            key.is_some_and(|key| key.run.contains(OF_CHAIN))
        };
        if alive.iter().any(of_chain) {
            return Ok(Look::Wait(Due::At(now_ms + LOOK_AGAIN_MS)));
        }
    }
    let end = chain_end(&context.store, keys, partition, id, record, now_ms).await?;
    let since_ms = match end {
        ChainEnd::Alive => return Ok(Look::Wait(Due::AfterRun)),
        ChainEnd::At(since_ms) => since_ms,
        ChainEnd::Unknown(says_ms) => match waiting.over {
            Some((said_ms, over_ms)) if said_ms == says_ms => over_ms,
            // Another end than the one seen before: somebody had it run again.
            _ => {
                waiting.over = Some((says_ms, now_ms));
                now_ms
            }
        },
    };
    let Some(due_ms) = due_ms(&job, record, since_ms) else {
        // Its time is over, unless somebody changes it: then it is looked at again.
        return Ok(Look::Wait(Due::At(i64::MAX)));
    };
    if due_ms > now_ms {
        return Ok(Look::Wait(Due::At(due_ms)));
    }
    let mut txn = txn.require(stands);
    if let Some(run) = &record.run {
        txn = txn.require(Requirement::Empty(keys.attempts_of(partition, id, run)));
    }
    Ok(Look::Step(next(
        context,
        waiting,
        txn,
        &job,
        &definition,
        &siblings,
        due_ms,
    )))
}

/// How the last run of a chain stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainEnd {
    /// It goes on.
    Alive,
    /// It ended then, or the chain began then; in Unix milliseconds.
    At(i64),
    /// It is over, and nothing that can be believed says when: its record was removed by hand (retention
    /// keeps it), or says a time that has not come, since the clock of whoever wrote it was ahead.
    Unknown(Option<i64>),
}

/// How the last run of the chain stands, by a clock that says `now_ms`.
///
/// # Errors
/// Those of the store.
pub async fn chain_end(
    store: &Store,
    keys: &Keys,
    partition: u16,
    job: &str,
    record: &DelayRecord,
    now_ms: i64,
) -> BackendResult<ChainEnd> {
    let Some(run) = &record.run else {
        return Ok(ChainEnd::At(record.since_ms));
    };
    let alive = keys.attempts_of(partition, job, run);
    if !store.list(&alive, None).await?.0.is_empty() {
        return Ok(ChainEnd::Alive);
    }
    let done = keys.done_attempts_of(partition, job, run);
    let (ended, _) = store.list(&done, None).await?;
    let ended = ended
        .iter()
        .filter_map(|entry| decode::<RunRecord>(&entry.value).ok()?.ended_ms);
    // Nothing ends before it was made, nor after now: such a time is of a clock that was wrong.
    let ended_ms = ended.max().map(|ended_ms| ended_ms.max(record.since_ms));
    Ok(match ended_ms {
        Some(ended_ms) if ended_ms <= now_ms => ChainEnd::At(ended_ms),
        other => ChainEnd::Unknown(other),
    })
}

/// When the next run is due: at once for the first one, not before the job was last changed or let
/// go, never behind the schedule's `end`.
#[must_use]
pub fn due_ms(job: &Job, record: &DelayRecord, since_ms: i64) -> Option<i64> {
    let schedule = &job.definition()?.schedule;
    let ScheduleKind::AfterFinish(delay) = schedule.kind() else {
        return None;
    };
    let (start_ms, end_ms) = schedule.bounds();
    let rest_ms = record.run.as_ref().map_or(0, |_| delay.ms_i64());
    let changed_ms = job.record.segments.last().map(|segment| segment.from_ms);
    let due_ms = since_ms
        .saturating_add(rest_ms)
        .max(changed_ms.unwrap_or(i64::MIN))
        .max(start_ms.unwrap_or(i64::MIN));
    (end_ms.is_none_or(|end_ms| due_ms <= end_ms)).then_some(due_ms)
}

/// Adds the next run, or the record that says why there is none.
fn next(
    context: &LeaderContext,
    waiting: &Waiting,
    txn: Txn,
    job: &Job,
    definition: &Definition,
    siblings: &Siblings,
    due_ms: i64,
) -> Txn {
    let keys = &context.keys;
    let partition = partition_of(&job.id, context.meta.partitions);
    let now_ms = context.clock.record_ms();
    let number = waiting.record.number + 1;
    let jitter_ms = definition.schedule.jitter_ms(&job.id, due_ms);
    let not_before_ms = due_ms.saturating_add(i64::try_from(jitter_ms).unwrap_or(0));
    let run = RunRecord {
        run: run_of_chain(&job.id, context.meta.epoch, waiting.modified.0),
        scheduled_ms: due_ms,
        not_before_ms,
        late_at_ms: definition.spec.late_at_ms(not_before_ms),
        ..pending(
            job,
            definition,
            job.record.generation,
            RunKind::Scheduled,
            now_ms.max(not_before_ms),
            now_ms,
        )
    };
    let key = AttemptKey {
        partition,
        job: job.id.to_string(),
        run: run.run.clone(),
        attempt: run.attempt,
    };
    let delay = DelayRecord {
        number,
        run: Some(run.run.clone()),
        since_ms: now_ms,
    };
    let txn = txn.put(keys.delay(&job.id), encode(&delay));
    siblings.create(keys, &definition.spec, &key, &run, txn)
}

/// Behind the job in the id of a run of a chain.
pub(super) const OF_CHAIN: &str = "~f-";

/// `job~f-..`: the epoch, and the revision of `delay` that this run consumes. It never comes back, not
/// even when somebody has spoilt the record.
fn run_of_chain(job: &str, epoch: u8, consumed: u64) -> String {
    format!("{job}{OF_CHAIN}{epoch:02x}{consumed:014x}")
}
