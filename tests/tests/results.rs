//! Results on their way into the store: many in one request, and none lost when the store is away
//! for longer than the node lives.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use punctual::backend::{
    BackendError, CoordinationBackend, PageLimit, Requirement, Revision, Span, Txn, TxnOutcome,
};
use punctual::cancel::Canceller;
use punctual::control::{Control, RunFilter};
use punctual::env::{SharedEnv, TokioEnv};
use punctual::handler::{Executors, RunContext};
use punctual::job::run::RunState;
use punctual::job::spec::JobSpec;
use punctual::node::{Node, NodeConfig};
use punctual::recipe::committer::Committer;
use punctual::recipe::retry::Store;
use punctual_memory::MemoryBackend;
use punctual_tests::sim::spool::MemorySpool;
use punctual_tests::unsteady::{Mood, Unsteady};

struct Bench {
    backend: Arc<Unsteady>,
    committer: Arc<Committer>,
}

fn bench() -> Bench {
    let env: SharedEnv = TokioEnv::shared();
    let backend = Arc::new(Unsteady::new(MemoryBackend::new(env.clone())));
    let store = Store::new(backend.clone(), env, 2_000);
    Bench {
        backend,
        committer: Arc::new(Committer::new(&store)),
    }
}

/// A record for each run; its step consumes it.
async fn records(backend: &Unsteady, count: usize) -> Vec<Txn> {
    let mut steps = Vec::new();
    for run in 0..count {
        let key = format!("run/{run:03}");
        let txn = Txn::new()
            .require(Requirement::Absent(key.clone().into()))
            .put(key.clone(), "running");
        let TxnOutcome::Applied { revision, .. } = backend.commit(&txn).await.unwrap() else {
            panic!("a new store");
        };
        let guard = Requirement::Modified(key.clone().into(), revision);
        steps.push(Txn::new().require(guard).put(key, "done"));
    }
    steps
}

async fn all_at_once(bench: &Bench, steps: Vec<Txn>) -> Vec<Result<TxnOutcome, BackendError>> {
    let tasks: Vec<_> = steps
        .into_iter()
        .map(|step| {
            let committer = bench.committer.clone();
            tokio::spawn(async move { committer.settle(step).await })
        })
        .collect();
    let mut outcomes = Vec::new();
    for task in tasks {
        outcomes.push(task.await.unwrap());
    }
    outcomes
}

fn applied(outcome: &Result<TxnOutcome, BackendError>) -> bool {
    matches!(outcome, Ok(TxnOutcome::Applied { .. }))
}

#[tokio::test]
async fn many_results_share_a_request() {
    let bench = bench();
    let steps = records(&bench.backend, 200).await;
    let before = bench.backend.commits();
    let outcomes = all_at_once(&bench, steps).await;
    assert!(outcomes.iter().all(applied));
    let requests = bench.backend.commits() - before;
    assert!(requests <= 10, "200 results took {requests} requests");
}

#[tokio::test]
async fn a_conflict_is_the_business_of_one() {
    let bench = bench();
    let mut steps = records(&bench.backend, 20).await;
    steps[7].require[0] = Requirement::Modified(b"run/007".to_vec(), Revision(1_000));
    let outcomes = all_at_once(&bench, steps).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        assert_eq!(applied(outcome), n != 7, "{n}: {outcome:?}");
    }
}

#[tokio::test]
async fn what_the_store_rejects_harms_nobody_else() {
    let bench = bench();
    let mut steps = records(&bench.backend, 20).await;
    steps[3] = Txn::new().put("", "an empty key");
    let outcomes = all_at_once(&bench, steps).await;
    for (n, outcome) in outcomes.iter().enumerate() {
        assert_eq!(applied(outcome), n != 3, "{n}: {outcome:?}");
    }
    assert!(matches!(outcomes[3], Err(BackendError::Rejected(_))));
}

/// Each answer is lost for a while although the group was applied: it is sent again as it was, and
/// the second copy finds its guards consumed.
#[tokio::test]
async fn a_group_whose_answer_is_lost_applies_once() {
    let bench = bench();
    let steps = records(&bench.backend, 30).await;
    bench.backend.set(Mood::Mumbling);
    let backend = bench.backend.clone();
    let heal = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        backend.set(Mood::Well);
    });
    let outcomes = all_at_once(&bench, steps).await;
    heal.await.unwrap();
    let conflicts = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Ok(TxnOutcome::Conflict { .. })))
        .count();
    assert_eq!(conflicts, 30, "what was applied unheard is a conflict now");
    let page = bench
        .backend
        .range(&Span::prefix("run/"), PageLimit::default(), None)
        .await
        .unwrap();
    assert!(page.entries.iter().all(|entry| entry.value == b"done"));
}

struct Life {
    _stop: Canceller,
    task: tokio::task::JoinHandle<Result<(), BackendError>>,
}

impl Life {
    fn begin(
        backend: &Arc<Unsteady>,
        spool: &Arc<MemorySpool>,
        executed: &'static AtomicUsize,
    ) -> Self {
        let slow = move |_: RunContext| async move {
            executed.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(400)).await;
            Ok::<(), String>(())
        };
        let mut executors = Executors::default();
        executors.handlers.insert("slow".into(), Arc::new(slow));
        let config = NodeConfig::default();
        let node = Node::new(backend.clone(), TokioEnv::shared(), executors, config)
            .unwrap()
            .with_spool(spool.clone());
        let (stop, stopping) = Canceller::new();
        Self {
            _stop: stop,
            task: tokio::spawn(node.run(stopping)),
        }
    }

    /// As by kill -9, as far as a future can be killed.
    async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// R12: the store is away when a run ends, and the node dies before it is back. Its next life
/// reports the result for the former incarnation: the run is SUCCESS, and ran once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r12_a_result_survives_an_outage_and_the_node() {
    static EXECUTED: AtomicUsize = AtomicUsize::new(0);
    let env = TokioEnv::shared();
    let backend = Arc::new(Unsteady::new(MemoryBackend::new(env.clone())));
    let spool = Arc::new(MemorySpool::default());
    let control = Control::new(
        backend.clone(),
        env.clone(),
        &NodeConfig::default().namespace,
    );
    let first = Life::begin(&backend, &spool, &EXECUTED);
    let job = JobSpec::handler("slow", "slow");
    while control
        .apply(vec![job.clone()], false, &|_, _| {})
        .await
        .is_err()
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    control.trigger("slow", None, "key").await.unwrap();
    while EXECUTED.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    backend.set(Mood::Away);
    let patience = env.monotonic_ms() + 20_000;
    while spool.names().is_empty() {
        assert!(
            env.monotonic_ms() < patience,
            "the result reaches the spool"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    first.kill().await;
    backend.set(Mood::Well);

    let second = Life::begin(&backend, &spool, &EXECUTED);
    let patience = env.monotonic_ms() + 20_000;
    while !spool.names().is_empty() {
        assert!(env.monotonic_ms() < patience, "the spool empties");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    second.kill().await;
    let runs = control
        .runs(&RunFilter::default(), None, 10)
        .await
        .unwrap()
        .items;
    assert_eq!(runs.len(), 1, "{runs:?}");
    assert_eq!(runs[0].state, RunState::Success);
    assert_eq!(EXECUTED.load(Ordering::SeqCst), 1);
}

/// What the store refuses to take must not look like what never ran: the end of a run that is too
/// large for it is reported without its text, and the code runs once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_the_store_refuses_is_not_run_again() {
    static EXECUTED: AtomicUsize = AtomicUsize::new(0);
    let env = TokioEnv::shared();
    let backend = Arc::new(Unsteady::new(MemoryBackend::new(env.clone())));
    let namespace = NodeConfig::default().namespace;
    let control = Control::new(backend.clone(), env.clone(), &namespace);
    let wordy = |_: RunContext| async {
        EXECUTED.fetch_add(1, Ordering::SeqCst);
        Err::<(), String>("no ".repeat(1_000_000))
    };
    let mut executors = Executors::default();
    executors.handlers.insert("wordy".into(), Arc::new(wordy));
    let config = NodeConfig {
        relist_ms: 300,
        ..NodeConfig::default()
    };
    let node = Node::new(backend.clone(), env.clone(), executors, config).unwrap();
    let (_stop, stopping) = Canceller::new();
    let life = tokio::spawn(node.run(stopping));
    let job = JobSpec::handler("wordy", "wordy");
    while control
        .apply(vec![job.clone()], false, &|_, _| {})
        .await
        .is_err()
    {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Starts fit, and an end of four thousand bytes does not.
    backend.set(Mood::Narrow(3_000));
    control.trigger("wordy", None, "key").await.unwrap();
    let patience = env.monotonic_ms() + 20_000;
    let run = loop {
        assert!(env.monotonic_ms() < patience, "the run ends");
        tokio::time::sleep(Duration::from_millis(20)).await;
        let runs = control.runs(&RunFilter::default(), None, 10).await.unwrap();
        let ended = runs.items.into_iter().find(|r| r.state == RunState::Failed);
        if let Some(run) = ended {
            break run;
        }
    };
    // Long enough for what nobody holds to be given back.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(EXECUTED.load(Ordering::SeqCst), 1);
    assert_eq!(run.reason.as_deref(), Some("error"), "{run:?}");
    life.abort();
}
