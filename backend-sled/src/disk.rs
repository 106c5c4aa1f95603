//! The disk under the model: reading it with suspicion, and writing to it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use punctual::backend::Span;
use punctual::model::{Change, Model, Restored, Revised};

use crate::codec::{self, META, Meta};
use crate::error::OpenError;
use crate::load::{self, Loaded};
use crate::place::{self, DATA};
use crate::rewrite::{Fresh, Rewrite};
use crate::witness::{NAME as WITNESS, Testimony, Witness};
use crate::{Durability, Options};

/// The model holds the live state, so sled's own cache only has to hold the pages being written.
const CACHE_BYTES: u64 = 16 << 20;
/// Fixed when a database is made: sled refuses to open one with another size.
const SEGMENT_BYTES: usize = 512 << 10;
/// How much is written between two looks at the size of the directory.
const LOOK_EVERY_BYTES: u64 = 1 << 20;

/// An open directory.
pub(crate) struct Disk {
    // Dropped in this order: all users of the directory before the lock that guards it.
    rewrite: Option<Rewrite>,
    db: sled::Db,
    witness: Witness,
    remover: Option<JoinHandle<()>>,
    meta: Meta,
    directory: PathBuf,
    generation: u64,
    /// The newest generation ever begun here.
    newest: u64,
    options: Options,
    /// Blobs of the present generation that are known to be on disk.
    synced: BTreeSet<PathBuf>,
    unlooked_bytes: u64,
    /// The size of the present generation when it was new, if it was made by a rewrite.
    fresh_bytes: Option<u64>,
    lock: File,
}

/// How databases are opened, new, old and damaged ones.
pub(crate) fn config(generation: &Path) -> sled::Config {
    sled::Config::new()
        .path(generation)
        .cache_capacity(CACHE_BYTES)
        .segment_size(SEGMENT_BYTES)
        .flush_every_ms(None)
}

impl Disk {
    /// Takes the directory and reads all of it.
    pub(crate) fn open(
        directory: &Path,
        options: Options,
        fresh_cluster: u64,
    ) -> Result<(Self, Restored), OpenError> {
        let lock = place::take(directory)?;
        let witness_path = directory.join(WITNESS);
        let (mut witness, testimony) =
            Witness::open(directory).map_err(OpenError::io(&witness_path))?;
        let number = find_generation(directory, testimony)?;
        let generation = place::generation(directory, number);
        if !place::wait_for_release(&generation) {
            // Only our own lock is free: some other program uses the bare database.
            return Err(OpenError::InUse {
                directory: directory.to_path_buf(),
            });
        }
        let (db, loaded) = open_unharmed(directory, &generation, testimony)?;
        place::sweep(directory, number).map_err(OpenError::io(directory))?;
        let meta = loaded.meta.unwrap_or_else(|| Meta::new(fresh_cluster));
        if testimony == Testimony::Nothing && loaded.meta.is_some() {
            witness.write(&meta).map_err(OpenError::io(&witness_path))?;
        }
        let mut disk = Self {
            rewrite: None,
            db,
            witness,
            remover: None,
            meta,
            directory: directory.to_path_buf(),
            generation: number,
            newest: number,
            options,
            synced: BTreeSet::new(),
            unlooked_bytes: 0,
            fresh_bytes: None,
            lock,
        };
        if loaded.meta.is_none() {
            disk.write_batch(sled::Batch::default(), meta, &[])
                .map_err(OpenError::io(directory))?;
        }
        let restored = Restored {
            entries: loaded.entries,
            revision: meta.revision,
            next_lease: meta.next_lease,
        };
        Ok((disk, restored))
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Makes the state that `model` has reached durable, by `revised` from the last one. All or
    /// nothing; when it fails, nobody knows which, and the caller must stop.
    pub(crate) fn write(&mut self, model: &Model, revised: &[Arc<Revised>]) -> io::Result<()> {
        let mut meta = self.meta;
        meta.revision = model.revision();
        meta.next_lease = model.next_lease();
        let mut batch = sled::Batch::default();
        let deleted = add_changes(&mut batch, &mut meta, revised);
        self.write_batch(batch, meta, &deleted)?;
        if let Some(rewrite) = &mut self.rewrite {
            rewrite.backlog.extend(revised.iter().map(Arc::clone));
        }
        let written: usize = revised.iter().map(|r| r.bytes() + 64).sum();
        self.unlooked_bytes += written as u64;
        self.tend(model)
    }

    fn write_batch(
        &mut self,
        mut batch: sled::Batch,
        mut meta: Meta,
        deleted: &[&[u8]],
    ) -> io::Result<()> {
        meta.writes += 1;
        batch.insert(META, meta.encode(deleted));
        self.db.apply_batch(batch)?;
        self.db.flush()?;
        if self.options.durability == Durability::Fsync {
            self.sync()?;
        }
        self.witness.write(&meta)?;
        self.meta = meta;
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let generation = place::generation(&self.directory, self.generation);
        if self.synced.is_empty() {
            place::sync_directory(&self.directory)?;
            self.witness.sync()?;
        }
        place::sync_generation(&generation, &mut self.synced)
    }

    /// Begins a rewrite when it is due, and ends one when it is done.
    fn tend(&mut self, model: &Model) -> io::Result<()> {
        match self.rewrite.as_mut().map(Rewrite::finished) {
            Some(Some(Ok(fresh))) => return self.switch(fresh),
            Some(Some(Err(error))) => self.give_up(&error),
            Some(None) => {}
            None => {
                let look_every = self.options.rewrite_above_bytes.min(LOOK_EVERY_BYTES);
                if self.unlooked_bytes >= look_every {
                    self.unlooked_bytes = 0;
                    if let Err(error) = self.rewrite_if_fat(model) {
                        self.give_up(&error.to_string());
                    }
                }
            }
        }
        Ok(())
    }

    fn rewrite_if_fat(&mut self, model: &Model) -> io::Result<()> {
        if self.is_fat(model)? {
            self.newest += 1;
            let path = place::generation(&self.directory, self.newest);
            let entries = model.entries(&Span::prefix([])).map(Arc::clone).collect();
            self.rewrite = Some(Rewrite::start(self.newest, path, entries)?);
        }
        Ok(())
    }

    /// Whether the generation has grown by more than twice the live data since it was new.
    fn is_fat(&self, model: &Model) -> io::Result<bool> {
        let live = (model.live_bytes() + 64 * model.len()) as u64;
        // One that grew here was never new. What a rewrite makes is about twice the live data.
        let fresh = self.fresh_bytes.unwrap_or(2 * live);
        let bytes = place::bytes_in(&place::generation(&self.directory, self.generation))?;
        Ok(bytes > (fresh + 2 * live).max(self.options.rewrite_above_bytes))
    }

    fn give_up(&mut self, error: &str) {
        tracing::warn!(
            error,
            "a rewrite of the store is given up; it goes on as it was"
        );
        self.rewrite = None;
    }

    /// Brings the new generation up to date and makes it the store. Until `current` names it, the
    /// old one is the store, and every failure only costs the rewrite.
    fn switch(&mut self, fresh: Fresh) -> io::Result<()> {
        let Some(rewrite) = self.rewrite.take() else {
            return Ok(());
        };
        let Fresh { db, mut sums } = fresh;
        let mut batch = sled::Batch::default();
        let deleted = add_changes(&mut batch, &mut sums, &rewrite.backlog);
        let mut meta = self.meta;
        if (sums.entries, sums.sum) != (meta.entries, meta.sum) {
            self.give_up("it does not add up to the same");
            return Ok(());
        }
        meta.writes += 1;
        batch.insert(META, meta.encode(&deleted));
        let written = db.apply_batch(batch).and_then(|()| db.flush());
        if let Err(error) = written {
            self.give_up(&error.to_string());
            return Ok(());
        }
        let old = std::mem::replace(&mut self.db, db);
        let old_path = place::generation(&self.directory, self.generation);
        self.generation = rewrite.number;
        self.synced.clear();
        // Whatever the durability: a loss of power must not cost a whole generation.
        self.sync()?;
        place::point_to(&self.directory, self.generation)?;
        rewrite.keep();
        self.witness.write(&meta)?;
        self.meta = meta;
        let path = place::generation(&self.directory, self.generation);
        self.fresh_bytes = place::bytes_in(&path).ok();
        self.remove(old, old_path);
        Ok(())
    }

    /// Closes an old generation and removes it, without making anybody wait.
    fn remove(&mut self, old: sled::Db, path: PathBuf) {
        if let Some(remover) = self.remover.take() {
            // Nothing depends on how it ended: the next start sweeps.
            let _ = remover.join();
        }
        let remove = move || {
            drop(old);
            if let Err(error) = fs::remove_dir_all(&path) {
                tracing::warn!(path = %path.display(), %error, "left for the next start");
            }
        };
        self.remover = std::thread::Builder::new()
            .name("punctual-remove".into())
            .spawn(remove)
            .ok();
    }

    /// Closes the database and gives the directory free.
    pub(crate) fn close(self) {
        let generation = place::generation(&self.directory, self.generation);
        let Self {
            rewrite,
            db,
            remover,
            lock,
            ..
        } = self;
        drop(rewrite);
        drop(db);
        if let Some(remover) = remover {
            // Nothing depends on how it ended: the next start sweeps.
            let _ = remover.join();
        }
        if !place::wait_for_release(&generation) {
            tracing::warn!(path = %generation.display(), "sled still holds its file");
        }
        drop(lock);
    }
}

/// Opens a database and reads all of it, on a copy first: sled cuts off what follows a damaged
/// place, and that may be most of what can still be saved.
fn open_unharmed(
    directory: &Path,
    generation: &Path,
    testimony: Testimony,
) -> Result<(sled::Db, Loaded), OpenError> {
    let check = |loaded: &Loaded| {
        load::check_testimony(directory, generation, testimony, loaded.meta.as_ref())
    };
    let copy = match place::Copy::of(generation) {
        Ok(copy) => copy,
        Err(error) => {
            tracing::warn!(%error, "no room for a copy; the database is opened as it is");
            let (db, loaded) = load::open(directory, generation)?;
            check(&loaded)?;
            return Ok((db, loaded));
        }
    };
    let (db, loaded) =
        load::open(directory, copy.path()).map_err(|error| error.at(&generation.join(DATA)))?;
    drop(db);
    drop(copy);
    check(&loaded)?;
    let db = load::reopen(generation, loaded.meta.as_ref())?;
    Ok((db, loaded))
}

/// The generation that is the store; makes the first one in a directory without a store.
fn find_generation(directory: &Path, testimony: Testimony) -> Result<u64, OpenError> {
    if let Some(number) = place::current(directory)? {
        return Ok(number);
    }
    if testimony != Testimony::Nothing {
        return Err(OpenError::damaged(
            &directory.join("current"),
            "missing, though writes were acknowledged",
        ));
    }
    let io = || OpenError::io(directory);
    for number in place::generations(directory).map_err(io())? {
        if place::generation(directory, number).join(DATA).exists() {
            return Err(OpenError::damaged(
                &directory.join("current"),
                "missing, though there is a database",
            ));
        }
    }
    // What a crash before the first write left.
    place::sweep(directory, 0).map_err(io())?;
    fs::create_dir(place::generation(directory, 1)).map_err(io())?;
    place::point_to(directory, 1).map_err(io())?;
    Ok(1)
}

/// Adds changes to a batch, and to what the entries add up to; answers which keys do not exist
/// after the batch.
fn add_changes<'a>(
    batch: &mut sled::Batch,
    meta: &mut Meta,
    revised: &'a [Arc<Revised>],
) -> Vec<&'a [u8]> {
    let mut deleted = BTreeSet::new();
    for change in revised.iter().flat_map(|r| &r.changes) {
        match change {
            Change::Put { entry, before } => {
                if let Some(before) = before {
                    meta.remove(&codec::encode_entry(before));
                }
                let record = codec::encode_entry(entry);
                meta.add(&record);
                batch.insert(codec::entry_key(&entry.key), record);
                deleted.remove(entry.key.as_slice());
            }
            Change::Delete { before } => {
                meta.remove(&codec::encode_entry(before));
                batch.remove(codec::entry_key(&before.key));
                deleted.insert(before.key.as_slice());
            }
        }
    }
    deleted.into_iter().collect()
}
