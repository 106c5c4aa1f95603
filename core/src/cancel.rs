//! Telling running user code to stop, and why.

use tokio::sync::watch;

/// Why a run was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// Somebody cancelled the run.
    Cancelled,
    /// It took longer than the job's `timeout`.
    Timeout,
    /// Its worker can no longer prove its session, and somebody might start it again elsewhere.
    Fenced,
}

/// The side that stops.
#[derive(Debug)]
pub struct Canceller(watch::Sender<Option<StopCause>>);

/// The side that listens; cheap to clone.
#[derive(Clone, Debug)]
pub struct CancelToken(watch::Receiver<Option<StopCause>>);

impl Canceller {
    /// A connected pair.
    #[must_use]
    pub fn new() -> (Self, CancelToken) {
        let (sender, receiver) = watch::channel(None);
        (Self(sender), CancelToken(receiver))
    }

    /// Tells the run to stop. The first cause stays.
    pub fn stop(&self, cause: StopCause) {
        self.0.send_if_modified(|current| {
            let first = current.is_none();
            current.get_or_insert(cause);
            first
        });
    }
}

impl CancelToken {
    /// Whether the run was told to stop, and why.
    #[must_use]
    pub fn cause(&self) -> Option<StopCause> {
        *self.0.borrow()
    }

    /// Whether the run was told to stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cause().is_some()
    }

    /// Waits until the run is told to stop; for ever if it is not.
    pub async fn cancelled(&self) -> StopCause {
        let mut receiver = self.0.clone();
        loop {
            if let Some(cause) = *receiver.borrow_and_update() {
                return cause;
            }
            if receiver.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
