//! The end of a worker: no new work, and time for what runs.

use std::time::Duration;

use futures_util::future::Either;
use tokio::sync::mpsc;

use crate::cancel::StopCause;
use crate::env::race;

use super::{Input, Worker};

impl Worker {
    /// Waits for running work; what is not done in time is told to stop.
    pub(super) async fn drain(mut self, inbox: &mut mpsc::Receiver<Input>) {
        let env = self.context.store.env().clone();
        if !self.held.is_empty() {
            tracing::info!(running = self.held.len(), "waiting for running work");
        }
        let deadline = env.monotonic_ms() + self.context.drain_timeout_ms;
        let last = deadline + 2 * self.context.kill_grace_ms + 10_000;
        let mut stopped = false;
        while !self.held.is_empty() && env.monotonic_ms() < last {
            self.show();
            if !stopped && env.monotonic_ms() >= deadline {
                stopped = true;
                tracing::warn!(running = self.held.len(), "stopping what still runs");
                for held in self.held.values() {
                    held.canceller.stop(StopCause::Fenced);
                }
            }
            let tick = env.sleep(Duration::from_millis(100));
            if let Either::Left(Some(input)) = race(inbox.recv(), tick).await {
                match input {
                    Input::Ended(_) | Input::Cancels(_) => self.take(input).await,
                    Input::Runs(_) | Input::Nodes(_) => {}
                }
            }
        }
        self.show();
    }
}
