//! Reading a database that cannot be trusted: what sled can still read, and what follows the place
//! where it gives up.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use punctual::backend::{Entry, Key, Revision};

use super::carve::{Carved, carve};
use crate::codec::{self, META, Meta};
use crate::disk;
use crate::error::OpenError;
use crate::place::{Copy, DATA, wait_for_release};
use crate::witness;

/// What could be read.
#[derive(Default)]
pub(super) struct Salvaged {
    pub(super) meta: Option<Meta>,
    pub(super) entries: BTreeMap<Key, Entry>,
    /// Records that were there and could not be read.
    pub(super) bad: u64,
    /// The entries are all that the meta record counts, no more and no less.
    pub(super) whole: bool,
}

/// Reads a copy of the database as far as that goes.
pub(super) fn salvage(directory: &Path, generation: &Path) -> Result<Salvaged, OpenError> {
    wait_for_release(generation);
    let copy = Copy::of(generation).map_err(OpenError::io(generation))?;
    // Before sled opens the copy and cuts it.
    let carved = carve(copy.path()).map_err(OpenError::io(generation))?;
    let readable = catch_unwind(AssertUnwindSafe(|| {
        let db = disk::config(copy.path()).open()?;
        Ok::<_, sled::Error>(read_what_is_readable(&db))
    }));
    let readable = match readable {
        Ok(Ok(readable)) => readable,
        Ok(Err(_)) | Err(_) => Salvaged::default(),
    };
    let mut salvaged = roll_forward(readable, carved);
    if salvaged.meta.is_none() && salvaged.entries.is_empty() {
        let file = generation.join(DATA);
        return Err(OpenError::damaged(&file, "nothing in it can be read"));
    }
    salvaged.whole &= testimony_agrees(directory, salvaged.meta.as_ref())?;
    Ok(salvaged)
}

/// Applies to a readable state what the bare file holds of the batches behind it. If the readable
/// state is whole, this is exact up to the first batch with a record that is lost, and the meta
/// record tells whether there was one. If it is not, deleted entries may come back.
fn roll_forward(readable: Salvaged, carved: Carved) -> Salvaged {
    let from = match readable.meta {
        Some(meta) if readable.whole => meta.revision,
        _ => Revision(0),
    };
    let mut entries = readable.entries;
    for (key, entry) in carved.entries {
        let newer = entries
            .get(&key)
            .is_none_or(|known| known.modified < entry.modified);
        if entry.modified > from && newer {
            entries.insert(key, entry);
        }
    }
    for (key, deleted) in carved.deleted {
        if deleted > from && entries.get(&key).is_some_and(|e| e.modified <= deleted) {
            entries.remove(&key);
        }
    }
    let metas = readable.meta.into_iter().chain(carved.meta);
    let meta = metas.max_by_key(|meta| meta.writes);
    let mut found = Meta::new(0);
    for entry in entries.values() {
        found.add(&codec::encode_entry(entry));
    }
    Salvaged {
        meta,
        whole: meta.is_some_and(|meta| (meta.entries, meta.sum) == (found.entries, found.sum)),
        entries,
        bad: readable.bad,
    }
}

fn testimony_agrees(directory: &Path, meta: Option<&Meta>) -> Result<bool, OpenError> {
    let Some(meta) = meta else { return Ok(false) };
    let (_, testimony) =
        witness::Witness::open(directory).map_err(OpenError::io(&directory.join(witness::NAME)))?;
    Ok(match testimony {
        witness::Testimony::Nothing => true,
        witness::Testimony::Unreadable => false,
        witness::Testimony::Wrote { cluster, writes } => {
            cluster == meta.cluster && writes <= meta.writes
        }
    })
}

fn read_what_is_readable(db: &sled::Db) -> Salvaged {
    let mut salvaged = Salvaged {
        whole: true,
        ..Salvaged::default()
    };
    let mut found = Meta::new(0);
    let mut items = db.iter();
    // Forward until something cannot be read, then backward until the same place.
    for backward in [false, true] {
        loop {
            let item = catch_unwind(AssertUnwindSafe(|| {
                if backward {
                    items.next_back()
                } else {
                    items.next()
                }
            }));
            match item {
                Ok(Some(Ok((key, record)))) => salvaged.take(&key, &record, &mut found),
                Ok(None) => break,
                Ok(Some(Err(_))) | Err(_) => {
                    salvaged.whole = false;
                    break;
                }
            }
        }
        if salvaged.whole {
            break;
        }
        items = db.iter();
    }
    salvaged.whole &= salvaged.bad == 0
        && salvaged
            .meta
            .is_some_and(|meta| (meta.entries, meta.sum) == (found.entries, found.sum));
    salvaged
}

impl Salvaged {
    fn take(&mut self, key: &[u8], record: &[u8], found: &mut Meta) {
        if key == META {
            self.meta = Meta::decode(record).ok();
            return;
        }
        match codec::decode_entry(key, record) {
            Ok(entry) => {
                if self.entries.insert(entry.key.clone(), entry).is_none() {
                    found.add(record);
                }
            }
            Err(_) => self.bad += 1,
        }
    }
}
