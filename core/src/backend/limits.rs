//! The size and shape of a request that every store accepts, checked by one function.
//!
//! The numbers are etcd's defaults: 128 operations a transaction (etcd counts, at each level of
//! nesting, the largest of compares, success and failure operations, and adds the levels up) and
//! requests below 1.5 MiB. Every store refuses what etcd would refuse, so that code which works on
//! a laptop works in production.

use std::collections::BTreeSet;

use super::types::{Op, Requirement, Revision, Span, Txn, Write};
use super::{BackendError, BackendResult};

/// Widths along a path of nesting add up to at most this.
pub const MAX_WIDTH: usize = 128;
/// Keys and values of one request together; the keys that a transaction or a guard requires count
/// twice, since each is sent once to be compared and once to be read back.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;
/// The shortest lease: etcd's own minimum with its default election timeout.
pub const MIN_LEASE_TTL_MS: u64 = 2_000;

/// Checks a single transaction.
///
/// # Errors
/// [`BackendError::Rejected`] when it is too wide or too large, names an empty key or revision 0,
/// or is not independent.
pub fn check_txn(txn: &Txn) -> BackendResult<()> {
    let txns = std::slice::from_ref(txn);
    check_size(txn_width(txn), txn_bytes(txn))?;
    check_names(&[], txns)?;
    check_independent(&[], txns)
}

/// Checks a batch and its shared guard.
///
/// # Errors
/// [`BackendError::Rejected`] when it is too wide or too large, names a lease, an empty key or
/// revision 0, or its transactions depend on each other.
pub fn check_batch(guard: &[Requirement], txns: &[Txn]) -> BackendResult<()> {
    let widest = txns.iter().map(txn_width).max().unwrap_or(0);
    let width = guard.len().max(txns.len()) + widest;
    let bytes = compared_and_read_bytes(guard) + txns.iter().map(txn_bytes).sum::<usize>();
    check_size(width, bytes)?;
    check_names(guard, txns)?;
    if writes_of(txns).any(|w| matches!(w, Write::Put { lease: Some(_), .. })) {
        return Err(BackendError::Rejected(
            "a leased put in a batch: one dead lease would fail every other transaction".into(),
        ));
    }
    check_independent(guard, txns)
}

/// The width of a transaction: its own level plus its widest choice.
#[must_use]
pub fn txn_width(txn: &Txn) -> usize {
    // A failed requirement is read back, one read each, so both branches are as wide as `require`.
    let own = txn.require.len().max(txn.ops.len());
    let below = txn
        .ops
        .iter()
        .map(|op| match op {
            Op::Write(_) => 0,
            Op::Choose {
                require,
                then,
                otherwise,
            } => require.len().max(then.len()).max(otherwise.len()),
        })
        .max()
        .unwrap_or(0);
    own + below
}

/// Bytes of the keys and values of a transaction as they are sent: what it requires twice, both
/// branches of a choice.
#[must_use]
pub fn txn_bytes(txn: &Txn) -> usize {
    let ops: usize = txn
        .ops
        .iter()
        .map(|op| match op {
            Op::Write(write) => write_bytes(write),
            Op::Choose {
                require,
                then,
                otherwise,
            } => {
                requirements_bytes(require)
                    + then.iter().chain(otherwise).map(write_bytes).sum::<usize>()
            }
        })
        .sum();
    compared_and_read_bytes(&txn.require) + ops
}

/// A requirement whose failure is shown travels twice: compared, and read back should it fail.
fn compared_and_read_bytes(requirements: &[Requirement]) -> usize {
    2 * requirements_bytes(requirements)
}

fn write_bytes(write: &Write) -> usize {
    match write {
        Write::Put { key, value, .. } => key.len() + value.len(),
        Write::Delete { key } => key.len(),
    }
}

fn requirements_bytes(requirements: &[Requirement]) -> usize {
    requirements
        .iter()
        .map(|requirement| match requirement {
            Requirement::Absent(key)
            | Requirement::Created(key, _)
            | Requirement::Modified(key, _) => key.len(),
            Requirement::Empty(span) => span.start.len() + span.end.as_ref().map_or(0, Vec::len),
        })
        .sum()
}

fn check_size(width: usize, bytes: usize) -> BackendResult<()> {
    if width > MAX_WIDTH {
        return Err(BackendError::Rejected(format!(
            "request of width {width}, at most {MAX_WIDTH} is allowed"
        )));
    }
    if bytes > MAX_REQUEST_BYTES {
        return Err(BackendError::Rejected(format!(
            "request of {bytes} bytes, at most {MAX_REQUEST_BYTES} are allowed"
        )));
    }
    Ok(())
}

/// Refuses what etcd has no words for: an empty key, which it takes for a missing argument, and
/// revision 0, which its comparisons take for "does not exist".
fn check_names(guard: &[Requirement], txns: &[Txn]) -> BackendResult<()> {
    let empty = || BackendError::Rejected("an empty key".into());
    if writes_of(txns).any(|write| write.key().is_empty()) {
        return Err(empty());
    }
    for requirement in guard.iter().chain(requirements_of(txns)) {
        match requirement {
            Requirement::Created(_, Revision(0)) | Requirement::Modified(_, Revision(0)) => {
                return Err(BackendError::Rejected(
                    "nothing stands at revision 0; require Absent instead".into(),
                ));
            }
            Requirement::Absent(key)
            | Requirement::Created(key, _)
            | Requirement::Modified(key, _)
                if key.is_empty() =>
            {
                return Err(empty());
            }
            _ => {}
        }
    }
    Ok(())
}

/// What the transactions require, inside choices too.
pub(crate) fn requirements_of(txns: &[Txn]) -> impl Iterator<Item = &Requirement> {
    txns.iter().flat_map(|txn| {
        let inside = txn.ops.iter().flat_map(|op| match op {
            Op::Write(_) => &[][..],
            Op::Choose { require, .. } => require.as_slice(),
        });
        txn.require.iter().chain(inside)
    })
}

/// What the transactions may write.
pub(crate) fn writes_of(txns: &[Txn]) -> impl Iterator<Item = &Write> {
    txns.iter()
        .flat_map(|txn| &txn.ops)
        .flat_map(|op| match op {
            Op::Write(write) => std::slice::from_ref(write).iter().chain([].iter()),
            Op::Choose {
                then, otherwise, ..
            } => then.iter().chain(otherwise.iter()),
        })
}

/// A request must not depend on the order in which its parts are judged: no key is written
/// twice (the two branches of one choice may write the same key), and no key written by one
/// transaction or choice lies in a requirement of another or in the shared guard.
fn check_independent(guard: &[Requirement], txns: &[Txn]) -> BackendResult<()> {
    let mut units = vec![Unit {
        txn: usize::MAX,
        require: guard,
        writes: BTreeSet::new(),
        choice: false,
    }];
    for (index, txn) in txns.iter().enumerate() {
        let mut own = Unit {
            txn: index,
            require: &txn.require,
            writes: BTreeSet::new(),
            choice: false,
        };
        for op in &txn.ops {
            match op {
                Op::Write(write) => insert_once(&mut own.writes, write.key())?,
                Op::Choose {
                    require,
                    then,
                    otherwise,
                } => {
                    let mut writes = BTreeSet::new();
                    for branch in [then, otherwise] {
                        let mut seen = BTreeSet::new();
                        for write in branch {
                            insert_once(&mut seen, write.key())?;
                        }
                        writes.extend(seen);
                    }
                    units.push(Unit {
                        txn: index,
                        require,
                        writes,
                        choice: true,
                    });
                }
            }
        }
        units.push(own);
    }

    let mut owner: Vec<(&[u8], usize)> = Vec::new();
    for (unit, u) in units.iter().enumerate() {
        owner.extend(u.writes.iter().map(|key| (*key, unit)));
    }
    owner.sort_unstable();
    if let Some(pair) = owner.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(twice(pair[0].0));
    }
    for (unit, u) in units.iter().enumerate() {
        for requirement in u.require {
            let span = requirement_span(requirement);
            let from = owner.partition_point(|(key, _)| *key < span.start.as_slice());
            let dependent = owner[from..]
                .iter()
                .take_while(|(key, _)| span.contains(key))
                .find(|(_, writer)| *writer != unit && !encloses(u, &units[*writer]));
            if let Some((key, _)) = dependent {
                return Err(BackendError::Rejected(format!(
                    "dependent request: {} is written by one part and required by another",
                    String::from_utf8_lossy(key)
                )));
            }
        }
    }
    Ok(())
}

/// A transaction's own requirements gate the choices inside it, so what such a choice writes
/// may be required by the transaction around it.
fn encloses(outer: &Unit<'_>, inner: &Unit<'_>) -> bool {
    !outer.choice && inner.choice && outer.txn == inner.txn
}

struct Unit<'a> {
    txn: usize,
    require: &'a [Requirement],
    writes: BTreeSet<&'a [u8]>,
    choice: bool,
}

fn insert_once<'a>(set: &mut BTreeSet<&'a [u8]>, key: &'a [u8]) -> BackendResult<()> {
    if set.insert(key) {
        Ok(())
    } else {
        Err(twice(key))
    }
}

fn twice(key: &[u8]) -> BackendError {
    BackendError::Rejected(format!(
        "{} is written twice in one request",
        String::from_utf8_lossy(key)
    ))
}

/// The keys that a requirement looks at.
#[must_use]
pub fn requirement_span(requirement: &Requirement) -> Span {
    match requirement {
        Requirement::Absent(key) | Requirement::Created(key, _) | Requirement::Modified(key, _) => {
            Span::key(key.clone())
        }
        Requirement::Empty(span) => span.clone(),
    }
}

#[cfg(test)]
#[path = "limits_tests.rs"]
mod tests;
