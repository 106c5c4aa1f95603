//! What the leader knows of a partition, and how it proves that this is complete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::try_join_all;
use serde::de::DeserializeOwned;

use crate::backend::{BackendError, BackendResult, Changes, Entry, Event, Revision, Span};
use crate::job::pool::Pool;
use crate::job::record::{ChangesRecord, CursorRecord, JobRecord, decode, encode};
use crate::job::{Definition, Definitions, Job};
use crate::keys::Keys;
use crate::plan::{DueIndex, Plan, first_undecided};
use crate::recipe::retry::{Backoff, Store};

/// Batches start with so many decisions, and never have more.
pub const MAX_BATCH: usize = 100;
/// A partition that cannot be read is read again after so long, then after twice as long, ...
const FIRST_RETRY_MS: u64 = 500;
/// ... and at least so often.
const LAST_RETRY_MS: u64 = 60_000;

/// A partition's cursor or log of changes is missing, or cannot be decoded: somebody wrote to the
/// store by hand, or it was made by a newer version. Nothing is decided in the partition until the
/// record is put back; the others go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The record and what is wrong with it, for people.
    pub what: String,
    /// The revision at which it was found so.
    pub at: Revision,
}

/// What is tried with a damaged partition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    damage: Damage,
    /// It is read again then, by the monotonic clock.
    retry_at_ms: u64,
    wait_ms: u64,
}

/// The first rest of a partition whose plan was overtaken; the longest is 32 times as long.
const REST_MS: u64 = 5;

/// What news of a cursor meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It was known, or cannot be read.
    Known,
    /// Something is decided since.
    On {
        /// The leader's fire clock when it opened the window, if this is a new one.
        opened_ms: Option<i64>,
    },
}

/// A partition as it stands at `changes_revision`, which every plan requires.
#[derive(Debug)]
pub struct Partition {
    /// Its number.
    pub number: u16,
    /// Its jobs.
    pub jobs: BTreeMap<Arc<str>, Job>,
    /// When they are due.
    pub due: DueIndex,
    /// What their definitions share.
    pool: Pool,
    /// How far it is decided.
    pub cursor: CursorRecord,
    /// Guard of the next plan.
    pub cursor_revision: Revision,
    /// The head of its log of changes.
    pub changes: ChangesRecord,
    /// Proof that `jobs` is complete.
    pub changes_revision: Revision,
    /// The revision at which all this was read.
    pub loaded: Revision,
    /// Decisions in the next batch; halved by a conflict, doubled by success.
    pub batch: usize,
    /// Runs that stood already when their instant was decided.
    pub standing: BTreeSet<String>,
    /// Whether it must be read anew before the next plan.
    pub stale: bool,
    /// Its cursor went backwards: nothing more is decided here until a person has looked.
    pub stopped: bool,
    /// It cannot be read; stale until it can.
    waiting: Option<Waiting>,
    /// No plan is made before, by the monotonic clock.
    pub rest_until_ms: u64,
    /// Plans in a row that were overtaken by runs that came or went.
    overtaken: u32,
}

impl Partition {
    /// Reads a partition at one revision.
    ///
    /// # Errors
    /// Those of the store. That its records are damaged is none.
    pub async fn load(
        store: &Store,
        keys: &Keys,
        number: u16,
    ) -> BackendResult<Result<Self, Damage>> {
        let (jobs, defs, cursor, loaded) = read(store, keys, number).await?;
        let (cursor_key, head_key) = (keys.cursor(number), keys.changes(number));
        let head = jobs.first().filter(|head| head.key == head_key);
        let records = record::<CursorRecord>(&cursor_key, cursor.as_ref()).and_then(|cursor| {
            let changes = record::<ChangesRecord>(&head_key, head)?;
            Ok((cursor, changes))
        });
        let ((cursor, cursor_revision), (changes, changes_revision)) = match records {
            Ok(records) => records,
            Err(what) => return Ok(Err(Damage { what, at: loaded })),
        };

        let mut bytes: BTreeMap<(String, u64), Vec<u8>> = BTreeMap::new();
        for def in defs {
            if let Some(id) = keys.parse_def(&def.key) {
                bytes.insert(id, def.value);
            }
        }
        let mut partition = Self {
            cursor,
            cursor_revision,
            changes,
            changes_revision,
            stale: false,
            ..Self::unread(number, loaded)
        };
        let (mut loaded_jobs, mut due_at) = (Vec::new(), Vec::new());
        // The head comes first. (What is taken in is let go at once: so a start takes less memory.)
        for entry in jobs.into_iter().skip(1) {
            let Some((id, record)) = decode_job(keys, &entry) else {
                continue;
            };
            let mut definitions = Definitions::default();
            for generation in record.segments.iter().map(|segment| segment.generation) {
                // (Several segments may have one definition.)
                let found = bytes.remove(&(id.to_string(), generation));
                if let Some(definition) =
                    found.and_then(|b| decode_definition(&id, generation, &b, record.created_ms))
                {
                    definitions.insert(generation, definition);
                }
            }
            let job = partition.compact(job(id, &entry, record, definitions));
            if let Some(due) = first_undecided(&job, &partition.cursor.position) {
                due_at.push((job.id.clone(), due));
            }
            loaded_jobs.push((job.id.clone(), job));
        }
        // Trees that are built at once take about half the memory of such that grow.
        partition.jobs = loaded_jobs.into_iter().collect();
        partition.due = due_at.into_iter().collect();
        Ok(Ok(partition))
    }

    /// Reads a partition, or notes that this cannot be done yet.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn open(store: &Store, keys: &Keys, number: u16) -> BackendResult<Self> {
        match Self::load(store, keys, number).await? {
            Ok(partition) => Ok(partition),
            Err(damage) => {
                let mut partition = Self::unread(number, damage.at);
                partition.wait(damage, store.env().monotonic_ms());
                Ok(partition)
            }
        }
    }

    /// A partition of which nothing is known.
    fn unread(number: u16, loaded: Revision) -> Self {
        let nowhere = CursorRecord::starting_at(i64::MIN);
        Self {
            loaded,
            stale: true,
            ..Self::empty(number, nowhere, Revision(0))
        }
    }

    /// Why nothing is decided here at the moment, if the partition cannot be read.
    #[must_use]
    pub fn damage(&self) -> Option<&Damage> {
        self.waiting.as_ref().map(|waiting| &waiting.damage)
    }

    /// Whether it must be read anew now; `now_ms` is monotonic.
    #[must_use]
    pub fn is_to_be_read(&self, now_ms: u64) -> bool {
        let waits = |waiting: &Waiting| now_ms < waiting.retry_at_ms;
        self.stale && !self.stopped && !self.waiting.as_ref().is_some_and(waits)
    }

    /// Nothing is decided here until the partition can be read.
    fn wait(&mut self, damage: Damage, now_ms: u64) {
        let before = self.waiting.take();
        let is_news = before.as_ref().is_none_or(|b| b.damage.what != damage.what);
        if is_news {
            // For whoever puts it back: an older position would decide instants twice.
            let known = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
            let is_known = self.cursor_revision.0 > 0;
            tracing::error!(
                partition = self.number,
                what = damage.what,
                last_cursor = is_known.then(|| known(encode(&self.cursor))),
                last_changes = is_known.then(|| known(encode(&self.changes))),
                "this partition cannot be read: nothing fires in it until the record is put back; the others go on"
            );
        }
        let wait_ms = before.map_or(FIRST_RETRY_MS, |b| (b.wait_ms * 2).min(LAST_RETRY_MS));
        self.stale = true;
        self.waiting = Some(Waiting {
            damage,
            retry_at_ms: now_ms.saturating_add(wait_ms),
            wait_ms,
        });
    }

    /// Something was written where the damage is.
    fn look_again(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            waiting.retry_at_ms = 0;
        }
    }

    /// Without jobs, decided as far as that.
    #[must_use]
    pub fn empty(number: u16, cursor: CursorRecord, cursor_revision: Revision) -> Self {
        Self {
            number,
            jobs: BTreeMap::new(),
            due: DueIndex::default(),
            pool: Pool::default(),
            cursor,
            cursor_revision,
            changes: ChangesRecord::default(),
            changes_revision: Revision::default(),
            loaded: Revision::default(),
            batch: MAX_BATCH,
            standing: BTreeSet::new(),
            stale: false,
            stopped: false,
            waiting: None,
            rest_until_ms: 0,
            overtaken: 0,
        }
    }

    /// The same in as little memory as there can be.
    fn compact(&mut self, mut job: Job) -> Job {
        for definition in job.definitions.iter_mut() {
            *definition = self.pool.share(definition);
        }
        job.record.segments.shrink_to_fit();
        job
    }

    fn insert(&mut self, job: Job) {
        let job = self.compact(job);
        let due = first_undecided(&job, &self.cursor.position);
        self.due.set(&job.id, due);
        self.jobs.insert(job.id.clone(), job);
    }

    /// Follows the changes that one revision made to the partition, or marks it stale when they
    /// do not continue what is known.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn follow(
        &mut self,
        store: &Store,
        keys: &Keys,
        changes: &Changes,
    ) -> BackendResult<()> {
        let head_key = keys.changes(self.number);
        if changes.events.iter().any(|event| *event.key() == head_key) {
            self.look_again();
        }
        if changes.revision <= self.changes_revision || self.stale {
            return Ok(());
        }
        let head = changes.events.iter().find_map(|event| match event {
            Event::Put(entry) if entry.key == head_key => Some(entry),
            _ => None,
        });
        let next = head.and_then(|head| decode::<ChangesRecord>(&head.value).ok());
        // Until all of it is taken in: whoever drops this call half done must not plan from it.
        self.stale = true;
        let Some(next) = next.filter(|next| next.seq == self.changes.seq + 1) else {
            return Ok(());
        };
        let (mut put, mut gone) = (Vec::new(), Vec::new());
        for (id, version) in &next.touched {
            let key = keys.job(self.number, id);
            let entry = changes.events.iter().find_map(|event| match event {
                Event::Put(entry) if entry.key == key => Some(entry),
                _ => None,
            });
            match (
                version,
                entry.and_then(|entry| Some((entry, decode_job(keys, entry)?))),
            ) {
                (Some(version), Some((entry, (id, record)))) if record.version == *version => {
                    put.push((entry, id, record));
                }
                (None, None) => gone.push(id.as_str()),
                _ => return Ok(()),
            }
        }
        // All at once: nothing fires meanwhile, and one way to the store for each of a hundred jobs
        // would make whatever is due late.
        let known = &*self;
        let reads = put
            .iter()
            .map(|(_, id, record)| known.definitions(store, keys, id, record));
        let definitions = try_join_all(reads).await?;
        for ((entry, id, record), definitions) in put.into_iter().zip(definitions) {
            self.insert(job(id, entry, record, definitions));
        }
        for id in gone {
            let id: Arc<str> = id.into();
            self.due.set(&id, None);
            self.jobs.remove(&id);
        }
        self.changes = next;
        self.changes_revision = changes.revision;
        self.stale = false;
        Ok(())
    }

    /// Somebody has moved the cursor to what `entry` says.
    pub fn moved(&mut self, entry: &Entry) -> Moved {
        if entry.modified <= self.cursor_revision {
            return Moved::Known;
        }
        let Ok(cursor) = decode::<CursorRecord>(&entry.value) else {
            self.stale = true;
            return Moved::Known;
        };
        if self.waiting.is_some() {
            self.look_again();
            return Moved::Known;
        }
        if cursor.position < self.cursor.position {
            self.stop();
            return Moved::Known;
        }
        let opened_ms = (cursor.window != self.cursor.window).then_some(cursor.window.until_ms);
        self.cursor = cursor;
        self.cursor_revision = entry.modified;
        for id in self.due.until(self.cursor.position.at_ms) {
            let due = self
                .jobs
                .get(&id)
                .and_then(|job| first_undecided(job, &self.cursor.position));
            self.due.set(&id, due);
        }
        Moved::On { opened_ms }
    }

    fn stop(&mut self) {
        tracing::error!(
            partition = self.number,
            "the cursor went backwards: was the store restored? This partition is stopped"
        );
        self.stopped = true;
    }

    /// The definitions that the segments name; those known already are not read again, since they
    /// never change.
    async fn definitions(
        &self,
        store: &Store,
        keys: &Keys,
        id: &Arc<str>,
        record: &JobRecord,
    ) -> BackendResult<Definitions> {
        let known = self.jobs.get(id).map(|job| &job.definitions);
        let mut definitions = Definitions::default();
        for generation in record.segments.iter().map(|s| s.generation) {
            if let Some(definition) = known.and_then(|known| known.get(generation)) {
                definitions.insert(generation, definition.clone());
                continue;
            }
            let entry = store.get(&keys.def(self.number, id, generation)).await?;
            if let Some(definition) =
                entry.and_then(|e| decode_definition(id, generation, &e.value, record.created_ms))
            {
                definitions.insert(generation, definition);
            }
        }
        Ok(definitions)
    }

    /// The plan was committed as `revision`.
    pub fn applied(&mut self, plan: &Plan, revision: Revision) {
        self.cursor = plan.cursor.clone();
        self.cursor_revision = revision;
        for id in &plan.touched {
            let due = self
                .jobs
                .get(id)
                .and_then(|job| first_undecided(job, &self.cursor.position));
            self.due.set(id, due);
        }
        self.batch = (self.batch * 2).min(MAX_BATCH);
        self.overtaken = 0;
        if !self.cursor.is_open() {
            self.standing.clear();
        }
    }

    /// The plan was not committed: the next one is smaller, and made from fresh data.
    pub fn conflicted(&mut self) {
        self.halve();
        self.stale = true;
    }

    /// Whoever creates or ends runs just now gets a chance to be done with it, a longer one each
    /// time: what a plan depends on must stand still for as long as it takes to commit it.
    pub fn rest(&mut self, now_ms: u64) {
        self.rest_until_ms = now_ms + (REST_MS << self.overtaken.min(5));
        self.overtaken += 1;
    }

    /// The next plan is smaller.
    pub fn halve(&mut self) {
        self.batch = (self.batch / 2).max(1);
    }

    /// Reads the partition anew, keeping what is known of its runs. One that cannot be read now is
    /// tried again later.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn reload(&mut self, store: &Store, keys: &Keys) -> BackendResult<()> {
        let fresh = match Self::load(store, keys, self.number).await? {
            Ok(fresh) => fresh,
            Err(damage) => {
                self.wait(damage, store.env().monotonic_ms());
                return Ok(());
            }
        };
        if self.waiting.is_some() {
            tracing::info!(partition = self.number, "this partition can be read again");
        }
        if fresh.cursor.position < self.cursor.position {
            self.stop();
            return Ok(());
        }
        let (batch, standing) = (self.batch, std::mem::take(&mut self.standing));
        *self = Self {
            batch,
            standing,
            rest_until_ms: self.rest_until_ms,
            overtaken: self.overtaken,
            ..fresh
        };
        Ok(())
    }
}

/// Jobs, definitions and cursor of a partition, all at one revision.
async fn read(
    store: &Store,
    keys: &Keys,
    number: u16,
) -> BackendResult<(Vec<Entry>, Vec<Entry>, Option<Entry>, Revision)> {
    let mut backoff = Backoff::default();
    loop {
        let attempt = async {
            let (jobs, revision) = store.list(&keys.jobs_of(number), None).await?;
            let at = Some(revision);
            let (defs, _) = store.list(&keys.defs_of_partition(number), at).await?;
            let (cursor, _) = store.list(&Span::key(keys.cursor(number)), at).await?;
            Ok((jobs, defs, cursor.into_iter().next(), revision))
        };
        match attempt.await {
            // So much is written meanwhile that the revision is gone: once more.
            Err(BackendError::Compacted { .. }) => {}
            // One lost answer must not cost all the partitions that are read already: on a bad
            // network a new leader would never come to its first plan.
            Err(error) if error.is_transient() => {
                tracing::debug!(partition = number, %error, "cannot read the partition; trying again");
                backoff.wait(store.env()).await;
            }
            answer => return answer,
        }
    }
}

/// A record that the partition cannot do without, and its revision; else what is wrong with it.
fn record<T: DeserializeOwned>(key: &[u8], entry: Option<&Entry>) -> Result<(T, Revision), String> {
    let name = String::from_utf8_lossy(key);
    let entry = entry.ok_or_else(|| format!("`{name}` is missing"))?;
    match decode(&entry.value) {
        Ok(record) => Ok((record, entry.modified)),
        Err(error) => Err(format!("`{name}`: {error}")),
    }
}

fn job(id: Arc<str>, entry: &Entry, record: JobRecord, definitions: Definitions) -> Job {
    Job {
        id,
        uid: entry.created,
        modified: entry.modified,
        record,
        definitions,
    }
}

fn decode_job(keys: &Keys, entry: &Entry) -> Option<(Arc<str>, JobRecord)> {
    let (_, id) = keys.parse_job(&entry.key)?;
    let id = id?;
    match decode(&entry.value) {
        Ok(record) => Some((id.into(), record)),
        Err(error) => {
            tracing::error!(job = id, %error, "this job is set aside: it does not fire until it is applied again");
            None
        }
    }
}

fn decode_definition(
    id: &str,
    generation: u64,
    bytes: &[u8],
    created_ms: i64,
) -> Option<Arc<Definition>> {
    match Definition::decode(bytes, created_ms) {
        Ok(definition) => Some(Arc::new(definition)),
        Err(error) => {
            tracing::error!(job = id, generation, %error, "this definition is set aside: its instants do not fire until the job is applied again");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unread() -> Partition {
        Partition::unread(7, Revision(3))
    }

    fn damage(what: &str) -> Damage {
        Damage {
            what: what.into(),
            at: Revision(3),
        }
    }

    /// A partition that stays damaged costs a read a minute, however often somebody looks.
    #[test]
    fn a_damaged_partition_is_read_again_ever_more_rarely() {
        let (mut partition, mut reads) = (unread(), Vec::new());
        for now_ms in (0..600_000).step_by(100) {
            if partition.is_to_be_read(now_ms) {
                reads.push(now_ms);
                partition.wait(damage("spoilt"), now_ms);
            }
        }
        assert_eq!(reads[..5], [0, 500, 1_500, 3_500, 7_500]);
        assert!((12..=18).contains(&reads.len()), "{reads:?}");
        assert_eq!(partition.damage(), Some(&damage("spoilt")));
    }

    #[test]
    fn what_is_written_to_the_damage_is_looked_at_at_once() {
        let mut partition = unread();
        partition.wait(damage("spoilt"), 0);
        assert!(!partition.is_to_be_read(10));
        let cursor = Entry {
            key: b"cursor".to_vec(),
            value: encode(&CursorRecord::starting_at(5)),
            created: Revision(1),
            modified: Revision(4),
            lease: None,
        };
        assert_eq!(partition.moved(&cursor), Moved::Known);
        assert!(partition.is_to_be_read(10), "it may be whole again");
        // Bytes that mean nothing are no reason to hurry.
        partition.wait(damage("spoilt"), 10);
        let spoilt = Entry {
            value: b"spoilt".to_vec(),
            modified: Revision(5),
            ..cursor
        };
        assert_eq!(partition.moved(&spoilt), Moved::Known);
        assert!(!partition.is_to_be_read(20));
    }
}
