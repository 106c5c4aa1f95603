//! The program as its users meet it: arguments in; output, exit codes and files out.
#![allow(clippy::unwrap_used, reason = "a test fails when it cannot go on")]

mod admin;
mod calls;
mod cluster;
mod data_dir;
mod examples;
mod http;
mod import;
mod metrics;
mod node;
mod notify;
mod offline;
mod overlap;
mod progress;
mod receiver;
mod rows;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_punctual");

/// A directory of a test, which is also its home.
struct Place(TempDir);

/// How a command ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Until a node that runs here answers and has jobs.
    #[track_caller]
    fn wait_for_jobs(&self) {
        wait_for("the jobs", || {
            let jobs = self.run(&["job", "ls", "-o", "name"]);
            (jobs.code == Some(0) && !jobs.out.is_empty()).then_some(())
        });
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Programs that the test has put into `bin` come first.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut search = self.path("bin").into_os_string();
        search.push(":");
        search.push(std::env::var_os("PATH").unwrap());
        let mut command = Command::new(BINARY);
        command
            .args(arguments)
            .current_dir(self.0.path())
            .env_clear()
            .env("PATH", search)
            .env("HOME", self.0.path())
            .env("TZ", "UTC")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ended {
        ended(self.command(arguments).output().unwrap())
    }

    fn run_with_input(&self, arguments: &[&str], input: &str) -> Ended {
        let mut command = self.command(arguments);
        command.stdin(Stdio::piped());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(input.as_bytes())
            .unwrap();
        ended(child.wait_with_output().unwrap())
    }
}

fn ended(output: std::process::Output) -> Ended {
    Ended {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

impl Ended {
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    #[track_caller]
    fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    #[track_caller]
    fn fails(self, code: i32, says: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.err.contains(says), "{self:?}");
    }
}

/// A process that is killed when the test ends.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn start(place: &Place, log: &str, arguments: &[&str]) -> Self {
        Self::start_with(place, log, arguments, &[])
    }

    /// With these variables in its environment.
    fn start_with(
        place: &Place,
        log: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let log = place.path(log);
        let child = place
            .command(arguments)
            .envs(variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Self { child, log }
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        wait_for("the end of the process", || self.child.try_wait().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks until there is an answer, for at most 30 s.
#[track_caller]
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(30) {
        if let Some(found) = look() {
            return found;
        }
        sleep(Duration::from_millis(50));
    }
    panic!("waited in vain for {what}");
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}
