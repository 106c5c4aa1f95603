//! A running node with its API, from the open store to the last drained run.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use punctual::backend::{BackendError, CoordinationBackend};
use punctual::cancel::{Canceller, StopCause};
use punctual::control::{ApplyReport, Control, ControlError};
use punctual::env::TokioEnv;
use punctual::handler::{CommandExecutor, Executors, HttpExecutor};
use punctual::job::spec::JobSpec;
use punctual::node::{Node, NodeConfig};
use punctual::notify::Notifier;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::api::{Api, BODY_TIME};
use crate::calls::NodeCalls;
use crate::cli::failure::{Exit, Failure, Outcome};
use crate::commands::NodeCommands;
use crate::config::{DEFAULT_PORT, ServeConfig, StoreAt};
use crate::files::{ClientFile, DataDir, DirLock, token_of_file};
use crate::job_files::JobFiles;
use crate::metrics::{Metered, Metrics};
use crate::notify::{Webhooks, secret_of_file};
use crate::spool::DirSpool;
use crate::store;
use punctual_server::exec::http::HttpCalls;
use punctual_server::jobfile::JobFile;
use punctual_server::outbound::{Allowed, Client, ControlPlane};

/// How long open requests may take after the node has stopped.
const LAST_REQUESTS: Duration = Duration::from_secs(2);
/// How long to wait before job files are applied again.
const RETRY: Duration = Duration::from_millis(250);

/// A node that runs.
pub(crate) struct Server {
    pub(crate) control: Control,
    pub(crate) url: String,
    pub(crate) node_id: String,
    pub(crate) store: String,
    /// Made at this start: to be shown once.
    pub(crate) new_token: Option<String>,
    commands: Arc<NodeCommands>,
    pub(crate) webhooks: Arc<Webhooks>,
    pub(crate) job_files: JobFiles,
    data_dir: std::path::PathBuf,
    state_file: Option<std::path::PathBuf>,
    canceller: Canceller,
    node: JoinHandle<Result<(), BackendError>>,
    api: JoinHandle<std::io::Result<()>>,
    stop_api: oneshot::Sender<()>,
    /// Held to the end: a node's name and spool are its own.
    _lock: DirLock,
}

impl Server {
    /// Opens the store, listens, and starts the node. `any_port`: when the port is taken, another.
    pub(crate) async fn start(
        config: &ServeConfig,
        file: &JobFile,
        any_port: bool,
    ) -> Outcome<Self> {
        let data = DataDir::open(&config.data_dir)?;
        // The lock comes first: what follows writes into the directory.
        let lock = data.lock()?;
        let env = TokioEnv::shared();
        let node_id = match &config.args.node_id {
            Some(id) => id.clone(),
            None => data.node_id()?,
        };
        let given_token = match &config.args.admin_token_file {
            Some(path) => Some(token_of_file(path)?),
            None => None,
        };
        let mut settings = settings(config, node_id.clone());
        settings.check().map_err(Failure::usage)?;
        let opened = store::open(config, &data, &env).await?;
        let metrics = Arc::new(Metrics::new());
        let backend: Arc<dyn CoordinationBackend> = Arc::new(Metered::new(
            Arc::clone(&opened.backend),
            Arc::clone(&metrics),
            &settings.namespace,
            Arc::clone(&env),
        ));
        let listener = listen(config.listen, any_port).await?;
        let address = listener
            .local_addr()
            .map_err(|e| Failure::new(Exit::Bug, format!("the listener has no address: {e}")))?;
        let url = format!("http://{}", reachable(address));
        settings.address = Some(url.clone());
        let mode = config.commands;
        let commands = Arc::new(
            NodeCommands::new(mode, config.data_dir.clone(), file)
                .with_files(config.args.jobs.clone().unwrap_or_default())
                .counted_by(Arc::clone(&metrics)),
        );
        let secret = config.args.notify_secret_file.as_deref();
        let ours = control_plane(config, address);
        let receivers = config.notify_allow.clone();
        let webhooks = Arc::new(Webhooks::new(
            Client::new(Allowed::named("--notify-allow", receivers, ours.clone())),
            secret.map(secret_of_file).transpose()?,
            Arc::clone(&metrics),
        ));
        let called = Allowed::named("--http-allow", config.http_allow.clone(), ours);
        let calls = Arc::new(NodeCalls::new(
            HttpCalls::new(Client::new(called.and_public()), &config.data_dir),
            Arc::clone(&metrics),
        ));
        let namespace = settings.namespace.clone();
        let executors = Executors {
            commands: Some(Arc::clone(&commands) as Arc<dyn CommandExecutor>),
            http: Some(Arc::clone(&calls) as Arc<dyn HttpExecutor>),
            ..Executors::default()
        };
        let spool = DirSpool::open(data.spool())?;
        let node = Node::new(Arc::clone(&backend), Arc::clone(&env), executors, settings)
            .map_err(Failure::usage)?
            .with_spool(Arc::new(spool))
            .with_notifier(Arc::clone(&webhooks) as Arc<dyn Notifier>);
        metrics.show(node.vitals());
        let control = Control::with_clock(backend, env, &namespace, node.clock());
        let (mut tokens, token, is_new) = data.tokens()?;
        tokens.extend(given_token);
        let client = ClientFile {
            url: url.clone(),
            token: token.clone(),
        };
        let state_file = data.announce(&client, address.port())?;
        let job_files = JobFiles::default();
        let api = Api {
            control: control.clone(),
            tokens: tokens.into(),
            store: opened.clone(),
            data_dir: config.data_dir.clone(),
            metrics,
            node: node_id.clone(),
            commands: Arc::clone(&commands),
            webhooks: Arc::clone(&webhooks),
            calls,
            job_files: job_files.clone(),
            body_time: BODY_TIME,
        };
        let (stop_api, stopped) = oneshot::channel::<()>();
        let (canceller, shutdown) = Canceller::new();
        Ok(Self {
            control,
            url,
            node_id,
            store: opened.info.version(),
            new_token: is_new.then_some(token),
            commands,
            webhooks,
            job_files,
            data_dir: config.data_dir.clone(),
            state_file,
            canceller,
            node: tokio::spawn(node.run(shutdown)),
            api: tokio::spawn(api.serve(listener, async {
                let _ = stopped.await;
            })),
            stop_api,
            _lock: lock,
        })
    }

    /// Reads the node's files again; the jobs in them.
    pub(crate) fn read_files_again(&self) -> Outcome<Vec<JobSpec>> {
        let (file, gone) = self.commands.read_again()?;
        let (commands, control) = (Arc::clone(&self.commands), self.control.clone());
        tokio::spawn(async move { commands.warn_of_gone(&control, gone).await });
        Ok(file.jobs)
    }

    /// Tells the node to resign, claim no more and finish what runs.
    pub(crate) fn begin_stop(&self) {
        self.canceller.stop(StopCause::Cancelled);
    }

    /// How to call the client so that it surely finds this server.
    pub(crate) fn client_command(&self, program: &str) -> String {
        let default = format!(":{DEFAULT_PORT}");
        if self.state_file.is_none() {
            // Then only the data directory tells where the server is.
            format!("{program} --data-dir {}", self.data_dir.display())
        } else if self.url.ends_with(&default) && crate::discover::is_the_only_one(&self.url) {
            program.to_owned()
        } else {
            format!("{program} --server {}", self.url)
        }
    }

    /// Waits until the node has ended, by itself or after `begin_stop`.
    pub(crate) async fn ended(&mut self) -> Outcome {
        match (&mut self.node).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Failure::new(
                Exit::Unreachable,
                format!("the node stopped: {error}"),
            )),
            Err(error) => Err(Failure::new(Exit::Bug, format!("the node died: {error}"))),
        }
    }

    /// Takes down what is left once the node has ended.
    pub(crate) async fn close(self) {
        let _ = self.stop_api.send(());
        let mut api = self.api;
        if tokio::time::timeout(LAST_REQUESTS, &mut api).await.is_err() {
            // Somebody keeps a connection open.
            api.abort();
        }
        // It would send clients to a server that is gone. One that came after us has its own.
        if let Some(path) = self.state_file {
            let file: Option<ClientFile> = crate::files::read_json(&path).ok().flatten();
            if file.is_some_and(|file| file.url == self.url) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Applies jobs; waits for the store and for the node's first steps in it, if it must.
pub(crate) async fn apply_until_done(
    control: &Control,
    jobs: &[JobSpec],
) -> Result<ApplyReport, ControlError> {
    let mut tries = 0_u32;
    loop {
        let error = match control.apply(jobs.to_vec(), false, &|_, _| {}).await {
            Err(ControlError::Store(error)) if error.is_transient() => error.to_string(),
            Err(ControlError::Busy(why)) => why,
            other => return other,
        };
        if tries == 20 {
            tracing::warn!(error, "the job files wait");
        }
        tries += 1;
        tokio::time::sleep(RETRY).await;
    }
}

/// What is never called, whoever allows it.
fn control_plane(config: &ServeConfig, address: SocketAddr) -> ControlPlane {
    let mut own = vec![address.to_string(), reachable(address).to_string()];
    for host in ["127.0.0.1", "[::1]", "localhost"] {
        own.push(format!("{host}:{}", address.port()));
    }
    if let StoreAt::Etcd(at) = &config.store {
        own.extend_from_slice(at.members());
    }
    ControlPlane::new(own, address.port())
}

/// Where this machine reaches what listens on an address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

async fn listen(address: SocketAddr, any_port: bool) -> Outcome<TcpListener> {
    let error = match TcpListener::bind(address).await {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    let taken = error.kind() == std::io::ErrorKind::AddrInUse;
    if taken && any_port {
        let free = TcpListener::bind(SocketAddr::new(address.ip(), 0)).await;
        return free.map_err(|e| Failure::usage(format!("no port is free: {e}")));
    }
    let failure = Failure::usage(format!("cannot listen on {address}: {error}"));
    Err(if taken {
        failure.hint("is a server running already? Choose another port with --listen IP:PORT")
    } else {
        failure
    })
}

fn settings(config: &ServeConfig, node_id: String) -> NodeConfig {
    let args = &config.args;
    let mut settings = NodeConfig {
        node_id,
        ..NodeConfig::default()
    };
    if let StoreAt::Etcd(at) = &config.store {
        settings.namespace.clone_from(&at.namespace);
    }
    if let Some(slots) = args.slots {
        settings.slots = slots;
    }
    if let Some(queues) = &args.queues {
        settings.queues.clone_from(queues);
    }
    for (given, setting) in [
        (args.leader_ttl, &mut settings.leader_ttl_ms),
        (args.overdue_takeover, &mut settings.overdue_takeover_ms),
        (args.session_ttl, &mut settings.session_ttl_ms),
        (args.lost_grace, &mut settings.lost_grace_ms),
        (args.drain_timeout, &mut settings.drain_timeout_ms),
    ] {
        if let Some(given) = given {
            *setting = given.ms();
        }
    }
    settings
}
