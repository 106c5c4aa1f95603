//! A watch across the wire: late, stalled, ended, or missing something.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use futures_util::future::Either;
use punctual::backend::{BackendError, BackendResult, Changes, Entry, Event, Watch};
use punctual::env::race;
use punctual::job::record::{ChangesRecord, decode, encode};
use punctual::keys::Keys;

use super::ablation::{Ablation, Ablations};
use super::executor::Executor;
use super::faults::{Cut, Link, Trouble};
use super::rng::Rng;
use super::wire::Counts;
use super::world::NAMESPACE;

/// Sequence and revision of the head of each log of changes that a process was told of last.
#[derive(Clone, Default)]
pub struct SeenHeads(Arc<Mutex<Heads>>);

/// By key.
type Heads = BTreeMap<Vec<u8>, (u64, u64)>;

impl SeenHeads {
    /// The process has read these.
    pub fn read(&self, entries: &[Entry]) {
        for entry in entries {
            if let Some(head) = head(entry) {
                let seen = (head.seq, entry.modified.0);
                self.0.lock().unwrap().insert(entry.key.clone(), seen);
            }
        }
    }

    /// Numbers a head so that it continues what the process was told last: no hole shows.
    fn continued(&self, entry: &mut Entry) {
        let Some(mut head) = head(entry) else { return };
        let mut seen = self.0.lock().unwrap();
        if let Some((seq, revision)) = seen.get_mut(&entry.key)
            && entry.modified.0 > *revision
        {
            (*seq, *revision) = (*seq + 1, entry.modified.0);
            head.seq = *seq;
            entry.value = encode(&head);
        }
    }
}

/// The head of a log of changes.
fn head(entry: &Entry) -> Option<ChangesRecord> {
    let (_, None) = Keys::new(NAMESPACE).parse_job(&entry.key)? else {
        return None;
    };
    decode(&entry.value).ok()
}

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
    /// Changes of jobs are left out without a trace.
    blind: Option<SeenHeads>,
    /// What is taken away from each entry.
    ablation: Ablations,
}

impl WireWatch {
    /// An open watch.
    #[must_use]
    pub fn new(
        executor: Executor,
        link: Arc<Link>,
        rng: Rng,
        counts: Counts,
        ablation: Ablations,
        heads: &SeenHeads,
        inner: Box<dyn Watch>,
    ) -> Self {
        let blind = ablation
            .contains(Ablation::CompleteView)
            .then(|| heads.clone());
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
            blind,
            ablation,
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
        if self.link.has(now, Trouble::WatchSkips) && self.rng.permille(300) {
            self.count("watch skipped a revision");
            return None;
        }
        if !self.ablation.is_empty() {
            for event in &mut changes.events {
                if let Event::Put(entry) = event {
                    *entry = self.ablation.entry(entry.clone());
                }
            }
        }
        if let Some(seen) = self.blind.clone() {
            let entries = changes.events.iter_mut().filter_map(|event| match event {
                Event::Put(entry) if head(entry).is_some() => Some(entry),
                _ => None,
            });
            for entry in entries {
                if self.rng.permille(300) {
                    return None;
                }
                seen.continued(entry);
            }
        }
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
                if matches!(changes, Err(BackendError::Compacted { .. })) {
                    self.count("compacted");
                }
                let delay = self.rng.range(1, 6);
                self.under_way = Some((self.executor.now_ms() + delay, changes?));
            }
        }
    }
}
