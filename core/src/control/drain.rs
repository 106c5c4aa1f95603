//! Draining a node: it claims nothing and does not lead, until it is let go.

use std::collections::BTreeSet;

use crate::backend::{Requirement, Txn, TxnOutcome};
use crate::job::record::{DrainRecord, decode, encode};
use crate::time::rfc3339_ms;

use super::types::{ControlError, DrainObject};
use super::{Control, MAX_CONFLICTS, busy};

impl Control {
    /// The node takes no more work and gives up the lead; what it runs goes on. Done once or not at
    /// all, and nothing when it is drained already. Survives a restart of the node.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] for a node that is not there and was never drained.
    pub async fn drain_node(
        &self,
        node: &str,
        reason: Option<String>,
    ) -> Result<DrainObject, ControlError> {
        self.want(node, true, reason).await
    }

    /// The node takes work again.
    ///
    /// # Errors
    /// As [`Control::drain_node`].
    pub async fn undrain_node(&self, node: &str) -> Result<DrainObject, ControlError> {
        self.want(node, false, None).await
    }

    async fn want(
        &self,
        node: &str,
        drained: bool,
        reason: Option<String>,
    ) -> Result<DrainObject, ControlError> {
        let key = self.keys.drain(node);
        let nonce = self.store.env().random_u64();
        for _ in 0..MAX_CONFLICTS {
            let entry = self.store.get(&key).await?;
            let (lives, _) = self.store.list(&self.keys.lives_of(node), None).await?;
            if entry.is_none() && lives.is_empty() {
                return Err(ControlError::NotFound(format!("there is no node `{node}`")));
            }
            let known = entry
                .as_ref()
                .and_then(|entry| decode::<DrainRecord>(&entry.value).ok());
            // What cannot be read is neither, and is written anew.
            let stands = match (&entry, &known) {
                (Some(_), known) => known.as_ref().map(|known| known.drained),
                (None, _) => Some(false),
            };
            if stands == Some(drained) {
                // Ours, if an earlier copy of this request won.
                let ours = known.as_ref().is_some_and(|known| known.nonce == nonce);
                return self.drain_object(node, drained, known, ours).await;
            }
            let record = DrainRecord {
                drained,
                since_ms: self.now_ms(),
                reason: reason.clone(),
                nonce,
            };
            // The key is never deleted, so its absence guards the first write against late copies.
            let guard = match &entry {
                Some(entry) => Requirement::Modified(key.clone(), entry.modified),
                None => Requirement::Absent(key.clone()),
            };
            let txn = Txn::new().require(guard).put(key.clone(), encode(&record));
            if let TxnOutcome::Applied { .. } = self.settle(&txn).await? {
                return self.drain_object(node, drained, Some(record), true).await;
            }
        }
        Err(busy())
    }

    async fn drain_object(
        &self,
        node: &str,
        drained: bool,
        record: Option<DrainRecord>,
        changed: bool,
    ) -> Result<DrainObject, ControlError> {
        let (entries, _) = self.store.list(&self.keys.nodes(), None).await?;
        let out = self.drained().await?;
        let live: BTreeSet<String> = entries
            .iter()
            .filter_map(|entry| self.keys.parse_node(&entry.key))
            .map(|(id, _)| id)
            .filter(|id| !out.contains(id))
            .collect();
        let since_ms = record
            .as_ref()
            .map_or_else(|| self.now_ms(), |r| r.since_ms);
        Ok(DrainObject {
            node: node.to_owned(),
            drained,
            since: rfc3339_ms(since_ms),
            reason: record.and_then(|r| r.reason).filter(|_| drained),
            changed,
            others: live.len(),
        })
    }

    /// The ids of the drained nodes: those whose record cannot be read among them, as for the nodes
    /// themselves.
    pub(super) async fn drained(&self) -> Result<BTreeSet<String>, ControlError> {
        let (entries, _) = self.store.list(&self.keys.drains(), None).await?;
        Ok(entries
            .iter()
            .filter(|entry| decode::<DrainRecord>(&entry.value).map_or(true, |r| r.drained))
            .filter_map(|entry| self.keys.parse_drain(&entry.key))
            .collect())
    }
}
