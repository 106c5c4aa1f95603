//! A store whose calls are counted.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use punctual::backend::{
    BackendError, BackendResult, BatchOutcome, Changes, CoordinationBackend, Lease, LeaseId, Page,
    PageLimit, Requirement, Revision, Span, Txn, TxnOutcome, Watch,
};
use punctual::env::SharedEnv;

use super::Metrics;
use super::written::{Did, Reader};

/// Passes calls on, and counts them and what comes of them.
pub(crate) struct Metered {
    inner: Arc<dyn CoordinationBackend>,
    metrics: Arc<Metrics>,
    reader: Reader,
    env: SharedEnv,
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
    pub(crate) fn new(
        inner: Arc<dyn CoordinationBackend>,
        metrics: Arc<Metrics>,
        namespace: &str,
        env: SharedEnv,
    ) -> Self {
        Self {
            inner,
            metrics,
            reader: Reader::new(namespace),
            env,
        }
    }

    /// Counts what a transaction did, or why it did nothing.
    fn count(&self, txn: &Txn, outcome: &TxnOutcome) {
        let now_ms = self.env.wall_ms();
        let tell = |did: Did<'_>| self.metrics.did(&did, now_ms);
        match outcome {
            TxnOutcome::Applied { chosen, .. } => self.reader.applied(txn, chosen, tell),
            TxnOutcome::Conflict { seen } => self.reader.refused(txn, seen, tell),
        }
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
        if txn.is_lookup() {
            // (That something stands there is no conflict of anybody.)
            return self.call("lookup", self.inner.commit(txn), ok).await;
        }
        let call = self.call("commit", self.inner.commit(txn), |outcome| match outcome {
            TxnOutcome::Applied { .. } => "ok",
            TxnOutcome::Conflict { .. } => "conflict",
        });
        let sent = self
            .metrics
            .doubts
            .sent("commit", &[], std::slice::from_ref(txn));
        let answer = call.await;
        sent.answered(&answer, |outcome| outcome.applied().is_some());
        let outcome = answer?;
        self.count(txn, &outcome);
        Ok(outcome)
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        let call = self.inner.commit_batch(guard, txns);
        let call = self.call("commit_batch", call, |outcome| match outcome {
            BatchOutcome::Judged { .. } => "ok",
            BatchOutcome::GuardFailed { .. } => "conflict",
        });
        let sent = self.metrics.doubts.sent("commit_batch", guard, txns);
        let answer = call.await;
        sent.answered(&answer, |outcome| match outcome {
            BatchOutcome::Judged { outcomes, .. } => {
                outcomes.iter().any(|outcome| outcome.applied().is_some())
            }
            BatchOutcome::GuardFailed { .. } => false,
        });
        let outcome = answer?;
        match &outcome {
            BatchOutcome::Judged { outcomes, .. } => {
                for (txn, outcome) in txns.iter().zip(outcomes) {
                    self.count(txn, outcome);
                }
            }
            BatchOutcome::GuardFailed { seen } => {
                let now_ms = self.env.wall_ms();
                let tell = |did: Did<'_>| self.metrics.did(&did, now_ms);
                self.reader.fenced(guard, seen, tell);
            }
        }
        Ok(outcome)
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
    use punctual::backend::{Op, Write};
    use punctual::env::TokioEnv;
    use punctual::keys::{AttemptKey, Keys};
    use punctual_memory::MemoryBackend;
    use punctual_tests::unsteady::{Mood, Unsteady};

    use super::*;

    #[tokio::test]
    async fn every_call_is_counted_once_by_what_came_of_it() {
        let metrics = Arc::new(Metrics::new());
        let memory = MemoryBackend::new(TokioEnv::shared());
        let store = Metered::new(
            Arc::new(memory),
            Arc::clone(&metrics),
            "n",
            TokioEnv::shared(),
        );
        let create = Txn::new()
            .require(Requirement::Absent(b"k".to_vec()))
            .put("k", "v");
        assert!(store.commit(&create).await.is_ok());
        assert!(store.commit(&create).await.is_ok());
        let question = Txn::new().require(Requirement::Absent(b"k".to_vec()));
        assert!(store.commit(&question).await.is_ok());
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
            ("lookup", "ok"),
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

    /// O07: each record of an instant that did not run is counted, whether it was the choice of the
    /// transaction or was written outright, and only when it was written.
    #[tokio::test]
    async fn skip_records_are_counted_when_they_are_written() {
        let metrics = Arc::new(Metrics::new());
        let memory = MemoryBackend::new(TokioEnv::shared());
        let store = Metered::new(
            Arc::new(memory),
            Arc::clone(&metrics),
            "n",
            TokioEnv::shared(),
        );
        let keys = Keys::new("n");
        let at = |run: &str, attempt| AttemptKey {
            partition: 1,
            job: "a".into(),
            run: run.into(),
            attempt,
        };
        let choice = |run: &str| Op::Choose {
            require: vec![Requirement::Absent(keys.run(&at("r", 1)))],
            then: vec![Write::put(keys.run(&at("r", 1)), "run")],
            otherwise: vec![Write::put(keys.done(&at(run, 0)), "skip")],
        };
        let skip = |run: &str| Write::put(keys.done(&at(run, 0)), "skip");
        let counted = || {
            let mut text = String::new();
            encode_registry(&mut text, &metrics.registry).unwrap();
            let line = "scheduler_job_trigger_total{job_id=\"a\",status=\"skipped\"} ";
            let behind = text.split(line).nth(1);
            behind.map_or(0, |rest| rest.lines().next().unwrap().parse().unwrap())
        };
        let first = Txn::new().op(choice("s1"));
        assert!(store.commit(&first).await.is_ok());
        assert_eq!(counted(), 0, "the run was chosen");
        let end = Txn::new()
            .put(keys.done(&at("q", 1)), "done")
            .op(skip("s2"));
        let refused = Txn::new()
            .require(Requirement::Created(b"never".to_vec(), Revision(1)))
            .op(skip("s3"));
        let batch = [Txn::new().op(choice("s1")), end, refused];
        let answer = store.commit_batch(&[], &batch).await;
        assert!(
            matches!(answer, Ok(BatchOutcome::Judged { .. })),
            "{answer:?}"
        );
        assert_eq!(counted(), 2, "one by choice, one outright; one conflicted");
    }

    /// What transactions did arrives in the text, each once: runs that are made are late by the clock at
    /// the answer, those that stood already are not made again, and a guard that is gone is told.
    #[tokio::test]
    async fn what_transactions_did_is_counted() {
        let metrics = Arc::new(Metrics::new());
        let (env, keys) = (TokioEnv::shared(), Keys::new("n"));
        let memory = Arc::new(MemoryBackend::new(env.clone()));
        let store = Metered::new(memory, Arc::clone(&metrics), "n", env.clone());
        let instant_ms = env.wall_ms() - 5_000;
        let run = format!(
            "{{\"v\":1,\"r\":{{\"state\":\"PENDING\",\"scheduled_ms\":{instant_ms},\
             \"not_before_ms\":{instant_ms},\"created_ms\":{instant_ms}}}}}"
        );
        let made = |run_id: &str| {
            let key = keys.run(&AttemptKey {
                partition: 1,
                job: "a".into(),
                run: run_id.into(),
                attempt: 1,
            });
            Txn::new()
                .require(Requirement::Absent(key.clone()))
                .put(key, run.clone())
        };
        let batch = [made("a@x"), made("a~m-1")];
        let answer = store.commit_batch(&[], &batch).await;
        assert!(matches!(answer, Ok(BatchOutcome::Judged { .. })));
        let again = store.commit(&batch[0]).await;
        assert!(matches!(again, Ok(TxnOutcome::Conflict { .. })));
        let term = Requirement::Created(keys.leader(), Revision(1));
        let deposed = store.commit_batch(&[term], &[made("a@y")]).await;
        assert!(matches!(deposed, Ok(BatchOutcome::GuardFailed { .. })));
        let mut text = String::new();
        encode_registry(&mut text, &metrics.registry).unwrap();
        for line in [
            "scheduler_job_trigger_total{job_id=\"a\",status=\"fired\"} 2\n",
            "scheduler_job_trigger_total{job_id=\"a\",status=\"dedup\"} 1\n",
            "scheduler_fire_lateness_seconds_count 1\n",
            "scheduler_fire_lateness_seconds_bucket{le=\"2.5\"} 0\n",
            "scheduler_fire_lateness_seconds_bucket{le=\"60.0\"} 1\n",
            "scheduler_fenced_writes_total{op=\"lead\"} 1\n",
            "scheduler_fenced_writes_total{op=\"work\"} 0\n",
            "scheduler_queue_seconds_count 0\n",
            "scheduler_runs_lost_total 0\n",
            "scheduler_late_results_total 0\n",
            "scheduler_leader_changes_total 0\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }

    /// A transaction whose answer is lost is in doubt until it is made again, and is not counted as
    /// having fired: its repeat finds the run there.
    #[tokio::test]
    async fn a_lost_answer_is_in_doubt_until_the_repeat() {
        let metrics = Arc::new(Metrics::new());
        let env = TokioEnv::shared();
        let inner = Arc::new(Unsteady::new(MemoryBackend::new(env.clone())));
        let store = Metered::new(inner.clone(), Arc::clone(&metrics), "n", env);
        let key = Keys::new("n").run(&AttemptKey {
            partition: 1,
            job: "a".into(),
            run: "a@x".into(),
            attempt: 1,
        });
        let run = [Txn::new()
            .require(Requirement::Absent(key.clone()))
            .put(key, "{}")];
        let other = Txn::new().put("k", "v");
        inner.set(Mood::Mumbling);
        let lost = store.commit_batch(&[], &run).await;
        assert!(matches!(lost, Err(BackendError::Unknown(_))), "{lost:?}");
        let lost = store.commit(&other).await;
        assert!(matches!(lost, Err(BackendError::Unknown(_))), "{lost:?}");
        let text = || {
            let mut text = String::new();
            encode_registry(&mut text, &metrics.registry).unwrap();
            text
        };
        assert!(!text().contains("resolution="));
        inner.set(Mood::Well);
        assert!(store.commit_batch(&[], &run).await.is_ok());
        assert!(store.commit(&other).await.is_ok());
        for line in [
            "scheduler_unknown_outcomes_total{op=\"commit_batch\",resolution=\"refused\"} 1\n",
            "scheduler_unknown_outcomes_total{op=\"commit\",resolution=\"applied\"} 1\n",
            "scheduler_job_trigger_total{job_id=\"a\",status=\"dedup\"} 1\n",
        ] {
            assert!(text().contains(line), "{line}{}", text());
        }
        assert!(!text().contains("status=\"fired\""));
    }
}
