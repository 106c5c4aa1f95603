//! The store of a cluster: one etcd, many nodes, nothing else between them.
//!
//! etcd decides every answer; this crate translates. That the answers are those of
//! [`punctual::model`] is not argued here but tested: the conformance table of the workspace runs
//! against a real etcd as against every other store.
//!
//! # What is promised
//! * **A request is one entry of etcd's log.** A transaction, its choices and a batch of others
//!   are one nested transaction of etcd, so they are judged on one state and make one revision.
//! * **A call is sent once.** No layer here repeats anything, and the client's own retry is off.
//!   A write that may have happened, or may happen later, is
//!   [`Unknown`](punctual::backend::BackendError::Unknown); only what certainly did not and will not is
//!   [`Unavailable`](punctual::backend::BackendError::Unavailable).
//! * **Every call ends** within [`EtcdConfig::request_timeout`], whatever the network does. A
//!   member that does not serve us is left by the calls that follow.
//! * **A watch says when it is over**, a silent one included.
//! * **Trust is checked**: an answer from another cluster or from an older state than one seen
//!   before makes the store [`Broken`](punctual::backend::BackendError::Broken) for good.
//!
//! # What can go wrong
//! * **Old releases.** 3.5.0 to 3.5.2 can lose acknowledged writes when killed and are refused;
//!   others with known faults are used with a warning.
//! * **Plaintext.** http is for this host only, unless [`EtcdConfig::allow_plaintext`] is set.
//! * **A slow reader.** Watches share one connection and its window, apart from that of all other
//!   calls. One that nobody reads while megabytes of changes pile up can hold up other watches,
//!   never a keep-alive.
//!
//! Building it needs `protoc`; the workspace's `tools/protoc` finds one.

mod config;
mod convert;
mod error;
mod lease;
mod member;
mod store;
mod version;
mod watch;

#[cfg(feature = "tls")]
pub use config::Tls;
pub use config::{Credentials, EtcdConfig};
pub use error::ConnectError;
pub use version::upgrade_of;

use std::sync::Arc;

use async_trait::async_trait;
use punctual::backend::{
    BackendInfo, BackendResult, BatchOutcome, CoordinationBackend, Lease, LeaseId, Page, PageLimit,
    Requirement, Revision, Span, Txn, TxnOutcome, Usage, Watch,
};

use crate::member::Members;
use crate::store::Store;

/// A store in an etcd. Clones are handles that share connections.
#[derive(Clone)]
pub struct EtcdBackend {
    store: Arc<Store>,
}

impl std::fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdBackend")
            .field("endpoints", &self.store.members().config().endpoints)
            .field("version", &self.store.version())
            .finish_non_exhaustive()
    }
}

impl EtcdBackend {
    /// Connects to the first endpoint that answers. The others are looked at when they are needed.
    ///
    /// # Errors
    /// See [`ConnectError`]; only [`ConnectError::Unreachable`] is worth another try.
    pub async fn connect(config: EtcdConfig) -> Result<Self, ConnectError> {
        let store = Store::connect(Members::new(config)?).await?;
        Ok(Self {
            store: Arc::new(store),
        })
    }

    /// The number that tells this cluster from all others.
    #[must_use]
    pub fn cluster_id(&self) -> u64 {
        self.store.cluster()
    }

    /// The version of the member that was reached first, as `3.5.30`.
    #[must_use]
    pub fn server_version(&self) -> &str {
        self.store.version()
    }

    /// What the member that we talk to complains of: alarms (a full database among them), a
    /// missing leader. Empty when all is well.
    ///
    /// # Errors
    /// [`Unavailable`](punctual::backend::BackendError::Unavailable) when it does not answer.
    pub async fn complaints(&self) -> BackendResult<Vec<String>> {
        self.store.complaints().await
    }

    /// Forgets the history before `revision`, which stays readable. Concerns everybody who uses
    /// this etcd; usually it is told to compact by itself (`--auto-compaction-retention`).
    ///
    /// # Errors
    /// [`Rejected`](punctual::backend::BackendError::Rejected) when the revision lies in the future.
    pub async fn compact(&self, revision: Revision) -> BackendResult<()> {
        self.store.compact(revision).await
    }
}

#[async_trait]
impl CoordinationBackend for EtcdBackend {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        self.store.range(span, limit, at).await
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        self.store.commit(txn).await
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        self.store.commit_batch(guard, txns).await
    }

    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        self.store.grant(ttl_ms).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        self.store.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        self.store.revoke(lease).await
    }

    async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>> {
        Ok(Box::new(self.store.watch(span, from).await?))
    }
}

#[async_trait]
impl BackendInfo for EtcdBackend {
    fn version(&self) -> String {
        format!("etcd {}", self.store.version())
    }

    async fn usage(&self) -> BackendResult<Usage> {
        let (used_bytes, quota_bytes) = self.store.size().await?;
        Ok(Usage {
            used_bytes,
            quota_bytes,
        })
    }
}
