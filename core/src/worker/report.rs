//! How an attempt ended, on its way into the store.
//!
//! What can go wrong: the store is away for longer than the node lives; the run was decided
//! otherwise meanwhile; an answer is lost. So a result that is not taken at once also goes to the
//! node's spool, the next life of the node reports it for its former incarnation, and whoever
//! decided first wins by the same compare: the result is then kept beside the decision.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use serde::{Deserialize, Serialize};

use crate::backend::{BackendResult, Entry, Requirement, Revision, Txn, TxnOutcome};
use crate::env::{TaskHandle, race};
use crate::handler::Execution;
use crate::job::finish::{self, Attempt, End};
use crate::job::record::{RunRecord, decode, encode};
use crate::job::run::{IllegalTransition, Owner};
use crate::job::spec::JobSpec;
use crate::keys::{AttemptKey, Keys};

use super::WorkerContext;
use super::execute::{Ended, Running};

/// A result that the store has not taken after this time goes to the spool.
const SPOOL_AFTER: Duration = Duration::from_millis(200);
/// So much of an error, and of the end of an output, is kept in the store.
const MAX_TEXT_BYTES: usize = 4_096;

/// Everything that it takes to end an attempt: now, or in the node's next life.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The namespace it belongs to; revisions mean nothing in another one.
    pub cluster_id: String,
    /// Its epoch; after a restore, revisions repeat.
    pub epoch: u8,
    /// Which attempt.
    pub key: AttemptKey,
    /// Its record, RUNNING.
    pub record: RunRecord,
    /// The record's revision: the guard.
    pub modified: u64,
    /// Whose it was.
    pub owner: Owner,
    /// How it ended.
    pub execution: Execution,
    /// When, in Unix milliseconds.
    pub ended_ms: i64,
    /// The definition that a retry follows; without it there is none.
    #[serde(default, with = "shared")]
    pub spec: Option<Arc<JobSpec>>,
    /// Whether the code may still be at it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// Tells this report from another's.
    pub nonce: u64,
}

/// A definition is shared by all reports that follow it, and written into each.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::job::spec::JobSpec;

    #[allow(clippy::ref_option, reason = "what serde asks for")]
    pub(super) fn serialize<S: Serializer>(
        spec: &Option<Arc<JobSpec>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        spec.as_deref().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Arc<JobSpec>>, D::Error> {
        Ok(Option::<JobSpec>::deserialize(from)?.map(Arc::new))
    }
}

impl Report {
    fn new(context: &WorkerContext, running: &Running, ended: &Ended) -> Self {
        let spec = &running.definition.spec;
        let (execution, uncertain) = match ended {
            Ended::Surely(execution) => (execution, false),
            Ended::Perhaps(execution) => (execution, true),
        };
        Self {
            cluster_id: context.cluster_id.clone(),
            epoch: context.epoch,
            key: running.attempt.key.clone(),
            record: running.attempt.record.clone(),
            modified: running.attempt.modified.0,
            owner: running.owner.clone(),
            execution: execution.bounded(MAX_TEXT_BYTES),
            ended_ms: context.clock.record_ms(),
            spec: Some(spec.clone()),
            uncertain,
            nonce: context.store.env().random_u64(),
        }
    }

    /// What it is called in the spool.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}.{}", self.key.run, self.key.attempt)
    }

    /// The transaction that ends the attempt.
    ///
    /// # Errors
    /// [`IllegalTransition`] when the attempt was not running.
    pub fn txn(&self, keys: &Keys) -> Result<Txn, IllegalTransition> {
        let attempt = Attempt {
            key: self.key.clone(),
            record: self.record.clone(),
            modified: Revision(self.modified),
        };
        let end = End {
            now_ms: self.ended_ms,
            nonce: self.nonce,
            epoch: self.epoch,
            execution: Some(&self.execution),
            error: None,
            spec: self.spec.as_deref(),
            uncertain: self.uncertain,
            late: false,
        };
        let event = finish::finished(&self.owner, &self.execution);
        finish::end(keys, &attempt, &event, &end)
    }
}

/// Makes the end durable, however long the store is away. Comes back only then: whoever held the
/// attempt no more would take it for one that was never started, and have it run again.
pub async fn report(context: &WorkerContext, running: &Running, ended: &Ended) {
    let mut report = Report::new(context, running, ended);
    if deliver(context, &report, false).await {
        return;
    }
    // Too large for this store, perhaps: the bare fact must do.
    report.execution = report.execution.bounded(0);
    if !deliver(context, &report, true).await {
        tracing::error!(
            run = report.key.run,
            "the store refuses the end of this run: held as RUNNING until this node ends"
        );
        std::future::pending::<()>().await;
    }
}

/// Sends what an earlier life of this node could not. The tasks go on beside everything else, and
/// what they have not done when the node ends is still in the spool.
pub async fn replay(context: &Arc<WorkerContext>) -> Vec<TaskHandle> {
    let Some(spool) = &context.spool else {
        return Vec::new();
    };
    let kept = match spool.all().await {
        Ok(kept) => kept,
        Err(error) => {
            tracing::error!(%error, "cannot read the spool of results; what is in it stays there");
            return Vec::new();
        }
    };
    let mut tasks = Vec::new();
    for (name, bytes) in kept {
        let report: Report = match decode(&bytes) {
            Ok(report) => report,
            Err(error) => {
                tracing::error!(name, %error, "a result in the spool cannot be read; it stays there");
                continue;
            }
        };
        if (&report.cluster_id, report.epoch) != (&context.cluster_id, context.epoch) {
            tracing::error!(
                name,
                "a result in the spool is of another cluster, or of the time before a restore; it stays there"
            );
            continue;
        }
        tracing::info!(
            run = report.key.run,
            "reporting a result of an earlier life"
        );
        let context = context.clone();
        let task = context.clone();
        tasks.push(context.store.env().spawn(
            "replay",
            Box::pin(async move {
                deliver(&task, &report, true).await;
            }),
        ));
    }
    tasks
}

/// Whether the result is in the store now. `spooled`: it is in the spool already, or need not be.
async fn deliver(context: &WorkerContext, report: &Report, spooled: bool) -> bool {
    let run = &report.key.run;
    let txn = match report.txn(&context.keys) {
        Ok(txn) => txn,
        Err(illegal) => {
            tracing::error!(run, %illegal, "cannot report");
            return false;
        }
    };
    let mut spooled = spooled;
    let settled = async {
        let outcome = context.committer.settle(txn).await;
        conclude(context, report, outcome).await
    };
    let mut settled = pin!(settled);
    let concluded = if spooled {
        settled.await
    } else {
        match race(settled.as_mut(), context.store.env().sleep(SPOOL_AFTER)).await {
            Either::Left(concluded) => concluded,
            Either::Right(()) => {
                spooled = keep(context, report).await;
                settled.await
            }
        }
    };
    if spooled
        && concluded
        && let Some(spool) = &context.spool
        && let Err(error) = spool.remove(&report.name()).await
    {
        // It will be reported again, and found decided.
        tracing::warn!(run, %error, "a result stays in the spool although it was reported");
    }
    concluded
}

/// Puts the report where it survives this process.
async fn keep(context: &WorkerContext, report: &Report) -> bool {
    let Some(spool) = &context.spool else {
        return false;
    };
    let kept = spool.put(&report.name(), encode(report)).await;
    if let Err(error) = &kept {
        tracing::error!(run = report.key.run, %error, "cannot keep the result in the spool; it is lost if this node ends before the store takes it");
    }
    kept.is_ok()
}

/// Whether the result is in the store now, as the run's end or beside it.
async fn conclude(
    context: &WorkerContext,
    report: &Report,
    outcome: BackendResult<TxnOutcome>,
) -> bool {
    let run = &report.key.run;
    let attempt = report.key.attempt;
    match outcome {
        Ok(TxnOutcome::Applied { .. }) => {
            match &report.execution.failure {
                None => tracing::debug!(run, attempt, "run succeeded"),
                Some(failure) => tracing::warn!(
                    run,
                    attempt,
                    reason = failure.reason.as_str(),
                    error = failure.message,
                    "run failed"
                ),
            }
            true
        }
        Ok(TxnOutcome::Conflict { seen }) => {
            let done = seen.into_iter().nth(1).flatten();
            if is_ours(done.as_ref(), report.nonce) {
                return true;
            }
            tracing::warn!(run, "the run was decided otherwise before its result came");
            let kept = keep_late(context, report, done.as_ref()).await;
            if let Err(error) = &kept {
                tracing::error!(run, %error, "the late result is lost");
            }
            kept.is_ok()
        }
        Err(error) => {
            tracing::error!(run, %error, "the store refuses the result");
            false
        }
    }
}

/// Whether an earlier copy of our own write won.
fn is_ours(done: Option<&Entry>, nonce: u64) -> bool {
    done.and_then(|entry| decode::<RunRecord>(&entry.value).ok())
        .is_some_and(|record| record.nonce == nonce)
}

/// No observed result vanishes: it stays beside the record that decided the run.
async fn keep_late(
    context: &WorkerContext,
    report: &Report,
    done: Option<&Entry>,
) -> BackendResult<()> {
    let Some(done) = done else { return Ok(()) };
    let text = match &report.execution.failure {
        None => "SUCCESS".to_owned(),
        Some(failure) => format!("FAILED {}: {}", failure.reason, failure.message),
    };
    let late = context.keys.late(&report.key);
    let txn = Txn::new()
        .require(Requirement::Absent(late.clone()))
        .require(Requirement::Created(done.key.clone(), done.created))
        .put(late, encode(&Late { result: text }));
    // A late copy writes the same text again, or finds the record pruned and writes nothing.
    context.store.settle(&txn).await.map(|_| ())
}

/// What a record under `late/` holds.
#[derive(Debug, Serialize, Deserialize)]
pub struct Late {
    /// The result, in words.
    pub result: String,
}
