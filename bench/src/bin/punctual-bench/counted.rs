//! A store that counts what it is asked: requests, writes, bytes, and what its watches tell.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use punctual::backend::{
    BackendResult, BatchOutcome, Changes, CoordinationBackend, Lease, LeaseId, Op, Page, PageLimit,
    Requirement, Revision, Span, Txn, TxnOutcome, Watch, Write,
};
use punctual::keys::Keys;

/// A request that wrote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commit {
    /// When it was sent, and when its answer came.
    pub(crate) sent: Instant,
    pub(crate) answered: Instant,
    /// First attempts that it made, and ended ones.
    pub(crate) fires: usize,
    pub(crate) ends: usize,
    /// Keys that it put or deleted (of a choice: one of its branches), and the bytes of it.
    pub(crate) writes: usize,
    pub(crate) bytes: usize,
}

/// What was counted so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) commits: Vec<Commit>,
    /// Requests that read, keep-alives and the like, by kind.
    pub(crate) others: BTreeMap<&'static str, usize>,
    /// Changes of keys that watches told, and their bytes.
    pub(crate) events: usize,
    pub(crate) event_bytes: usize,
    /// Of each instant (Unix milliseconds): when runs of it were durable, and how many.
    pub(crate) decided: Vec<(i64, i64, usize)>,
}

/// The wrapper; clones share one tally.
#[derive(Clone)]
pub(crate) struct Counted {
    inner: Arc<dyn CoordinationBackend>,
    keys: Keys,
    tally: Arc<Mutex<Tally>>,
    /// Whether `decided` is kept: it takes a look into each record.
    looks: bool,
}

impl Counted {
    pub(crate) fn new(inner: Arc<dyn CoordinationBackend>, keys: Keys) -> Self {
        Self {
            inner,
            keys,
            tally: Arc::default(),
            looks: false,
        }
    }

    /// The same, and it notes when each instant was decided.
    pub(crate) fn looking(mut self) -> Self {
        self.looks = true;
        self
    }

    pub(crate) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn other(&self, kind: &'static str) {
        *self.tally().others.entry(kind).or_default() += 1;
    }

    fn note(&self, sent: Instant, txns: &[(&Txn, &TxnOutcome)]) {
        let answered = Instant::now();
        let now_ms = wall_ms();
        let mut commit = Commit {
            sent,
            answered,
            fires: 0,
            ends: 0,
            writes: 0,
            bytes: 0,
        };
        let mut instants: BTreeMap<i64, usize> = BTreeMap::new();
        for (txn, outcome) in txns {
            let TxnOutcome::Applied { chosen, .. } = outcome else {
                continue;
            };
            let mut chosen = chosen.iter();
            for op in &txn.ops {
                let writes = match op {
                    Op::Write(write) => std::slice::from_ref(write),
                    Op::Choose {
                        then, otherwise, ..
                    } => match chosen.next() {
                        Some(false) => otherwise,
                        _ => then,
                    },
                };
                for write in writes {
                    self.count(&mut commit, &mut instants, write);
                }
            }
        }
        let mut tally = self.tally();
        tally.commits.push(commit);
        let decided = instants.into_iter().map(|(at, n)| (at, now_ms, n));
        tally.decided.extend(decided);
    }

    fn count(&self, commit: &mut Commit, instants: &mut BTreeMap<i64, usize>, write: &Write) {
        commit.writes += 1;
        commit.bytes += write.key().len();
        let Write::Put { key, value, .. } = write else {
            return;
        };
        commit.bytes += value.len();
        let Some(kind) = kind_of(&self.keys, key) else {
            return;
        };
        match kind {
            // Only a fire puts PENDING under `run/` for the first time; a claim puts LOCKED.
            Kind::Run if is_pending(value) => {
                commit.fires += 1;
                if self.looks
                    && let Ok(record) =
                        punctual::job::record::decode::<punctual::job::record::RunRecord>(value)
                {
                    *instants.entry(record.scheduled_ms).or_default() += 1;
                }
            }
            Kind::Run => {}
            Kind::Done => commit.ends += 1,
        }
    }
}

enum Kind {
    Run,
    Done,
}

fn kind_of(keys: &Keys, key: &[u8]) -> Option<Kind> {
    if keys.runs().contains(key) {
        Some(Kind::Run)
    } else if keys.all_done().contains(key) {
        Some(Kind::Done)
    } else {
        None
    }
}

fn is_pending(value: &[u8]) -> bool {
    punctual::job::record::Glance::at(value)
        .is_some_and(|glance| glance.state == punctual::job::run::RunState::Pending)
}

/// Unix milliseconds.
pub(crate) fn wall_ms() -> i64 {
    chrono::Utc::now().timestamp_millis()
}

#[async_trait]
impl CoordinationBackend for Counted {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        self.other("range");
        self.inner.range(span, limit, at).await
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        if txn.is_lookup() {
            self.other("lookup");
            return self.inner.commit(txn).await;
        }
        let sent = Instant::now();
        let outcome = self.inner.commit(txn).await?;
        self.note(sent, &[(txn, &outcome)]);
        Ok(outcome)
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        let sent = Instant::now();
        let outcome = self.inner.commit_batch(guard, txns).await?;
        if let BatchOutcome::Judged { outcomes, .. } = &outcome {
            let judged: Vec<_> = txns.iter().zip(outcomes).collect();
            self.note(sent, &judged);
        }
        Ok(outcome)
    }

    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        self.other("grant");
        self.inner.grant(ttl_ms).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        self.other("keep alive");
        self.inner.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        self.other("revoke");
        self.inner.revoke(lease).await
    }

    async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>> {
        self.other("watch");
        let inner = self.inner.watch(span, from).await?;
        let tally = self.tally.clone();
        Ok(Box::new(CountedWatch { inner, tally }))
    }
}

struct CountedWatch {
    inner: Box<dyn Watch>,
    tally: Arc<Mutex<Tally>>,
}

#[async_trait]
impl Watch for CountedWatch {
    async fn next(&mut self) -> BackendResult<Changes> {
        let changes = self.inner.next().await?;
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.events += changes.events.len();
        for event in &changes.events {
            tally.event_bytes += event.key().len();
            if let punctual::backend::Event::Put(entry) = event {
                tally.event_bytes += entry.value.len();
            }
        }
        drop(tally);
        Ok(changes)
    }
}
