//! What a command says of itself while it runs: lines of JSON on a file descriptor of their own.
//!
//! ```text
//! {"progress": 0.4, "note": "4 of 10"}
//! {"checkpoint": "4"}
//! ```
//!
//! The supervisor reads them and hands on what is right. So nothing but the command inherits the
//! descriptor, and a node that is gone costs the command nothing. A line that is wrong is dropped, and
//! the first such one is told of in the command's own output.

use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use punctual::handler::RunContext;
use punctual::progress::{CheckpointError, MAX_CHECKPOINT_BYTES};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Where the command finds the number of the descriptor.
pub(super) const DESCRIPTOR: &str = "PUNCTUAL_PROGRESS_FD";
/// The number, unless something else of the supervisor has it.
const NUMBER: i32 = 3;
/// The longest line: a checkpoint, and room for its spelling.
const MAX_LINE_BYTES: usize = 2 * MAX_CHECKPOINT_BYTES;

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Said {
    /// How far it has come, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<f64>,
    /// To that, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// From where it can go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint: Option<String>,
}

/// Reads a line, or says what is wrong with it.
fn parse(line: &[u8]) -> Result<Said, String> {
    let said: Said = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    match &said {
        Said {
            progress: None,
            checkpoint: None,
            ..
        } => Err("it has neither `progress` nor `checkpoint`".to_owned()),
        Said {
            progress: None,
            note: Some(_),
            ..
        } => Err("a `note` goes with `progress`".to_owned()),
        Said {
            checkpoint: Some(text),
            ..
        } if text.len() > MAX_CHECKPOINT_BYTES => Err(format!(
            "the checkpoint has {} bytes; at most {MAX_CHECKPOINT_BYTES} are kept",
            text.len()
        )),
        // The next attempt gets it in its environment.
        Said {
            checkpoint: Some(text),
            ..
        } if text.contains('\0') => Err("the checkpoint holds a NUL byte".to_owned()),
        _ => Ok(said),
    }
}

/// The supervisor's side: a pipe from the command.
pub(super) struct Pipe {
    from: PipeReader,
    to: OwnedFd,
}

impl Pipe {
    /// To be called before anything else is opened, so that the number is the usual one.
    pub(super) fn open() -> io::Result<Self> {
        let (from, to): (PipeReader, PipeWriter) = io::pipe()?;
        // The one that is read from makes room for the other.
        let from = {
            let low = from;
            PipeReader::from(fcntl_dupfd_cloexec(&low, NUMBER)?)
        };
        let to = fcntl_dupfd_cloexec(&to, NUMBER)?;
        Ok(Self { from, to })
    }

    /// What the command is told.
    pub(super) fn number(&self) -> String {
        self.to.as_fd().as_raw_fd().to_string()
    }

    /// From now on whatever is started inherits it.
    pub(super) fn bequeath(&self) -> io::Result<()> {
        Ok(fcntl_setfd(&self.to, FdFlags::empty())?)
    }

    /// Once the command is started: the side to read from, which ends when all its writers have.
    pub(super) fn into_reader(self) -> PipeReader {
        self.from
    }
}

/// Reads to the end. `tell` is given each line that is right, `complain` what is wrong with the first
/// one that is not.
pub(super) fn listen(from: impl io::Read, tell: impl Fn(Said), complain: impl Fn(&str)) {
    let mut from = BufReader::new(from);
    let mut complained = false;
    let mut complain = |wrong: &str| {
        if !std::mem::replace(&mut complained, true) {
            complain(wrong);
        }
    };
    while let Some(line) = next_line(&mut from) {
        match line {
            Ok(line) if line.trim_ascii().is_empty() => {}
            Ok(line) => match parse(&line) {
                Ok(said) => tell(said),
                Err(wrong) => complain(&wrong),
            },
            Err(TooLong) => complain(&format!("it has more than {MAX_LINE_BYTES} bytes")),
        }
    }
}

struct TooLong;

/// The next line without its end; of one that is too long nothing. `None` at the end.
fn next_line(from: &mut impl BufRead) -> Option<Result<Vec<u8>, TooLong>> {
    let mut line = Vec::new();
    let (mut any, mut too_long) = (false, false);
    loop {
        let chunk = match from.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            // Nothing more will come out of it.
            Err(_) => &[],
        };
        if chunk.is_empty() {
            break;
        }
        any = true;
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let part = &chunk[..end.unwrap_or(chunk.len())];
        too_long |= line.len() + part.len() > MAX_LINE_BYTES;
        if too_long {
            line = Vec::new();
        } else {
            line.extend_from_slice(part);
        }
        let taken = end.map_or(chunk.len(), |end| end + 1);
        from.consume(taken);
        if end.is_some() {
            break;
        }
    }
    any.then_some(if too_long { Err(TooLong) } else { Ok(line) })
}

/// The node's side: where the last checkpoint waits to be kept.
pub(super) type Latest = watch::Sender<Option<String>>;

/// Takes a line.
pub(super) fn hear(ctx: &RunContext, latest: &Latest, said: Said) {
    if let Some(fraction) = said.progress {
        ctx.progress(fraction, said.note.as_deref().unwrap_or_default());
    }
    if let Some(text) = said.checkpoint {
        latest.send_replace(Some(text));
    }
}

/// Keeps the newest checkpoint, again and again, until the command has ended and its last one is kept.
pub(super) async fn keep(ctx: &RunContext, mut checkpoints: watch::Receiver<Option<String>>) {
    while checkpoints.changed().await.is_ok() {
        let Some(text) = checkpoints.borrow_and_update().clone() else {
            continue;
        };
        // The worker says so in its log.
        if let Err(CheckpointError::Fenced) = ctx.checkpoint(text.as_bytes()).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn heard(input: &[u8]) -> (Vec<Said>, Vec<String>) {
        let (told, wrong) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        listen(
            input,
            |said| told.borrow_mut().push(said),
            |what: &str| wrong.borrow_mut().push(what.to_owned()),
        );
        (told.into_inner(), wrong.into_inner())
    }

    fn checkpoint(text: &str) -> Said {
        Said {
            progress: None,
            note: None,
            checkpoint: Some(text.to_owned()),
        }
    }

    #[test]
    fn lines_are_taken_also_the_last_one_without_an_end() {
        let (told, wrong) = heard(
            b"{\"progress\": 0.4, \"note\": \"4 of 10\"}\r\n\n{\"checkpoint\": \"a\\nb\"}\n{\"progress\":1,\"checkpoint\":\"\"}",
        );
        let first = Said {
            progress: Some(0.4),
            note: Some("4 of 10".to_owned()),
            checkpoint: None,
        };
        let last = Said {
            progress: Some(1.0),
            ..checkpoint("")
        };
        assert_eq!(told, [first, checkpoint("a\nb"), last]);
        assert_eq!(wrong, [""; 0]);
    }

    #[test]
    fn what_is_wrong_is_dropped_and_told_of_once() {
        for line in [
            "nonsense",
            "{}",
            "[]",
            "{\"progres\": 1}",
            "{\"note\": \"alone\"}",
            "{\"progress\": \"half\"}",
            "{\"progress\": 1} {\"progress\": 1}",
            "{\"checkpoint\": 4}",
            "{\"checkpoint\": \"a\\u0000b\"}",
        ] {
            let right = "{\"checkpoint\": \"x\"}";
            let (told, wrong) = heard(format!("{line}\n{line}\n{right}\n").as_bytes());
            assert_eq!(told, [checkpoint("x")], "{line}");
            assert_eq!(wrong.len(), 1, "{line}: {wrong:?}");
        }
        // Not text: what is no character is not replaced by one that nobody has written.
        let (told, wrong) = heard(b"{\"checkpoint\": \"\xff\"}\n");
        assert_eq!((told.len(), wrong.len()), (0, 1));
    }

    #[test]
    fn the_largest_checkpoint_is_taken_and_a_line_without_end_costs_no_memory() {
        let line = |bytes: usize| format!("{{\"checkpoint\": \"{}\"}}\n", "x".repeat(bytes));
        let (told, wrong) = heard(line(MAX_CHECKPOINT_BYTES).as_bytes());
        assert_eq!((told.len(), wrong.len()), (1, 0));
        let (told, wrong) = heard(line(MAX_CHECKPOINT_BYTES + 1).as_bytes());
        assert_eq!((told.len(), wrong.len()), (0, 1));
        let long = line(40 * MAX_LINE_BYTES) + &line(3);
        let mut from = BufReader::new(long.as_bytes());
        assert!(matches!(next_line(&mut from), Some(Err(TooLong))));
        let next = next_line(&mut from).and_then(Result::ok).unwrap();
        assert_eq!(parse(&next), Ok(checkpoint("xxx")));
        assert!(next_line(&mut from).is_none());
    }
}
