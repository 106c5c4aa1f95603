//! Writes what a run says of itself, and reads what its earlier attempts have left.
//!
//! What can go wrong: the store is away or slow (the code's end must not wait for that); an answer is
//! lost (the same request again, until it is definite); the attempt was decided otherwise (each
//! write requires its record); the checkpoint of an earlier attempt cannot be read (then the code is
//! not started: to begin anew would look the same as to have none).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;

use crate::backend::{BackendError, Revision};
use crate::env::race;
use crate::handler::Execution;
use crate::job::finish::Attempt;
use crate::job::progress::{Checkpoint, Progress, ProgressRecord, Written, write, written};
use crate::job::record::decode;
use crate::job::run::FailReason;
use crate::progress::{
    CHECKPOINT_EVERY_MS, CheckpointError, PROGRESS_EVERY_MS, Report, Reports, Save,
};
use crate::recipe::retry::Backoff;

use super::WorkerContext;
use super::execute::{Running, start_patience_ms};

/// What an attempt finds of the attempts before it.
#[derive(Debug, Default)]
pub(super) struct Left {
    standing: Option<Revision>,
    checkpoint: Option<Checkpoint>,
}

impl Left {
    /// What the code is given.
    pub(super) fn bytes(&self) -> Option<Arc<[u8]>> {
        let checkpoint = self.checkpoint.as_ref()?;
        Some(Arc::from(checkpoint.bytes.as_slice()))
    }
}

/// Reads it, as often as it takes; or how the attempt ends without having run. The attempt is
/// RUNNING: none before it writes anything any more.
pub(super) async fn find(context: &WorkerContext, running: &Running) -> Result<Left, Execution> {
    let attempt = &running.attempt;
    if attempt.record.attempt <= 1 {
        return Ok(Left::default());
    }
    let env = context.store.env();
    let too_long = env.sleep(Duration::from_millis(
        start_patience_ms(context.kill_grace_ms) + 1,
    ));
    let stopped = race(
        running.token.cancelled(),
        race(running.trust.lapsed(), too_long),
    );
    match race(read(context, attempt), stopped).await {
        // The answer may have waited for us, if we stood still.
        Either::Left(found) => running.may_start(context).and(found),
        Either::Right(Either::Left(cause)) => Err(Execution::stopped(
            cause,
            "told to stop before its checkpoint could be read; nothing was run",
        )),
        Either::Right(Either::Right(_)) => Err(Execution::failed(
            FailReason::NotStarted,
            "the run's checkpoint could not be read in time",
        )),
    }
}

async fn read(context: &WorkerContext, attempt: &Attempt) -> Result<Left, Execution> {
    let at = &attempt.key;
    let key = context.keys.progress(at.partition, &at.job, &at.run);
    let unreadable = |error: &dyn std::fmt::Display| {
        let message = format!("the run's checkpoint cannot be read: {error}; nothing was run");
        Execution::failed(FailReason::Error, message)
    };
    let mut backoff = Backoff::default();
    let entry = loop {
        match context.store.get(&key).await {
            Ok(entry) => break entry,
            Err(error @ (BackendError::Rejected(_) | BackendError::Broken(_))) => {
                return Err(unreadable(&error));
            }
            Err(_) => backoff.wait(context.store.env()).await,
        }
    };
    let Some(entry) = entry else {
        return Ok(Left::default());
    };
    let record: ProgressRecord = decode(&entry.value).map_err(|error| unreadable(&error))?;
    Ok(Left {
        standing: Some(entry.modified),
        checkpoint: record.checkpoint,
    })
}

/// Writes for one attempt, while its code runs.
pub(super) struct Recorder<'a> {
    context: &'a WorkerContext,
    attempt: &'a Attempt,
    reports: Reports,
    standing: Option<Revision>,
    progress: Option<Progress>,
    checkpoint: Option<Checkpoint>,
    /// When the last write was answered, by the monotonic clock.
    wrote_ms: Option<u64>,
}

impl<'a> Recorder<'a> {
    /// Goes on behind what was left.
    pub(super) fn new(
        context: &'a WorkerContext,
        attempt: &'a Attempt,
        reports: Reports,
        left: Left,
    ) -> Self {
        Self {
            context,
            attempt,
            reports,
            standing: left.standing,
            progress: None,
            checkpoint: left.checkpoint,
            wrote_ms: None,
        }
    }

    /// Writes until it is dropped, at the end of the code. A write that is under way then is applied
    /// before the end of the attempt, or never.
    pub(super) async fn serve(mut self) -> Infallible {
        loop {
            let save = self.next().await;
            let answer = match &save {
                Some(save) => self.save(&save.bytes).await,
                None => self.note().await,
            };
            if let Err(error) = &answer {
                tracing::warn!(run = self.attempt.key.run, %error, "a run's progress is not kept");
            }
            let fenced = answer == Err(CheckpointError::Fenced);
            if let Some(save) = save {
                // Whoever asked may have gone.
                let _ = save.answer.send(answer);
            }
            if fenced {
                return self.refuse().await;
            }
        }
    }

    /// What is to be written next, once that may be: a checkpoint, or progress alone (`None`).
    async fn next(&mut self) -> Option<Save> {
        let (wrote_ms, context) = (self.wrote_ms, self.context);
        let reported = async {
            // The other end is gone: there is no more progress.
            if self.reports.progress.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            rest(context, wrote_ms, PROGRESS_EVERY_MS).await;
        };
        let saved = async {
            match self.reports.saves.recv().await {
                Some(save) => save,
                None => std::future::pending().await,
            }
        };
        match race(saved, reported).await {
            Either::Left(save) => {
                rest(context, wrote_ms, CHECKPOINT_EVERY_MS).await;
                Some(save)
            }
            Either::Right(()) => None,
        }
    }

    async fn save(&mut self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.take_report();
        let checkpoint = Checkpoint {
            attempt: self.attempt.record.attempt,
            at_ms: self.context.clock.record_ms(),
            bytes: bytes.to_vec(),
        };
        self.checkpoint = Some(checkpoint);
        self.write().await
    }

    async fn note(&mut self) -> Result<(), CheckpointError> {
        if self.take_report() {
            self.write().await
        } else {
            Ok(())
        }
    }

    /// Whether the code has said something new.
    fn take_report(&mut self) -> bool {
        let report = self.reports.progress.borrow_and_update().clone();
        let known = self.progress.as_ref().map(|known| Report {
            fraction: known.fraction,
            note: known.note.clone(),
        });
        let new = report.filter(|report| known.as_ref() != Some(report));
        let is_new = new.is_some();
        if let Some(Report { fraction, note }) = new {
            self.progress = Some(Progress {
                fraction,
                note,
                at_ms: self.context.clock.record_ms(),
            });
        }
        is_new
    }

    async fn write(&mut self) -> Result<(), CheckpointError> {
        let WorkerContext {
            store, keys, epoch, ..
        } = self.context;
        let record = ProgressRecord {
            attempt: self.attempt.record.attempt,
            token: self.attempt.token(*epoch).map_or(0, |token| token.0),
            progress: self.progress.clone(),
            checkpoint: self.checkpoint.clone(),
            nonce: store.env().random_u64(),
        };
        loop {
            let txn = write(keys, self.attempt, self.standing, &record);
            // Not through the committer: ends of runs must not wait behind it.
            let outcome = store.settle(&txn).await;
            self.wrote_ms = Some(store.env().monotonic_ms());
            let outcome = outcome.map_err(|error| CheckpointError::Store(error.to_string()))?;
            match written(self.attempt, &record, &outcome) {
                Written::Stands(revision) => {
                    self.standing = Some(revision);
                    return Ok(());
                }
                Written::Fenced => return Err(CheckpointError::Fenced),
                // Nobody else writes it while the attempt is ours, unless by hand.
                Written::Other(standing) => {
                    tracing::warn!(
                        run = self.attempt.key.run,
                        "another hand wrote the run's progress"
                    );
                    self.standing = standing;
                }
            }
        }
    }

    /// Answers every further checkpoint at once.
    async fn refuse(mut self) -> Infallible {
        while let Some(save) = self.reports.saves.recv().await {
            let _ = save.answer.send(Err(CheckpointError::Fenced));
        }
        std::future::pending().await
    }
}

/// Waits until so long after the last write.
async fn rest(context: &WorkerContext, wrote_ms: Option<u64>, every_ms: u64) {
    let env = context.store.env();
    let until_ms = wrote_ms.map_or(0, |wrote_ms| wrote_ms + every_ms);
    let wait_ms = until_ms.saturating_sub(env.monotonic_ms());
    if wait_ms > 0 {
        env.sleep(Duration::from_millis(wait_ms)).await;
    }
}
