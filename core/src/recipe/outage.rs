//! A store that is away, told in a few lines: one when it goes, one a minute, one when it is back.
//!
//! Every loop of a node finds out by itself that the store does not answer, several times a second. So
//! each says what failed at debug level, and here, where all calls pass, it is said what that means.
//!
//! Calls that only read and calls that write are watched apart: a store that is full answers the ones
//! and refuses the others, and a reader's success must not hide that.

use std::sync::{Mutex, PoisonError};

use crate::backend::BackendError;

/// A hiccup that is over sooner is not worth a line.
const HICCUP_MS: u64 = 1_000;
/// While it lasts, a line so often.
const EVERY_MS: u64 = 60_000;
/// Calls of one kind that have not failed for so long are not made at the moment: then the other
/// kind's success counts for both.
const UNUSED_MS: u64 = 5_000;

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It only reads, or prolongs or ends a lease: a store that is full does these too.
    Read,
    /// It writes.
    Write,
}

/// What is to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The store has gone.
    Away,
    /// It is still away, for so long.
    Still {
        /// Milliseconds.
        ms: u64,
    },
    /// It is back, after so long.
    Back {
        /// Milliseconds.
        ms: u64,
    },
}

/// First and last failure since the last success.
type Failing = Option<(u64, u64)>;

/// What is known of the calls to a store. Monotonic milliseconds come in as `at_ms`.
#[derive(Debug, Default)]
pub(super) struct Outage {
    reads: Failing,
    writes: Failing,
    /// Since when the store is away, and when that was said last, once it was.
    said: Option<(u64, u64)>,
}

impl Outage {
    /// A call was answered.
    pub(super) fn answered(&mut self, kind: Kind, at_ms: u64) -> Option<Word> {
        let unused = |failing: Failing| {
            failing.is_none_or(|(_, last_ms)| at_ms.saturating_sub(last_ms) >= UNUSED_MS)
        };
        if kind == Kind::Read || unused(self.reads) {
            self.reads = None;
        }
        if kind == Kind::Write || unused(self.writes) {
            self.writes = None;
        }
        if self.reads.is_some() || self.writes.is_some() {
            return None;
        }
        let (since_ms, _) = self.said.take()?;
        Some(Word::Back {
            ms: at_ms.saturating_sub(since_ms),
        })
    }

    /// A call was not answered, or only that it cannot be done now.
    pub(super) fn failed(&mut self, kind: Kind, at_ms: u64) -> Option<Word> {
        let failing = match kind {
            Kind::Read => &mut self.reads,
            Kind::Write => &mut self.writes,
        };
        let first_ms = failing.map_or(at_ms, |(first_ms, _)| first_ms);
        *failing = Some((first_ms, at_ms));
        match &mut self.said {
            None if at_ms.saturating_sub(first_ms) >= HICCUP_MS => {
                self.said = Some((first_ms, at_ms));
                Some(Word::Away)
            }
            Some((since_ms, last_ms)) if at_ms.saturating_sub(*last_ms) >= EVERY_MS => {
                *last_ms = at_ms;
                Some(Word::Still {
                    ms: at_ms.saturating_sub(*since_ms),
                })
            }
            _ => None,
        }
    }
}

/// Watches a call's end, and says what is to be said.
pub(super) fn note<T>(
    outage: &Mutex<Outage>,
    kind: Kind,
    at_ms: u64,
    answer: &Result<T, BackendError>,
) {
    let error = answer.as_ref().err().filter(|error| error.is_transient());
    let mut outage = outage.lock().unwrap_or_else(PoisonError::into_inner);
    let word = match error {
        Some(_) => outage.failed(kind, at_ms),
        None => outage.answered(kind, at_ms),
    };
    drop(outage);
    let error = error.map(ToString::to_string).unwrap_or_default();
    match word {
        None => {}
        Some(Word::Away) => tracing::warn!(
            error,
            "the store does not answer; waiting for it: until then nothing is decided or started \
             here, what runs goes on, and its results are kept on this node's disk"
        ),
        Some(Word::Still { ms }) => {
            tracing::warn!(error, for_s = ms / 1_000, "the store is still away");
        }
        Some(Word::Back { ms }) => tracing::info!(
            away_ms = ms,
            "the store is back; what fell due meanwhile is decided now"
        ),
    }
}

/// Says that something failed and is tried again. That the store is away is said by the store's own
/// watch, once and not ten times a second.
pub(crate) fn again(error: &BackendError, what: &'static str) {
    if error.is_transient() {
        tracing::debug!(%error, "{what}; trying again");
    } else {
        tracing::warn!(%error, "{what}; trying again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_when_it_begins_once_a_minute_and_when_it_ends() {
        let mut outage = Outage::default();
        let mut told = Vec::new();
        for at_ms in (1_000..200_000).step_by(100) {
            let kind = if at_ms % 200 == 0 {
                Kind::Read
            } else {
                Kind::Write
            };
            told.extend(outage.failed(kind, at_ms));
        }
        assert_eq!(
            outage.answered(Kind::Read, 200_000),
            None,
            "writes are open"
        );
        told.extend(outage.answered(Kind::Write, 200_100));
        assert_eq!(outage.answered(Kind::Write, 200_200), None);
        let still = |ms| Word::Still { ms };
        let back = Word::Back { ms: 199_100 };
        let expected = [
            Word::Away,
            still(61_000),
            still(121_000),
            still(181_000),
            back,
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn a_hiccup_is_not_worth_a_word() {
        let mut outage = Outage::default();
        for at_ms in [0, 500, 900] {
            assert_eq!(outage.failed(Kind::Read, at_ms), None);
        }
        assert_eq!(outage.answered(Kind::Read, 950), None);
        assert_eq!(outage.failed(Kind::Read, 1_500), None, "another one");
    }

    #[test]
    fn a_store_that_is_read_and_takes_no_writes_is_away() {
        let mut outage = Outage::default();
        let mut told = Vec::new();
        for at_ms in (0..10_000).step_by(500) {
            told.extend(outage.failed(Kind::Write, at_ms));
            told.extend(outage.answered(Kind::Read, at_ms + 100));
        }
        assert_eq!(told, [Word::Away]);
        // Nothing is written any more, and what is read comes.
        let back = Some(Word::Back { ms: 20_000 });
        assert_eq!(outage.answered(Kind::Read, 20_000), back);
    }
}
