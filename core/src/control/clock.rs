//! A person's word that a node's clock is right.

use std::time::Duration;

use crate::backend::{BackendError, Entry, Requirement, Txn, TxnOutcome, Write};
use crate::clock::Accepted;
use crate::job::record::{ClockRecord, decode, encode};

use super::types::{ClockObject, ControlError};
use super::{Control, SETTLE_MS};

/// A node that was told is looked at so often.
const LOOK: Duration = Duration::from_millis(100);

impl Control {
    /// A person says that this node's wall clock is right: a step that it holds for is believed at
    /// once. Nothing happens when it holds for none.
    ///
    /// # Errors
    /// [`ControlError::Conflict`] when it is held for something else.
    pub fn accept_clock(&self, node: &str) -> Result<ClockObject, ControlError> {
        match self.clock.accept(None) {
            Accepted::Step { step_ms } => {
                tracing::warn!(step_ms, "a person says that this clock is right");
                Ok(object(node, true))
            }
            Accepted::Already => Ok(object(node, false)),
            Accepted::Refused(reason) => Err(refused(node, &reason.to_string())),
            Accepted::Moved => Err(refused(node, "it stepped again")),
        }
    }

    /// The same for another node, which is told through the store: into the record of its clock,
    /// so that what is accepted is what the record shows, and nothing is left of it when the node ends.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] when there is no such node, [`ControlError::Conflict`] when it does
    /// not accept, [`ControlError::Busy`] when it does not answer.
    pub async fn accept_clock_of(&self, node: &str) -> Result<ClockObject, ControlError> {
        let key = self.keys.clock(node);
        let env = self.store.env();
        let give_up_ms = env.monotonic_ms() + SETTLE_MS;
        let mut told = None;
        loop {
            let Some(entry) = self.store.get(&key).await? else {
                return Err(gone(node));
            };
            let record: ClockRecord = decode(&entry.value)
                .map_err(|error| ControlError::Conflict(format!("{node}: {error}")))?;
            match (&record.held, told) {
                (None, _) => return Ok(object(node, told.is_some())),
                (Some(_), _) if record.accepted => {}
                // It has answered.
                (Some(held), Some(told)) if told != entry.modified => {
                    return Err(refused(node, held));
                }
                (Some(_), _) => told = self.tell(node, entry, record).await?.or(told),
            }
            if env.monotonic_ms() >= give_up_ms {
                return Err(ControlError::Busy(format!(
                    "{node} was told, and has not answered; look at `status`"
                )));
            }
            env.sleep(LOOK).await;
        }
    }

    /// The revision of the record with the word in it; none when the node wrote meanwhile.
    async fn tell(
        &self,
        node: &str,
        entry: Entry,
        record: ClockRecord,
    ) -> Result<Option<crate::backend::Revision>, ControlError> {
        let said = ClockRecord {
            accepted: true,
            ..record
        };
        let txn = Txn::new()
            .require(Requirement::Modified(entry.key.clone(), entry.modified))
            .op(Write::Put {
                key: entry.key,
                value: encode(&said),
                lease: entry.lease,
            });
        // Also by a node whose own clock is held: nothing here depends on its time.
        match self.store.settle_within(&txn, SETTLE_MS).await {
            Ok(TxnOutcome::Applied { revision, .. }) => Ok(Some(revision)),
            Ok(TxnOutcome::Conflict { .. }) => Ok(None),
            Err(BackendError::LeaseLost) => Err(gone(node)),
            Err(error) => Err(error.into()),
        }
    }
}

fn object(node: &str, accepted: bool) -> ClockObject {
    ClockObject {
        node: node.to_owned(),
        accepted,
    }
}

fn gone(node: &str) -> ControlError {
    ControlError::NotFound(format!("there is no node `{node}` that tells its time"))
}

fn refused(node: &str, reason: &str) -> ControlError {
    ControlError::Conflict(format!("{node} does not accept its clock: {reason}"))
}
