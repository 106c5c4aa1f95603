//! Running what comes after: `after` in a job's definition.
//!
//! The transaction that ends a run well leaves a note under `todo/` when some job runs after it. The
//! leader works it off, one follower a transaction: it consumes the note (which says who is done)
//! and the follower's `seq`, requires the follower as it was read, and makes the run or the record
//! that says why there is none. So each success has one decision for each job that followed then,
//! whoever leads, and however often a request is delivered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::backend::{BackendResult, Entry, Event, Requirement, Revision, Txn};
use crate::control::types::RunKind;
use crate::job::record::{Cause, JobRecord, RunRecord, TodoRecord, decode, encode};
use crate::job::run::{FailReason, RunState, SkipReason};
use crate::job::{Definition, Job};
use crate::keys::{AttemptKey, Keys, fnv1a, partition_of};
use crate::recipe::view::ViewEvent;

use super::LeaderContext;
use super::authority::Authority;
use super::fire::pending;
use super::siblings::{Siblings, skipped};

/// A success that so many others led to is followed by nothing: the jobs run in a circle. (A circle
/// is refused when it is defined; two definitions that meet can make one all the same.)
pub const MAX_HOPS: u32 = 32;
/// A follower that cannot be read is looked at again after so long.
const UNREADABLE_MS: u64 = 30_000;
/// Followers that are run in one request; one with `overlap: replace` is as wide as it may be.
const STEPS_A_REQUEST: usize = 8;

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

    /// Works off what there is.
    ///
    /// # Errors
    /// Those of the store; nothing is lost, the rest is done at the next tick.
    pub async fn tick(
        &mut self,
        context: &LeaderContext,
        authority: &Authority,
    ) -> BackendResult<()> {
        let now_ms = context.store.env().monotonic_ms();
        self.later
            .retain(|run, at| self.todos.contains_key(run) && *at > now_ms);
        // Once round: what conflicts is read again by the view, and done at the next tick.
        let mut rest: BTreeSet<String> = self.todos.keys().cloned().collect();
        rest.retain(|run| !self.later.contains_key(run));
        while !rest.is_empty() {
            let mut txns = Vec::new();
            let mut runs = Vec::new();
            // One decision a follower and request: the second one depends on the first.
            let mut busy = BTreeSet::new();
            for run in rest.iter().take(STEPS_A_REQUEST) {
                let Some(todo) = self.todos.get(run) else {
                    runs.push(run.clone());
                    continue;
                };
                let followers = followers(context, run, todo).await?;
                if followers.is_empty() {
                    let key = context.keys.todo(run);
                    let over =
                        Txn::new().require(Requirement::Modified(key.clone(), todo.modified));
                    txns.push(over.delete(key));
                    runs.push(run.clone());
                    continue;
                }
                let readable = |f: &&Follower| !matches!(f.stands, Stands::Unreadable);
                let Some(first) = followers.iter().find(readable) else {
                    let ids: Vec<&str> = followers.iter().map(|f| f.id.as_str()).collect();
                    tracing::error!(
                        run,
                        ?ids,
                        "cannot read what comes after this run; apply the jobs again"
                    );
                    self.later.insert(run.clone(), now_ms + UNREADABLE_MS);
                    runs.push(run.clone());
                    continue;
                };
                if busy.insert(first.id.clone()) {
                    let last = followers.len() == 1;
                    txns.push(step(context, run, todo, first, last));
                    runs.push(run.clone());
                }
            }
            for run in &runs {
                rest.remove(run);
            }
            if txns.is_empty() {
                continue;
            }
            // The view brings the notes that were rewritten, and those of others.
            if !authority.commit_each(&txns).await? {
                return Ok(());
            }
        }
        Ok(())
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
    let mut found = Vec::new();
    for marker in markers {
        let Some((_, id)) = keys.parse_follower(&marker.key) else {
            continue;
        };
        if marker.created > todo.created || todo.record.done.contains(&id) {
            continue;
        }
        let partition = partition_of(&id, context.meta.partitions);
        let stands = read(context, partition, &id).await?;
        found.push(Follower {
            id,
            partition,
            marker,
            stands,
        });
    }
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
        definitions: BTreeMap::from([(record.generation, definition.clone())]),
        record,
    };
    let siblings = Siblings::of(store, keys, &definition.spec, partition, seq).await?;
    Ok(Stands::Job(Box::new(job), definition, siblings))
}

/// What becomes of one follower of a success.
fn step(context: &LeaderContext, run: &str, todo: &Todo, follower: &Follower, last: bool) -> Txn {
    let keys = &context.keys;
    let todo_key = keys.todo(run);
    let mut txn = Txn::new().require(Requirement::Modified(todo_key.clone(), todo.modified));
    txn = if last {
        txn.delete(todo_key)
    } else {
        let mut record = todo.record.clone();
        record.done.push(follower.id.clone());
        txn.put(todo_key, encode(&record))
    };
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
