//! Deadlines for every call, and the only cure for an unknown outcome: the same request again.
//!
//! What can go wrong: a write whose answer is lost may have been applied, or may be applied later.
//! Whoever treats that as "somebody else won", or plans anew, writes twice. So a guarded
//! transaction is resubmitted *as it was* until the answer is definite. That is safe because it
//! consumes its guard: it applies at most once, and a conflict on the guard is final.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;

use crate::backend::{
    BackendError, BackendExt, BackendResult, BatchOutcome, CoordinationBackend, Entry, Key, Lease,
    LeaseId, Page, PageLimit, Requirement, Revision, Seen, Span, Txn, TxnOutcome, Watch,
};
use crate::env::{SharedEnv, timeout};

use super::outage::{self, Kind, Outage};
use super::paging::Pages;

/// So many keys are looked up in one request; a store takes 128 requirements.
const KEYS_A_REQUEST: usize = 64;

/// A store whose calls end in time.
#[derive(Clone)]
pub struct Store {
    backend: Arc<dyn CoordinationBackend>,
    env: SharedEnv,
    timeout_ms: u64,
    /// Why the store is broken, once it is.
    broken: Arc<watch::Sender<Option<String>>>,
    /// Whether the store answers, for the log; none for a store that somebody else speaks of.
    outage: Option<Arc<Mutex<Outage>>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store(timeout {} ms)", self.timeout_ms)
    }
}

/// Waits between tries: from 50 ms to 2 s, halved at random so that nodes do not march in step.
pub struct Backoff {
    next_ms: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next_ms: 50 }
    }
}

impl Backoff {
    /// Waits, each time longer.
    pub async fn wait(&mut self, env: &SharedEnv) {
        let half = self.next_ms / 2;
        let jitter = env.random_u64() % (half + 1);
        env.sleep(Duration::from_millis(half + jitter)).await;
        self.next_ms = (self.next_ms * 2).min(2_000);
    }
}

impl Store {
    /// A store whose calls take at most `timeout_ms`.
    #[must_use]
    pub fn new(backend: Arc<dyn CoordinationBackend>, env: SharedEnv, timeout_ms: u64) -> Self {
        Self {
            backend,
            env,
            timeout_ms,
            broken: Arc::new(watch::channel(None).0),
            outage: Some(Arc::default()),
        }
    }

    /// Says nothing in the log of a store that is away: a node beside this does.
    #[must_use]
    pub fn unreported(mut self) -> Self {
        self.outage = None;
        self
    }

    /// Completes when a call has found the store broken, with the reason: nothing that is left to
    /// do here can be done, and whoever started us should know.
    pub async fn broken(&self) -> String {
        let mut broken = self.broken.subscribe();
        loop {
            if let Some(reason) = broken.borrow_and_update().clone() {
                return reason;
            }
            if broken.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The outside world.
    #[must_use]
    pub fn env(&self) -> &SharedEnv {
        &self.env
    }

    async fn limit<T>(
        &self,
        kind: Kind,
        late: fn(String) -> BackendError,
        call: impl Future<Output = BackendResult<T>>,
    ) -> BackendResult<T> {
        let within = Duration::from_millis(self.timeout_ms);
        let answer = timeout(&*self.env, within, call)
            .await
            .unwrap_or_else(|| Err(late(format!("no answer within {} ms", self.timeout_ms))));
        if let Err(BackendError::Broken(reason)) = &answer {
            self.broken.send_replace(Some(reason.clone()));
        }
        if let Some(outage) = &self.outage {
            outage::note(outage, kind, self.env.monotonic_ms(), &answer);
        }
        answer
    }

    /// One entry, now.
    ///
    /// # Errors
    /// As [`CoordinationBackend::range`]; a late answer is [`BackendError::Unavailable`].
    pub async fn get(&self, key: &[u8]) -> BackendResult<Option<Entry>> {
        self.limit(Kind::Read, BackendError::Unavailable, self.backend.get(key))
            .await
    }

    /// Many keys, in their order, with few requests.
    ///
    /// # Errors
    /// As [`Store::look_each`].
    pub async fn get_each(&self, keys: &[Key]) -> BackendResult<Seen> {
        let absent = keys.iter().cloned().map(Requirement::Absent);
        self.look_each(&absent.collect::<Vec<_>>()).await
    }

    /// What stands where each of these looks, in their order, with few requests; for
    /// [`Requirement::Absent`] and [`Requirement::Empty`] only. A transaction that requires them has
    /// nothing to do when they hold, and is told what stands there when they do not. How large the
    /// answer will be nobody knows before: what does not come in time is asked for in halves. A later
    /// request sees the store as it is then, not as the first one saw it.
    ///
    /// # Errors
    /// As [`CoordinationBackend::range`]: nothing is written, so none is [`BackendError::Unknown`].
    pub async fn look_each(&self, places: &[Requirement]) -> BackendResult<Seen> {
        let mut found = Vec::with_capacity(places.len());
        let mut most = KEYS_A_REQUEST;
        while found.len() < places.len() {
            let left = &places[found.len()..];
            let some = &left[..most.min(left.len())];
            let look = Txn {
                require: some.to_vec(),
                ops: Vec::new(),
            };
            match self.try_commit(&look).await {
                Ok(TxnOutcome::Conflict { seen }) => found.extend(seen),
                Ok(TxnOutcome::Applied { .. }) => found.extend(some.iter().map(|_| None)),
                Err(error) if error.is_transient() && some.len() > 1 => most = some.len() / 2,
                Err(BackendError::Unknown(why)) => return Err(BackendError::Unavailable(why)),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// One page.
    ///
    /// # Errors
    /// As [`CoordinationBackend::range`]; a late answer is [`BackendError::Unavailable`].
    pub async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        self.limit(
            Kind::Read,
            BackendError::Unavailable,
            self.backend.range(span, limit, at),
        )
        .await
    }

    /// All entries of a span at one revision: `at`, or the newest.
    ///
    /// # Errors
    /// As [`CoordinationBackend::range`], [`BackendError::Compacted`] among them when the span
    /// is so large that its revision is gone before the last page: start over.
    pub async fn list(
        &self,
        span: &Span,
        at: Option<Revision>,
    ) -> BackendResult<(Vec<Entry>, Revision)> {
        self.pages(span, at, usize::MAX).await
    }

    /// The same, or `None` when the span has more than `most` entries.
    ///
    /// # Errors
    /// As [`Store::list`].
    pub async fn list_up_to(
        &self,
        span: &Span,
        at: Option<Revision>,
        most: usize,
    ) -> BackendResult<Option<(Vec<Entry>, Revision)>> {
        let (entries, revision) = self.pages(span, at, most).await?;
        Ok((entries.len() <= most).then_some((entries, revision)))
    }

    /// Page after page, until there is no more, or more than `most`.
    async fn pages(
        &self,
        span: &Span,
        at: Option<Revision>,
        most: usize,
    ) -> BackendResult<(Vec<Entry>, Revision)> {
        let (mut entries, mut rest) = (Vec::new(), span.clone());
        let (mut at, mut pages) = (at, Pages::default());
        loop {
            let enough = (most - entries.len()).saturating_add(1);
            let asked_ms = self.env.monotonic_ms();
            let page = match self.range(&rest, pages.limit(enough), at).await {
                Err(error) if error.is_transient() && pages.failed() => continue,
                page => page?,
            };
            let took_ms = self.env.monotonic_ms().saturating_sub(asked_ms);
            at = Some(page.revision);
            pages.came(&page.entries, took_ms, self.timeout_ms);
            entries.extend(page.entries);
            match entries.last() {
                Some(last) if page.more && entries.len() <= most => rest = span.after(&last.key),
                _ => return Ok((entries, page.revision)),
            }
        }
    }

    /// One try of a transaction.
    ///
    /// # Errors
    /// As [`CoordinationBackend::commit`]; a late answer is [`BackendError::Unknown`].
    pub async fn try_commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        self.limit(Kind::Write, BackendError::Unknown, self.backend.commit(txn))
            .await
    }

    /// One try of a batch.
    ///
    /// # Errors
    /// As [`CoordinationBackend::commit_batch`]; a late answer is [`BackendError::Unknown`].
    pub async fn try_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        self.limit(
            Kind::Write,
            BackendError::Unknown,
            self.backend.commit_batch(guard, txns),
        )
        .await
    }

    /// The same transaction until the answer is definite, for ever if need be. The transaction
    /// must consume its guard.
    ///
    /// # Errors
    /// Only kinds that repeating cannot help.
    pub async fn settle(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        let mut backoff = Backoff::default();
        loop {
            match self.try_commit(txn).await {
                Err(e) if e.is_transient() => {
                    tracing::debug!(error = %e, "transaction not settled; trying it again as it was");
                    backoff.wait(&self.env).await;
                }
                definite => return definite,
            }
        }
    }

    /// The same batch until the answer is definite, for ever if need be.
    ///
    /// # Errors
    /// Only kinds that repeating cannot help.
    pub async fn settle_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        let mut backoff = Backoff::default();
        loop {
            match self.try_batch(guard, txns).await {
                Err(e) if e.is_transient() => {
                    tracing::debug!(error = %e, "batch not settled; trying it again as it was");
                    backoff.wait(&self.env).await;
                }
                definite => return definite,
            }
        }
    }

    /// As [`Store::settle`], but gives up after `within_ms`: for callers that a person waits for.
    ///
    /// # Errors
    /// [`BackendError::Unknown`] when time is up and one of the tries was not answered, whatever
    /// became of the last: then the transaction was applied once, will be applied once, or not at all.
    pub async fn settle_within(&self, txn: &Txn, within_ms: u64) -> BackendResult<TxnOutcome> {
        let deadline = self.env.monotonic_ms() + within_ms;
        let mut backoff = Backoff::default();
        let mut doubt = None;
        loop {
            match self.try_commit(txn).await {
                Err(e) if e.is_transient() => {
                    if matches!(e, BackendError::Unknown(_)) {
                        doubt.get_or_insert_with(|| e.clone());
                    }
                    if self.env.monotonic_ms() >= deadline {
                        return Err(doubt.unwrap_or(e));
                    }
                    backoff.wait(&self.env).await;
                }
                Err(e) => return Err(doubt.unwrap_or(e)),
                outcome => return outcome,
            }
        }
    }

    /// A new lease.
    ///
    /// # Errors
    /// As [`CoordinationBackend::grant`].
    pub async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        self.limit(
            Kind::Write,
            BackendError::Unknown,
            self.backend.grant(ttl_ms),
        )
        .await
    }

    /// Prolongs a lease.
    ///
    /// # Errors
    /// As [`CoordinationBackend::keep_alive`].
    pub async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        self.limit(
            Kind::Read,
            BackendError::Unknown,
            self.backend.keep_alive(lease),
        )
        .await
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// As [`CoordinationBackend::revoke`].
    pub async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        self.limit(
            Kind::Read,
            BackendError::Unknown,
            self.backend.revoke(lease),
        )
        .await
    }

    /// Opens a watch.
    ///
    /// # Errors
    /// As [`CoordinationBackend::watch`].
    pub async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>> {
        self.limit(
            Kind::Read,
            BackendError::Unavailable,
            self.backend.watch(span, from),
        )
        .await
    }
}
