//! What callers use on top of the primitives; nothing here can differ between stores.

use std::sync::Arc;

use async_trait::async_trait;

use crate::env::SharedEnv;
use crate::recipe::election::campaign;
use crate::recipe::retry::Store;
use crate::recipe::session::{Opened, Session};

use super::{
    BackendError, BackendResult, CoordinationBackend, Entry, Key, PageLimit, Requirement, Revision,
    Span, Txn, TxnOutcome,
};

/// Longest wait for one answer of the store.
const CALL_MS: u64 = 2_000;
/// How often a waiting candidate lists anew.
const RELIST_MS: u64 = 10_000;

/// Conveniences over [`CoordinationBackend`], for every store alike.
#[async_trait]
pub trait BackendExt: CoordinationBackend {
    /// The newest entry under `key`, linearizably.
    async fn get(&self, key: &[u8]) -> BackendResult<Option<Entry>> {
        let page = self
            .range(&Span::key(key), PageLimit::default(), None)
            .await?;
        Ok(page.entries.into_iter().next())
    }

    /// All entries of a span, page by page, as they stood at one revision. Starts over when that
    /// revision is compacted meanwhile.
    async fn list(&self, span: &Span) -> BackendResult<(Vec<Entry>, Revision)> {
        'again: loop {
            let mut entries = Vec::new();
            let mut rest = span.clone();
            let mut at = None;
            loop {
                let page = match self.range(&rest, PageLimit::default(), at).await {
                    Err(BackendError::Compacted { .. }) if at.is_some() => continue 'again,
                    page => page?,
                };
                entries.extend(page.entries);
                match entries.last() {
                    Some(last) if page.more => rest = span.after(&last.key),
                    _ => return Ok((entries, page.revision)),
                }
                at = Some(page.revision);
            }
        }
    }

    /// Puts `value` under `key` if the key still stands at `expected` (`None`: does not exist).
    async fn compare_and_set(
        &self,
        key: &[u8],
        expected: Option<Revision>,
        value: Vec<u8>,
    ) -> BackendResult<TxnOutcome> {
        let key: Key = key.to_vec();
        let requirement = match expected {
            Some(revision) => Requirement::Modified(key.clone(), revision),
            None => Requirement::Absent(key.clone()),
        };
        self.commit(&Txn::new().require(requirement).put(key, value))
            .await
    }

    /// Creates `key` under a lease that is kept alive until the session is closed or dropped, unless
    /// the key exists. See [`crate::recipe::session`].
    async fn session(
        &self,
        env: SharedEnv,
        key: Key,
        value: Vec<u8>,
        ttl_ms: u64,
    ) -> BackendResult<Opened>
    where
        Self: Clone + Sized,
    {
        let store = Store::new(Arc::new(self.clone()), env, CALL_MS);
        Session::open(&store, key, value, ttl_ms).await
    }

    /// Waits until nobody holds `key`, and takes it. To resign is to close the session. See
    /// [`crate::recipe::election`].
    async fn elect(&self, env: SharedEnv, key: &[u8], value: Vec<u8>, ttl_ms: u64) -> Session
    where
        Self: Clone + Sized,
    {
        let store = Store::new(Arc::new(self.clone()), env, CALL_MS);
        campaign(&store, key, RELIST_MS, ttl_ms, || value.clone()).await
    }
}

impl<B: CoordinationBackend + ?Sized> BackendExt for B {}
