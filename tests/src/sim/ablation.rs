//! Safeguards taken away, on the wire, so that no product code needs a switch for it: the evidence
//! that the checkers see what each of them is for.

use punctual::backend::{Op, Requirement, Txn, Write};
use serde::Serialize;

/// A safeguard that is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Ablation {
    /// Leaders write without their term.
    Term,
    /// Fires do not require the cursor that they were planned from.
    Cursor,
    /// Fires and changes do not require the log of changes.
    Changes,
    /// Steps of a run do not require its record as read.
    RunRevision,
    /// Claims and starts do not require the session.
    Session,
    /// Recovery does not require that the session is absent.
    AbsentSession,
    /// Triggers do not consume the job's counter.
    Seq,
    /// `overlap: skip` does not look whether a run is alive.
    Overlap,
    /// An unknown outcome is taken for "somebody else won".
    UnknownIsConflict,
    /// Nodes do not tell each other the time.
    Clocks,
}

impl Ablation {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Term,
        Self::Cursor,
        Self::Changes,
        Self::RunRevision,
        Self::Session,
        Self::AbsentSession,
        Self::Seq,
        Self::Overlap,
        Self::UnknownIsConflict,
        Self::Clocks,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Term => "term",
            Self::Cursor => "cursor",
            Self::Changes => "changes",
            Self::RunRevision => "run-revision",
            Self::Session => "session",
            Self::AbsentSession => "absent-session",
            Self::Seq => "seq",
            Self::Overlap => "overlap",
            Self::UnknownIsConflict => "unknown-is-conflict",
            Self::Clocks => "clocks",
        }
    }

    fn strips(self, requirement: &Requirement) -> bool {
        match (self, requirement) {
            (Self::Term, Requirement::Created(key, _)) => kind(key).0 == "leader",
            (Self::Cursor, Requirement::Modified(key, _)) => kind(key).0 == "cursor",
            (Self::Changes, Requirement::Modified(key, _)) => kind(key) == ("job".into(), 1),
            (Self::RunRevision, Requirement::Modified(key, _)) => kind(key).0 == "run",
            (Self::Session, Requirement::Created(key, _)) => kind(key).0 == "node",
            (Self::AbsentSession, Requirement::Absent(key)) => {
                kind(key).0 == "node" && kind(key).1 == 2
            }
            (Self::Seq, Requirement::Modified(key, _)) => kind(key).0 == "seq",
            (Self::Overlap, Requirement::Empty(span)) => kind(&span.start).0 == "run",
            _ => false,
        }
    }

    /// Without what it takes away.
    #[must_use]
    pub fn requirements(self, requirements: &[Requirement]) -> Vec<Requirement> {
        requirements
            .iter()
            .filter(|requirement| !self.strips(requirement))
            .cloned()
            .collect()
    }

    /// Without what it takes away.
    #[must_use]
    pub fn txn(self, txn: &Txn) -> Txn {
        Txn {
            require: self.requirements(&txn.require),
            ops: txn
                .ops
                .iter()
                .filter(|op| {
                    let clock = |write: &Write| kind(write.key()).0 == "clock";
                    !matches!(op, Op::Write(write) if self == Self::Clocks && clock(write))
                })
                .map(|op| match op {
                    Op::Write(write) => Op::Write(write.clone()),
                    Op::Choose {
                        require,
                        then,
                        otherwise,
                    } => Op::Choose {
                        require: self.requirements(require),
                        then: then.clone(),
                        otherwise: otherwise.clone(),
                    },
                })
                .collect(),
        }
    }
}

/// The first part of a key behind the namespace, and how many follow.
fn kind(key: &[u8]) -> (String, usize) {
    let text = String::from_utf8_lossy(key);
    let mut parts = text.trim_matches('/').split('/').skip(1);
    let first = parts.next().unwrap_or_default().to_owned();
    (first, parts.count())
}
