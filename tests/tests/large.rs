//! Large payloads: what does not fit into one request goes in several, and holds nothing else up.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use punctual::backend::CoordinationBackend;
use punctual::bootstrap::bootstrap;
use punctual::cancel::{Canceller, StopCause};
use punctual::control::{Control, ControlError, RunFilter, RunObject};
use punctual::env::{SharedEnv, TokioEnv};
use punctual::handler::{Executors, RunContext};
use punctual::job::run::RunState;
use punctual::job::spec::{JobSpec, Overlap};
use punctual::keys::{Keys, partition_of};
use punctual::node::{Node, NodeConfig};
use punctual::recipe::retry::Store;
use punctual_memory::MemoryBackend;
use serde_json::json;

const NAMESPACE: &str = "large";

struct Bench {
    control: Control,
    backend: Arc<dyn CoordinationBackend>,
    env: SharedEnv,
}

async fn bench() -> Bench {
    let env: SharedEnv = TokioEnv::shared();
    let backend: Arc<dyn CoordinationBackend> = Arc::new(MemoryBackend::new(env.clone()));
    let store = Store::new(backend.clone(), env.clone(), 2_000);
    bootstrap(&store, &Keys::new(NAMESPACE)).await.unwrap();
    let control = Control::new(backend.clone(), env.clone(), NAMESPACE);
    Bench {
        control,
        backend,
        env,
    }
}

impl Bench {
    /// A node that lives until the end of the test.
    fn node(&self) -> Canceller {
        let (canceller, shutdown) = Canceller::new();
        let mut executors = Executors::default();
        let quick = |_: RunContext| async { Ok::<(), String>(()) };
        let long = |run: RunContext| async move {
            run.cancel.cancelled().await;
            Err::<(), String>("it was stopped".into())
        };
        executors.handlers.insert("quick".into(), Arc::new(quick));
        executors.handlers.insert("long".into(), Arc::new(long));
        let config = NodeConfig {
            node_id: "n1".into(),
            namespace: NAMESPACE.into(),
            slots: 64,
            ..NodeConfig::default()
        };
        let node = Node::new(self.backend.clone(), self.env.clone(), executors, config).unwrap();
        tokio::spawn(async move { node.run(shutdown).await });
        canceller
    }

    async fn trigger(&self, job: &str, count: usize, bytes: usize) {
        for n in 0..count {
            let payload = json!("x".repeat(bytes));
            let key = format!("{job}-{n}");
            self.control
                .trigger(job, Some(payload), &key)
                .await
                .unwrap();
        }
    }

    async fn runs(&self, job: &str) -> Vec<RunObject> {
        let filter = RunFilter {
            job: Some(job.into()),
            ..RunFilter::default()
        };
        self.control.runs(&filter, None, 1_000).await.unwrap().items
    }

    async fn until(&self, what: &str, job: &str, done: impl Fn(&[RunObject]) -> bool) {
        let begun = Instant::now();
        while !done(&self.runs(job).await) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{what}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn all_well(runs: &[RunObject]) -> bool {
    runs.iter().all(|run| run.state == RunState::Success)
}

/// Sixteen runs of 64 KiB are more than a request holds. They were claimed in one, which no store
/// takes; the worker took that for the end of its session, and stopped what it ran.
#[tokio::test]
async fn large_runs_are_claimed_in_several_requests_and_stop_nobody() {
    let bench = bench().await;
    let mut long = JobSpec::handler("long", "long");
    long.overlap = Overlap::Skip;
    bench.control.put_job(long, None).await.unwrap();
    let big = JobSpec::handler("big", "quick");
    bench.control.put_job(big, None).await.unwrap();
    bench.trigger("big", 40, 65_000).await;
    bench.trigger("long", 1, 0).await;
    let node = bench.node();
    bench.until("all have run", "big", all_well).await;
    bench
        .until("the other one runs", "long", |runs| {
            runs.iter().all(|run| run.state == RunState::Running)
        })
        .await;
    node.stop(StopCause::Cancelled);
}

/// What a replacement ends may be too large for one request; then it is cancelled.
#[tokio::test]
async fn large_runs_that_are_replaced_hold_up_no_other_job() {
    let bench = bench().await;
    let home = partition_of("rep", 16);
    let mut other = (0..).map(|n| format!("other-{n}"));
    let other = other.find(|id| partition_of(id, 16) == home).unwrap();
    let mut rep = JobSpec::handler("rep", "quick");
    rep.queue = "nobody".into();
    bench.control.put_job(rep.clone(), None).await.unwrap();
    bench.trigger("rep", 20, 65_000).await;
    rep.overlap = Overlap::Replace;
    rep.schedule.cron = Some("* * * * * *".into());
    bench.control.put_job(rep, None).await.unwrap();
    let each_second = JobSpec::handler(other.clone(), "quick").cron("* * * * * *");
    bench.control.put_job(each_second, None).await.unwrap();
    let node = bench.node();
    bench
        .until("the other job fires", &other, |runs| {
            runs.iter()
                .filter(|run| run.state == RunState::Success)
                .count()
                >= 4
        })
        .await;
    bench
        .until("those that waited are gone", "rep", |runs| {
            let manual = runs.iter().filter(|run| run.run_id.contains("~m-"));
            manual.clone().all(|run| run.state == RunState::Failed)
        })
        .await;
    node.stop(StopCause::Cancelled);
}

#[tokio::test]
async fn a_trigger_does_not_fill_the_store_by_way_of_its_parts() {
    let bench = bench().await;
    let mut wide = JobSpec::handler("wide", "quick");
    wide.fan_out = Some(1_024);
    bench.control.put_job(wide, None).await.unwrap();
    let payload = |bytes: usize| Some(json!("x".repeat(bytes)));
    let refused = bench.control.trigger("wide", payload(65_000), "a").await;
    let Err(ControlError::Invalid(findings)) = refused else {
        panic!("{refused:?}");
    };
    let told = findings[0].1.to_string();
    assert!(told.contains("each of 1024 parts"), "{told}");
    bench
        .control
        .trigger("wide", payload(4_000), "b")
        .await
        .unwrap();
}
