//! Keeping house: what the leader does apart from firing.
//!
//! * A run whose owner's session is gone is taken back (LOCKED) or ended (RUNNING).
//! * A run that nobody claims, or that outlives its time and all grace, is ended.
//! * A run that somebody wants ended before a worker has it is ended.
//! * Runs in parts are divided, and ended when their parts have ended ([`super::parts`]).
//! * Jobs that run after a success are run ([`super::chain`]), and those that run again some time
//!   after their last run ([`super::delay`]).
//! * Whoever asked for it is told of runs that failed, are late, and so on ([`super::notes`]).
//!
//! History beyond its bounds is pruned in a task of its own ([`super::retain`]).
//!
//! What can go wrong: the owner is alive and finishes while we decide that it is lost. So recovery
//! requires, in one transaction, that the session's key is absent *and* that the record is the one
//! we read: a result that was committed first wins, and ours conflicts.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::Either;
use tokio::sync::mpsc;

use crate::backend::{BackendResult, Entry, Event, Requirement, TxnOutcome};
use crate::env::race;
use crate::job::Definition;
use crate::job::finish::{self, Attempt, End};
use crate::job::record::{NodeRecord, RunRecord, decode};
use crate::job::run::{FailReason, Owner, Phase, RunEvent, RunState, transition};
use crate::keys::{AttemptKey, part_of, partition_of};
use crate::recipe::view::{View, ViewEvent, forward};

use super::LeaderContext;
use super::authority::{Authority, Ruling};
use super::chain::Chain;
use super::crowd::Crowd;
use super::delay::Delays;
use super::notes::Notes;
use super::parts::{Known, Parents, parts_alive};
use super::retain::Notice;

const TICK: Duration = Duration::from_millis(500);
/// The same while there is more to do: what was written shall be seen first.
const BUSY_TICK: Duration = Duration::from_millis(20);

enum Input {
    Runs(ViewEvent),
    Nodes(ViewEvent),
    Cancels(ViewEvent),
    Todos(ViewEvent),
    Delays(ViewEvent),
    Notes(ViewEvent),
}

struct Keeper {
    context: LeaderContext,
    authority: Authority,
    runs: BTreeMap<AttemptKey, Attempt>,
    by_owner: BTreeMap<Owner, BTreeSet<AttemptKey>>,
    deadlines: BTreeSet<(i64, AttemptKey)>,
    nodes: BTreeMap<Owner, NodeRecord>,
    nodes_known: bool,
    /// Since when an owner's session is gone, by the monotonic clock.
    absent_since: BTreeMap<Owner, u64>,
    cancels: BTreeSet<String>,
    chain: Chain,
    /// Whether there is more to do than a tick may take.
    busy: bool,
    delays: Delays,
    notes: Notes,
    history: mpsc::UnboundedSender<Notice>,
    crowd: Crowd,
    parents: Parents,
}

/// Keeps house until the leader drops it.
pub async fn keep(
    context: LeaderContext,
    authority: Authority,
    history: mpsc::UnboundedSender<Notice>,
) {
    let (inputs, mut inbox) = mpsc::channel(1_024);
    let view = |span| View::new(context.store.clone(), span, context.relist_ms);
    let _runs = forward(view(context.keys.runs()), inputs.clone(), Input::Runs);
    let _nodes = forward(view(context.keys.nodes()), inputs.clone(), Input::Nodes);
    let _cancels = forward(view(context.keys.cancels()), inputs.clone(), Input::Cancels);
    let _todos = forward(view(context.keys.todos()), inputs.clone(), Input::Todos);
    let _delays = forward(view(context.keys.delays()), inputs.clone(), Input::Delays);
    let _notes = forward(view(context.keys.notes()), inputs.clone(), Input::Notes);

    let env = context.store.env().clone();
    let mut keeper = Keeper {
        history,
        crowd: Crowd::new(context.clock.now_ms()),
        context,
        authority,
        runs: BTreeMap::new(),
        by_owner: BTreeMap::new(),
        deadlines: BTreeSet::new(),
        nodes: BTreeMap::new(),
        nodes_known: false,
        absent_since: BTreeMap::new(),
        cancels: BTreeSet::new(),
        chain: Chain::default(),
        busy: false,
        delays: Delays::default(),
        notes: Notes::default(),
        parents: Parents::default(),
    };
    let mut tick_at = env.monotonic_ms();
    loop {
        let left = tick_at.saturating_sub(env.monotonic_ms());
        match race(inbox.recv(), env.sleep(Duration::from_millis(left))).await {
            Either::Left(Some(input)) => keeper.take(input),
            Either::Left(None) => return,
            Either::Right(()) => {
                if let Err(error) = keeper.tick().await {
                    crate::recipe::outage::again(&error, "keeping house failed");
                }
                let rest = if keeper.busy { BUSY_TICK } else { TICK };
                tick_at = env.monotonic_ms() + u64::try_from(rest.as_millis()).unwrap_or(500);
            }
        }
    }
}

impl Keeper {
    fn take(&mut self, input: Input) {
        match input {
            Input::Runs(ViewEvent::Listed(entries, _)) => {
                self.runs.clear();
                self.by_owner.clear();
                self.deadlines.clear();
                self.crowd.clear(self.context.clock.now_ms());
                self.parents.clear();
                for entry in entries {
                    self.insert(&entry);
                }
            }
            Input::Runs(ViewEvent::Changed(changes)) => {
                for event in changes.events {
                    match event {
                        Event::Put(entry) => self.insert(&entry),
                        Event::Delete { key, .. } => {
                            if let Some(key) = self.context.keys.parse_attempt(&key) {
                                let old = self.remove(&key);
                                self.note_alone(&key);
                                self.note_ended(key, old.as_ref());
                            }
                        }
                    }
                }
            }
            Input::Nodes(ViewEvent::Listed(entries, _)) => {
                self.nodes.clear();
                entries.iter().for_each(|entry| self.node(entry));
                self.nodes_known = true;
            }
            Input::Nodes(ViewEvent::Changed(changes)) => {
                for event in changes.events {
                    match event {
                        Event::Put(entry) => self.node(&entry),
                        Event::Delete { key, .. } => {
                            if let Some((node, incarnation)) = self.context.keys.parse_node(&key) {
                                self.nodes.remove(&Owner { node, incarnation });
                            }
                        }
                    }
                }
            }
            Input::Cancels(ViewEvent::Listed(entries, _)) => {
                let keys = &self.context.keys;
                let runs = entries.iter().filter_map(|e| keys.parse_cancel(&e.key));
                self.cancels = runs.collect();
            }
            Input::Cancels(ViewEvent::Changed(changes)) => {
                for event in changes.events {
                    let Some(run) = self.context.keys.parse_cancel(event.key()) else {
                        continue;
                    };
                    match event {
                        Event::Put(_) => self.cancels.insert(run),
                        Event::Delete { .. } => self.cancels.remove(&run),
                    };
                }
            }
            Input::Todos(event) => self.chain.take(&self.context.keys, event),
            Input::Delays(event) => self.delays.take(&self.context, event),
            Input::Notes(event) => self.notes.take(&self.context, event),
        }
    }

    fn node(&mut self, entry: &Entry) {
        if let Some((node, incarnation)) = self.context.keys.parse_node(&entry.key)
            && let Ok(record) = decode(&entry.value)
        {
            self.nodes.insert(Owner { node, incarnation }, record);
        }
    }

    fn insert(&mut self, entry: &Entry) {
        let Some(attempt) = Attempt::read(&self.context.keys, entry) else {
            return;
        };
        let key = attempt.key.clone();
        self.remove(&key);
        if let Some(owner) = &attempt.record.owner {
            let theirs = self.by_owner.entry(owner.clone()).or_default();
            theirs.insert(key.clone());
        }
        if attempt.record.state != RunState::Locked && attempt.record.parts.is_none() {
            self.deadlines
                .insert((attempt.record.deadline_ms, key.clone()));
        }
        self.crowd.seen(&key, &attempt.record);
        self.parents.seen(&key, &attempt.record);
        self.runs.insert(key, attempt);
    }

    /// Forgets the slots of a job that has nothing left.
    fn note_alone(&mut self, key: &AttemptKey) {
        let from = AttemptKey {
            run: String::new(),
            attempt: 0,
            ..key.clone()
        };
        let next = self.runs.range(from..).next();
        if next.is_none_or(|(next, _)| next.job != key.job) {
            self.crowd.forget(&key.job);
        }
    }

    /// An attempt has ended: its job's history has grown.
    fn note_ended(&self, key: AttemptKey, ended: Option<&Attempt>) {
        // Parts go with their parent, and do not count.
        if part_of(&key.run).is_none() {
            let record = ended.map(|ended| &ended.record);
            // Whoever does not listen any more ends with this leader.
            let _ = self.history.send(Notice {
                job: key.job,
                records: 1,
                definition: record.map_or((0, 0), |r| (r.job_uid, r.generation)),
            });
        }
    }

    fn remove(&mut self, key: &AttemptKey) -> Option<Attempt> {
        let old = self.runs.remove(key)?;
        let now_ms = self.context.clock.now_ms();
        self.crowd.gone(key, &old.record, now_ms);
        self.parents.gone(key);
        self.deadlines
            .remove(&(old.record.deadline_ms, key.clone()));
        if let Some(owner) = &old.record.owner
            && let Some(theirs) = self.by_owner.get_mut(owner)
        {
            theirs.remove(key);
            if theirs.is_empty() {
                self.by_owner.remove(owner);
            }
        }
        Some(old)
    }

    async fn tick(&mut self) -> BackendResult<()> {
        if !self.authority.is_trusted() {
            return Ok(());
        }
        self.recover().await?;
        self.end_overdue().await?;
        self.end_cancelled().await?;
        self.end_homeless().await?;
        let known = Known {
            runs: &self.runs,
            cancels: &self.cancels,
        };
        self.parents
            .tick(&self.context, &self.authority, &known)
            .await?;
        self.busy = self.chain.tick(&self.context, &self.authority).await?;
        let alive = |job: &str, run: &str| {
            let first = AttemptKey {
                partition: partition_of(job, self.context.meta.partitions),
                job: job.to_owned(),
                run: run.to_owned(),
                attempt: 0,
            };
            let mut from = self.runs.range(first..);
            from.next().is_some_and(|(key, _)| key.run == run)
        };
        self.delays
            .tick(&self.context, &self.authority, alive)
            .await?;
        self.notes
            .tick(&self.context, &self.authority, &self.runs)
            .await
    }

    /// Takes the runs of owners whose session has been gone for the whole grace.
    async fn recover(&mut self) -> BackendResult<()> {
        if !self.nodes_known {
            return Ok(());
        }
        let now = self.context.store.env().monotonic_ms();
        let gone: BTreeSet<Owner> = self
            .by_owner
            .keys()
            .filter(|owner| !self.nodes.contains_key(*owner))
            .cloned()
            .collect();
        self.absent_since.retain(|owner, _| gone.contains(owner));
        let mut lost = Vec::new();
        for owner in gone {
            let since = *self.absent_since.entry(owner.clone()).or_insert(now);
            if now.saturating_sub(since) >= self.context.lost_grace_ms {
                lost.push((owner, now.saturating_sub(since)));
            }
        }
        for (owner, gone_ms) in lost {
            let absent = self.context.keys.node(&owner.node, &owner.incarnation);
            let theirs = self.by_owner.get(&owner).cloned().unwrap_or_default();
            for key in theirs {
                // Its worker may be configured to take longer than this leader would wait.
                let grace_ms = self.runs.get(&key).map(|attempt| attempt.record.grace_ms);
                if grace_ms.is_some_and(|grace_ms| gone_ms < grace_ms) {
                    continue;
                }
                let requirement = Requirement::Absent(absent.clone());
                self.step(
                    &key,
                    &RunEvent::Recover,
                    Some(requirement),
                    &owner.to_string(),
                )
                .await?;
            }
        }
        Ok(())
    }

    /// Ends runs that nobody has claimed in time, and RUNNING ones whose worker is wedged.
    async fn end_overdue(&mut self) -> BackendResult<()> {
        let now = self.context.clock.now_ms();
        let due: Vec<AttemptKey> = self
            .deadlines
            .iter()
            .take_while(|(deadline, _)| *deadline < now)
            .map(|(_, key)| key.clone())
            .collect();
        for key in due {
            let Some(attempt) = self.runs.get(&key) else {
                continue;
            };
            let event = match attempt.record.state {
                RunState::Pending if self.crowd.excuses(&attempt.record, now) => continue,
                RunState::Pending => RunEvent::Abandon(self.why_unclaimed(&attempt.record)),
                RunState::Running => RunEvent::Overrun,
                _ => continue,
            };
            self.step(&key, &event, None, "").await?;
        }
        Ok(())
    }

    fn why_unclaimed(&self, record: &RunRecord) -> FailReason {
        let able = self
            .nodes
            .values()
            .any(|node| node.queues.contains(&record.queue) && node.has(&record.needs));
        if able {
            FailReason::Expired
        } else {
            FailReason::NoHandler
        }
    }

    async fn end_cancelled(&mut self) -> BackendResult<()> {
        let mut waiting: Vec<AttemptKey> = Vec::new();
        for run in &self.cancels {
            let Some(job) = crate::keys::job_of_run(run) else {
                continue;
            };
            let from = AttemptKey {
                partition: partition_of(job, self.context.meta.partitions),
                job: job.to_owned(),
                run: run.clone(),
                attempt: 0,
            };
            let first = self.runs.range(from.clone()..).next();
            let first = first.filter(|(key, _)| key.run == *run);
            let all = first.into_iter().chain(parts_alive(&self.runs, &from));
            waiting.extend(
                all.filter(|(_, attempt)| attempt.record.state == RunState::Pending)
                    .map(|(key, _)| key.clone()),
            );
        }
        for key in waiting {
            let event = RunEvent::Abandon(FailReason::Cancelled);
            self.step(&key, &event, None, "").await?;
        }
        Ok(())
    }

    /// Ends parts that nobody has claimed and whose only node is gone.
    async fn end_homeless(&mut self) -> BackendResult<()> {
        if !self.nodes_known {
            return Ok(());
        }
        let now_ms = self.context.store.env().monotonic_ms();
        let grace_ms = self.context.lost_grace_ms;
        let homeless = self
            .parents
            .homeless(&self.runs, &self.nodes, now_ms, grace_ms);
        for (key, node) in homeless {
            let gone = Requirement::Empty(self.context.keys.lives_of(&node));
            let event = RunEvent::Abandon(FailReason::NoHandler);
            self.step(&key, &event, Some(gone), &node).await?;
        }
        Ok(())
    }

    /// Takes one step of one run. A conflict means that somebody was faster; the view will tell.
    async fn step(
        &mut self,
        key: &AttemptKey,
        event: &RunEvent,
        also: Option<Requirement>,
        owner: &str,
    ) -> BackendResult<()> {
        let Some(attempt) = self.runs.get(key).cloned() else {
            return Ok(());
        };
        let phase = attempt.phase();
        let LeaderContext {
            store,
            keys,
            meta,
            clock,
            ..
        } = &self.context;
        let planned =
            if matches!(event, RunEvent::Recover) && attempt.record.state == RunState::Locked {
                finish::give_back(keys, &attempt, event)
            } else {
                let definition = definition_of(&self.context, &attempt).await?;
                let end = End {
                    now_ms: clock.record_ms(),
                    nonce: store.env().random_u64(),
                    epoch: meta.epoch,
                    execution: None,
                    error: Some(explain(event, &attempt.record, owner)),
                    spec: definition.as_ref().map(|d| &*d.spec),
                    uncertain: *event == RunEvent::Overrun,
                    late: false,
                };
                finish::end(keys, &attempt, event, &end)
            };
        let txn = match planned {
            Ok(txn) => also.into_iter().fold(txn, crate::backend::Txn::require),
            Err(illegal) => {
                tracing::debug!(run = key.run, %illegal, "no longer possible");
                return Ok(());
            }
        };
        match self.authority.commit(&[txn]).await? {
            Ruling::Judged(_, outcomes) => {
                if let Some(TxnOutcome::Applied { .. }) = outcomes.first() {
                    let (run, attempt) = (&key.run, key.attempt);
                    match transition(&phase, event) {
                        Ok(Phase::Failed(reason)) => {
                            tracing::warn!(run, attempt, %reason, owner, "run failed");
                        }
                        _ => tracing::warn!(
                            run,
                            attempt,
                            owner,
                            "run taken back, it had not started"
                        ),
                    }
                }
                // Either way the record that we knew is gone; the view brings its successor.
                self.remove(key);
            }
            Ruling::Untrusted | Ruling::Deposed => {}
        }
        Ok(())
    }
}

fn explain(event: &RunEvent, record: &RunRecord, owner: &str) -> String {
    match event {
        RunEvent::Recover => format!(
            "the worker {owner} vanished while it ran this; whether the work was done is unknown"
        ),
        RunEvent::Overrun => "its worker did not end it long after its time limit".into(),
        RunEvent::Abandon(FailReason::Cancelled) => "cancelled before it started".into(),
        RunEvent::Abandon(FailReason::NoHandler) if !owner.is_empty() => {
            format!("node {owner}, which this part was for, is gone, and had not taken it")
        }
        RunEvent::Abandon(FailReason::NoHandler) => format!(
            "no live node serves queue `{}` and has {}",
            record.queue, record.needs
        ),
        RunEvent::Abandon(_) => "no node took it in time: none had a free slot, or none of them may run it (their logs say why)".into(),
        _ => String::new(),
    }
}

/// The definition that a run follows.
pub(super) async fn definition_of(
    context: &LeaderContext,
    attempt: &Attempt,
) -> BackendResult<Option<Definition>> {
    let key = context.keys.def(
        attempt.key.partition,
        &attempt.key.job,
        attempt.record.generation,
    );
    let entry = context.store.get(&key).await?;
    // Only policies are used here, so the anchor of `every` does not matter.
    Ok(entry.and_then(|entry| Definition::decode(&entry.value, 0).ok()))
}
