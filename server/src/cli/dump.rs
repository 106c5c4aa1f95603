//! Reads the lines of an export, and remembers up to when the store had decided.

use std::io::{self, BufRead, Read};

use serde_json::Value;

/// A longer line is no cursor.
const MAX_LINE: usize = 4_096;

/// Passes everything on.
pub(super) struct DumpReader {
    from: Box<dyn BufRead>,
    line: Vec<u8>,
    decided_until: Option<i64>,
}

impl DumpReader {
    pub(super) fn new(from: Box<dyn BufRead>) -> Self {
        Self {
            from,
            line: Vec::new(),
            decided_until: None,
        }
    }

    /// The position of the cursor that is ahead of all others, in Unix milliseconds. Those of
    /// partitions without jobs stand still.
    pub(super) fn decided_until(&self) -> Option<i64> {
        self.decided_until
    }

    fn take(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = MAX_LINE.saturating_sub(self.line.len());
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                self.decided_until = self.decided_until.max(cursor(&self.line));
                self.line.clear();
            }
        }
    }
}

impl Read for DumpReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.fill_buf()?.read(into)?;
        self.consume(read);
        Ok(read)
    }
}

impl BufRead for DumpReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.from.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        // Nothing is read here: what is consumed stands in the buffer.
        let used = self.from.fill_buf().map(|buffer| buffer[..amount].to_vec());
        self.take(&used.unwrap_or_default());
        self.from.consume(amount);
    }
}

/// The position in the line of a cursor.
fn cursor(line: &[u8]) -> Option<i64> {
    let line: Value = serde_json::from_slice(line).ok()?;
    let (before, _) = line.get("key")?.as_str()?.rsplit_once('/')?;
    if !before.ends_with("/cursor") {
        return None;
    }
    let record: Value = serde_json::from_str(line.get("value")?.as_str()?).ok()?;
    record.pointer("/r/position/at_ms")?.as_i64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_cursor_is_remembered_and_every_byte_passed_on() {
        let line = |key: &str, at: i64| {
            let value = format!("{{\"v\":1,\"r\":{{\"position\":{{\"at_ms\":{at}}}}}}}");
            serde_json::json!({ "key": key, "value": value }).to_string()
        };
        let text = [
            line("/punctual/cursor/000", 5),
            line("/punctual/cursor/001", 7),
            line("/punctual/cursor/002", 6),
            line("/punctual/other/002", 9),
            "x".repeat(3 * MAX_LINE),
        ]
        .join("\n");
        let from = io::BufReader::with_capacity(10, io::Cursor::new(text.clone()));
        let mut reader = DumpReader::new(Box::new(from));
        let lines: Vec<String> = (&mut reader).lines().map(Result::unwrap).collect();
        assert_eq!(lines.join("\n"), text);
        assert_eq!(reader.decided_until(), Some(7));
    }
}
