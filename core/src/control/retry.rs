//! Repeating runs by hand: a new attempt of a run that failed.
//!
//! What can go wrong: an attempt beside one that lives, a second success, an attempt number that
//! comes back, a copy of the request that arrives late. So the attempt is made only from the last
//! record of its run, which the transaction requires unchanged, and it consumes the job's `seq`.

use std::collections::BTreeMap;

use crate::backend::{Requirement, Revision, Txn, TxnOutcome};
use crate::job::Job;
use crate::job::record::{IdemRecord, RunRecord, decode, encode};
use crate::job::run::{FailReason, RunState};
use crate::job::spec::Overlap;
use crate::keys::{AttemptKey, part_id, part_of};
use crate::leader::fire::pending;
use crate::leader::siblings::Siblings;

use super::jobs::ready;
use super::objects::run_object;
use super::runs::{hash_of, no_run};
use super::types::{ControlError, RunKind, RunObject};
use super::{Control, MAX_CONFLICTS, busy, read};

/// What is known of a run's attempts.
struct Attempts {
    /// Those that have not ended.
    alive: Vec<RunRecord>,
    /// The last one that has.
    last: Option<(AttemptKey, RunRecord, Revision)>,
}

impl Control {
    /// Makes a new attempt of a run that failed, after the job's present definition. The same key
    /// again gives the same attempt for a day.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Conflict`] when the run has not failed, is not
    /// finished, belongs to a deleted job, when the job is paused or disabled, when another run of a
    /// job with `overlap: skip` is not finished, and without `force` when the run's node vanished
    /// and the job is not idempotent.
    pub async fn retry_run(
        &self,
        run_id: &str,
        force: bool,
        idempotency_key: &str,
    ) -> Result<RunObject, ControlError> {
        let (partition, id) = self.locate(run_id).await?;
        for _ in 0..MAX_CONFLICTS {
            // First, so that whatever is made meanwhile makes this conflict.
            let seq_key = self.keys.seq(partition, &id);
            let seq_entry = self.store.get(&seq_key).await?;
            let current = read::current(&self.store, &self.keys, partition, &id).await?;
            let found = self.attempts_of(partition, &id, run_id).await?;
            let (Some(job), Some(seq_entry)) = (&current.job, seq_entry) else {
                return Err(match found.last {
                    None => no_run(run_id),
                    Some(_) => ControlError::Conflict(format!("there is no job `{id}` any more")),
                });
            };
            let idem_name = format!("{run_id}~r-{}", hash_of(&[run_id, idempotency_key]));
            let idem_key = self.keys.idem(&idem_name);
            if let Some(used) = self.store.get(&idem_key).await? {
                let used: Option<IdemRecord> = decode(&used.value).ok();
                let attempt = used.and_then(|used| used.attempt);
                let attempts = self.run(run_id).await?;
                let made = attempts
                    .into_iter()
                    .find(|run| Some(run.attempt) == attempt);
                return made.ok_or_else(|| {
                    ControlError::Conflict(format!(
                        "this key was used already: its attempt of {run_id} has ended, and its \
                         record is pruned"
                    ))
                });
            }
            if let Some(alive) = found.alive.first() {
                return Err(ControlError::Conflict(format!(
                    "{run_id} is not finished: attempt {} is {}",
                    alive.attempt, alive.state
                )));
            }
            let (last_key, last, last_revision) = found.last.ok_or_else(|| no_run(run_id))?;
            retryable(job, &last, force)?;
            let now_ms = self.change_ms().await?;
            let definition = ready(job, now_ms)?;
            // Its parent must not end while it is read whether all parts have ended.
            let whole = part_of(run_id).map(|(whole, _)| whole);
            if let Some(whole) = whole
                && !self
                    .attempts_of(partition, &id, whole)
                    .await?
                    .alive
                    .is_empty()
            {
                return Err(ControlError::Conflict(format!(
                    "{whole}, of which this is a part, is not finished"
                )));
            }
            let next = RunRecord {
                run: run_id.to_owned(),
                attempt: last.attempt + 1,
                unstarted: last.unstarted,
                scheduled_ms: last.scheduled_ms,
                stands_for: last.stands_for,
                stands_from_ms: last.stands_from_ms,
                payload: last.payload.clone(),
                cause: last.cause.clone(),
                parts: None,
                shard: last.shard.clone(),
                // Only the first attempt of a run can be late.
                late_at_ms: None,
                ..pending(
                    job,
                    definition,
                    job.record.generation,
                    RunKind::Retry,
                    now_ms,
                    now_ms,
                )
            };
            let key = AttemptKey {
                attempt: next.attempt,
                ..last_key.clone()
            };
            let (store, keys) = (&self.store, &self.keys);
            let siblings =
                Siblings::of(store, keys, &definition.spec, partition, seq_entry).await?;
            if let Some(full) = siblings.refuses(keys, &definition.spec) {
                return Err(ControlError::Conflict(full));
            }
            let idem = IdemRecord {
                created_ms: now_ms,
                attempt: Some(next.attempt),
                request: None,
            };
            let alone = definition.spec.overlap == Overlap::Skip;
            let alive = match alone {
                true => self.keys.runs_of(partition, &id),
                false => self.keys.attempts_of(partition, &id, run_id),
            };
            let mut txn = siblings
                .consume(Txn::new())
                .require(Requirement::Modified(
                    self.keys.job(partition, &id),
                    job.modified,
                ))
                .require(Requirement::Modified(
                    self.keys.done(&last_key),
                    last_revision,
                ))
                .require(Requirement::Absent(self.keys.done(&key)))
                .require(Requirement::Empty(alive))
                .put(self.keys.run(&key), encode(&next))
                .put(idem_key, encode(&idem));
            if let Some(whole) = whole.filter(|_| !alone) {
                let whole = self.keys.attempts_of(partition, &id, whole);
                txn = txn.require(Requirement::Empty(whole));
            }
            if definition.spec.overlap == Overlap::Replace {
                txn = siblings.replace(keys, txn, run_id, now_ms);
            }
            match self.settle(&txn).await? {
                TxnOutcome::Applied { .. } => return Ok(run_object(&next, None)),
                TxnOutcome::Conflict { seen } => {
                    let other = seen.into_iter().nth(4).flatten();
                    if let Some(other) = other.and_then(|e| self.keys.parse_attempt(&e.key))
                        && other.run != key.run
                    {
                        return Err(ControlError::Conflict(format!(
                            "job `{id}` has `overlap: skip`, and {} is not finished",
                            other.run
                        )));
                    }
                }
            }
        }
        Err(busy())
    }

    async fn attempts_of(
        &self,
        partition: u16,
        job: &str,
        run: &str,
    ) -> Result<Attempts, ControlError> {
        // `run/` first: an attempt that ends in between is then seen twice rather than not at all.
        let alive = self.keys.attempts_of(partition, job, run);
        let (alive, _) = self.store.list(&alive, None).await?;
        let done = self.keys.done_attempts_of(partition, job, run);
        let (done, _) = self.store.list(&done, None).await?;
        let ended: BTreeMap<u32, _> = done
            .iter()
            .filter_map(|entry| {
                let key = self.keys.parse_attempt(&entry.key)?;
                let record: RunRecord = decode(&entry.value).ok()?;
                Some((key.attempt, (key, record, entry.modified)))
            })
            .collect();
        Ok(Attempts {
            alive: alive.iter().filter_map(|e| decode(&e.value).ok()).collect(),
            last: ended.into_values().next_back(),
        })
    }
}

/// Whether a person may repeat what ended as `last`.
fn retryable(job: &Job, last: &RunRecord, force: bool) -> Result<(), ControlError> {
    let run = &last.run;
    let refuse = |why: String| Err(ControlError::Conflict(why));
    if last.job_uid != job.uid.0 && last.job_uid != 0 {
        return refuse(format!(
            "{run} belongs to an earlier job `{}` that was deleted",
            job.id
        ));
    }
    match last.state {
        RunState::Failed if last.parts.is_some() => {
            return refuse(format!(
                "{run} is a run in parts: `punctual run retry {}` repeats one of them, \
                 `punctual job trigger` runs all of them once more",
                part_id(run, 0)
            ));
        }
        RunState::Failed => {}
        RunState::Skipped => {
            return refuse(format!(
                "{run} was skipped, so there is nothing to repeat: `punctual job backfill` runs \
                 past instants, `punctual job trigger` runs the job now"
            ));
        }
        state => {
            return refuse(format!(
                "{run} has ended as {state}: only what failed is repeated; `punctual job trigger` \
                 runs the job once more"
            ));
        }
    }
    let is_lost = last.failed == Some(FailReason::WorkerLost);
    let is_idempotent = job.definition().is_some_and(|d| d.spec.idempotent);
    if is_lost && !is_idempotent && !force {
        let node = last.owner.as_ref().map_or("?", |owner| owner.node.as_str());
        return refuse(format!(
            "node {node} vanished while it was running {run}: what it has done is not known, and it \
             may still be doing it. To run it again can do its work twice; once you have made sure \
             that it may, say so with --yes (`force` in the API)"
        ));
    }
    Ok(())
}
