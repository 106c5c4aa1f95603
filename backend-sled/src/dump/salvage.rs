//! Reading a database that cannot be trusted.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use punctual::backend::{Entry, Key};

use crate::codec::{self, META, Meta};
use crate::disk;
use crate::error::OpenError;
use crate::place::{DATA, wait_for_release};
use crate::witness;

/// What could be read.
pub(super) struct Salvaged {
    pub(super) meta: Option<Meta>,
    pub(super) entries: BTreeMap<Key, Entry>,
    /// Records that were there and could not be read.
    pub(super) bad: u64,
    /// Nothing that the store ever acknowledged is missing.
    pub(super) whole: bool,
}

/// Reads a copy of the database as far as that goes.
pub(super) fn salvage(directory: &Path, generation: &Path) -> Result<Salvaged, OpenError> {
    wait_for_release(generation);
    let copy = Copy::of(generation)?;
    let mut unreadable = None;
    for without_snapshot in [false, true] {
        if without_snapshot {
            // sled's shortcut past the older part of the log may be what is damaged.
            copy.remove_snapshots()?;
        }
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let db = disk::config(&copy.0).open()?;
            Ok::<_, sled::Error>(read_what_is_readable(&db))
        }));
        match opened {
            Ok(Ok(mut salvaged)) => {
                salvaged.whole &= testimony_agrees(directory, salvaged.meta.as_ref())?;
                return Ok(salvaged);
            }
            Ok(Err(error)) => unreadable = Some(error.to_string()),
            Err(_) => unreadable = Some("sled cannot make sense of it".into()),
        }
    }
    let detail = unreadable.unwrap_or_default();
    Err(OpenError::damaged(&generation.join(DATA), detail))
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
        meta: None,
        entries: BTreeMap::new(),
        bad: 0,
        whole: true,
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

/// A copy of a database that is removed with its value.
struct Copy(PathBuf);

impl Copy {
    fn of(generation: &Path) -> Result<Self, OpenError> {
        let name = format!("salvage-{}", std::process::id());
        let copy = Self(generation.with_extension(name));
        copy_files(generation, &copy.0).map_err(OpenError::io(&copy.0))?;
        Ok(copy)
    }

    fn remove_snapshots(&self) -> Result<(), OpenError> {
        let io = || OpenError::io(&self.0);
        for item in fs::read_dir(&self.0).map_err(io())? {
            let path = item.map_err(io())?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with("snap.") {
                fs::remove_file(&path).map_err(io())?;
            }
        }
        Ok(())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(directory = %self.0.display(), %error, "a copy stays behind");
        }
    }
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for item in fs::read_dir(from)? {
        let item = item?;
        if item.file_type()?.is_dir() {
            copy_files(&item.path(), &to.join(item.file_name()))?;
        } else {
            fs::copy(item.path(), to.join(item.file_name()))?;
        }
    }
    Ok(())
}
