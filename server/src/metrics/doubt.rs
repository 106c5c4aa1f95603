//! Transactions whose outcome is not known, until the same one is made again and answered.
//!
//! Whoever does not hear what became of a transaction makes the very same one again. So a request is
//! known by what is in it, and one that comes again with a definite answer ends the doubt about it.
//! What can go wrong: nobody makes it again, because the node stops or somebody waits no longer; so a
//! doubt ends by itself in time, and there are never more than so many.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use punctual::backend::{BackendError, BackendResult, Op, Requirement, Span, Txn, Write};

/// A request that comes again does so within seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// More requests than a node has on their way, by far.
const MOST: usize = 1_000;

/// Its repeat was applied.
const APPLIED: &str = "applied";
/// Its repeat was refused.
const REFUSED: &str = "refused";
/// It was not repeated.
const GIVEN_UP: &str = "given_up";

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Labels {
    op: &'static str,
    resolution: &'static str,
}

/// The requests of a node whose outcome is not known.
#[derive(Default)]
pub(super) struct Doubts {
    open: Mutex<HashMap<u64, Doubt>>,
    /// How many: asked by every call, so it must cost nothing.
    many: AtomicUsize,
    pub(super) resolved: Family<Labels, Counter>,
}

struct Doubt {
    op: &'static str,
    since: Instant,
}

/// A request on its way. One whose caller gives it up is dropped, and in doubt by that.
pub(super) struct Sent<'a> {
    doubts: &'a Doubts,
    op: &'static str,
    guard: &'a [Requirement],
    txns: &'a [Txn],
    answered: bool,
}

impl Doubts {
    pub(super) fn sent<'a>(
        &'a self,
        op: &'static str,
        guard: &'a [Requirement],
        txns: &'a [Txn],
    ) -> Sent<'a> {
        Sent {
            doubts: self,
            op,
            guard,
            txns,
            answered: false,
        }
    }

    /// Ends those that have waited for too long.
    pub(super) fn expire(&self, now: Instant) {
        self.change(|open| {
            open.retain(|_, doubt| {
                let waits = now.duration_since(doubt.since) < PATIENCE;
                if !waits {
                    self.count(doubt.op, GIVEN_UP);
                }
                waits
            });
        });
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<u64, Doubt>)) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut open);
        self.many.store(open.len(), Ordering::Relaxed);
    }

    fn count(&self, op: &'static str, resolution: &'static str) {
        self.resolved
            .get_or_create(&Labels { op, resolution })
            .inc();
    }
}

impl Sent<'_> {
    /// Takes the answer; `applied` says whether something of it was.
    pub(super) fn answered<T>(
        mut self,
        answer: &BackendResult<T>,
        applied: impl FnOnce(&T) -> bool,
    ) {
        let resolution = match answer {
            // (It goes as one whose caller has given it up.)
            Err(BackendError::Unknown(_)) => return,
            Ok(outcome) if applied(outcome) => Some(APPLIED),
            Ok(_) | Err(BackendError::LeaseLost | BackendError::Rejected(_)) => Some(REFUSED),
            // This copy did nothing. What an earlier one did is as unknown as before.
            Err(
                BackendError::Unavailable(_)
                | BackendError::Compacted { .. }
                | BackendError::Broken(_),
            ) => None,
        };
        self.answered = true;
        if let Some(resolution) = resolution
            && self.doubts.many.load(Ordering::Relaxed) > 0
        {
            self.doubts.change(|open| {
                if let Some(doubt) = open.remove(&self.print()) {
                    self.doubts.count(doubt.op, resolution);
                }
            });
        }
    }

    /// Tells the request from all others.
    fn print(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.guard.iter().for_each(|r| required(r, &mut hasher));
        for txn in self.txns {
            (txn.require.len(), txn.ops.len()).hash(&mut hasher);
            txn.require.iter().for_each(|r| required(r, &mut hasher));
            for op in &txn.ops {
                match op {
                    Op::Write(one) => written(one, &mut hasher),
                    Op::Choose {
                        require,
                        then,
                        otherwise,
                    } => {
                        (require.len(), then.len(), otherwise.len()).hash(&mut hasher);
                        require.iter().for_each(|r| required(r, &mut hasher));
                        let both = then.iter().chain(otherwise);
                        both.for_each(|write| written(write, &mut hasher));
                    }
                }
            }
        }
        hasher.finish()
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let print = self.print();
        let doubt = Doubt {
            op: self.op,
            since: Instant::now(),
        };
        self.doubts.expire(doubt.since);
        self.doubts.change(|open| {
            if open.len() < MOST || open.contains_key(&print) {
                // (In doubt once, however many copies of it were lost.)
                open.insert(print, doubt);
            } else {
                self.doubts.count(doubt.op, GIVEN_UP);
            }
        });
    }
}

fn required(requirement: &Requirement, to: &mut impl Hasher) {
    match requirement {
        Requirement::Absent(key) => (0_u8, key).hash(to),
        Requirement::Created(key, revision) => (1_u8, key, revision).hash(to),
        Requirement::Modified(key, revision) => (2_u8, key, revision).hash(to),
        Requirement::Empty(Span { start, end }) => (3_u8, start, end).hash(to),
    }
}

fn written(write: &Write, to: &mut impl Hasher) {
    match write {
        Write::Put { key, value, lease } => (0_u8, key, value, lease).hash(to),
        Write::Delete { key } => (1_u8, key).hash(to),
    }
}

#[cfg(test)]
mod tests {
    use punctual::backend::Revision;

    use super::*;

    fn count(doubts: &Doubts, resolution: &'static str) -> u64 {
        let op = "commit";
        doubts
            .resolved
            .get_or_create(&Labels { op, resolution })
            .get()
    }

    fn txn(value: &str) -> [Txn; 1] {
        [Txn::new()
            .require(Requirement::Modified(b"k".to_vec(), Revision(2)))
            .put("k", value)]
    }

    fn answer(doubts: &Doubts, txns: &[Txn], answer: Result<bool, BackendError>) {
        let sent = doubts.sent("commit", &[], txns);
        sent.answered(&answer, |applied| *applied);
    }

    fn lost() -> Result<bool, BackendError> {
        Err(BackendError::Unknown("no answer".into()))
    }

    #[test]
    fn a_doubt_ends_with_the_definite_answer_to_the_same_request() {
        let doubts = Doubts::default();
        let (a, b, c) = (txn("a"), txn("b"), txn("c"));
        answer(&doubts, &a, Ok(true));
        answer(&doubts, &b, Ok(false));
        assert_eq!(
            (count(&doubts, APPLIED), count(&doubts, REFUSED)),
            (0, 0),
            "these were never in doubt"
        );
        // Lost twice, it is one doubt; another request does not end it, nor one that did nothing.
        answer(&doubts, &a, lost());
        drop(doubts.sent("commit", &[], &a));
        answer(&doubts, &b, lost());
        answer(&doubts, &c, Ok(true));
        answer(&doubts, &a, Err(BackendError::Unavailable("away".into())));
        assert_eq!((count(&doubts, APPLIED), count(&doubts, REFUSED)), (0, 0));
        answer(&doubts, &a, Ok(true));
        assert_eq!((count(&doubts, APPLIED), count(&doubts, REFUSED)), (1, 0));
        answer(&doubts, &b, Ok(false));
        answer(&doubts, &b, Ok(false));
        assert_eq!((count(&doubts, APPLIED), count(&doubts, REFUSED)), (1, 1));
        assert_eq!(count(&doubts, GIVEN_UP), 0);
    }

    #[test]
    fn what_is_not_made_again_is_given_up_in_time() {
        let doubts = Doubts::default();
        answer(&doubts, &txn("a"), lost());
        doubts.expire(Instant::now());
        assert_eq!(count(&doubts, GIVEN_UP), 0);
        doubts.expire(Instant::now() + PATIENCE);
        doubts.expire(Instant::now() + PATIENCE);
        assert_eq!(count(&doubts, GIVEN_UP), 1);
        answer(&doubts, &txn("a"), Ok(true));
        assert_eq!(count(&doubts, APPLIED), 0, "it is over");
    }

    #[test]
    fn there_are_never_more_doubts_than_so_many() {
        let doubts = Doubts::default();
        for i in 0..MOST + 3 {
            answer(&doubts, &txn(&i.to_string()), lost());
        }
        assert_eq!(count(&doubts, GIVEN_UP), 3);
        answer(&doubts, &txn("0"), Ok(true));
        assert_eq!(count(&doubts, APPLIED), 1);
    }

    /// Requests that differ anywhere are different ones.
    #[test]
    fn a_request_is_known_by_all_that_is_in_it() {
        let doubts = Doubts::default();
        let key = || b"k".to_vec();
        let requirement = [
            Requirement::Absent(key()),
            Requirement::Created(key(), Revision(1)),
            Requirement::Modified(key(), Revision(1)),
            Requirement::Modified(key(), Revision(2)),
            Requirement::Empty(Span::key(key())),
        ];
        let mut all: Vec<(Vec<Requirement>, Vec<Txn>)> = Vec::new();
        for r in requirement {
            all.push((vec![r.clone()], vec![Txn::new().put("k", "v")]));
            all.push((vec![], vec![Txn::new().require(r).put("k", "v")]));
        }
        all.push((vec![], vec![Txn::new().put("k", "w")]));
        all.push((vec![], vec![Txn::new().delete("k")]));
        let two = |a: Txn, b: Txn| (vec![], vec![a, b]);
        all.push(two(Txn::new().put("k", "v"), Txn::new()));
        all.push(two(Txn::new(), Txn::new().put("k", "v")));
        for (then, otherwise) in [
            (vec![Write::delete("k")], vec![]),
            (vec![], vec![Write::delete("k")]),
        ] {
            let op = Op::Choose {
                require: vec![],
                then,
                otherwise,
            };
            all.push((vec![], vec![Txn::new().op(op)]));
        }
        let print = |(guard, txns): &(Vec<Requirement>, Vec<Txn>)| {
            let mut sent = doubts.sent("commit", guard, txns);
            sent.answered = true;
            sent.print()
        };
        let prints: Vec<u64> = all.iter().map(print).collect();
        assert_eq!(prints, all.iter().map(print).collect::<Vec<_>>());
        let different: std::collections::HashSet<_> = prints.iter().collect();
        assert_eq!(different.len(), all.len());
    }
}
