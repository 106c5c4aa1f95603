//! Random numbers as a tree: each part of the world draws from its own branch, so that one more
//! draw in one place does not reshuffle all the others.

/// A branch of the tree (SplitMix64: Steele, Lea, Flood, 2014).
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The root.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut root = Self { state: seed };
        // Neighbouring seeds must not give neighbouring states.
        let state = root.next_u64();
        Self { state }
    }

    /// The branch with this name. Drawing from it leaves this one alone.
    #[must_use]
    pub fn branch(&self, name: &str, index: u64) -> Self {
        let hash = punctual::keys::fnv1a(format!("{}/{name}/{index}", self.state).as_bytes());
        Self::new(hash)
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `low <= n < high`; `low` when the range is empty.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next_u64() % high.saturating_sub(low).max(1)
    }

    /// `low <= n <= high`, signed.
    pub fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.range(0, (high - low).unsigned_abs() + 1).cast_signed()
    }

    /// An index below `len`.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.range(0, len as u64)).unwrap_or(0)
    }

    /// True in so many of a thousand cases.
    pub fn permille(&mut self, n: u32) -> bool {
        self.range(0, 1_000) < u64::from(n)
    }

    /// One of these.
    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())].clone()
    }
}
