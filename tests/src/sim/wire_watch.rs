//! A watch across the wire: late, stalled, ended, or missing something.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::Either;
use punctual::backend::{BackendError, BackendResult, Changes, Event, Watch};
use punctual::env::race;

use super::executor::Executor;
use super::faults::{Cut, Link, Trouble};
use super::rng::Rng;
use super::wire::Counts;

/// See the module.
pub struct WireWatch {
    executor: Executor,
    link: Arc<Link>,
    rng: Rng,
    counts: Counts,
    inner: Box<dyn Watch>,
    /// The link's troubles have been looked at up to here.
    looked_ms: u64,
    stalled: bool,
    /// What has left the store, and when it arrives.
    under_way: Option<(u64, Changes)>,
    repeat: Option<Changes>,
}

impl WireWatch {
    /// An open watch.
    #[must_use]
    pub fn new(
        executor: Executor,
        link: Arc<Link>,
        rng: Rng,
        counts: Counts,
        inner: Box<dyn Watch>,
    ) -> Self {
        Self {
            looked_ms: executor.now_ms(),
            executor,
            link,
            rng,
            counts,
            inner,
            stalled: false,
            under_way: None,
            repeat: None,
        }
    }

    fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap().entry(what).or_default() += 1;
    }

    /// What began since we looked last.
    fn look(&mut self) -> BackendResult<()> {
        let (since, now) = (self.looked_ms, self.executor.now_ms());
        self.looked_ms = now;
        if self.link.began(since, now, Trouble::WatchStall) {
            self.count("watch stalled");
            self.stalled = true;
        }
        if self.link.began(since, now, Trouble::WatchEnd)
            // A connection does not survive being cut.
            || self.link.began(since, now, Trouble::Cut(Cut::Both))
        {
            self.count("watch ended");
            return Err(BackendError::Unavailable("stream ended".into()));
        }
        Ok(())
    }

    fn held_back(&self, now_ms: u64) -> bool {
        self.link.has(now_ms, Trouble::WatchDelay) || !self.link.hears(now_ms)
    }

    /// Waits until something changes on the link, or until `at_ms`.
    async fn wait(&mut self, at_ms: Option<u64>) {
        let change = self.link.next_change(self.executor.now_ms());
        match change.into_iter().chain(at_ms).min() {
            Some(at) => self.executor.sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// What the watcher sees of it.
    fn seen(&mut self, mut changes: Changes) -> Option<Changes> {
        let now = self.executor.now_ms();
        if self.link.has(now, Trouble::WatchDropsDeletes) {
            let all = changes.events.len();
            changes
                .events
                .retain(|event| !matches!(event, Event::Delete { .. }));
            if changes.events.len() < all {
                self.count("watch dropped a delete");
            }
        }
        if changes.events.is_empty() {
            return None;
        }
        if self.link.has(now, Trouble::WatchRepeats) && self.rng.permille(300) {
            self.count("watch repeated");
            self.repeat = Some(changes.clone());
        }
        Some(changes)
    }
}

#[async_trait]
impl Watch for WireWatch {
    async fn next(&mut self) -> BackendResult<Changes> {
        loop {
            self.look()?;
            let now = self.executor.now_ms();
            if self.stalled {
                return std::future::pending().await;
            }
            if self.held_back(now) {
                self.wait(None).await;
                continue;
            }
            if let Some(changes) = self.repeat.take() {
                return Ok(changes);
            }
            if let Some((at, _)) = &self.under_way {
                if *at > now {
                    self.wait(Some(*at)).await;
                    continue;
                }
                if let Some((_, changes)) = self.under_way.take()
                    && let Some(changes) = self.seen(changes)
                {
                    return Ok(changes);
                }
                continue;
            }
            let change = self.link.next_change(now);
            let sleep = async {
                match change {
                    Some(at) => self.executor.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            if let Either::Left(changes) = race(self.inner.next(), sleep).await {
                let delay = self.rng.range(1, 6);
                self.under_way = Some((self.executor.now_ms() + delay, changes?));
            }
        }
    }
}
