//! What a run says of itself while it runs: how far it has come, and from where it could go on.
//!
//! This is the side of the user's code. What is said here goes to the worker that runs it, which
//! writes it into the store ([`crate::worker`]).

use tokio::sync::{mpsc, oneshot, watch};

/// The largest checkpoint, in bytes.
pub const MAX_CHECKPOINT_BYTES: usize = 64 << 10;
/// The longest note, in characters; what is longer is cut.
pub const MAX_NOTE_CHARS: usize = 200;
/// A run's checkpoints are written at least this far apart.
pub const CHECKPOINT_EVERY_MS: u64 = 1_000;
/// Its progress is written at most so often, unless it goes along with a checkpoint.
pub const PROGRESS_EVERY_MS: u64 = 2_000;

/// Why a checkpoint is not known to be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// It is larger than [`MAX_CHECKPOINT_BYTES`]; nothing was written.
    #[error("the checkpoint has {bytes} bytes; at most {MAX_CHECKPOINT_BYTES} are kept")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// The attempt is over: it has been decided otherwise, because its worker was taken for lost or
    /// its time was up, and another attempt may run already. Nothing more of this one is written;
    /// the code should stop.
    #[error("the attempt was decided otherwise meanwhile; nothing more of it is kept")]
    Fenced,
    /// The store refuses the write for a reason that trying again does not mend.
    #[error("the store refuses the checkpoint: {0}")]
    Store(String),
}

/// How far a run has come, as its code says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Report {
    pub(crate) fraction: f64,
    pub(crate) note: Option<String>,
}

/// A checkpoint on its way, and where to answer.
#[derive(Debug)]
pub(crate) struct Save {
    pub(crate) bytes: Vec<u8>,
    pub(crate) answer: oneshot::Sender<Result<(), CheckpointError>>,
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Reports {
    pub(crate) progress: watch::Receiver<Option<Report>>,
    pub(crate) saves: mpsc::Receiver<Save>,
}

/// The code's end; cheap to clone.
#[derive(Clone, Debug)]
pub struct Reporter {
    progress: watch::Sender<Option<Report>>,
    saves: mpsc::Sender<Save>,
}

impl Reporter {
    /// A connected pair.
    pub(crate) fn new() -> (Self, Reports) {
        let (progress, reported) = watch::channel(None);
        // The next one waits with its caller, who is told when it is kept.
        let (saves, saved) = mpsc::channel(1);
        let reports = Reports {
            progress: reported,
            saves: saved,
        };
        (Self { progress, saves }, reports)
    }

    /// One that nobody listens to, for code that is not run by a worker: progress goes nowhere, and
    /// no checkpoint is kept ([`CheckpointError::Fenced`]).
    #[must_use]
    pub fn detached() -> Self {
        Self::new().0
    }

    pub(crate) fn progress(&self, fraction: f64, note: &str) {
        if fraction.is_nan() {
            return;
        }
        let note: String = note.chars().take(MAX_NOTE_CHARS).collect();
        self.progress.send_replace(Some(Report {
            fraction: fraction.clamp(0.0, 1.0),
            note: Some(note).filter(|note| !note.is_empty()),
        }));
    }

    pub(crate) async fn checkpoint(&self, bytes: &[u8]) -> Result<(), CheckpointError> {
        if bytes.len() > MAX_CHECKPOINT_BYTES {
            return Err(CheckpointError::TooLarge { bytes: bytes.len() });
        }
        let (answer, answered) = oneshot::channel();
        let save = Save {
            bytes: bytes.to_vec(),
            answer,
        };
        // Nobody listens once the attempt has ended.
        self.saves
            .send(save)
            .await
            .map_err(|_| CheckpointError::Fenced)?;
        answered.await.unwrap_or(Err(CheckpointError::Fenced))
    }
}
