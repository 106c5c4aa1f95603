//! What runs: handlers written in Rust, and the seams behind which commands are executed and URLs
//! called.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::cancel::{CancelToken, StopCause};
use crate::job::run::FailReason;
use crate::job::spec::{CommandSpec, HttpSpec};
use crate::progress::{CheckpointError, Reporter};
use crate::recipe::session::Trust;

/// Proof of order for whatever the run writes to: strictly increasing over the attempts of a job
/// and over the whole namespace. A receiver that keeps the largest token it has seen and refuses
/// smaller ones is safe from a worker that was paused and wakes late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(pub u64);

impl FencingToken {
    /// `epoch x 2^56 + revision x 2^7 + place`: the place tells runs of one batch apart, the epoch
    /// keeps the order across a restored store, whose revisions repeat.
    #[must_use]
    pub fn new(epoch: u8, running_revision: u64, place: u8) -> Self {
        Self((u64::from(epoch) << 56) | (running_revision << 7) | u64::from(place & 0x7f))
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a run knows of itself.
#[derive(Clone, Debug)]
pub struct RunContext {
    /// The job.
    pub job_id: String,
    /// The fire; the same for all its attempts, so it serves as idempotency key.
    pub run_id: String,
    /// Counts from 1.
    pub attempt: u32,
    /// Which part of a run this is, counted from 0; none for a run that is not in parts.
    pub shard: Option<u32>,
    /// How many parts that run has.
    pub shards: Option<u32>,
    /// The instant that this run stands for, in Unix milliseconds. For a run on demand, the
    /// moment of the request.
    pub scheduled_at_ms: i64,
    /// Pass it along with every write to other systems.
    pub fencing_token: FencingToken,
    /// The job's payload, or the one given with the trigger.
    pub payload: serde_json::Value,
    /// 32 hex digits, to join logs and traces.
    pub trace_id: String,
    /// Time limit of the execution in milliseconds.
    pub timeout_ms: u64,
    /// How long a run that was told to stop may take before it is stopped by force.
    pub kill_grace_ms: u64,
    /// Fires when the run should stop.
    pub cancel: CancelToken,
    /// Present when the run must not outlive its worker's session, because somebody could start
    /// it again beside this one.
    pub fence: Option<Trust>,
    /// Takes what the run says of itself.
    pub reporter: Reporter,
    /// The last checkpoint of the attempts before this one.
    pub resume_from: Option<Arc<[u8]>>,
}

impl RunContext {
    /// Says how far the run has come: a fraction from 0 to 1 (what lies outside is moved to the
    /// nearer end, what is no number is ignored), and a note of at most 200 characters.
    ///
    /// Does not wait and cannot fail. The latest of what was said in two seconds is written; what
    /// was said just before the end may never be.
    pub fn progress(&self, fraction: f64, note: &str) {
        self.reporter.progress(fraction, note);
    }

    /// Keeps at most 64 KiB from which a next attempt of this run can go on.
    ///
    /// `Ok` means that it is durable: every later attempt is given these bytes or later ones.
    /// Whatever else happens (an error, the future dropped, the node gone) leaves open whether it
    /// was kept. A run's checkpoints are written at least a second apart; an earlier call waits, and
    /// while the store is away, so does each call. It can also be called after the run was told to
    /// stop, for as long as the grace lasts.
    ///
    /// # Errors
    /// [`CheckpointError`]. After [`CheckpointError::Fenced`] the code should stop: another attempt
    /// may run already.
    pub async fn checkpoint(&self, bytes: &[u8]) -> Result<(), CheckpointError> {
        self.reporter.checkpoint(bytes).await
    }

    /// What the attempts before this one kept last. `None` in a first attempt, and when none of them
    /// kept anything. Never anything that an attempt wrote after it was decided otherwise.
    #[must_use]
    pub fn last_checkpoint(&self) -> Option<&[u8]> {
        self.resume_from.as_deref()
    }
}

/// The error of a handler: anything that can be shown.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HandlerError(pub String);

/// User code in Rust. Implemented for every `async fn(RunContext) -> Result<(), E>` whose error
/// can be shown.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Does the work. Should return soon after `ctx.cancel` fires; it is dropped after
    /// `ctx.kill_grace_ms`. A panic ends the run as FAILED / `panic`, nothing else.
    async fn run(&self, ctx: RunContext) -> Result<(), HandlerError>;
}

#[async_trait]
impl<F, R, E> Handler for F
where
    F: Fn(RunContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send + 'static,
    E: fmt::Display,
{
    async fn run(&self, ctx: RunContext) -> Result<(), HandlerError> {
        self(ctx).await.map_err(|e| HandlerError(e.to_string()))
    }
}

/// How an execution ended, with what is kept of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    /// `None`: it ended well.
    pub failure: Option<Failure>,
    /// Exit status of a command that exited by itself.
    pub exit_code: Option<i32>,
    /// The end of the output, as text.
    pub output_tail: Option<String>,
    /// Whether `output_tail` is less than everything.
    pub output_truncated: bool,
}

/// Why an execution did not end well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind.
    pub reason: FailReason,
    /// For people.
    pub message: String,
}

impl Execution {
    /// It ended well.
    #[must_use]
    pub fn success() -> Self {
        Self::default()
    }

    /// It did not.
    #[must_use]
    pub fn failed(reason: FailReason, message: impl Into<String>) -> Self {
        Self {
            failure: Some(Failure {
                reason,
                message: message.into(),
            }),
            ..Self::default()
        }
    }

    /// The same with no more than so many bytes of each text: of an error its beginning, of an
    /// output its end.
    #[must_use]
    pub fn bounded(&self, bytes: usize) -> Self {
        let mut execution = self.clone();
        if let Some(failure) = &mut execution.failure
            && failure.message.len() > bytes
        {
            let end = failure.message.floor_char_boundary(bytes);
            failure.message.truncate(end);
        }
        if let Some(tail) = &mut execution.output_tail
            && tail.len() > bytes
        {
            let start = tail.ceil_char_boundary(tail.len() - bytes);
            tail.drain(..start);
            execution.output_truncated = true;
        }
        execution
    }

    /// It was stopped from outside.
    #[must_use]
    pub fn stopped(cause: StopCause, message: impl Into<String>) -> Self {
        let reason = match cause {
            StopCause::Cancelled => FailReason::Cancelled,
            StopCause::Timeout => FailReason::Timeout,
            StopCause::Fenced => FailReason::Fenced,
        };
        Self::failed(reason, message)
    }
}

/// Executes commands. `core` knows no processes; the server brings this.
#[async_trait]
pub trait CommandExecutor: Send + Sync + 'static {
    /// Whether this node may run the command; the reason if not.
    fn allows(&self, command: &CommandLine) -> Result<(), String>;

    /// Runs the command and waits for it, its output and its whole process group to end. Heeds
    /// `ctx.cancel` (ask, wait `ctx.kill_grace_ms`, kill) and `ctx.fence`. Never panics for a
    /// command that cannot be started: that is an [`Execution`] with [`FailReason::Error`].
    async fn execute(&self, ctx: RunContext, command: CommandLine) -> Execution;
}

/// Calls URLs. `core` knows no network; the server brings this.
#[async_trait]
pub trait HttpExecutor: Send + Sync + 'static {
    /// Makes the call and waits for its end. Heeds `ctx.cancel` and `ctx.fence`: told to stop, it sends
    /// nothing more and returns at once. What the receiver does then nobody knows. Never panics for a
    /// call that cannot be made: that is an [`Execution`] with [`FailReason::Error`].
    async fn execute(&self, ctx: RunContext, call: HttpSpec) -> Execution;
}

/// A command to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// Stands for a command that the executor's node declares; `argv` is empty then. A field of
    /// its own, because a program without arguments looks the same as a name.
    pub name: Option<String>,
    /// Program and arguments; never a shell string.
    pub argv: Vec<String>,
    /// Added to the clean environment.
    pub env: BTreeMap<String, String>,
}

impl CommandLine {
    /// What a job says, to be run with `env`.
    #[must_use]
    pub fn new(command: &CommandSpec, env: BTreeMap<String, String>) -> Self {
        let (name, argv) = match command {
            CommandSpec::Named(name) => (Some(name.clone()), Vec::new()),
            CommandSpec::Argv(argv) => (None, argv.clone()),
        };
        Self { name, argv, env }
    }
}

/// What a node can execute.
#[derive(Clone, Default)]
pub struct Executors {
    /// Handlers by name.
    pub handlers: BTreeMap<String, Arc<dyn Handler>>,
    /// What runs commands, if this node does.
    pub commands: Option<Arc<dyn CommandExecutor>>,
    /// What calls URLs, if this node does.
    pub http: Option<Arc<dyn HttpExecutor>>,
}

impl Executors {
    /// What runs may need that is here: `command`, `http`, `handler:NAME`.
    #[must_use]
    pub fn needs(&self) -> std::collections::BTreeSet<String> {
        let handlers = self.handlers.keys().map(|name| format!("handler:{name}"));
        let commands = self.commands.is_some().then(|| "command".to_owned());
        let http = self.http.is_some().then(|| "http".to_owned());
        handlers.chain(commands).chain(http).collect()
    }
}

impl fmt::Debug for Executors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executors")
            .field("handlers", &self.handlers.keys())
            .field("commands", &self.commands.is_some())
            .field("http", &self.http.is_some())
            .finish()
    }
}
