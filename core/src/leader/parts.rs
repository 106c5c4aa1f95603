//! Runs in parts, as the leader keeps them: their parts are made, and their end is derived from
//! theirs ([`crate::job::parts`] says what must hold).
//!
//! What can go wrong: two leaders, or one whose view is old, make the same parts or judge too soon.
//! All writes consume the parent's record; the one that ends it requires that no part is alive.

use std::collections::{BTreeMap, BTreeSet};

use crate::backend::{BackendResult, PageLimit, Revision, TxnOutcome};
use crate::job::finish::{self, Attempt, End};
use crate::job::notes::no_part_started;
use crate::job::parts::{Parts, derive, expand, verdict};
use crate::job::record::{DrainRecord, NodeRecord, RunRecord, decode};
use crate::job::run::{FailReason, IllegalTransition, Owner, Phase, RunEvent, RunState};
use crate::keys::{AttemptKey, part_of, part_prefix};
use crate::worker::share::Peer;

use super::LeaderContext;
use super::authority::{Authority, Ruling};
use super::keeper::definition_of;

/// The parents that have not ended, and the parts that only one node may take.
#[derive(Debug, Default)]
pub struct Parents {
    parents: BTreeSet<AttemptKey>,
    homed: BTreeSet<AttemptKey>,
    /// Since when a node with such parts is gone, by the monotonic clock.
    absent_since: BTreeMap<String, u64>,
}

/// What the keeper knows of runs.
pub struct Known<'a> {
    /// The attempts that have not ended.
    pub runs: &'a BTreeMap<AttemptKey, Attempt>,
    /// The runs that somebody wants ended.
    pub cancels: &'a BTreeSet<String>,
}

impl Parents {
    /// An attempt stands like this.
    pub fn seen(&mut self, key: &AttemptKey, record: &RunRecord) {
        if record.parts.is_some() {
            self.parents.insert(key.clone());
        }
        if record.home().is_some() && record.state == RunState::Pending {
            self.homed.insert(key.clone());
        }
    }

    /// It stands like this no more.
    pub fn gone(&mut self, key: &AttemptKey) {
        self.parents.remove(key);
        self.homed.remove(key);
    }

    /// Everything is about to be listed anew.
    pub fn clear(&mut self) {
        self.parents.clear();
        self.homed.clear();
    }

    /// PENDING parts whose only node has been gone for the whole grace, with that node.
    pub fn homeless(
        &mut self,
        runs: &BTreeMap<AttemptKey, Attempt>,
        nodes: &BTreeMap<Owner, NodeRecord>,
        now_ms: u64,
        grace_ms: u64,
    ) -> Vec<(AttemptKey, String)> {
        let mut by_node: BTreeMap<&str, Vec<&AttemptKey>> = BTreeMap::new();
        for key in &self.homed {
            if let Some(home) = runs.get(key).and_then(|attempt| attempt.record.home()) {
                by_node.entry(home).or_default().push(key);
            }
        }
        for owner in nodes.keys() {
            by_node.remove(owner.node.as_str());
        }
        self.absent_since
            .retain(|node, _| by_node.contains_key(node.as_str()));
        let mut homeless = Vec::new();
        for (node, keys) in by_node {
            let since = *self.absent_since.entry(node.to_owned()).or_insert(now_ms);
            if now_ms.saturating_sub(since) >= grace_ms {
                homeless.extend(keys.into_iter().map(|key| (key.clone(), node.to_owned())));
            }
        }
        homeless
    }

    /// Makes the parts that are to be made, and ends the parents whose parts have all ended.
    ///
    /// # Errors
    /// Those of the store; nothing is lost, the rest is done at the next tick.
    pub async fn tick(
        &self,
        context: &LeaderContext,
        authority: &Authority,
        known: &Known<'_>,
    ) -> BackendResult<()> {
        for key in &self.parents {
            let Some(parent) = known.runs.get(key) else {
                continue;
            };
            let Some(parts) = &parent.record.parts else {
                continue;
            };
            let cancelled = known.cancels.contains(&key.run);
            let whole = parent.phase() == Phase::Whole;
            if !cancelled
                && (whole || parts.made < parts.total)
                && job_stands(context, parent).await?
            {
                divide(context, authority, parent).await?;
            } else if whole && !cancelled {
                let why = "the job was deleted before it was divided";
                abandon(context, authority, parent, FailReason::Cancelled, why).await?;
            } else if !whole && parts_alive(known.runs, key).next().is_none() {
                end(context, authority, parent, parts).await?;
            }
        }
        Ok(())
    }
}

/// The attempts of a run's parts that have not ended.
pub fn parts_alive<'a>(
    runs: &'a BTreeMap<AttemptKey, Attempt>,
    parent: &AttemptKey,
) -> impl Iterator<Item = (&'a AttemptKey, &'a Attempt)> {
    let prefix = part_prefix(&parent.run);
    let from = AttemptKey {
        run: prefix.clone(),
        attempt: 0,
        ..parent.clone()
    };
    runs.range(from..)
        .take_while(move |(key, _)| key.run.starts_with(&prefix))
}

/// Whether the job that the run belongs to is still there: after its deletion nothing is made.
async fn job_stands(context: &LeaderContext, parent: &Attempt) -> BackendResult<bool> {
    let key = context.keys.job(parent.key.partition, &parent.key.job);
    let entry = context.store.get(&key).await?;
    Ok(entry.is_some_and(|entry| entry.created == Revision(parent.record.job_uid)))
}

/// Makes the parts, request by request.
async fn divide(
    context: &LeaderContext,
    authority: &Authority,
    parent: &Attempt,
) -> BackendResult<()> {
    let now_ms = context.clock.now_ms();
    if parent.record.not_before_ms > now_ms {
        return Ok(());
    }
    let mut parent = parent.clone();
    loop {
        let Some(mut parts) = parent.record.parts.clone() else {
            return Ok(());
        };
        if parts.wants_nodes() {
            let nodes = able_nodes(context, &parent.record).await?;
            if nodes.is_empty() {
                if now_ms > parent.record.deadline_ms {
                    let record = &parent.record;
                    let why = format!(
                        "no live node serves queue `{}` and has {}",
                        record.queue, record.needs
                    );
                    abandon(context, authority, &parent, FailReason::NoHandler, &why).await?;
                }
                return Ok(());
            }
            parts = Parts::on(nodes);
        }
        let planned = expand(&context.keys, &parent, &parts, context.clock.record_ms());
        let Some((txn, record)) = legal(&parent, planned) else {
            return Ok(());
        };
        let job = context.keys.job(parent.key.partition, &parent.key.job);
        let uid = Revision(parent.record.job_uid);
        let txn = txn.require(crate::backend::Requirement::Created(job, uid));
        let Some(revision) = commit(authority, txn).await? else {
            return Ok(());
        };
        let done = record.parts.as_ref().is_none_or(|p| p.made >= p.total);
        parent.record = record;
        parent.modified = revision;
        if done {
            return Ok(());
        }
    }
}

/// The live nodes that are not drained, serve the run's queue and have what it needs, by id.
async fn able_nodes(context: &LeaderContext, record: &RunRecord) -> BackendResult<Vec<String>> {
    let (store, keys) = (&context.store, &context.keys);
    let (live, _) = store.list(&keys.nodes(), None).await?;
    let (wishes, _) = store.list(&keys.drains(), None).await?;
    let drained: BTreeSet<String> = wishes
        .iter()
        // One that cannot be read counts as drained, as its node sees it.
        .filter(|entry| decode::<DrainRecord>(&entry.value).map_or(true, |wish| wish.drained))
        .filter_map(|entry| keys.parse_drain(&entry.key))
        .collect();
    let able: BTreeSet<String> = live
        .iter()
        .filter_map(|entry| {
            let (node, _) = keys.parse_node(&entry.key)?;
            let peer = Peer::of(&decode::<NodeRecord>(&entry.value).ok()?);
            peer.takes(&record.queue, &record.needs).then_some(node)
        })
        .filter(|node| !drained.contains(node))
        .collect();
    Ok(able.into_iter().collect())
}

/// Ends a parent whose parts have all ended.
async fn end(
    context: &LeaderContext,
    authority: &Authority,
    parent: &Attempt,
    parts: &Parts,
) -> BackendResult<()> {
    let (store, keys) = (&context.store, &context.keys);
    let key = &parent.key;
    // In this order: a wish that comes after this look makes the end conflict, where it matters.
    let cancelled = store.get(&keys.cancel(&key.run)).await?.is_some();
    if !cancelled && parts.made < parts.total && job_stands(context, parent).await? {
        return Ok(());
    }
    // What the keeper knows may lack a part that was just given back. Once none is alive in the store,
    // and none can be made, their last records are final; read sooner, they would not be.
    let alive = keys.parts_of(key.partition, &key.job, &key.run);
    let first = PageLimit {
        entries: 1,
        ..PageLimit::default()
    };
    if !store.range(&alive, first, None).await?.entries.is_empty() {
        return Ok(());
    }
    let span = keys.done_parts_of(key.partition, &key.job, &key.run);
    let (ended, _) = store.list(&span, None).await?;
    let ended: Vec<(u32, RunRecord)> = ended
        .iter()
        .filter_map(|entry| {
            let key = keys.parse_attempt(&entry.key)?;
            let (_, index) = part_of(&key.run)?;
            Some((index, decode::<RunRecord>(&entry.value).ok()?))
        })
        .collect();
    let late = no_part_started(&parent.record, ended.iter().map(|(_, record)| record));
    // In the order of the attempts, so that the last one of each part stays.
    let last: BTreeMap<u32, RunRecord> = ended.into_iter().collect();
    let verdict = verdict(parts, &last, cancelled);
    let error = verdict.error.clone();
    let definition = definition_of(context, parent).await?;
    let end = End {
        late,
        spec: definition.as_ref().map(|definition| &*definition.spec),
        ..end_of(context)
    };
    let planned = derive(keys, parent, verdict, end);
    if let Some(txn) = legal(parent, planned)
        && commit(authority, txn).await?.is_some()
        && let Some(error) = error
    {
        tracing::warn!(run = key.run, error, "run failed");
    }
    Ok(())
}

/// Ends a parent of which no part is made.
async fn abandon(
    context: &LeaderContext,
    authority: &Authority,
    parent: &Attempt,
    reason: FailReason,
    why: &str,
) -> BackendResult<()> {
    let definition = definition_of(context, parent).await?;
    let end = End {
        error: Some(why.to_owned()),
        spec: definition.as_ref().map(|definition| &*definition.spec),
        ..end_of(context)
    };
    let planned = finish::end(&context.keys, parent, &RunEvent::Abandon(reason), &end);
    if let Some(txn) = legal(parent, planned)
        && commit(authority, txn).await?.is_some()
    {
        tracing::warn!(run = parent.key.run, %reason, why, "run failed");
    }
    Ok(())
}

/// What is known of every end.
fn end_of(context: &LeaderContext) -> End<'static> {
    End {
        now_ms: context.clock.record_ms(),
        nonce: context.store.env().random_u64(),
        epoch: context.meta.epoch,
        ..End::default()
    }
}

fn legal<T>(parent: &Attempt, planned: Result<T, IllegalTransition>) -> Option<T> {
    planned
        .inspect_err(
            |illegal| tracing::debug!(run = parent.key.run, %illegal, "no longer possible"),
        )
        .ok()
}

/// The revision at which it applied. A conflict means that something was faster; the view will tell.
async fn commit(
    authority: &Authority,
    txn: crate::backend::Txn,
) -> BackendResult<Option<Revision>> {
    Ok(match authority.commit(&[txn]).await? {
        Ruling::Judged(revision, outcomes) => match outcomes.first() {
            Some(TxnOutcome::Applied { .. }) => Some(revision),
            _ => None,
        },
        Ruling::Untrusted | Ruling::Deposed => None,
    })
}
