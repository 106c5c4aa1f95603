//! One etcd process: its ports, its directory, and how to talk to it without a client.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::PATIENCE;
use crate::leash::{Leashed, Signal};
use crate::ports::free_port;

/// A member of a cluster, running or not.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) client: u16,
    pub(super) peer: u16,
    directory: PathBuf,
    process: Option<Leashed>,
}

impl Member {
    /// One that was never started, with ports that are free now.
    pub(super) fn new(directory: PathBuf) -> Self {
        let (client, peer) = (free_port(), free_port());
        Self {
            // Its name tells it from any other that might listen there.
            name: format!("t{}-{client}-{peer}", std::process::id()),
            client,
            peer,
            directory,
            process: None,
        }
    }

    /// `name=url`, as a list of members wants it.
    pub(super) fn introduction(&self) -> String {
        format!("{}=http://127.0.0.1:{}", self.name, self.peer)
    }

    /// Starts it, with what it had on disk.
    pub(super) fn start(&mut self, binary: &Path, all: &str, options: &[&str]) {
        std::fs::create_dir_all(&self.directory).unwrap();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let mut command = Command::new(binary);
        command
            .args(["--name", &self.name, "--logger", "zap", "--data-dir"])
            .arg(self.directory.join("data"))
            .args(["--listen-client-urls", &url(self.client)])
            .args(["--advertise-client-urls", &url(self.client)])
            .args(["--listen-peer-urls", &url(self.peer)])
            .args(["--initial-advertise-peer-urls", &url(self.peer)])
            .args(["--initial-cluster", all])
            .args(["--initial-cluster-token", all])
            .args(
                options
                    .iter()
                    .map(|o| o.replace("{client}", &url(self.client))),
            )
            // Debian's 3.4 asks for this word on anything but amd64.
            .env("ETCD_UNSUPPORTED_ARCH", "arm64");
        self.process = Some(Leashed::start(&command, &self.directory.join("log")));
    }

    /// Ends it as by `kill -9`; its directory stays.
    pub(super) fn kill(&mut self) {
        self.process = None;
    }

    pub(super) fn runs(&self) -> bool {
        self.process.is_some()
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.as_ref().expect("it is running").pid()
    }

    pub(super) fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("it is running");
        if let Some(status) = process.ended(Duration::ZERO) {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let from = lines.len().saturating_sub(20);
            let end = lines[from..].join("\n");
            panic!("{} ended with {status}:\n{end}", self.name);
        }
        process.signal(signal);
    }

    /// Waits until it serves, and knows the cluster that it is meant to be in.
    pub(super) fn wait(&self) -> Result<(), String> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let healthy = self.ask("GET", "/health", "", "");
            if healthy.is_ok_and(|answer| answer.contains("\"health\":\"true\"")) {
                let members = self.ask("POST", "/v3/cluster/member/list", "", "{}")?;
                return if members.contains(&self.name) {
                    Ok(())
                } else {
                    Err(format!("another etcd listens at {}", self.client))
                };
            }
            let over = self.process.as_ref().map(|p| p.ended(Duration::ZERO));
            if over.flatten().is_some() {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("etcd did not come up:\n{}", self.log()))
    }

    /// One HTTP request to its gateway; the whole answer.
    pub(super) fn ask(
        &self,
        method: &str,
        path: &str,
        token: &str,
        body: &str,
    ) -> Result<String, String> {
        ask(self.client, method, path, token, body)
    }

    /// A request to its gateway, and the JSON of the answer.
    pub(super) fn tell(&self, path: &str, body: &Value) -> Result<Value, String> {
        let answer = self.ask("POST", path, "", &body.to_string())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("not HTTP")?;
        if !head.starts_with("HTTP/1.1 200") {
            return Err(format!("{path}: {answer}"));
        }
        serde_json::from_str(body).map_err(|error| format!("{path}: {error}: {answer}"))
    }

    /// Its number, and the number of the leader that it knows.
    pub(super) fn ids(&self) -> Option<(String, String)> {
        let status = self
            .tell("/v3/maintenance/status", &serde_json::json!({}))
            .ok()?;
        let own = status["header"]["member_id"].as_str()?.to_owned();
        let leader = status["leader"].as_str()?.to_owned();
        Some((own, leader))
    }

    pub(super) fn log(&self) -> String {
        let path = self.directory.join("log");
        let mut log = std::fs::read_to_string(&path).unwrap_or_default();
        if log.is_empty() {
            // What cannot be read is missing in a message, no more.
            let _ = write!(log, "nothing in {}", path.display());
        }
        log
    }
}

/// One HTTP request to the gateway at a port; the whole answer.
pub(super) fn ask(
    port: u16,
    method: &str,
    path: &str,
    token: &str,
    body: &str,
) -> Result<String, String> {
    let authorization = match token {
        "" => String::new(),
        token => format!("Authorization: {token}\r\n"),
    };
    let talk = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             {authorization}Content-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    talk().map_err(|error| error.to_string())
}
