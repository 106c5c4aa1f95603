//! How far a run has come, and its last checkpoint: one record for all its attempts.
//!
//! What can go wrong: an attempt that was fenced writes over what its successor has written; a late
//! copy of an older write arrives behind a newer one; a record stays when its run is gone. So each
//! write requires the run's record as it stood when the attempt became RUNNING: whoever ends the
//! attempt consumes that, and nothing of the attempt is written any more. It consumes this record
//! as it was written last, so that each write applies at most once and in order. The transaction
//! that ends the run for good deletes the record ([`super::finish::end`]), and whoever takes a run's
//! record away either does that or makes the next attempt: there is no record without a run.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::backend::{Entry, Requirement, Revision, Txn, TxnOutcome};
use crate::keys::Keys;

use super::finish::Attempt;
use super::record::encode;

/// What stands under `progress/`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgressRecord {
    /// The attempt that wrote this.
    pub attempt: u32,
    /// Its fencing token.
    pub token: u64,
    /// What the attempt has last said of itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// The run's last checkpoint: of this attempt or of one before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// Tells copies of one write from another's write.
    pub nonce: u64,
}

/// How far an attempt has come, as it says itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// From 0 to 1.
    pub fraction: f64,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// When the record was written that first said so, in Unix milliseconds.
    pub at_ms: i64,
}

/// From where the next attempt can go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// The attempt that reached it.
    pub attempt: u32,
    /// When, in Unix milliseconds.
    pub at_ms: i64,
    /// What the run's code wanted to be kept; nobody else reads it.
    #[serde(serialize_with = "write_base64", deserialize_with = "read_base64")]
    pub bytes: Vec<u8>,
}

fn write_base64<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&BASE64_STANDARD.encode(bytes))
}

fn read_base64<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    BASE64_STANDARD.decode(text).map_err(D::Error::custom)
}

/// Writes the record for `attempt`, which is RUNNING; `standing` is the revision of the record as it
/// was written last.
#[must_use]
pub fn write(
    keys: &Keys,
    attempt: &Attempt,
    standing: Option<Revision>,
    record: &ProgressRecord,
) -> Txn {
    let key = keys.progress(attempt.key.partition, &attempt.key.job, &attempt.key.run);
    let guard = match standing {
        Some(revision) => Requirement::Modified(key.clone(), revision),
        // Nothing but the end of the run takes it away, and that takes the attempt along.
        None => Requirement::Absent(key.clone()),
    };
    attempt.guard(keys).require(guard).put(key, encode(record))
}

/// What became of such a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It stands, at this revision.
    Stands(Revision),
    /// The attempt is not ours any more, or has ended: nothing of it is written from now on.
    Fenced,
    /// The attempt is still ours, but the record was not as we knew it: it is at this revision now.
    Other(Option<Revision>),
}

/// Reads the answer to the write of `record`.
#[must_use]
pub fn written(attempt: &Attempt, record: &ProgressRecord, outcome: &TxnOutcome) -> Written {
    let seen = match outcome {
        TxnOutcome::Applied { revision, .. } => return Written::Stands(*revision),
        TxnOutcome::Conflict { seen } => seen,
    };
    let at = |index: usize| -> Option<&Entry> { seen.get(index).and_then(Option::as_ref) };
    if at(0).map(|entry| entry.modified) != Some(attempt.modified) {
        return Written::Fenced;
    }
    match at(1) {
        // An earlier copy of this very request has won.
        Some(entry) if entry.value == encode(record) => Written::Stands(entry.modified),
        other => Written::Other(other.map(|entry| entry.modified)),
    }
}

#[cfg(test)]
#[path = "progress_tests.rs"]
mod tests;
