//! Safeguards taken away, on the wire or by configuration, so that no product code needs a switch
//! for it: the evidence that the checkers see what each of them is for.

use punctual::backend::{Entry, Lease, Op, Requirement, Txn, Write};
use punctual::job::record::{CursorRecord, RunRecord, Window, decode, encode};
use punctual::job::run::{FailReason, RunState};
use punctual::keys::{Keys, part_of};
use punctual::node::NodeConfig;
use serde::{Serialize, Serializer};

use super::world::NAMESPACE;

mod beside;

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
    /// The store does not tell which window is open: each planner opens one at its own "now".
    Window,
    /// Trust in a lease never ends by itself.
    Trust,
    /// Nobody gives back what names it and what it does not hold.
    GiveBack,
    /// A watch leaves out changes, and the log of changes shows no hole.
    CompleteView,
    /// A step of the wall clock does not hold the fire clock.
    FireClock,
    /// The runs of a lost session are taken without the grace that its worker needs to stop.
    LostGrace,
    /// Changes of jobs do not require the log of changes.
    ChangeLog,
    /// They do not require the cursor either.
    ChangeCursor,
    /// Nor what is remembered of a deleted job.
    Tombstone,
    /// Fires do not require that the runs they create are absent.
    AbsentRun,
    /// Claims do not require a free slot.
    Slot,
    /// Fires of `overlap: queue` and `replace` do not consume the job's counter.
    SeqInFire,
    /// `overlap: queue` skips without the proof that it is full.
    FullProof,
    /// Parts of a run are made without its revision.
    ParentRevision,
    /// Checkpoints are written without the revision of the run's record.
    CheckpointFence,
    /// The end of a run leaves no note of what is to be told.
    Outbox,
    /// The end of a run leaves no note of what comes after it.
    ChainNote,
    /// Followers of a success are decided without the note that they are owed.
    FollowNote,
    /// They are decided without the follower as it was read.
    FollowJob,
    /// The next run after a rest is made without the record that names the last one.
    NextLast,
    /// It is made without the job as it was read.
    NextJob,
    /// It is made without the proof that the last one is over.
    NextOver,
    /// Both are made without the job's counter.
    BesideSeq,
    /// A run is noted to be late without its record as it was read.
    LateRun,
    /// It is noted although such a note stands.
    LateOnce,
    /// A retry follows although somebody wanted the run ended.
    RetryWish,
    /// A retry follows although the job is gone.
    RetryJob,
}

impl Ablation {
    /// All of them.
    pub const ALL: [Self; 37] = [
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
        Self::Window,
        Self::Trust,
        Self::GiveBack,
        Self::CompleteView,
        Self::FireClock,
        Self::LostGrace,
        Self::ChangeLog,
        Self::ChangeCursor,
        Self::Tombstone,
        Self::AbsentRun,
        Self::Slot,
        Self::SeqInFire,
        Self::FullProof,
        Self::ParentRevision,
        Self::CheckpointFence,
        Self::Outbox,
        Self::ChainNote,
        Self::FollowNote,
        Self::FollowJob,
        Self::NextLast,
        Self::NextJob,
        Self::NextOver,
        Self::BesideSeq,
        Self::LateRun,
        Self::LateOnce,
        Self::RetryWish,
        Self::RetryJob,
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
            Self::Window => "window",
            Self::Trust => "trust",
            Self::GiveBack => "give-back",
            Self::CompleteView => "complete-view",
            Self::FireClock => "fire-clock",
            Self::LostGrace => "lost-grace",
            Self::ChangeLog => "change-log",
            Self::ChangeCursor => "change-cursor",
            Self::Tombstone => "tombstone",
            Self::AbsentRun => "absent-run",
            Self::Slot => "slot",
            Self::SeqInFire => "seq-in-fire",
            Self::FullProof => "full-proof",
            Self::ParentRevision => "parent-revision",
            Self::CheckpointFence => "checkpoint-fence",
            Self::Outbox => "outbox",
            Self::ChainNote => "chain-note",
            Self::FollowNote => "follow-note",
            Self::FollowJob => "follow-job",
            Self::NextLast => "next-last",
            Self::NextJob => "next-job",
            Self::NextOver => "next-over",
            Self::BesideSeq => "beside-seq",
            Self::LateRun => "late-run",
            Self::LateOnce => "late-once",
            Self::RetryWish => "retry-wish",
            Self::RetryJob => "retry-job",
        }
    }

    fn strips_from_change(self, requirement: &Requirement) -> bool {
        let (Requirement::Modified(key, _) | Requirement::Absent(key)) = requirement else {
            return false;
        };
        let (log, cursor, gone) = match self {
            Self::ChangeLog => (true, false, false),
            Self::ChangeCursor => (true, true, false),
            Self::Tombstone => (true, true, true),
            _ => return false,
        };
        let (what, depth) = kind(key);
        (log && (what.as_str(), depth) == ("job", 1))
            || (cursor && what == "cursor")
            || (gone && what == "gone")
    }

    fn strips_from_fire(self, requirement: &Requirement) -> bool {
        match (self, requirement) {
            (Self::SeqInFire, Requirement::Modified(key, _)) => kind(key).0 == "seq",
            (Self::FullProof, Requirement::Created(key, _)) => kind(key).0 == "run",
            _ => false,
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
            (Self::Slot, Requirement::Absent(key)) => kind(key).0 == "slot",
            (Self::Slot, Requirement::Empty(span)) => kind(&span.start).0 == "slot",
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
        let mut require = self.requirements(&txn.require);
        if changes_a_job(txn) {
            require.retain(|requirement| !self.strips_from_change(requirement));
        }
        if moves_a_cursor(txn) {
            require.retain(|requirement| !self.strips_from_fire(requirement));
        }
        let stripped = self == Self::ParentRevision && makes_parts(txn)
            || self == Self::CheckpointFence && keeps_a_checkpoint(txn);
        if stripped {
            require.retain(|requirement| {
                !matches!(requirement, Requirement::Modified(key, _) if kind(key).0 == "run")
            });
        }
        if self == Self::AbsentRun && moves_a_cursor(txn) {
            require.retain(|requirement| {
                !matches!(requirement, Requirement::Absent(key) if kind(key).0 == "run")
            });
        }
        beside::strip(self, txn, &mut require);
        Txn {
            require,
            ops: txn
                .ops
                .iter()
                .filter(|op| !matches!(op, Op::Write(write) if self.leaves_out(write, txn)))
                .map(|op| match op {
                    Op::Write(write) => Op::Write(self.write(write)),
                    Op::Choose {
                        require,
                        then,
                        otherwise,
                    } => Op::Choose {
                        require: beside::chosen(self, self.requirements(require), then),
                        then: then.clone(),
                        otherwise: self.chosen(otherwise),
                    },
                })
                .collect(),
        }
    }
}

impl Ablation {
    /// Whether this is not written at all.
    fn leaves_out(self, write: &Write, txn: &Txn) -> bool {
        let is = |write: &Write, what| kind(write.key()).0 == what;
        match self {
            Self::Clocks => is(write, "clock"),
            Self::Outbox => is(write, "note") && writes(txn).any(|other| is(other, "done")),
            _ => false,
        }
    }

    /// What is written when a choice fails.
    fn chosen(self, writes: &[Write]) -> Vec<Write> {
        let owes = |write: &Write| self == Self::ChainNote && kind(write.key()).0 == "todo";
        let kept = writes.iter().filter(|write| !owes(write));
        kept.cloned().collect()
    }

    /// What is written.
    fn write(self, write: &Write) -> Write {
        let mut write = write.clone();
        if self == Self::LostGrace
            && let Write::Put { key, value, .. } = &mut write
            && kind(key).0 == "run"
            && let Ok(mut record) = decode::<RunRecord>(value)
        {
            record.grace_ms = 0;
            *value = encode(&record);
        }
        write
    }
}

/// The first part of a key behind the namespace, and how many follow.
fn kind(key: &[u8]) -> (String, usize) {
    let text = String::from_utf8_lossy(key);
    let mut parts = text.trim_matches('/').split('/').skip(1);
    let first = parts.next().unwrap_or_default().to_owned();
    (first, parts.count())
}

/// Writes of a transaction that are not chosen.
fn writes(txn: &Txn) -> impl Iterator<Item = &Write> {
    txn.ops.iter().filter_map(|op| match op {
        Op::Write(write) => Some(write),
        Op::Choose { .. } => None,
    })
}

fn changes_a_job(txn: &Txn) -> bool {
    writes(txn)
        .any(|write| matches!(write, Write::Put { key, .. } if kind(key) == ("job".into(), 1)))
}

fn keeps_a_checkpoint(txn: &Txn) -> bool {
    writes(txn).any(|write| matches!(write, Write::Put { key, .. } if kind(key).0 == "progress"))
}

/// Parts of a run, together with the run that counts them.
fn makes_parts(txn: &Txn) -> bool {
    let keys = Keys::new(NAMESPACE);
    let mut part = false;
    let mut whole = false;
    for write in writes(txn) {
        let Write::Put { key, .. } = write else {
            continue;
        };
        if let Some(attempt) = keys.parse_attempt(key).filter(|_| kind(key).0 == "run") {
            let is_part = part_of(&attempt.run).is_some();
            part |= is_part;
            whole |= !is_part;
        }
    }
    part && whole
}

fn moves_a_cursor(txn: &Txn) -> bool {
    writes(txn).any(|write| kind(write.key()).0 == "cursor")
}

impl Ablation {
    /// What a reader is told of an entry.
    #[must_use]
    pub fn entry(self, mut entry: Entry) -> Entry {
        if self == Self::Window
            && Keys::new(NAMESPACE).parse_cursor(&entry.key).is_some()
            && let Ok(mut cursor) = decode::<CursorRecord>(&entry.value)
        {
            // A window that ended before the position is finished.
            let before = cursor.position.at_ms - 1;
            cursor.window = Window {
                from_ms: before,
                until_ms: before,
            };
            entry.value = encode(&cursor);
        }
        entry
    }

    /// What the holder of a lease is told when it renews it.
    #[must_use]
    pub fn renewed(self, mut lease: Lease) -> Lease {
        if self == Self::Trust {
            lease.ttl_ms = 1_000_000_000_000;
        }
        lease
    }

    /// Whether the request never leaves, and its sender is told that somebody else was faster.
    #[must_use]
    pub fn swallows(self, txn: &Txn) -> bool {
        let keys = Keys::new(NAMESPACE);
        self == Self::GiveBack
            && txn
                .require
                .iter()
                .any(|r| matches!(r, Requirement::Modified(key, _) if kind(key).0 == "run"))
            && writes(txn).any(|write| {
                let Write::Put { key, value, .. } = write else {
                    return false;
                };
                let record = keys
                    .parse_attempt(key)
                    .and_then(|_| decode::<RunRecord>(value).ok());
                record.is_some_and(|record| {
                    (kind(key).0 == "run"
                        && record.state == RunState::Pending
                        && record.attempt == attempt_required(&keys, txn))
                        || record.failed == Some(FailReason::NotStarted)
                })
            })
    }

    /// The configuration of a node.
    #[must_use]
    pub fn config(self, config: NodeConfig) -> NodeConfig {
        match self {
            Self::FireClock => NodeConfig {
                max_skew_ms: i64::MAX.unsigned_abs(),
                ..config
            },
            _ => config,
        }
    }
}

/// The attempt whose record the transaction requires.
fn attempt_required(keys: &Keys, txn: &Txn) -> u32 {
    let required = txn
        .require
        .iter()
        .find_map(|requirement| match requirement {
            Requirement::Modified(key, _) => keys.parse_attempt(key),
            _ => None,
        });
    required.map_or(0, |key| key.attempt)
}

/// What is taken away together. A safeguard that another one covers for shows what it is worth only
/// when both are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ablations(u64);

impl Ablations {
    /// Whether nothing is taken away.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether this one is taken away.
    #[must_use]
    pub fn contains(self, ablation: Ablation) -> bool {
        self.0 & (1 << ablation as u32) != 0
    }

    /// All that is taken away.
    pub fn iter(self) -> impl Iterator<Item = Ablation> {
        Ablation::ALL
            .into_iter()
            .filter(move |ablation| self.contains(*ablation))
    }

    /// From names with commas between them.
    ///
    /// # Errors
    /// The name that nobody has.
    pub fn parse(names: &str) -> Result<Self, String> {
        names
            .split(',')
            .map(|name| {
                let found = Ablation::ALL.into_iter().find(|a| a.name() == name);
                found.ok_or(format!("no ablation `{name}`"))
            })
            .collect()
    }

    /// What [`Ablations::parse`] reads.
    #[must_use]
    pub fn names(self) -> String {
        let names: Vec<_> = self.iter().map(Ablation::name).collect();
        names.join(",")
    }

    /// Without what they take away.
    #[must_use]
    pub fn requirements(self, requirements: &[Requirement]) -> Vec<Requirement> {
        self.iter().fold(requirements.to_vec(), |rest, ablation| {
            ablation.requirements(&rest)
        })
    }

    /// Without what they take away.
    #[must_use]
    pub fn txn(self, txn: &Txn) -> Txn {
        self.iter()
            .fold(txn.clone(), |rest, ablation| ablation.txn(&rest))
    }

    /// What a reader is told of an entry.
    #[must_use]
    pub fn entry(self, entry: Entry) -> Entry {
        self.iter()
            .fold(entry, |entry, ablation| ablation.entry(entry))
    }

    /// What the holder of a lease is told when it renews it.
    #[must_use]
    pub fn renewed(self, lease: Lease) -> Lease {
        self.iter()
            .fold(lease, |lease, ablation| ablation.renewed(lease))
    }

    /// Whether the request never leaves.
    #[must_use]
    pub fn swallows(self, txn: &Txn) -> bool {
        self.iter().any(|ablation| ablation.swallows(txn))
    }

    /// The configuration of a node.
    #[must_use]
    pub fn config(self, config: NodeConfig) -> NodeConfig {
        self.iter()
            .fold(config, |config, ablation| ablation.config(config))
    }
}

impl FromIterator<Ablation> for Ablations {
    fn from_iter<T: IntoIterator<Item = Ablation>>(ablations: T) -> Self {
        let bits = ablations
            .into_iter()
            .fold(0, |bits, ablation| bits | 1 << ablation as u32);
        Self(bits)
    }
}

impl From<Ablation> for Ablations {
    fn from(ablation: Ablation) -> Self {
        Self::from_iter([ablation])
    }
}

impl Serialize for Ablations {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_back_as_written() {
        for one in Ablation::ALL {
            assert_eq!(Ablations::parse(one.name()), Ok(one.into()));
        }
        let all: Ablations = Ablation::ALL.into_iter().collect();
        assert_eq!(all.iter().count(), Ablation::ALL.len());
        assert_eq!(Ablations::parse(&all.names()), Ok(all));
        assert!(Ablations::parse("cursor,nothing").is_err());
        assert!(Ablations::default().is_empty());
    }
}
