//! The directory: taking it, reading it with suspicion, and writing to it.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use punctual::backend::Entry;
use punctual::model::{Change, Model, Restored, Revised};

use crate::codec::{self, BadRecord, META, Meta};
use crate::error::OpenError;
use crate::witness::{Testimony, Witness};
use crate::{Durability, Options};

/// Ours, apart from sled's own lock: it says "in use" without a guess at error texts.
const LOCK: &str = "punctual.lock";
/// sled's main file.
pub(crate) const DATA: &str = "db";
/// The model holds the live state, so sled's own cache only has to hold the pages being written.
const CACHE_BYTES: u64 = 16 << 20;
/// Fixed when a database is made: sled refuses to open one with another size.
const SEGMENT_BYTES: usize = 512 << 10;
/// sled lets go of its file from background threads, a moment after the last handle is dropped.
const RELEASE_WAIT: Duration = Duration::from_secs(5);

/// An open directory.
pub(crate) struct Disk {
    // Dropped in this order: sled before the lock that guards it.
    db: sled::Db,
    witness: Witness,
    meta: Meta,
    directory: PathBuf,
    durability: Durability,
    synced: BTreeSet<PathBuf>,
    lock: File,
}

/// The entries as they lie on disk, verified.
pub(crate) struct Loaded {
    pub(crate) meta: Option<Meta>,
    pub(crate) entries: Vec<Entry>,
}

impl Disk {
    /// Takes the directory and reads all of it.
    pub(crate) fn open(
        directory: &Path,
        options: &Options,
        fresh_cluster: u64,
    ) -> Result<(Self, Restored), OpenError> {
        let lock = take(directory)?;
        let (mut witness, testimony) = Witness::open(directory)
            .map_err(OpenError::io(&directory.join(crate::witness::NAME)))?;
        let (db, loaded) = open_sled(directory)?;
        let meta = match loaded.meta {
            Some(meta) => meta,
            None => Meta::new(fresh_cluster),
        };
        check_testimony(directory, testimony, loaded.meta.as_ref())?;
        if testimony == Testimony::Nothing && loaded.meta.is_some() {
            witness
                .write(&meta)
                .map_err(OpenError::io(&directory.join(crate::witness::NAME)))?;
        }
        let mut disk = Self {
            db,
            witness,
            meta,
            directory: directory.to_path_buf(),
            durability: options.durability,
            synced: BTreeSet::new(),
            lock,
        };
        if loaded.meta.is_none() {
            disk.write_batch(sled::Batch::default(), meta)
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
        for change in revised.iter().flat_map(|r| &r.changes) {
            match change {
                Change::Put { entry, before } => {
                    if let Some(before) = before {
                        meta.remove(&codec::encode_entry(before));
                    }
                    let record = codec::encode_entry(entry);
                    meta.add(&record);
                    batch.insert(codec::entry_key(&entry.key), record);
                }
                Change::Delete { before } => {
                    meta.remove(&codec::encode_entry(before));
                    batch.remove(codec::entry_key(&before.key));
                }
            }
        }
        self.write_batch(batch, meta)
    }

    fn write_batch(&mut self, mut batch: sled::Batch, mut meta: Meta) -> io::Result<()> {
        meta.writes += 1;
        batch.insert(META, meta.encode());
        self.db.apply_batch(batch)?;
        self.db.flush()?;
        if self.durability == Durability::Fsync {
            self.sync()?;
        }
        self.witness.write(&meta)?;
        self.meta = meta;
        Ok(())
    }

    /// fsync of everything that sled may have written since the last time. Its flush hands the
    /// pages to the disk, but neither the length of the file nor the disk's own cache.
    fn sync(&mut self) -> io::Result<()> {
        let blobs = self.directory.join("blobs");
        // Blobs are written once and never changed; a name seen before needs nothing.
        let present: BTreeSet<PathBuf> = fs::read_dir(&blobs)?
            .map(|blob| Ok(blob?.path()))
            .collect::<io::Result<_>>()?;
        let mut fresh = false;
        for blob in present.difference(&self.synced) {
            fresh = true;
            match File::open(blob) {
                Ok(file) => file.sync_all()?,
                // sled removes blobs that no page names any more, whenever it likes.
                Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        if fresh {
            sync_directory(&blobs)?;
        }
        if self.synced.is_empty() {
            sync_directory(&self.directory)?;
            self.witness.sync()?;
        }
        self.synced = present;
        self.synced.insert(blobs);
        File::open(self.directory.join(DATA))?.sync_all()
    }

    /// Closes the database and gives the directory free.
    pub(crate) fn close(self) {
        let Self {
            db,
            directory,
            lock,
            ..
        } = self;
        drop(db);
        if !wait_for_release(&directory) {
            tracing::warn!(directory = %directory.display(), "sled still holds its file");
        }
        drop(lock);
    }
}

fn sync_directory(directory: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

/// Makes the directory if need be and locks it.
pub(crate) fn take(directory: &Path) -> Result<File, OpenError> {
    fs::create_dir_all(directory).map_err(OpenError::io(directory))?;
    let path = directory.join(LOCK);
    let lock = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(OpenError::io(&path))?;
    let in_use = || OpenError::InUse {
        directory: directory.to_path_buf(),
    };
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use()),
        Err(TryLockError::Error(error)) => return Err(OpenError::io(&path)(error)),
    }
    // Only ours is free: some other program uses the bare database.
    if wait_for_release(directory) {
        Ok(lock)
    } else {
        Err(in_use())
    }
}

/// Waits until nobody holds sled's own lock.
fn wait_for_release(directory: &Path) -> bool {
    let step = Duration::from_millis(2);
    let mut waited = Duration::ZERO;
    loop {
        let Ok(file) = File::open(directory.join(DATA)) else {
            return true;
        };
        if !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return true;
        }
        if waited >= RELEASE_WAIT {
            return false;
        }
        std::thread::sleep(step);
        waited += step;
    }
}

/// Opens the database and reads all of it. sled panics on some damaged files: that is damage too.
pub(crate) fn open_sled(directory: &Path) -> Result<(sled::Db, Loaded), OpenError> {
    let file = directory.join(DATA);
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let db = config(directory)
            .open()
            .map_err(|error| damage(&file, error))?;
        let loaded = load(directory, &db)?;
        Ok((db, loaded))
    }));
    match opened {
        Ok(result) => result,
        Err(_) => Err(OpenError::damaged(&file, "sled cannot make sense of it")),
    }
}

/// How databases are opened, damaged ones too.
pub(crate) fn config(directory: &Path) -> sled::Config {
    sled::Config::new()
        .path(directory)
        .cache_capacity(CACHE_BYTES)
        .segment_size(SEGMENT_BYTES)
        .flush_every_ms(None)
}

fn damage(file: &Path, error: sled::Error) -> OpenError {
    match error {
        sled::Error::Io(source) if source.kind() != io::ErrorKind::InvalidData => OpenError::Io {
            path: file.to_path_buf(),
            source,
        },
        other => OpenError::damaged(file, other.to_string()),
    }
}

fn load(directory: &Path, db: &sled::Db) -> Result<Loaded, OpenError> {
    let file = directory.join(DATA);
    let bad = |key: &[u8], bad: BadRecord| match bad {
        BadRecord::Newer(found) => OpenError::Newer {
            directory: directory.to_path_buf(),
            found,
            known: codec::VERSION,
        },
        BadRecord::Damaged(why) => OpenError::damaged(
            &file,
            format!("the record of {:?}: {why}", String::from_utf8_lossy(key)),
        ),
    };
    let meta = match db.get(META).map_err(|e| damage(&file, e))? {
        Some(record) => Some(Meta::decode(&record).map_err(|e| bad(META, e))?),
        None => None,
    };
    let mut entries = Vec::new();
    let mut found = Meta::new(0);
    for item in db.iter() {
        let (key, record) = item.map_err(|e| damage(&file, e))?;
        if *key != *META {
            entries.push(codec::decode_entry(&key, &record).map_err(|e| bad(&key, e))?);
            found.add(&record);
        }
    }
    let expected = meta.unwrap_or(found);
    if meta.is_none() && !entries.is_empty() {
        return Err(OpenError::damaged(&file, "its meta record is missing"));
    }
    if (found.entries, found.sum) != (expected.entries, expected.sum) {
        return Err(OpenError::damaged(
            &file,
            format!(
                "{} of {} entries found, or not the newest of each",
                found.entries, expected.entries
            ),
        ));
    }
    Ok(Loaded { meta, entries })
}

fn check_testimony(
    directory: &Path,
    testimony: Testimony,
    meta: Option<&Meta>,
) -> Result<(), OpenError> {
    let witness = directory.join(crate::witness::NAME);
    match (testimony, meta) {
        (Testimony::Nothing, _) => Ok(()),
        (Testimony::Unreadable, _) => Err(OpenError::damaged(
            &witness,
            "unreadable, so nobody knows whether acknowledged writes are missing \
             (delete it to accept the database as it is)",
        )),
        (Testimony::Wrote { cluster, writes }, Some(meta)) => {
            if cluster != meta.cluster {
                return Err(OpenError::damaged(&witness, "it belongs to another store"));
            }
            if writes > meta.writes {
                return Err(OpenError::damaged(
                    &directory.join(DATA),
                    format!(
                        "its last {} acknowledged writes are missing",
                        writes - meta.writes
                    ),
                ));
            }
            Ok(())
        }
        (Testimony::Wrote { writes, .. }, None) => Err(OpenError::damaged(
            &directory.join(DATA),
            format!("empty, though {writes} writes were acknowledged"),
        )),
    }
}
