//! What operators do: define, pause, trigger, cancel, look.
//!
//! Everything here talks to the store and to nothing else, so any node can answer, leader or not.
//! Every operation is one guarded transaction that is planned anew after a conflict and sent again
//! as it was after an unknown outcome: it happens once or not at all.

mod apply;
pub mod backfill;
pub mod change;
mod clock;
mod drain;
mod graph;
pub mod hold;
mod jobs;
mod news;
pub(crate) mod objects;
mod pause;
mod progress;
mod read;
mod retry;
mod runs;
mod status;
pub mod types;
mod why;

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{BackendError, CoordinationBackend, Revision, Txn, TxnOutcome};
use crate::bootstrap::read_meta;
use crate::clock::{ClockState, FireClock, Hold};
use crate::env::SharedEnv;
use crate::keys::{Keys, partition_of};
use crate::recipe::retry::Store;

use change::{Heads, RECENT_CHANGES};

pub use news::Untold;
pub use types::{
    AllReport, ApplyReport, BackfillObject, BackfillSlot, BackfillWish, CheckpointObject,
    ClockObject, ControlError, DamagedPartition, DrainObject, JobObject, JobState, NodeObject,
    PageOf, PauseWish, PausedObject, ProgressObject, PutOutcome, RunFilter, RunKind, RunObject,
    SlotHistory, SlotOutcome, StatusObject, Verdict, WhyObject,
};

/// What must be true of a job for a put to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// It does not exist.
    Absent,
    /// It stands at this revision ([`JobObject::revision`]).
    Revision(u64),
}

/// The operators' door.
#[derive(Clone, Debug)]
pub struct Control {
    store: Store,
    keys: Keys,
    clock: Arc<FireClock>,
}

/// Longest wait for an answer of the store.
const CALL_MS: u64 = 2_000;
/// A person waits no longer than this for an operation to settle.
const SETTLE_MS: u64 = 10_000;
/// A change waits no longer than this for the clock of a node that has just started.
const CONFIRM_MS: u64 = 2_000;
/// An operation is planned anew so often; a partition that fires every second conflicts now and
/// then, never this often in a row.
const MAX_CONFLICTS: u32 = 50;
/// As a node's: a change must not take effect in a future that a stepped clock shows.
const CLOCK_SKEW_MS: u64 = 2_000;

impl Control {
    /// Operations on a namespace, by this machine's clock as it stands now. Beside a node use
    /// [`Control::with_clock`]: the node knows better whether the clock is right.
    #[must_use]
    pub fn new(backend: Arc<dyn CoordinationBackend>, env: SharedEnv, namespace: &str) -> Self {
        let clock = Arc::new(FireClock::new(env.clone(), CLOCK_SKEW_MS));
        Self::with_clock(backend, env, namespace, clock)
    }

    /// Operations on a namespace, by the clock of the node that runs beside
    /// ([`Node::clock`](crate::node::Node::clock)). Nothing is changed while that clock is not
    /// believed: an edit through a node whose clock is a year ahead must not take effect in a year.
    #[must_use]
    pub fn with_clock(
        backend: Arc<dyn CoordinationBackend>,
        env: SharedEnv,
        namespace: &str,
        clock: Arc<FireClock>,
    ) -> Self {
        Self {
            clock,
            store: Store::new(backend, env, CALL_MS).unreported(),
            keys: Keys::new(namespace),
        }
    }

    /// What the clock of this node does at the moment.
    #[must_use]
    pub fn clock_state(&self) -> ClockState {
        self.clock.state()
    }

    /// For what people see.
    fn now_ms(&self) -> i64 {
        self.clock.record_ms()
    }

    async fn meta(&self) -> Result<crate::job::record::Meta, ControlError> {
        read_meta(&self.store, &self.keys).await?.ok_or_else(|| {
            ControlError::Store(BackendError::Unavailable(
                "there is no namespace: no node has started yet, or its `meta` was deleted".into(),
            ))
        })
    }

    async fn partition(&self, job: &str) -> Result<u16, ControlError> {
        Ok(partition_of(job, self.meta().await?.partitions))
    }

    /// The time of a change; waits for a node that has just started.
    async fn change_ms(&self) -> Result<i64, ControlError> {
        let env = self.store.env();
        let give_up_ms = env.monotonic_ms() + CONFIRM_MS;
        let unconfirmed = ClockState::Held {
            reason: Hold::Unconfirmed,
        };
        while self.clock.state() == unconfirmed && env.monotonic_ms() < give_up_ms {
            env.sleep(Duration::from_millis(20)).await;
        }
        self.believed_ms()
    }

    fn believed_ms(&self) -> Result<i64, ControlError> {
        let (now_ms, state) = self.clock.record();
        match state {
            // A step that must prove stable: the time is known all the same.
            ClockState::Following
            | ClockState::Held {
                reason:
                    Hold::Step {
                        needs_person: false,
                        ..
                    },
            } => Ok(now_ms),
            ClockState::Held { reason } => Err(ControlError::Busy(format!(
                "this node changes nothing: {reason}, or use another node"
            ))),
        }
    }

    /// Makes a change that was planned from `heads` and calls itself `name`. What conflicts may have
    /// been made all the same, when an answer was lost: then it is not to be planned again.
    async fn make(&self, heads: &Heads, name: u64, txn: &Txn) -> Result<Made, ControlError> {
        if let TxnOutcome::Applied { revision, .. } = self.settle(txn).await? {
            return Ok(Made::Now(revision));
        }
        let now = match read::heads(&self.store, &self.keys, heads.partition).await {
            // An earlier copy may be why it conflicts: that nothing was changed is not known.
            Err(ControlError::Store(BackendError::Unavailable(why))) => {
                return Err(BackendError::Unknown(why).into());
            }
            now => now?,
        };
        if now.changes.recent.contains(&name) {
            return Ok(Made::Before);
        }
        let others = now.changes.seq.saturating_sub(heads.changes.seq);
        if usize::try_from(others).unwrap_or(usize::MAX) > RECENT_CHANGES {
            // It may have been made, and its name forgotten.
            return Err(busy());
        }
        Ok(Made::Not(now))
    }

    /// A name for a change.
    fn name(&self) -> u64 {
        self.store.env().random_u64()
    }

    /// Sends a transaction until it is settled, or a person has waited long enough.
    async fn settle(&self, txn: &Txn) -> Result<TxnOutcome, ControlError> {
        self.believed_ms()?;
        Ok(self.store.settle_within(txn, SETTLE_MS).await?)
    }
}

/// What became of a change.
enum Made {
    /// It was made as this revision.
    Now(Revision),
    /// It was made by an earlier copy of the request, whose answer was lost.
    Before,
    /// It was not, and the partition stands like this now.
    Not(Heads),
}

fn busy() -> ControlError {
    ControlError::Busy("too much changes at once; try again".into())
}
