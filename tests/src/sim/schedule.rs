//! One simulation as data: nodes, faults, operations. Made from a seed; can be printed, made
//! smaller, and run again.

use punctual::job::spec::JobSpec;
use punctual::node::NodeConfig;
use serde::Serialize;

use super::ablation::Ablations;
use super::faults::Window;

/// How a node is made.
#[derive(Clone, Debug, Serialize)]
pub struct NodePlan {
    /// Where its monotonic clock starts.
    pub mono_base_ms: u64,
    /// How much faster that one goes.
    pub drift_ppm: i64,
    /// How far ahead its wall clock is.
    pub offset_ms: i64,
    /// How many runs at once.
    pub slots: u32,
    /// Whether it can run the simulated jobs at all.
    pub has_handler: bool,
    /// When it is started first.
    pub start_ms: u64,
}

/// Times of the nodes' configuration, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Times {
    /// Time to live of a leadership.
    pub leader_ttl_ms: u64,
    /// Time to live of a session.
    pub session_ttl_ms: u64,
    /// How long code that was told to stop may take.
    pub kill_grace_ms: u64,
    /// How long a session must be gone before its runs are taken.
    pub lost_grace_ms: u64,
    /// Longest wait for an answer of the store.
    pub store_timeout_ms: u64,
    /// Every other node has the shortest session and graces that are allowed, so that the nodes do
    /// not agree.
    pub mixed: bool,
}

impl Times {
    /// The configuration of a node.
    #[must_use]
    pub fn config(&self, index: usize, config: NodeConfig) -> NodeConfig {
        let config = NodeConfig {
            leader_ttl_ms: self.leader_ttl_ms,
            session_ttl_ms: self.session_ttl_ms,
            kill_grace_ms: self.kill_grace_ms,
            lost_grace_ms: self.lost_grace_ms,
            store_timeout_ms: self.store_timeout_ms,
            ..config
        };
        if self.mixed && index.is_multiple_of(2) {
            return NodeConfig {
                session_ttl_ms: 2_000,
                kill_grace_ms: 0,
                lost_grace_ms: 2_000,
                ..config
            };
        }
        config
    }
}

impl Default for Times {
    fn default() -> Self {
        let config = NodeConfig::default();
        Self {
            leader_ttl_ms: config.leader_ttl_ms,
            session_ttl_ms: config.session_ttl_ms,
            kill_grace_ms: config.kill_grace_ms,
            lost_grace_ms: config.lost_grace_ms,
            store_timeout_ms: config.store_timeout_ms,
            mixed: false,
        }
    }
}

/// A fault.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Fault {
    /// Trouble on a node's link.
    Link {
        /// The node.
        node: usize,
        /// When and what.
        window: Window,
    },
    /// The node dies and starts again later.
    Crash {
        /// The node.
        node: usize,
        /// For so long.
        down_ms: u64,
    },
    /// The node is told to leave, and starts again later.
    Leave {
        /// The node.
        node: usize,
        /// It starts again so long after the request.
        down_ms: u64,
    },
    /// The node stands still.
    Pause {
        /// The node.
        node: usize,
        /// For so long.
        for_ms: u64,
    },
    /// As [`Fault::Pause`], for whichever node leads then.
    PauseLeader {
        /// For so long.
        for_ms: u64,
    },
    /// As [`Fault::Crash`], for whichever node leads then.
    CrashLeader {
        /// For so long.
        down_ms: u64,
    },
    /// The store ends the leases of a node's keys.
    RevokeNode {
        /// The node.
        node: usize,
    },
    /// The store ends the leader's lease.
    RevokeLeader,
    /// The store prolongs all leases, as an etcd whose leader changes.
    ProlongLeases,
    /// The node's wall clock steps.
    Step {
        /// The node.
        node: usize,
        /// To so much ahead of where it was at the start.
        ms: i64,
    },
    /// The node's wall clock moves by so much from where it is.
    Creep {
        /// The node.
        node: usize,
        /// Forward, in milliseconds.
        ms: i64,
    },
    /// The node dies and boots with a wrong clock.
    BootWrong {
        /// The node.
        node: usize,
        /// It starts again after so long.
        down_ms: u64,
        /// So far ahead of where it should be.
        ms: i64,
        /// So long after the start its clock is set right.
        right_after_ms: u64,
    },
    /// Somebody writes the run of an instant into the store, past the cursor.
    ForeignRun {
        /// Of this job.
        job: String,
        /// The instant, in virtual time.
        instant_ms: u64,
    },
    /// Somebody writes bytes that mean nothing over a record, or deletes it, and puts it back later.
    Spoil {
        /// The record.
        record: Spoilt,
        /// Deletes it instead.
        delete: bool,
        /// It is put back after so long; `None`: never.
        for_ms: Option<u64>,
    },
    /// Somebody writes the leader's key as it is, without its lease.
    TakeLeaderLease,
    /// The store forgets its history up to so many revisions ago.
    Compact {
        /// Revisions that are kept.
        keep: u64,
    },
}

/// A record that somebody spoils by hand.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Spoilt {
    /// A partition's cursor.
    Cursor(u16),
    /// The head of a partition's log of changes.
    Changes(u16),
    /// The wish about a node.
    Drain(String),
}

/// What an operator does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Op {
    /// Create or edit.
    Put(Box<JobSpec>),
    /// Several at once.
    Apply(Vec<JobSpec>),
    /// Hold.
    Pause(String),
    /// Hold until then, in Unix milliseconds.
    PauseUntil(String, i64),
    /// Hold all jobs, until then if there is an end.
    PauseAll(Option<i64>),
    /// Let go.
    Resume(String),
    /// Let go what was held with all jobs.
    ResumeAll,
    /// Delete.
    Delete(String),
    /// Run now.
    Trigger(String, String),
    /// End the newest unfinished run.
    Cancel(String),
    /// Repeat the newest run that has failed, with this key.
    Retry(String, String),
    /// Run the instants from so long ago until so long ago, in milliseconds, with this key; also
    /// those that have fired.
    Backfill(String, [u64; 2], String, bool),
    /// Give a node no more work, or give it work again.
    Drain(String, bool),
}

/// One simulation.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Where all random numbers come from.
    pub seed: u64,
    /// The scenario's name.
    pub scenario: String,
    /// Unix milliseconds of virtual time 0.
    pub epoch_ms: i64,
    /// The nodes.
    pub nodes: Vec<NodePlan>,
    /// How often views are listed anew.
    pub relist_ms: u64,
    /// How long an instant may stay undecided before a standby deposes the leader; 0: never.
    pub overdue_takeover_ms: u64,
    /// Other times.
    pub times: Times,
    /// What goes wrong, and when.
    pub faults: Vec<(u64, Fault)>,
    /// What operators do: when, through which node's link, what.
    pub ops: Vec<(u64, usize, Op)>,
    /// When everything is healed.
    pub heal_ms: u64,
    /// When it ends.
    pub end_ms: u64,
    /// Safeguards that are taken away.
    pub ablation: Ablations,
    /// The articles' design instead of the product.
    pub naive: bool,
}

impl Plan {
    /// The largest distance of a wall clock from true time that a node may believe.
    #[must_use]
    pub fn skew_ms(&self) -> i64 {
        let offsets = self.nodes.iter().map(|n| n.offset_ms.abs());
        // A clock that is further off is one that no node believes: the others are against it.
        let offset = offsets.filter(|offset| *offset <= MAX_SKEW_MS).max();
        let steps: i64 = self
            .faults
            .iter()
            .map(|(_, fault)| match fault {
                // A larger one is not believed before a minute has passed, and undone before.
                Fault::Step { ms, .. } => ms.abs().min(MAX_SKEW_MS),
                Fault::BootWrong { ms, .. } => ms.abs().min(MAX_SKEW_MS + DELAY_MS + RATE_MS),
                Fault::Creep { .. } => MAX_SKEW_MS + DELAY_MS + RATE_MS,
                _ => 0,
            })
            .max()
            .unwrap_or(0);
        offset.unwrap_or(0) + steps
    }
}

/// As the nodes are configured.
const MAX_SKEW_MS: i64 = 2_000;
/// A difference that is smaller than the delay of messages cannot be shown. (Nothing is slow where
/// clocks are compared in earnest.)
const DELAY_MS: i64 = 50;
/// An exchange gets older until the next one, and clocks may run by one in a hundred too fast.
const RATE_MS: i64 = 2_000;
