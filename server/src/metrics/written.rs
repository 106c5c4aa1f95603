//! What a transaction did to the schedule, from what it wrote; and what one that was refused tells.
//!
//! Whoever decides, claims or ends writes it, whatever the way there, so one look at the writes finds
//! them all. What can go wrong: a transaction whose answer is lost is made again and then refused by
//! itself. It is not counted as having done anything: too few is the only way to be wrong here.

use punctual::backend::{Key, Op, Requirement, Seen, Span, Txn, Write};
use punctual::job::record::decode;
use punctual::job::run::{FailReason, RunState};
use punctual::keys::{AttemptKey, Keys, part_of};
use serde::Deserialize;

/// Something that a node counts.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Did<'a> {
    /// A run was made; for this instant of the schedule, if so, in Unix milliseconds.
    Fired { job: &'a str, at_ms: Option<i64> },
    /// A run was to be made and was there already.
    Met { job: &'a str },
    /// The record of an instant that does not run was written.
    Skipped { job: &'a str },
    /// An attempt was started that might have been claimed so long before it was.
    Started { waited_ms: i64 },
    /// An attempt ended because its worker was gone.
    Lost,
    /// A result was put beside the end that somebody else had decided.
    CameLate,
    /// This node took the lead.
    Led,
    /// A write was refused since whoever wrote it had lost the right to.
    Fenced { op: &'static str },
}

/// Reads transactions of one namespace.
pub(super) struct Reader {
    keys: Keys,
    leader: Key,
    nodes: Span,
    runs: Span,
    done: Span,
}

/// What is to be known of an attempt that has not ended: less work than to decode all of it.
#[derive(Deserialize)]
struct Alive {
    state: RunState,
    scheduled_ms: i64,
    not_before_ms: i64,
    created_ms: i64,
    #[serde(default)]
    locked_ms: Option<i64>,
}

/// The same of one that has.
#[derive(Deserialize)]
struct Ended {
    #[serde(default)]
    failed: Option<FailReason>,
}

impl Reader {
    pub(super) fn new(namespace: &str) -> Self {
        let keys = Keys::new(namespace);
        Self {
            leader: keys.leader(),
            nodes: keys.nodes(),
            runs: keys.runs(),
            done: keys.all_done(),
            keys,
        }
    }

    /// What a transaction did that was applied, with these choices.
    pub(super) fn applied(&self, txn: &Txn, chosen: &[bool], mut tell: impl FnMut(Did<'_>)) {
        // (Whoever takes a step requires the very record that it writes anew; who makes one does not.)
        let consumed = txn.require.iter().filter_map(|required| match required {
            Requirement::Modified(key, _) => Some(key),
            _ => None,
        });
        let consumed: Vec<&Key> = consumed.collect();
        let mut chosen = chosen.iter();
        for op in &txn.ops {
            let made = match op {
                Op::Write(write) => std::slice::from_ref(write),
                Op::Choose {
                    then, otherwise, ..
                } => match chosen.next() {
                    Some(true) => then,
                    _ => otherwise,
                },
            };
            for write in made {
                let Write::Put { key, value, .. } = write else {
                    continue;
                };
                if *key == self.leader {
                    tell(Did::Led);
                } else if let Some(at) = self.keys.parse_attempt(key) {
                    let is_new = !consumed.contains(&key);
                    self.attempt((key, &at), value, is_new, &mut tell);
                }
            }
        }
    }

    fn attempt(
        &self,
        (key, at): (&Key, &AttemptKey),
        value: &[u8],
        is_new: bool,
        tell: &mut impl FnMut(Did<'_>),
    ) {
        let job = at.job.as_str();
        if self.runs.contains(key) {
            // (A part is made of a run, and no run itself.)
            let fires = at.attempt == 1 && part_of(&at.run).is_none() && is_new;
            let Ok(alive) = decode::<Alive>(value) else {
                return;
            };
            match alive.state {
                RunState::Pending if fires => tell(Did::Fired {
                    job,
                    at_ms: is_of_schedule(at).then_some(alive.scheduled_ms),
                }),
                // (Not when it is claimed: a node that cannot run it gives it back, and claims it again.)
                RunState::Running => {
                    let ready_ms = alive.created_ms.max(alive.not_before_ms);
                    let locked_ms = alive.locked_ms.unwrap_or(ready_ms);
                    tell(Did::Started {
                        // (The clocks of two nodes; a claim is never before its run.)
                        waited_ms: locked_ms.saturating_sub(ready_ms).max(0),
                    });
                }
                _ => {}
            }
        } else if self.done.contains(key) {
            if at.attempt == 0 {
                tell(Did::Skipped { job });
            } else if let Ok(Ended {
                failed: Some(FailReason::WorkerLost),
            }) = decode(value)
            {
                tell(Did::Lost);
            }
        } else if *key == self.keys.late(at) {
            tell(Did::CameLate);
        }
    }

    /// What is to be learnt from a transaction that was refused.
    pub(super) fn refused(&self, txn: &Txn, seen: &Seen, mut tell: impl FnMut(Did<'_>)) {
        for (required, stood) in txn.require.iter().zip(seen) {
            let (Requirement::Absent(key), Some(stood)) = (required, stood) else {
                continue;
            };
            if *key == self.leader {
                // The answer to an earlier copy was lost: the key is under our own lease.
                let ours = |op: &Op| match op {
                    Op::Write(Write::Put { key, lease, .. }) => {
                        *key == self.leader && lease.is_some() && *lease == stood.lease
                    }
                    _ => false,
                };
                if txn.ops.iter().any(ours) {
                    tell(Did::Led);
                }
            } else if self.runs.contains(key)
                && let Some(at) = self.keys.parse_attempt(key)
                && at.attempt == 1
                && part_of(&at.run).is_none()
            {
                tell(Did::Met { job: &at.job });
            }
        }
        self.fenced(&txn.require, seen, tell);
    }

    /// Whether these requirements did not hold because a term or a session is over.
    pub(super) fn fenced(
        &self,
        require: &[Requirement],
        seen: &Seen,
        mut tell: impl FnMut(Did<'_>),
    ) {
        for (required, stood) in require.iter().zip(seen) {
            if let Requirement::Created(key, revision) = required
                && stood.as_ref().map(|entry| entry.created) != Some(*revision)
            {
                if *key == self.leader {
                    tell(Did::Fenced { op: LEAD });
                } else if self.nodes.contains(key) {
                    tell(Did::Fenced { op: WORK });
                }
            }
        }
    }
}

/// Under a term.
pub(super) const LEAD: &str = "lead";
/// Under a session.
pub(super) const WORK: &str = "work";

/// `job@instant`: a cursor has passed the instant. All other runs are made when somebody or something
/// asks for them, so that none of them is late.
fn is_of_schedule(at: &AttemptKey) -> bool {
    at.run
        .strip_prefix(at.job.as_str())
        .is_some_and(|rest| rest.starts_with('@'))
}

#[cfg(test)]
#[path = "written_tests.rs"]
mod tests;
