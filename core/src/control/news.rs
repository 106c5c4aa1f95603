//! What people are still to be told.

use std::collections::BTreeSet;

use crate::job::notes::NoteRecord;
use crate::job::record::decode;
use crate::job::spec::receiver_of;

use super::Control;
use super::types::ControlError;

/// So many receivers are named.
const NAMED: usize = 5;

/// What waits to be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Untold {
    /// How many messages.
    pub count: u64,
    /// Since when the oldest waits, in Unix milliseconds.
    pub oldest_ms: Option<i64>,
    /// Some of those who are to be told: host and port, since the rest of a URL may be a secret.
    pub receivers: Vec<String>,
}

impl Control {
    /// What people asked to hear and were not told yet.
    ///
    /// # Errors
    /// [`ControlError::Store`].
    pub async fn untold(&self) -> Result<Untold, ControlError> {
        let (entries, _) = self.store.list(&self.keys.notes(), None).await?;
        let notes = entries
            .iter()
            .filter_map(|entry| decode::<NoteRecord>(&entry.value).ok())
            .filter(|note| !note.over);
        let mut untold = Untold::default();
        let mut receivers = BTreeSet::new();
        for note in notes {
            untold.count += 1;
            let oldest_ms = untold.oldest_ms.unwrap_or(note.since_ms);
            untold.oldest_ms = Some(oldest_ms.min(note.since_ms));
            receivers.insert(receiver_of(&note.webhook));
        }
        untold.receivers = receivers.into_iter().take(NAMED).collect();
        Ok(untold)
    }
}
