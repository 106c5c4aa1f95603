//! Firing: plan, then commit under the term, the cursor and `changes`.
//!
//! One transaction a partition appends a batch of runs and moves the cursor, so a fire exists if
//! and only if the cursor has passed it. It requires the cursor and the `changes` that it was
//! planned from, and consumes the cursor: it applies at most once, however often it is delivered.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backend::{Key, Op, Requirement, Seen, Txn, TxnOutcome, Write};
use crate::control::types::RunKind;
use crate::job::record::{RunRecord, encode};
use crate::job::run::{RunState, SkipReason};
use crate::job::spec::Overlap;
use crate::job::{Definition, Job};
use crate::keys::{AttemptKey, Keys};
use crate::plan::{Decision, Plan};
use crate::time::compact;

use super::partition::Partition;

/// A plan as a transaction.
pub struct Fire {
    /// What was planned.
    pub plan: Plan,
    /// Its transaction.
    pub txn: Txn,
    /// The run keys that it requires absent, in the order of its requirements behind the first two.
    absent: Vec<(Key, String)>,
    skips: BTreeMap<Arc<str>, u32>,
}

/// What an outcome means for a partition.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The batch is decided.
    Decided,
    /// The view was behind; planned anew from fresh data.
    Stale,
}

impl Fire {
    /// The transaction that makes the plan true.
    #[must_use]
    pub fn new(keys: &Keys, partition: &Partition, mut plan: Plan, now_ms: i64) -> Self {
        plan.truncate(independent(partition, &plan));
        let number = partition.number;
        let mut txn = Txn::new()
            .require(Requirement::Modified(
                keys.cursor(number),
                partition.cursor_revision,
            ))
            .require(Requirement::Modified(
                keys.changes(number),
                partition.changes_revision,
            ));
        let mut absent = Vec::new();
        let mut skips = BTreeMap::new();
        let mut chosen: Vec<Arc<str>> = Vec::new();
        let mut direct: Vec<Arc<str>> = Vec::new();
        for (id, decision) in &plan.decisions {
            let Some((job, definition)) = partition.jobs.get(id).and_then(|job| {
                let generation = match decision {
                    Decision::Run { generation, .. } | Decision::Skip { generation, .. } => {
                        generation
                    }
                };
                Some((job, job.definitions.get(generation)?))
            }) else {
                continue;
            };
            let record = match decision {
                Decision::Run { .. } => scheduled(job, definition, decision, now_ms),
                Decision::Skip { reason, .. } => {
                    skipped(job, definition, decision, *reason, now_ms)
                }
            };
            let key = AttemptKey {
                partition: number,
                job: id.to_string(),
                run: record.run.clone(),
                attempt: record.attempt,
            };
            if record.state == RunState::Skipped || definition.spec.overlap == Overlap::Skip {
                *skips.entry(id.clone()).or_default() += 1;
            }
            if record.state == RunState::Skipped {
                txn = txn.put(keys.done(&key), encode(&record));
            } else if definition.spec.overlap == Overlap::Skip {
                let skip = skipped(job, definition, decision, SkipReason::Overlap, now_ms);
                let skip_key = AttemptKey {
                    attempt: 0,
                    ..key.clone()
                };
                let otherwise = Write::put(keys.done(&skip_key), encode(&skip));
                // One choice a job and request: whatever it chooses, a run of the job is there
                // afterwards, so the job's further instants in this request overlap with it. The
                // same holds behind a run that an older definition (`overlap: allow`) gets here.
                if chosen.contains(id) || direct.contains(id) {
                    txn = txn.op(otherwise);
                } else {
                    chosen.push(id.clone());
                    txn = txn.op(Op::Choose {
                        require: vec![Requirement::Empty(keys.runs_of(number, id))],
                        then: vec![Write::put(keys.run(&key), encode(&record))],
                        otherwise: vec![otherwise],
                    });
                }
            } else if !partition.standing.contains(&record.run) {
                let run_key = keys.run(&key);
                txn = txn
                    .require(Requirement::Absent(run_key.clone()))
                    .put(run_key.clone(), encode(&record));
                direct.push(id.clone());
                absent.push((run_key, record.run));
            }
        }
        let txn = txn.put(keys.cursor(number), encode(&plan.cursor));
        Self {
            plan,
            txn,
            absent,
            skips,
        }
    }

    /// How many records of each job went straight to `done/` (or may have).
    pub fn skip_records(&self) -> impl Iterator<Item = (&Arc<str>, u32)> {
        self.skips.iter().map(|(job, count)| (job, *count))
    }

    /// Takes the outcome into the partition.
    pub fn settle(
        &self,
        partition: &mut Partition,
        revision: crate::backend::Revision,
        outcome: &TxnOutcome,
    ) -> Verdict {
        match outcome {
            TxnOutcome::Applied { .. } => {
                partition.applied(&self.plan, revision);
                Verdict::Decided
            }
            TxnOutcome::Conflict { seen } => {
                self.note_standing(partition, seen);
                partition.conflicted();
                Verdict::Stale
            }
        }
    }

    /// A run that stands although the cursor has not passed it: somebody wrote past the cursor.
    /// The instant counts as decided by the run that is there; it must not stop its partition.
    fn note_standing(&self, partition: &mut Partition, seen: &Seen) {
        // With another cursor or log the plan was simply old (or an earlier copy of this request
        // has won, and the runs are its own).
        let at = |index: usize| seen.get(index).and_then(Option::as_ref).map(|e| e.modified);
        if at(0) != Some(partition.cursor_revision) || at(1) != Some(partition.changes_revision) {
            return;
        }
        for ((_, run), seen) in self.absent.iter().zip(seen.iter().skip(2)) {
            if seen.is_some() {
                tracing::error!(
                    run,
                    "this run stood before its instant was decided; left as it is"
                );
                partition.standing.insert(run.clone());
            }
        }
    }
}

/// How many of the decisions fit into one request. An edit from `overlap: skip` to `allow` may lie
/// between two of them: the second one's run would be written into the span that the first one's
/// choice requires empty, and every store refuses such a request. It waits for the next one.
fn independent(partition: &Partition, plan: &Plan) -> usize {
    let mut chosen: Vec<&Arc<str>> = Vec::new();
    for (index, (id, decision)) in plan.decisions.iter().enumerate() {
        let Decision::Run { generation, .. } = decision else {
            continue;
        };
        let job = partition.jobs.get(id);
        match job.and_then(|job| job.definitions.get(generation)) {
            Some(definition) if definition.spec.overlap == Overlap::Skip => chosen.push(id),
            Some(_) if chosen.contains(&id) => return index,
            _ => {}
        }
    }
    plan.decisions.len()
}

/// The run of a scheduled instant.
fn scheduled(job: &Job, definition: &Definition, decision: &Decision, now_ms: i64) -> RunRecord {
    let (stands_for, from_ms, generation) = match decision {
        Decision::Run {
            stands_for,
            from_ms,
            generation,
            ..
        } => (*stands_for, *from_ms, *generation),
        Decision::Skip {
            count,
            from_ms,
            generation,
            ..
        } => (*count, *from_ms, *generation),
    };
    let at_ms = decision.at_ms();
    let jitter_ms = definition.schedule.jitter_ms(&job.id, at_ms);
    let not_before_ms = at_ms.saturating_add(i64::try_from(jitter_ms).unwrap_or(0));
    RunRecord {
        run: format!("{}@{}", job.id, compact(at_ms)),
        scheduled_ms: at_ms,
        not_before_ms,
        stands_for,
        stands_from_ms: (stands_for > 1).then_some(from_ms),
        ..pending(
            job,
            definition,
            generation,
            RunKind::Scheduled,
            now_ms.max(not_before_ms),
            now_ms,
        )
    }
}

/// The record of instants that do not run.
fn skipped(
    job: &Job,
    definition: &Definition,
    decision: &Decision,
    reason: SkipReason,
    now_ms: i64,
) -> RunRecord {
    RunRecord {
        attempt: 0,
        state: RunState::Skipped,
        skipped: Some(reason),
        ended_ms: Some(now_ms),
        ..scheduled(job, definition, decision, now_ms)
    }
}

/// A first attempt, PENDING, without an instant or a name yet. It may be claimed from `ready_ms`.
#[must_use]
pub fn pending(
    job: &Job,
    definition: &Definition,
    generation: u64,
    kind: RunKind,
    ready_ms: i64,
    now_ms: i64,
) -> RunRecord {
    let spec = &definition.spec;
    RunRecord {
        job: job.id.to_string(),
        run: String::new(),
        attempt: 1,
        unstarted: 0,
        kind,
        scheduled_ms: now_ms,
        job_uid: job.uid.0,
        generation,
        queue: spec.queue.clone(),
        needs: spec.needs(),
        priority: spec.priority,
        deadline_ms: ready_ms.saturating_add(spec.unclaimed_after.ms_i64()),
        state: RunState::Pending,
        owner: None,
        failed: None,
        skipped: None,
        not_before_ms: now_ms,
        created_ms: now_ms,
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
        stands_for: 1,
        stands_from_ms: None,
        payload: None,
        cause: None,
        nonce: 0,
    }
}
