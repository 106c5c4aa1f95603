//! A run: one fire of a job, as attempts that pass through a small state machine.
//!
//! ```text
//! PENDING -> LOCKED -> RUNNING -> SUCCESS
//!    |         |  \->  PENDING (owner lost or declined: nothing has run)
//!    |         |          \-> FAILED
//!    \---------\-> FAILED
//! ```
//!
//! A run in parts (`fan_out`, `broadcast`) takes a shorter way, and has no owner: the leader makes its
//! parts, and derives its end from theirs.
//!
//! ```text
//! PENDING -> RUNNING -> SUCCESS
//!    |           \-> FAILED
//!    \-> FAILED
//! ```
//!
//! Who is authoritative: the record in the store, and it alone. Every step is a compare-and-set
//! on the record's revision, and [`transition`] is the one function that says whether the step
//! is legal. Terminal states have no way out.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A node's incarnation: the owner of an attempt. A restarted node is another owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Owner {
    /// The node's id.
    pub node: String,
    /// Which life of the node, as 16 hex digits.
    pub incarnation: String,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.node, self.incarnation)
    }
}

/// The state of an attempt, or `SKIPPED` for an instant that was decided not to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RunState {
    /// Created, waiting for a worker.
    Pending,
    /// Claimed by a worker; the user's code has not started.
    Locked,
    /// Durable before the first instruction of the user's code.
    Running,
    /// The user's code ended well.
    Success,
    /// Ended otherwise; the reason says how.
    Failed,
    /// A record of a decision not to run, never a state that a run passes through.
    Skipped,
}

impl RunState {
    /// Every state.
    pub const ALL: [Self; 6] = [
        Self::Pending,
        Self::Locked,
        Self::Running,
        Self::Success,
        Self::Failed,
        Self::Skipped,
    ];

    /// Whether nothing follows.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Success | Self::Failed | Self::Skipped)
    }

    /// As in JSON: `PENDING`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Locked => "LOCKED",
            Self::Running => "RUNNING",
            Self::Success => "SUCCESS",
            Self::Failed => "FAILED",
            Self::Skipped => "SKIPPED",
        }
    }
}

impl fmt::Display for RunState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailReason {
    /// The command ended with a status other than 0, or by a signal.
    Exit,
    /// The handler returned an error, the command could not be started, or the URL could not be called
    /// or answered that it did not go well.
    Error,
    /// The handler panicked.
    Panic,
    /// Longer than the job's `timeout`.
    Timeout,
    /// The worker vanished while it was running: the outcome is unknown.
    WorkerLost,
    /// Somebody asked for it.
    Cancelled,
    /// Waited too long to be started.
    Expired,
    /// No live node could run it.
    NoHandler,
    /// Stopped by its own worker, which could no longer prove its session.
    Fenced,
    /// Marked RUNNING, but the user's code was never started.
    NotStarted,
}

impl FailReason {
    /// Every reason.
    pub const ALL: [Self; 10] = [
        Self::Exit,
        Self::Error,
        Self::Panic,
        Self::Timeout,
        Self::WorkerLost,
        Self::Cancelled,
        Self::Expired,
        Self::NoHandler,
        Self::Fenced,
        Self::NotStarted,
    ];

    /// As in JSON: `worker_lost`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::Error => "error",
            Self::Panic => "panic",
            Self::Timeout => "timeout",
            Self::WorkerLost => "worker_lost",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
            Self::NoHandler => "no_handler",
            Self::Fenced => "fenced",
            Self::NotStarted => "not_started",
        }
    }
}

impl fmt::Display for FailReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why an instant was decided not to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// The run before was not finished, and the job says `overlap: skip`; or its queue was full.
    Overlap,
    /// Missed while nobody led, and the job's `misfire` policy drops it.
    Misfire,
    /// The job was paused.
    Paused,
    /// The schedule excludes the date.
    Excluded,
    /// Older than the job's `start_deadline` when it was decided.
    Deadline,
    /// The local time does not exist on that day, and the job says `dst.gap: skip`.
    DstGap,
    /// The job was deleted before the instant was decided.
    Deleted,
}

impl SkipReason {
    /// As in JSON: `dst_gap`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Overlap => "overlap",
            Self::Misfire => "misfire",
            Self::Paused => "paused",
            Self::Excluded => "excluded",
            Self::Deadline => "deadline",
            Self::DstGap => "dst_gap",
            Self::Deleted => "deleted",
        }
    }
}

/// Something that happens to an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEvent {
    /// A worker with a live session takes it.
    Claim(Owner),
    /// The owner is about to start the user's code.
    Start(Owner),
    /// The owner gives it back before anything has run.
    Decline(Owner),
    /// The owner reports the end of the user's code.
    Finish(Owner, Ending),
    /// Whoever may decide ends it although nothing has run: cancelled, expired, no handler.
    Abandon(FailReason),
    /// The leader finds the owner's session gone.
    Recover,
    /// The leader ends an attempt whose executor is wedged long past its time limit.
    Overrun,
    /// The leader makes parts of a run in parts.
    Expand,
    /// The leader derives the end of a run in parts from theirs.
    Derive(Ending),
}

/// How the user's code ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Well.
    Success,
    /// Not well.
    Failed(FailReason),
}

/// A state together with what must be known to leave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// [`RunState::Pending`].
    Pending,
    /// [`RunState::Locked`] by this owner.
    Locked(Owner),
    /// [`RunState::Running`] at this owner.
    Running(Owner),
    /// [`RunState::Pending`], a run in parts of which none is made.
    Whole,
    /// [`RunState::Running`], a run in parts.
    InParts,
    /// [`RunState::Success`].
    Success,
    /// [`RunState::Failed`], and why.
    Failed(FailReason),
}

impl Phase {
    /// The state's name.
    #[must_use]
    pub fn state(&self) -> RunState {
        match self {
            Self::Pending | Self::Whole => RunState::Pending,
            Self::Locked(_) => RunState::Locked,
            Self::Running(_) | Self::InParts => RunState::Running,
            Self::Success => RunState::Success,
            Self::Failed(_) => RunState::Failed,
        }
    }

    /// The owner, while there is one.
    #[must_use]
    pub fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Locked(owner) | Self::Running(owner) => Some(owner),
            _ => None,
        }
    }
}

/// A step that the state machine does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IllegalTransition {
    /// Terminal states never change.
    #[error("{event} on an attempt that ended as {state}")]
    Terminal {
        /// The state.
        state: RunState,
        /// The event's name.
        event: &'static str,
    },
    /// The event does not apply in this state.
    #[error("{event} is not possible while {state}")]
    WrongState {
        /// The state.
        state: RunState,
        /// The event's name.
        event: &'static str,
    },
    /// The attempt belongs to somebody else.
    #[error("{event} by {by}, but the attempt belongs to {owner}")]
    NotOwner {
        /// The event's name.
        event: &'static str,
        /// Who tried.
        by: Owner,
        /// Whose it is.
        owner: Owner,
    },
    /// The reason does not fit the event.
    #[error("{event} cannot end an attempt as {reason}")]
    WrongReason {
        /// The event's name.
        event: &'static str,
        /// The reason.
        reason: FailReason,
    },
    /// The attempt is for another node.
    #[error("only node {node} may take it")]
    OtherNode {
        /// The node.
        node: String,
    },
}

impl RunEvent {
    /// The event's name, for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Claim(_) => "claim",
            Self::Start(_) => "start",
            Self::Decline(_) => "decline",
            Self::Finish(..) => "finish",
            Self::Abandon(_) => "abandon",
            Self::Recover => "recover",
            Self::Overrun => "overrun",
            Self::Expand => "expand",
            Self::Derive(_) => "derive",
        }
    }
}

/// The phase that follows, or why there is none. Total: every pair of phase and event is decided
/// here, and nowhere else.
///
/// # Errors
/// [`IllegalTransition`] when the diagram has no such edge.
pub fn transition(phase: &Phase, event: &RunEvent) -> Result<Phase, IllegalTransition> {
    let name = event.name();
    let own = |owner: &Owner, by: &Owner| {
        if owner == by {
            Ok(())
        } else {
            Err(IllegalTransition::NotOwner {
                event: name,
                by: by.clone(),
                owner: owner.clone(),
            })
        }
    };
    match (phase, event) {
        (Phase::Pending, RunEvent::Claim(by)) => Ok(Phase::Locked(by.clone())),
        (Phase::Pending, RunEvent::Abandon(reason)) => match reason {
            FailReason::Cancelled | FailReason::Expired | FailReason::NoHandler => {
                Ok(Phase::Failed(*reason))
            }
            reason => Err(IllegalTransition::WrongReason {
                event: name,
                reason: *reason,
            }),
        },
        (Phase::Locked(owner), RunEvent::Start(by)) => {
            own(owner, by).map(|()| Phase::Running(by.clone()))
        }
        (Phase::Locked(owner), RunEvent::Decline(by)) => own(owner, by).map(|()| Phase::Pending),
        (Phase::Locked(_), RunEvent::Recover) => Ok(Phase::Pending),
        (Phase::Locked(_), RunEvent::Abandon(reason)) => match reason {
            FailReason::Cancelled | FailReason::Expired => Ok(Phase::Failed(*reason)),
            reason => Err(IllegalTransition::WrongReason {
                event: name,
                reason: *reason,
            }),
        },
        (Phase::Running(owner), RunEvent::Finish(by, ending)) => {
            own(owner, by)?;
            match ending {
                Ending::Success => Ok(Phase::Success),
                // `worker_lost` is possible: the owner has lost its own executor, and knows no more
                // than if it had vanished itself.
                Ending::Failed(reason @ (FailReason::Expired | FailReason::NoHandler)) => {
                    Err(IllegalTransition::WrongReason {
                        event: name,
                        reason: *reason,
                    })
                }
                Ending::Failed(reason) => Ok(Phase::Failed(*reason)),
            }
        }
        (Phase::Running(_), RunEvent::Recover) => Ok(Phase::Failed(FailReason::WorkerLost)),
        (Phase::Running(_), RunEvent::Overrun) => Ok(Phase::Failed(FailReason::Timeout)),
        (Phase::Whole | Phase::InParts, RunEvent::Expand) => Ok(Phase::InParts),
        (Phase::Whole, RunEvent::Abandon(reason)) => match reason {
            FailReason::Cancelled | FailReason::NoHandler => Ok(Phase::Failed(*reason)),
            reason => Err(IllegalTransition::WrongReason {
                event: name,
                reason: *reason,
            }),
        },
        (Phase::InParts, RunEvent::Derive(ending)) => match ending {
            Ending::Success => Ok(Phase::Success),
            Ending::Failed(reason @ (FailReason::Error | FailReason::Cancelled)) => {
                Ok(Phase::Failed(*reason))
            }
            Ending::Failed(reason) => Err(IllegalTransition::WrongReason {
                event: name,
                reason: *reason,
            }),
        },
        (Phase::Success | Phase::Failed(_), _) => Err(IllegalTransition::Terminal {
            state: phase.state(),
            event: name,
        }),
        (
            Phase::Pending | Phase::Locked(_) | Phase::Running(_) | Phase::Whole | Phase::InParts,
            _,
        ) => Err(IllegalTransition::WrongState {
            state: phase.state(),
            event: name,
        }),
    }
}
