//! Firing: plan, then commit under the term, the cursor and `changes`.
//!
//! One transaction a partition appends a batch of runs and moves the cursor, so a fire exists if
//! and only if the cursor has passed it. It requires the cursor and the `changes` that it was
//! planned from, and consumes the cursor: it applies at most once, however often it is delivered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::backend::{Op, Requirement, Seen, Txn, TxnOutcome, Write};
use crate::control::types::RunKind;
use crate::job::notes::missed;
use crate::job::parts::Parts;
use crate::job::record::{RunRecord, encode};
use crate::job::run::{RunState, SkipReason};
use crate::job::spec::Overlap;
use crate::job::{Definition, Job};
use crate::keys::{AttemptKey, Keys};
use crate::plan::{Decision, Plan};
use crate::time::compact;

use super::partition::Partition;
use super::siblings::{Known, Siblings, definition};

/// A plan as a transaction.
pub struct Fire {
    /// What was planned.
    pub plan: Plan,
    /// Its transaction.
    pub txn: Txn,
    /// The runs that it requires absent, and the places of these requirements.
    absent: Vec<(usize, String)>,
    skips: BTreeMap<Arc<str>, u32>,
}

/// What an outcome means for a partition.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The batch is decided.
    Decided,
    /// The view was behind; planned anew from fresh data.
    Stale,
    /// The view is right, but runs of a job have come or gone since they were read; they are read
    /// anew.
    Overtaken,
}

/// So many requirements, and so many writes, a transaction has at most: one more for a choice, and
/// one for each partition that shares the request, and every store takes it.
const MAX_PARTS: usize = 110;

impl Fire {
    /// The transaction that makes the plan true, or as much of it as fits; the rest is planned again.
    /// `plan` is what [`independent`] left, and `known` what its jobs ask for.
    #[must_use]
    pub fn new(
        keys: &Keys,
        partition: &Partition,
        mut plan: Plan,
        known: &Known,
        now_ms: i64,
    ) -> Self {
        let number = partition.number;
        let mut fire = Building {
            keys,
            partition,
            now_ms,
            txn: Txn::new()
                .require(Requirement::Modified(
                    keys.cursor(number),
                    partition.cursor_revision,
                ))
                .require(Requirement::Modified(
                    keys.changes(number),
                    partition.changes_revision,
                )),
            absent: Vec::new(),
            skips: BTreeMap::new(),
            met: BTreeSet::new(),
        };
        let mut fits = plan.decisions.len();
        for (index, (id, decision)) in plan.decisions.iter().enumerate() {
            let before = (fire.txn.require.len(), fire.txn.ops.len());
            fire.decide(id, decision, known.get(id));
            let parts = fire.txn.require.len().max(fire.txn.ops.len() + 1);
            if parts > MAX_PARTS && index > 0 {
                fire.take_back(before, id);
                fits = index;
                break;
            }
        }
        plan.truncate(fits);
        let txn = fire.txn.put(keys.cursor(number), encode(&plan.cursor));
        Self {
            plan,
            txn,
            absent: fire.absent,
            skips: fire.skips,
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
                // With another cursor or log the plan was simply old (or an earlier copy of this
                // request has won, and the runs are its own).
                let at = |index: usize| seen.get(index).and_then(Option::as_ref);
                let modified = |index: usize| at(index).map(|entry| entry.modified);
                let is_old = modified(0) != Some(partition.cursor_revision)
                    || modified(1) != Some(partition.changes_revision);
                if is_old {
                    partition.conflicted();
                    return Verdict::Stale;
                }
                if self.note_standing(partition, seen) {
                    partition.conflicted();
                    return Verdict::Stale;
                }
                partition.halve();
                Verdict::Overtaken
            }
        }
    }

    /// A run that stands although the cursor has not passed it: somebody wrote past the cursor.
    /// The instant counts as decided by the run that is there; it must not stop its partition.
    fn note_standing(&self, partition: &mut Partition, seen: &Seen) -> bool {
        let mut any = false;
        for (place, run) in &self.absent {
            if seen.get(*place).is_some_and(Option::is_some) {
                tracing::error!(
                    run,
                    "this run stood before its instant was decided; left as it is"
                );
                partition.standing.insert(run.clone());
                any = true;
            }
        }
        any
    }
}

/// A transaction that grows by one decision after another.
struct Building<'a> {
    keys: &'a Keys,
    partition: &'a Partition,
    now_ms: i64,
    txn: Txn,
    absent: Vec<(usize, String)>,
    skips: BTreeMap<Arc<str>, u32>,
    /// Jobs of which a run is there when this is done, whatever is chosen.
    met: BTreeSet<Arc<str>>,
}

impl Building<'_> {
    fn decide(&mut self, id: &Arc<str>, decision: &Decision, siblings: Option<&Siblings>) {
        let Some((job, definition)) = self
            .partition
            .jobs
            .get(id)
            .and_then(|job| Some((job, definition(self.partition, id, decision)?)))
        else {
            return;
        };
        if let Decision::Skip { reason, .. } = decision {
            let record = skipped(job, definition, decision, *reason, self.now_ms);
            self.skip(id, &record);
            let key = self.key(id, &record);
            for note in missed(self.keys, &key, &record, &definition.spec) {
                self.write(note);
            }
            return;
        }
        let record = scheduled(job, definition, decision, self.now_ms);
        if self.partition.standing.contains(&record.run) {
            return;
        }
        let overlaps = || skipped(job, definition, decision, SkipReason::Overlap, self.now_ms);
        match (definition.spec.overlap, siblings) {
            (Overlap::Skip, _) => self.run_alone(id, &record, &overlaps()),
            (Overlap::Queue, Some(siblings)) => {
                if let Some(full) = siblings.full(&definition.spec) {
                    self.txn = Siblings::prove_full(full, std::mem::take(&mut self.txn));
                    self.skip(id, &overlaps());
                } else {
                    self.txn = siblings.consume(std::mem::take(&mut self.txn));
                    self.run(id, record);
                }
            }
            (Overlap::Replace, Some(siblings)) => {
                let txn = siblings.consume(std::mem::take(&mut self.txn));
                self.txn = siblings.replace(self.keys, txn, &record.run, self.now_ms);
                self.run(id, record);
            }
            // (Those that look at their siblings are never decided without having read them.)
            (Overlap::Allow | Overlap::Queue | Overlap::Replace, _) => self.run(id, record),
        }
    }

    fn key(&self, id: &Arc<str>, record: &RunRecord) -> AttemptKey {
        AttemptKey {
            partition: self.partition.number,
            job: id.to_string(),
            run: record.run.clone(),
            attempt: record.attempt,
        }
    }

    fn write(&mut self, op: impl Into<Op>) {
        self.txn.ops.push(op.into());
    }

    fn skip(&mut self, id: &Arc<str>, record: &RunRecord) {
        *self.skips.entry(id.clone()).or_default() += 1;
        let key = self.keys.done(&self.key(id, record));
        self.write(Write::put(key, encode(record)));
    }

    fn run(&mut self, id: &Arc<str>, record: RunRecord) {
        let key = self.keys.run(&self.key(id, &record));
        self.absent
            .push((self.txn.require.len(), record.run.clone()));
        self.txn.require.push(Requirement::Absent(key.clone()));
        self.write(Write::put(key, encode(&record)));
        self.met.insert(id.clone());
    }

    /// A run if the job has no other, else a skip record.
    fn run_alone(&mut self, id: &Arc<str>, record: &RunRecord, overlap: &RunRecord) {
        // One choice a job and request: whatever it chooses, a run of the job is there
        // afterwards, so the job's further instants in this request overlap with it. The
        // same holds behind a run that an older definition (`overlap: allow`) gets here.
        if !self.met.insert(id.clone()) {
            self.skip(id, overlap);
            return;
        }
        *self.skips.entry(id.clone()).or_default() += 1;
        let then = Write::put(self.keys.run(&self.key(id, record)), encode(record));
        let otherwise = Write::put(self.keys.done(&self.key(id, overlap)), encode(overlap));
        let empty = self.keys.runs_of(self.partition.number, id);
        self.write(Op::Choose {
            require: vec![Requirement::Empty(empty)],
            then: vec![then],
            otherwise: vec![otherwise],
        });
    }

    /// Without the last decision, which did not fit.
    fn take_back(&mut self, (require, ops): (usize, usize), id: &Arc<str>) {
        self.txn.require.truncate(require);
        self.txn.ops.truncate(ops);
        self.absent.retain(|(place, _)| *place < require);
        if let Some(count) = self.skips.get_mut(id) {
            *count = count.saturating_sub(1);
        }
    }
}

/// How many of the decisions fit into one request.
///
/// * An edit from `overlap: skip` to `allow` may lie between two of them: the second one's run would
///   be written into the span that the first one's choice requires empty, and every store refuses
///   such a request. It waits for the next one.
/// * With `overlap: queue` or `replace`, what a decision depends on is what the decision before it
///   has made: each waits for the next request.
#[must_use]
pub fn independent(partition: &Partition, plan: &Plan) -> usize {
    let mut met: BTreeMap<&Arc<str>, Overlap> = BTreeMap::new();
    for (index, (id, decision)) in plan.decisions.iter().enumerate() {
        let Decision::Run { .. } = decision else {
            continue;
        };
        let Some(definition) = definition(partition, id, decision) else {
            continue;
        };
        let overlap = definition.spec.overlap;
        let waits = match (met.get(id), overlap) {
            (None, _) => false,
            (Some(Overlap::Queue | Overlap::Replace), _)
            | (Some(_), Overlap::Queue | Overlap::Replace) => true,
            (Some(Overlap::Skip), overlap) => overlap != Overlap::Skip,
            (Some(Overlap::Allow), _) => false,
        };
        if waits {
            return index;
        }
        // A choice of an earlier one stays the reason to wait.
        met.entry(id)
            .and_modify(|met| {
                if overlap == Overlap::Skip {
                    *met = overlap;
                }
            })
            .or_insert(overlap);
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
    let not_before_ms = ready_ms(definition, &job.id, at_ms);
    RunRecord {
        run: format!("{}@{}", job.id, compact(at_ms)),
        scheduled_ms: at_ms,
        not_before_ms,
        // Of the instants that it stands for, the first one has waited longest.
        late_at_ms: definition
            .spec
            .late_at_ms(ready_ms(definition, &job.id, from_ms)),
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

/// When a run of this instant may start.
fn ready_ms(definition: &Definition, job: &str, at_ms: i64) -> i64 {
    let jitter_ms = definition.schedule.jitter_ms(job, at_ms);
    at_ms.saturating_add(i64::try_from(jitter_ms).unwrap_or(0))
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
        late_at_ms: None,
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
        concurrency: spec.execution_limit(),
        slot: None,
        deadline_ms: ready_ms.saturating_add(spec.unclaimed_after.ms_i64()),
        late_at_ms: spec.late_at_ms(now_ms),
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
        parts: Parts::of(spec),
        shard: None,
        nonce: 0,
    }
}

#[cfg(test)]
#[path = "fire_tests.rs"]
mod tests;
