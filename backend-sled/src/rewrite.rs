//! Writing the whole store anew, beside the present one, when the present one has grown fat.
//!
//! sled cleans up after itself at a plateau of about eleven times the live data. The model holds
//! the live data in memory, so a thread can write it out afresh, at about twice its size, while
//! the owner goes on with the old generation and remembers what changes meanwhile. When the thread
//! is done, the owner adds those changes and switches over ([`Disk`](crate::disk::Disk)).
//! A rewrite that fails is given up: the store goes on as it was.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use punctual::backend::Entry;
use punctual::model::Revised;

use crate::codec::{self, Meta};
use crate::{disk, place};

/// Entries in a batch. Small batches with a flush after each make the densest log, measured.
const CHUNK: usize = 100;

/// A rewrite under way. Dropping it stops it and removes what it made.
pub(crate) struct Rewrite {
    /// The generation that it makes.
    pub(crate) number: u64,
    /// What has changed since the state that it writes.
    pub(crate) backlog: Vec<Arc<Revised>>,
    path: PathBuf,
    kept: bool,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<Fresh, String>>>,
}

/// A new generation: a database, and what its entries add up to.
pub(crate) struct Fresh {
    pub(crate) db: sled::Db,
    pub(crate) sums: Meta,
}

impl Rewrite {
    /// Starts to write `entries` to a new generation at `path`.
    pub(crate) fn start(
        number: u64,
        path: PathBuf,
        entries: Vec<Arc<Entry>>,
    ) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let place = path.clone();
        let thread = std::thread::Builder::new()
            .name("punctual-rewrite".into())
            .spawn(move || write(place, &entries, &told).map_err(|e| e.to_string()))?;
        Ok(Self {
            number,
            backlog: Vec::new(),
            path,
            kept: false,
            stop,
            thread: Some(thread),
        })
    }

    /// The new generation, once it is written.
    pub(crate) fn finished(&mut self) -> Option<Result<Fresh, String>> {
        if !self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            return None;
        }
        let ended = self.thread.take()?.join();
        Some(ended.unwrap_or_else(|_| Err("a panic in the rewrite".into())))
    }

    /// The new generation is the store now: it stays.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Rewrite {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Whatever it made is dropped here, so that the files can go.
            drop(thread.join());
        }
        if !self.kept
            && self.path.exists()
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "left for the next start");
        }
    }
}

fn write(path: PathBuf, entries: &[Arc<Entry>], stop: &AtomicBool) -> sled::Result<Fresh> {
    let db = disk::config(&path).open()?;
    let mut sums = Meta::new(0);
    for chunk in entries.chunks(CHUNK) {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let mut batch = sled::Batch::default();
        for entry in chunk {
            let record = codec::encode_entry(entry);
            sums.add(&record);
            batch.insert(codec::entry_key(&entry.key), record);
        }
        db.apply_batch(batch)?;
        db.flush()?;
    }
    // Here and not in the owner, which is not to wait for megabytes.
    place::sync_generation(&path, &mut BTreeSet::new())?;
    Ok(Fresh { db, sums })
}
