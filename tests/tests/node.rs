//! A node's own life: that it ends when it is told to, however often and from wherever.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use punctual::cancel::{Canceller, StopCause};
use punctual::control::{Control, RunFilter};
use punctual::env::TokioEnv;
use punctual::handler::{Executors, RunContext};
use punctual::job::run::RunState;
use punctual::job::spec::JobSpec;
use punctual::node::{Node, NodeConfig};
use punctual_memory::MemoryBackend;

/// S01: shutdown is asked for twice, and from eight tasks at once, while a job runs. All of them
/// return, the node drains and ends, and the run that was under way is SUCCESS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s01_shutdown_twice_and_from_eight_tasks_at_once() {
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let env = TokioEnv::shared();
    let backend = MemoryBackend::new(env.clone());
    let mut executors = Executors::default();
    let slow = |_: RunContext| async {
        STARTED.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok::<(), String>(())
    };
    executors.handlers.insert("slow".into(), Arc::new(slow));
    let config = NodeConfig::default();
    let control = Control::new(Arc::new(backend.clone()), env.clone(), &config.namespace);
    let node = Node::new(Arc::new(backend), env, executors, config).unwrap();
    let (stop, stopping) = Canceller::new();
    let stop = Arc::new(stop);
    let life = tokio::spawn(node.run(stopping));

    let job = JobSpec::handler("slow", "slow").cron("* * * * * *");
    let mut applied = control.apply(vec![job.clone()], false, &|_, _| {}).await;
    while applied.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
        applied = control.apply(vec![job.clone()], false, &|_, _| {}).await;
    }
    while STARTED.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let askers: Vec<_> = (0..8)
        .map(|_| {
            let stop = stop.clone();
            tokio::spawn(async move {
                stop.stop(StopCause::Cancelled);
                stop.stop(StopCause::Cancelled);
            })
        })
        .collect();
    for asker in askers {
        asker.await.unwrap();
    }
    // A watchdog, far above the drain: the run has half a second to go.
    let ended = tokio::time::timeout(Duration::from_secs(30), life).await;
    assert_eq!(ended.expect("the node ends").unwrap(), Ok(()));

    let runs = control
        .runs(&RunFilter::default(), None, 100)
        .await
        .unwrap();
    let of = |state: RunState| runs.items.iter().filter(|run| run.state == state).count();
    assert_eq!(
        of(RunState::Success),
        STARTED.load(Ordering::SeqCst),
        "{runs:?}"
    );
    assert_eq!(
        of(RunState::Locked) + of(RunState::Running) + of(RunState::Failed),
        0
    );
}

/// A node shows how many of its slots are taken, and that its leader's loop turns, for as long as
/// it leads and no longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_shows_its_slots_and_that_its_leader_turns() {
    let env = TokioEnv::shared();
    let backend = MemoryBackend::new(env.clone());
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let mut executors = Executors::default();
    let waits = {
        let gate = gate.clone();
        move |_: RunContext| {
            let gate = gate.clone();
            async move {
                gate.acquire().await.unwrap().forget();
                Ok::<(), String>(())
            }
        }
    };
    executors.handlers.insert("waits".into(), Arc::new(waits));
    let config = NodeConfig {
        slots: 3,
        ..NodeConfig::default()
    };
    let control = Control::new(Arc::new(backend.clone()), env.clone(), &config.namespace);
    let node = Node::new(Arc::new(backend), env, executors, config).unwrap();
    let vitals = node.vitals();
    assert_eq!((vitals.busy(), vitals.free()), (0, 3));
    assert_eq!(vitals.tick_age_ms(), None, "it does not lead yet");
    let (stop, stopping) = Canceller::new();
    let life = tokio::spawn(node.run(stopping));
    let until = async |what: &str, holds: &dyn Fn() -> bool| {
        for _ in 0..1_000 {
            if holds() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{what}: {vitals:?}");
    };

    let job = JobSpec::handler("waits", "waits").cron("* * * * * *");
    let mut applied = control.apply(vec![job.clone()], false, &|_, _| {}).await;
    while applied.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
        applied = control.apply(vec![job.clone()], false, &|_, _| {}).await;
    }
    until("as many runs as slots", &|| vitals.free() == 0).await;
    assert_eq!(vitals.busy(), 3);
    // An idle loop turns twice a second; whoever looks for a second sees it young, but not always zero.
    let mut ages = Vec::new();
    for _ in 0..100 {
        ages.push(vitals.tick_age_ms().expect("it leads"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(ages.iter().any(|age| *age < 250), "{ages:?}");
    assert!(ages.windows(2).any(|two| two[1] > two[0]), "{ages:?}");
    assert!(ages.windows(2).any(|two| two[1] < two[0]), "{ages:?}");

    stop.stop(StopCause::Cancelled);
    until("it resigns", &|| vitals.tick_age_ms().is_none()).await;
    assert_eq!(vitals.busy(), 3, "they run still");
    gate.add_permits(3);
    let ended = tokio::time::timeout(Duration::from_secs(30), life).await;
    assert_eq!(ended.expect("the node ends").unwrap(), Ok(()));
    assert_eq!(vitals.busy(), 0);
}
