//! A change of a job is made once, although the answer to it was lost and somebody else has changed
//! the job since.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

use std::sync::Arc;
use std::sync::Mutex;

use async_trait::async_trait;
use punctual::backend::{
    BackendError, BackendResult, BatchOutcome, CoordinationBackend, Lease, LeaseId, Page,
    PageLimit, Requirement, Revision, Span, Txn, TxnOutcome, Watch,
};
use punctual::bootstrap::bootstrap;
use punctual::control::{Control, PauseWish};
use punctual::env::{SharedEnv, TokioEnv};
use punctual::job::spec::JobSpec;
use punctual::keys::Keys;
use punctual::recipe::retry::Store;
use punctual_memory::MemoryBackend;

const NAMESPACE: &str = "once";

/// What somebody else does before the lost answer is noticed.
type Meanwhile = Box<dyn Fn(Control) -> tokio::task::JoinHandle<()> + Send + Sync>;

/// A store that makes the next write, loses its answer, and lets somebody else go first.
struct Losing {
    store: MemoryBackend,
    env: SharedEnv,
    meanwhile: Mutex<Option<Meanwhile>>,
}

#[async_trait]
impl CoordinationBackend for Losing {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        self.store.range(span, limit, at).await
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        let outcome = self.store.commit(txn).await;
        let meanwhile = self.meanwhile.lock().unwrap().take();
        let Some(meanwhile) = meanwhile else {
            return outcome;
        };
        assert!(outcome.unwrap().applied().is_some());
        let other = Control::new(Arc::new(self.store.clone()), self.env.clone(), NAMESPACE);
        meanwhile(other).await.unwrap();
        Err(BackendError::Unknown("the answer is lost".into()))
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        self.store.commit_batch(guard, txns).await
    }

    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        self.store.grant(ttl_ms).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        self.store.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        self.store.revoke(lease).await
    }

    async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>> {
        self.store.watch(span, from).await
    }
}

fn job(cron: &str) -> JobSpec {
    JobSpec::handler("a", "h").cron(cron)
}

async fn stage() -> (Arc<Losing>, Control, Control) {
    let env: SharedEnv = TokioEnv::shared();
    let store = MemoryBackend::new(env.clone());
    let plain: Arc<dyn CoordinationBackend> = Arc::new(store.clone());
    let keys = Keys::new(NAMESPACE);
    bootstrap(&Store::new(plain.clone(), env.clone(), 2_000), &keys)
        .await
        .unwrap();
    let losing = Arc::new(Losing {
        store,
        env: env.clone(),
        meanwhile: Mutex::new(None),
    });
    let ours = Control::new(losing.clone(), env.clone(), NAMESPACE);
    (losing, ours, Control::new(plain, env, NAMESPACE))
}

fn puts(cron: &'static str) -> Meanwhile {
    Box::new(move |other| {
        tokio::spawn(async move {
            other.put_job(job(cron), None).await.unwrap();
        })
    })
}

async fn cron_of(control: &Control) -> String {
    control.job("a").await.unwrap().spec.schedule.cron.unwrap()
}

#[tokio::test]
async fn a_definition_is_not_put_again_over_a_newer_one() {
    let (losing, ours, anybody) = stage().await;
    *losing.meanwhile.lock().unwrap() = Some(puts("0 6 * * *"));
    ours.put_job(job("0 5 * * *"), None).await.unwrap();
    assert_eq!(cron_of(&anybody).await, "0 6 * * *");
}

#[tokio::test]
async fn an_apply_does_not_repeat_itself_over_a_newer_definition() {
    let (losing, ours, anybody) = stage().await;
    *losing.meanwhile.lock().unwrap() = Some(puts("0 6 * * *"));
    let applied = ours.apply(vec![job("0 5 * * *")], false, &|_, _| {}).await;
    assert_eq!(applied.unwrap().created, ["a"]);
    assert_eq!(cron_of(&anybody).await, "0 6 * * *");
}

#[tokio::test]
async fn a_job_that_was_made_again_is_not_deleted_again() {
    let (losing, ours, anybody) = stage().await;
    anybody.put_job(job("0 5 * * *"), None).await.unwrap();
    *losing.meanwhile.lock().unwrap() = Some(puts("0 6 * * *"));
    ours.delete_job("a", None).await.unwrap();
    assert_eq!(cron_of(&anybody).await, "0 6 * * *");
}

#[tokio::test]
async fn what_was_resumed_since_is_not_paused_again() {
    let (losing, ours, anybody) = stage().await;
    anybody.put_job(job("0 5 * * *"), None).await.unwrap();
    for all in [false, true] {
        *losing.meanwhile.lock().unwrap() = Some(Box::new(|other| {
            tokio::spawn(async move {
                other.resume_all().await.unwrap();
                other.resume_job("a").await.unwrap();
            })
        }));
        if all {
            ours.pause_all(PauseWish::default()).await.unwrap();
        } else {
            ours.pause_job("a", PauseWish::default()).await.unwrap();
        }
        assert!(anybody.job("a").await.unwrap().paused.is_none(), "{all}");
    }
}
