//! A store that breaks (a full disk, say) ends the node, so that whoever supervises the process
//! starts it anew; it must not go on as a process that does nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use punctual::backend::{
    BackendError, BackendResult, BatchOutcome, CoordinationBackend, Lease, LeaseId, Page,
    PageLimit, Requirement, Revision, Span, Txn, TxnOutcome, Watch,
};
use punctual::cancel::Canceller;
use punctual::env::TokioEnv;
use punctual::handler::Executors;
use punctual::node::{Node, NodeConfig};
use punctual_memory::MemoryBackend;

struct Breakable {
    store: MemoryBackend,
    broken: AtomicBool,
}

impl Breakable {
    fn check(&self) -> BackendResult<()> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(BackendError::Broken("no space left".into()));
        }
        Ok(())
    }
}

#[async_trait]
impl CoordinationBackend for Breakable {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        self.check()?;
        self.store.range(span, limit, at).await
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        self.check()?;
        self.store.commit(txn).await
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        self.check()?;
        self.store.commit_batch(guard, txns).await
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

#[tokio::test]
async fn a_broken_store_ends_the_node() {
    let env = TokioEnv::shared();
    let backend = Arc::new(Breakable {
        store: MemoryBackend::new(env.clone()),
        broken: AtomicBool::new(false),
    });
    let config = NodeConfig::default();
    let node = Node::new(backend.clone(), env, Executors::default(), config).unwrap();
    // Kept: nobody asks the node to stop.
    let (_stop, stopping) = Canceller::new();
    let life = tokio::spawn(node.run(stopping));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!life.is_finished());
    backend.broken.store(true, Ordering::SeqCst);
    let end = tokio::time::timeout(Duration::from_secs(30), life).await;
    assert_eq!(
        end.expect("it ends").unwrap(),
        Err(BackendError::Broken("no space left".into()))
    );
}
