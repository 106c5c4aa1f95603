//! What an unfinished run says of itself, as operators see it.

use crate::job::progress::ProgressRecord;
use crate::job::record::{RunRecord, decode};
use crate::time::rfc3339_ms;

use super::Control;
use super::types::{CheckpointObject, ControlError, ProgressObject, RunObject};

impl Control {
    /// Adds it to the run, if that is the record's and has not ended.
    pub(super) async fn add_progress(
        &self,
        partition: u16,
        record: &RunRecord,
        run: &mut RunObject,
    ) -> Result<(), ControlError> {
        if record.state.is_terminal() || record.parts.is_some() {
            return Ok(());
        }
        let key = self.keys.progress(partition, &record.job, &record.run);
        let Some(entry) = self.store.get(&key).await? else {
            return Ok(());
        };
        match decode::<ProgressRecord>(&entry.value) {
            Ok(said) => (run.progress, run.checkpoint) = objects(record.attempt, &said),
            Err(error) => {
                tracing::warn!(run = record.run, %error, "the run's progress cannot be read");
            }
        }
        Ok(())
    }
}

/// What an earlier attempt said of its progress is not said of this one; its checkpoint counts.
fn objects(
    attempt: u32,
    said: &ProgressRecord,
) -> (Option<ProgressObject>, Option<CheckpointObject>) {
    let progress = said.progress.as_ref().filter(|_| said.attempt == attempt);
    let progress = progress.map(|progress| ProgressObject {
        fraction: progress.fraction,
        note: progress.note.clone(),
        at: rfc3339_ms(progress.at_ms),
    });
    let checkpoint = said.checkpoint.as_ref();
    let checkpoint = checkpoint.map(|checkpoint| CheckpointObject {
        attempt: checkpoint.attempt,
        at: rfc3339_ms(checkpoint.at_ms),
        bytes: checkpoint.bytes.len() as u64,
    });
    (progress, checkpoint)
}

/// `it had come to 40 % (4 of 10) at 2026-08-12T00:05:07.000Z`.
pub(super) fn words(progress: &ProgressObject) -> String {
    format!("it had come to {progress} at {}", progress.at)
}
