//! Jitter: how much later than its instant a run may start.

use super::compiled::Schedule;

impl Schedule {
    /// How much later than its instant a run may start, in milliseconds, 0 to `jitter` inclusive.
    /// A hash of job and instant: the same on all nodes.
    #[must_use]
    pub fn jitter_ms(&self, job_id: &str, instant_ms: i64) -> u64 {
        let limit = self.0.rare.as_ref().map_or(0, |rare| rare.jitter_ms);
        if limit == 0 {
            return 0;
        }
        // FNV-1a over both, then a finalizer, since FNV alone leaves neighbouring instants close.
        let bytes = job_id.bytes().chain(instant_ms.to_le_bytes());
        let mut hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^= hash >> 33;
        ((u128::from(hash) * (u128::from(limit) + 1)) >> 64) as u64
    }
}
