//! A node: session, candidate and worker, side by side.
//!
//! The three depend on each other as little as possible: a lost lead leaves running work alone, a
//! lost session stops new work but not the reporting of old, a store outage makes a node wait and
//! never die.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use tokio::sync::watch;

use crate::backend::{BackendError, CoordinationBackend};
use crate::bootstrap::{bootstrap, raise_tzdb, tzdb};
use crate::cancel::{CancelToken, Canceller, StopCause};
use crate::clock::FireClock;
use crate::clock::exchange::{ExchangeContext, exchange};
use crate::drain::{self, Drained};
use crate::env::{SharedEnv, race};
use crate::handler::Executors;
use crate::job::record::{Meta, NodeRecord, encode};
use crate::job::run::Owner;
use crate::job::spec::is_valid_id;
use crate::keys::Keys;
use crate::leader::outlook::Outlook;
use crate::leader::overdue::Policy;
use crate::leader::standby::{Candidate, stand_by};
use crate::leader::{LeaderContext, lead};
use crate::notify::Notifier;
use crate::recipe::committer::Committer;
use crate::recipe::retry::{Backoff, Store};
use crate::recipe::session::{Opened, Session};
use crate::recipe::view::View;
use crate::spool::Spool;
use crate::vitals::Vitals;
use crate::worker::{WorkerContext, work};

/// How a node behaves. All times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Tells this node from others; the same characters as a job id.
    pub node_id: String,
    /// Prefix of all keys in the store.
    pub namespace: String,
    /// Where the node's API listens, for other nodes and people to see.
    pub address: Option<String>,
    /// How many runs at once.
    pub slots: u32,
    /// The queues it serves.
    pub queues: Vec<String>,
    /// Time to live of a leadership.
    pub leader_ttl_ms: u64,
    /// How long an instant may stay undecided before a standby deposes the leader (on top of what
    /// clocks and the store's way explain); 0: never, and a failover waits for the lease.
    pub overdue_takeover_ms: u64,
    /// Time to live of the node's session.
    pub session_ttl_ms: u64,
    /// How long a session must be gone before its runs are taken.
    pub lost_grace_ms: u64,
    /// How long a run that was told to stop may take.
    pub kill_grace_ms: u64,
    /// How long running work may take after a shutdown.
    pub drain_timeout_ms: u64,
    /// Longest wait for an answer of the store.
    pub store_timeout_ms: u64,
    /// Steps of the wall clock beyond this hold firing.
    pub max_skew_ms: u64,
    /// How often views are listed anew.
    pub relist_ms: u64,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            node_id: "node".into(),
            namespace: "punctual".into(),
            address: None,
            slots: 16,
            queues: vec!["default".into()],
            leader_ttl_ms: 5_000,
            overdue_takeover_ms: 1_000,
            session_ttl_ms: 10_000,
            lost_grace_ms: 15_000,
            kill_grace_ms: 5_000,
            drain_timeout_ms: 30_000,
            store_timeout_ms: 2_000,
            max_skew_ms: 2_000,
            relist_ms: 60_000,
        }
    }
}

impl NodeConfig {
    /// What is wrong with it, if something is.
    ///
    /// # Errors
    /// What and why, for people.
    pub fn check(&self) -> Result<(), String> {
        if !is_valid_id(&self.node_id) {
            return Err(format!(
                "`{}` is not a node id: 1 to 63 of lower case letters, digits, `.`, `_`, `-`",
                self.node_id
            ));
        }
        if self.namespace.is_empty() || self.namespace.contains(['/', ' ']) {
            return Err(format!("`{}` is not a namespace", self.namespace));
        }
        if let Some(queue) = self.queues.iter().find(|queue| !is_valid_id(queue)) {
            return Err(format!("`{queue}` is not a queue name"));
        }
        if self.leader_ttl_ms < 2_000 || self.session_ttl_ms < 2_000 {
            return Err("a lease lives at least 2 s".into());
        }
        if (1..100).contains(&self.overdue_takeover_ms) {
            return Err("overdue_takeover is 0 (off) or at least 100 ms".into());
        }
        if self.lost_grace_ms < self.session_ttl_ms + self.kill_grace_ms {
            return Err(format!(
                "lost_grace ({} ms) must be at least session_ttl + kill_grace ({} ms): a worker that lost its session needs that long to stop what it runs",
                self.lost_grace_ms,
                self.session_ttl_ms + self.kill_grace_ms
            ));
        }
        Ok(())
    }
}

/// One member of the cluster.
pub struct Node {
    store: Store,
    keys: Keys,
    clock: Arc<FireClock>,
    executors: Arc<Executors>,
    spool: Option<Arc<dyn Spool>>,
    notifier: Option<Arc<dyn Notifier>>,
    vitals: Arc<Vitals>,
    owner: Owner,
    config: NodeConfig,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({})", self.owner)
    }
}

impl Node {
    /// A node; [`Node::run`] brings it to life.
    ///
    /// # Errors
    /// As [`NodeConfig::check`].
    pub fn new(
        backend: Arc<dyn CoordinationBackend>,
        env: SharedEnv,
        executors: Executors,
        config: NodeConfig,
    ) -> Result<Self, String> {
        config.check()?;
        let owner = Owner {
            node: config.node_id.clone(),
            incarnation: format!("{:016x}", env.random_u64()),
        };
        Ok(Self {
            clock: Arc::new(FireClock::unconfirmed(env.clone(), config.max_skew_ms)),
            vitals: Arc::new(Vitals::new(env.clone(), slots(&config))),
            store: Store::new(backend, env, config.store_timeout_ms),
            keys: Keys::new(&config.namespace),
            executors: Arc::new(executors),
            spool: None,
            notifier: None,
            owner,
            config,
        })
    }

    /// Keeps results that the store does not take in `spool`, and reports those that an earlier
    /// life of this node left there. Without one, they are lost when the node ends first.
    #[must_use]
    pub fn with_spool(mut self, spool: Arc<dyn Spool>) -> Self {
        self.spool = Some(spool);
        self
    }

    /// Tells people of runs through `notifier` while this node leads. Without one, what they are to be
    /// told waits for a leader that has one, for a day.
    #[must_use]
    pub fn with_notifier(mut self, notifier: Arc<dyn Notifier>) -> Self {
        self.notifier = Some(notifier);
        self
    }

    /// Which life of the node this is.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The clock that decides what is due here, for whoever answers operators in this process.
    #[must_use]
    pub fn clock(&self) -> Arc<FireClock> {
        self.clock.clone()
    }

    /// What the node shows of itself while it runs.
    #[must_use]
    pub fn vitals(&self) -> Arc<Vitals> {
        self.vitals.clone()
    }

    /// Lives until `shutdown` fires, then resigns, drains and leaves. A store that is away is
    /// waited for.
    ///
    /// # Errors
    /// [`BackendError::Broken`] when the namespace cannot be read, and when the store breaks.
    pub async fn run(self, shutdown: CancelToken) -> Result<(), BackendError> {
        let meta = match race(bootstrap(&self.store, &self.keys), shutdown.cancelled()).await {
            Either::Left(meta) => meta?,
            Either::Right(_) => return Ok(()),
        };
        let (session_out, sessions) = watch::channel(None);
        let (leave, leaving) = Canceller::new();

        let (tell, drained) = watch::channel(None);
        let wishes = View::new(
            self.store.clone(),
            self.keys.drains(),
            self.config.relist_ms,
        );
        let _drains = self.store.env().spawn(
            "drains",
            Box::pin(drain::follow(wishes, self.keys.clone(), tell)),
        );

        let worker = work(
            Arc::new(self.worker_context(&meta, drained.clone())),
            self.executors.clone(),
            sessions.clone(),
            shutdown.clone(),
        );
        let _clocks = self.store.env().spawn(
            "clocks",
            Box::pin(exchange(self.exchange_context(), sessions.clone())),
        );
        let candidate = self.stand(meta, sessions, drained, shutdown);
        let session = self.keep_session(session_out, leaving);
        let work_then_leave = async {
            futures_util::future::join(worker, candidate).await;
            leave.stop(StopCause::Cancelled);
        };
        // A store that is broken stays so: end, so that whoever supervises the process starts it anew.
        let life = futures_util::future::join(session, work_then_leave);
        match race(life, self.store.broken()).await {
            Either::Left(_) => Ok(()),
            Either::Right(reason) => Err(BackendError::Broken(reason)),
        }
    }

    fn exchange_context(&self) -> ExchangeContext {
        ExchangeContext {
            store: self.store.clone(),
            keys: self.keys.clone(),
            owner: self.owner.clone(),
            clock: self.clock.clone(),
            relist_ms: self.config.relist_ms,
        }
    }

    fn worker_context(&self, meta: &Meta, drained: Drained) -> WorkerContext {
        WorkerContext {
            store: self.store.clone(),
            keys: self.keys.clone(),
            cluster_id: meta.cluster_id.clone(),
            epoch: meta.epoch,
            committer: Committer::new(&self.store),
            spool: self.spool.clone(),
            clock: self.clock.clone(),
            owner: self.owner.clone(),
            slots: slots(&self.config),
            queues: self.config.queues.clone(),
            kill_grace_ms: self.config.kill_grace_ms,
            lost_grace_ms: self.config.lost_grace_ms,
            drain_timeout_ms: self.config.drain_timeout_ms,
            relist_ms: self.config.relist_ms,
            drained,
            vitals: self.vitals.clone(),
        }
    }

    /// Keeps the node registered: a session that is lost is opened again, under the same
    /// incarnation, so that running work stays ours.
    async fn keep_session(&self, out: watch::Sender<Option<Arc<Session>>>, leaving: CancelToken) {
        let key = self.keys.node(&self.owner.node, &self.owner.incarnation);
        let env = self.store.env();
        let mut backoff = Backoff::default();
        while !leaving.is_cancelled() {
            let opened = Session::open(
                &self.store,
                key.clone(),
                encode(&self.node_record()),
                self.config.session_ttl_ms,
            );
            let session = match race(leaving.cancelled(), opened).await {
                Either::Left(_) => return,
                Either::Right(Ok(Opened::Ours(session))) => Arc::new(session),
                Either::Right(Ok(Opened::Taken(_))) => {
                    // An earlier lease of ours is still alive: it ends by itself.
                    env.sleep(Duration::from_millis(500)).await;
                    continue;
                }
                Either::Right(Err(error)) => {
                    crate::recipe::outage::again(&error, "cannot register");
                    backoff.wait(env).await;
                    continue;
                }
            };
            backoff = Backoff::default();
            tracing::info!(node = %self.owner, session = session.revision.0, "registered");
            let _ = out.send(Some(session.clone()));
            match race(leaving.cancelled(), session_over(&session)).await {
                Either::Left(_) => {
                    let _ = out.send(None);
                    session.close().await;
                    return;
                }
                Either::Right(()) => {
                    tracing::warn!("the session is lost; registering again");
                    let _ = out.send(None);
                    session.close().await;
                }
            }
        }
    }

    fn node_record(&self) -> NodeRecord {
        NodeRecord {
            address: self.config.address.clone(),
            slots: self.config.slots,
            queues: self.config.queues.clone(),
            handlers: self.executors.handlers.keys().cloned().collect(),
            commands: self.executors.commands.is_some(),
            http: self.executors.http.is_some(),
            since_ms: self.store.env().wall_ms(),
            tzdb: tzdb(),
        }
    }

    /// Stands for election for ever; leads whenever elected.
    async fn stand(
        &self,
        meta: Meta,
        sessions: watch::Receiver<Option<Arc<Session>>>,
        drained: Drained,
        shutdown: CancelToken,
    ) {
        if meta.tzdb > tzdb() {
            tracing::error!(
                ours = tzdb(),
                theirs = meta.tzdb,
                "this node's time zone data is older than the cluster's: it works, but does not lead; upgrade it"
            );
            shutdown.cancelled().await;
            return;
        }
        let env = self.store.env();
        if let Err(error) = raise_tzdb(&self.store, &self.keys, &meta).await {
            tracing::warn!(%error, "cannot note the time zone data in the store");
        }
        let context = LeaderContext {
            store: self.store.clone(),
            keys: self.keys.clone(),
            meta,
            clock: self.clock.clone(),
            relist_ms: self.config.relist_ms,
            lost_grace_ms: self.config.lost_grace_ms,
            notifier: self.notifier.clone(),
            takeover: Policy {
                takeover_ms: self.config.overdue_takeover_ms,
                max_skew_ms: self.config.max_skew_ms,
            },
            vitals: self.vitals.clone(),
        };
        let candidate = Candidate {
            owner: self.owner.clone(),
            sessions,
            drained: drained.clone(),
            leader_ttl_ms: self.config.leader_ttl_ms,
        };
        // Before it stands: who leads fires at once.
        let opened = race(shutdown.cancelled(), Outlook::open(context.clone())).await;
        let Either::Right(mut outlook) = opened else {
            return;
        };
        while !shutdown.is_cancelled() {
            let ready = stand_by(&context, &mut outlook, &candidate);
            let session = match race(shutdown.cancelled(), ready).await {
                Either::Left(_) => return,
                Either::Right(session) => Arc::new(session),
            };
            tracing::info!(node = %self.owner, term = session.revision.0, "elected");
            let leading = lead(&context, &mut outlook, session.clone());
            let leading = race(leading, drain::until_drained(&drained, &self.owner.node));
            let resigned = matches!(race(shutdown.cancelled(), leading).await, Either::Left(_));
            // A call that was dropped half way may have taken news with it.
            outlook.check_soon();
            session.close().await;
            tracing::info!(term = session.revision.0, resigned, "no longer leading");
            // Whatever ended the lead may be at this node: let others go first.
            let _ = race(shutdown.cancelled(), env.sleep(Duration::from_secs(1))).await;
        }
    }
}

fn slots(config: &NodeConfig) -> usize {
    usize::try_from(config.slots).unwrap_or(usize::MAX)
}

/// Completes when the session is gone: the store said so, or whoever used it found out.
async fn session_over(session: &Session) {
    // `end()` on the trust is how a worker says that its guard failed.
    let _ = race(session.ended(), session.trust.ended()).await;
}
