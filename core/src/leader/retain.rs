//! Retention: a job's history stays within its bounds.
//!
//! Deleting a record is safe because no record guards anything: an instant is decided when the
//! cursor has passed it. Every deletion is planned from what was read and may be done twice.
//!
//! The parts of a run go with the run, and do not count: a job keeps as many runs in parts as it would
//! keep others.
//!
//! A job is pruned when its history has grown by an eighth of its bound (at least 8 records), so
//! that the cost of reading the history is spread over the records that made it grow. In between,
//! and for whatever was missed, a sweep over everything begins every ten minutes; it passes 32 jobs a second.
//!
//! Under a backlog there is no hurry: of the jobs that are due, a part is pruned at a time, in a task
//! of its own, and those that wait grow on and cost one reading all the same. Each reading is dear to
//! etcd, which copies for it whatever it has not yet written out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::backend::{BackendResult, Entry, Key, Op, PageLimit, Requirement, Span, Txn, Write};
use crate::job::record::{DelayRecord, GoneRecord, IdemRecord, JobRecord, RunRecord, decode};
use crate::job::run::RunState;
use crate::job::spec::{HistorySpec, JobSpec};
use crate::keys::{AttemptKey, part_of, partition_of};

use super::LeaderContext;
use super::authority::Authority;
use super::delay::OF_CHAIN;

const TICK: Duration = Duration::from_millis(500);
const SWEEP_MS: u64 = 600_000;
const GONE_MS: i64 = 86_400_000;
const DELETES_A_REQUEST: usize = 100;
/// Before a job's bound is known.
const UNKNOWN_THRESHOLD: u32 = 8;
/// So many jobs are pruned at a time, or this part of those that are due, if that is more.
const JOBS_A_TICK: usize = 32;
const PART_A_TICK: usize = 8;
/// So many jobs the sweep passes at a time.
const SWEPT_A_TICK: usize = 16;

/// So many records of a job were added to its history.
#[derive(Debug)]
pub struct Notice {
    /// The job.
    pub job: String,
    /// How many.
    pub records: u32,
    /// The newest definition that is known: the life of the job, and the generation.
    pub definition: (u64, u64),
}

/// What bounds a job's history, and the definition that says so: life of the job, and generation.
/// No bounds where nobody can read what they are: then nothing is pruned.
type Bounds = ((u64, u64), Option<HistorySpec>);

/// Older than any definition.
const UNKNOWN: (u64, u64) = (0, 0);

/// How a job's history has grown since it was read.
#[derive(Debug, Default)]
struct Growth {
    added: u32,
    is_due: bool,
    bounds: Option<Bounds>,
}

impl Growth {
    fn threshold(&self) -> u32 {
        let history = self
            .bounds
            .as_ref()
            .and_then(|(_, history)| history.as_ref());
        let bound = history.map(|history| {
            let successes_and_failures = history.keep_success.max(history.keep_failed);
            successes_and_failures.max(history.keep_skipped)
        });
        UNKNOWN_THRESHOLD.max(bound.unwrap_or(0) / 8)
    }
}

/// Which jobs have grown, and how far the sweep has come. Of jobs that are deleted nothing is kept
/// beyond the next sweep, so that this is bounded by the jobs that exist.
#[derive(Debug)]
struct Retention {
    grown: BTreeMap<String, Growth>,
    due: VecDeque<String>,
    sweep_at_ms: u64,
    sweep: Option<Span>,
}

/// Prunes until the leader drops it.
pub async fn retain(
    context: LeaderContext,
    authority: Authority,
    mut notices: mpsc::UnboundedReceiver<Notice>,
) {
    let env = context.store.env().clone();
    // A sweep starts right away: what an earlier leader left is found.
    let mut retention = Retention {
        grown: BTreeMap::new(),
        due: VecDeque::new(),
        sweep_at_ms: env.monotonic_ms() + SWEEP_MS,
        sweep: Some(context.keys.all_done()),
    };
    loop {
        env.sleep(TICK).await;
        while let Ok(notice) = notices.try_recv() {
            retention.note(notice);
        }
        if !authority.is_trusted() {
            continue;
        }
        if let Err(error) = retention.tick(&context, &authority).await {
            crate::recipe::outage::again(&error, "pruning failed");
        }
    }
}

impl Retention {
    fn note(&mut self, notice: Notice) {
        let growth = self.grown.entry(notice.job.clone()).or_default();
        growth.added = growth.added.saturating_add(notice.records);
        growth
            .bounds
            .take_if(|(definition, _)| *definition < notice.definition);
        if growth.added >= growth.threshold() && !growth.is_due {
            growth.is_due = true;
            self.due.push_back(notice.job);
        }
    }

    /// Prunes what is due, or a part of it, and carries the sweep on.
    async fn tick(&mut self, context: &LeaderContext, authority: &Authority) -> BackendResult<()> {
        let count = JOBS_A_TICK.max(self.due.len() / PART_A_TICK);
        let jobs: Vec<String> = self.due.iter().take(count).cloned().collect();
        let unknown = |job: &&String| self.grown.get(*job).is_none_or(|g| g.bounds.is_none());
        let unknown: Vec<&String> = jobs.iter().filter(unknown).collect();
        let bounds = bounds_of(context, &unknown).await?;
        let mut bounds: BTreeMap<&String, Bounds> = unknown.into_iter().zip(bounds).collect();
        let mut victims = Vec::new();
        for job in &jobs {
            let known = self.grown.get(job).and_then(|growth| growth.bounds.clone());
            let (definition, history) = match known.or_else(|| bounds.remove(job)) {
                Some(bounds) => bounds,
                None => (UNKNOWN, None),
            };
            if let Some(history) = &history {
                victims.extend(surplus(context, job, history).await?);
            }
            // Not before: a job whose history could not be read stays due.
            self.due.pop_front();
            if definition == UNKNOWN || history.is_none() {
                // It is gone, or its bounds are to be read again: perhaps somebody mends them.
                self.grown.remove(job);
                continue;
            }
            let growth = Growth {
                bounds: Some((definition, history)),
                ..Growth::default()
            };
            self.grown.insert(job.clone(), growth);
        }
        delete(context, authority, &victims).await?;
        let now_ms = context.store.env().monotonic_ms();
        if now_ms >= self.sweep_at_ms {
            // (A sweep over very many jobs takes longer, and is not begun anew.)
            self.sweep.get_or_insert(context.keys.all_done());
            self.sweep_at_ms = now_ms + SWEEP_MS;
            self.forget_deleted(context, authority).await?;
            forget_triggers(context, authority).await?;
            drop_old_definitions(context, authority).await?;
        }
        for _ in 0..SWEPT_A_TICK {
            let Some(rest) = &self.sweep else { break };
            self.sweep = sweep_page(context, authority, rest).await?;
        }
        Ok(())
    }

    /// A deleted job is remembered for a day; then its definitions go too, unless runs still need them.
    /// Here its growth is forgotten at once: what ends of it later is forgotten the next time.
    async fn forget_deleted(
        &mut self,
        context: &LeaderContext,
        authority: &Authority,
    ) -> BackendResult<()> {
        let (store, keys) = (&context.store, &context.keys);
        let (gone, _) = store.list(&keys.all_gone(), None).await?;
        for entry in gone {
            let Some((partition, job)) = keys.parse_gone(&entry.key) else {
                continue;
            };
            // (One that is due is pruned first.)
            if self.grown.get(&job).is_some_and(|growth| !growth.is_due) {
                self.grown.remove(&job);
            }
            let Ok(record) = decode::<GoneRecord>(&entry.value) else {
                continue;
            };
            if context.clock.now_ms().saturating_sub(record.deleted_ms) < GONE_MS {
                continue;
            }
            let (defs, _) = store.list(&keys.defs_of(partition, &job), None).await?;
            let txn = Txn::new()
                .require(Requirement::Modified(entry.key.clone(), entry.modified))
                .require(Requirement::Absent(keys.job(partition, &job)))
                .require(Requirement::Empty(keys.runs_of(partition, &job)));
            let txn = defs
                .into_iter()
                .take(DELETES_A_REQUEST)
                .fold(txn, |txn, def| txn.delete(def.key));
            let _ = authority.commit(&[txn.delete(entry.key)]).await?;
        }
        Ok(())
    }
}

/// Prunes the first job of `rest`; the span behind it, if there is one.
async fn sweep_page(
    context: &LeaderContext,
    authority: &Authority,
    rest: &Span,
) -> BackendResult<Option<Span>> {
    let one = PageLimit {
        entries: 1,
        ..PageLimit::default()
    };
    let page = context.store.range(rest, one, None).await?;
    let Some(first) = page.entries.first() else {
        return Ok(None);
    };
    let Some(key) = context.keys.parse_attempt(&first.key) else {
        return Ok(Some(rest.after(&first.key)));
    };
    let bounds = bounds_of(context, &[&key.job]).await?;
    for history in bounds.iter().filter_map(|(_, history)| history.as_ref()) {
        let victims = surplus(context, &key.job, history).await?;
        delete(context, authority, &victims).await?;
    }
    let job_span = context.keys.done_of(key.partition, &key.job);
    Ok(job_span.end.map(|end| Span {
        start: end,
        end: rest.end.clone(),
    }))
}

/// A record that is to go, and whether another may stand beside it: a result that came when the
/// attempt was decided otherwise.
type Victim = (AttemptKey, bool);

/// What a job's history has beyond its bounds.
async fn surplus(
    context: &LeaderContext,
    job: &str,
    history: &HistorySpec,
) -> BackendResult<Vec<Victim>> {
    let partition = partition_of(job, context.meta.partitions);
    let (entries, _) = context
        .store
        .list(&context.keys.done_of(partition, job), None)
        .await?;
    let records: Vec<(AttemptKey, RunRecord)> = entries
        .iter()
        .filter_map(|e| readable(context, e))
        .collect();
    // A worker's own success is never decided otherwise.
    let failed: BTreeSet<AttemptKey> = records
        .iter()
        .filter(|(_, record)| record.state == RunState::Failed)
        .map(|(key, _)| key.clone())
        .collect();
    let (parts, runs): (Vec<_>, Vec<_>) = records
        .into_iter()
        .partition(|(key, _)| part_of(&key.run).is_some());
    let seen: Vec<AttemptKey> = runs.iter().map(|(key, _)| key.clone()).collect();
    let mut victims = victims(runs.into_iter(), history, context.clock.now_ms());
    if victims.iter().any(|key| key.run.contains(OF_CHAIN)) {
        // Read behind the records: the next run of a chain counts from the end of the last one.
        let delay = context.store.get(&context.keys.delay(job)).await?;
        let last = delay.and_then(|entry| decode::<DelayRecord>(&entry.value).ok()?.run);
        victims.retain(|key| Some(&key.run) != last.as_ref());
    }
    if !parts.is_empty() {
        let mut stays: BTreeMap<String, bool> = BTreeMap::new();
        for key in seen {
            let is_kept = victims.binary_search(&key).is_err();
            *stays.entry(key.run).or_default() |= is_kept;
        }
        victims.extend(orphans(context, partition, job, parts, stays).await?);
    }
    let victims = victims.into_iter();
    Ok(victims
        .map(|key| {
            let may_be_late = failed.contains(&key);
            (key, may_be_late)
        })
        .collect())
}

async fn delete(
    context: &LeaderContext,
    authority: &Authority,
    victims: &[Victim],
) -> BackendResult<()> {
    for chunk in victims.chunks(DELETES_A_REQUEST / 2) {
        let txn = chunk.iter().fold(Txn::new(), |txn, (key, may_be_late)| {
            let txn = txn.delete(context.keys.done(key));
            match may_be_late {
                true => txn.delete(context.keys.late(key)),
                false => txn,
            }
        });
        let _ = authority.commit(&[txn]).await?;
    }
    Ok(())
}

/// The parts whose parent is gone or going. `stays`: whether a record of the run stays, of each run
/// that was read with the parts.
async fn orphans(
    context: &LeaderContext,
    partition: u16,
    job: &str,
    parts: Vec<(AttemptKey, RunRecord)>,
    mut stays: BTreeMap<String, bool>,
) -> BackendResult<Vec<AttemptKey>> {
    let (store, keys) = (&context.store, &context.keys);
    let mut orphans = Vec::new();
    for (key, _) in parts {
        let Some((parent, _)) = part_of(&key.run) else {
            continue;
        };
        let known = stays.get(parent).copied();
        let is_kept = match known {
            Some(is_kept) => is_kept,
            None => {
                // It was alive when the parts were read, or is pruned already. In this order: one
                // that ends in between is seen twice rather than not at all.
                let alive = keys.attempts_of(partition, job, parent);
                let ended = keys.done_attempts_of(partition, job, parent);
                let is_there = !store.list(&alive, None).await?.0.is_empty()
                    || !store.list(&ended, None).await?.0.is_empty();
                stays.insert(parent.to_owned(), is_there);
                is_there
            }
        };
        if !is_kept {
            orphans.push(key);
        }
    }
    Ok(orphans)
}

fn readable(context: &LeaderContext, entry: &Entry) -> Option<(AttemptKey, RunRecord)> {
    let key = context.keys.parse_attempt(&entry.key)?;
    Some((key, decode(&entry.value).ok()?))
}

/// The bounds of each job: those of its newest definition, the defaults when it is gone, and none when
/// they cannot be read.
async fn bounds_of(context: &LeaderContext, jobs: &[&String]) -> BackendResult<Vec<Bounds>> {
    let (store, keys) = (&context.store, &context.keys);
    let of = |job: &&String| partition_of(job, context.meta.partitions);
    let wanted: Vec<Key> = jobs.iter().map(|job| keys.job(of(job), job)).collect();
    let entries = store.get_each(&wanted).await?;
    let stands = |entry: &Option<Entry>| {
        let entry = entry.as_ref()?;
        let record: JobRecord = decode(&entry.value).ok()?;
        Some((entry.created.0, record.generation))
    };
    let newest: Vec<_> = entries.iter().map(stands).collect();
    let def = |(job, newest): (&&String, &Option<(u64, u64)>)| {
        // (No generation is 0: nothing is found there.)
        keys.def(of(job), job, newest.map_or(0, |(_, generation)| generation))
    };
    let wanted: Vec<Key> = jobs.iter().zip(&newest).map(def).collect();
    let definitions = store.get_each(&wanted).await?;
    let stands = entries.iter().zip(newest).zip(definitions);
    let bounds = stands.map(|((job, newest), definition)| {
        let history = match (job, definition) {
            (None, _) => Some(HistorySpec::default()),
            (Some(_), Some(entry)) => {
                let spec = decode::<JobSpec>(&entry.value).ok();
                spec.map(|spec| spec.history)
            }
            (Some(_), None) => None,
        };
        (newest.unwrap_or(UNKNOWN), history)
    });
    Ok(bounds.collect())
}

/// The records to delete: all but the newest of each kind, and all that are too old. With an attempt
/// go those before it, and they go first: what stands last of a run is its end, so that nobody takes
/// a run that succeeded at last for one that failed, or gives the number of an attempt twice.
fn victims(
    records: impl Iterator<Item = (AttemptKey, RunRecord)>,
    history: &HistorySpec,
    now_ms: i64,
) -> Vec<AttemptKey> {
    let oldest = now_ms.saturating_sub(history.keep_for.ms_i64());
    let mut kinds: BTreeMap<RunState, Vec<(i64, AttemptKey)>> = BTreeMap::new();
    let mut all = BTreeSet::new();
    for (key, record) in records {
        let at = record.ended_ms.unwrap_or(record.created_ms);
        all.insert(key.clone());
        kinds.entry(record.state).or_default().push((at, key));
    }
    let mut victims = BTreeSet::new();
    for (state, mut records) in kinds {
        let keep = match state {
            RunState::Success => history.keep_success,
            RunState::Skipped => history.keep_skipped,
            _ => history.keep_failed,
        };
        records.sort_unstable();
        let surplus = records
            .len()
            .saturating_sub(usize::try_from(keep).unwrap_or(usize::MAX));
        for (index, (at, key)) in records.into_iter().enumerate() {
            if index >= surplus && at >= oldest {
                continue;
            }
            let first = AttemptKey {
                attempt: 0,
                ..key.clone()
            };
            victims.extend(all.range(first..=key).cloned());
        }
    }
    victims.into_iter().collect()
}

/// The keys of triggers are remembered for a day.
async fn forget_triggers(context: &LeaderContext, authority: &Authority) -> BackendResult<()> {
    let (store, keys) = (&context.store, &context.keys);
    let (used, _) = store.list(&keys.idems(), None).await?;
    let oldest = context.clock.now_ms().saturating_sub(GONE_MS);
    let over: Vec<Entry> = used
        .into_iter()
        .filter(|entry| decode::<IdemRecord>(&entry.value).is_ok_and(|r| r.created_ms < oldest))
        .collect();
    for chunk in over.chunks(DELETES_A_REQUEST) {
        let txn = chunk
            .iter()
            .fold(Txn::new(), |txn, entry| txn.delete(entry.key.clone()));
        let _ = authority.commit(&[txn]).await?;
    }
    Ok(())
}

/// Definitions that no segment names are dropped once no run can follow them.
async fn drop_old_definitions(context: &LeaderContext, authority: &Authority) -> BackendResult<()> {
    let (store, keys) = (&context.store, &context.keys);
    for partition in 0..context.meta.partitions {
        let (defs, _) = store.list(&keys.defs_of_partition(partition), None).await?;
        let mut by_job: BTreeMap<String, Vec<(u64, Entry)>> = BTreeMap::new();
        for entry in defs {
            if let Some((job, generation)) = keys.parse_def(&entry.key) {
                by_job.entry(job).or_default().push((generation, entry));
            }
        }
        for (job, defs) in by_job.into_iter().filter(|(_, defs)| defs.len() > 1) {
            let Some(entry) = store.get(&keys.job(partition, &job)).await? else {
                continue;
            };
            let Ok(record) = decode::<JobRecord>(&entry.value) else {
                continue;
            };
            let named: BTreeSet<u64> = record.segments.iter().map(|s| s.generation).collect();
            for (generation, def) in defs {
                if named.contains(&generation) {
                    continue;
                }
                let txn = Txn::new()
                    .require(Requirement::Modified(def.key.clone(), def.modified))
                    .op(Op::Choose {
                        require: vec![Requirement::Empty(keys.runs_of(partition, &job))],
                        then: vec![Write::delete(def.key)],
                        otherwise: vec![],
                    });
                let _ = authority.commit(&[txn]).await?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "retain_tests.rs"]
mod tests;
