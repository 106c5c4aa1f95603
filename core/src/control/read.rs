//! Reading what a change is planned from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::backend::{BackendError, BackendResult, Entry, Key, Requirement, Span};
use crate::job::record::{ChangesRecord, CursorRecord, GoneRecord, JobRecord, decode};
use crate::job::{Definition, Definitions, Job};
use crate::keys::Keys;
use crate::recipe::retry::Store;

use super::change::{Current, Heads};
use super::types::ControlError;
use super::{MAX_CONFLICTS, busy};

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

/// A partition of not many more jobs than are named is read as a whole: a few large requests are
/// cheaper than many small ones.
const WHOLE_UP_TO: usize = 20;

/// What bulk changes of a partition are planned from: all of it, or its heads and the jobs that were
/// last looked at. Definitions stay bytes until they are needed.
///
/// What stands here of jobs and definitions is never older than the heads: the heads are read
/// *first*. So a change by somebody else either is seen here, or has moved the log of changes since
/// the heads were read, and the commit, which requires the heads, conflicts.
pub(super) struct Partition {
    pub(super) heads: Heads,
    is_whole: bool,
    jobs: BTreeMap<String, Entry>,
    defs: BTreeMap<(String, u64), Vec<u8>>,
    gone: BTreeMap<String, Entry>,
    delays: BTreeMap<String, Entry>,
}

impl Partition {
    /// All of it.
    pub(super) async fn load(
        store: &Store,
        keys: &Keys,
        partition: u16,
    ) -> Result<Self, ControlError> {
        Self::load_up_to(store, keys, partition, usize::MAX).await
    }

    /// For changes of so many jobs whose names are known: all of a small partition, and only the heads
    /// of a large one, whose jobs [`Partition::look_at`] reads.
    pub(super) async fn load_for(
        store: &Store,
        keys: &Keys,
        partition: u16,
        named: usize,
    ) -> Result<Self, ControlError> {
        let most = named.saturating_mul(WHOLE_UP_TO);
        Self::load_up_to(store, keys, partition, most).await
    }

    async fn load_up_to(
        store: &Store,
        keys: &Keys,
        partition: u16,
        most: usize,
    ) -> Result<Self, ControlError> {
        loop {
            let mut loaded = Self {
                heads: heads(store, keys, partition).await?,
                is_whole: false,
                jobs: BTreeMap::new(),
                defs: BTreeMap::new(),
                gone: BTreeMap::new(),
                delays: BTreeMap::new(),
            };
            match loaded.read_all(store, keys, most).await {
                Ok(is_whole) => {
                    loaded.is_whole = is_whole;
                    return Ok(loaded);
                }
                Err(BackendError::Compacted { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads everything behind the heads; false when there is more than `most` of anything.
    async fn read_all(&mut self, store: &Store, keys: &Keys, most: usize) -> BackendResult<bool> {
        let number = self.heads.partition;
        let jobs = store.list_up_to(&keys.jobs_of(number), None, most).await?;
        let Some((jobs, revision)) = jobs else {
            return Ok(false);
        };
        let at = Some(revision);
        let defs = store
            .list_up_to(&keys.defs_of_partition(number), at, most)
            .await?;
        let Some((defs, _)) = defs else {
            return Ok(false);
        };
        let gone = Span::prefix(keys.gone(number, ""));
        let Some((gone, _)) = store.list_up_to(&gone, at, most).await? else {
            return Ok(false);
        };
        self.delays = delays(store, keys).await?;
        let job = |entry: Entry| Some((keys.parse_job(&entry.key)?.1?, entry));
        self.jobs = jobs.into_iter().filter_map(job).collect();
        let def = |entry: Entry| Some((keys.parse_def(&entry.key)?, entry.value));
        self.defs = defs.into_iter().filter_map(def).collect();
        self.gone = gone_of(keys, gone);
        Ok(true)
    }

    /// Reads these jobs, unless all were read; [`Partition::current`] knows them and no others.
    ///
    /// They are read with several requests. The log of changes, which every change of a job rewrites,
    /// stands behind the last of them as it stood before the first: so the answers are of one
    /// revision as far as changes go, and what is refused because of them is refused rightly.
    pub(super) async fn look_at(
        &mut self,
        store: &Store,
        keys: &Keys,
        ids: &[&str],
    ) -> Result<(), ControlError> {
        if self.is_whole {
            return Ok(());
        }
        for _ in 0..MAX_CONFLICTS {
            if self.read_named(store, keys, ids).await? {
                return Ok(());
            }
            self.heads = heads(store, keys, self.heads.partition).await?;
        }
        Err(busy())
    }

    /// Whether the log of changes stood still meanwhile.
    async fn read_named(
        &mut self,
        store: &Store,
        keys: &Keys,
        ids: &[&str],
    ) -> BackendResult<bool> {
        let number = self.heads.partition;
        for map in [&mut self.jobs, &mut self.gone, &mut self.delays] {
            map.clear();
        }
        self.defs.clear();
        let each = |id: &&str| [keys.job(number, id), keys.gone(number, id), keys.delay(id)];
        let wanted: Vec<Key> = ids.iter().flat_map(each).collect();
        let mut found = store.get_each(&wanted).await?.into_iter();
        let mut places = Vec::new();
        for id in ids {
            let mut next = || found.next().flatten();
            let (job, gone, delay) = (next(), next(), next());
            let record = job.as_ref().and_then(|job| decode(&job.value).ok());
            places.extend(definitions_of(keys, number, id, record.as_ref()));
            let keep = |map: &mut BTreeMap<String, Entry>, entry: Option<Entry>| {
                map.extend(entry.map(|entry| ((*id).to_owned(), entry)));
            };
            keep(&mut self.jobs, job);
            keep(&mut self.gone, gone);
            keep(&mut self.delays, delay);
        }
        places.push(Requirement::Absent(keys.changes(number)));
        let mut seen = store.look_each(&places).await?;
        let changes = seen.pop().flatten();
        for (place, entry) in places.iter().zip(seen) {
            let Some(entry) = entry else { continue };
            let entries = match place {
                Requirement::Empty(span) => store.list(span, None).await?.0,
                _ => vec![entry],
            };
            let def = |entry: Entry| Some((keys.parse_def(&entry.key)?, entry.value));
            self.defs.extend(entries.into_iter().filter_map(def));
        }
        Ok(changes.is_some_and(|entry| entry.modified == self.heads.changes_revision))
    }

    /// After a change that was made, by an answer that was lost: whatever else has changed is read.
    pub(super) async fn read_anew(
        &mut self,
        store: &Store,
        keys: &Keys,
    ) -> Result<(), ControlError> {
        let number = self.heads.partition;
        if self.is_whole {
            *self = Self::load(store, keys, number).await?;
        } else {
            self.heads = heads(store, keys, number).await?;
        }
        Ok(())
    }

    /// After a conflict, with the heads as they are now: whatever has changed is read anew, and of
    /// jobs that are named, these only, when they are looked at again.
    pub(super) async fn catch_up(
        &mut self,
        store: &Store,
        keys: &Keys,
        heads: Heads,
    ) -> Result<(), ControlError> {
        if !self.is_whole {
            self.heads = heads;
            Ok(())
        } else if heads.changes_revision == self.heads.changes_revision {
            // No job has changed, but the cursor, or the chain of a job that runs some time after its
            // last run, or a deleted job was forgotten.
            self.delays = delays(store, keys).await?;
            let gone = Span::prefix(keys.gone(heads.partition, ""));
            self.gone = gone_of(keys, store.list(&gone, None).await?.0);
            self.heads = heads;
            Ok(())
        } else {
            self.read_anew(store, keys).await
        }
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

fn gone_of(keys: &Keys, entries: Vec<Entry>) -> BTreeMap<String, Entry> {
    let gone_of = |entry: Entry| Some((keys.parse_gone(&entry.key)?.1, entry));
    entries.into_iter().filter_map(gone_of).collect()
}

async fn delays(store: &Store, keys: &Keys) -> BackendResult<BTreeMap<String, Entry>> {
    let (delays, _) = store.list(&keys.delays(), None).await?;
    let delays = delays.into_iter();
    Ok(delays
        .filter_map(|entry| Some((keys.parse_delay(&entry.key)?, entry)))
        .collect())
}

/// Where the definitions of a job stand: those that its segments name, and any that is newer than the
/// newest that its record knows. (All of them, when there is no record that can be read.)
fn definitions_of(
    keys: &Keys,
    partition: u16,
    id: &str,
    record: Option<&JobRecord>,
) -> Vec<Requirement> {
    let all = keys.defs_of(partition, id);
    let Some(record) = record else {
        return vec![Requirement::Empty(all)];
    };
    let newer = all.after(&keys.def(partition, id, record.generation));
    let named: BTreeSet<u64> = record.segments.iter().map(|s| s.generation).collect();
    let named = named.into_iter().map(|g| keys.def(partition, id, g));
    named
        .map(Requirement::Absent)
        .chain([Requirement::Empty(newer)])
        .collect()
}
