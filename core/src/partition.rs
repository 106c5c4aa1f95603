//! Which partition a job belongs to.

/// The partition of a job. For ever fixed by the id and the number of partitions: FNV-1a, 64 bits
/// (Fowler, Noll, Vo), modulo the number.
#[must_use]
pub fn partition_of(job: &str, partitions: u16) -> u16 {
    let hash = fnv1a(job.as_bytes());
    u16::try_from(hash % u64::from(partitions.max(1))).unwrap_or(0)
}

/// FNV-1a, 64 bits.
#[must_use]
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
