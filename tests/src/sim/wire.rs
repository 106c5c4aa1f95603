//! The network between a node and the store, with everything that can go wrong on it.
//!
//! A request is a task of the world: it is on its way whatever becomes of its caller, so a caller
//! that gave up, or crashed, may still be written for later. Two questions decide a fate: did it
//! happen, and did the caller hear?

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use punctual::backend::{
    BackendError, BackendResult, BatchOutcome, CoordinationBackend, Lease, LeaseId, Op, Page,
    PageLimit, Requirement, Revision, Span, Txn, TxnOutcome, Watch, Write,
};
use punctual::env::BoxFuture;
use punctual::job::record::{RunRecord, decode};
use punctual::job::run::RunState;
use punctual::keys::Keys;
use punctual_memory::MemoryBackend;
use tokio::sync::oneshot;

use super::ablation::{Ablation, Ablations};
use super::executor::{Executor, Proc, WORLD};
use super::faults::{Link, Rates, Trouble};
use super::late_writes::{self, LATE_MS, LateWrites};
use super::rng::Rng;
use super::tap::Tap;
use super::wire_watch::{SeenHeads, WireWatch};
use super::world::NAMESPACE;

/// How often each fault happened.
pub type Counts = Arc<Mutex<BTreeMap<&'static str, u64>>>;

/// One process's way to the store.
pub struct Wire {
    /// Time and tasks.
    pub executor: Executor,
    /// The store itself.
    pub store: MemoryBackend,
    /// Its log.
    pub tap: Tap,
    /// Who calls.
    pub proc: Proc,
    /// What goes wrong when.
    pub link: Arc<Link>,
    /// The wire's own random numbers.
    pub rng: Mutex<Rng>,
    /// What went wrong.
    pub counts: Counts,
    /// Claims that came too late.
    pub claim_conflicts: Arc<AtomicU64>,
    /// Leaders' writes that were refused because they lead no more.
    pub fenced_writes: Arc<AtomicU64>,
    /// What is taken away from each request.
    pub ablation: Ablations,
    /// How far the process has seen the logs of changes.
    pub seen: SeenHeads,
    /// What is under way, on all wires.
    pub late: LateWrites,
}

/// What becomes of one call.
struct Fate {
    refuse: bool,
    /// When the request arrives, if it does.
    request_ms: Option<u64>,
    copy_ms: Option<u64>,
    reply_ms: u64,
    reply: Reply,
}

enum Reply {
    Heard,
    Lost,
    Unknown,
}

impl Wire {
    fn count(&self, what: &'static str) {
        *self.counts.lock().unwrap().entry(what).or_default() += 1;
    }

    fn fate(&self, now_ms: u64, writes: bool) -> Fate {
        let rates = self.link.rates(now_ms);
        let mut rng = self.rng.lock().unwrap();
        let slow_ms = if writes {
            self.link.slow_writes_ms(now_ms)
        } else {
            0
        };
        let mut fate = Fate {
            refuse: false,
            request_ms: Some(rng.range(1, 4) + slow_ms),
            copy_ms: None,
            reply_ms: rng.range(1, 4),
            reply: Reply::Heard,
        };
        if rates == Rates::default() {
            return fate;
        }
        if rng.permille(rates.slow) {
            self.count("slow");
            fate.request_ms = Some(rng.range(5, 1_000));
            fate.reply_ms = rng.range(5, 1_000);
        }
        if rng.permille(rates.refuse) {
            self.count("refused");
            fate.refuse = true;
        } else if rng.permille(rates.lose_request) {
            self.count("request lost");
            fate.request_ms = None;
        } else if rng.permille(rates.unknown_not) {
            self.count("unknown, not applied");
            fate.request_ms = None;
            fate.reply = Reply::Unknown;
        } else if rng.permille(rates.lose_reply) {
            self.count("reply lost");
            fate.reply = Reply::Lost;
        } else if rng.permille(rates.unknown) {
            self.count("unknown, applied");
            fate.reply = Reply::Unknown;
        } else if rng.permille(rates.late) {
            self.count("late");
            fate.request_ms = Some(rng.range(2_000, 20_000));
        } else if rng.permille(rates.duplicate) {
            self.count("duplicate");
            fate.copy_ms = Some(rng.range(1, 15_000));
        }
        fate
    }

    async fn call<T: Send + 'static>(
        &self,
        writes: Option<Vec<Vec<u8>>>,
        apply: impl Fn(MemoryBackend) -> BoxFuture<'static, BackendResult<T>> + Send + Sync + 'static,
        revision: fn(&T) -> Option<Revision>,
    ) -> BackendResult<T> {
        let fate = self.fate(self.executor.now_ms(), writes.is_some());
        if fate.refuse {
            self.executor
                .sleep_until(self.executor.now_ms() + fate.reply_ms)
                .await;
            return Err(BackendError::Unavailable("too many requests".into()));
        }
        if !self.link.sends(self.executor.now_ms()) {
            self.count("cut");
            return std::future::pending().await;
        }
        let (answer_out, answer) = oneshot::channel();
        let apply = Arc::new(apply);
        if let Some(delay) = fate.copy_ms {
            let (late, apply) = (self.courier(revision), apply.clone());
            self.executor.spawn(
                WORLD,
                Box::pin(async move {
                    late.wait(delay).await;
                    let _ = late.deliver(&*apply).await;
                }),
            );
        }
        let late = fate.request_ms.is_some_and(|delay| delay >= LATE_MS);
        let number = writes
            .clone()
            .filter(|_| late)
            .map(|keys| self.late.leaves(keys));
        let (writes, counts, pending) = (writes.is_some(), self.counts.clone(), self.late.clone());
        let courier = self.courier(revision);
        let link = self.link.clone();
        self.executor.spawn(
            WORLD,
            Box::pin(async move {
                let mut result = Err(BackendError::Unknown("connection lost".into()));
                if let Some(delay) = fate.request_ms {
                    courier.wait(delay).await;
                    result = courier.deliver(&*apply).await;
                }
                if matches!(result, Err(BackendError::Compacted { .. })) {
                    *counts.lock().unwrap().entry("compacted").or_default() += 1;
                }
                let applied =
                    matches!(&result, Ok(outcome) if (courier.revision)(outcome).is_some());
                courier.wait(fate.reply_ms).await;
                let result = match fate.reply {
                    Reply::Unknown if writes => {
                        Err(BackendError::Unknown("connection lost".into()))
                    }
                    Reply::Unknown => Err(BackendError::Unavailable("connection lost".into())),
                    _ => result,
                };
                let lost = matches!(fate.reply, Reply::Lost)
                    || (fate.request_ms.is_none() && matches!(fate.reply, Reply::Heard))
                    || !link.hears(courier.executor.now_ms());
                let heard = !lost && !late && matches!(fate.reply, Reply::Heard);
                let fact = match fate.request_ms {
                    Some(_) if applied && !heard => Some("write applied, not heard"),
                    None if writes => Some("write lost, not heard"),
                    _ => None,
                };
                let seen_absent = number.is_some_and(|number| pending.arrives(number)) && applied;
                let facts = [
                    fact,
                    seen_absent.then_some("late write after an absent read"),
                ];
                for fact in facts.into_iter().flatten() {
                    *counts.lock().unwrap().entry(fact).or_default() += 1;
                }
                if !lost {
                    let _ = answer_out.send(result);
                }
            }),
        );
        match answer.await {
            Ok(result) => result,
            // Nothing will ever come: the caller's own timeout ends this.
            Err(_) => std::future::pending().await,
        }
    }

    fn courier<T>(&self, revision: fn(&T) -> Option<Revision>) -> Courier<T> {
        Courier {
            executor: self.executor.clone(),
            store: self.store.clone(),
            tap: self.tap.clone(),
            proc: self.proc,
            revision,
        }
    }

    fn has_space(&self) -> BackendResult<()> {
        if self.link.has(self.executor.now_ms(), Trouble::NoSpace) {
            self.count("no space");
            return Err(BackendError::Unavailable("database space exceeded".into()));
        }
        Ok(())
    }
}

struct Courier<T> {
    executor: Executor,
    store: MemoryBackend,
    tap: Tap,
    proc: Proc,
    revision: fn(&T) -> Option<Revision>,
}

impl<T> Courier<T> {
    async fn wait(&self, ms: u64) {
        self.executor.sleep_until(self.executor.now_ms() + ms).await;
    }

    async fn deliver(
        &self,
        apply: &(impl Fn(MemoryBackend) -> BoxFuture<'static, BackendResult<T>> + Send + Sync),
    ) -> BackendResult<T> {
        // What ended by itself before is nobody's.
        let _ = self.store.revision();
        self.tap.drain(None);
        let result = apply(self.store.clone()).await;
        let wrote = result.as_ref().ok().and_then(self.revision);
        self.tap.drain(wrote.map(|revision| (self.proc, revision)));
        result
    }
}

fn puts(txn: &Txn) -> bool {
    txn.ops.iter().any(|op| match op {
        Op::Write(write) => matches!(write, Write::Put { .. }),
        Op::Choose { .. } => true,
    })
}

fn campaigns(txn: &Txn) -> bool {
    let leader = Keys::new(NAMESPACE).leader();
    txn.ops
        .iter()
        .any(|op| matches!(op, Op::Write(Write::Put { key, .. }) if *key == leader))
}

fn of_the_leader(requirement: &Requirement) -> bool {
    matches!(requirement, Requirement::Created(key, _) if *key == Keys::new(NAMESPACE).leader())
}

/// Whether it is a worker's claim of a run.
fn claims(txn: &Txn) -> bool {
    txn.ops.iter().any(|op| {
        matches!(op, Op::Write(Write::Put { value, .. })
            if decode::<RunRecord>(value).is_ok_and(|record| record.state == RunState::Locked))
    })
}

#[async_trait]
impl CoordinationBackend for Wire {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        let wanted = span.clone();
        let mut page = self
            .call(
                None,
                move |store| {
                    let wanted = wanted.clone();
                    Box::pin(async move { store.range(&wanted, limit, at).await })
                },
                |_| None,
            )
            .await?;
        self.seen.read(&page.entries);
        self.late.read(span, &page);
        if !self.ablation.is_empty() {
            let entries = page.entries.into_iter();
            page.entries = entries.map(|entry| self.ablation.entry(entry)).collect();
        }
        Ok(page)
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        if puts(txn) {
            self.has_space()?;
        }
        if self.ablation.swallows(txn) {
            return Ok(TxnOutcome::Conflict { seen: vec![] });
        }
        if campaigns(txn) {
            let now_ms = self.executor.now_ms();
            if self.link.has(now_ms, Trouble::ElectionFails) {
                self.count("campaign failed");
                return Err(BackendError::Unavailable("no answer".into()));
            }
            if self.link.has(now_ms, Trouble::NeverElected) {
                self.count("campaign refused");
                return Ok(TxnOutcome::Conflict { seen: vec![] });
            }
        }
        let keys = late_writes::puts(txn);
        let txn = Arc::new(self.ablation.txn(txn));
        let answer = self
            .call(
                Some(keys),
                move |store| {
                    let txn = txn.clone();
                    Box::pin(async move { store.commit(&txn).await })
                },
                TxnOutcome::applied,
            )
            .await;
        match answer {
            Err(BackendError::Unknown(_))
                if self.ablation.contains(Ablation::UnknownIsConflict) =>
            {
                Ok(TxnOutcome::Conflict { seen: vec![] })
            }
            answer => answer,
        }
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        if txns.iter().any(puts) {
            self.has_space()?;
        }
        let keys = txns.iter().flat_map(late_writes::puts).collect();
        let count = txns.len();
        let batch = Arc::new((
            self.ablation.requirements(guard),
            txns.iter()
                .map(|txn| self.ablation.txn(txn))
                .collect::<Vec<_>>(),
        ));
        let sent = batch.clone();
        let answer = self
            .call(
                Some(keys),
                move |store| {
                    let batch = batch.clone();
                    Box::pin(async move { store.commit_batch(&batch.0, &batch.1).await })
                },
                |outcome| match outcome {
                    BatchOutcome::Judged { revision, .. } => Some(*revision),
                    BatchOutcome::GuardFailed { .. } => None,
                },
            )
            .await;
        if let Ok(BatchOutcome::Judged { outcomes, .. }) = &answer {
            let conflicts = sent
                .1
                .iter()
                .zip(outcomes)
                .filter(|(_, outcome)| matches!(outcome, TxnOutcome::Conflict { .. }))
                .filter(|(txn, _)| claims(txn))
                .count();
            self.claim_conflicts
                .fetch_add(conflicts as u64, Ordering::SeqCst);
        }
        if let Ok(BatchOutcome::GuardFailed { .. }) = &answer
            && sent.0.iter().any(of_the_leader)
        {
            self.fenced_writes.fetch_add(1, Ordering::SeqCst);
        }
        match answer {
            Err(BackendError::Unknown(_))
                if self.ablation.contains(Ablation::UnknownIsConflict) =>
            {
                Ok(BatchOutcome::Judged {
                    revision: Revision(1),
                    outcomes: vec![TxnOutcome::Conflict { seen: vec![] }; count],
                })
            }
            answer => answer,
        }
    }

    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        self.has_space()?;
        self.call(
            Some(vec![]),
            move |store| Box::pin(async move { store.grant(ttl_ms).await }),
            |_| None,
        )
        .await
    }

    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        let lease = self
            .call(
                Some(vec![]),
                move |store| Box::pin(async move { store.keep_alive(lease).await }),
                |_| None,
            )
            .await?;
        Ok(self.ablation.renewed(lease))
    }

    async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        self.call(
            Some(vec![]),
            move |store| Box::pin(async move { store.revoke(lease).await }),
            |()| None,
        )
        .await
    }

    async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>> {
        let wanted = span.clone();
        let inner = self
            .call(
                None,
                move |store| {
                    let wanted = wanted.clone();
                    Box::pin(async move { store.watch(&wanted, from).await })
                },
                |_| None,
            )
            .await?;
        let rng = Rng::new(self.rng.lock().unwrap().next_u64());
        Ok(Box::new(WireWatch::new(
            self.executor.clone(),
            self.link.clone(),
            rng,
            self.counts.clone(),
            self.ablation,
            &self.seen,
            inner,
        )))
    }
}
