//! `admin`: what only a person can decide.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use punctual::backend::BackendError;
use punctual::bootstrap::{Restored, after_restore};
use punctual::control::ClockObject;
use punctual::env::TokioEnv;
use punctual::keys::Keys;
use punctual::node::NodeConfig;
use punctual::recipe::retry::Store;
use punctual_etcd::EtcdBackend;
use serde::Serialize;

use super::args::{AdminCommand, ClockCommand, Common, RecoverArgs};
use super::connect;
use super::failure::{Exit, Failure, Outcome};
use crate::config::StoreAt;
use crate::output::Output;
use crate::store::refused;
use crate::times::now_ms;

/// A session that came back with the backup ends so long after the restored store has started:
/// longer than any that a node is likely to have.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(500);

pub(super) async fn admin(common: &Common, output: &Output, command: AdminCommand) -> Outcome {
    match command {
        AdminCommand::Recover(args) => recover(common, output, *args).await,
        AdminCommand::Clock(ClockCommand::Accept { node }) => accept(common, output, node).await,
    }
}

async fn accept(common: &Common, output: &Output, node: Option<String>) -> Outcome {
    let mut client = connect(common)?;
    let body = serde_json::json!({ "node": node });
    let clock: ClockObject = client.post("/v1/clock/accept", &body, vec![]).await?;
    output.object(&clock, &clock.node, || {
        let node = &clock.node;
        if clock.accepted {
            format!(
                "{node}: its clock is believed; if it stepped back, nothing fires until it has caught up\n"
            )
        } else {
            format!("{node}: its clock is believed already; there is nothing to accept\n")
        }
    })
}

/// What a person must know before a node runs on what was restored.
#[derive(Debug, Serialize)]
struct Recovered {
    namespace: String,
    epoch: u8,
    /// The newest decision in the copy.
    decided_until: Option<String>,
    /// When this was asked. Instants between the two are decided again.
    recovered_at: Option<String>,
    /// Runs that were RUNNING: whether they ended, nobody knows.
    running: Vec<String>,
}

async fn recover(common: &Common, output: &Output, args: RecoverArgs) -> Outcome {
    let config = args.store.resolve(common.data_dir.clone())?;
    let StoreAt::Etcd(at) = &config.store else {
        return Err(
            Failure::usage("admin recover: this is for a store on etcd").hint(
                "say which: --store etcd://HOST:PORT/NAMESPACE\n\
                 `punctual store import` does the same for the embedded store by itself",
            ),
        );
    };
    let backend = EtcdBackend::connect(at.config(&config.args)?)
        .await
        .map_err(|error| refused(&error))?;
    let store = Store::new(
        std::sync::Arc::new(backend),
        TokioEnv::shared(),
        NodeConfig::default().store_timeout_ms,
    );
    let keys = Keys::new(&at.namespace);
    let patience = common.timeout.map_or(PATIENCE, Duration::from);
    no_node_runs(&store, &keys, output, patience).await?;
    let restored = after_restore(&store, &keys).await.map_err(|e| failed(&e))?;
    let recovered = Recovered::new(&at.namespace, restored);
    let name = recovered.epoch.to_string();
    output.object(&recovered, &name, || recovered.describe())
}

/// A node that goes on with the old epoch would hand out fencing tokens that are too small.
async fn no_node_runs(store: &Store, keys: &Keys, output: &Output, patience: Duration) -> Outcome {
    let began = Instant::now();
    let mut said = false;
    loop {
        let (sessions, _) = store
            .list(&keys.nodes(), None)
            .await
            .map_err(|e| failed(&e))?;
        let names: Vec<String> = sessions
            .iter()
            .filter_map(|entry| keys.parse_node(&entry.key))
            .map(|(node, _)| node)
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        let names = names.join(", ");
        if began.elapsed() > patience {
            return Err(
                Failure::new(Exit::Conflict, format!("nodes run on this store: {names}"))
                    .hint("stop all of them first; nothing was changed"),
            );
        }
        if !said {
            output.note(&format!(
                "these nodes are registered: {names}; if they are stopped, that ends by itself"
            ));
            said = true;
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn failed(error: &BackendError) -> Failure {
    let exit = if error.is_transient() {
        Exit::Unreachable
    } else {
        Exit::Conflict
    };
    Failure::new(exit, format!("admin recover: {error}"))
}

fn time(ms: i64) -> Option<String> {
    let time = Timestamp::from_millisecond(ms).ok()?;
    Some(time.to_string())
}

impl Recovered {
    fn new(namespace: &str, restored: Restored) -> Self {
        Self {
            namespace: namespace.into(),
            epoch: restored.epoch,
            // A namespace in which nothing was decided has no such moment.
            decided_until: time(restored.decided_until_ms)
                .filter(|_| restored.decided_until_ms > 0),
            recovered_at: time(now_ms()),
            running: restored.running,
        }
    }

    fn describe(&self) -> String {
        let unknown = || "unknown".to_owned();
        let mut text = format!(
            "Namespace {} begins epoch {}: fencing tokens go on growing.\n\
             The copy was decided up to {}. Instants from then until the nodes start (now: {})\n\
             are decided again, so what ran since then can run twice; look at it before you start.\n",
            self.namespace,
            self.epoch,
            self.decided_until.clone().unwrap_or_else(unknown),
            self.recovered_at.clone().unwrap_or_else(unknown),
        );
        match self.running.len() {
            0 => text.push_str("No run was RUNNING in the copy.\n"),
            many => {
                text.push_str(&format!(
                    "{many} runs were RUNNING in the copy; whether they ended, nobody knows:\n"
                ));
                for run in &self.running {
                    text.push_str(&format!("  {run}\n"));
                }
            }
        }
        text
    }
}
