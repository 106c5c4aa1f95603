//! How things lie in sled: versioned records, each with a checksum of our own.
//!
//! ```text
//! "e" + key   version:1  checksum:8  created:8  modified:8  lease:8 (0: none)  value
//! "m"         version:1  checksum:8  cluster:8  revision:8  next lease:8
//!             entries:8  sum:8  writes:8
//! ```
//! Numbers are little endian. The checksum covers the sled key and all that follows it, so that a
//! record that strayed to another key is found out as well. `sum` adds up the checksums of all
//! entries: a subset, a superset or a mixture of two states does not pass for a whole one.

use punctual::backend::{Entry, Key, LeaseId, Revision};

/// The version of the records that this release writes, and the newest that it reads.
pub(crate) const VERSION: u8 = 1;
/// Where the meta record lies.
pub(crate) const META: &[u8] = b"m";
const ENTRY: u8 = b'e';
const HEAD: usize = 1 + 8;

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

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(HEAD + 6 * 8);
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
        seal(META, &body)
    }

    pub(crate) fn decode(record: &[u8]) -> Result<Self, BadRecord> {
        let (_, body) = unseal(META, record)?;
        let mut numbers = body.chunks_exact(8).map(number);
        let mut next = || numbers.next().ok_or(BadRecord::Damaged("too short"));
        Ok(Self {
            cluster: next()?,
            revision: Revision(next()?),
            next_lease: next()?,
            entries: next()?,
            sum: next()?,
            writes: next()?,
        })
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
    let mut body = Vec::with_capacity(3 * 8 + entry.value.len());
    body.extend(entry.created.0.to_le_bytes());
    body.extend(entry.modified.0.to_le_bytes());
    body.extend(entry.lease.map_or(0, |lease| lease.0).to_le_bytes());
    body.extend(&entry.value);
    seal(&entry_key(&entry.key), &body)
}

/// The entry that a record holds; its checksum is right.
pub(crate) fn decode_entry(sled_key: &[u8], record: &[u8]) -> Result<Entry, BadRecord> {
    let (_, body) = unseal(sled_key, record)?;
    let Some((&ENTRY, key)) = sled_key.split_first() else {
        return Err(BadRecord::Damaged("of an unknown kind"));
    };
    if body.len() < 3 * 8 {
        return Err(BadRecord::Damaged("too short"));
    }
    let (numbers, value) = body.split_at(3 * 8);
    let lease = number(&numbers[16..]);
    Ok(Entry {
        key: Key::from(key),
        value: value.to_vec(),
        created: Revision(number(&numbers[..8])),
        modified: Revision(number(&numbers[8..16])),
        lease: (lease != 0).then_some(LeaseId(lease)),
    })
}

fn seal(sled_key: &[u8], body: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(HEAD + body.len());
    record.push(VERSION);
    record.extend(checksum(&[&[VERSION], sled_key, body]).to_le_bytes());
    record.extend(body);
    record
}

fn unseal<'a>(sled_key: &[u8], record: &'a [u8]) -> Result<(u8, &'a [u8]), BadRecord> {
    if record.len() < HEAD {
        return Err(BadRecord::Damaged("too short"));
    }
    let (head, body) = record.split_at(HEAD);
    // The checksum lies at the same place in all versions and covers the version itself: flipped
    // bits are damage, not the future.
    if checksum(&[&head[..1], sled_key, body]) != checksum_of(record) {
        return Err(BadRecord::Damaged("its checksum is wrong"));
    }
    match head[0] {
        VERSION => Ok((VERSION, body)),
        newer => Err(BadRecord::Newer(newer)),
    }
}

fn checksum_of(record: &[u8]) -> u64 {
    record.get(1..HEAD).map_or(0, number)
}

fn number(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(number)
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
        assert_eq!(Meta::decode(&meta.encode()), Ok(meta));
        meta.remove(&record);
        assert_eq!(meta, Meta::new(5));
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
    }

    #[test]
    fn a_newer_version_is_named_and_no_damage() {
        let mut record = vec![VERSION + 1];
        record.extend(checksum(&[&[VERSION + 1], b"ek", b"whatever"]).to_le_bytes());
        record.extend(b"whatever");
        assert_eq!(
            decode_entry(b"ek", &record),
            Err(BadRecord::Newer(VERSION + 1))
        );
    }
}
