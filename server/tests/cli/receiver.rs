//! Requests as somebody receives them whom the node calls.

use std::io::Read;

use serde_json::Value;

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// The value of a header, or nothing.
    pub(crate) fn header(&self, name: &str) -> &str {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str()).unwrap_or_default()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Reads a request; none where the other side goes before it is whole.
pub(crate) fn read(stream: &mut impl Read) -> Option<Request> {
    let mut bytes = Vec::new();
    let mut more = |bytes: &mut Vec<u8>| {
        let mut some = [0; 4_096];
        let n = stream.read(&mut some).ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&some[..n]);
        Some(())
    };
    let end = loop {
        more(&mut bytes)?;
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap().split(' ').map(str::to_owned);
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(0, |(_, length)| length.parse::<usize>().unwrap());
    while bytes.len() < end + 4 + length {
        more(&mut bytes)?;
    }
    Some(Request {
        method: first.next().unwrap(),
        path: first.next().unwrap(),
        headers,
        body: bytes.split_off(end + 4),
    })
}
