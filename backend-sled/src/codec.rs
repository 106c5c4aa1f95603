//! How things lie in sled: versioned records, each with a checksum of our own.
//!
//! ```text
//! magic:4  version:1  checksum:8  length:4  body
//!
//! body under "e" + key:  "e"  created:8  modified:8  lease:8 (0: none)  length:4  key  value
//! body under "m":        "m"  cluster:8  revision:8  next lease:8  entries:8  sum:8  writes:8
//!                        and the keys that the last batch deleted: (length:4  key)*
//! ```
//! Numbers are little endian. The checksum covers the version and all that follows the checksum.
//! `sum` adds up the checksums of all entries: a subset, a superset or a mixture of two states does
//! not pass for a whole one.
//!
//! A record says all about itself, its key and its beginning included, and each batch leaves a meta
//! record that says what it deleted. So the batches behind a damaged place, which sled gives up,
//! can be found in the bare file and applied again ([`parse`]).

use std::ops::Range;

use punctual::backend::{Entry, Key, LeaseId, Revision};

/// The version of the records that this release writes, and the newest that it reads.
pub(crate) const VERSION: u8 = 1;
/// Where the meta record lies.
pub(crate) const META: &[u8] = b"m";
const ENTRY: u8 = b'e';
/// How every record begins: bytes that no text holds.
pub(crate) const MAGIC: [u8; 4] = [0xf1, b'p', b'n', 0xb7];
const VERSION_AT: usize = MAGIC.len();
const CHECKSUM: Range<usize> = VERSION_AT + 1..VERSION_AT + 9;
const LENGTH: Range<usize> = CHECKSUM.end..CHECKSUM.end + 4;
const HEAD: usize = LENGTH.end;

/// Why a record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BadRecord {
    /// Its checksum or its shape is wrong.
    Damaged(&'static str),
    /// It is of a version that only a newer release knows.
    Newer(u8),
}

/// What the store knows about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    /// Random, made with the store: tells one store from another.
    pub(crate) cluster: u64,
    pub(crate) revision: Revision,
    pub(crate) next_lease: u64,
    /// How many entries there are.
    pub(crate) entries: u64,
    /// Their checksums, added up.
    pub(crate) sum: u64,
    /// How many batches were written, this one included.
    pub(crate) writes: u64,
}

impl Meta {
    pub(crate) fn new(cluster: u64) -> Self {
        Self {
            cluster,
            revision: Revision(1),
            next_lease: 1,
            entries: 0,
            sum: 0,
            writes: 0,
        }
    }

    /// The meta record of a batch that deleted these keys.
    pub(crate) fn encode(&self, deleted: &[&[u8]]) -> Vec<u8> {
        let mut body = META.to_vec();
        for number in [
            self.cluster,
            self.revision.0,
            self.next_lease,
            self.entries,
            self.sum,
            self.writes,
        ] {
            body.extend(number.to_le_bytes());
        }
        for key in deleted {
            put_bytes(&mut body, key);
        }
        seal(&body)
    }

    pub(crate) fn decode(record: &[u8]) -> Result<Self, BadRecord> {
        match read(record)? {
            Record::Meta { meta, .. } => Ok(meta),
            Record::Entry(_) => Err(BadRecord::Damaged("of another kind")),
        }
    }

    /// Counts a record in.
    pub(crate) fn add(&mut self, record: &[u8]) {
        self.entries += 1;
        self.sum = self.sum.wrapping_add(checksum_of(record));
    }

    /// Counts a record out.
    pub(crate) fn remove(&mut self, record: &[u8]) {
        self.entries = self.entries.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(checksum_of(record));
    }
}

/// The sled key of an entry.
pub(crate) fn entry_key(key: &[u8]) -> Vec<u8> {
    let mut sled_key = Vec::with_capacity(1 + key.len());
    sled_key.push(ENTRY);
    sled_key.extend(key);
    sled_key
}

/// The record of an entry.
pub(crate) fn encode_entry(entry: &Entry) -> Vec<u8> {
    let mut body = Vec::with_capacity(1 + 3 * 8 + 4 + entry.key.len() + entry.value.len());
    body.push(ENTRY);
    body.extend(entry.created.0.to_le_bytes());
    body.extend(entry.modified.0.to_le_bytes());
    body.extend(entry.lease.map_or(0, |lease| lease.0).to_le_bytes());
    put_bytes(&mut body, &entry.key);
    body.extend(&entry.value);
    seal(&body)
}

/// The entry that a record holds, which belongs under its sled key.
pub(crate) fn decode_entry(sled_key: &[u8], record: &[u8]) -> Result<Entry, BadRecord> {
    match read(record)? {
        Record::Entry(entry) if sled_key.split_first() == Some((&ENTRY, &entry.key)) => Ok(entry),
        Record::Entry(_) => Err(BadRecord::Damaged("strayed from another key")),
        Record::Meta { .. } => Err(BadRecord::Damaged("of another kind")),
    }
}

/// A record of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Entry(Entry),
    Meta { meta: Meta, deleted: Vec<Key> },
}

/// The record that begins at the start of `bytes`, if a whole one does, and its length.
pub(crate) fn parse(bytes: &[u8]) -> Option<(Record, usize)> {
    let length = length_of(bytes)?;
    let record = read(bytes.get(..length)?).ok()?;
    Some((record, length))
}

fn length_of(bytes: &[u8]) -> Option<usize> {
    let mut body = Bytes(bytes.get(LENGTH)?);
    usize::try_from(body.length().ok()?).ok()?.checked_add(HEAD)
}

fn read(record: &[u8]) -> Result<Record, BadRecord> {
    let mut body = Bytes(unseal(record)?);
    match body.take(1)? {
        [ENTRY] => {
            let created = Revision(body.number()?);
            let modified = Revision(body.number()?);
            let lease = body.number()?;
            let length = body.length()?;
            Ok(Record::Entry(Entry {
                key: body.take(length as usize)?.to_vec(),
                value: body.0.to_vec(),
                created,
                modified,
                lease: (lease != 0).then_some(LeaseId(lease)),
            }))
        }
        META => {
            let meta = Meta {
                cluster: body.number()?,
                revision: Revision(body.number()?),
                next_lease: body.number()?,
                entries: body.number()?,
                sum: body.number()?,
                writes: body.number()?,
            };
            let mut deleted = Vec::new();
            while !body.0.is_empty() {
                let length = body.length()?;
                deleted.push(body.take(length as usize)?.to_vec());
            }
            Ok(Record::Meta { meta, deleted })
        }
        _ => Err(BadRecord::Damaged("of an unknown kind")),
    }
}

/// What is left to read of a body.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], BadRecord> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(BadRecord::Damaged("too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64, BadRecord> {
        let mut number = [0; 8];
        number.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(number))
    }

    fn length(&mut self) -> Result<u32, BadRecord> {
        let mut length = [0; 4];
        length.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(length))
    }
}

/// Lengths fit: a request is limited to a mebibyte.
fn put_bytes(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend((bytes.len() as u32).to_le_bytes());
    body.extend(bytes);
}

fn seal(body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_le_bytes();
    let mut record = Vec::with_capacity(HEAD + body.len());
    record.extend(MAGIC);
    record.push(VERSION);
    record.extend(checksum(&[&[VERSION], &length, body]).to_le_bytes());
    record.extend(length);
    record.extend(body);
    record
}

fn unseal(record: &[u8]) -> Result<&[u8], BadRecord> {
    if length_of(record) != Some(record.len()) || !record.starts_with(&MAGIC) {
        return Err(BadRecord::Damaged("of a wrong shape"));
    }
    let version = record[VERSION_AT];
    let body = &record[HEAD..];
    // The checksum lies at the same place in all versions and covers the version itself: flipped
    // bits are damage, not the future.
    if checksum(&[&[version], &record[LENGTH], body]) != checksum_of(record) {
        return Err(BadRecord::Damaged("its checksum is wrong"));
    }
    match version {
        VERSION => Ok(body),
        newer => Err(BadRecord::Newer(newer)),
    }
}

fn checksum_of(record: &[u8]) -> u64 {
    let checksum = record.get(CHECKSUM).map(|bytes| Bytes(bytes).number());
    checksum.and_then(Result::ok).unwrap_or(0)
}

/// FNV-1a, 64 bits: a check against accidents, not against people. Each part is followed by its
/// length, so that bytes cannot move from one part to the next.
pub(crate) fn checksum(parts: &[&[u8]]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut feed = |byte: u8| {
        hash ^= u64::from(byte);
        hash = hash.wrapping_mul(0x0000_0100_0000_01b3);
    };
    for part in parts {
        part.iter().copied().for_each(&mut feed);
        (part.len() as u64)
            .to_le_bytes()
            .into_iter()
            .for_each(&mut feed);
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            key: b"job/a".to_vec(),
            value: vec![0, 1, 255],
            created: Revision(3),
            modified: Revision(9),
            lease: Some(LeaseId(7)),
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let entry = entry();
        let record = encode_entry(&entry);
        assert_eq!(decode_entry(b"ejob/a", &record), Ok(entry));
        let mut meta = Meta::new(5);
        meta.add(&record);
        assert_eq!(Meta::decode(&meta.encode(&[b"x"])), Ok(meta));
        meta.remove(&record);
        assert_eq!(meta, Meta::new(5));
    }

    #[test]
    fn a_record_is_found_between_other_bytes() {
        let meta = Meta::new(5);
        let sealed = meta.encode(&[b"gone", b""]);
        let mut bytes = sealed.clone();
        bytes.extend(b"whatever follows");
        let deleted = vec![b"gone".to_vec(), vec![]];
        let expected = Record::Meta { meta, deleted };
        assert_eq!(parse(&bytes), Some((expected, sealed.len())));
        assert_eq!(parse(&bytes[1..]), None);
        assert_eq!(parse(&sealed[..sealed.len() - 1]), None);
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let record = encode_entry(&entry());
        for bit in 0..record.len() * 8 {
            let mut flipped = record.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let bad = decode_entry(b"ejob/a", &flipped).unwrap_err();
            assert!(matches!(bad, BadRecord::Damaged(_)), "bit {bit}: {bad:?}");
        }
        for length in 0..record.len() {
            assert!(decode_entry(b"ejob/a", &record[..length]).is_err());
        }
    }

    #[test]
    fn a_record_under_another_key_is_damage() {
        assert!(decode_entry(b"ejob/b", &encode_entry(&entry())).is_err());
        assert!(decode_entry(b"ejob/a", &Meta::new(1).encode(&[])).is_err());
        assert!(Meta::decode(&encode_entry(&entry())).is_err());
    }

    #[test]
    fn a_newer_version_is_named_and_no_damage() {
        let mut record = MAGIC.to_vec();
        record.push(VERSION + 1);
        let length = 8u32.to_le_bytes();
        record.extend(checksum(&[&[VERSION + 1], &length, b"whatever"]).to_le_bytes());
        record.extend(length);
        record.extend(b"whatever");
        assert_eq!(
            decode_entry(b"ek", &record),
            Err(BadRecord::Newer(VERSION + 1))
        );
    }
}
