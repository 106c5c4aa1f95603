//! The contract's words in etcd's, and back.
//!
//! # Where the two languages differ
//! * etcd has no empty key, and reads an empty range end as "this one key" and `\0` as "to the end
//!   of the keyspace". A span that could be mistaken for one of these, or that no key can belong
//!   to, never reaches it ([`Bounds::of`]).
//! * Lease 0 is etcd's word for "no lease". Ours named 0 is one that was never granted.
//! * Revision 0 is its word for "now"; callers of this module keep it away.
//! * The header of a nested answer carries no revision; the outer one counts for all.
//! * A transaction that neither requires nor does anything would be answered from whatever the
//!   member has by now. One read inside makes it linearizable ([`barrier`]).

use etcd_client::{
    Compare, CompareOp, DeleteOptions, GetOptions, GetResponse, KeyValue, PutOptions, Txn as Raw,
    TxnOp, TxnOpResponse, TxnResponse,
};
use punctual::backend::{
    BackendError, BackendResult, BatchOutcome, Entry, LeaseId, Op, Requirement, Revision, Seen,
    Span, Txn, TxnOutcome, Write,
};

/// The smallest key there can be.
const FIRST: &[u8] = b"\0";
/// A lease that etcd never gives out: it numbers them with positive integers.
const NEVER_GRANTED: i64 = -1;

/// A span as etcd takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) key: Vec<u8>,
    /// Empty for the one key.
    pub(crate) end: Vec<u8>,
}

impl Bounds {
    /// `None` for a span that no key belongs to.
    pub(crate) fn of(span: &Span) -> Option<Self> {
        let key = span.start.as_slice().max(FIRST);
        let end = match &span.end {
            None => FIRST,
            Some(end) if end.as_slice() <= key => return None,
            // The one key that lies before its own successor.
            Some(end) if end.split_last() == Some((&0, key)) => &[],
            Some(end) => end,
        };
        Some(Self {
            key: key.to_vec(),
            end: end.to_vec(),
        })
    }
}

pub(crate) fn number(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

pub(crate) fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or(0))
}

pub(crate) fn lease_number(lease: LeaseId) -> i64 {
    match i64::try_from(lease.0) {
        Ok(0) | Err(_) => NEVER_GRANTED,
        Ok(number) => number,
    }
}

fn lease(number: i64) -> Option<LeaseId> {
    u64::try_from(number)
        .ok()
        .filter(|number| *number > 0)
        .map(LeaseId)
}

pub(crate) fn entry(pair: KeyValue) -> Entry {
    let created = revision(pair.create_revision());
    let modified = revision(pair.mod_revision());
    let lease = lease(pair.lease());
    let (key, value) = pair.into_key_value();
    Entry {
        key,
        value,
        created,
        modified,
        lease,
    }
}

/// A whole transaction.
pub(crate) fn txn(txn: &Txn) -> Raw {
    let mut then = ops(txn);
    if then.is_empty() && txn.require.is_empty() {
        then.push(barrier());
    }
    Raw::new()
        .when(compares(&txn.require))
        .and_then(then)
        .or_else(reads(&txn.require))
}

/// A batch: the guard around one nested transaction each.
pub(crate) fn batch(guard: &[Requirement], txns: &[Txn]) -> Raw {
    let mut then: Vec<TxnOp> = txns.iter().map(|inner| TxnOp::txn(nested(inner))).collect();
    if then.is_empty() && guard.is_empty() {
        then.push(barrier());
    }
    Raw::new()
        .when(compares(guard))
        .and_then(then)
        .or_else(reads(guard))
}

fn nested(txn: &Txn) -> Raw {
    Raw::new()
        .when(compares(&txn.require))
        .and_then(ops(txn))
        .or_else(reads(&txn.require))
}

fn barrier() -> TxnOp {
    TxnOp::get(FIRST, Some(GetOptions::new().with_count_only()))
}

fn ops(txn: &Txn) -> Vec<TxnOp> {
    txn.ops
        .iter()
        .map(|op| match op {
            Op::Write(one) => write(one),
            Op::Choose {
                require,
                then,
                otherwise,
            } => TxnOp::txn(
                Raw::new()
                    .when(compares(require))
                    .and_then(then.iter().map(write).collect::<Vec<_>>())
                    .or_else(otherwise.iter().map(write).collect::<Vec<_>>()),
            ),
        })
        .collect()
}

fn write(write: &Write) -> TxnOp {
    match write {
        Write::Put { key, value, lease } => {
            let options = lease.map(|id| PutOptions::new().with_lease(lease_number(id)));
            TxnOp::put(key.as_slice(), value.as_slice(), options)
        }
        Write::Delete { key } => TxnOp::delete(key.as_slice(), None::<DeleteOptions>),
    }
}

fn compares(require: &[Requirement]) -> Vec<Compare> {
    require.iter().filter_map(compare).collect()
}

/// `None` for what always holds.
fn compare(requirement: &Requirement) -> Option<Compare> {
    Some(match requirement {
        Requirement::Absent(key) => Compare::create_revision(key.as_slice(), CompareOp::Equal, 0),
        Requirement::Created(key, at) => {
            Compare::create_revision(key.as_slice(), CompareOp::Equal, number(*at))
        }
        Requirement::Modified(key, at) => {
            Compare::mod_revision(key.as_slice(), CompareOp::Equal, number(*at))
        }
        Requirement::Empty(span) => {
            // With a range the comparison holds when it holds for all keys of it, and for none
            // it is asked of a key that does not exist.
            let Bounds { key, end } = Bounds::of(span)?;
            Compare::create_revision(key, CompareOp::Equal, 0).with_range(end)
        }
    })
}

/// Reads where each requirement looks, for the answer to a conflict.
fn reads(require: &[Requirement]) -> Vec<TxnOp> {
    require.iter().filter_map(read).collect()
}

fn read(requirement: &Requirement) -> Option<TxnOp> {
    Some(match requirement {
        Requirement::Absent(key) | Requirement::Created(key, _) | Requirement::Modified(key, _) => {
            TxnOp::get(key.as_slice(), None)
        }
        Requirement::Empty(span) => {
            let Bounds { key, end } = Bounds::of(span)?;
            TxnOp::get(key, Some(GetOptions::new().with_range(end).with_limit(1)))
        }
    })
}

/// The answer to a transaction. `at`: the revision of the outermost header.
pub(crate) fn txn_outcome(
    txn: &Txn,
    answer: &TxnResponse,
    at: Revision,
) -> BackendResult<TxnOutcome> {
    if !answer.succeeded() {
        let seen = seen(&txn.require, answer)?;
        return Ok(TxnOutcome::Conflict { seen });
    }
    let is_choice = |op: &Op| matches!(op, Op::Choose { .. });
    let mut chosen = Vec::new();
    // Taking the answers apart copies them.
    if txn.ops.iter().any(is_choice) {
        let answers = answer.op_responses();
        if answers.len() != txn.ops.len() {
            return Err(nonsense());
        }
        for (op, answer) in txn.ops.iter().zip(answers) {
            match (is_choice(op), answer) {
                (true, TxnOpResponse::Txn(choice)) => chosen.push(choice.succeeded()),
                (true, _) => return Err(nonsense()),
                (false, _) => {}
            }
        }
    }
    Ok(TxnOutcome::Applied {
        revision: at,
        chosen,
    })
}

/// The answer to a batch. `at`: the revision of the outermost header.
pub(crate) fn batch_outcome(
    guard: &[Requirement],
    txns: &[Txn],
    answer: &TxnResponse,
    at: Revision,
) -> BackendResult<BatchOutcome> {
    if !answer.succeeded() {
        let seen = seen(guard, answer)?;
        return Ok(BatchOutcome::GuardFailed { seen });
    }
    let mut outcomes = Vec::with_capacity(txns.len());
    if !txns.is_empty() {
        let answers = answer.op_responses();
        if answers.len() != txns.len() {
            return Err(nonsense());
        }
        for (txn, answer) in txns.iter().zip(answers) {
            let TxnOpResponse::Txn(answer) = answer else {
                return Err(nonsense());
            };
            outcomes.push(txn_outcome(txn, &answer, at)?);
        }
    }
    Ok(BatchOutcome::Judged {
        revision: at,
        outcomes,
    })
}

fn seen(require: &[Requirement], answer: &TxnResponse) -> BackendResult<Seen> {
    let mut answers = answer.op_responses().into_iter();
    require
        .iter()
        .map(|requirement| {
            if read(requirement).is_none() {
                return Ok(None);
            }
            match answers.next() {
                Some(TxnOpResponse::Get(answer)) => Ok(first(answer)),
                _ => Err(nonsense()),
            }
        })
        .collect()
}

fn first(mut answer: GetResponse) -> Option<Entry> {
    answer.take_kvs().into_iter().next().map(entry)
}

fn nonsense() -> BackendError {
    BackendError::Broken("etcd answers another transaction than it was sent".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(start: &[u8], end: Option<&[u8]>) -> Option<(Vec<u8>, Vec<u8>)> {
        let span = Span {
            start: start.to_vec(),
            end: end.map(<[u8]>::to_vec),
        };
        Bounds::of(&span).map(|bounds| (bounds.key, bounds.end))
    }

    fn some(key: &[u8], end: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        Some((key.to_vec(), end.to_vec()))
    }

    #[test]
    fn no_span_is_mistaken_for_another() {
        assert_eq!(bounds(b"a", Some(b"b")), some(b"a", b"b"));
        assert_eq!(bounds(b"a", Some(b"a\0")), some(b"a", b""));
        assert_eq!(bounds(b"", Some(b"b")), some(b"\0", b"b"));
        assert_eq!(bounds(b"", None), some(b"\0", b"\0"));
        assert_eq!(bounds(b"b", None), some(b"b", b"\0"));
        // To etcd these would be "b and all behind it", and "the key b".
        assert_eq!(bounds(b"b", Some(b"\0")), None);
        assert_eq!(bounds(b"b", Some(b"")), None);
        assert_eq!(bounds(b"", Some(b"\0")), None);
        assert_eq!(bounds(b"", Some(b"")), None);
        assert_eq!(bounds(b"b", Some(b"a")), None);
        assert_eq!(bounds(b"b", Some(b"b")), None);
        assert_eq!(bounds(b"", Some(b"\0\0")), some(b"\0", b""));
    }

    #[test]
    fn a_lease_that_cannot_be_is_not_taken_for_none() {
        assert_eq!(lease_number(LeaseId(7)), 7);
        assert_eq!(lease_number(LeaseId(0)), NEVER_GRANTED);
        assert_eq!(lease_number(LeaseId(u64::MAX)), NEVER_GRANTED);
        assert_eq!(lease(0), None);
        assert_eq!(lease(7), Some(LeaseId(7)));
    }

    #[test]
    fn a_revision_beyond_etcd_s_numbers_lies_in_the_future() {
        assert_eq!(number(Revision(u64::MAX)), i64::MAX);
        assert_eq!(number(Revision(5)), 5);
        assert_eq!(revision(5), Revision(5));
    }
}
