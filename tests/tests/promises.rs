//! Two promises that an attacker of the engine once broke, on a node with a real clock.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use punctual::cancel::{Canceller, StopCause};
use punctual::control::{Control, ControlError};
use punctual::duration::Millis;
use punctual::env::TokioEnv;
use punctual::handler::{CommandExecutor, CommandLine, Execution, Executors, RunContext};
use punctual::job::run::RunState;
use punctual::job::spec::{CommandSpec, JobSpec, RunSpec};
use punctual::node::{Node, NodeConfig};
use punctual::schedule::ScheduleSpec;
use punctual_memory::MemoryBackend;

struct World {
    control: Control,
    stop: Canceller,
    life: tokio::task::JoinHandle<Result<(), punctual::backend::BackendError>>,
}

async fn start(executors: Executors, config: NodeConfig) -> World {
    let env = TokioEnv::shared();
    let backend = MemoryBackend::new(env.clone());
    let control = Control::new(Arc::new(backend.clone()), env.clone(), &config.namespace);
    let node = Node::new(Arc::new(backend), env, executors, config).unwrap();
    let (stop, stopping) = Canceller::new();
    let life = tokio::spawn(node.run(stopping));
    while control.status(String::new()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    World {
        control,
        stop,
        life,
    }
}

/// An `at` fires once a value, however often the job is edited back and forth: no value is ever
/// forgotten, and a job that has had too many is refused.
#[tokio::test]
async fn a_value_of_at_that_comes_back_does_not_fire_again() {
    let world = start(Executors::default(), NodeConfig::default()).await;
    let at = |second: u32| {
        let mut spec = JobSpec::handler("once", "nobody");
        spec.schedule = ScheduleSpec {
            at: Some(format!(
                "2026-01-01T00:{:02}:{:02}Z",
                second / 60,
                second % 60
            )),
            ..ScheduleSpec::default()
        };
        spec
    };
    for second in 0..64 {
        world.control.put_job(at(second), None).await.unwrap();
    }
    let full = world.control.put_job(at(64), None).await.unwrap_err();
    assert!(
        matches!(&full, ControlError::Invalid(findings) if findings[0].1.path == "schedule.at"),
        "{full:?}"
    );
    let active = world.control.job("once").await.unwrap().active_runs;
    assert_eq!(active, 64);
    world.control.put_job(at(0), None).await.unwrap();
    assert_eq!(world.control.job("once").await.unwrap().active_runs, 64);
    world.stop.stop(StopCause::Cancelled);
    world.life.await.unwrap().unwrap();
}

/// An executor that never comes back, as one whose supervisor is wedged.
struct Wedged(AtomicUsize);

#[async_trait]
impl CommandExecutor for Wedged {
    fn allows(&self, _: &CommandLine) -> Result<(), String> {
        Ok(())
    }

    async fn execute(&self, _: RunContext, _: CommandLine) -> Execution {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }
}

/// A command that could not be stopped may be running still: nothing is started beside it, although
/// the job has attempts left.
#[tokio::test]
async fn nothing_is_started_beside_a_command_that_could_not_be_stopped() {
    let wedged = Arc::new(Wedged(AtomicUsize::new(0)));
    let executors = Executors {
        handlers: BTreeMap::new(),
        commands: Some(wedged.clone()),
        http: None,
    };
    let config = NodeConfig {
        kill_grace_ms: 100,
        ..NodeConfig::default()
    };
    let world = start(executors, config).await;
    let mut spec = JobSpec::handler("stuck", "unused");
    spec.run = RunSpec {
        command: Some(CommandSpec::Argv(vec!["stuck".into()])),
        ..RunSpec::default()
    };
    spec.timeout = Millis::from_ms(200);
    spec.retry.attempts = Some(5);
    spec.retry.backoff = Millis::from_ms(0);
    world.control.put_job(spec, None).await.unwrap();
    let run = world.control.trigger("stuck", None, "key").await.unwrap();
    // The worker's patience is some 20 s; what it gives up is FAILED / timeout.
    let attempts = loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let attempts = world.control.run(&run.run_id).await.unwrap();
        if attempts[0].state.is_terminal() {
            break attempts;
        }
    };
    assert_eq!(attempts[0].state, RunState::Failed);
    assert_eq!(attempts[0].reason.as_deref(), Some("timeout"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.control.run(&run.run_id).await.unwrap().len(), 1);
    assert_eq!(wedged.0.load(Ordering::SeqCst), 1);
    world.stop.stop(StopCause::Cancelled);
    world.life.await.unwrap().unwrap();
}
