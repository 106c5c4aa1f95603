//! The unfinished runs of a job whose policy looks at them: `overlap: queue` and `replace`.
//!
//! What can go wrong: a run is created, retried, claimed or ended between the reading and the commit.
//! Runs of a job are created by fires, by changes of the job, and by what consumes the job's `seq`; a
//! retry takes the place of the attempt that it follows. So:
//!
//! * That there is *room* is proven by `seq`, read before the runs and required unchanged (and
//!   consumed, so that fires and triggers meet): the runs can only have become fewer.
//! * That the queue is *full* is proven by the attempts themselves: so many of them are there still.
//! * That *all* others are told to go is proven by `seq` and by each of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::try_join_all;

use crate::backend::{BackendResult, Entry, Op, PageLimit, Requirement, Txn, Write, limits};
use crate::job::Definition;
use crate::job::finish::{self, Attempt, End};
use crate::job::record::{RunRecord, SeqRecord, decode, encode};
use crate::job::run::{FailReason, RunEvent, RunState, SkipReason};
use crate::job::spec::{JobSpec, MAX_SIBLINGS, Overlap};
use crate::keys::{AttemptKey, Keys};
use crate::plan::Decision;
use crate::recipe::retry::Store;

use super::partition::Partition;

/// No policy looks at more than so many.
const MAX_READ: usize = 2 * MAX_SIBLINGS as usize;

/// And so many bytes: others share the request.
const MAX_BYTES: usize = limits::MAX_REQUEST_BYTES / 2;
/// A replacement has room for so many writes: the ends of as many first attempts.
const MAX_REPLACING: usize = 3 * MAX_SIBLINGS as usize;

/// Whether the job's decisions depend on its unfinished runs in a way that must be read.
#[must_use]
pub fn looks(spec: &JobSpec) -> bool {
    matches!(spec.overlap, Overlap::Queue | Overlap::Replace)
}

/// The unfinished runs of a job, as far as its policy can ask, and the proof that there are no more.
#[derive(Clone, Debug)]
pub struct Siblings {
    seq: Entry,
    alive: Vec<Entry>,
}

impl Siblings {
    /// Reads them: first `seq`, then the runs. `None` when there is no such job (any more).
    ///
    /// # Errors
    /// Those of the store.
    pub async fn read(
        store: &Store,
        keys: &Keys,
        partition: u16,
        job: &str,
    ) -> BackendResult<Option<Self>> {
        match store.get(&keys.seq(partition, job)).await? {
            Some(seq) => Self::behind(store, keys, partition, job, seq)
                .await
                .map(Some),
            None => Ok(None),
        }
    }

    /// Those that the job's policy looks at, when `seq` was read before.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn of(
        store: &Store,
        keys: &Keys,
        spec: &JobSpec,
        partition: u16,
        seq: Entry,
    ) -> BackendResult<Self> {
        if looks(spec) {
            Self::behind(store, keys, partition, &spec.id, seq).await
        } else {
            Ok(Self::unread(seq))
        }
    }

    /// Why a person's run has to wait for another time, if it has.
    #[must_use]
    pub fn refuses(&self, keys: &Keys, spec: &JobSpec) -> Option<String> {
        let full = spec.overlap == Overlap::Queue && self.full(spec).is_some();
        full.then(|| {
            format!(
                "the queue of job `{}` is full: {}",
                spec.id,
                self.names(keys)
            )
        })
    }

    /// Reads the runs, when `seq` was read before.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn behind(
        store: &Store,
        keys: &Keys,
        partition: u16,
        job: &str,
        seq: Entry,
    ) -> BackendResult<Self> {
        let mut alive: Vec<Entry> = Vec::new();
        let (mut rest, mut at) = (keys.runs_of(partition, job), None);
        while let Some(entries) = MAX_READ.checked_sub(alive.len()).filter(|n| *n > 0) {
            let limit = PageLimit {
                entries,
                ..PageLimit::default()
            };
            // A page may be short of entries because they are large.
            let page = store.range(&rest, limit, at).await?;
            at = Some(page.revision);
            alive.extend(page.entries);
            match alive.last() {
                Some(last) if page.more => rest = rest.after(&last.key),
                _ => break,
            }
        }
        Ok(Self { seq, alive })
    }

    /// Those that fill the queue, if it is full.
    #[must_use]
    pub fn full(&self, spec: &JobSpec) -> Option<&[Entry]> {
        self.alive.get(..spec.queue_capacity())
    }

    /// Of a job whose policy does not look at them.
    #[must_use]
    pub fn unread(seq: Entry) -> Self {
        Self::with(seq, Vec::new())
    }

    /// As they were read: first `seq`, then the runs.
    #[must_use]
    pub fn with(seq: Entry, alive: Vec<Entry>) -> Self {
        Self { seq, alive }
    }

    /// The job's counter.
    #[must_use]
    pub fn seq(&self) -> &Entry {
        &self.seq
    }

    /// The unfinished runs.
    #[must_use]
    pub fn alive(&self) -> &[Entry] {
        &self.alive
    }

    /// What each of them does, for people.
    #[must_use]
    pub fn names(&self, keys: &Keys) -> String {
        let attempts = self.alive.iter().filter_map(|e| Attempt::read(keys, e));
        let (waiting, executing): (Vec<_>, Vec<_>) =
            attempts.partition(|attempt| attempt.record.state == RunState::Pending);
        let told = |what: &str, some: &[Attempt]| {
            let names: Vec<&str> = some.iter().map(|a| a.key.run.as_str()).collect();
            (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")))
        };
        let parts = [told("running", &executing), told("waiting", &waiting)];
        parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// A creation of a run of the job: nothing else has been created since these were read.
    #[must_use]
    pub fn consume(&self, txn: Txn) -> Txn {
        let seq: SeqRecord = decode(&self.seq.value).unwrap_or_default();
        let next = SeqRecord { seq: seq.seq + 1 };
        txn.require(Requirement::Modified(
            self.seq.key.clone(),
            self.seq.modified,
        ))
        .put(self.seq.key.clone(), encode(&next))
    }

    /// The proof that the queue is full.
    #[must_use]
    pub fn prove_full(full: &[Entry], txn: Txn) -> Txn {
        full.iter().fold(txn, |txn, entry| {
            txn.require(Requirement::Created(entry.key.clone(), entry.created))
        })
    }

    /// Adds to `txn` the creation of a run outside the cursor, or the record that says why there is
    /// none, as the job's policy wants it.
    #[must_use]
    pub fn create(
        &self,
        keys: &Keys,
        spec: &JobSpec,
        key: &AttemptKey,
        record: &RunRecord,
        txn: Txn,
    ) -> Txn {
        let now_ms = record.created_ms;
        let txn = self.consume(txn);
        let run = Write::put(keys.run(key), encode(record));
        let skip = || skipped(keys, key, record, SkipReason::Overlap);
        match (spec.overlap, self.full(spec)) {
            (Overlap::Skip, _) => txn.op(Op::Choose {
                require: vec![Requirement::Empty(keys.runs_of(key.partition, &key.job))],
                then: vec![run],
                otherwise: vec![skip()],
            }),
            (Overlap::Queue, Some(full)) => Self::prove_full(full, txn).op(skip()),
            (Overlap::Replace, _) => self.replace(keys, txn.op(run), &key.run, now_ms),
            (Overlap::Allow | Overlap::Queue, _) => txn.op(run),
        }
    }

    /// Tells all of them to go, for the run `by`: what waits ends here, what a worker has is
    /// cancelled. At most [`MAX_SIBLINGS`] of them, those that execute first: more there are only
    /// when an edit has just brought this policy to a job with many unfinished runs.
    #[must_use]
    pub fn replace(&self, keys: &Keys, txn: Txn, by: &str, now_ms: i64) -> Txn {
        let mut ending = Vec::new();
        let mut waiting = Vec::new();
        for entry in &self.alive {
            match Attempt::read(keys, entry) {
                Some(attempt) if attempt.record.state == RunState::Pending => {
                    waiting.push((entry, Some(attempt)));
                }
                // One that cannot be read is told to go as well: its key says which run it is.
                _ => ending.push((entry, None)),
            }
        }
        ending.extend(waiting);
        ending.truncate(MAX_SIBLINGS as usize);
        let (before, mut left) = (txn.ops.len(), ending.len());
        ending.into_iter().fold(txn, |txn, (entry, waiting)| {
            left -= 1;
            // The end of a retry is wider, and one with a large payload longer. What does not fit in
            // is cancelled: whoever claims it, or the leader, ends it then.
            let room = MAX_REPLACING + before - left - txn.ops.len();
            let gone = waiting
                .and_then(|attempt| replaced(keys, &attempt, by, now_ms))
                .filter(|gone| gone.ops.len() <= room)
                .filter(|gone| limits::txn_bytes(&txn) + limits::txn_bytes(gone) <= MAX_BYTES);
            match (gone, keys.parse_attempt(&entry.key)) {
                (Some(gone), _) => Txn {
                    require: [txn.require, gone.require].concat(),
                    ops: [txn.ops, gone.ops].concat(),
                },
                (None, Some(attempt)) => txn
                    .require(Requirement::Created(entry.key.clone(), entry.created))
                    .put(
                        keys.cancel(&attempt.run),
                        encode(&serde_json::json!({ "replaced_by": by })),
                    ),
                (None, None) => txn,
            }
        })
    }
}

/// The record that says why a run is not made.
#[must_use]
pub fn skipped(keys: &Keys, key: &AttemptKey, run: &RunRecord, reason: SkipReason) -> Write {
    let record = RunRecord {
        attempt: 0,
        state: RunState::Skipped,
        skipped: Some(reason),
        ended_ms: Some(run.created_ms),
        late_at_ms: None,
        ..run.clone()
    };
    let key = AttemptKey {
        attempt: 0,
        ..key.clone()
    };
    Write::put(keys.done(&key), encode(&record))
}

/// The end of an attempt that nobody has claimed.
fn replaced(keys: &Keys, attempt: &Attempt, by: &str, now_ms: i64) -> Option<Txn> {
    let end = End {
        now_ms,
        error: Some(format!("replaced by {by}")),
        ..End::default()
    };
    let event = RunEvent::Abandon(FailReason::Cancelled);
    finish::end(keys, attempt, &event, &end).ok()
}

/// The unfinished runs of each job that the decisions ask for.
pub type Known = BTreeMap<Arc<str>, Siblings>;

/// Reads what the decisions depend on. `None` when a job of theirs is gone: the view is behind.
///
/// # Errors
/// Those of the store.
pub async fn known(
    store: &Store,
    keys: &Keys,
    partition: &Partition,
    decisions: &[(Arc<str>, Decision)],
) -> BackendResult<Option<Known>> {
    let asked = decisions.iter().filter(|(id, decision)| {
        matches!(decision, Decision::Run { .. })
            && definition(partition, id, decision).is_some_and(|d| looks(&d.spec))
    });
    let reads = asked.map(|(id, _)| async move {
        let read = Siblings::read(store, keys, partition.number, id).await?;
        Ok(read.map(|siblings| (id.clone(), siblings)))
    });
    Ok(try_join_all(reads).await?.into_iter().collect())
}

/// The definition under which an instant is decided.
#[must_use]
pub fn definition<'a>(
    partition: &'a Partition,
    id: &Arc<str>,
    decision: &Decision,
) -> Option<&'a Arc<Definition>> {
    let (Decision::Run { generation, .. } | Decision::Skip { generation, .. }) = decision;
    partition.jobs.get(id)?.definitions.get(*generation)
}
