//! What a node and a supervisor say to each other: one line of text or JSON at a time.
//!
//! Node to supervisor, on its standard input: first the [`Spec`] as JSON, then any number of
//! [`Order`]s; the end of the stream means that the node is gone. Supervisor to node, on its
//! standard output: [`Status`] lines as JSON. Nothing of a command stands in the supervisor's
//! own arguments or environment, so a list of processes shows nothing of it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::progress::Said;

/// What to run and under which conditions. No `Debug`: the environment may hold secrets.
#[derive(Serialize, Deserialize)]
pub(crate) struct Spec {
    /// Program and arguments.
    pub(crate) argv: Vec<String>,
    /// The whole environment.
    pub(crate) env: BTreeMap<String, String>,
    /// Where to run; the node's own directory if absent.
    pub(crate) cwd: Option<PathBuf>,
    /// Between asking to end and ending by force.
    pub(crate) grace_ms: u64,
    /// When to stop unless told a later time, by [`super::clock::now_ms`].
    pub(crate) trust_until_ms: Option<u64>,
}

/// A line from the node after the spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Ask to end, and end by force after the grace.
    Stop,
    /// End by force.
    Kill,
    /// The worker's session may be relied upon until then, by [`super::clock::now_ms`].
    ///
    /// A time and not a duration: a node that was stopped between reading its clock and writing
    /// the line would prolong the trust by as long as it was stopped. Both processes read the
    /// same clock of the same machine.
    Trust(u64),
}

impl Order {
    /// Reads a line; `None` for one that this version does not know.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("stop", "") => Some(Self::Stop),
            ("kill", "") => Some(Self::Kill),
            ("trust", until) => until.parse().ok().map(Self::Trust),
            _ => None,
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop => f.write_str("stop"),
            Self::Kill => f.write_str("kill"),
            Self::Trust(until) => write!(f, "trust {until}"),
        }
    }
}

/// A line from the supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// The command runs; its process id is also the id of its group.
    Started(i32),
    /// The command said so of itself.
    Said(Said),
    /// The last line: it could not be started.
    Failed(String),
    /// The last line: trust had run out before it could be started.
    Distrusted,
    /// The last line: it ended, and everything that it had started.
    Ended(Ended),
}

/// How a command ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// The status with which it exited.
    pub(crate) exit: Option<i32>,
    /// The signal that ended it. Neither: it could not be killed, or its status was lost.
    pub(crate) signal: Option<i32>,
    /// Set when it was told to stop before it ended.
    pub(crate) stop: Option<Stopped>,
    /// Processes of it that could not be killed.
    pub(crate) survivors: usize,
}

/// A stop that came before the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stopped {
    /// Who stopped it.
    pub(crate) by: Stopper,
    /// Whether the request was not enough.
    pub(crate) forced: bool,
}

/// Who stopped a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stopper {
    /// An order of the node.
    Node,
    /// The supervisor, when trust had run out.
    Fence,
    /// The supervisor, when the node was gone.
    NodeGone,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_read_back_as_written() {
        for order in [Order::Stop, Order::Kill, Order::Trust(u64::MAX)] {
            assert_eq!(Order::parse(&order.to_string()), Some(order));
        }
        for line in ["", "stop now", "trust", "trust soon", "trust -1", "STOP"] {
            assert_eq!(Order::parse(line), None, "{line:?}");
        }
    }
}
