//! Which lease of the model is which of the store, and since when each may have ended.

use std::time::{Duration, Instant};

use punctual::backend::{
    BackendResult, BatchOutcome, Entry, Lease, LeaseId, Op, Page, Txn, TxnOutcome, Write, limits,
};
use punctual::model::{Answer, Operation};

/// A lease that was granted.
#[derive(Clone, Copy, Debug)]
struct Granted {
    /// Its number in the store.
    real: LeaseId,
    ttl: Duration,
    /// It cannot have ended before.
    lives_until: Instant,
}

/// The leases that were granted, in the order of the answers: so the model numbers them.
#[derive(Debug, Default)]
pub(crate) struct Leases(Vec<Granted>);

impl Leases {
    /// The leases, as the model numbers them.
    pub(crate) fn all(&self) -> Vec<LeaseId> {
        (1..=self.0.len() as u64).map(LeaseId).collect()
    }

    /// A request as the store knows its leases.
    pub(crate) fn for_the_store(&self, operation: &Operation) -> Operation {
        let real = |lease: LeaseId| match self.granted(lease) {
            Some(granted) => granted.real,
            None => lease,
        };
        let mut operation = operation.clone();
        match &mut operation {
            Operation::KeepAlive(lease) | Operation::Revoke(lease) => *lease = real(*lease),
            _ => each_write(&mut operation, |write| {
                if let Write::Put { lease, .. } = write {
                    *lease = lease.map(real);
                }
            }),
        }
        operation
    }

    /// A lease was granted to a request of `asked_ms`. Answers whether it may be so.
    pub(crate) fn grant(&mut self, asked_ms: u64, lease: Lease, begun: Instant) -> bool {
        let least_ms = asked_ms.max(limits::MIN_LEASE_TTL_MS);
        let known = self.0.iter().any(|granted| granted.real == lease.id);
        // A store may count in whole seconds.
        if known || lease.ttl_ms < least_ms || lease.ttl_ms >= least_ms + 1_000 {
            return false;
        }
        let ttl = Duration::from_millis(lease.ttl_ms);
        self.0.push(Granted {
            real: lease.id,
            ttl,
            lives_until: begun + ttl,
        });
        true
    }

    /// Whether its time may be over.
    pub(crate) fn may_have_ended(&self, lease: LeaseId) -> bool {
        let now = Instant::now();
        self.granted(lease)
            .is_some_and(|granted| granted.lives_until <= now)
    }

    pub(crate) fn prolonged(&mut self, lease: LeaseId, begun: Instant) {
        let index = usize::try_from(lease.0.wrapping_sub(1)).unwrap_or(usize::MAX);
        if let Some(granted) = self.0.get_mut(index) {
            granted.lives_until = granted.lives_until.max(begun + granted.ttl);
        }
    }

    fn granted(&self, lease: LeaseId) -> Option<&Granted> {
        let index = usize::try_from(lease.0).ok()?.checked_sub(1)?;
        self.0.get(index)
    }

    pub(crate) fn translate(&self, entry: &mut Entry) {
        entry.lease = entry.lease.map(|lease| self.model_lease(lease));
    }

    fn model_lease(&self, real: LeaseId) -> LeaseId {
        let index = self.0.iter().position(|granted| granted.real == real);
        // One that was never told to anybody equals none of ours.
        index.map_or(LeaseId(u64::MAX), |index| LeaseId(index as u64 + 1))
    }

    /// An answer with the leases as the model numbers them.
    pub(crate) fn for_the_model(&self, answer: BackendResult<Answer>) -> BackendResult<Answer> {
        let mut answer = answer?;
        let translate_all = |seen: &mut Vec<Option<Entry>>| {
            for entry in seen.iter_mut().flatten() {
                self.translate(entry);
            }
        };
        match &mut answer {
            Answer::Page(page) => page.entries.iter_mut().for_each(|e| self.translate(e)),
            Answer::Txn(TxnOutcome::Conflict { seen: entries })
            | Answer::Batch(BatchOutcome::GuardFailed { seen: entries }) => translate_all(entries),
            Answer::Batch(BatchOutcome::Judged { outcomes, .. }) => {
                for outcome in outcomes {
                    if let TxnOutcome::Conflict { seen: entries } = outcome {
                        translate_all(entries);
                    }
                }
            }
            Answer::Lease(lease) => lease.id = self.model_lease(lease.id),
            Answer::Txn(TxnOutcome::Applied { .. }) | Answer::Done => {}
        }
        Ok(answer)
    }

    /// Pages with the leases as the model numbers them.
    pub(crate) fn pages_for_the_model(&self, mut pages: Vec<Page>) -> Vec<Page> {
        for page in &mut pages {
            page.entries.iter_mut().for_each(|e| self.translate(e));
        }
        pages
    }
}

/// The leases that an operation names.
pub(crate) fn leases_of(operation: &Operation) -> Vec<LeaseId> {
    match operation {
        Operation::KeepAlive(lease) | Operation::Revoke(lease) => vec![*lease],
        _ => {
            let mut leases = Vec::new();
            let mut copy = operation.clone();
            each_write(&mut copy, |write| {
                if let Write::Put { lease, .. } = write {
                    leases.extend(*lease);
                }
            });
            leases
        }
    }
}

/// Changes the writes of an operation.
pub(crate) fn each_write(operation: &mut Operation, mut change: impl FnMut(&mut Write)) {
    let txns: &mut [Txn] = match operation {
        Operation::Commit(txn) => std::slice::from_mut(txn),
        Operation::CommitBatch { txns, .. } => txns,
        _ => return,
    };
    for op in txns.iter_mut().flat_map(|txn| &mut txn.ops) {
        match op {
            Op::Write(write) => change(write),
            Op::Choose {
                then, otherwise, ..
            } => then.iter_mut().chain(otherwise).for_each(&mut change),
        }
    }
}
