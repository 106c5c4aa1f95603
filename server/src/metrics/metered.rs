//! A store whose calls are counted.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use punctual::backend::{
    BackendError, BackendResult, BatchOutcome, Changes, CoordinationBackend, Lease, LeaseId, Page,
    PageLimit, Requirement, Revision, Span, Txn, TxnOutcome, Watch,
};

use super::Metrics;

/// Passes calls on, and counts them and what comes of them.
pub(crate) struct Metered {
    inner: Arc<dyn CoordinationBackend>,
    metrics: Arc<Metrics>,
}

/// A call under way. One that its caller gives up is dropped, and counted by that.
struct Call<'a> {
    metrics: &'a Metrics,
    op: &'static str,
    began: Instant,
    outcome: &'static str,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.metrics
            .requested(self.op, self.outcome, self.began.elapsed());
    }
}

impl Metered {
    pub(crate) fn new(inner: Arc<dyn CoordinationBackend>, metrics: Arc<Metrics>) -> Self {
        Self { inner, metrics }
    }

    async fn call<T>(
        &self,
        op: &'static str,
        call: impl Future<Output = BackendResult<T>>,
        good: impl FnOnce(&T) -> &'static str,
    ) -> BackendResult<T> {
        let mut counted = Call {
            metrics: &self.metrics,
            op,
            began: Instant::now(),
            outcome: "given_up",
        };
        let answer = call.await;
        counted.outcome = match &answer {
            Ok(value) => good(value),
            Err(error) => kind(error),
        };
        answer
    }
}

fn kind(error: &BackendError) -> &'static str {
    match error {
        BackendError::Unavailable(_) => "unavailable",
        BackendError::Unknown(_) => "unknown",
        BackendError::Compacted { .. } => "compacted",
        BackendError::LeaseLost => "lease_lost",
        BackendError::Rejected(_) => "rejected",
        BackendError::Broken(_) => "broken",
    }
}

fn ok<T>(_: &T) -> &'static str {
    "ok"
}

#[async_trait]
impl CoordinationBackend for Metered {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        self.call("range", self.inner.range(span, limit, at), ok)
            .await
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        self.call("commit", self.inner.commit(txn), |outcome| match outcome {
            TxnOutcome::Applied { .. } => "ok",
            TxnOutcome::Conflict { .. } => "conflict",
        })
        .await
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        let call = self.inner.commit_batch(guard, txns);
        self.call("commit_batch", call, |outcome| match outcome {
            BatchOutcome::Judged { .. } => "ok",
            BatchOutcome::GuardFailed { .. } => "conflict",
        })
        .await
    }

    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        self.call("grant", self.inner.grant(ttl_ms), ok).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        self.call("keep_alive", self.inner.keep_alive(lease), ok)
            .await
    }

    async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        self.call("revoke", self.inner.revoke(lease), ok).await
    }

    async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>> {
        let inner = self.call("watch", self.inner.watch(span, from), ok).await?;
        Ok(Box::new(MeteredWatch {
            inner,
            metrics: Arc::clone(&self.metrics),
            ended: false,
        }))
    }
}

struct MeteredWatch {
    inner: Box<dyn Watch>,
    metrics: Arc<Metrics>,
    ended: bool,
}

#[async_trait]
impl Watch for MeteredWatch {
    async fn next(&mut self) -> BackendResult<Changes> {
        let answer = self.inner.next().await;
        if let Err(error) = &answer
            && !self.ended
        {
            self.ended = true;
            self.metrics.resynced(kind(error));
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::encoding::text::encode_registry;
    use punctual::env::TokioEnv;
    use punctual_memory::MemoryBackend;

    use super::*;

    #[tokio::test]
    async fn every_call_is_counted_once_by_what_came_of_it() {
        let metrics = Arc::new(Metrics::new());
        let memory = MemoryBackend::new(TokioEnv::shared());
        let store = Metered::new(Arc::new(memory), Arc::clone(&metrics));
        let create = Txn::new()
            .require(Requirement::Absent(b"k".to_vec()))
            .put("k", "v");
        assert!(store.commit(&create).await.is_ok());
        assert!(store.commit(&create).await.is_ok());
        assert!(store.keep_alive(LeaseId(99)).await.is_err());
        let mut watch = store.watch(&Span::prefix("x"), Revision(1)).await.unwrap();
        let silent = tokio::time::timeout(Duration::from_millis(10), watch.next()).await;
        assert!(silent.is_err());
        let endless = store.call("range", std::future::pending::<BackendResult<()>>(), ok);
        let given_up = tokio::time::timeout(Duration::from_millis(10), endless).await;
        assert!(given_up.is_err());
        let mut text = String::new();
        encode_registry(&mut text, &metrics.registry).unwrap();
        for (op, outcome) in [
            ("commit", "ok"),
            ("commit", "conflict"),
            ("keep_alive", "lease_lost"),
            ("watch", "ok"),
            ("range", "given_up"),
        ] {
            let line =
                format!("scheduler_store_requests_total{{op=\"{op}\",outcome=\"{outcome}\"}} 1\n");
            assert!(text.contains(&line), "{line}{text}");
        }
        assert!(!text.contains("reason="), "a silent watch has not ended");
    }
}
