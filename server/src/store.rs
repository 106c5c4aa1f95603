//! The store that `--store` names: opened, or waited for.
//!
//! What can go wrong here: the etcd of a cluster comes up after its nodes. So a node starts
//! without it, says so, answers its own clients with 503, and works as soon as etcd does. What
//! waiting does not mend (a wrong password, a release that loses data) ends the node instead.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use punctual::backend::{
    BackendError, BackendInfo, BackendResult, BatchOutcome, CoordinationBackend, Lease, LeaseId,
    Page, PageLimit, Requirement, Revision, Span, Txn, TxnOutcome, Usage, Watch,
};
use punctual::env::SharedEnv;
use punctual_etcd::{ConnectError, EtcdBackend, EtcdConfig};
use punctual_memory::MemoryBackend;
use punctual_sled::{OpenError, SledBackend};

use crate::cli::failure::{Exit, Failure, Outcome};
use crate::config::{DurabilityMode, ServeConfig, StoreAt};
use crate::files::DataDir;

/// How long a start waits for etcd before it goes on without.
const FIRST_WAIT: Duration = Duration::from_secs(3);
/// Between two tries to reach etcd.
const RETRY: Duration = Duration::from_secs(1);

/// A store, and what it knows of itself.
#[derive(Clone)]
pub(crate) struct Opened {
    pub(crate) backend: Arc<dyn CoordinationBackend>,
    pub(crate) info: Arc<dyn BackendInfo>,
    /// The same, where it is an etcd.
    pub(crate) etcd: Option<AwaitedEtcd>,
}

impl Opened {
    pub(crate) fn new(backend: impl CoordinationBackend + BackendInfo + 'static) -> Self {
        let backend = Arc::new(backend);
        Self {
            backend: Arc::clone(&backend) as Arc<dyn CoordinationBackend>,
            info: backend,
            etcd: None,
        }
    }
}

pub(crate) async fn open(config: &ServeConfig, data: &DataDir, env: &SharedEnv) -> Outcome<Opened> {
    match &config.store {
        StoreAt::Memory => Ok(Opened::new(MemoryBackend::new(Arc::clone(env)))),
        StoreAt::Sled(path) => {
            let database = if *path == config.data_dir {
                data.database()
            } else {
                path.join("db")
            };
            let options = punctual_sled::Options {
                durability: match config.args.durability.unwrap_or_default() {
                    DurabilityMode::Flush => punctual_sled::Durability::Flush,
                    DurabilityMode::Fsync => punctual_sled::Durability::Fsync,
                },
                ..punctual_sled::Options::default()
            };
            let opened = SledBackend::open(database, Arc::clone(env), options);
            opened
                .map(Opened::new)
                .map_err(|error| open_failure(config, &error))
        }
        StoreAt::Etcd(at) => {
            let store = AwaitedEtcd::start(at.config(&config.args)?).await?;
            Ok(Opened {
                etcd: Some(store.clone()),
                ..Opened::new(store)
            })
        }
    }
}

fn open_failure(config: &ServeConfig, error: &OpenError) -> Failure {
    let failure = Failure::usage(format!("cannot open the store: {error}"));
    match error {
        OpenError::Damaged { .. } => {
            let dir = config.data_dir.display();
            failure.hint(format!(
                "punctual store export --store sled:{dir} > dump.jsonl\n\
                 punctual store import --store sled:NEWDIR < dump.jsonl"
            ))
        }
        _ => failure,
    }
}

/// A failure to connect that waiting does not mend.
pub(crate) fn refused(error: &ConnectError) -> Failure {
    match error {
        ConnectError::Config(why) => Failure::usage(format!("--store: {why}")),
        ConnectError::Plaintext { endpoint } => Failure::usage(format!(
            "--store: {endpoint} is not on this machine, and without TLS whoever is on the way \
             reads and changes everything"
        ))
        .hint("write etcds://HOST:PORT, or say --etcd-plaintext on a network that is yours alone"),
        ConnectError::CorruptingVersion { endpoint, version } => Failure::usage(format!(
            "--store: {endpoint} is etcd {version}, which can lose acknowledged writes when it is \
             killed (so can all from 3.5.0 to 3.5.2)"
        ))
        .hint("upgrade etcd"),
        ConnectError::Denied { .. } => Failure::new(Exit::Denied, format!("--store: {error}"))
            .hint("see --etcd-user and --etcd-password-file"),
        ConnectError::Unreachable(_) => Failure::new(Exit::Unreachable, error.to_string()),
    }
}

/// An etcd that may not be there yet.
#[derive(Clone)]
pub(crate) struct AwaitedEtcd {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    connected: OnceLock<EtcdBackend>,
    /// Why it will never be.
    refused: OnceLock<String>,
    /// Why it is not yet.
    last: Mutex<String>,
}

impl AwaitedEtcd {
    /// Connects, or goes on trying beside everything else.
    pub(crate) async fn start(config: EtcdConfig) -> Outcome<Self> {
        let store = Self {
            state: Arc::default(),
        };
        let (first_out, first) = tokio::sync::oneshot::channel();
        tokio::spawn(store.clone().connect(config, first_out));
        // No answer in time, and a first try that failed, come to the same.
        match tokio::time::timeout(FIRST_WAIT, first).await {
            Ok(Ok(Err(error))) if !matches!(error, ConnectError::Unreachable(_)) => {
                Err(refused(&error))
            }
            _ => Ok(store),
        }
    }

    async fn connect(
        self,
        config: EtcdConfig,
        first: tokio::sync::oneshot::Sender<Result<(), ConnectError>>,
    ) {
        let mut first = Some(first);
        let mut tell = |result| {
            if let Some(first) = first.take() {
                // Nobody waits for it any more, if it fails.
                let _ = first.send(result);
            }
        };
        loop {
            match EtcdBackend::connect(config.clone()).await {
                Ok(backend) => {
                    let _ = self.state.connected.set(backend);
                    tell(Ok(()));
                    return;
                }
                Err(error @ ConnectError::Unreachable(_)) => {
                    *self.last() = error.to_string();
                    tell(Err(error));
                }
                Err(error) => {
                    let _ = self.state.refused.set(refused(&error).to_string());
                    tell(Err(error));
                    return;
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    fn last(&self) -> std::sync::MutexGuard<'_, String> {
        self.state
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What etcd says is wrong with it.
    pub(crate) async fn complaints(&self) -> BackendResult<Vec<String>> {
        self.etcd()?.complaints().await
    }

    fn etcd(&self) -> BackendResult<&EtcdBackend> {
        if let Some(etcd) = self.state.connected.get() {
            return Ok(etcd);
        }
        Err(match self.state.refused.get() {
            Some(why) => BackendError::Broken(why.clone()),
            None => BackendError::Unavailable(self.last().clone()),
        })
    }
}

#[async_trait]
impl CoordinationBackend for AwaitedEtcd {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        self.etcd()?.range(span, limit, at).await
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        self.etcd()?.commit(txn).await
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        self.etcd()?.commit_batch(guard, txns).await
    }

    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        self.etcd()?.grant(ttl_ms).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        self.etcd()?.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        self.etcd()?.revoke(lease).await
    }

    async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>> {
        self.etcd()?.watch(span, from).await
    }
}

#[async_trait]
impl BackendInfo for AwaitedEtcd {
    fn version(&self) -> String {
        match self.etcd() {
            Ok(etcd) => etcd.version(),
            Err(_) => "etcd, which does not answer yet".into(),
        }
    }

    async fn usage(&self) -> BackendResult<Usage> {
        self.etcd()?.usage().await
    }
}
