//! Nodes as processes of their own: what is killed here dies as a machine does.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use punctual::backend::CoordinationBackend;
use punctual::cancel::{Canceller, StopCause};
use punctual::env::TokioEnv;
use punctual::handler::{Executors, RunContext};
use punctual::node::{Node, NodeConfig};
use punctual_etcd::{EtcdBackend, EtcdConfig};

/// The hidden scenario.
pub(crate) const NODE: &str = "node";
/// The handler of every benchmark: does nothing.
pub(crate) const HANDLER: &str = "nothing";

/// How a node is started.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) etcd: String,
    pub(crate) namespace: String,
    pub(crate) node: String,
    pub(crate) overdue_takeover_ms: u64,
}

impl Settings {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let [etcd, namespace, node, overdue] = arguments else {
            return Err("node ETCD NAMESPACE NODE OVERDUE_TAKEOVER_MS".into());
        };
        Ok(Self {
            etcd: etcd.clone(),
            namespace: namespace.clone(),
            node: node.clone(),
            overdue_takeover_ms: overdue.parse().map_err(|_| "not a number")?,
        })
    }
}

/// Connects to an etcd on this host.
pub(crate) async fn connect(etcd: &str) -> Result<Arc<dyn CoordinationBackend>, String> {
    let config = EtcdConfig::new(etcd.split(','));
    let backend = EtcdBackend::connect(config).await;
    Ok(Arc::new(backend.map_err(|error| error.to_string())?))
}

/// Lives as a node until standard input ends, then leaves in good order.
pub(crate) async fn live(settings: Settings) -> Result<(), String> {
    let mut executors = Executors::default();
    let nothing = |_: RunContext| async { Ok::<(), String>(()) };
    executors.handlers.insert(HANDLER.into(), Arc::new(nothing));
    let config = NodeConfig {
        node_id: settings.node,
        namespace: settings.namespace,
        slots: 200,
        overdue_takeover_ms: settings.overdue_takeover_ms,
        ..NodeConfig::default()
    };
    let backend = connect(&settings.etcd).await?;
    let node = Node::new(backend, TokioEnv::shared(), executors, config)?;
    let (canceller, shutdown) = Canceller::new();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = std::io::stdin().lock().read_line(&mut line);
        canceller.stop(StopCause::Cancelled);
    });
    node.run(shutdown).await.map_err(|error| error.to_string())
}

/// The nodes of a cluster, by name.
#[derive(Debug)]
pub(crate) struct Nodes {
    etcd: String,
    namespace: String,
    overdue_takeover_ms: u64,
    processes: BTreeMap<String, (Child, ChildStdin)>,
}

impl Nodes {
    pub(crate) fn new(etcd: &str, namespace: &str, overdue_takeover_ms: u64) -> Self {
        Self {
            etcd: etcd.to_owned(),
            namespace: namespace.to_owned(),
            overdue_takeover_ms,
            processes: BTreeMap::new(),
        }
    }

    pub(crate) fn start(&mut self, node: &str) -> Result<(), String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(program)
            .args([NODE, &self.etcd, &self.namespace, node])
            .arg(self.overdue_takeover_ms.to_string())
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let leash = child.stdin.take().ok_or("a node without standard input")?;
        self.processes.insert(node.to_owned(), (child, leash));
        Ok(())
    }

    /// The process of a node.
    pub(crate) fn pid(&self, node: &str) -> Result<u32, String> {
        let found = self.processes.get(node).map(|(child, _)| child.id());
        found.ok_or_else(|| "no such node".into())
    }

    /// kill -9.
    pub(crate) fn kill(&mut self, node: &str) -> Result<(), String> {
        let (mut child, _leash) = self.processes.remove(node).ok_or("no such node")?;
        child.kill().map_err(|error| error.to_string())?;
        child.wait().map(|_| ()).map_err(|error| error.to_string())
    }

    /// Asks the node to leave.
    pub(crate) fn ask_to_leave(&mut self, node: &str) -> Result<(), String> {
        let (_, leash) = self.processes.get_mut(node).ok_or("no such node")?;
        writeln!(leash, "leave").map_err(|error| error.to_string())
    }

    /// Waits until the node that was asked has left.
    pub(crate) fn wait(&mut self, node: &str) -> Result<(), String> {
        let (mut child, _leash) = self.processes.remove(node).ok_or("no such node")?;
        child.wait().map(|_| ()).map_err(|error| error.to_string())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for (child, _) in self.processes.values_mut() {
            // Whatever it was doing, the benchmark is over.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
