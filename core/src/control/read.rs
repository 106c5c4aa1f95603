//! Reading what a change is planned from.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backend::{BackendError, Entry, Revision, Span};
use crate::job::record::{ChangesRecord, CursorRecord, GoneRecord, JobRecord, decode};
use crate::job::{Definition, Definitions, Job};
use crate::keys::Keys;
use crate::recipe::retry::Store;

use super::change::{Current, Heads};
use super::types::ControlError;

fn broken(partition: u16, what: &str) -> ControlError {
    ControlError::Store(BackendError::Broken(format!(
        "partition {partition}: {what}"
    )))
}

/// A partition's log of changes and cursor. Read *before* the jobs that a change is planned from:
/// whatever changes in between makes the change conflict.
pub(super) async fn heads(
    store: &Store,
    keys: &Keys,
    partition: u16,
) -> Result<Heads, ControlError> {
    let changes = store.get(&keys.changes(partition)).await?;
    let cursor = store.get(&keys.cursor(partition)).await?;
    let changes = changes.ok_or_else(|| broken(partition, "its log of changes is missing"))?;
    let cursor = cursor.ok_or_else(|| broken(partition, "its cursor is missing"))?;
    Ok(Heads {
        partition,
        changes: decode::<ChangesRecord>(&changes.value)
            .map_err(|e| broken(partition, &e.to_string()))?,
        changes_revision: changes.modified,
        cursor: decode::<CursorRecord>(&cursor.value)
            .map_err(|e| broken(partition, &e.to_string()))?,
        cursor_revision: cursor.modified,
    })
}

/// One job as it stands.
pub(super) async fn current(
    store: &Store,
    keys: &Keys,
    partition: u16,
    id: &str,
) -> Result<Current, ControlError> {
    let entry = store.get(&keys.job(partition, id)).await?;
    let gone = store.get(&keys.gone(partition, id)).await?;
    let modified = entry.as_ref().map(|entry| entry.modified);
    let job = match entry {
        Some(entry) => read_job(store, keys, partition, id, &entry).await?,
        None => None,
    };
    let (defs, _) = store.list(&keys.defs_of(partition, id), None).await?;
    Ok(Current {
        job,
        modified,
        last_generation: defs
            .iter()
            .filter_map(|entry| keys.parse_def(&entry.key))
            .map(|(_, generation)| generation)
            .max()
            .unwrap_or(0),
        gone: gone.and_then(|entry| Some((decode(&entry.value).ok()?, entry.modified))),
        delay: store.get(&keys.delay(id)).await?,
    })
}

/// A job from its entry, with the definitions that its segments name; `None` when the record
/// cannot be decoded.
pub(super) async fn read_job(
    store: &Store,
    keys: &Keys,
    partition: u16,
    id: &str,
    entry: &Entry,
) -> Result<Option<Job>, ControlError> {
    let Ok(record) = decode::<JobRecord>(&entry.value) else {
        return Ok(None);
    };
    let mut definitions = Definitions::default();
    for generation in record.segments.iter().map(|segment| segment.generation) {
        let definition = store.get(&keys.def(partition, id, generation)).await?;
        if let Some(definition) =
            definition.and_then(|d| Definition::decode(&d.value, record.created_ms).ok())
        {
            definitions.insert(generation, Arc::new(definition));
        }
    }
    Ok(Some(assemble(id, entry, record, definitions)))
}

fn assemble(id: &str, entry: &Entry, record: JobRecord, definitions: Definitions) -> Job {
    Job {
        id: id.into(),
        uid: entry.created,
        modified: entry.modified,
        record,
        definitions,
    }
}

/// A whole partition, for bulk changes: definitions stay bytes until they are needed.
pub(super) struct Partition {
    pub(super) heads: Heads,
    jobs: BTreeMap<String, Entry>,
    defs: BTreeMap<(String, u64), Vec<u8>>,
    gone: BTreeMap<String, Entry>,
    delays: BTreeMap<String, Entry>,
}

impl Partition {
    pub(super) async fn load(
        store: &Store,
        keys: &Keys,
        partition: u16,
    ) -> Result<Self, ControlError> {
        loop {
            let heads = heads(store, keys, partition).await?;
            let (entries, revision) = store.list(&keys.jobs_of(partition), None).await?;
            let at = Some(revision);
            let mut jobs = BTreeMap::new();
            for entry in entries {
                if let Some((_, Some(id))) = keys.parse_job(&entry.key) {
                    jobs.insert(id, entry);
                }
            }
            match rest(store, keys, partition, at).await {
                Ok((defs, gone)) => {
                    return Ok(Self {
                        heads,
                        jobs,
                        defs,
                        gone,
                        delays: delays(store, keys).await?,
                    });
                }
                Err(ControlError::Store(BackendError::Compacted { .. })) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// After a conflict although no job has changed: the cursor, or the chain of a job that runs
    /// some time after its last run, has moved.
    pub(super) async fn moved_on(
        &mut self,
        store: &Store,
        keys: &Keys,
        heads: Heads,
    ) -> Result<(), ControlError> {
        self.heads = heads;
        self.delays = delays(store, keys).await?;
        Ok(())
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &String> {
        self.jobs.keys()
    }

    pub(super) fn current(&self, id: &str) -> Current {
        let entry = self.jobs.get(id);
        let job = entry.and_then(|entry| {
            let record: JobRecord = decode(&entry.value).ok()?;
            let definitions = record
                .segments
                .iter()
                .filter_map(|segment| {
                    let bytes = self.defs.get(&(id.to_owned(), segment.generation))?;
                    let definition = Definition::decode(bytes, record.created_ms).ok()?;
                    Some((segment.generation, Arc::new(definition)))
                })
                .collect();
            Some(assemble(id, entry, record, definitions))
        });
        Current {
            job,
            modified: entry.map(|entry| entry.modified),
            last_generation: self
                .defs
                .range((id.to_owned(), 0)..=(id.to_owned(), u64::MAX))
                .next_back()
                .map_or(0, |((_, generation), _)| *generation),
            gone: self
                .gone
                .get(id)
                .and_then(|e| Some((decode::<GoneRecord>(&e.value).ok()?, e.modified))),
            delay: self.delays.get(id).cloned(),
        }
    }
}

async fn delays(store: &Store, keys: &Keys) -> Result<BTreeMap<String, Entry>, ControlError> {
    let (delays, _) = store.list(&keys.delays(), None).await?;
    let delays = delays.into_iter();
    Ok(delays
        .filter_map(|entry| Some((keys.parse_delay(&entry.key)?, entry)))
        .collect())
}

type Rest = (BTreeMap<(String, u64), Vec<u8>>, BTreeMap<String, Entry>);

async fn rest(
    store: &Store,
    keys: &Keys,
    partition: u16,
    at: Option<Revision>,
) -> Result<Rest, ControlError> {
    let (defs, _) = store.list(&keys.defs_of_partition(partition), at).await?;
    let defs = defs
        .into_iter()
        .filter_map(|entry| Some((keys.parse_def(&entry.key)?, entry.value)))
        .collect();
    let gone_span = Span::prefix(keys.gone(partition, ""));
    let (gone, _) = store.list(&gone_span, at).await?;
    let gone = gone
        .into_iter()
        .filter_map(|entry| Some((keys.parse_gone(&entry.key)?.1, entry)))
        .collect();
    Ok((defs, gone))
}
