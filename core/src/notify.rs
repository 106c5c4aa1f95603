//! Telling people: the seam behind which a message leaves the cluster.

use async_trait::async_trait;

use crate::control::objects::run_object;
use crate::job::notes::NoteRecord;
use crate::job::record::RunRecord;
use crate::job::spec::NotifyEvent;
use crate::time::rfc3339_ms;

/// One event for one receiver: the same bytes however often it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Names the event; the same in every copy, so that a receiver can tell them.
    pub id: String,
    /// What happened.
    pub event: NotifyEvent,
    /// Where to.
    pub webhook: String,
    /// JSON: `id`, `event`, `job_id`, `noted_at`, `run` (a run object).
    pub body: Vec<u8>,
}

/// Why a message was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTaken {
    /// The receiver answered, and takes not this message: others for it may fare better.
    #[error("{0}")]
    Refused(String),
    /// It does not answer, or asks to be left alone: nothing is sent to it for a while.
    #[error("{0}")]
    Away(String),
}

impl From<String> for NotTaken {
    fn from(why: String) -> Self {
        Self::Away(why)
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// The receiver has taken it.
    Sent,
    /// Not this time; it is sent again.
    Failed,
    /// It is not sent any more.
    GivenUp,
}

/// Sends messages out of the cluster.
#[async_trait]
pub trait Notifier: Send + Sync + 'static {
    /// Sends the message once. What takes longer than [`SEND_TIMEOUT_MS`] is given up and sent again.
    ///
    /// [`SEND_TIMEOUT_MS`]: crate::leader::notes::SEND_TIMEOUT_MS
    ///
    /// # Errors
    /// Why the receiver has not taken it, or may not be asked, for people.
    async fn send(&self, message: &Message) -> Result<(), NotTaken>;

    /// Is told what became of each message.
    fn count(&self, delivery: Delivery) {
        let _ = delivery;
    }
}

/// Names an event: the attempt, what happened, and which life of the job.
#[must_use]
pub fn event_id(run: &RunRecord, event: NotifyEvent) -> String {
    let (name, attempt, life) = (&run.run, run.attempt, run.job_uid);
    format!("{name}.{attempt}.{}.{life}", event.as_str())
}

impl Message {
    /// The message that a note asks for.
    #[must_use]
    pub fn of(note: &NoteRecord) -> Self {
        let id = event_id(&note.run, note.event);
        let body = serde_json::json!({
            "id": id,
            "event": note.event,
            "job_id": note.run.job,
            "noted_at": rfc3339_ms(note.since_ms),
            "run": run_object(&note.run, None),
        });
        Self {
            id,
            event: note.event,
            webhook: note.webhook.clone(),
            body: body.to_string().into_bytes(),
        }
    }
}
