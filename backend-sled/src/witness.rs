//! A second memory of how far the store has come.
//!
//! sled takes a log that ends early for a log that was cut short by a crash, which is the right
//! thing after a crash, and the wrong one when a byte in the middle went bad: acknowledged writes
//! would vanish without a word. So the number of writes is noted here as well, after each flush
//! and before the answer. A database that is behind its witness has lost acknowledged writes.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::codec::{Meta, checksum};

/// The name of the file beside sled's own.
pub(crate) const NAME: &str = "punctual.witness";
const LENGTH: usize = 3 * 8;

#[derive(Debug)]
pub(crate) struct Witness {
    file: File,
}

/// What the witness says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Testimony {
    /// It was never written.
    Nothing,
    /// So many writes of the store with this number were acknowledged.
    Wrote { cluster: u64, writes: u64 },
    /// Nonsense.
    Unreadable,
}

impl Witness {
    pub(crate) fn open(directory: &Path) -> io::Result<(Self, Testimony)> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join(NAME))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok((Self { file }, decode(&bytes)))
    }

    pub(crate) fn write(&mut self, meta: &Meta) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(LENGTH);
        bytes.extend(meta.cluster.to_le_bytes());
        bytes.extend(meta.writes.to_le_bytes());
        bytes.extend(checksum(&[&bytes]).to_le_bytes());
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&bytes)
    }

    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn decode(bytes: &[u8]) -> Testimony {
    if bytes.is_empty() {
        return Testimony::Nothing;
    }
    let number = |at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(number)
    };
    if bytes.len() != LENGTH || number(16) != checksum(&[&bytes[..16]]) {
        return Testimony::Unreadable;
    }
    Testimony::Wrote {
        cluster: number(0),
        writes: number(8),
    }
}
