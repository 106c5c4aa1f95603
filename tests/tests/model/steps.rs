//! Random steps, in words that make sense in any state: "the third lease", "two revisions back".
//! They are turned into requests only when the state is known, so that many of them hit.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use punctual::backend::{
    Key, LeaseId, Op, PageLimit, Requirement, Revision, Span, Txn, Write, limits,
};
use punctual::model::{Model, Operation};

/// Few keys, so that steps meet.
const KEYS: [&str; 10] = [
    "a", "b", "c", "d/1", "d/2", "d/3", "e", "e/1", "f", "\u{ff}",
];

/// Something that happens.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Range {
        span: usize,
        limit: PageLimit,
        back: Option<i64>,
    },
    Commit {
        txn: TxnStep,
        tidy: bool,
    },
    Batch {
        guard: Vec<Need>,
        txns: Vec<TxnStep>,
        tidy: bool,
    },
    Grant {
        ttl_ms: u64,
    },
    KeepAlive(usize),
    Revoke(usize),
    Advance {
        by_ms: u64,
    },
    Compact {
        back: i64,
    },
    Watch {
        span: usize,
        back: i64,
    },
    ReadWatch(usize),
    DropWatch(usize),
    Reopen,
}

#[derive(Clone, Debug)]
pub(crate) struct TxnStep {
    require: Vec<Need>,
    ops: Vec<OpStep>,
}

#[derive(Clone, Debug)]
pub(crate) enum Need {
    Absent(usize),
    /// As the key stands now, or so many revisions off.
    Created(usize, u64),
    Modified(usize, u64),
    Empty(usize),
}

#[derive(Clone, Debug)]
enum OpStep {
    Write(WriteStep),
    Choose(Vec<Need>, Vec<WriteStep>, Vec<WriteStep>),
}

#[derive(Clone, Debug)]
enum WriteStep {
    Put(usize, u8, Option<usize>),
    Delete(usize),
}

/// Up to `length` steps; with `reopen`, the store is also closed and opened again.
pub(crate) fn sequence(length: usize, reopen: bool) -> impl Strategy<Value = Vec<Step>> {
    vec(step(reopen), 1..length)
}

/// One of them.
pub(crate) fn step(reopen: bool) -> impl Strategy<Value = Step> {
    let limit = prop_oneof![
        3 => Just(PageLimit::default()),
        1 => (0..4usize, 0..12usize).prop_map(|(entries, bytes)| PageLimit { entries, bytes }),
    ];
    prop_oneof![
        4 => (0..8usize, limit, option::of(-1..6i64))
            .prop_map(|(span, limit, back)| Step::Range { span, limit, back }),
        10 => (txn(4), prop::bool::weighted(0.9)).prop_map(|(txn, tidy)| Step::Commit { txn, tidy }),
        6 => (vec(need(), 0..2), vec(txn(2), 0..4), prop::bool::weighted(0.9))
            .prop_map(|(guard, txns, tidy)| Step::Batch { guard, txns, tidy }),
        4 => (0..4_000u64).prop_map(|ttl_ms| Step::Grant { ttl_ms }),
        2 => (0..4usize).prop_map(Step::KeepAlive),
        1 => (0..4usize).prop_map(Step::Revoke),
        4 => (0..4_000u64).prop_map(|by_ms| Step::Advance { by_ms }),
        1 => (-1..5i64).prop_map(|back| Step::Compact { back }),
        3 => (0..8usize, -2..5i64).prop_map(|(span, back)| Step::Watch { span, back }),
        5 => (0..3usize).prop_map(Step::ReadWatch),
        1 => (0..4usize).prop_map(Step::DropWatch),
        1 => Just(if reopen { Step::Reopen } else { Step::Advance { by_ms: 1 } }),
    ]
}

fn txn(ops: usize) -> impl Strategy<Value = TxnStep> {
    let op = prop_oneof![
        4 => write().prop_map(OpStep::Write),
        1 => (vec(need(), 0..2), vec(write(), 0..3), vec(write(), 0..3))
            .prop_map(|(need, then, otherwise)| OpStep::Choose(need, then, otherwise)),
    ];
    (vec(need(), 0..2), vec(op, 0..=ops)).prop_map(|(require, ops)| TxnStep { require, ops })
}

fn need() -> impl Strategy<Value = Need> {
    let off = || prop_oneof![4 => Just(0u64), 1 => 0..5u64];
    prop_oneof![
        (0..KEYS.len()).prop_map(Need::Absent),
        (0..KEYS.len(), off()).prop_map(|(key, off)| Need::Created(key, off)),
        (0..KEYS.len(), off()).prop_map(|(key, off)| Need::Modified(key, off)),
        (0..8usize).prop_map(Need::Empty),
    ]
}

fn write() -> impl Strategy<Value = WriteStep> {
    let lease = prop_oneof![3 => Just(None), 2 => (0..3usize).prop_map(Some)];
    prop_oneof![
        3 => (0..KEYS.len(), any::<u8>(), lease)
            .prop_map(|(key, value, lease)| WriteStep::Put(key, value, lease)),
        1 => (0..KEYS.len()).prop_map(WriteStep::Delete),
    ]
}

/// A few spans: all, prefixes, single keys, open ends, and one that is empty.
pub(crate) fn span(index: usize) -> Span {
    match index {
        0 => Span::prefix(""),
        1 => Span::prefix("d/"),
        2 => Span::prefix("e"),
        3 => Span::key("a"),
        4 => Span::key("e"),
        5 => Span {
            start: b"c".to_vec(),
            end: None,
        },
        6 => Span {
            start: b"c".to_vec(),
            end: Some(b"a".to_vec()),
        },
        _ => Span::prefix("d/2"),
    }
}

/// What the steps mean in a state.
pub(crate) struct Sense<'a> {
    pub(crate) model: &'a Model,
    pub(crate) leases: &'a [LeaseId],
    pub(crate) now_ms: u64,
}

impl Sense<'_> {
    /// The request that a step makes, if it is one.
    pub(crate) fn operation(&self, step: &Step) -> Option<Operation> {
        Some(match step {
            Step::Range {
                span: at,
                limit,
                back,
            } => Operation::Range {
                span: span(*at),
                limit: *limit,
                at: back.map(|back| self.back(back)),
            },
            Step::Commit { txn, tidy } => {
                let mut tidy = tidy.then(BTreeSet::new);
                Operation::Commit(self.txn(txn, true, &mut tidy))
            }
            Step::Batch { guard, txns, tidy } => {
                let leases = !tidy;
                let mut tidy = tidy.then(BTreeSet::new);
                let txns: Vec<Txn> = txns
                    .iter()
                    .map(|txn| self.txn(txn, leases, &mut tidy))
                    .collect();
                Operation::CommitBatch {
                    guard: self.needs(guard),
                    txns: if tidy.is_some() {
                        independent(txns)
                    } else {
                        txns
                    },
                }
            }
            Step::Grant { ttl_ms } => Operation::Grant { ttl_ms: *ttl_ms },
            Step::KeepAlive(index) => Operation::KeepAlive(self.lease(*index)),
            Step::Revoke(index) => Operation::Revoke(self.lease(*index)),
            Step::Advance { by_ms } => Operation::Advance {
                now_ms: self.now_ms + by_ms,
            },
            Step::Compact { back } => Operation::Compact {
                revision: self.back(*back),
            },
            Step::Watch { .. } | Step::ReadWatch(_) | Step::DropWatch(_) | Step::Reopen => {
                return None;
            }
        })
    }

    /// So many revisions back; in the future when negative.
    pub(crate) fn back(&self, back: i64) -> Revision {
        Revision(self.model.revision().0.saturating_add_signed(-back))
    }

    /// One of the last leases, or one that never was.
    fn lease(&self, index: usize) -> LeaseId {
        match self.leases.iter().rev().nth(index) {
            Some(lease) => *lease,
            None => LeaseId(1_000_000),
        }
    }

    fn txn(&self, step: &TxnStep, leases: bool, tidy: &mut Option<BTreeSet<Key>>) -> Txn {
        let mut txn = Txn::new();
        txn.require = self.needs(&step.require);
        for op in &step.ops {
            match op {
                OpStep::Write(write) => {
                    txn.ops
                        .extend(self.write(write, leases, tidy).map(Op::Write));
                }
                OpStep::Choose(require, then, otherwise) => {
                    let mut writes = |steps: &[WriteStep]| {
                        let writes = steps.iter();
                        writes.filter_map(|w| self.write(w, leases, tidy)).collect()
                    };
                    txn.ops.push(Op::Choose {
                        require: self.needs(require),
                        then: writes(then),
                        otherwise: writes(otherwise),
                    });
                }
            }
        }
        txn
    }

    /// A tidy request writes no key twice.
    fn write(
        &self,
        step: &WriteStep,
        leases: bool,
        tidy: &mut Option<BTreeSet<Key>>,
    ) -> Option<Write> {
        let write = match step {
            WriteStep::Put(key, value, lease) => Write::Put {
                key: KEYS[*key].into(),
                value: vec![*value; usize::from(*value % 5)],
                lease: lease
                    .filter(|_| leases && !self.leases.is_empty())
                    .map(|index| self.lease(index % self.leases.len())),
            },
            WriteStep::Delete(key) => Write::delete(KEYS[*key]),
        };
        let fresh = match tidy {
            Some(written) => written.insert(write.key().to_vec()),
            None => true,
        };
        fresh.then_some(write)
    }

    fn needs(&self, needs: &[Need]) -> Vec<Requirement> {
        let stands = |key: usize| self.model.entries(&Span::key(KEYS[key])).next();
        let off = |revision: Option<Revision>, off: u64| {
            Revision(
                revision
                    .unwrap_or(self.model.revision())
                    .0
                    .saturating_sub(off),
            )
        };
        let requirement = |need: &Need| match *need {
            Need::Absent(key) => Requirement::Absent(KEYS[key].into()),
            Need::Created(key, by) => {
                Requirement::Created(KEYS[key].into(), off(stands(key).map(|e| e.created), by))
            }
            Need::Modified(key, by) => {
                Requirement::Modified(KEYS[key].into(), off(stands(key).map(|e| e.modified), by))
            }
            Need::Empty(index) => Requirement::Empty(span(index)),
        };
        needs.iter().map(requirement).collect()
    }
}

/// Leaves out the transactions that depend on those before them.
fn independent(txns: Vec<Txn>) -> Vec<Txn> {
    let mut kept = Vec::new();
    for txn in txns {
        kept.push(txn);
        if limits::check_batch(&[], &kept).is_err() {
            kept.pop();
        }
    }
    kept
}
