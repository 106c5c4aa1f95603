//! Backfill: past instants of a job's present definition, run by request.
//!
//! What can go wrong: a run twice because the request was sent twice or went on after an
//! interruption; a thousand runs at once beside each other where the job wants them one by one. So
//! each run has an id made of the request's key and its instant, each batch consumes the job's
//! `seq`, and each run leaves a mark for a day that outlives its record.

use std::collections::{BTreeMap, BTreeSet};

use crate::backend::{Requirement, Txn, TxnOutcome};
use crate::job::record::{IdemRecord, RunRecord, decode, encode};
use crate::job::run::RunState;
use crate::job::spec::{JobSpec, Overlap, SpecError};
use crate::job::{Definition, Job};
use crate::keys::{AttemptKey, fnv1a};
use crate::leader::fire::pending;
use crate::leader::siblings::Siblings;
use crate::plan::first_undecided;
use crate::schedule::Verdict;
use crate::time::{compact, rfc3339_ms};

use super::jobs::{existing, ready};
use super::runs::hash_of;
use super::types::{
    BackfillObject, BackfillSlot, BackfillWish, ControlError, RunKind, SlotHistory, SlotOutcome,
};
use super::{Control, MAX_CONFLICTS, busy, read};

/// Slots of a backfill if nobody says.
pub const DEFAULT_SLOTS: usize = 100;
/// Slots of a backfill at most.
pub const MAX_SLOTS: usize = 1_000;
/// Runs in one transaction: two writes each, below the limit of 128.
const RUNS_A_REQUEST: usize = 50;
/// Behind whatever is due by itself.
const PRIORITY: i8 = -10;

/// What the job's records say of its past, by instant; of runs by the schedule alone.
struct Past {
    fired: BTreeMap<i64, (String, RunState)>,
    /// First and last instant of a stretch, and why.
    skipped: Vec<(i64, i64, &'static str)>,
}

impl Control {
    /// What [`Control::backfill`] would do.
    ///
    /// # Errors
    /// As [`Control::backfill`].
    pub async fn plan_backfill(
        &self,
        id: &str,
        wish: &BackfillWish,
        idempotency_key: &str,
    ) -> Result<BackfillObject, ControlError> {
        let partition = self.partition(id).await?;
        let current = read::current(&self.store, &self.keys, partition, id).await?;
        let job = existing(id, &current)?;
        self.backfill_plan(partition, job, wish, idempotency_key)
            .await
    }

    /// Runs the past instants of the job's present definition in `from <= instant < to`: those that
    /// have not fired, or with `again` all of them. The same key again goes on where it was
    /// interrupted, and makes nothing twice for a day.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Invalid`] for a range that is empty, lies in the
    /// future or holds more instants than `limit`, than 50 of a job with `overlap: skip` (whose runs
    /// then wait for each other), or than one of a job with `overlap: replace`; [`ControlError::Conflict`] while the job is paused or disabled, while a run
    /// of a job with `overlap: skip` is not finished, and for a key that stood for another request.
    pub async fn backfill(
        &self,
        id: &str,
        wish: &BackfillWish,
        idempotency_key: &str,
    ) -> Result<BackfillObject, ControlError> {
        let partition = self.partition(id).await?;
        let mut conflicts = 0;
        let mut made: BTreeSet<String> = BTreeSet::new();
        loop {
            // First, so that whatever is made meanwhile makes this conflict.
            let seq_key = self.keys.seq(partition, id);
            let seq_entry = self.store.get(&seq_key).await?;
            let current = read::current(&self.store, &self.keys, partition, id).await?;
            let job = existing(id, &current)?;
            let Some(seq_entry) = seq_entry else {
                return Err(ControlError::NotFound(format!("there is no job `{id}`")));
            };
            let now_ms = self.change_ms().await?;
            let definition = ready(job, now_ms)?;
            let mut plan = self
                .backfill_plan(partition, job, wish, idempotency_key)
                .await?;
            let wanted: Vec<(usize, &BackfillSlot)> = plan
                .slots
                .iter()
                .enumerate()
                .filter(|(_, slot)| slot.outcome == SlotOutcome::Create)
                .take(RUNS_A_REQUEST)
                .collect();
            if wanted.is_empty() {
                for slot in &mut plan.slots {
                    if made.contains(&slot.run_id) {
                        slot.outcome = SlotOutcome::Created;
                    }
                }
                return Ok(plan);
            }
            let alone = definition.spec.overlap == Overlap::Skip;
            together(&definition.spec, plan.slots.len())?;
            let (store, keys) = (&self.store, &self.keys);
            let siblings =
                Siblings::of(store, keys, &definition.spec, partition, seq_entry).await?;
            let request = self.backfill_key(job, idempotency_key);
            let idem = IdemRecord {
                created_ms: now_ms,
                attempt: None,
                request: Some(asked(wish)),
            };
            let mut txn = siblings
                .consume(Txn::new())
                .require(Requirement::Modified(
                    self.keys.job(partition, id),
                    job.modified,
                ))
                .put(self.keys.idem(&request), encode(&idem));
            if alone {
                txn = txn.require(Requirement::Empty(self.keys.runs_of(partition, id)));
            }
            if definition.spec.overlap == Overlap::Replace
                && let [(_, only)] = wanted[..]
            {
                txn = siblings.replace(keys, txn, &only.run_id, now_ms);
            }
            for (index, slot) in wanted.iter().copied() {
                let record = backfilled(job, definition, slot, index, now_ms);
                let key = AttemptKey {
                    partition,
                    job: id.to_owned(),
                    run: slot.run_id.clone(),
                    attempt: 1,
                };
                txn = txn
                    .require(Requirement::Absent(self.keys.run(&key)))
                    .put(self.keys.run(&key), encode(&record))
                    .put(self.keys.idem(&slot.run_id), encode(&idem));
            }
            match self.settle(&txn).await? {
                TxnOutcome::Applied { .. } => {
                    made.extend(wanted.into_iter().map(|(_, slot)| slot.run_id.clone()));
                }
                TxnOutcome::Conflict { seen } => {
                    let other = seen.into_iter().nth(2).flatten().filter(|_| alone);
                    let other = other.and_then(|e| self.keys.parse_attempt(&e.key));
                    // An earlier copy of this very request may have made it.
                    let ours = |run: &str| wanted.iter().any(|(_, slot)| slot.run_id == run);
                    if let Some(other) = other.filter(|other| !ours(&other.run)) {
                        return Err(ControlError::Conflict(format!(
                            "job `{id}` has `overlap: skip`, and {} is not finished",
                            other.run
                        )));
                    }
                    conflicts += 1;
                    if conflicts == MAX_CONFLICTS {
                        return Err(busy());
                    }
                }
            }
        }
    }

    fn backfill_key(&self, job: &Job, key: &str) -> String {
        let hash = hash_of(&[&job.id, &job.uid.0.to_string(), key]);
        format!("{}~b-{hash}", job.id)
    }

    async fn backfill_plan(
        &self,
        partition: u16,
        job: &Job,
        wish: &BackfillWish,
        key: &str,
    ) -> Result<BackfillObject, ControlError> {
        let id = job.id.as_ref();
        let definition = job.definition().ok_or_else(|| {
            ControlError::Conflict(format!(
                "the definition of job `{id}` cannot be read by this version; apply it again"
            ))
        })?;
        let instants = instants(definition, wish, self.now_ms())
            .map_err(|finding| ControlError::Invalid(vec![(id.to_owned(), finding)]))?;
        // What the schedule has not come to yet, it runs itself.
        let heads = read::heads(&self.store, &self.keys, partition).await?;
        let undecided_ms = first_undecided(job, &heads.cursor.position);
        if let Some(undecided_ms) = undecided_ms
            && instants.iter().any(|at_ms| *at_ms >= undecided_ms)
        {
            let to = rfc3339_ms(undecided_ms);
            let early = SpecError::new("to", format!("instants from {to} on are not decided yet"))
                .hint(format!("the schedule is about to; take {to} as the end"));
            return Err(ControlError::Invalid(vec![(id.to_owned(), early)]));
        }
        let request = self.backfill_key(job, key);
        if let Some(used) = self.store.get(&self.keys.idem(&request)).await?
            && decode::<IdemRecord>(&used.value).is_ok_and(|used| used.request != Some(asked(wish)))
        {
            return Err(ControlError::Conflict(
                "this key was used already, for another backfill: a key stands for one request"
                    .into(),
            ));
        }
        let past = self.past(partition, id).await?;
        let used = self.store.list(&self.keys.idems_of(&request), None).await?;
        let used: Vec<String> = used
            .0
            .iter()
            .filter_map(|entry| self.keys.parse_idem(&entry.key))
            .collect();
        let slots = instants.into_iter().map(|at_ms| {
            let run_id = format!("{request}@{}", compact(at_ms));
            let (history, earlier) = past.at(at_ms);
            let outcome = if used.contains(&run_id) {
                SlotOutcome::Exists
            } else if history == SlotHistory::Fired && !wish.again {
                SlotOutcome::LeftOut
            } else {
                SlotOutcome::Create
            };
            BackfillSlot {
                at: rfc3339_ms(at_ms),
                at_ms,
                history,
                earlier,
                run_id,
                outcome,
            }
        });
        Ok(BackfillObject {
            job_id: id.to_owned(),
            from: rfc3339_ms(wish.from_ms),
            to: rfc3339_ms(wish.to_ms),
            slots: slots.collect(),
        })
    }

    async fn past(&self, partition: u16, id: &str) -> Result<Past, ControlError> {
        let mut past = Past {
            fired: BTreeMap::new(),
            skipped: Vec::new(),
        };
        for span in [
            self.keys.runs_of(partition, id),
            self.keys.done_of(partition, id),
        ] {
            let (entries, _) = self.store.list(&span, None).await?;
            let records = entries.iter().filter_map(|e| decode(&e.value).ok());
            for record in records {
                past.add(record);
            }
        }
        Ok(past)
    }
}

impl Past {
    fn add(&mut self, record: RunRecord) {
        match record.skipped {
            Some(reason) => self.skipped.push((
                record.stands_from_ms.unwrap_or(record.scheduled_ms),
                record.scheduled_ms,
                reason.as_str(),
            )),
            // Also what an earlier backfill ran, or a person repeated.
            None if !record.run.contains("~m-") => {
                self.fired
                    .insert(record.scheduled_ms, (record.run, record.state));
            }
            None => {}
        }
    }

    fn at(&self, at_ms: i64) -> (SlotHistory, Option<String>) {
        if let Some((run, state)) = self.fired.get(&at_ms) {
            return (SlotHistory::Fired, Some(format!("{run} {state}")));
        }
        let covers = |(from, to, _): &&(i64, i64, &str)| (*from..=*to).contains(&at_ms);
        match self.skipped.iter().find(covers) {
            Some((.., why)) => (SlotHistory::Skipped, Some((*why).to_owned())),
            None => (SlotHistory::None, None),
        }
    }
}

/// What a key stands for.
fn asked(wish: &BackfillWish) -> u64 {
    fnv1a(format!("{} {} {}", wish.from_ms, wish.to_ms, wish.again).as_bytes())
}

/// How many runs of a job can be made together, where they must not be beside each other.
fn together(spec: &JobSpec, slots: usize) -> Result<(), ControlError> {
    let refuse = |message: String, hint: &str| {
        let finding = SpecError::new("to", message).hint(hint);
        Err(ControlError::Invalid(vec![(spec.id.clone(), finding)]))
    };
    match spec.overlap {
        Overlap::Skip if spec.is_in_parts() && slots > 1 => refuse(
            format!(
                "this job runs in parts and has `overlap: skip`, and the range holds {slots} instants"
            ),
            "backfill one instant at a time, or say `overlap: allow` meanwhile",
        ),
        // In one request: the second one would find the runs of the first.
        Overlap::Skip if slots > RUNS_A_REQUEST => refuse(
            format!("this job has `overlap: skip`, and the range holds {slots} instants"),
            "its runs wait for each other, at most 50 of them: take a shorter range",
        ),
        Overlap::Replace if slots > 1 => refuse(
            format!("this job has `overlap: replace`, and the range holds {slots} instants"),
            "each run would tell the one before to go: backfill one instant at a time",
        ),
        _ => Ok(()),
    }
}

/// The instants that the definition fires in the range.
fn instants(
    definition: &Definition,
    wish: &BackfillWish,
    now_ms: i64,
) -> Result<Vec<i64>, SpecError> {
    let limit = wish.limit.unwrap_or(DEFAULT_SLOTS);
    if !(1..=MAX_SLOTS).contains(&limit) {
        return Err(SpecError::new("limit", format!("must be 1 to {MAX_SLOTS}")));
    }
    if wish.from_ms >= wish.to_ms {
        return Err(SpecError::new("from", "must lie before `to`"));
    }
    if wish.to_ms > now_ms {
        return Err(SpecError::new("to", "lies in the future")
            .hint("what is to come is run by the schedule; a backfill runs what has passed"));
    }
    let found: Vec<i64> = definition
        .schedule
        .after(wish.from_ms.saturating_sub(1))
        .take_while(|occurrence| occurrence.at_ms < wish.to_ms)
        .filter(|occurrence| occurrence.verdict == Verdict::Fire)
        .map(|occurrence| occurrence.at_ms)
        .take(limit + 1)
        .collect();
    if found.len() > limit {
        let hint = match limit {
            MAX_SLOTS => "take a shorter range".into(),
            _ => format!("take a shorter range, or a higher limit (up to {MAX_SLOTS})"),
        };
        let many = format!("more than {limit} instants lie in this range");
        return Err(SpecError::new("to", many).hint(hint));
    }
    Ok(found)
}

fn backfilled(
    job: &Job,
    definition: &Definition,
    slot: &BackfillSlot,
    index: usize,
    now_ms: i64,
) -> RunRecord {
    let generation = job.record.generation;
    let record = pending(
        job,
        definition,
        generation,
        RunKind::Backfill,
        now_ms,
        now_ms,
    );
    // Of a job whose runs must not be beside each other, they wait for each other.
    let alone = definition.spec.overlap == Overlap::Skip && !definition.spec.is_in_parts();
    RunRecord {
        run: slot.run_id.clone(),
        scheduled_ms: slot.at_ms,
        priority: PRIORITY,
        // What is done after the fact cannot be late.
        late_at_ms: None,
        concurrency: alone.then_some(1).or(record.concurrency),
        deadline_ms: record
            .deadline_ms
            .saturating_add(wait_ms(&definition.spec, index)),
        ..record
    }
}

/// How much longer the run may wait for a worker: those before it may be done one after the other.
fn wait_ms(spec: &JobSpec, index: usize) -> i64 {
    let before = i64::try_from(index).unwrap_or(i64::MAX);
    let one = spec.timeout.ms_i64();
    one.saturating_mul(i64::from(spec.attempts()))
        .saturating_mul(before)
}
