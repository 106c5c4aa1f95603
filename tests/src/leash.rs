//! Real processes that end with the test, however the test ends.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A shell starts the process, says its number, and says how it ended. It kills it when the pipe
/// from us closes: that happens also when we are killed.
const LEASH: &str = r#"log=$1; shift
exec 3<&0
"$@" </dev/null 3<&- >>"$log" 2>&1 &
pid=$!
echo $pid
(read -r _ <&3; kill -9 $pid) >/dev/null 2>&1 &
watcher=$!
exec 3<&-
wait $pid
echo $?
kill $watcher
wait
"#;

/// A signal, as `kill` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Ends it at once.
    Kill,
    /// Asks it to end.
    Term,
    /// Makes it stand still.
    Stop,
    /// Lets it go on.
    Cont,
}

impl Signal {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "-KILL",
            Self::Term => "-TERM",
            Self::Stop => "-STOP",
            Self::Cont => "-CONT",
        }
    }
}

/// A process on a leash. Dropping it kills it.
#[derive(Debug)]
pub struct Leashed {
    pid: u32,
    shell: Child,
    leash: Option<ChildStdin>,
    /// The exit status, as the shell tells it.
    end: Mutex<Receiver<i32>>,
}

impl Leashed {
    /// Starts `command`, of which program, arguments, environment and directory count; what it
    /// says goes to the end of `log`.
    ///
    /// # Panics
    /// When there is no shell.
    #[must_use]
    pub fn start(command: &Command, log: &Path) -> Self {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", LEASH, "sh"])
            .arg(std::path::absolute(log).unwrap())
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A signal for our group (Ctrl-C, a time limit) must not end it before it has done its work.
            .process_group(0)
            // It tells of every process that it kills.
            .stderr(Stdio::null());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            shell.current_dir(directory);
        }
        let mut shell = shell.spawn().unwrap();
        let leash = shell.stdin.take();
        let mut told = BufReader::new(shell.stdout.take().unwrap());
        let pid = number(&mut told).expect("the shell says the process's number");
        let (tell, end) = channel();
        std::thread::spawn(move || {
            if let Some(code) = number(&mut told) {
                // Nobody asks any more, if it fails.
                let _ = tell.send(code);
            }
        });
        Self {
            pid: pid.try_into().unwrap(),
            shell,
            leash,
            end: Mutex::new(end),
        }
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// When it is gone.
    pub fn signal(&self, signal: Signal) {
        let status = Command::new("kill")
            .args([signal.name(), &self.pid.to_string()])
            .status()
            .unwrap();
        assert!(status.success(), "process {} is gone", self.pid);
    }

    /// How it ended (128 and the signal's number, if by one); `None` when it does not within
    /// `patience`.
    #[must_use]
    pub fn ended(&self, patience: Duration) -> Option<i32> {
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        match end.recv_timeout(patience) {
            Ok(code) => Some(code),
            Err(RecvTimeoutError::Timeout) => None,
            // The shell itself was killed; then so was the process.
            Err(RecvTimeoutError::Disconnected) => Some(128 + 9),
        }
    }
}

impl Drop for Leashed {
    fn drop(&mut self) {
        drop(self.leash.take());
        // Gone already, if it fails.
        let _ = self.shell.wait();
    }
}

fn number(told: &mut BufReader<ChildStdout>) -> Option<i32> {
    let mut line = String::new();
    told.read_line(&mut line).ok()?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Leashed {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Leashed::start(&command, Path::new("/dev/null"))
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn it_says_how_the_process_ended() {
        assert_eq!(sh("exit 3").ended(LONG), Some(3));
        let waiting = sh("exec sleep 1000");
        assert_eq!(waiting.ended(Duration::ZERO), None);
        waiting.signal(Signal::Term);
        assert_eq!(waiting.ended(LONG), Some(128 + 15));
    }

    #[test]
    fn whoever_is_let_go_is_killed_even_when_it_stands_still() {
        for stopped in [false, true] {
            let process = sh("trap '' TERM; while :; do sleep 1; done");
            if stopped {
                process.signal(Signal::Stop);
            }
            let place = format!("/proc/{}", process.pid());
            assert!(Path::new(&place).exists());
            drop(process);
            assert!(!Path::new(&place).exists());
        }
    }
}
