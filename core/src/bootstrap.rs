//! A namespace's first transaction: `meta`, and all cursors and logs of changes with it.

use crate::backend::{BackendError, BackendResult, Requirement, Txn, TxnOutcome};
use crate::job::record::{ChangesRecord, CursorRecord, Meta, RunRecord, decode, encode};
use crate::job::run::RunState;
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
                tracing::debug!(%error, "cannot read the namespace; trying again");
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
    // `meta` is never deleted, so its absence guards this against late copies. Where it was, by
    // hand, cursors made anew would decide every instant of late a second time.
    let mut txn = Txn::new()
        .require(Requirement::Absent(keys.meta()))
        .require(Requirement::Empty(keys.cursors()))
        .require(Requirement::Empty(keys.jobs()))
        .put(keys.meta(), encode(&meta));
    // At the beginning of time and not now: whoever makes the namespace may have a wrong clock, and
    // no job has an instant before it was made.
    for partition in 0..meta.partitions {
        txn = txn
            .put(
                keys.cursor(partition),
                encode(&CursorRecord::starting_at(0)),
            )
            .put(keys.changes(partition), encode(&ChangesRecord::default()));
    }
    match store.try_commit(&txn).await? {
        TxnOutcome::Applied { .. } => Ok(meta),
        TxnOutcome::Conflict { .. } => match read_meta(store, keys).await? {
            Some(meta) => Ok(meta),
            None => Err(without_meta(store, keys).await?),
        },
    }
}

/// There is a namespace, and its `meta` is gone.
async fn without_meta(store: &Store, keys: &Keys) -> BackendResult<BackendError> {
    let (cursors, _) = store.list(&keys.cursors(), None).await?;
    let cursors = cursors
        .iter()
        .filter(|entry| keys.parse_cursor(&entry.key).is_some());
    Ok(BackendError::Broken(format!(
        "`{}` is missing, and the namespace is not empty ({} cursors): the record was deleted. No \
         node starts before it is put back, with the same number of partitions, since cursors made \
         anew would repeat what is decided (docs/operations.md, \"`meta` is gone\")",
        String::from_utf8_lossy(&keys.meta()),
        cursors.count()
    )))
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

/// What a restored namespace stands at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The new epoch.
    pub epoch: u8,
    /// The newest decision in the copy. Instants behind it are decided again, and may have run
    /// before.
    pub decided_until_ms: i64,
    /// Runs that were RUNNING: whether they ended since, nobody knows.
    pub running: Vec<String>,
}

/// To be called once after the namespace was restored from a copy, before a node starts: bumps the
/// epoch, so that fencing tokens go on growing although revisions repeat.
///
/// # Errors
/// Those of the store; [`BackendError::Broken`] when there is no namespace, and after 255 restores.
pub async fn after_restore(store: &Store, keys: &Keys) -> BackendResult<Restored> {
    let entry = store
        .get(&keys.meta())
        .await?
        .ok_or_else(|| BackendError::Broken("there is no namespace in this store".into()))?;
    let meta: Meta =
        decode(&entry.value).map_err(|e| BackendError::Broken(format!("`meta`: {e}")))?;
    let epoch = meta
        .epoch
        .checked_add(1)
        .ok_or_else(|| BackendError::Broken("it was restored 255 times".into()))?;
    let txn = Txn::new()
        .require(Requirement::Modified(keys.meta(), entry.modified))
        // A node would go on in the old epoch.
        .require(Requirement::Empty(keys.nodes()))
        .put(keys.meta(), encode(&Meta { epoch, ..meta }));
    if let TxnOutcome::Conflict { .. } = store.settle(&txn).await? {
        return Err(BackendError::Broken(
            "a node runs on it, or somebody else changes `meta`: stop all nodes first".into(),
        ));
    }
    let (cursors, _) = store.list(&keys.cursors(), None).await?;
    let decided_until_ms = cursors
        .iter()
        .filter_map(|entry| decode::<CursorRecord>(&entry.value).ok())
        .map(|cursor| cursor.position.at_ms)
        .max()
        .unwrap_or(0);
    let (runs, _) = store.list(&keys.runs(), None).await?;
    let running = runs
        .iter()
        .filter_map(|entry| decode::<RunRecord>(&entry.value).ok())
        // The parts of a run in parts speak for themselves.
        .filter(|run| run.state == RunState::Running && run.parts.is_none())
        .map(|run| run.run)
        .collect();
    Ok(Restored {
        epoch,
        decided_until_ms,
        running,
    })
}
