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
use crate::recipe::session::Trust;

use super::WorkerContext;
use super::report::report;

/// An attempt that is RUNNING and ours.
pub struct Running {
    /// The attempt, RUNNING.
    pub attempt: Attempt,
    /// What it follows.
    pub definition: Arc<Definition>,
    /// Whose it is.
    pub owner: Owner,
    /// Its session's trust.
    pub trust: Trust,
    /// Stops it.
    pub canceller: Arc<Canceller>,
    /// Told to stop.
    pub token: CancelToken,
}

/// Runs the attempt and reports its end.
pub async fn execute(context: Arc<WorkerContext>, executors: Arc<Executors>, running: Running) {
    // RUNNING is durable, but if nobody may rely on our session any more, somebody may be about to
    // decide that we are lost: better not to start what will count as lost.
    let execution = if running.trust.holds() {
        let run_context = run_context(&context, &running);
        let code = start(&executors, &running.definition, run_context);
        supervise(&context, &running, code).await
    } else {
        Ended::Surely(Execution::failed(
            FailReason::NotStarted,
            "the worker lost its session before it started",
        ))
    };
    report(&context, &running, &execution).await;
}

fn run_context(context: &WorkerContext, running: &Running) -> RunContext {
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
    match (&executors.commands, command_line(definition)) {
        (Some(commands), Some(command)) => {
            let commands = commands.clone();
            Box::pin(async move {
                match AssertUnwindSafe(commands.execute(context, command))
                    .catch_unwind()
                    .await
                {
                    Ok(execution) => execution,
                    Err(panic) => Execution::failed(FailReason::Panic, panic_text(panic.as_ref())),
                }
            })
        }
        _ => ready(FailReason::Error, "this node cannot run it".to_owned()),
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
    mut code: BoxFuture<'static, Execution>,
) -> Ended {
    let env = context.store.env();
    let spec = &running.definition.spec;
    let cause = match race(&mut code, stop_cause(env, running)).await {
        Either::Left(execution) => return Ended::Surely(obeyed(running, execution)),
        Either::Right(cause) => cause,
    };
    running.canceller.stop(cause);
    let is_handler = spec.run.handler.is_some();
    let patience_ms = if is_handler {
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
            // A handler is a future: dropped, it runs no more.
            if is_handler {
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
