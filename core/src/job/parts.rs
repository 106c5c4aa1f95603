//! Runs in parts: `fan_out` and `broadcast`.
//!
//! The run that a fire makes is a *parent*: it says how many parts there are and how many of them
//! are made. A part is a run of its own, `PARENT~s-0003`, with attempts, a time limit and a node.
//!
//! The invariants, and what holds them:
//!
//! * *Each part is made once.* Making parts consumes the parent's record, which counts them.
//! * *The parent ends after all its parts, as they say.* Its end consumes its record and requires that
//!   no attempt of a part is alive; an attempt that follows another one is made with its end, so then
//!   the last records of all parts are final.
//! * *No part is made for a parent that is to end.* Making parts, starting one and making its next
//!   attempt require that nobody wants the parent ended.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::backend::{Requirement, Txn};
use crate::control::types::RunKind;
use crate::keys::{AttemptKey, Keys, part_id};

use super::finish::{self, Attempt, End};
use super::record::{RunRecord, encode};
use super::run::{Ending, FailReason, IllegalTransition, RunEvent, RunState, transition};
use super::spec::JobSpec;

/// How a run is divided, and how far that has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// How many parts there are; 0 until the nodes of a broadcast are known.
    pub total: u32,
    /// How many of them are made, in the order of their indexes.
    pub made: u32,
    /// The nodes that the parts are for, in the order of their indexes; none: whoever is free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Vec<String>>,
}

/// Which part of another run a run is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Counts from 0.
    pub index: u32,
    /// How many there are.
    pub total: u32,
    /// The only node that may run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// Parts that one transaction makes, at most.
pub const PARTS_A_REQUEST: u32 = 64;
/// Bytes of the records that it writes, about. A part has a copy of the payload of its trigger.
const BYTES_A_REQUEST: usize = 512 << 10;
/// So many failed parts are named in the error of the parent.
const NAMED: usize = 12;

impl Parts {
    /// Those of a new run, if its job divides them.
    #[must_use]
    pub fn of(spec: &JobSpec) -> Option<Self> {
        spec.is_in_parts().then(|| Self {
            total: spec.fan_out.unwrap_or(0),
            made: 0,
            nodes: spec.broadcast.then(Vec::new),
        })
    }

    /// Whether the nodes are still to be found.
    #[must_use]
    pub fn wants_nodes(&self) -> bool {
        self.nodes.is_some() && self.total == 0
    }

    /// The same for these nodes.
    #[must_use]
    pub fn on(nodes: Vec<String>) -> Self {
        Self {
            total: u32::try_from(nodes.len()).unwrap_or(u32::MAX),
            made: 0,
            nodes: Some(nodes),
        }
    }
}

/// Makes the next parts of `parent`, divided as `parts` says: as many as fit into one request. Gives
/// the parent's record with it.
///
/// # Errors
/// [`IllegalTransition`] when the attempt is no parent, or has ended.
pub fn expand(
    keys: &Keys,
    parent: &Attempt,
    parts: &Parts,
    now_ms: i64,
) -> Result<(Txn, RunRecord), IllegalTransition> {
    transition(&parent.phase(), &RunEvent::Expand)?;
    let key = &parent.key;
    let mut txn = parent.guard(keys);
    for cancel in parent.cancels(keys) {
        txn = txn.require(Requirement::Absent(cancel));
    }
    let mut made = parts.made;
    let mut bytes = 0;
    while made < parts.total && made - parts.made < PARTS_A_REQUEST && bytes < BYTES_A_REQUEST {
        let record = part(&parent.record, parts, made, now_ms);
        let at = AttemptKey {
            run: record.run.clone(),
            attempt: record.attempt,
            ..key.clone()
        };
        let value = encode(&record);
        bytes += value.len();
        txn = txn.put(keys.run(&at), value);
        made += 1;
    }
    let record = RunRecord {
        state: RunState::Running,
        started_ms: parent.record.started_ms.or(Some(now_ms)),
        parts: Some(Parts {
            made,
            ..parts.clone()
        }),
        ..parent.record.clone()
    };
    let txn = txn.put(keys.run(key), encode(&record));
    Ok((txn, record))
}

/// The first attempt of a part.
fn part(parent: &RunRecord, parts: &Parts, index: u32, now_ms: i64) -> RunRecord {
    let place = usize::try_from(index).unwrap_or(usize::MAX);
    let nodes = parts.nodes.as_ref();
    RunRecord {
        run: part_id(&parent.run, index),
        attempt: 1,
        unstarted: 0,
        kind: RunKind::Shard,
        state: RunState::Pending,
        deadline_ms: now_ms.saturating_add(patience_ms(parent)),
        created_ms: now_ms,
        started_ms: None,
        stands_for: 1,
        stands_from_ms: None,
        cause: None,
        parts: None,
        shard: Some(Shard {
            index,
            total: parts.total,
            node: nodes.and_then(|nodes| nodes.get(place)).cloned(),
        }),
        ..parent.clone()
    }
}

/// How long a run of the job may wait to be claimed.
fn patience_ms(parent: &RunRecord) -> i64 {
    let ready_ms = parent.created_ms.max(parent.not_before_ms);
    parent.deadline_ms.saturating_sub(ready_ms).max(0)
}

/// What a parent ends as, and for people why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// As what.
    pub ending: Ending,
    /// Why, if not well.
    pub error: Option<String>,
}

/// What becomes of a parent whose parts have all ended: `last` are their last records, `cancelled`
/// whether somebody wants it ended. A parent whose parts are not all made, since it is to end or its
/// job is gone, is cancelled.
#[must_use]
pub fn verdict(parts: &Parts, last: &BTreeMap<u32, RunRecord>, cancelled: bool) -> Verdict {
    let total = parts.total;
    let well = |index: &u32| {
        let end = last.get(index);
        end.is_some_and(|end| end.state == RunState::Success)
    };
    let failed: Vec<u32> = (0..total).filter(|index| !well(index)).collect();
    if failed.is_empty() && parts.made >= total {
        return Verdict {
            ending: Ending::Success,
            error: None,
        };
    }
    let good = usize::try_from(total).unwrap_or(0) - failed.len();
    if cancelled || parts.made < total {
        let why = match cancelled {
            true => "cancelled",
            false => "the job was deleted before all parts were made",
        };
        return Verdict {
            ending: Ending::Failed(FailReason::Cancelled),
            error: Some(format!("{why}: {good} of {total} parts succeeded")),
        };
    }
    let mut named: Vec<String> = failed
        .iter()
        .take(NAMED)
        .map(|index| format!("{index} ({})", told(last.get(index))))
        .collect();
    if failed.len() > NAMED {
        named.push("...".into());
    }
    Verdict {
        ending: Ending::Failed(FailReason::Error),
        error: Some(format!(
            "{} of {total} parts failed: {}",
            failed.len(),
            named.join(", ")
        )),
    }
}

fn told(end: Option<&RunRecord>) -> String {
    let Some(end) = end else {
        return "its record is gone".into();
    };
    match (end.failed, end.exit_code) {
        (Some(FailReason::Exit), Some(code)) => format!("exit {code}"),
        (Some(reason), _) => reason.to_string(),
        (None, _) => end.state.to_string(),
    }
}

/// Ends a parent as its parts say. The verdict must come from what was read after the last attempt of
/// a part had ended, with the wish to end the parent, if there is one. So must what `end` knows.
///
/// # Errors
/// [`IllegalTransition`] when the attempt is no parent, or none of its parts is made.
pub fn derive(
    keys: &Keys,
    parent: &Attempt,
    verdict: Verdict,
    end: End<'_>,
) -> Result<Txn, IllegalTransition> {
    let key = &parent.key;
    let end = End {
        error: verdict.error,
        ..end
    };
    let mut txn = finish::end(keys, parent, &RunEvent::Derive(verdict.ending), &end)?;
    if verdict.ending == Ending::Failed(FailReason::Error) {
        txn = parent
            .cancels(keys)
            .into_iter()
            .fold(txn, |txn, cancel| txn.require(Requirement::Absent(cancel)));
    }
    let alive = keys.parts_of(key.partition, &key.job, &key.run);
    Ok(txn.require(Requirement::Empty(alive)))
}

#[cfg(test)]
#[path = "parts_tests.rs"]
mod tests;
