//! The in-memory store: [`punctual::model`] behind a lock.
//!
//! For simulations, tests and trying things out. Nothing survives the process; apart from that it
//! promises all that [`CoordinationBackend`] does, since the model decides every answer.
//!
//! # What can go wrong here, and does not
//! * **Time.** It comes from the [`Env`](punctual::env::Env) alone. Leases end when a call finds
//!   their time over, and in any case by a *reaper* task, so that a watcher hears of it on a
//!   store without traffic. The reaper starts with the first lease, sleeps until the next
//!   deadline, and is woken when an earlier one appears.
//! * **Slow watchers.** A watch is a place in the model's bounded history, not a queue: it costs
//!   no memory while nobody reads it, and one that falls behind the history ends in
//!   [`Compacted`](BackendError::Compacted).
//! * **A panic inside the model** would leave a state that nobody vouches for: from then on every
//!   call answers [`Broken`](BackendError::Broken).

mod reaper;
mod watch;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use async_trait::async_trait;
use punctual::backend::{
    BackendError, BackendInfo, BackendResult, BatchOutcome, CoordinationBackend, Entry, Lease,
    LeaseId, Page, PageLimit, Requirement, Revision, Span, Txn, TxnOutcome, Usage, Watch,
};
use punctual::env::{SharedEnv, TaskHandle};
use punctual::model::{Model, Retention, Step};
use tokio::sync::Notify;

/// A store in memory. Clones are handles on the same store.
#[derive(Clone)]
pub struct MemoryBackend {
    shared: Arc<Shared>,
}

struct Shared {
    env: SharedEnv,
    model: Mutex<Model>,
    watches: watch::Watches,
    /// Wakes the reaper: a lease ends earlier than it knew.
    earlier: Arc<Notify>,
    reaper: OnceLock<TaskHandle>,
}

impl std::fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let model = self.shared.model.try_lock();
        f.debug_struct("MemoryBackend")
            .field("revision", &model.ok().map(|model| model.revision()))
            .finish_non_exhaustive()
    }
}

impl MemoryBackend {
    /// An empty store that lives by the clock of `env`.
    #[must_use]
    pub fn new(env: SharedEnv) -> Self {
        Self::with_retention(env, Retention::default())
    }

    /// An empty store that keeps so much of its history.
    #[must_use]
    pub fn with_retention(env: SharedEnv, retention: Retention) -> Self {
        Self {
            shared: Arc::new(Shared {
                env,
                model: Mutex::new(Model::new(retention)),
                watches: watch::Watches::default(),
                earlier: Arc::new(Notify::new()),
                reaper: OnceLock::new(),
            }),
        }
    }

    /// Another handle on the same store.
    #[must_use]
    pub fn handle(&self) -> Self {
        self.clone()
    }

    /// Forgets the history before `revision`, which stays readable.
    ///
    /// # Errors
    /// [`BackendError::Rejected`] when the revision lies in the future.
    pub fn compact(&self, revision: Revision) -> BackendResult<()> {
        self.shared.lock()?.compact(revision)
    }

    /// The newest revision.
    ///
    /// # Errors
    /// [`BackendError::Broken`] after a panic inside the store.
    pub fn revision(&self) -> BackendResult<Revision> {
        Ok(self.shared.lock()?.revision())
    }

    /// Everything that stands in the store now.
    ///
    /// # Errors
    /// [`BackendError::Broken`] after a panic inside the store.
    pub fn entries(&self) -> BackendResult<Vec<Entry>> {
        let model = self.shared.lock()?;
        let all = Span::prefix([]);
        Ok(model.entries(&all).map(|e| Entry::clone(e)).collect())
    }

    /// The leases that live now.
    ///
    /// # Errors
    /// [`BackendError::Broken`] after a panic inside the store.
    pub fn leases(&self) -> BackendResult<Vec<LeaseId>> {
        Ok(self.shared.lock()?.leases().collect())
    }
}

impl Shared {
    /// The model at the present time: leases that have ended by now are gone.
    fn lock(&self) -> BackendResult<MutexGuard<'_, Model>> {
        let mut model = self
            .model
            .lock()
            .map_err(|_| BackendError::Broken("a panic inside the store".into()))?;
        // Read under the lock, so that time goes the same way as the requests.
        let ended = model.advance(self.env.monotonic_ms());
        self.watches.tell(&ended.revised);
        Ok(model)
    }

    fn run<T>(&self, request: impl FnOnce(&mut Model) -> Step<T>) -> BackendResult<T> {
        let mut model = self.lock()?;
        let step = request(&mut model);
        self.watches.tell(&step.revised);
        step.answer
    }
}

#[async_trait]
impl CoordinationBackend for MemoryBackend {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        self.shared.lock()?.range(span, limit, at)
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        self.shared.run(|model| model.commit(txn))
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        self.shared.run(|model| model.commit_batch(guard, txns))
    }

    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        let mut model = self.shared.lock()?;
        let before = model.next_deadline_ms();
        let lease = model.grant(ttl_ms).answer?;
        let after = model.next_deadline_ms();
        drop(model);
        self.shared
            .reaper
            .get_or_init(|| reaper::spawn(&self.shared));
        if before != after {
            self.shared.earlier.notify_one();
        }
        Ok(lease)
    }

    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        self.shared.run(|model| model.keep_alive(lease))
    }

    async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        self.shared.run(|model| model.revoke(lease))
    }

    async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>> {
        let model = self.shared.lock()?;
        model.seek(span, from)?;
        Ok(Box::new(watch::MemoryWatch::new(self, span, from)))
    }
}

#[async_trait]
impl BackendInfo for MemoryBackend {
    fn version(&self) -> String {
        concat!("memory ", env!("CARGO_PKG_VERSION")).into()
    }

    async fn usage(&self) -> BackendResult<Usage> {
        Ok(Usage {
            used_bytes: self.shared.lock()?.bytes() as u64,
            quota_bytes: None,
        })
    }
}

#[cfg(test)]
mod tests;
