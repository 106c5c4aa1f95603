//! Commands as a node runs them: real processes, real signals, the real supervisor.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod faults;
mod outcome;
mod stopping;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use punctual::cancel::{CancelToken, Canceller};
use punctual::handler::{CommandExecutor, CommandLine, Execution, FencingToken, RunContext};
use punctual::job::run::FailReason;
use punctual::recipe::session::Trust;
use punctual_server::exec::{CommandPolicy, Declared, ExecutorConfig, ProcessExecutor, log_path};
use tempfile::TempDir;

/// Nothing takes this long unless it hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

/// A node's executor with a directory of its own, and a number that no other test uses: passed to
/// `sleep` or to a script as an argument, it finds their processes again.
struct Bench {
    dir: TempDir,
    executor: ProcessExecutor,
    mark: String,
    grace_ms: u64,
    cancel: CancelToken,
    canceller: Canceller,
    fence: Option<Trust>,
}

impl Bench {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut ExecutorConfig)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dir = tempfile::tempdir().unwrap();
        let mut config = ExecutorConfig::new(CommandPolicy::Any(Declared::default()), dir.path());
        config.supervisor = supervisor();
        change(&mut config);
        let (canceller, cancel) = Canceller::new();
        let number = NEXT.fetch_add(1, Ordering::SeqCst);
        Self {
            dir,
            executor: ProcessExecutor::new(config),
            mark: format!("987.{}{number:04}", std::process::id()),
            grace_ms: 10_000,
            cancel,
            canceller,
            fence: None,
        }
    }

    fn context(&self, run_id: &str) -> RunContext {
        context(
            run_id,
            self.grace_ms,
            self.cancel.clone(),
            self.fence.clone(),
        )
    }

    async fn run(&self, argv: &[&str]) -> Execution {
        self.run_as("run", command(argv, &[])).await
    }

    async fn run_as(&self, run_id: &str, command: CommandLine) -> Execution {
        let execution = self.executor.execute(self.context(run_id), command);
        tokio::time::timeout(WATCHDOG, execution)
            .await
            .expect("execute hangs")
    }

    /// A script that knows the mark as `$0` and whatever else as `$1`.
    async fn script(&self, script: &str) -> Execution {
        let path = self.dir.path().to_str().unwrap().to_owned();
        self.run(&["sh", "-c", script, &self.mark, &path]).await
    }

    /// A command that only sleeps, for longer than any test runs.
    async fn sleep(&self) -> Execution {
        self.run(&["sleep", &self.mark]).await
    }

    /// Those whose parent is a supervisor. A shell that is about to start something looks like two
    /// for a moment; the second does not count.
    fn commands(&self) -> Vec<i32> {
        let supervised = |pid: &i32| {
            stat(*pid).is_some_and(|s| {
                fs::read(format!("/proc/{}/cmdline", s[1]))
                    .is_ok_and(|arguments| arguments.ends_with(b"__supervise\0"))
            })
        };
        self.alive().into_iter().filter(supervised).collect()
    }

    #[track_caller]
    fn assert_gone(&self) {
        let left = self.alive();
        assert!(left.is_empty(), "still alive: {left:?}");
    }

    fn log(&self, run_id: &str) -> Vec<u8> {
        fs::read(log_path(self.dir.path(), "job", run_id, 1).unwrap()).unwrap_or_default()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn alive(&self) -> Vec<i32> {
        carrying(&self.mark)
    }
}

/// A test that fails because something lives on must not let it live on for ever.
impl Drop for Bench {
    fn drop(&mut self) {
        for pid in self.alive() {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

fn supervisor() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_punctual"))
}

fn context(run_id: &str, grace_ms: u64, cancel: CancelToken, fence: Option<Trust>) -> RunContext {
    static TOKENS: AtomicU32 = AtomicU32::new(1);
    RunContext {
        job_id: "job".to_owned(),
        run_id: run_id.to_owned(),
        attempt: 1,
        shard: None,
        shards: None,
        scheduled_at_ms: 1_786_493_100_000,
        // Runs of different tests, and of a helper process, must not be taken for each other.
        fencing_token: FencingToken::new(
            0,
            u64::from(std::process::id()),
            u8::try_from(TOKENS.fetch_add(1, Ordering::SeqCst) % 128).unwrap(),
        ),
        payload: serde_json::json!({"channel": "all"}),
        trace_id: "0af7651916cd43dd8448eb211c80319c".to_owned(),
        timeout_ms: 60_000,
        kill_grace_ms: grace_ms,
        cancel,
        fence,
    }
}

fn command(argv: &[&str], env: &[(&str, &str)]) -> CommandLine {
    CommandLine {
        name: None,
        argv: argv.iter().map(|&a| a.to_owned()).collect(),
        env: env
            .iter()
            .map(|&(n, v)| (n.to_owned(), v.to_owned()))
            .collect::<BTreeMap<_, _>>(),
    }
}

/// The reason and message of a failure.
fn failure(execution: &Execution) -> (FailReason, &str) {
    let failure = execution.failure.as_ref().expect("it ended well");
    (failure.reason, &failure.message)
}

/// Fields of `/proc/PID/stat` after the name: state, parent, group, session...
fn stat(pid: i32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields = stat.rsplit_once(')')?.1;
    Some(fields.split_ascii_whitespace().map(str::to_owned).collect())
}

fn pids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Processes that can still run and that have the mark among their arguments.
fn carrying(mark: &str) -> Vec<i32> {
    pids()
        .filter(|pid| {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            arguments.split(|&b| b == 0).any(|a| a == mark.as_bytes())
                && stat(*pid).is_some_and(|s| s[0] != "Z" && s[0] != "X")
        })
        .collect()
}

/// Children of `parent` that have ended and that nobody has waited for.
fn zombies(parent: i32) -> Vec<i32> {
    pids()
        .filter(|pid| stat(*pid).is_some_and(|s| s[0] == "Z" && s[1] == parent.to_string()))
        .collect()
}

fn parent(pid: i32) -> i32 {
    stat(pid).expect("it has ended")[1].parse().unwrap()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < WATCHDOG, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn send(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Its children, ended or not.
fn children(of: i32) -> Vec<i32> {
    pids()
        .filter(|pid| stat(*pid).is_some_and(|s| s[1] == of.to_string()))
        .collect()
}
