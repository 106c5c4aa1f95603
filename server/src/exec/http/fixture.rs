//! Receivers that do as they are told, and a place to call them from.

use std::ffi::OsString;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;
use crate::outbound::{Allowed, ControlPlane, Pattern};

/// Nothing here takes so long.
pub(super) const WATCHDOG: Duration = Duration::from_secs(30);

/// What a receiver does when it has read a request.
#[derive(Clone)]
pub(super) enum Does {
    Says(String),
    /// Says it, and then nothing more; the connection stays open.
    Hangs(String),
}

pub(super) fn says(head: &str, body: &str) -> Does {
    let length = body.len();
    Does::Says(format!(
        "HTTP/1.1 {head}\r\ncontent-length: {length}\r\n\r\n{body}"
    ))
}

pub(super) struct Receiver {
    pub(super) url: String,
    got: Arc<Mutex<Vec<String>>>,
    /// How many connections the other side has closed while we held them open.
    pub(super) left: Arc<Mutex<usize>>,
}

impl Receiver {
    /// Does these things in turn, and then the last one again and again.
    pub(super) async fn new(script: Vec<Does>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let got: Arc<Mutex<Vec<String>>> = Arc::default();
        let left: Arc<Mutex<usize>> = Arc::default();
        let (inbox, gone) = (Arc::clone(&got), Arc::clone(&left));
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let Some(asked) = read(&mut stream).await else {
                    continue;
                };
                let step = {
                    let mut inbox = inbox.lock().unwrap();
                    inbox.push(asked);
                    script[(inbox.len() - 1).min(script.len() - 1)].clone()
                };
                let gone = Arc::clone(&gone);
                tokio::spawn(async move {
                    let (Does::Says(text) | Does::Hangs(text)) = &step;
                    let _ = stream.write_all(text.as_bytes()).await;
                    if matches!(step, Does::Hangs(_)) {
                        let _ = stream.read(&mut [0; 16]).await;
                        *gone.lock().unwrap() += 1;
                    }
                });
            }
        });
        Self { url, got, left }
    }

    pub(super) fn got(&self) -> Vec<String> {
        self.got.lock().unwrap().clone()
    }

    pub(super) async fn is_called(&self) {
        while self.got().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A request with its body.
pub(super) async fn read(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    loop {
        let mut some = [0; 4_096];
        let n = stream.read(&mut some).await.ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&some[..n]);
        let text = String::from_utf8(bytes.clone()).unwrap();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() == length.map_or(0, |length| length.parse().unwrap()) {
                return Some(text);
            }
        }
    }
}

pub(super) struct Place {
    dir: tempfile::TempDir,
    pub(super) calls: HttpCalls,
}

pub(super) fn place(allow: &[&str], environment: &[(&str, &str)]) -> Place {
    let patterns = allow.iter().map(|text| Pattern::parse(text).unwrap());
    let ours = ControlPlane::default();
    let allowed = Allowed::named("--http-allow", patterns.collect(), ours).and_public();
    let dir = tempfile::tempdir().unwrap();
    let set: Vec<(String, OsString)> = environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).into()))
        .collect();
    let calls = HttpCalls {
        environment: Box::new(move |name| {
            let found = set.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone())
        }),
        ..HttpCalls::new(Client::new(allowed), dir.path())
    };
    Place { dir, calls }
}

impl Place {
    pub(super) async fn execute(&self, ctx: RunContext, call: serde_json::Value) -> Execution {
        let call = serde_json::from_value(call).unwrap();
        timeout(WATCHDOG, self.calls.execute(ctx, call))
            .await
            .expect("execute hangs")
    }

    pub(super) async fn call(&self, call: serde_json::Value) -> Execution {
        self.execute(super::tests::context(), call).await
    }

    pub(super) fn log(&self) -> String {
        let path = log_path(self.dir.path(), "report", "report@20260812T000500Z", 2);
        std::fs::read_to_string(path.unwrap()).unwrap_or_default()
    }
}
