//! How long a cluster takes no writes.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::PATIENCE;
use super::member::ask;

/// So often a write is tried at each member.
const EVERY: Duration = Duration::from_millis(20);

/// How long after `since` a write through one of the members at `ports` was answered. One after the
/// other is tried, whatever became of those before: a write that was on its way to a leader that died
/// is answered seconds later.
///
/// # Errors
/// When none was answered for half a minute.
pub fn first_write(ports: &[u16], since: Instant) -> Result<Duration, String> {
    // `/election` and `x` in base 64.
    const BODY: &str = r#"{"key":"L2VsZWN0aW9u","value":"eA=="}"#;
    let (done, answered) = channel();
    while since.elapsed() < PATIENCE {
        for port in ports.iter().copied() {
            let done = done.clone();
            std::thread::spawn(move || {
                let answer = ask(port, "POST", "/v3/kv/put", "", BODY);
                if answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
                    // Another one was first, if it fails.
                    let _ = done.send(Instant::now());
                }
            });
        }
        match answered.recv_timeout(EVERY) {
            Ok(at) => return Ok(at.duration_since(since)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
    }
    Err("etcd takes no writes".into())
}
