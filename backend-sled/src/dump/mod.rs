//! The way out of a damaged directory, and between releases: entries as lines of JSON.
//!
//! ```text
//! {"punctual":1,"cluster":"9f0c...","revision":812,"next_lease":7}
//! {"key":"job/03/report","created":12,"modified":812,"value":"{...}"}
//! ```
//! What is not UTF-8 stands as `key_hex` and `value_hex`; a leased entry names its `lease`.
//!
//! [`export`] trusts nothing: it works on a copy, so that it cannot make things worse, keeps only
//! records whose checksum is right, and walks in from both ends when a page in the middle cannot
//! be read. sled gives up all that follows a damaged place in its log; the records that follow are
//! searched for in the bare file and applied again. Whether the result is all that was ever
//! acknowledged is known in the end ([`Exported::complete`]). If it is not, entries may be missing,
//! older than they were, or back from the dead: treat the store like a restored backup.

mod carve;
mod salvage;

use std::fs;
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};

use punctual::backend::{Entry, Key, LeaseId, Revision};
use serde::{Deserialize, Serialize};

use crate::codec::{self, META, Meta};
use crate::error::OpenError;
use crate::{load, place};
use salvage::{Salvaged, salvage};

/// The version of the format.
const FORMAT: u32 = 1;
/// Stands for the meta record while an import is under way.
const IMPORTING: &[u8] = b"import";
/// How many entries are imported at once.
const CHUNK: usize = 1_000;

/// What an export found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Entries written.
    pub entries: u64,
    /// Entries known to be missing: unreadable, or counted by the store and not found.
    pub missing: u64,
    /// Whether everything that the store knew of was found, and as new as it was acknowledged.
    pub complete: bool,
}

/// What an import made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Entries written.
    pub entries: u64,
    /// Leased entries left out: their leases ended with the process that kept them.
    pub leased: u64,
}

/// An export or import did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// The directory could not be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is no database to export.
    #[error("{}: no database here", .0.display())]
    Nothing(PathBuf),
    /// The directory to import into holds something already.
    #[error("{}: not empty; import into a fresh directory", .0.display())]
    NotEmpty(PathBuf),
    /// A line is not what an export writes.
    #[error("line {line}: {detail}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        detail: String,
    },
    /// Reading or writing the lines failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    punctual: u32,
    cluster: String,
    revision: u64,
    next_lease: u64,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hex: Option<String>,
    created: u64,
    modified: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_hex: Option<String>,
}

/// Writes what can be read in `directory` as lines of JSON, and says how much that is.
///
/// # Errors
/// When the directory is in use, nothing at all can be read, or the lines cannot be written.
pub fn export(directory: &Path, out: &mut dyn Write) -> Result<Exported, DumpError> {
    let nothing = || DumpError::Nothing(directory.to_path_buf());
    let generations = place::generations(directory).map_err(|_| nothing())?;
    let newest = *generations.last().ok_or_else(nothing)?;
    let lock = place::take(directory)?;
    // If nobody can say which generation is the store, the newest is the best guess.
    let current = place::current(directory).unwrap_or_default();
    let generation = place::generation(directory, current.unwrap_or(newest));
    let mut salvaged = salvage(directory, &generation)?;
    salvaged.whole &= current.is_some();
    drop(lock);
    write_line(out, &header_of(&salvaged))?;
    for entry in salvaged.entries.values() {
        write_line(out, &line_of(entry))?;
    }
    out.flush()?;
    let entries = salvaged.entries.len() as u64;
    let missing = match salvaged.meta {
        _ if salvaged.whole => 0,
        Some(meta) => meta.entries.saturating_sub(entries).max(salvaged.bad),
        None => salvaged.bad,
    };
    Ok(Exported {
        entries,
        missing,
        complete: salvaged.whole,
    })
}

/// Makes a store in the fresh `directory` from the lines of an export. Entries keep their
/// revisions, and the store its number, revision and count of leases.
///
/// # Errors
/// When the directory is not fresh, a line is not what an export writes, or writing fails. What
/// was made until then does not open as a store; remove it.
pub fn import(directory: &Path, lines: &mut dyn BufRead) -> Result<Imported, DumpError> {
    let occupied = match fs::read_dir(directory) {
        Ok(mut items) => items.next().is_some(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(OpenError::io(directory)(error).into()),
    };
    if occupied {
        return Err(DumpError::NotEmpty(directory.to_path_buf()));
    }
    let _lock = place::take(directory)?;
    let generation = place::generation(directory, 1);
    let (db, _) = load::open(directory, &generation)?;
    place::point_to(directory, 1).map_err(OpenError::io(directory))?;
    let failed = |error: sled::Error| OpenError::io(directory)(error.into());
    // Until the end no meta record but this one, which nobody can read: half an import is no
    // store, and neither is none of it.
    db.insert(META, IMPORTING).map_err(failed)?;
    db.flush().map_err(failed)?;

    let mut numbered = lines.lines().enumerate();
    let mut meta = match numbered.next() {
        Some((_, line)) => header_meta(&line?).map_err(bad_line(1))?,
        None => return Err(bad_line(1)("empty".into())),
    };
    let mut imported = Imported::default();
    let mut batch = sled::Batch::default();
    let mut last_key: Option<Key> = None;
    for (index, line) in numbered {
        let entry = parse_entry(&line?, &meta, last_key.as_deref()).map_err(bad_line(index + 1))?;
        if entry.lease.is_some() {
            imported.leased += 1;
        } else {
            imported.entries += 1;
            let record = codec::encode_entry(&entry);
            meta.add(&record);
            batch.insert(codec::entry_key(&entry.key), record);
            if imported.entries.is_multiple_of(CHUNK as u64) {
                db.apply_batch(std::mem::take(&mut batch)).map_err(failed)?;
            }
        }
        last_key = Some(entry.key);
    }
    meta.writes = 1;
    batch.insert(META, meta.encode(&[]));
    db.apply_batch(batch).map_err(failed)?;
    db.flush().map_err(failed)?;
    Ok(imported)
}

/// Revisions and numbers of leases must not be used again: where the meta record is missing, or
/// older than entries that were found, at least past all that is seen.
fn header_of(salvaged: &Salvaged) -> Header {
    let meta = salvaged.meta.unwrap_or(Meta::new(0));
    let entries = || salvaged.entries.values();
    let revisions = entries().map(|entry| entry.modified.0);
    let leases = entries()
        .filter_map(|entry| entry.lease)
        .map(|lease| lease.0 + 1);
    Header {
        punctual: FORMAT,
        cluster: format!("{:016x}", meta.cluster),
        revision: revisions.chain([meta.revision.0]).max().unwrap_or(1),
        next_lease: leases.chain([meta.next_lease]).max().unwrap_or(1),
    }
}

fn line_of(entry: &Entry) -> Line {
    let (key, key_hex) = text_or_hex(&entry.key);
    let (value, value_hex) = text_or_hex(&entry.value);
    Line {
        key,
        key_hex,
        created: entry.created.0,
        modified: entry.modified.0,
        lease: entry.lease.map(|lease| lease.0),
        value,
        value_hex,
    }
}

fn header_meta(line: &str) -> Result<Meta, String> {
    let header: Header = serde_json::from_str(line).map_err(|e| e.to_string())?;
    if header.punctual != FORMAT {
        return Err(format!(
            "format {}, this release reads {FORMAT}",
            header.punctual
        ));
    }
    let cluster = u64::from_str_radix(&header.cluster, 16).map_err(|e| e.to_string())?;
    Ok(Meta {
        revision: Revision(header.revision.max(1)),
        next_lease: header.next_lease.max(1),
        ..Meta::new(cluster)
    })
}

fn parse_entry(line: &str, meta: &Meta, last: Option<&[u8]>) -> Result<Entry, String> {
    let line: Line = serde_json::from_str(line).map_err(|e| e.to_string())?;
    let key = bytes_of("key", line.key, line.key_hex)?;
    if last.is_some_and(|last| last >= key.as_slice()) || key.is_empty() {
        return Err("keys must be ascending, and not empty".into());
    }
    if line.created == 0 || line.created > line.modified || line.modified > meta.revision.0 {
        return Err("revisions must be 0 < created <= modified <= the header's".into());
    }
    Ok(Entry {
        value: bytes_of("value", line.value, line.value_hex)?,
        key,
        created: Revision(line.created),
        modified: Revision(line.modified),
        lease: line.lease.map(LeaseId),
    })
}

fn write_line(out: &mut dyn Write, line: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, line)?;
    out.write_all(b"\n")
}

fn bad_line(line: usize) -> impl FnOnce(String) -> DumpError {
    move |detail| DumpError::Line { line, detail }
}

fn text_or_hex(bytes: &[u8]) -> (Option<String>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.into()), None),
        Err(_) => {
            let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            (None, Some(hex))
        }
    }
}

fn bytes_of(name: &str, text: Option<String>, hex: Option<String>) -> Result<Vec<u8>, String> {
    match (text, hex) {
        (Some(text), None) => Ok(text.into_bytes()),
        (None, Some(hex)) if hex.len().is_multiple_of(2) && hex.is_ascii() => (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).map_err(|e| e.to_string()))
            .collect(),
        _ => Err(format!("needs either {name} or {name}_hex")),
    }
}
