//! Running commands, and calling URLs ([`http`]).
//!
//! ```text
//! node ──control──▶ supervisor ──────▶ command ──▶ whatever it starts
//!      ◀──status───            ◀─progress─ (own group)
//!      ◀──output──────────────────────────┴───────────────┘
//! ```
//!
//! Each command has a supervisor, a small process of the same binary ([`supervisor`]). A command
//! must be ended, with everything that it started, also when the node cannot do it: killed,
//! out of memory, or stopped while its session runs out and another node starts the run again.
//! Only another process can promise that, and only one outside the group that it kills.
//!
//! What is promised, on Linux, as long as not both node and supervisor are killed at once: when
//! [`ProcessExecutor::execute`] returns, nothing of the command is left, its exit status is known
//! and its output is on disk, up to the limits. When the node dies, the command is asked to end at
//! once and killed after its grace. When the supervisor dies, the node kills what it can find by
//! the command's session and group and by the run's entries in the environment.
//!
//! What is not: a process that hangs where nothing can be killed, or that runs as another user,
//! is given up and counted in the run's message. And what a command asks a service to start for
//! it, such as a container or a timer, is that service's and not the command's. Other Unix systems
//! have no way to find a process that has left the command's group; there only the group is ended.

mod clock;
mod command;
pub mod http;
mod limits;
mod output;
mod policy;
mod processes;
mod progress;
pub mod supervisor;
mod text;
mod verdict;
mod watch;
mod wire;

pub use limits::raise_file_limit;
pub use output::log_path;
pub use policy::{CommandPolicy, Declared};

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use async_trait::async_trait;
use punctual::handler::{CommandExecutor, CommandLine, Execution, RunContext};
use punctual::job::run::FailReason;
use tokio::process::{Child, Command};

use self::output::Output;
use self::watch::Watch;

/// The hidden sub-command: a binary that is started with it as its first argument must call
/// [`supervisor::main`] and nothing else.
pub const SUPERVISE: &str = "__supervise";

/// How long something may stay alive after it was killed before we stop waiting for it: a process
/// that hangs in a device or a dead network file system cannot be killed.
const UNKILLABLE_MS: u64 = 5_000;

/// How long to wait for the end of the output once the command and all that it started are gone.
/// Only a process that got hold of the pipe in another way can keep it open longer than it takes
/// to read what is in it.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// How long the end of a run that may be tried again waits for its last checkpoint to be kept: a second
/// until it may be written, and another one for the store.
const LAST_CHECKPOINT: Duration = Duration::from_secs(2);

/// How long a run is held back when the node lacks what it takes to start anything.
const SHORTAGE: Duration = Duration::from_secs(2);

/// Whether the node, and not the command, was to blame, and only at that moment: no process was
/// made, because there were too many files or processes or too little memory.
fn is_shortage(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN];
    Errno::from_io_error(error).is_some_and(|errno| shortages.contains(&errno))
}

/// How commands are run on this node.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// Which commands.
    pub policy: CommandPolicy,
    /// Output goes into `logs/` below it; see [`log_path`].
    pub data_dir: PathBuf,
    /// A binary that understands [`SUPERVISE`].
    pub supervisor: PathBuf,
    /// The directory in which commands start; the node's own if absent.
    pub working_dir: Option<PathBuf>,
    /// How much of the end of the output is kept with the run.
    pub tail_bytes: usize,
    /// How much of the output is kept on the node.
    pub log_bytes: u64,
}

impl ExecutorConfig {
    /// The defaults: this binary as supervisor, 2 KiB of output with the run, 64 MiB on the node.
    #[must_use]
    pub fn new(policy: CommandPolicy, data_dir: impl Into<PathBuf>) -> Self {
        Self {
            policy,
            data_dir: data_dir.into(),
            supervisor: this_binary(),
            working_dir: None,
            tail_bytes: 2 << 10,
            log_bytes: 64 << 20,
        }
    }
}

/// The running binary, even when an upgrade has put another one in its place: the two might not
/// understand each other.
fn this_binary() -> PathBuf {
    let running = Path::new("/proc/self/exe");
    if running.exists() {
        return running.to_owned();
    }
    std::env::current_exe().unwrap_or_else(|_| PathBuf::from("punctual"))
}

/// Runs commands, each under a supervisor of its own.
#[derive(Debug)]
pub struct ProcessExecutor {
    config: ExecutorConfig,
}

impl ProcessExecutor {
    /// Runs commands as `config` says.
    #[must_use]
    pub fn new(config: ExecutorConfig) -> Self {
        Self { config }
    }

    /// Which commands this node runs.
    #[must_use]
    pub fn policy(&self) -> &CommandPolicy {
        &self.config.policy
    }

    /// The supervisor gets nothing of the node but three pipes: no environment, and a group of
    /// its own, so that a Ctrl-C meant for the node does not reach it.
    fn start_supervisor(&self) -> std::io::Result<Child> {
        Command::new(&self.config.supervisor)
            .arg(SUPERVISE)
            .args(limits::original())
            .arg0("punctual")
            .env_clear()
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }
}

#[async_trait]
impl CommandExecutor for ProcessExecutor {
    fn allows(&self, command: &CommandLine) -> Result<(), String> {
        self.config.policy.allows(command)
    }

    /// Dropping the future stops the command: its supervisor sees the end of the control pipe.
    async fn execute(&self, ctx: RunContext, command: CommandLine) -> Execution {
        // Whoever calls has asked `allows` before; this is the last door before code runs.
        if let Err(refusal) = self.allows(&command) {
            return Execution::failed(FailReason::Error, refusal);
        }
        if let Some(cause) = ctx.cancel.cause() {
            return Execution::stopped(cause, "told to stop before the command was started");
        }
        let config = &self.config;
        let Some(log) = log_path(&config.data_dir, &ctx.job_id, &ctx.run_id, ctx.attempt) else {
            return Execution::failed(
                FailReason::Error,
                "the ids of the job or the run cannot be part of a file's name; nothing was run",
            );
        };
        let spec = command::spec(&ctx, command, config.working_dir.clone(), |name| {
            std::env::var_os(name)
        });
        let spec = match spec {
            Ok(spec) => spec,
            Err(refusal) => return Execution::failed(FailReason::Error, refusal),
        };
        let mut child = match self.start_supervisor() {
            Ok(child) => child,
            Err(error) => {
                let message = format!(
                    "cannot start a supervisor ({}): {error}; nothing was run",
                    config.supervisor.display()
                );
                if !is_shortage(&error) {
                    return Execution::failed(FailReason::Error, message);
                }
                // Another attempt follows at once, on this node or another: not too fast.
                return tokio::select! {
                    () = tokio::time::sleep(SHORTAGE) => {
                        Execution::failed(FailReason::NotStarted, message)
                    }
                    cause = ctx.cancel.cancelled() => Execution::stopped(cause, message),
                };
            }
        };
        let mut output = Output::new(log, config.log_bytes, config.tail_bytes);
        let pipe = child.stderr.take();
        let verdict = {
            let drain = async {
                if let Some(pipe) = pipe {
                    output.drain(pipe).await;
                }
            };
            let (latest, checkpoints) = tokio::sync::watch::channel(None);
            let keep = progress::keep(&ctx, checkpoints);
            let watch = Watch::new(&ctx, child, latest).run(spec);
            tokio::pin!(drain, keep, watch);
            let (mut drained, mut kept) = (false, false);
            let verdict = loop {
                tokio::select! {
                    verdict = &mut watch => break verdict,
                    () = &mut drain, if !drained => drained = true,
                    () = &mut keep, if !kept => kept = true,
                }
            };
            // After a success, and after a cancellation, there is no next attempt.
            let failure = verdict.failure.as_ref().map(|failure| failure.reason);
            let again = failure.is_some_and(|reason| reason != FailReason::Cancelled);
            if again && !kept && tokio::time::timeout(LAST_CHECKPOINT, keep).await.is_err() {
                tracing::warn!(
                    job = ctx.job_id,
                    run = ctx.run_id,
                    "the command's last checkpoint was not kept in time"
                );
            }
            if !drained && tokio::time::timeout(LAST_OUTPUT, drain).await.is_err() {
                tracing::warn!(
                    job = ctx.job_id,
                    run = ctx.run_id,
                    "another process holds the command's output open; what it writes is not kept"
                );
            }
            verdict
        };
        let (output_tail, output_truncated) = output.finish().await;
        Execution {
            output_tail,
            output_truncated,
            ..verdict
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn only_a_passing_shortage_of_the_node_leaves_the_attempt_unused() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN] {
            assert!(is_shortage(&errno.into()), "{errno}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::NOEXEC, Errno::TOOBIG] {
            assert!(!is_shortage(&errno.into()), "{errno}");
        }
    }
}
