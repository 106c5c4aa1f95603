//! What this node holds: an attempt that is being claimed, or that runs.

use std::sync::Arc;

use crate::cancel::Canceller;
use crate::env::TaskHandle;

/// An attempt that is ours.
pub(super) struct Held {
    pub(super) canceller: Arc<Canceller>,
    /// Ends the execution when dropped; `None` while it is being claimed.
    pub(super) task: Option<TaskHandle>,
}

impl Held {
    pub(super) fn new() -> Self {
        Self {
            canceller: Arc::new(Canceller::new().0),
            task: None,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The task has ended by itself when its key is let go, except at the very end of a drain.
        drop(self.task.take());
    }
}
