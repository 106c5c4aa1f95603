//! One `punctual serve` as a process: its lives, its directory, its own wires to the store.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use super::unix_ms;
use crate::leash::{Leashed, Signal};
use crate::proxy::{Proxy, Wire};

/// A life of the process, in Unix milliseconds.
#[derive(Clone, Debug, Default)]
pub struct ProcessLife {
    /// When it was started.
    pub from_ms: i64,
    /// When it was over; `None` while it runs.
    pub until_ms: Option<i64>,
    /// When it stood still.
    pub paused: Vec<(i64, i64)>,
    /// How it ended although nobody had asked it to.
    pub gave_up: Option<String>,
}

/// A node.
#[derive(Debug)]
pub struct NodeProcess {
    /// Its id, and the name of its directory.
    pub name: String,
    /// Its lives, the last one last.
    pub lives: Vec<ProcessLife>,
    binary: PathBuf,
    place: PathBuf,
    wires: Vec<Proxy>,
    process: Option<Leashed>,
    paused_since_ms: Option<i64>,
    times: &'static [&'static str],
}

/// A slow machine must not look like a dead one, and still the whole must not take long: the
/// shortest times that a node accepts, but for a little more time to live.
pub const SHORT_TIMES: &[&str] = &[
    "--leader-ttl",
    "3s",
    "--session-ttl",
    "3s",
    "--lost-grace",
    "8s",
    "--drain-timeout",
    "10s",
];

impl NodeProcess {
    /// A node that does not run yet; it reaches the members of etcd by `wires`.
    #[must_use]
    pub fn new(
        name: &str,
        binary: &Path,
        place: &Path,
        wires: Vec<Proxy>,
        times: &'static [&'static str],
    ) -> Self {
        Self {
            name: name.to_owned(),
            lives: Vec::new(),
            binary: binary.to_owned(),
            place: place.to_owned(),
            wires,
            process: None,
            paused_since_ms: None,
            times,
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .current_dir(&self.place)
            .env("HOME", &self.place)
            .env("XDG_STATE_HOME", self.place.join("state"))
            .env("TZ", "UTC");
        command
    }

    /// Starts it.
    ///
    /// # Panics
    /// When it runs.
    pub fn start(&mut self) {
        assert!(self.process.is_none(), "{} runs", self.name);
        let ports: Vec<String> = self
            .wires
            .iter()
            .map(|wire| format!("127.0.0.1:{}", wire.port()))
            .collect();
        let namespace = crate::sim::world::NAMESPACE;
        let mut command = self.command();
        command
            .arg("serve")
            .arg("--store")
            .arg(format!("etcd://{}/{namespace}", ports.join(",")))
            .args(["--node-id", &self.name, "--data-dir", &self.name])
            .args(["--listen", "127.0.0.1:0", "--commands", "any"])
            .args(["--slots", "64", "--log-format", "text"])
            .args(self.times);
        self.lives.push(ProcessLife {
            from_ms: unix_ms(),
            ..ProcessLife::default()
        });
        let log = self.place.join(format!("{}.log", self.name));
        self.process = Some(Leashed::start(&command, &log));
    }

    /// Whether it runs (or stands still).
    #[must_use]
    pub fn runs(&self) -> bool {
        self.process.is_some()
    }

    /// Ends it as by `kill -9`.
    pub fn kill(&mut self) {
        self.note_if_gone();
        if let Some(process) = self.process.take() {
            drop(process);
            self.over();
        }
    }

    /// Asks it to leave; its exit status, or `None` if it has not left within `patience`.
    ///
    /// # Panics
    /// When it does not run.
    pub fn leave(&mut self, patience: Duration) -> Option<i32> {
        self.note_if_gone();
        let process = self.process.take().expect("it runs");
        process.signal(Signal::Term);
        let status = process.ended(patience);
        drop(process);
        self.over();
        status
    }

    /// Makes it stand still.
    ///
    /// # Panics
    /// When it does not run.
    pub fn pause(&mut self) {
        self.process.as_ref().expect("it runs").signal(Signal::Stop);
        self.paused_since_ms = Some(unix_ms());
    }

    /// Lets it go on, if it stands still.
    pub fn go_on(&mut self) {
        if let (Some(since_ms), Some(process)) = (self.paused_since_ms.take(), &self.process) {
            process.signal(Signal::Cont);
            if let Some(life) = self.lives.last_mut() {
                life.paused.push((since_ms, unix_ms()));
            }
        }
    }

    fn over(&mut self) {
        let now_ms = unix_ms();
        let since_ms = self.paused_since_ms.take();
        if let Some(life) = self.lives.last_mut() {
            life.until_ms = Some(now_ms);
            life.paused
                .extend(since_ms.map(|since_ms| (since_ms, now_ms)));
        }
    }

    /// Notes that it has ended by itself, if it has.
    pub fn note_if_gone(&mut self) {
        let ended = self
            .process
            .as_ref()
            .and_then(|process| process.ended(Duration::ZERO));
        if let Some(status) = ended {
            self.process = None;
            self.over();
            if let Some(life) = self.lives.last_mut() {
                life.gave_up = Some(format!("it ended with {status}"));
            }
        }
    }

    /// What its wires do from now on.
    pub fn wire(&self, wire: Wire) {
        self.wires.iter().for_each(|proxy| proxy.set(wire));
    }

    /// Ends its connections.
    pub fn kill_connections(&self) {
        self.wires.iter().for_each(Proxy::kill_connections);
    }

    /// A command of the program, told to this node.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn ask(&self, arguments: &[&str]) -> Output {
        self.command()
            .args(arguments)
            .args(["--data-dir", &self.name])
            .output()
            .unwrap()
    }

    /// What it wrote to its log, in all its lives.
    #[must_use]
    pub fn log(&self) -> String {
        let log = self.place.join(format!("{}.log", self.name));
        std::fs::read_to_string(log).unwrap_or_default()
    }
}
