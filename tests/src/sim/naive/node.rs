//! A node of the articles' design.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::Either;
use punctual::backend::{
    BackendError, BackendResult, CoordinationBackend, Lease, LeaseId, PageLimit, Requirement, Span,
    Txn, TxnOutcome, Write,
};
use punctual::cancel::{CancelToken, Canceller};
use punctual::env::{SharedEnv, race, timeout};
use punctual::handler::{FencingToken, Handler, RunContext};
use punctual::job::record::{LeaderRecord, encode};
use punctual::job::run::Owner;
use punctual::keys::Keys;
use punctual_memory::MemoryBackend;

use super::{JOBS, NaiveJob, job_key, job_of, run_key};
use crate::check::oracle::instants;
use crate::sim::ledger::Work;
use crate::sim::schedule::Op;
use crate::sim::wire::Wire;

const LEADER_TTL_MS: u64 = 5_000;
const SESSION_TTL_MS: u64 = 10_000;
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
const SECOND_MS: u64 = 1_000;

/// A process.
pub struct NaiveNode {
    /// Its way to the store.
    pub wire: Arc<Wire>,
    /// Its clocks.
    pub env: SharedEnv,
    /// Does the work.
    pub work: Arc<Work>,
    /// Its name.
    pub owner: Owner,
    /// Its keys for leader and session, so that the same faults strike them.
    pub keys: Keys,
}

impl NaiveNode {
    /// Lives until it is told to stop.
    pub async fn run(self, stop: CancelToken) {
        let node = Arc::new(self);
        let session = Arc::new(Mutex::new(None));
        let life = futures_util::future::join(
            node.clone().keep_session(session.clone()),
            node.clone().stand(session),
        );
        let _ = race(life, stop.cancelled()).await;
    }

    async fn limit<T>(
        &self,
        call: impl Future<Output = BackendResult<T>> + Send,
    ) -> BackendResult<T> {
        timeout(&*self.env, CALL_TIMEOUT, call)
            .await
            .unwrap_or_else(|| Err(BackendError::Unknown("no answer".into())))
    }

    async fn sleep(&self, ms: u64) {
        self.env.sleep(Duration::from_millis(ms)).await;
    }

    /// A lease, and a key under it if nobody has it.
    async fn lock(
        &self,
        key: Vec<u8>,
        value: Vec<u8>,
        ttl_ms: u64,
    ) -> BackendResult<Option<Lease>> {
        let lease = self.limit(self.wire.grant(ttl_ms)).await?;
        let txn = Txn::new()
            .require(Requirement::Absent(key.clone()))
            .op(Write::Put {
                key,
                value,
                lease: Some(lease.id),
            });
        let outcome = self.limit(self.wire.commit(&txn)).await?;
        Ok(matches!(outcome, TxnOutcome::Applied { .. }).then_some(lease))
    }

    /// Renews until the store says that the lease is gone.
    async fn renew(&self, lease: Lease) {
        loop {
            self.sleep(lease.ttl_ms / 3).await;
            if let Err(BackendError::LeaseLost) = self.limit(self.wire.keep_alive(lease.id)).await {
                return;
            }
        }
    }

    /// The lease that the node's runs hang on.
    async fn keep_session(self: Arc<Self>, session: Arc<Mutex<Option<LeaseId>>>) {
        loop {
            let key = self.keys.node(&self.owner.node, &self.owner.incarnation);
            if let Ok(Some(lease)) = self.lock(key, vec![], SESSION_TTL_MS).await {
                *session.lock().unwrap() = Some(lease.id);
                self.renew(lease).await;
                *session.lock().unwrap() = None;
            } else {
                self.sleep(SECOND_MS).await;
            }
        }
    }

    async fn stand(self: Arc<Self>, session: Arc<Mutex<Option<LeaseId>>>) {
        loop {
            let record = LeaderRecord {
                owner: self.owner.clone(),
                since_ms: self.env.wall_ms(),
                takeovers: 0,
            };
            let key = self.keys.leader();
            match self.lock(key, encode(&record), LEADER_TTL_MS).await {
                Ok(Some(lease)) => {
                    let leads = Arc::new(AtomicBool::new(true));
                    let lost = async {
                        self.renew(lease).await;
                        leads.store(false, Ordering::SeqCst);
                    };
                    let ticks = self.clone().tick_while(leads.clone(), session.clone());
                    let _ = race(lost, ticks).await;
                }
                _ => self.sleep(SECOND_MS).await,
            }
        }
    }

    /// Once a second; a tick that is late is made up for.
    async fn tick_while(
        self: Arc<Self>,
        leads: Arc<AtomicBool>,
        session: Arc<Mutex<Option<LeaseId>>>,
    ) {
        let mut next_ms = self.env.monotonic_ms();
        // What it fired last, so that a minute that matches is not fired sixty times.
        let mut fired: BTreeMap<String, i64> = BTreeMap::new();
        while leads.load(Ordering::SeqCst) {
            let now_ms = self.env.wall_ms();
            for (id, job) in self.jobs().await.unwrap_or_default() {
                let Some(slot) = matching(&job, now_ms).filter(|_| !job.paused) else {
                    continue;
                };
                if fired.insert(id.clone(), slot) == Some(slot) {
                    continue;
                }
                let lease = *session.lock().unwrap();
                let fire = self.clone().fire(id, job, slot, lease);
                // On its own: a slow run must not hold the tick up.
                let task = self.env.spawn("run", Box::pin(fire));
                task.detach();
            }
            next_ms += SECOND_MS;
            let left_ms = next_ms.saturating_sub(self.env.monotonic_ms());
            if left_ms > 0 {
                self.sleep(left_ms).await;
            }
        }
    }

    async fn jobs(&self) -> BackendResult<BTreeMap<String, NaiveJob>> {
        let span = Span::prefix(JOBS);
        let page = self.limit(self.wire.range(&span, PageLimit::default(), None));
        let entries = page.await?.entries.into_iter();
        let read = entries.filter_map(|entry| {
            let job = serde_json::from_slice(&entry.value).ok()?;
            Some((job_of(&entry.key)?.to_owned(), job))
        });
        Ok(read.collect())
    }

    /// Claims the run that is named after "now", and does its work.
    async fn fire(self: Arc<Self>, id: String, job: NaiveJob, at_ms: i64, lease: Option<LeaseId>) {
        let name = format!("{id}@{}", self.env.wall_ms().div_euclid(1_000));
        let put = |state: &str, lease| {
            Txn::new().op(Write::Put {
                key: run_key(&name),
                value: state.as_bytes().to_vec(),
                lease,
            })
        };
        let claim = put("PENDING", lease).require(Requirement::Absent(run_key(&name)));
        let Ok(TxnOutcome::Applied { .. }) = self.limit(self.wire.commit(&claim)).await else {
            // Somebody else won. (Or did they?)
            return;
        };
        let _ = self.limit(self.wire.commit(&put("RUNNING", lease))).await;
        let (_canceller, cancel) = Canceller::new();
        let context = RunContext {
            job_id: id,
            run_id: name.clone(),
            attempt: 1,
            shard: None,
            shards: None,
            scheduled_at_ms: at_ms,
            fencing_token: FencingToken(0),
            payload: job.spec.payload.clone(),
            trace_id: String::new(),
            timeout_ms: job.spec.timeout.ms(),
            kill_grace_ms: 0,
            cancel,
            fence: None,
        };
        let work = std::panic::AssertUnwindSafe(self.work.run(context)).catch_unwind();
        let limit = self.env.sleep(Duration::from_millis(job.spec.timeout.ms()));
        if let Either::Left(Ok(Ok(()))) = race(work, limit).await {
            let _ = self.limit(self.wire.commit(&put("SUCCESS", lease))).await;
        }
    }
}

/// The slot that "now" matches: a minute for an expression of five fields, else a second.
fn matching(job: &NaiveJob, now_ms: i64) -> Option<i64> {
    let fields = job.spec.schedule.cron.as_ref();
    let minutes = fields.is_some_and(|text| text.split_whitespace().count() == 5);
    let length = if minutes { 60_000 } else { 1_000 };
    let slot = now_ms.div_euclid(length) * length;
    let found = instants(&job.spec, job.created_ms, slot, slot + length)?;
    found.first().copied()
}

/// What an operator does to this design, at once and without fail. It has no triggers or cancels.
pub fn operate(store: &MemoryBackend, op: &Op, now_ms: i64) {
    let entries = store.entries().unwrap_or_default();
    let stands = |id: &str| -> Option<NaiveJob> {
        let entry = entries.iter().find(|entry| entry.key == job_key(id))?;
        serde_json::from_slice(&entry.value).ok()
    };
    let commit = |txn: Txn| {
        let answer = store.commit(&txn).now_or_never();
        assert!(matches!(answer, Some(Ok(_))), "the store in memory answers");
    };
    let put = |id: &str, job: &NaiveJob| {
        let value = serde_json::to_vec(job).expect("a job can be written");
        commit(Txn::new().put(job_key(id), value));
    };
    let hold = |id: &str, paused: bool| {
        if let Some(job) = stands(id) {
            put(id, &NaiveJob { paused, ..job });
        }
    };
    let define = |spec: &punctual::job::spec::JobSpec| {
        let before = stands(&spec.id);
        let job = NaiveJob {
            spec: spec.clone(),
            created_ms: before.as_ref().map_or(now_ms, |job| job.created_ms),
            paused: before.is_some_and(|job| job.paused),
        };
        put(&spec.id, &job);
    };
    match op {
        Op::Put(spec) => define(spec),
        Op::Apply(specs) => specs.iter().for_each(define),
        Op::Pause(id) => hold(id, true),
        Op::Resume(id) => hold(id, false),
        Op::Delete(id) => commit(Txn::new().op(Write::Delete { key: job_key(id) })),
        Op::PauseUntil(..)
        | Op::PauseAll(_)
        | Op::ResumeAll
        | Op::Trigger(..)
        | Op::Cancel(_)
        | Op::Retry(..)
        | Op::Backfill(..)
        | Op::Drain(..) => {}
    }
}
