//! Reading a database with suspicion: every record must be what was written, none may be missing,
//! and none of the acknowledged writes either.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use punctual::backend::Entry;

use crate::codec::{self, BadRecord, META, Meta};
use crate::disk;
use crate::error::OpenError;
use crate::place::DATA;
use crate::witness::{NAME as WITNESS, Testimony};

/// The entries as they lie on disk, verified.
pub(crate) struct Loaded {
    pub(crate) meta: Option<Meta>,
    pub(crate) entries: Vec<Entry>,
}

/// Opens a generation and reads all of it. sled panics on some damaged files: that is damage too.
pub(crate) fn open(directory: &Path, generation: &Path) -> Result<(sled::Db, Loaded), OpenError> {
    let file = generation.join(DATA);
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let db = disk::config(generation)
            .open()
            .map_err(|error| damage(&file, error))?;
        let loaded = load(directory, &file, &db)?;
        Ok((db, loaded))
    }));
    match opened {
        Ok(result) => result,
        Err(_) => Err(OpenError::damaged(&file, "sled cannot make sense of it")),
    }
}

/// Opens a generation whose copy was read already: it must hold the same.
pub(crate) fn reopen(generation: &Path, meta: Option<&Meta>) -> Result<sled::Db, OpenError> {
    let file = generation.join(DATA);
    let opened = catch_unwind(|| {
        let db = disk::config(generation).open()?;
        let record = db.get(META)?;
        Ok((db, record.and_then(|record| Meta::decode(&record).ok())))
    });
    match opened {
        Ok(Ok((db, found))) if found.as_ref() == meta => Ok(db),
        Ok(Ok(_)) => Err(OpenError::damaged(&file, "it reads differently each time")),
        Ok(Err(error)) => Err(damage(&file, error)),
        Err(_) => Err(OpenError::damaged(&file, "sled cannot make sense of it")),
    }
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

fn load(directory: &Path, file: &Path, db: &sled::Db) -> Result<Loaded, OpenError> {
    let bad = |key: &[u8], bad: BadRecord| match bad {
        BadRecord::Newer(found) => OpenError::Newer {
            directory: directory.to_path_buf(),
            found,
            known: codec::VERSION,
        },
        BadRecord::Damaged(why) => OpenError::damaged(
            file,
            format!("the record of {:?}: {why}", String::from_utf8_lossy(key)),
        ),
    };
    let meta = match db.get(META).map_err(|e| damage(file, e))? {
        Some(record) => Some(Meta::decode(&record).map_err(|e| bad(META, e))?),
        None => None,
    };
    let mut entries = Vec::new();
    let mut found = Meta::new(0);
    for item in db.iter() {
        let (key, record) = item.map_err(|e| damage(file, e))?;
        if *key != *META {
            entries.push(codec::decode_entry(&key, &record).map_err(|e| bad(&key, e))?);
            found.add(&record);
        }
    }
    let expected = meta.unwrap_or(found);
    if meta.is_none() && !entries.is_empty() {
        return Err(OpenError::damaged(file, "its meta record is missing"));
    }
    if (found.entries, found.sum) != (expected.entries, expected.sum) {
        return Err(OpenError::damaged(
            file,
            format!(
                "{} of {} entries found, or not the newest of each",
                found.entries, expected.entries
            ),
        ));
    }
    Ok(Loaded { meta, entries })
}

/// Compares what was found with what the witness remembers.
pub(crate) fn check_testimony(
    directory: &Path,
    generation: &Path,
    testimony: Testimony,
    meta: Option<&Meta>,
) -> Result<(), OpenError> {
    let witness = directory.join(WITNESS);
    let data = generation.join(DATA);
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
                let missing = writes - meta.writes;
                return Err(OpenError::damaged(
                    &data,
                    format!("its last {missing} acknowledged writes are missing"),
                ));
            }
            Ok(())
        }
        (Testimony::Wrote { writes, .. }, None) => Err(OpenError::damaged(
            &data,
            format!("empty, though {writes} writes were acknowledged"),
        )),
    }
}
