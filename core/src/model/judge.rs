//! Which writes a transaction makes on a given state. Looks, and changes nothing: so every part
//! of a request is judged on the state before the request, whatever the order.

use super::space::Space;
use crate::backend::{Entry, Op, Requirement, Seen, Txn, Write};

/// What a transaction comes to.
pub(super) enum Verdict<'a> {
    /// All requirements hold: these writes are to be made; for each choice, whether `then` is.
    Apply {
        writes: Vec<&'a Write>,
        chosen: Vec<bool>,
    },
    /// A requirement does not hold.
    Conflict { seen: Seen },
}

pub(super) fn judge<'a>(space: &Space, txn: &'a Txn) -> Verdict<'a> {
    if let Err(seen) = all_hold(space, &txn.require) {
        return Verdict::Conflict { seen };
    }
    let mut writes = Vec::with_capacity(txn.ops.len());
    let mut chosen = Vec::new();
    for op in &txn.ops {
        match op {
            Op::Write(write) => writes.push(write),
            Op::Choose {
                require,
                then,
                otherwise,
            } => {
                let taken = require.iter().all(|r| holds(space, r));
                chosen.push(taken);
                writes.extend(if taken { then } else { otherwise });
            }
        }
    }
    Verdict::Apply { writes, chosen }
}

/// Whether all requirements hold; if not, what stood where each of them looked.
pub(super) fn all_hold(space: &Space, require: &[Requirement]) -> Result<(), Seen> {
    if require.iter().all(|r| holds(space, r)) {
        Ok(())
    } else {
        Err(require.iter().map(|r| seen(space, r)).collect())
    }
}

fn holds(space: &Space, requirement: &Requirement) -> bool {
    match requirement {
        Requirement::Absent(key) => space.get(key).is_none(),
        Requirement::Created(key, revision) => {
            space.get(key).is_some_and(|e| e.created == *revision)
        }
        Requirement::Modified(key, revision) => {
            space.get(key).is_some_and(|e| e.modified == *revision)
        }
        Requirement::Empty(span) => space.first(span).is_none(),
    }
}

fn seen(space: &Space, requirement: &Requirement) -> Option<Entry> {
    let entry = match requirement {
        Requirement::Absent(key) | Requirement::Created(key, _) | Requirement::Modified(key, _) => {
            space.get(key)
        }
        Requirement::Empty(span) => space.first(span),
    };
    entry.map(|entry| Entry::clone(entry))
}
