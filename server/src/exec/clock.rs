//! The clock on which trust is counted.

use rustix::time::{ClockId, clock_gettime};

/// Milliseconds on a clock that all processes of the machine share, that never goes back and,
/// where the system has such a clock, also counts the time in which the machine slept: a store
/// goes on counting a lease while we sleep.
pub(crate) fn now_ms() -> u64 {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    let now = clock_gettime(clock);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let millis = u64::try_from(now.tv_nsec / 1_000_000).unwrap_or(0);
    seconds * 1_000 + millis
}
