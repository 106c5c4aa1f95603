//! One attempt: run the user's code, watch it, and report how it ended.
//!
//! What can go wrong: the code hangs, panics, ignores that it was told to stop; the session is lost
//! while it runs; the store is away when it ends. Nothing of this may lose the result, and nothing
//! may start the code twice.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Either;

use crate::cancel::{CancelToken, Canceller, StopCause};
use crate::env::{BoxFuture, SharedEnv, race};
use crate::handler::{CommandLine, Execution, Executors, RunContext};
use crate::job::Definition;
use crate::job::finish::Attempt;
use crate::job::run::{FailReason, Owner};
use crate::progress::Reporter;
use crate::recipe::session::Trust;

use super::WorkerContext;
use super::recorder::{self, Recorder};
use super::report::report;

/// An attempt that is RUNNING and ours.
pub struct Running {
    /// The attempt, RUNNING.
    pub attempt: Attempt,
    /// What it follows.
    pub definition: Arc<Definition>,
    /// Whose it is.
    pub owner: Owner,
    /// No later than the time from which the leader counts its time limit, by the monotonic clock.
    pub begun_ms: u64,
    /// Its session's trust.
    pub trust: Trust,
    /// Stops it.
    pub canceller: Arc<Canceller>,
    /// Told to stop.
    pub token: CancelToken,
}

impl Running {
    /// Whether the code may start now, or how the attempt ends without. RUNNING is durable, but:
    ///
    /// * If nobody may rely on our session any more, somebody may be about to decide that we are lost.
    /// * If it took long to hear that it is RUNNING (or to read its checkpoint), the leader would end
    ///   it by the time limit in its record, while the code still has some of its own.
    pub(super) fn may_start(&self, context: &WorkerContext) -> Result<(), Execution> {
        let unstarted = |why: &str| Execution::failed(FailReason::NotStarted, why);
        if !self.trust.holds() {
            return Err(unstarted("the worker lost its session before it started"));
        }
        let waited_ms = context.store.env().monotonic_ms() - self.begun_ms;
        if waited_ms > start_patience_ms(context.kill_grace_ms) {
            return Err(unstarted("the store took too long before it could start"));
        }
        Ok(())
    }
}

/// How long it may take from the request to start an attempt until its code starts. The leader waits
/// so much longer than a command may need to be stopped when its time is up.
pub(super) fn start_patience_ms(kill_grace_ms: u64) -> u64 {
    kill_grace_ms.max(1_000)
}

/// Runs the attempt and reports its end.
pub async fn execute(context: Arc<WorkerContext>, executors: Arc<Executors>, running: Running) {
    let execution = match running.may_start(&context) {
        Ok(()) => {
            let code = Box::pin(resume(&context, &executors, &running));
            supervise(&context, &running, code).await
        }
        Err(unstarted) => Ended::Surely(unstarted),
    };
    report(&context, &running, &execution).await;
}

/// Finds out from where the code goes on, and lets it run while what it says of itself is written.
async fn resume(context: &WorkerContext, executors: &Executors, running: &Running) -> Execution {
    let left = match recorder::find(context, running).await {
        Ok(left) => left,
        Err(unstarted) => return unstarted,
    };
    let (reporter, reports) = Reporter::new();
    let run_context = run_context(context, running, reporter, left.bytes());
    let code = start(executors, &running.definition, run_context);
    let recorder = Recorder::new(context, &running.attempt, reports, left);
    match race(code, recorder.serve()).await {
        Either::Left(execution) => execution,
        Either::Right(never) => match never {},
    }
}

fn run_context(
    context: &WorkerContext,
    running: &Running,
    reporter: Reporter,
    resume_from: Option<Arc<[u8]>>,
) -> RunContext {
    let record = &running.attempt.record;
    let spec = &running.definition.spec;
    RunContext {
        job_id: record.job.clone(),
        run_id: record.run.clone(),
        attempt: record.attempt,
        shard: record.shard.as_ref().map(|shard| shard.index),
        shards: record.shard.as_ref().map(|shard| shard.total),
        scheduled_at_ms: record.scheduled_ms,
        fencing_token: running
            .attempt
            .token(context.epoch)
            .unwrap_or(crate::handler::FencingToken(0)),
        payload: record
            .payload
            .clone()
            .unwrap_or_else(|| spec.payload.clone()),
        trace_id: record.trace_id(),
        timeout_ms: spec.timeout.ms(),
        kill_grace_ms: context.kill_grace_ms,
        cancel: running.token.clone(),
        fence: spec.is_fenced().then(|| running.trust.clone()),
        reporter,
        resume_from,
    }
}

/// The user's code as a future that never panics.
fn start(
    executors: &Executors,
    definition: &Definition,
    context: RunContext,
) -> BoxFuture<'static, Execution> {
    let run = &definition.spec.run;
    if let Some(name) = &run.handler {
        let Some(handler) = executors.handlers.get(name).cloned() else {
            return ready(FailReason::NoHandler, format!("no handler `{name}` here"));
        };
        return Box::pin(async move {
            match AssertUnwindSafe(handler.run(context)).catch_unwind().await {
                Ok(Ok(())) => Execution::success(),
                Ok(Err(error)) => Execution::failed(FailReason::Error, error.to_string()),
                Err(panic) => Execution::failed(FailReason::Panic, panic_text(panic.as_ref())),
            }
        });
    }
    if let (Some(http), Some(call)) = (&executors.http, &run.http) {
        let (http, call) = (http.clone(), call.clone());
        return Box::pin(caught(async move { http.execute(context, call).await }));
    }
    match (&executors.commands, command_line(definition)) {
        (Some(commands), Some(command)) => {
            let commands = commands.clone();
            Box::pin(caught(
                async move { commands.execute(context, command).await },
            ))
        }
        _ => ready(FailReason::Error, "this node cannot run it".to_owned()),
    }
}

/// An executor is ours; a panic in it ends the run all the same, and nothing else.
async fn caught(code: impl Future<Output = Execution>) -> Execution {
    match AssertUnwindSafe(code).catch_unwind().await {
        Ok(execution) => execution,
        Err(panic) => Execution::failed(FailReason::Panic, panic_text(panic.as_ref())),
    }
}

/// The command of a definition, if it has one.
#[must_use]
pub fn command_line(definition: &Definition) -> Option<CommandLine> {
    let run = &definition.spec.run;
    Some(CommandLine::new(run.command.as_ref()?, run.env.clone()))
}

fn ready(reason: FailReason, message: String) -> BoxFuture<'static, Execution> {
    Box::pin(std::future::ready(Execution::failed(reason, message)))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into());
    format!("panic: {text}")
}

/// How an execution ended, and whether it has.
pub enum Ended {
    /// Nothing of it runs any more.
    Surely(Execution),
    /// It was given up: it may be running still, so nothing may be started beside it unless the job
    /// allows that.
    Perhaps(Execution),
}

/// How much longer than its grace a command's executor may take to be asked, to be killed, and to be
/// taken over when its supervisor is wedged.
pub const COMMAND_PATIENCE_MS: u64 = 20_000;

/// Waits for the code; tells it to stop when it must, and gives it up when it does not.
async fn supervise(
    context: &WorkerContext,
    running: &Running,
    mut code: BoxFuture<'_, Execution>,
) -> Ended {
    let env = context.store.env();
    let spec = &running.definition.spec;
    let cause = match race(&mut code, stop_cause(env, running)).await {
        Either::Left(execution) => return Ended::Surely(obeyed(running, execution)),
        Either::Right(cause) => cause,
    };
    running.canceller.stop(cause);
    let is_handler = spec.run.handler.is_some();
    // A future and not a process: dropped, it runs no more.
    let is_ours = is_handler || spec.run.http.is_some();
    let patience_ms = if is_ours {
        context.kill_grace_ms
    } else {
        context.kill_grace_ms + COMMAND_PATIENCE_MS
    };
    match race(code, env.sleep(Duration::from_millis(patience_ms))).await {
        Either::Left(Execution {
            failure: Some(failure),
            ..
        }) if is_handler => Ended::Surely(Execution::stopped(cause, failure.message)),
        Either::Left(execution) => Ended::Surely(execution),
        Either::Right(()) => {
            let message = format!("it did not stop within {patience_ms} ms after it was told to");
            let execution = Execution::stopped(cause, message);
            if is_ours {
                Ended::Surely(execution)
            } else {
                Ended::Perhaps(execution)
            }
        }
    }
}

/// A handler that obeys at once ends in the very step in which it is told that its run is cancelled;
/// it was stopped all the same, and did not fail by itself.
fn obeyed(running: &Running, execution: Execution) -> Execution {
    let is_handler = running.definition.spec.run.handler.is_some();
    match (running.token.cause(), execution.failure) {
        (Some(cause @ StopCause::Cancelled), Some(failure)) if is_handler => {
            Execution::stopped(cause, failure.message)
        }
        (_, failure) => Execution {
            failure,
            ..execution
        },
    }
}

/// Completes when the code must stop.
async fn stop_cause(env: &SharedEnv, running: &Running) -> StopCause {
    let spec = &running.definition.spec;
    let timeout = env.sleep(Duration::from_millis(spec.timeout.ms()));
    let fence = async {
        if !spec.is_fenced() {
            return std::future::pending().await;
        }
        running.trust.lapsed().await;
    };
    match race(running.token.cancelled(), race(timeout, fence)).await {
        Either::Left(cause) => cause,
        Either::Right(Either::Left(())) => StopCause::Timeout,
        Either::Right(Either::Right(())) => StopCause::Fenced,
    }
}
