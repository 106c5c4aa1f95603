//! A namespace's first transaction: `meta`, and all cursors and logs of changes with it.

use crate::backend::{BackendError, BackendResult, Requirement, Txn, TxnOutcome};
use crate::job::record::{ChangesRecord, CursorRecord, Meta, decode, encode};
use crate::keys::Keys;
use crate::recipe::retry::{Backoff, Store};
use crate::schedule::tzdb_version;

/// Partitions of a new namespace; for ever fixed in `meta`.
pub const DEFAULT_PARTITIONS: u16 = 16;

/// The time zone database that this build reckons with.
#[must_use]
pub fn tzdb() -> String {
    tzdb_version().to_string()
}

/// Reads the namespace's `meta`, or makes the namespace if there is none.
///
/// # Errors
/// [`BackendError::Broken`] when `meta` cannot be read (made by a newer version, say). Waits for
/// a store that is away.
pub async fn bootstrap(store: &Store, keys: &Keys) -> BackendResult<Meta> {
    let mut backoff = Backoff::default();
    loop {
        match try_bootstrap(store, keys).await {
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, "the store does not answer; waiting for it");
                backoff.wait(store.env()).await;
            }
            answer => return answer,
        }
    }
}

async fn try_bootstrap(store: &Store, keys: &Keys) -> BackendResult<Meta> {
    if let Some(meta) = read_meta(store, keys).await? {
        return Ok(meta);
    }
    let env = store.env();
    let meta = Meta {
        cluster_id: format!("{:016x}{:016x}", env.random_u64(), env.random_u64()),
        epoch: 0,
        partitions: DEFAULT_PARTITIONS,
        tzdb: tzdb(),
    };
    // `meta` is never deleted, so its absence guards this against late copies.
    let mut txn = Txn::new()
        .require(Requirement::Absent(keys.meta()))
        .put(keys.meta(), encode(&meta));
    for partition in 0..meta.partitions {
        txn = txn
            .put(
                keys.cursor(partition),
                encode(&CursorRecord::starting_at(env.wall_ms())),
            )
            .put(keys.changes(partition), encode(&ChangesRecord::default()));
    }
    match store.try_commit(&txn).await? {
        TxnOutcome::Applied { .. } => Ok(meta),
        TxnOutcome::Conflict { .. } => read_meta(store, keys)
            .await?
            .ok_or_else(|| BackendError::Broken("`meta` vanished".into())),
    }
}

/// The namespace's `meta`, if the namespace exists.
///
/// # Errors
/// Those of the store; [`BackendError::Broken`] when it cannot be decoded.
pub async fn read_meta(store: &Store, keys: &Keys) -> BackendResult<Option<Meta>> {
    let entry = store.get(&keys.meta()).await?;
    entry
        .map(|entry| decode(&entry.value).map_err(|e| BackendError::Broken(format!("`meta`: {e}"))))
        .transpose()
}

/// Notes in `meta` that a node with newer time zone data is about to stand for election, so that
/// none with older data leads after it.
///
/// # Errors
/// Those of the store. A conflict is none: somebody else changed `meta`, and looks after it.
pub async fn raise_tzdb(store: &Store, keys: &Keys, meta: &Meta) -> BackendResult<()> {
    if meta.tzdb >= tzdb() {
        return Ok(());
    }
    let Some(entry) = store.get(&keys.meta()).await? else {
        return Ok(());
    };
    let raised = Meta {
        tzdb: tzdb(),
        ..decode(&entry.value).map_err(|e| BackendError::Broken(format!("`meta`: {e}")))?
    };
    let txn = Txn::new()
        .require(Requirement::Modified(keys.meta(), entry.modified))
        .put(keys.meta(), encode(&raised));
    store.settle(&txn).await.map(|_| ())
}
