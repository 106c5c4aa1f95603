//! Group commit: guarded transactions of many tasks, in as few requests as they fit into.
//!
//! What can go wrong: an answer is lost, and the next try is put together anew, so that half of it
//! is a repetition and half is not. So a group is resubmitted *as it was* until its answer is
//! definite. Every transaction in it consumes a guard of its own, so each applies at most once and
//! conflicts alone; being sent together changes nothing but the number of requests.

use std::collections::{BTreeSet, VecDeque};

use futures_util::StreamExt;
use futures_util::future::Either;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{mpsc, oneshot};

use crate::backend::limits::{self, MAX_REQUEST_BYTES, MAX_WIDTH};
use crate::backend::{
    BackendError, BackendResult, BatchOutcome, Key, Requirement, Span, Txn, TxnOutcome, Write,
};
use crate::env::{TaskHandle, race};

use super::retry::Store;

/// Requests on their way at once: one is being answered while the next one fills up.
const IN_FLIGHT: usize = 2;
/// So many transactions may wait to be looked at before their tasks wait too.
const INBOX: usize = 1_024;

/// A door through which many tasks commit together.
#[derive(Debug)]
pub struct Committer {
    inbox: mpsc::Sender<Pending>,
    _task: TaskHandle,
}

#[derive(Debug)]
struct Pending {
    txn: Txn,
    answer: oneshot::Sender<BackendResult<TxnOutcome>>,
}

impl Committer {
    /// A door to `store`, with a task of its own behind it.
    #[must_use]
    pub fn new(store: &Store) -> Self {
        let (inbox, requests) = mpsc::channel(INBOX);
        let task = store
            .env()
            .spawn("committer", Box::pin(serve(store.clone(), requests)));
        Self { inbox, _task: task }
    }

    /// The same transaction until the answer is definite, for ever if need be. The transaction
    /// must consume its guard. Once this was called, the transaction is settled even when the
    /// caller no longer waits.
    ///
    /// # Errors
    /// Only kinds that repeating cannot help.
    pub async fn settle(&self, txn: Txn) -> BackendResult<TxnOutcome> {
        let gone = || BackendError::Unknown("the committer has ended".into());
        let (answer, answered) = oneshot::channel();
        let pending = Pending { txn, answer };
        self.inbox.send(pending).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

async fn serve(store: Store, mut inbox: mpsc::Receiver<Pending>) {
    let mut flying = FuturesUnordered::new();
    let mut waiting = VecDeque::new();
    loop {
        while waiting.len() < INBOX
            && let Ok(pending) = inbox.try_recv()
        {
            waiting.push_back(pending);
        }
        // A second request goes when it is half full: a small one is no faster than to wait for the
        // first, and costs the store as much as a large one.
        while flying.is_empty() && !waiting.is_empty()
            || flying.len() < IN_FLIGHT && waiting.len() >= MAX_WIDTH / 2
        {
            flying.push(send(&store, take_group(&mut waiting)));
        }
        if flying.len() == IN_FLIGHT {
            let _ = flying.next().await;
            continue;
        }
        let answered = async {
            match flying.next().await {
                Some(()) => (),
                None => std::future::pending().await,
            }
        };
        match race(inbox.recv(), answered).await {
            Either::Left(Some(pending)) => waiting.push_back(pending),
            Either::Left(None) => return,
            Either::Right(()) => {}
        }
    }
}

async fn send(store: &Store, group: Vec<Pending>) {
    let (txns, answers): (Vec<Txn>, Vec<_>) = group
        .into_iter()
        .map(|pending| (pending.txn, pending.answer))
        .unzip();
    let outcomes = match &txns[..] {
        [one] => vec![store.settle(one).await],
        several => match store.settle_batch(&[], several).await {
            Ok(BatchOutcome::Judged { outcomes, .. }) => outcomes.into_iter().map(Ok).collect(),
            // One of them is no good, or an empty guard failed, which cannot be: apart, each gets
            // the answer that it deserves. None was applied.
            Ok(BatchOutcome::GuardFailed { .. }) | Err(BackendError::Rejected(_)) => {
                let mut outcomes = Vec::new();
                for txn in several {
                    outcomes.push(store.settle(txn).await);
                }
                outcomes
            }
            Err(error) => several.iter().map(|_| Err(error.clone())).collect(),
        },
    };
    for (answer, outcome) in answers.into_iter().zip(outcomes) {
        // Whoever asked may have gone; the transaction was settled all the same.
        let _ = answer.send(outcome);
    }
}

/// Takes the oldest, and all behind it that can share its request, in their order.
fn take_group(waiting: &mut VecDeque<Pending>) -> Vec<Pending> {
    let mut group = Group::default();
    let mut taken = Vec::new();
    let mut left = VecDeque::new();
    while !group.is_full()
        && let Some(pending) = waiting.pop_front()
    {
        if group.admit(&pending.txn) {
            taken.push(pending);
        } else {
            left.push_back(pending);
        }
    }
    left.append(waiting);
    *waiting = left;
    taken
}

/// What a request holds so far.
#[derive(Debug, Default)]
struct Group {
    count: usize,
    widest: usize,
    bytes: usize,
    written: BTreeSet<Key>,
    required: BTreeSet<Key>,
    required_empty: Vec<Span>,
    alone: bool,
}

impl Group {
    fn is_full(&self) -> bool {
        self.alone || self.count + self.widest >= MAX_WIDTH
    }

    /// Takes the transaction in, unless the request would become too large, or dependent on the
    /// order of its parts. The first one is always taken: if it is no good, the store says so.
    fn admit(&mut self, txn: &Txn) -> bool {
        let bytes = self.bytes + limits::txn_bytes(txn);
        let widest = self.widest.max(limits::txn_width(txn));
        let txns = std::slice::from_ref(txn);
        let writes: BTreeSet<&[u8]> = limits::writes_of(txns).map(Write::key).collect();
        let leased =
            limits::writes_of(txns).any(|w| matches!(w, Write::Put { lease: Some(_), .. }));
        let fits = !self.alone
            && !leased
            && self.count + 1 + widest <= MAX_WIDTH
            && bytes <= MAX_REQUEST_BYTES
            && !writes.iter().any(|key| self.minds(key))
            && !limits::requirements_of(txns).any(|requirement| match requirement {
                Requirement::Empty(span) => {
                    let mut from = self.written.range(span.start.clone()..);
                    from.next().is_some_and(|key| span.contains(key))
                }
                Requirement::Absent(key)
                | Requirement::Created(key, _)
                | Requirement::Modified(key, _) => self.written.contains(key),
            });
        if !fits && self.count > 0 {
            return false;
        }
        self.alone = !fits;
        self.count += 1;
        self.widest = widest;
        self.bytes = bytes;
        self.written.extend(writes.into_iter().map(<[u8]>::to_vec));
        for requirement in limits::requirements_of(txns) {
            match requirement {
                Requirement::Empty(span) => self.required_empty.push(span.clone()),
                Requirement::Absent(key)
                | Requirement::Created(key, _)
                | Requirement::Modified(key, _) => {
                    self.required.insert(key.clone());
                }
            }
        }
        true
    }

    /// Whether a write of this key would be the second one, or change what another part looks at.
    fn minds(&self, key: &[u8]) -> bool {
        self.written.contains(key)
            || self.required.contains(key)
            || self.required_empty.iter().any(|span| span.contains(key))
    }
}

#[cfg(test)]
#[path = "committer_tests.rs"]
mod tests;
