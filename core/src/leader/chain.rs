//! Running what comes after: `after` in a job's definition.
//!
//! The transaction that ends a run well leaves a note under `todo/` when some job runs after it. The
//! leader works it off, some followers a transaction: it consumes the note (which says who is done)
//! and the follower's `seq`, requires the follower as it was read, and makes the run or the record
//! that says why there is none. So each success has one decision for each job that followed then,
//! whoever leads, and however often a request is delivered.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::backend::{
    BackendError, BackendResult, Entry, Event, Requirement, Revision, Txn, TxnOutcome,
};
use crate::control::types::RunKind;
use crate::job::record::{Cause, JobRecord, RunRecord, TodoRecord, decode, encode};
use crate::job::run::{FailReason, RunState, SkipReason};
use crate::job::{Definition, Definitions, Job};
use crate::keys::{AttemptKey, Keys, fnv1a, partition_of};
use crate::recipe::view::ViewEvent;

use super::LeaderContext;
use super::authority::{Authority, Ruling};
use super::fire::pending;
use super::siblings::{Siblings, skipped};

/// A success that so many others led to is followed by nothing: the jobs run in a circle. (A circle
/// is refused when it is defined; two definitions that meet can make one all the same.)
pub const MAX_HOPS: u32 = 32;
/// A follower that cannot be read is looked at again after so long.
const UNREADABLE_MS: u64 = 30_000;
/// Followers that are decided in one request.
const FOLLOWERS_A_REQUEST: usize = 16;
/// Followers that are read at once.
const READS_AT_ONCE: usize = 16;
/// Notes that are worked off before the leader looks at its other duties.
const NOTES_A_TICK: usize = 16;
/// A note whose followers change so often is left for the next tick.
const MAX_CONFLICTS: u32 = 8;

/// A note as it was read.
#[derive(Clone, Debug)]
struct Todo {
    record: TodoRecord,
    created: Revision,
    modified: Revision,
}

/// The successes that are to be followed.
#[derive(Debug, Default)]
pub struct Chain {
    todos: BTreeMap<String, Todo>,
    /// Waits for a job that cannot be read: looked at again then, by the monotonic clock.
    later: BTreeMap<String, u64>,
}

/// A follower as it was read: what its decision is made from, and guarded by.
struct Follower {
    id: String,
    partition: u16,
    marker: Entry,
    stands: Stands,
}

/// How a job stands that may be run outside the cursor.
pub(super) enum Stands {
    /// There is none.
    Gone,
    /// This version cannot read it. It is decided when somebody has repaired or deleted it.
    Unreadable,
    /// As this job, with its unfinished runs as far as its policy looks at them.
    Job(Box<Job>, Arc<Definition>, Siblings),
}

impl Chain {
    /// Takes in what the view tells.
    pub fn take(&mut self, keys: &Keys, event: ViewEvent) {
        match event {
            ViewEvent::Listed(entries, _) => {
                self.todos.clear();
                entries.iter().for_each(|entry| self.insert(keys, entry));
            }
            ViewEvent::Changed(changes) => {
                for event in changes.events {
                    match event {
                        Event::Put(entry) => self.insert(keys, &entry),
                        Event::Delete { key, .. } => {
                            if let Some(run) = keys.parse_todo(&key) {
                                self.todos.remove(&run);
                            }
                        }
                    }
                }
            }
        }
    }

    fn insert(&mut self, keys: &Keys, entry: &Entry) {
        let Some(run) = keys.parse_todo(&entry.key) else {
            return;
        };
        match decode(&entry.value) {
            Ok(record) => {
                let todo = Todo {
                    record,
                    created: entry.created,
                    modified: entry.modified,
                };
                self.todos.insert(run, todo);
            }
            Err(error) => {
                tracing::error!(run, %error, "what comes after this run is set aside");
            }
        }
    }

    /// Works off what there is, a bounded part of it: the leader has other duties. Whether there is
    /// more.
    ///
    /// # Errors
    /// Those of the store; nothing is lost, the rest is done at the next tick.
    pub async fn tick(
        &mut self,
        context: &LeaderContext,
        authority: &Authority,
    ) -> BackendResult<bool> {
        let now_ms = context.store.env().monotonic_ms();
        self.later
            .retain(|run, at| self.todos.contains_key(run) && *at > now_ms);
        let open = |run: &&String| !self.later.contains_key(*run);
        let notes: Vec<String> = self.todos.keys().filter(open).cloned().collect();
        // Oldest first: ids say nothing of age, revisions do.
        let mut notes: Vec<(Revision, String)> = notes
            .into_iter()
            .filter_map(|run| Some((self.todos.get(&run)?.created, run)))
            .collect();
        notes.sort_unstable();
        let more = notes.len() > NOTES_A_TICK;
        for (_, run) in notes.into_iter().take(NOTES_A_TICK) {
            if !self.follow(context, authority, &run).await? {
                return Ok(false);
            }
        }
        Ok(more)
    }

    /// Works off one note. Whether this still leads.
    async fn follow(
        &mut self,
        context: &LeaderContext,
        authority: &Authority,
        run: &str,
    ) -> BackendResult<bool> {
        let Some(mut todo) = self.todos.remove(run) else {
            return Ok(true);
        };
        let mut left = followers(context, run, &todo).await?;
        // Several in one request while nothing comes between, then one by one.
        let mut together = FOLLOWERS_A_REQUEST;
        let mut conflicts = 0;
        loop {
            let unreadable = |f: &Follower| matches!(f.stands, Stands::Unreadable);
            let (set_aside, mut ready): (Vec<_>, Vec<_>) = left.into_iter().partition(unreadable);
            if ready.is_empty() && !set_aside.is_empty() {
                let ids: Vec<&str> = set_aside.iter().map(|f| f.id.as_str()).collect();
                tracing::error!(
                    run,
                    ?ids,
                    "cannot read what comes after this run; apply the jobs again"
                );
                let again_ms = context.store.env().monotonic_ms() + UNREADABLE_MS;
                self.later.insert(run.to_owned(), again_ms);
                self.todos.insert(run.to_owned(), todo);
                return Ok(true);
            }
            let rest = ready.split_off(ready.len().min(together));
            let last = rest.is_empty() && set_aside.is_empty();
            let txn = step(context, run, &todo, &ready, last);
            match authority.commit(std::slice::from_ref(&txn)).await {
                Ok(Ruling::Judged(revision, outcomes)) => match outcomes.first() {
                    Some(TxnOutcome::Applied { .. }) if last => return Ok(true),
                    Some(TxnOutcome::Applied { .. }) => {
                        todo.record.done.extend(ready.into_iter().map(|f| f.id));
                        todo.modified = revision;
                        left = rest.into_iter().chain(set_aside).collect();
                    }
                    _ => {
                        // A job has changed meanwhile, or the note is not what it was: what stands
                        // says which, the view brings the note again.
                        conflicts += 1;
                        let note = context.store.get(&context.keys.todo(run)).await?;
                        let same = note.is_some_and(|entry| entry.modified == todo.modified);
                        if !same || conflicts == MAX_CONFLICTS {
                            if same {
                                self.todos.insert(run.to_owned(), todo);
                            }
                            return Ok(true);
                        }
                        together = 1;
                        left = followers(context, run, &todo).await?;
                    }
                },
                Ok(Ruling::Untrusted | Ruling::Deposed) => {
                    self.todos.insert(run.to_owned(), todo);
                    return Ok(false);
                }
                Err(BackendError::Rejected(_)) if together > 1 => {
                    // Too large together.
                    together = 1;
                    left = ready.into_iter().chain(rest).chain(set_aside).collect();
                }
                Err(BackendError::Rejected(why)) => {
                    // The others' notes must not wait for this one.
                    tracing::error!(run, why, "no store takes what comes after this run");
                    let again_ms = context.store.env().monotonic_ms() + UNREADABLE_MS;
                    self.later.insert(run.to_owned(), again_ms);
                    self.todos.insert(run.to_owned(), todo);
                    return Ok(true);
                }
                Err(error) => {
                    self.todos.insert(run.to_owned(), todo);
                    return Err(error);
                }
            }
        }
    }
}

/// The followers that are still to be decided: those that were there at the success.
async fn followers(
    context: &LeaderContext,
    run: &str,
    todo: &Todo,
) -> BackendResult<Vec<Follower>> {
    let (store, keys) = (&context.store, &context.keys);
    let (markers, _) = store
        .list(&keys.followers_of(&todo.record.job), None)
        .await?;
    let reads = markers.into_iter().filter_map(|marker| {
        let (_, id) = keys.parse_follower(&marker.key)?;
        let owed = marker.created <= todo.created && !todo.record.done.contains(&id);
        owed.then_some(async move {
            let partition = partition_of(&id, context.meta.partitions);
            let stands = read(context, partition, &id).await?;
            Ok::<_, BackendError>(Follower {
                id,
                partition,
                marker,
                stands,
            })
        })
    });
    let found: Vec<Follower> = stream::iter(reads)
        .buffered(READS_AT_ONCE)
        .try_collect()
        .await?;
    tracing::debug!(run, followers = found.len(), "following a success");
    Ok(found)
}

/// The job with the definition in force.
pub(super) async fn read(
    context: &LeaderContext,
    partition: u16,
    id: &str,
) -> BackendResult<Stands> {
    let (store, keys) = (&context.store, &context.keys);
    let seq = store.get(&keys.seq(partition, id)).await?;
    let Some(entry) = store.get(&keys.job(partition, id)).await? else {
        return Ok(Stands::Gone);
    };
    let (Ok(record), Some(seq)) = (decode::<JobRecord>(&entry.value), seq) else {
        return Ok(Stands::Unreadable);
    };
    let definition = store
        .get(&keys.def(partition, id, record.generation))
        .await?;
    let definition = definition.and_then(|d| Definition::decode(&d.value, record.created_ms).ok());
    let Some(definition) = definition.map(Arc::new) else {
        return Ok(Stands::Unreadable);
    };
    let job = Job {
        id: id.into(),
        uid: entry.created,
        modified: entry.modified,
        definitions: Definitions::from_iter([(record.generation, definition.clone())]),
        record,
    };
    let siblings = Siblings::of(store, keys, &definition.spec, partition, seq).await?;
    Ok(Stands::Job(Box::new(job), definition, siblings))
}

/// What becomes of some followers of a success; with the last ones, the note goes.
fn step(
    context: &LeaderContext,
    run: &str,
    todo: &Todo,
    followers: &[Follower],
    last: bool,
) -> Txn {
    let todo_key = context.keys.todo(run);
    let mut txn = Txn::new().require(Requirement::Modified(todo_key.clone(), todo.modified));
    txn = if last {
        txn.delete(todo_key)
    } else {
        let mut record = todo.record.clone();
        record.done.extend(followers.iter().map(|f| f.id.clone()));
        txn.put(todo_key, encode(&record))
    };
    followers.iter().fold(txn, |txn, follower| {
        decide(context, run, todo, follower, txn)
    })
}

/// Adds what becomes of one follower.
fn decide(
    context: &LeaderContext,
    run: &str,
    todo: &Todo,
    follower: &Follower,
    mut txn: Txn,
) -> Txn {
    let keys = &context.keys;
    let Stands::Job(job, definition, siblings) = &follower.stands else {
        return txn;
    };
    let job_key = keys.job(follower.partition, &follower.id);
    txn = txn.require(Requirement::Modified(job_key, job.modified));
    if !definition.spec.after.contains(&todo.record.job) {
        // A definition that could not be read left the marker behind.
        let marker = &follower.marker;
        return txn
            .require(Requirement::Modified(marker.key.clone(), marker.modified))
            .delete(marker.key.clone());
    }
    if !definition.spec.enabled {
        return txn;
    }
    let now_ms = context.clock.record_ms();
    let record = chained(job, definition, run, todo.record.hops + 1, now_ms);
    let key = AttemptKey {
        partition: follower.partition,
        job: follower.id.clone(),
        run: record.run.clone(),
        attempt: record.attempt,
    };
    if todo.record.hops >= MAX_HOPS {
        tracing::error!(
            run,
            follower = follower.id,
            "the jobs run after each other in a circle"
        );
        let ended = RunRecord {
            state: RunState::Failed,
            failed: Some(FailReason::Cancelled),
            ended_ms: Some(now_ms),
            error: Some(format!(
                "{MAX_HOPS} jobs ran after each other: `after` makes a circle"
            )),
            ..record
        };
        return siblings.consume(txn).put(keys.done(&key), encode(&ended));
    }
    if job.record.paused_at(context.clock.now_ms()).is_some() {
        let held = skipped(keys, &key, &record, SkipReason::Paused);
        return siblings.consume(txn).op(held);
    }
    siblings.create(keys, &definition.spec, &key, &record, txn)
}

/// The run of a follower.
fn chained(job: &Job, definition: &Definition, run: &str, hops: u32, now_ms: i64) -> RunRecord {
    RunRecord {
        run: run_after(&job.id, job.uid.0, run),
        cause: Some(Cause {
            run: run.to_owned(),
            hops,
        }),
        ..pending(
            job,
            definition,
            job.record.generation,
            RunKind::Chained,
            now_ms,
            now_ms,
        )
    }
}

/// `job~c-HASH`: one for each success and life of the follower.
#[must_use]
pub fn run_after(job: &str, uid: u64, success: &str) -> String {
    let seed = format!("{job}#{uid}#{success}");
    let high = fnv1a(seed.as_bytes());
    let low = fnv1a(format!("{high}#{seed}").as_bytes());
    format!("{job}~c-{high:016x}{:08x}", low >> 32)
}
