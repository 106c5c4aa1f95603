//! How much of a listing is asked for at once.
//!
//! Few large pages are much cheaper than many small ones: for each page etcd counts all keys up to
//! the end of the span, so that small pages cost it the square of the span's length. But a page must
//! come in time on a slow line as well. So the first page is small, and the next ones are as large as
//! what came lets expect to be in time; when one fails all the same, the rest comes in small ones.

use crate::backend::{Entry, PageLimit};

/// No page is expected to be larger.
const MOST_BYTES: u64 = 4 << 20;
/// How large those behind the last page are nobody knows before: so many of the largest must not be more
/// than a store can answer.
const MOST_ENTRIES: u64 = 8_000;
/// By the last one's pace a page takes at most this part of the time that it has.
const PART_OF_TIMEOUT: u64 = 4;

/// The limits of a listing's pages, one after the other.
#[derive(Debug, Default)]
pub(super) struct Pages {
    limit: PageLimit,
    /// A large page did not come: this line is not what its pace promised.
    small_for_good: bool,
}

impl Pages {
    /// Of the page that is asked for next, by somebody who has use for so many entries.
    pub(super) fn limit(&self, enough: usize) -> PageLimit {
        PageLimit {
            entries: self.limit.entries.min(enough),
            ..self.limit
        }
    }

    /// It came, and took `took_ms` of `timeout_ms`.
    pub(super) fn came(&mut self, page: &[Entry], took_ms: u64, timeout_ms: u64) {
        let small = PageLimit::default();
        let size = |entry: &Entry| entry.key.len() + entry.value.len();
        let bytes = number(page.iter().map(size).sum());
        let an_entry = (bytes / number(page.len()).max(1)).max(1);
        let least = (number(small.bytes) / an_entry).clamp(1, number(small.entries));
        let in_time = bytes.saturating_mul(timeout_ms / PART_OF_TIMEOUT) / took_ms.max(1);
        let entries = match self.small_for_good {
            true => least,
            false => (in_time.min(MOST_BYTES) / an_entry).clamp(least, MOST_ENTRIES),
        };
        // Entries that are a little larger than the last ones are no reason to cut it short.
        let bytes = (entries * an_entry / 4 * 5).max(number(small.bytes));
        self.limit = PageLimit {
            entries: usize::try_from(entries).unwrap_or(usize::MAX),
            bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
        };
    }

    /// It did not come. Whether a smaller one can be asked for.
    pub(super) fn failed(&mut self) -> bool {
        let was_large = !self.small_for_good && self.limit != PageLimit::default();
        *self = Self {
            small_for_good: true,
            ..Self::default()
        };
        was_large
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Revision;

    fn entries(count: usize, bytes: usize) -> Vec<Entry> {
        let entry = Entry {
            key: Vec::new(),
            value: vec![0; bytes],
            created: Revision(1),
            modified: Revision(1),
            lease: None,
        };
        vec![entry; count]
    }

    fn next(page: &[Entry], took_ms: u64, timeout_ms: u64) -> PageLimit {
        let mut pages = Pages::default();
        pages.came(page, took_ms, timeout_ms);
        pages.limit(usize::MAX)
    }

    #[test]
    fn pages_grow_where_they_come_quickly() {
        let limit = next(&entries(1_000, 1_000), 10, 2_000);
        assert_eq!(limit.entries, (4 << 20) / 1_000);
        assert!(limit.bytes > 4 << 20);
        assert_eq!(next(&entries(1_000, 1), 0, 2_000).entries, 8_000);
    }

    // A page of 300 KB that took 400 ms of 2,000 must not be followed by one that takes five seconds.
    #[test]
    fn on_a_slow_line_they_stay_small() {
        let limit = next(&entries(1_000, 300), 400, 2_000);
        assert_eq!((limit.entries, limit.bytes), (1_250, 1 << 20));
        assert_eq!(next(&entries(1_000, 300), 1_900, 2_000).entries, 1_000);
        assert_eq!(next(&entries(1_000, 1_000), 200, 2_000).entries, 2_500);
    }

    #[test]
    fn of_large_entries_few_are_asked_for() {
        assert_eq!(next(&entries(2, 900_000), 100, 1_000).entries, 4);
        assert_eq!(next(&entries(1, 9_000_000), 900, 1_000).entries, 1);
        assert_eq!(next(&[], 1, 1_000).entries, 1_000);
    }

    #[test]
    fn after_a_large_page_that_failed_all_are_small() {
        let mut pages = Pages::default();
        assert!(!pages.failed(), "there is nothing smaller than the first");
        let mut pages = Pages::default();
        pages.came(&entries(1_000, 300), 10, 2_000);
        assert!(pages.limit(usize::MAX).entries > 1_000);
        assert_eq!(pages.limit(7).entries, 7);
        assert!(pages.failed());
        assert_eq!(pages.limit(usize::MAX), PageLimit::default());
        pages.came(&entries(1_000, 300), 10, 2_000);
        assert_eq!(pages.limit(usize::MAX).entries, 1_000);
        assert!(!pages.failed());
    }

    // A thousand of the largest entries are more than is taken at once, so that each page would be
    // asked for twice.
    #[test]
    fn small_pages_fit_what_comes_too() {
        let mut pages = Pages::default();
        pages.came(&entries(1_000, 300), 10, 2_000);
        assert!(pages.failed());
        pages.came(&entries(21, 49_000), 100, 2_000);
        assert_eq!(pages.limit(usize::MAX).entries, 21);
    }
}
