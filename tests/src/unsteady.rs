//! A store that can be taken away, broken, or made deaf, and that counts what it is asked.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use punctual::backend::{
    BackendError, BackendResult, BatchOutcome, CoordinationBackend, Lease, LeaseId, Page,
    PageLimit, Requirement, Revision, Span, Txn, TxnOutcome, Watch, limits,
};
use punctual_memory::MemoryBackend;

/// What the store does with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// Answers.
    #[default]
    Well,
    /// Refuses everything for the time being.
    Away,
    /// Refuses everything for good.
    Broken,
    /// Applies writes, and says that it does not know.
    Mumbling,
    /// Rejects transactions of more than so many bytes.
    Narrow(usize),
    /// Does not answer in time for a page of more than so many entries, nor for a transaction that
    /// requires more than so much.
    Slow(usize),
}

/// A memory store with moods.
#[derive(Debug)]
pub struct Unsteady {
    store: MemoryBackend,
    mood: Mutex<Mood>,
    commits: AtomicUsize,
}

impl Unsteady {
    /// Well, for now.
    #[must_use]
    pub fn new(store: MemoryBackend) -> Self {
        Self {
            store,
            mood: Mutex::default(),
            commits: AtomicUsize::new(0),
        }
    }

    /// From now on.
    ///
    /// # Panics
    /// When a test thread panicked before.
    pub fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// Requests to write so far, those that were refused too.
    #[must_use]
    pub fn commits(&self) -> usize {
        self.commits.load(Ordering::SeqCst)
    }

    fn check(&self) -> BackendResult<Mood> {
        match *self.mood.lock().unwrap() {
            Mood::Away => Err(BackendError::Unavailable("away".into())),
            Mood::Broken => Err(BackendError::Broken("no space left".into())),
            mood => Ok(mood),
        }
    }

    fn write<T>(&self, mood: Mood, answer: BackendResult<T>) -> BackendResult<T> {
        match (mood, answer) {
            (Mood::Mumbling, Ok(_)) => Err(BackendError::Unknown("mumble".into())),
            (_, answer) => answer,
        }
    }
}

fn fits(mood: Mood, txns: &[Txn]) -> BackendResult<()> {
    let bytes: usize = txns.iter().map(limits::txn_bytes).sum();
    match mood {
        Mood::Narrow(most) if bytes > most => Err(BackendError::Rejected("too large".into())),
        _ => Ok(()),
    }
}

#[async_trait]
impl CoordinationBackend for Unsteady {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        match self.check()? {
            Mood::Slow(most) if limit.entries > most => {
                Err(BackendError::Unavailable("no answer in time".into()))
            }
            _ => self.store.range(span, limit, at).await,
        }
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        self.commits.fetch_add(1, Ordering::SeqCst);
        let mood = self.check()?;
        fits(mood, std::slice::from_ref(txn))?;
        if matches!(mood, Mood::Slow(most) if txn.require.len() > most) {
            return Err(BackendError::Unknown("no answer".into()));
        }
        self.write(mood, self.store.commit(txn).await)
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        self.commits.fetch_add(1, Ordering::SeqCst);
        let mood = self.check()?;
        fits(mood, txns)?;
        self.write(mood, self.store.commit_batch(guard, txns).await)
    }

    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        self.check()?;
        self.store.grant(ttl_ms).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        self.check()?;
        self.store.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        self.check()?;
        self.store.revoke(lease).await
    }

    async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>> {
        self.check()?;
        self.store.watch(span, from).await
    }
}
