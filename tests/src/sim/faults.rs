//! Faults of a node's link to the store, as data.

use serde::Serialize;

/// What a link does to calls while a window is open, in so many of a thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rates {
    /// The request is refused: certainly not applied.
    pub refuse: u32,
    /// The request is lost; the caller waits.
    pub lose_request: u32,
    /// The request is applied, the answer is lost; the caller waits.
    pub lose_reply: u32,
    /// The request is applied, the caller hears "unknown".
    pub unknown: u32,
    /// The request is not applied, the caller hears "unknown".
    pub unknown_not: u32,
    /// The request is applied seconds after its caller gave up.
    pub late: u32,
    /// A copy is applied some time after the request.
    pub duplicate: u32,
    /// It takes up to a second each way.
    pub slow: u32,
}

/// Which way a link is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Cut {
    /// Nothing goes through.
    Both,
    /// Requests are applied, answers and watches are not heard.
    Replies,
    /// Requests are lost, watches work.
    Requests,
}

/// What is wrong with a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Trouble {
    /// Calls go wrong now and then.
    Lossy(Rates),
    /// Cut.
    Cut(Cut),
    /// Every write takes so many milliseconds longer to be done.
    SlowWrites(u64),
    /// Open watches say nothing more, for ever.
    WatchStall,
    /// Watches hold back what they have until the window closes.
    WatchDelay,
    /// Open watches end with an error.
    WatchEnd,
    /// Watches leave out deletes.
    WatchDropsDeletes,
    /// Watches report a revision twice now and then.
    WatchRepeats,
    /// Watches leave out a whole revision now and then.
    WatchSkips,
    /// The store takes no puts and no grants, but deletes and keep-alives.
    NoSpace,
    /// Whoever campaigns hears that somebody else was faster.
    NeverElected,
    /// Whoever campaigns hears that the store is away.
    ElectionFails,
}

/// Trouble for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    /// First millisecond.
    pub from_ms: u64,
    /// First millisecond after.
    pub until_ms: u64,
    /// What.
    pub trouble: Trouble,
}

/// All trouble of one link.
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// In no order.
    pub windows: Vec<Window>,
}

impl Link {
    fn open(&self, now_ms: u64) -> impl Iterator<Item = &Trouble> {
        self.windows
            .iter()
            .filter(move |w| w.from_ms <= now_ms && now_ms < w.until_ms)
            .map(|w| &w.trouble)
    }

    /// The rates now.
    #[must_use]
    pub fn rates(&self, now_ms: u64) -> Rates {
        self.open(now_ms)
            .find_map(|trouble| match trouble {
                Trouble::Lossy(rates) => Some(*rates),
                _ => None,
            })
            .unwrap_or_default()
    }

    /// How much longer a write takes now.
    #[must_use]
    pub fn slow_writes_ms(&self, now_ms: u64) -> u64 {
        self.open(now_ms)
            .find_map(|trouble| match trouble {
                Trouble::SlowWrites(ms) => Some(*ms),
                _ => None,
            })
            .unwrap_or(0)
    }

    /// Whether this trouble is there now.
    #[must_use]
    pub fn has(&self, now_ms: u64, trouble: Trouble) -> bool {
        self.open(now_ms).any(|open| *open == trouble)
    }

    /// Whether requests reach the store now.
    #[must_use]
    pub fn sends(&self, now_ms: u64) -> bool {
        !self.has(now_ms, Trouble::Cut(Cut::Both)) && !self.has(now_ms, Trouble::Cut(Cut::Requests))
    }

    /// Whether answers come back now.
    #[must_use]
    pub fn hears(&self, now_ms: u64) -> bool {
        !self.has(now_ms, Trouble::Cut(Cut::Both)) && !self.has(now_ms, Trouble::Cut(Cut::Replies))
    }

    /// Whether this trouble began since.
    #[must_use]
    pub fn began(&self, since_ms: u64, now_ms: u64, trouble: Trouble) -> bool {
        self.windows
            .iter()
            .any(|w| w.trouble == trouble && since_ms < w.from_ms && w.from_ms <= now_ms)
    }

    /// When something begins or ends next.
    #[must_use]
    pub fn next_change(&self, now_ms: u64) -> Option<u64> {
        self.windows
            .iter()
            .flat_map(|w| [w.from_ms, w.until_ms])
            .filter(|at| *at > now_ms)
            .min()
    }
}
