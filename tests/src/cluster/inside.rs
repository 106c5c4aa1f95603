//! Nodes inside the test's own process on a real etcd: for what must happen to single writes, and
//! for loads for which processes would be too heavy. Witnesses and checkers are those of
//! [`super::Cluster`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use punctual::backend::{BackendError, CoordinationBackend};
use punctual::cancel::{Canceller, StopCause};
use punctual::control::{Control, ControlError};
use punctual::env::TokioEnv;
use punctual::handler::{Executors, RunContext};
use punctual::job::spec::JobSpec;
use punctual::node::{Node, NodeConfig};
use punctual_etcd::{EtcdBackend, EtcdConfig};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::ledger::Execution;
use super::node::ProcessLife;
use super::observed::{NodeLives, observe};
use super::tap::Tap;
use super::{PATIENCE, unix_ms};
use crate::check::{History, exactly_once};
use crate::etcd::Etcd;
use crate::meddler::{Meddler, Meddling};
use crate::sim::world::{NAMESPACE, Observed};

/// The handler that jobs of such a cluster name: takes as many milliseconds as the payload says.
pub const HANDLER: &str = "work";

/// Nodes, and the etcd under them. Dropping it ends all of it.
pub struct Inside {
    /// What operators do.
    pub control: Control,
    /// The store's history.
    pub tap: Tap,
    /// Who meddles with the nodes' writes.
    pub meddler: Meddler,
    nodes: Vec<InsideNode>,
    executions: Arc<Mutex<Vec<Execution>>>,
    runtime: Runtime,
    _etcd: Etcd,
}

struct InsideNode {
    lives: NodeLives,
    stop: Canceller,
    task: JoinHandle<Result<(), BackendError>>,
}

impl Inside {
    /// So many nodes on a fresh etcd.
    ///
    /// # Panics
    /// When there is no etcd.
    #[must_use]
    pub fn start(nodes: usize, meddling: Meddling) -> Self {
        let etcd = Etcd::start();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let epoch_ms = unix_ms();
        let tap = Tap::start(vec![etcd.endpoint()], epoch_ms);
        let executions: Arc<Mutex<Vec<Execution>>> = Arc::default();
        let mut config = EtcdConfig::new([etcd.endpoint()]);
        config.allow_corrupting_version = true;
        let connected = runtime.block_on(EtcdBackend::connect(config)).unwrap();
        let meddler = Meddler::new(Arc::new(connected.clone()), meddling);
        let nodes = (0..nodes)
            .map(|n| {
                let name = format!("n{n}");
                let config = NodeConfig {
                    node_id: name.clone(),
                    namespace: NAMESPACE.into(),
                    slots: 100,
                    ..NodeConfig::default()
                };
                let mut executors = Executors::default();
                let ledger = Arc::clone(&executions);
                let work = move |context: RunContext| work(Arc::clone(&ledger), context);
                executors.handlers.insert(HANDLER.into(), Arc::new(work));
                let store = Arc::new(meddler.clone());
                let node = Node::new(store, TokioEnv::shared(), executors, config).unwrap();
                let (stop, stopping) = Canceller::new();
                let life = ProcessLife {
                    from_ms: unix_ms(),
                    ..ProcessLife::default()
                };
                InsideNode {
                    lives: (name, vec![life]),
                    stop,
                    task: runtime.spawn(node.run(stopping)),
                }
            })
            .collect();
        let store: Arc<dyn CoordinationBackend> = Arc::new(connected);
        Self {
            control: Control::new(store, TokioEnv::shared(), NAMESPACE),
            tap,
            meddler,
            nodes,
            executions,
            runtime,
            _etcd: etcd,
        }
    }

    /// Waits for something to be finished.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Brings jobs into force; waits for the nodes' first steps in the store.
    ///
    /// # Panics
    /// When they are refused.
    pub fn apply(&self, jobs: &[JobSpec]) {
        self.block_on(async {
            loop {
                match self.control.apply(jobs.to_vec(), false, &|_, _| {}).await {
                    Ok(_) => return,
                    Err(ControlError::Store(error)) if error.is_transient() => {}
                    Err(ControlError::Busy(_)) => {}
                    Err(error) => panic!("{error:?}"),
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
    }

    /// How many executions there were.
    #[must_use]
    pub fn executed(&self) -> usize {
        self.executions().len()
    }

    fn executions(&self) -> Vec<Execution> {
        let all = self.executions.lock();
        all.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Looks until it is so.
    ///
    /// # Panics
    /// When it does not become so.
    #[track_caller]
    pub fn wait_until(&self, what: &str, so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !so(self) {
            assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Whether every node still lives.
    #[must_use]
    pub fn all_live(&self) -> bool {
        self.nodes.iter().all(|node| !node.task.is_finished())
    }

    /// Waits until what was due is decided and has ended; what was witnessed until then.
    ///
    /// # Panics
    /// When it does not come to rest, or a node has given up.
    #[track_caller]
    pub fn settle(&self, jobs: &[JobSpec]) -> Observed {
        let off: Vec<JobSpec> = jobs
            .iter()
            .map(|job| JobSpec {
                enabled: false,
                ..job.clone()
            })
            .collect();
        self.apply(&off);
        self.wait_until("the end of all runs", |inside| {
            inside.tap.unfinished().is_empty()
                && exactly_once::check(&History::new(&inside.observe(inside.tap.log()))).is_empty()
        });
        assert!(self.all_live(), "a node never gives up");
        self.observe(self.tap.complete())
    }

    fn observe(&self, log: Vec<crate::sim::tap::Logged>) -> Observed {
        let lives: Vec<NodeLives> = self.nodes.iter().map(|node| node.lives.clone()).collect();
        observe(
            &lives,
            log,
            &self.executions(),
            self.tap.epoch_ms(),
            unix_ms(),
            0,
        )
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        for node in &self.nodes {
            node.stop.stop(StopCause::Cancelled);
            node.task.abort();
        }
    }
}

async fn work(ledger: Arc<Mutex<Vec<Execution>>>, context: RunContext) -> Result<(), String> {
    let ms = context.payload["ms"].as_u64().unwrap_or(0);
    let place = {
        let mut all = ledger.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Execution {
            job: context.job_id,
            run: context.run_id,
            attempt: context.attempt,
            token: context.fencing_token.0,
            scheduled_ms: context.scheduled_at_ms,
            // No process of its own.
            pid: 0,
            start_ms: unix_ms(),
            last_ms: unix_ms(),
            completed: false,
        });
        all.len() - 1
    };
    if ms > 0 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
    let mut all = ledger.lock().unwrap_or_else(PoisonError::into_inner);
    all[place].last_ms = unix_ms();
    all[place].completed = true;
    Ok(())
}
