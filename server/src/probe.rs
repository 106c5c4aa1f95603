//! Whether a server answers at an address. Short: somebody waits at a terminal.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

const CONNECT: Duration = Duration::from_millis(300);
const ANSWER: Duration = Duration::from_secs(1);

/// What came of knocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Knock {
    /// A server of ours lives there.
    Alive,
    /// Nobody listens.
    Nobody,
    /// Anything else: another program, a name that leads nowhere, silence.
    Unknown,
}

/// Knocks at the server of a `http://HOST:PORT`.
pub(crate) fn knock(url: &str) -> Knock {
    try_knock(url).unwrap_or_else(|error| match error.kind() {
        ErrorKind::ConnectionRefused => Knock::Nobody,
        _ => Knock::Unknown,
    })
}

/// Knocks at all of them at once.
pub(crate) fn knock_at(urls: &[String]) -> Vec<Knock> {
    std::thread::scope(|scope| {
        let knocks: Vec<_> = urls
            .iter()
            .map(|url| scope.spawn(move || knock(url)))
            .collect();
        knocks
            .into_iter()
            .map(|knock| knock.join().unwrap_or(Knock::Unknown))
            .collect()
    })
}

fn try_knock(url: &str) -> std::io::Result<Knock> {
    let Some(host) = url.strip_prefix("http://") else {
        return Ok(Knock::Unknown);
    };
    let Some(address) = host.to_socket_addrs()?.next() else {
        return Ok(Knock::Unknown);
    };
    let mut stream = TcpStream::connect_timeout(&address, CONNECT)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    let request = format!("GET /livez HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    // No more than such an answer has.
    stream.take(4_096).read_to_string(&mut answer)?;
    let is_ours = answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok\n");
    Ok(if is_ours {
        Knock::Alive
    } else {
        Knock::Unknown
    })
}
