//! Finding records in the bare bytes of a database, without sled.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use punctual::backend::{Entry, Key, Revision};

use crate::codec::{MAGIC, Meta, Record, parse};

/// The newest record of everything.
#[derive(Default)]
pub(super) struct Carved {
    /// The newest put of each key, whether it was deleted later or not.
    pub(super) entries: BTreeMap<Key, Entry>,
    /// By which revision a key was deleted last.
    pub(super) deleted: BTreeMap<Key, Revision>,
    pub(super) meta: Option<Meta>,
}

/// Reads all files of a generation, one after the other in memory.
pub(super) fn carve(generation: &Path) -> io::Result<Carved> {
    let mut carved = Carved::default();
    for directory in [generation.to_path_buf(), generation.join("blobs")] {
        if !directory.is_dir() {
            continue;
        }
        for item in fs::read_dir(&directory)? {
            let path = item?.path();
            if path.is_file() {
                carved.search(&fs::read(&path)?);
            }
        }
    }
    Ok(carved)
}

impl Carved {
    fn search(&mut self, bytes: &[u8]) {
        let mut at = 0;
        while let Some(offset) = bytes[at..].windows(MAGIC.len()).position(|w| w == MAGIC) {
            at += offset;
            match parse(&bytes[at..]) {
                Some((record, length)) => {
                    self.take(record);
                    at += length;
                }
                None => at += 1,
            }
        }
    }

    fn take(&mut self, record: Record) {
        match record {
            Record::Entry(entry) => {
                let known = self.entries.get(&entry.key);
                if known.is_none_or(|known| known.modified < entry.modified) {
                    self.entries.insert(entry.key.clone(), entry);
                }
            }
            Record::Meta { meta, deleted } => {
                for key in deleted {
                    let last = self.deleted.entry(key).or_default();
                    *last = (*last).max(meta.revision);
                }
                if self.meta.is_none_or(|known| known.writes < meta.writes) {
                    self.meta = Some(meta);
                }
            }
        }
    }
}
