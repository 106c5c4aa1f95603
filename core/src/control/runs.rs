//! Operations on runs.

use std::collections::BTreeMap;

use crate::backend::{Entry, PageLimit, Requirement, Span, Txn, TxnOutcome};
use crate::job::finish::{self, Attempt, End};
use crate::job::record::{IdemRecord, RunRecord, decode, encode};
use crate::job::run::{FailReason, RunEvent, RunState};
use crate::job::spec::{Overlap, SpecError, payload_finding};
use crate::keys::{AttemptKey, fnv1a, job_of_run, partition_of};
use crate::leader::fire::pending;
use crate::leader::siblings::Siblings;
use crate::worker::report::Late;

use super::jobs::ready;
use super::objects::run_object;
use super::types::{ControlError, PageOf, RunFilter, RunKind, RunObject};
use super::{Control, MAX_CONFLICTS, busy, read};

impl Control {
    /// Runs the job now. The same key again gives the same run, as long as its record is kept, and
    /// makes no other one for a day.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Conflict`] while the job is paused or disabled,
    /// with `overlap: skip` while another run of it is not finished, with `overlap: queue` while the
    /// queue is full, or when the key's run has been pruned.
    pub async fn trigger(
        &self,
        id: &str,
        payload: Option<serde_json::Value>,
        idempotency_key: &str,
    ) -> Result<RunObject, ControlError> {
        if let Some(finding) = payload.as_ref().and_then(payload_finding) {
            return Err(ControlError::Invalid(vec![(id.to_owned(), finding)]));
        }
        let partition = self.partition(id).await?;
        let asked = payload
            .as_ref()
            .map_or_else(String::new, |payload| format!("={payload}"));
        let request = fnv1a(asked.as_bytes());
        for _ in 0..MAX_CONFLICTS {
            let seq_key = self.keys.seq(partition, id);
            let seq_entry = self.store.get(&seq_key).await?;
            let current = read::current(&self.store, &self.keys, partition, id).await?;
            let (Some(job), Some(seq_entry)) = (&current.job, seq_entry) else {
                return Err(ControlError::NotFound(format!("there is no job `{id}`")));
            };
            let run = manual_run(id, job.uid.0, idempotency_key);
            let earlier = self.attempts(partition, id, &run).await?.pop();
            let idem_key = self.keys.idem(&run);
            let used = self.store.get(&idem_key).await?;
            let used = used.map(|entry| decode::<IdemRecord>(&entry.value).ok());
            let other = used.flatten().and_then(|used| used.request);
            if other.is_some_and(|other| other != request) {
                return Err(ControlError::Conflict(
                    "this key was used already, for a run with another payload: a key stands for \
                     one request"
                        .into(),
                ));
            }
            if let Some(earlier) = earlier {
                return Ok(earlier);
            }
            if used.is_some() {
                return Err(ControlError::Conflict(format!(
                    "this key was used already: its run {run} has ended, and its record is pruned"
                )));
            }
            let now_ms = self.change_ms().await?;
            let definition = ready(job, now_ms)?;
            if let Some(finding) = too_much_in_parts(definition.spec.fan_out, asked.len()) {
                return Err(ControlError::Invalid(vec![(id.to_owned(), finding)]));
            }
            let generation = job.record.generation;
            let record = RunRecord {
                run: run.clone(),
                payload: payload.clone(),
                ..pending(job, definition, generation, RunKind::Manual, now_ms, now_ms)
            };
            let key = AttemptKey {
                partition,
                job: id.to_owned(),
                run,
                attempt: 1,
            };
            let (store, keys) = (&self.store, &self.keys);
            let siblings =
                Siblings::of(store, keys, &definition.spec, partition, seq_entry).await?;
            if let Some(full) = siblings.refuses(keys, &definition.spec) {
                return Err(ControlError::Conflict(full));
            }
            let idem = IdemRecord {
                created_ms: now_ms,
                attempt: None,
                request: Some(request),
            };
            let mut txn = siblings
                .consume(Txn::new())
                .require(Requirement::Modified(
                    self.keys.job(partition, id),
                    job.modified,
                ))
                .require(Requirement::Absent(self.keys.run(&key)))
                .put(self.keys.run(&key), encode(&record))
                .put(idem_key, encode(&idem));
            let alone = definition.spec.overlap == Overlap::Skip;
            if alone {
                txn = txn.require(Requirement::Empty(self.keys.runs_of(partition, id)));
            }
            if definition.spec.overlap == Overlap::Replace {
                txn = siblings.replace(&self.keys, txn, &key.run, now_ms);
            }
            match self.settle(&txn).await? {
                TxnOutcome::Applied { .. } => return Ok(run_object(&record, None)),
                TxnOutcome::Conflict { seen } => {
                    let other = seen.into_iter().nth(3).flatten();
                    if let Some(other) = other.and_then(|e| self.keys.parse_attempt(&e.key))
                        && alone
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

    /// Runs of one job, newest first; or of all jobs: unfinished ones first, then by job.
    ///
    /// # Errors
    /// [`ControlError::Store`]; [`ControlError::NotFound`] for a cursor of another listing.
    pub async fn runs(
        &self,
        filter: &RunFilter,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<PageOf<RunObject>, ControlError> {
        match &filter.job {
            Some(job) => self.runs_of(job, filter, cursor, limit).await,
            None => self.all_runs(filter, cursor, limit).await,
        }
    }

    async fn runs_of(
        &self,
        job: &str,
        filter: &RunFilter,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<PageOf<RunObject>, ControlError> {
        let partition = self.partition(job).await?;
        // `run/` first: a run that ends in between is then seen twice rather than not at all.
        let (active, _) = self
            .store
            .list(&self.keys.runs_of(partition, job), None)
            .await?;
        let (done, _) = self
            .store
            .list(&self.keys.done_of(partition, job), None)
            .await?;
        if active.is_empty() && done.is_empty() {
            // Nothing to show: tell a job without runs from no job at all.
            let known = self.store.get(&self.keys.job(partition, job)).await?;
            known.ok_or_else(|| ControlError::NotFound(format!("there is no job `{job}`")))?;
        }
        let mut found: BTreeMap<(i64, String, u32), RunRecord> = BTreeMap::new();
        for record in active.iter().chain(&done).filter_map(decode_run) {
            if wanted(filter, &record) {
                let place = (record.scheduled_ms, record.run.clone(), record.attempt);
                found.insert(place, record);
            }
        }
        let mut items: Vec<RunRecord> = match cursor {
            Some(cursor) => {
                let place = parse_place(cursor)
                    .ok_or_else(|| ControlError::NotFound("no such page".into()))?;
                found
                    .into_iter()
                    .take_while(|(at, _)| *at < place)
                    .map(|(_, r)| r)
                    .collect()
            }
            None => found.into_values().collect(),
        };
        items.reverse();
        let more = items.len() > limit;
        items.truncate(limit);
        let next_cursor = items.last().filter(|_| more).map(place);
        let late = self.late_results(partition, job).await?;
        let items = items
            .iter()
            .map(|record| {
                let late = late.get(&(record.run.clone(), record.attempt)).cloned();
                run_object(record, late)
            })
            .collect();
        Ok(PageOf { items, next_cursor })
    }

    async fn late_results(
        &self,
        partition: u16,
        job: &str,
    ) -> Result<BTreeMap<(String, u32), String>, ControlError> {
        let (late, _) = self
            .store
            .list(&self.keys.late_of(partition, job), None)
            .await?;
        Ok(late
            .into_iter()
            .filter_map(|entry| {
                let key = self.keys.parse_attempt(&entry.key)?;
                let late: Late = decode(&entry.value).ok()?;
                Some(((key.run, key.attempt), late.result))
            })
            .collect())
    }

    /// `run/` first, then `done/`; the cursor is the key of the last run seen.
    async fn all_runs(
        &self,
        filter: &RunFilter,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<PageOf<RunObject>, ControlError> {
        let (active, done) = (self.keys.runs(), self.keys.all_done());
        let spans = match cursor.map(str::as_bytes) {
            None => vec![active, done],
            Some(key) if active.contains(key) => vec![active.after(key), done],
            Some(key) if done.contains(key) => vec![done.after(key)],
            Some(_) => return Err(ControlError::NotFound("no such page".into())),
        };
        let mut items = Vec::new();
        for mut rest in spans {
            loop {
                let page = self.store.range(&rest, PageLimit::default(), None).await?;
                for entry in &page.entries {
                    let Some(record) = decode_run(entry).filter(|r| wanted(filter, r)) else {
                        continue;
                    };
                    items.push(run_object(&record, None));
                    if items.len() == limit {
                        let next_cursor = String::from_utf8(entry.key.clone()).ok();
                        return Ok(PageOf { items, next_cursor });
                    }
                }
                match page.entries.last() {
                    Some(last) if page.more => rest = rest.after(&last.key),
                    _ => break,
                }
            }
        }
        Ok(PageOf {
            items,
            next_cursor: None,
        })
    }

    /// Every attempt of a run, oldest first.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Store`].
    pub async fn run(&self, run_id: &str) -> Result<Vec<RunObject>, ControlError> {
        let (partition, job) = self.locate(run_id).await?;
        let attempts = self.attempts(partition, &job, run_id).await?;
        if attempts.is_empty() {
            return Err(no_run(run_id));
        }
        Ok(attempts)
    }

    /// The parts of a run in parts, each as its last attempt stands, in the order of their indexes.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Store`].
    pub async fn parts(&self, run_id: &str) -> Result<Vec<RunObject>, ControlError> {
        let (partition, job) = self.locate(run_id).await?;
        let active = self.keys.parts_of(partition, &job, run_id);
        let done = self.keys.done_parts_of(partition, &job, run_id);
        // `run/` first: an attempt that ends in between is then seen twice rather than not at all.
        let (active, _) = self.store.list(&active, None).await?;
        let (done, _) = self.store.list(&done, None).await?;
        let mut found: BTreeMap<(Option<u32>, u32), RunRecord> = BTreeMap::new();
        for record in active.iter().chain(&done).filter_map(decode_run) {
            let index = record.shard.as_ref().map(|shard| shard.index);
            found.insert((index, record.attempt), record);
        }
        let last: BTreeMap<_, _> = found
            .iter()
            .map(|((index, _), record)| (index, run_object(record, None)))
            .collect();
        Ok(last.into_values().collect())
    }

    pub(super) async fn locate(&self, run_id: &str) -> Result<(u16, String), ControlError> {
        let job = job_of_run(run_id).ok_or_else(|| no_run(run_id))?;
        if run_id.contains('/') {
            return Err(no_run(run_id));
        }
        let partitions = self.meta().await?.partitions;
        Ok((partition_of(job, partitions), job.to_owned()))
    }

    async fn attempts(
        &self,
        partition: u16,
        job: &str,
        run: &str,
    ) -> Result<Vec<RunObject>, ControlError> {
        let active = self.keys.attempts_of(partition, job, run);
        let done = self.keys.done_attempts_of(partition, job, run);
        let (active, _) = self.store.list(&active, None).await?;
        let (done, _) = self.store.list(&done, None).await?;
        let mut found = BTreeMap::new();
        for record in active.iter().chain(&done).filter_map(decode_run) {
            let key = AttemptKey {
                partition,
                job: job.to_owned(),
                run: run.to_owned(),
                attempt: record.attempt,
            };
            let late = self.store.get(&self.keys.late(&key)).await?;
            let late = late.and_then(|entry| decode::<Late>(&entry.value).ok());
            let mut object = run_object(&record, late.map(|l| l.result));
            self.add_progress(partition, &record, &mut object).await?;
            found.insert(record.attempt, object);
        }
        Ok(found.into_values().collect())
    }

    /// Ends a run: at once if nobody has it, else its worker is told to.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Conflict`] when it has ended already.
    pub async fn cancel_run(&self, run_id: &str) -> Result<RunObject, ControlError> {
        let (partition, job) = self.locate(run_id).await?;
        for _ in 0..MAX_CONFLICTS {
            let span: Span = self.keys.attempts_of(partition, &job, run_id);
            let (active, _) = self.store.list(&span, None).await?;
            let attempt = active.iter().find_map(|e| Attempt::read(&self.keys, e));
            let (Some(attempt), Some(entry)) = (attempt, active.first()) else {
                let ended = self.run(run_id).await?;
                let state = ended.last().map_or("?", |run| run.state.as_str());
                return Err(ControlError::Conflict(format!(
                    "{run_id} has ended already: {state}"
                )));
            };
            let txn = if attempt.record.state == RunState::Pending {
                self.end_pending(&attempt, self.change_ms().await?)?
            } else {
                // Requires the attempt's key: a late copy finds it gone and writes nothing.
                Txn::new()
                    .require(Requirement::Created(entry.key.clone(), entry.created))
                    .put(self.keys.cancel(run_id), encode(&serde_json::json!({})))
            };
            if let TxnOutcome::Applied { .. } = self.settle(&txn).await? {
                let mut attempts = self.run(run_id).await?;
                return attempts.pop().ok_or_else(|| no_run(run_id));
            }
        }
        Err(busy())
    }

    fn end_pending(&self, attempt: &Attempt, now_ms: i64) -> Result<Txn, ControlError> {
        let end = End {
            now_ms,
            nonce: self.store.env().random_u64(),
            epoch: 0,
            execution: None,
            error: Some("cancelled before it started".into()),
            spec: None,
            uncertain: false,
            late: false,
        };
        let event = RunEvent::Abandon(FailReason::Cancelled);
        finish::end(&self.keys, attempt, &event, &end)
            .map_err(|illegal| ControlError::Conflict(illegal.to_string()))
    }
}

/// `job~m-HASH`: the same for the same key in the same life of the job.
fn manual_run(job: &str, uid: u64, key: &str) -> String {
    let hash = hash_of(&[job, &uid.to_string(), key]);
    format!("{job}~m-{hash}")
}

/// 24 hex digits.
pub(super) fn hash_of(parts: &[&str]) -> String {
    let seed = parts.join("#");
    let high = fnv1a(seed.as_bytes());
    let low = fnv1a(format!("{high}#{seed}").as_bytes());
    format!("{high:016x}{:08x}", low >> 32)
}

pub(super) fn no_run(run_id: &str) -> ControlError {
    let shown: String = run_id.chars().take(120).collect();
    ControlError::NotFound(format!(
        "there is no run `{shown}` (its record may have been pruned)"
    ))
}

fn decode_run(entry: &Entry) -> Option<RunRecord> {
    decode(&entry.value).ok()
}

fn wanted(filter: &RunFilter, record: &RunRecord) -> bool {
    filter.states.is_empty() || filter.states.contains(&record.state)
}

fn place(record: &RunRecord) -> String {
    format!("{}/{}/{}", record.scheduled_ms, record.attempt, record.run)
}

fn parse_place(cursor: &str) -> Option<(i64, String, u32)> {
    let mut parts = cursor.splitn(3, '/');
    let (at, attempt, run) = (parts.next()?, parts.next()?, parts.next()?);
    Some((at.parse().ok()?, run.to_owned(), attempt.parse().ok()?))
}

/// Bytes of payload that one trigger may put into the store: each part of a run has a copy.
const MAX_IN_PARTS: usize = 4 << 20;

/// What is wrong with a payload of so many bytes for a run in so many parts.
fn too_much_in_parts(fan_out: Option<u32>, bytes: usize) -> Option<SpecError> {
    let parts = usize::try_from(fan_out?).unwrap_or(usize::MAX);
    if parts.saturating_mul(bytes) <= MAX_IN_PARTS {
        return None;
    }
    let most = MAX_IN_PARTS / parts.max(1);
    let what = format!("{bytes} bytes for each of {parts} parts are too much");
    let hint = format!("{most} bytes at most: name the data instead of sending it");
    Some(SpecError::new("payload", what).hint(hint))
}
