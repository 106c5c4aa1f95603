//! A node's session: a lease, the key that it holds, and the window in which to trust it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::backend::{
    BackendError, BackendResult, Entry, Key, Lease, Requirement, Revision, Txn, TxnOutcome, Write,
};
use crate::env::{SharedEnv, TaskHandle, race};

use super::retry::Store;

/// How long a lease may still be relied upon, by the local monotonic clock.
///
/// The store counts a lease from the moment it handles the request; we count from the moment
/// *before* we sent it, and stop a margin early. So while clock rates differ by less than the
/// margin, `remaining_ms() > 0` implies that the store has not ended the lease.
#[derive(Clone)]
pub struct Trust {
    env: SharedEnv,
    /// `ENDED` once nothing can extend it any more; only that is told to those who wait.
    until_ms: Arc<watch::Sender<u64>>,
}

/// The window was closed for good, by whoever found out that the key is gone.
const ENDED: u64 = u64::MAX;

impl Trust {
    /// Nothing to trust yet.
    #[must_use]
    pub fn none(env: SharedEnv) -> Self {
        Self {
            env,
            until_ms: Arc::new(watch::Sender::new(0)),
        }
    }

    /// Milliseconds for which the lease may still be relied upon; 0 when no more.
    #[must_use]
    pub fn remaining_ms(&self) -> u64 {
        let until_ms = *self.until_ms.borrow();
        match until_ms {
            ENDED => 0,
            until_ms => until_ms.saturating_sub(self.env.monotonic_ms()),
        }
    }

    /// Whether the lease may still be relied upon.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.remaining_ms() > 0
    }

    /// A request that was sent at `start_ms` and answered with `ttl_ms` prolongs the window.
    pub fn extend(&self, start_ms: u64, ttl_ms: u64) {
        let margin_ms = ttl_ms / 10;
        // `ENDED` is larger than any time, so what has ended stays so.
        self.until_ms.send_if_modified(|until_ms| {
            *until_ms = (*until_ms).max(start_ms + ttl_ms - margin_ms);
            false
        });
    }

    /// Nothing may be relied upon any more, for good.
    pub fn end(&self) {
        self.until_ms.send_replace(ENDED);
    }

    /// Completes when it is ended for good.
    pub async fn ended(&self) {
        let mut until_ms = self.until_ms.subscribe();
        // Cannot fail: the sender is ours.
        let _ = until_ms.wait_for(|until_ms| *until_ms == ENDED).await;
    }

    /// Completes when the lease may not be relied upon any more, be it for good or for now.
    pub async fn lapsed(&self) {
        loop {
            match self.remaining_ms() {
                0 => return,
                // Meanwhile it may have been prolonged.
                left_ms => {
                    race(self.ended(), self.env.sleep(Duration::from_millis(left_ms))).await;
                }
            }
        }
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Trust({} ms)", self.remaining_ms())
    }
}

/// A leased key: a node's session, or a leadership.
///
/// Who is authoritative: the store. `trust` says how long we may act without asking; the key's
/// created revision, required in every transaction, is what makes acting safe.
pub struct Session {
    /// Revision at which the key was created: the session's (or leadership's) identity.
    pub revision: Revision,
    /// How long it may be relied upon.
    pub trust: Trust,
    key: Key,
    lease: Lease,
    store: Store,
    ended: watch::Receiver<bool>,
    _keeper: TaskHandle,
}

/// What became of an attempt to open a session.
pub enum Opened {
    /// It is ours.
    Ours(Session),
    /// The key belongs to somebody else (or to an earlier lease of ours).
    Taken(Entry),
}

impl Session {
    /// Grants a lease and creates `key` under it, unless the key exists.
    ///
    /// # Errors
    /// Those of the store; nothing is left behind but perhaps a lease that ends by itself.
    pub async fn open(
        store: &Store,
        key: Key,
        value: Vec<u8>,
        ttl_ms: u64,
    ) -> BackendResult<Opened> {
        let env = store.env().clone();
        let start_ms = env.monotonic_ms();
        let lease = store.grant(ttl_ms).await?;
        let trust = Trust::none(env);
        trust.extend(start_ms, lease.ttl_ms);
        let txn = Txn::new()
            .require(Requirement::Absent(key.clone()))
            .op(Write::Put {
                key: key.clone(),
                value,
                lease: Some(lease.id),
            });
        // Safe to repeat although nothing is consumed: the lease dies with us, and the key with it.
        let revision = loop {
            match store.try_commit(&txn).await {
                Ok(TxnOutcome::Applied { revision, .. }) => break revision,
                Ok(TxnOutcome::Conflict { seen }) => match seen.into_iter().flatten().next() {
                    Some(entry) if entry.lease == Some(lease.id) => break entry.created,
                    Some(entry) => {
                        // Nobody needs the lease; it would end by itself.
                        let _ = store.revoke(lease.id).await;
                        return Ok(Opened::Taken(entry));
                    }
                    None => return Err(BackendError::Broken("a conflict without a cause".into())),
                },
                Err(error) if error.is_transient() && trust.holds() => {
                    store.env().sleep(Duration::from_millis(100)).await;
                }
                Err(error) => return Err(error),
            }
        };
        Ok(Opened::Ours(Self::keep(store, key, lease, revision, trust)))
    }

    fn keep(store: &Store, key: Key, lease: Lease, revision: Revision, trust: Trust) -> Self {
        let (sender, ended) = watch::channel(false);
        let (keeper_store, keeper_trust) = (store.clone(), trust.clone());
        let keeper = store.env().spawn(
            "keep-alive",
            Box::pin(async move {
                keep_alive(&keeper_store, lease, &keeper_trust).await;
                keeper_trust.end();
                let _ = sender.send(true);
            }),
        );
        Self {
            revision,
            trust,
            key,
            lease,
            store: store.clone(),
            ended,
            _keeper: keeper,
        }
    }

    /// The guard of everything that is done in the session's name.
    #[must_use]
    pub fn guard(&self) -> Requirement {
        Requirement::Created(self.key.clone(), self.revision)
    }

    /// A put of another key that goes with this session.
    #[must_use]
    pub fn leased_put(&self, key: Key, value: Vec<u8>) -> Write {
        Write::Put {
            key,
            value,
            lease: Some(self.lease.id),
        }
    }

    /// Completes when the store says that the lease is gone.
    pub async fn ended(&self) {
        let mut ended = self.ended.clone();
        // An error means that the keeper is gone, and with it the session.
        let _ = ended.wait_for(|ended| *ended).await;
    }

    /// Ends the session at once: the key is deleted, so that others need not wait for the lease.
    pub async fn close(&self) {
        self.trust.end();
        if let Err(error) = self.store.revoke(self.lease.id).await {
            tracing::debug!(%error, "could not revoke; the lease will end by itself");
        }
    }
}

/// Prolongs the lease every third of its time until the store says that it is gone. A store that
/// does not answer is asked again: whether to act meanwhile is `trust`'s business.
async fn keep_alive(store: &Store, lease: Lease, trust: &Trust) {
    let env = store.env();
    loop {
        env.sleep(Duration::from_millis(lease.ttl_ms / 3)).await;
        loop {
            let start_ms = env.monotonic_ms();
            match store.keep_alive(lease.id).await {
                Ok(answer) => {
                    trust.extend(start_ms, answer.ttl_ms);
                    break;
                }
                Err(error) if error.is_transient() => {
                    tracing::debug!(%error, "keep-alive failed; trying again");
                    env.sleep(Duration::from_millis(lease.ttl_ms / 20)).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "the lease is gone");
                    return;
                }
            }
        }
    }
}
