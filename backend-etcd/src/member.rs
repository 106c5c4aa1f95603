//! The members of the cluster, and which of them we talk to.
//!
//! # Why not let the client balance
//! etcd-client spreads calls over all endpoints and never takes a dead one out: with one of three
//! members down a third of the calls fail, for ever. Here all calls go to one member until one of
//! them fails in a way that is the member's fault; the *next* call goes to the next member. The
//! failed call itself is never repeated: whether that is safe only its caller knows.
//!
//! # Two connections a member
//! Calls have one, watches share the other. A watch that nobody reads fills the window of its
//! connection; a keep-alive must never wait behind it.
//!
//! # Pings
//! etcd hangs up on clients that ping an idle connection, or ping more often than every five
//! seconds. So connections are pinged only while calls are open, and not more often than that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use etcd_client::{Client, ConnectOptions, KvClient, LeaseClient, MaintenanceClient, WatchClient};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::config::{EtcdConfig, SHORTEST_KEEP_ALIVE};
use crate::error::ConnectError;
use crate::version::{Advice, Version};

/// A page larger than this is asked for again in smaller parts.
const READ_AT_MOST: usize = 16 << 20;
/// What a transaction read back, or a watch reports at once, must be taken as it comes: there is
/// no second chance to ask for it.
const ANY_SIZE: usize = u32::MAX as usize;

pub(crate) struct Members {
    members: Vec<Member>,
    current: AtomicUsize,
    config: EtcdConfig,
}

struct Member {
    endpoint: String,
    lines: OnceCell<Arc<Lines>>,
    /// It was said that it does not serve us, and it has not since.
    told: AtomicBool,
}

/// The open connections to a member.
pub(crate) struct Lines {
    member: usize,
    pub(crate) version: String,
    pub(crate) cluster: u64,
    pub(crate) kv: KvClient,
    /// For reads that can be asked for in parts.
    pub(crate) pages: KvClient,
    pub(crate) lease: LeaseClient,
    pub(crate) watch: WatchClient,
    pub(crate) maintenance: MaintenanceClient,
    calls: Client,
    watches: Client,
}

impl Members {
    pub(crate) fn new(config: EtcdConfig) -> Result<Self, ConnectError> {
        let members = config
            .checked_endpoints()?
            .into_iter()
            .map(|endpoint| Member {
                endpoint,
                lines: OnceCell::new(),
                told: AtomicBool::new(false),
            })
            .collect();
        Ok(Self {
            members,
            current: AtomicUsize::new(0),
            config,
        })
    }

    pub(crate) fn config(&self) -> &EtcdConfig {
        &self.config
    }

    /// The first member that answers.
    pub(crate) async fn any(&self) -> Result<Arc<Lines>, ConnectError> {
        let mut tried = Vec::new();
        for _ in &self.members {
            let index = self.current.load(Ordering::Relaxed);
            let within = self.config.request_timeout;
            let why = match timeout(within, self.lines(index)).await {
                Ok(Ok(lines)) => return Ok(lines),
                Ok(Err(ConnectError::Unreachable(whys))) => whys.join("; "),
                Ok(Err(refused)) => return Err(refused),
                Err(_) => format!(
                    "{}: no answer within {} ms",
                    self.members[index].endpoint,
                    within.as_millis()
                ),
            };
            tried.push(why);
            // Who asked is told of all of them.
            self.turn(index);
        }
        Err(ConnectError::Unreachable(tried))
    }

    /// The member that calls go to. On failure the next call goes to another one.
    pub(crate) async fn current(&self) -> Result<Arc<Lines>, ConnectError> {
        let index = self.current.load(Ordering::Relaxed);
        let lines = self.lines(index).await;
        if lines.is_err() {
            self.leave(index);
        }
        lines
    }

    /// For a wait for [`Members::current`] that was given up.
    pub(crate) fn leave_current_unconnected(&self) {
        let index = self.current.load(Ordering::Relaxed);
        if self.members[index].lines.get().is_none() {
            self.leave(index);
        }
    }

    /// Turns away from the member behind these lines.
    pub(crate) fn turn_from(&self, lines: &Lines) {
        self.leave(lines.member);
    }

    /// The member behind these lines has answered.
    pub(crate) fn serves(&self, lines: &Lines) {
        self.members[lines.member]
            .told
            .store(false, Ordering::Relaxed);
    }

    fn leave(&self, index: usize) {
        if let Some(next) = self.turn(index)
            // Where none of them serves, they are left in turn, several times a second.
            && !self.members[index].told.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                from = self.members[index].endpoint,
                to = self.members[next].endpoint,
                "this etcd member does not serve us, the next call goes to another one"
            );
        }
    }

    /// Which one is next, unless somebody else turned away already.
    fn turn(&self, index: usize) -> Option<usize> {
        let next = (index + 1) % self.members.len();
        let turned =
            self.current
                .compare_exchange(index, next, Ordering::Relaxed, Ordering::Relaxed);
        (next != index && turned.is_ok()).then_some(next)
    }

    async fn lines(&self, index: usize) -> Result<Arc<Lines>, ConnectError> {
        let member = &self.members[index];
        let lines = member
            .lines
            .get_or_try_init(|| self.connect(index, &member.endpoint))
            .await?;
        Ok(Arc::clone(lines))
    }

    async fn connect(&self, index: usize, endpoint: &str) -> Result<Arc<Lines>, ConnectError> {
        let failed = |error: etcd_client::Error| ConnectError::of(endpoint, &error);
        let open = || Client::connect([endpoint], Some(self.options(endpoint)));
        let (calls, watches) = tokio::try_join!(open(), open()).map_err(failed)?;
        let mut maintenance = calls.maintenance_client();
        let status = maintenance.status().await.map_err(failed)?;
        self.check_version(endpoint, status.version())?;
        if let Some(key) = &self.config.probe {
            let read = calls.kv_client().get(key.as_slice(), None).await;
            read.map_err(failed)?;
        }
        let lines = Lines {
            member: index,
            version: status.version().to_owned(),
            cluster: status.header().map_or(0, |header| header.cluster_id()),
            kv: calls.kv_client().max_decoding_message_size(ANY_SIZE),
            pages: calls.kv_client().max_decoding_message_size(READ_AT_MOST),
            lease: calls.lease_client(),
            watch: watches.watch_client().max_decoding_message_size(ANY_SIZE),
            maintenance,
            calls,
            watches,
        };
        tracing::info!(endpoint, version = lines.version, "connected to etcd");
        Ok(Arc::new(lines))
    }

    fn options(&self, endpoint: &str) -> ConnectOptions {
        let config = &self.config;
        let interval = config.keep_alive.max(SHORTEST_KEEP_ALIVE);
        let mut options = ConnectOptions::new()
            .with_connect_timeout(config.request_timeout)
            .with_keep_alive(interval, config.request_timeout)
            .with_keep_alive_while_idle(false)
            .with_require_leader(true)
            // Its one retry of calls: see the crate's documentation.
            .with_auto_token_refresh(false);
        if let Some(credentials) = &config.credentials {
            options = options.with_user(&credentials.user, &credentials.password);
        }
        #[cfg(feature = "tls")]
        if endpoint.starts_with("https://") {
            options = options.with_tls(config.tls.options());
        }
        #[cfg(not(feature = "tls"))]
        let _ = endpoint;
        options
    }

    fn check_version(&self, endpoint: &str, version: &str) -> Result<(), ConnectError> {
        match Version::parse(version).map(Version::advice) {
            Some(Advice::Fine) => {}
            Some(Advice::Outdated(mended)) => tracing::warn!(
                endpoint,
                version,
                "this etcd lacks fixes for known faults, upgrade it to {mended} or later"
            ),
            Some(Advice::Corrupts) if self.config.allow_corrupting_version => tracing::warn!(
                endpoint,
                version,
                "this etcd can corrupt its data when it is killed"
            ),
            Some(Advice::Corrupts) => {
                return Err(ConnectError::CorruptingVersion {
                    endpoint: endpoint.to_owned(),
                    version: version.to_owned(),
                });
            }
            None => tracing::warn!(endpoint, version, "an etcd of unknown age"),
        }
        Ok(())
    }
}

impl Lines {
    /// Gets new tokens; what was refused for the old ones is for its caller to send again.
    pub(crate) async fn authenticate(&self) -> Result<(), etcd_client::Error> {
        tokio::try_join!(self.calls.refresh_token(), self.watches.refresh_token())?;
        Ok(())
    }
}
