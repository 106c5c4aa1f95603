//! Nodes tell each other the time, through the store.
//!
//! Each keeps `clock/{node}` under its session's lease: its wall clock, and when it read the records
//! of the others. It is written at registration, once a minute, and at once when a peer's life is
//! seen that was not answered yet, when the clock has left what was written, or when it is held; so in
//! quiet times a node costs one put a minute. [`super::peers`] says what follows from the readings.
//!
//! What can go wrong: a record is read late, or written late by a request that its sender gave up.
//! Both only make the bounds looser. A peer that says nothing has its chance, and is not counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use tokio::sync::{mpsc, watch};

use crate::backend::{BackendError, BackendResult, Entry, Event, Requirement, Txn, TxnOutcome};
use crate::env::race;
use crate::job::record::{ClockRecord, Heard, decode, encode};
use crate::job::run::Owner;
use crate::keys::Keys;
use crate::recipe::retry::Store;
use crate::recipe::session::Session;
use crate::recipe::view::{View, ViewEvent, forward};

use super::peers::{PeerClock, Tally};
use super::{ClockState, FireClock, Hold};

/// How often a node writes its clock.
const PERIOD_MS: u64 = 60_000;
/// Two writes are never closer to each other, so that answers to several peers become one.
const GAP_MS: u64 = 200;
/// After its registration a node waits so long for peers that do not answer.
const CHANCE_MS: u64 = 5_000;
/// The same when one that did answer shows another time.
const LONG_CHANCE_MS: u64 = 20_000;
/// While the clock is not confirmed, the sessions are listed so often.
const BOOT_TICK_MS: u64 = 200;
/// Afterwards the clock is looked at so often.
const TICK_MS: u64 = 1_000;
/// A clock that is so far from what was written is written anew.
const MOVED_MS: i64 = 500;
/// So many of our own writes are remembered, for answers to them.
const REMEMBERED: usize = 16;

/// Who tells the time, and to whom.
pub struct ExchangeContext {
    /// The store.
    pub store: Store,
    /// The namespace's keys.
    pub keys: Keys,
    /// Who we are.
    pub owner: Owner,
    /// Learns what the others' clocks show.
    pub clock: Arc<FireClock>,
    /// How often the records are listed anew, in milliseconds.
    pub relist_ms: u64,
}

/// A peer's record as it was read.
struct Peer {
    record: ClockRecord,
    revision: u64,
    read_at_ms: u64,
    clock: PeerClock,
    /// Whether a record of ours says that we read one of this life of the peer.
    answered: bool,
}

struct Exchange {
    context: ExchangeContext,
    peers: BTreeMap<String, Peer>,
    /// When our own writes were sent, by their revisions.
    sent: BTreeMap<u64, u64>,
    /// What our next write requires of our own key.
    guard: Requirement,
    /// What was written last: wall and monotonic time, and why the clock is held.
    written: Option<(i64, u64, Option<String>)>,
    due_at_ms: u64,
    /// Whatever is due: not before.
    not_before_ms: u64,
    /// The session that is served, and since when.
    session: Option<(u64, u64)>,
    look_at_ms: u64,
    confirmed: bool,
    logged: Option<(Option<&'static str>, bool)>,
}

/// Exchanges the time until it is dropped.
pub async fn exchange(context: ExchangeContext, sessions: watch::Receiver<Option<Arc<Session>>>) {
    let env = context.store.env().clone();
    let mut sessions = sessions;
    let (events, mut inbox) = mpsc::channel(256);
    let view = View::new(
        context.store.clone(),
        context.keys.clocks(),
        context.relist_ms,
    );
    let _view = forward(view, events, |event| event);
    let now_ms = env.monotonic_ms();
    let mut exchange = Exchange {
        guard: Requirement::Absent(context.keys.clock(&context.owner.node)),
        context,
        peers: BTreeMap::new(),
        sent: BTreeMap::new(),
        written: None,
        due_at_ms: now_ms,
        not_before_ms: now_ms,
        session: None,
        look_at_ms: now_ms,
        confirmed: false,
        logged: None,
    };
    loop {
        let session = sessions.borrow_and_update().clone();
        exchange.step(session.as_deref()).await;
        let sleep = env.sleep(Duration::from_millis(exchange.wait_ms()));
        let changed = race(sessions.changed(), sleep);
        match race(inbox.recv(), changed).await {
            Either::Left(Some(event)) => {
                exchange.take(event);
                while let Ok(event) = inbox.try_recv() {
                    exchange.take(event);
                }
            }
            Either::Left(None) | Either::Right(Either::Left(Err(_))) => return,
            Either::Right(_) => {}
        }
    }
}

impl Exchange {
    fn now_ms(&self) -> u64 {
        self.context.store.env().monotonic_ms()
    }

    fn wait_ms(&self) -> u64 {
        let tick = if self.confirmed {
            TICK_MS
        } else {
            BOOT_TICK_MS
        };
        if self.session.is_none() {
            return tick;
        }
        let due_at_ms = self.due_at_ms.max(self.not_before_ms);
        let due = due_at_ms.saturating_sub(self.now_ms());
        due.clamp(1, tick)
    }

    async fn step(&mut self, session: Option<&Session>) {
        self.log();
        let Some(session) = session else {
            self.session = None;
            return;
        };
        if self.session.map(|(revision, _)| revision) != Some(session.revision.0) {
            let now_ms = self.now_ms();
            self.session = Some((session.revision.0, now_ms));
            self.due_at_ms = now_ms;
        }
        if !self.confirmed && self.now_ms() >= self.look_at_ms {
            // Before the first write: a node without peers starts at once.
            match self.confirm().await {
                Ok(()) => {}
                Err(error) => crate::recipe::outage::again(&error, "cannot look for other nodes"),
            }
            self.look_at_ms = self.now_ms() + BOOT_TICK_MS;
        }
        self.schedule();
        if self.now_ms() >= self.due_at_ms.max(self.not_before_ms) {
            self.write(session).await;
        }
    }

    /// Lets the clock be believed once every live peer was heard, or had its chance.
    async fn confirm(&mut self) -> BackendResult<()> {
        let Some((_, since_ms)) = self.session else {
            return Ok(());
        };
        let (entries, _) = self
            .context
            .store
            .list(&self.context.keys.nodes(), None)
            .await?;
        let live: BTreeSet<String> = entries
            .iter()
            .filter_map(|entry| self.context.keys.parse_node(&entry.key))
            .map(|(node, _)| node)
            .filter(|node| *node != self.context.owner.node)
            .collect();
        let tally = self.context.clock.tally();
        let patience_ms = if tally.differing > 0 {
            LONG_CHANCE_MS
        } else {
            CHANCE_MS
        };
        let heard = live.iter().all(|node| {
            let peer = self.peers.get(node);
            peer.is_some_and(|peer| peer.clock.most.is_some())
        });
        if heard || self.now_ms().saturating_sub(since_ms) >= patience_ms {
            if !heard {
                tracing::warn!(
                    heard = tally.heard(),
                    live = live.len(),
                    "not every other node has told the time; going on without"
                );
            }
            self.confirmed = true;
            self.context.clock.peers_had_their_chance();
        }
        Ok(())
    }

    /// Makes the next write due when there is something to say.
    fn schedule(&mut self) {
        let Some((wall_ms, mono_ms, held)) = &self.written else {
            return;
        };
        let env = self.context.store.env();
        let now_ms = env.monotonic_ms();
        let elapsed = now_ms.saturating_sub(*mono_ms);
        let expected = wall_ms.saturating_add(i64::try_from(elapsed).unwrap_or(i64::MAX));
        let moved = env.wall_ms().saturating_sub(expected).saturating_abs() > MOVED_MS;
        let held_else = self.held().is_some() != held.is_some();
        if moved || held_else || self.peers.values().any(|peer| !peer.answered) {
            self.due_at_ms = self.due_at_ms.min(now_ms);
        }
    }

    /// Why the clock is held, for others to see; that it is not confirmed yet is not worth a write.
    fn held(&self) -> Option<String> {
        match self.context.clock.state() {
            ClockState::Following
            | ClockState::Held {
                reason: Hold::Unconfirmed,
            } => None,
            ClockState::Held { reason } => Some(reason.to_string()),
        }
    }

    async fn write(&mut self, session: &Session) {
        let env = self.context.store.env().clone();
        let held = self.held();
        let (wall_ms, mono_ms) = (env.wall_ms(), env.monotonic_ms());
        let heard = self.peers.iter().map(|(node, peer)| {
            let ago_ms = mono_ms.saturating_sub(peer.read_at_ms);
            let revision = peer.revision;
            (node.clone(), Heard { revision, ago_ms })
        });
        let record = ClockRecord {
            incarnation: self.context.owner.incarnation.clone(),
            wall_ms,
            heard: heard.collect(),
            ahead_ms: self.context.clock.tally().ahead_ms,
            held: held.clone(),
            accepted: false,
        };
        let key = self.context.keys.clock(&self.context.owner.node);
        let txn = Txn::new()
            .require(self.guard.clone())
            .op(session.leased_put(key.clone(), encode(&record)));
        let answer = self.context.store.try_commit(&txn).await;
        let now_ms = self.now_ms();
        match answer {
            Ok(TxnOutcome::Applied { revision, .. }) => {
                self.sent.insert(revision.0, mono_ms);
                while self.sent.len() > REMEMBERED {
                    self.sent.pop_first();
                }
                self.guard = Requirement::Modified(key, revision);
                self.written = Some((wall_ms, mono_ms, held));
                self.due_at_ms = mono_ms + PERIOD_MS;
                self.not_before_ms = mono_ms + GAP_MS;
                for (node, peer) in &mut self.peers {
                    peer.answered |= record.heard.contains_key(node);
                }
            }
            Ok(TxnOutcome::Conflict { seen }) => {
                match seen.into_iter().flatten().next() {
                    Some(entry) => {
                        self.heed(&entry);
                        self.guard = Requirement::Modified(key, entry.modified);
                    }
                    None => self.guard = Requirement::Absent(key),
                }
                self.not_before_ms = now_ms + GAP_MS;
            }
            Err(error) => {
                // A lease that is gone is followed by another session.
                if !matches!(error, BackendError::LeaseLost) {
                    crate::recipe::outage::again(&error, "cannot tell the time");
                }
                self.not_before_ms = now_ms + TICK_MS;
            }
        }
    }

    fn take(&mut self, event: ViewEvent) {
        let keys = self.context.keys.clone();
        match event {
            ViewEvent::Listed(entries, _) => {
                let there: BTreeSet<String> = entries
                    .iter()
                    .filter_map(|entry| keys.parse_clock(&entry.key))
                    .collect();
                self.peers.retain(|node, _| there.contains(node));
                entries.iter().for_each(|entry| self.read(entry));
            }
            ViewEvent::Changed(changes) => {
                for event in &changes.events {
                    match event {
                        Event::Put(entry) => self.read(entry),
                        Event::Delete { key, .. } => {
                            if let Some(node) = keys.parse_clock(key) {
                                self.peers.remove(&node);
                            }
                        }
                    }
                }
            }
        }
        let clocks = self.peers.values().map(|peer| peer.clock).collect();
        self.context.clock.hear(clocks);
    }

    /// What a person wrote into our own record: that the time in it is right. It counts for the time
    /// that we have written last, and once.
    fn heed(&mut self, entry: &Entry) {
        let Requirement::Modified(_, ours) = &self.guard else {
            return;
        };
        let (Some((wall_ms, mono_ms, _)), Ok(record)) =
            (&self.written, decode::<ClockRecord>(&entry.value))
        else {
            return;
        };
        let of_us = record.incarnation == self.context.owner.incarnation;
        let said = record.accepted && of_us && record.wall_ms == *wall_ms;
        if entry.modified <= *ours || !said {
            return;
        }
        let accepted = self.context.clock.accept(Some((*wall_ms, *mono_ms)));
        tracing::warn!(?accepted, "a person says that this clock is right");
        self.guard = Requirement::Modified(entry.key.clone(), entry.modified);
        // The answer: why it is held now, if it is.
        self.due_at_ms = self.now_ms();
    }

    fn read(&mut self, entry: &Entry) {
        let Some(node) = self.context.keys.parse_clock(&entry.key) else {
            return;
        };
        if node == self.context.owner.node {
            self.heed(entry);
            return;
        }
        let revision = entry.modified.0;
        let known = self.peers.get(&node);
        if known.is_some_and(|p| p.revision >= revision) {
            return;
        }
        let Ok(record) = decode::<ClockRecord>(&entry.value) else {
            tracing::warn!(node, "its clock record cannot be read");
            return;
        };
        let now_ms = self.now_ms();
        let answer = record.heard.get(&self.context.owner.node);
        let ours = answer.and_then(|heard| Some((heard, *self.sent.get(&heard.revision)?)));
        let clock = PeerClock {
            least: (now_ms, record.wall_ms),
            most: ours.map(|(heard, sent_at_ms)| {
                let ago_ms = i64::try_from(heard.ago_ms).unwrap_or(i64::MAX);
                (sent_at_ms, record.wall_ms.saturating_sub(ago_ms))
            }),
            hold_ms: ours.map_or(0, |(heard, _)| heard.ago_ms),
        };
        let answered =
            known.is_some_and(|p| p.answered && p.record.incarnation == record.incarnation);
        let peer = Peer {
            record,
            revision,
            read_at_ms: now_ms,
            clock,
            answered,
        };
        self.peers.insert(node, peer);
    }

    /// Says what has changed: that the clock is held, or that others show another time.
    fn log(&mut self) {
        let state = self.context.clock.state();
        let tally: Tally = self.context.clock.tally();
        let kind = match state {
            ClockState::Following => None,
            ClockState::Held { reason } => Some(match reason {
                Hold::Unconfirmed => "unconfirmed",
                Hold::Step { .. } => "step",
                Hold::Outvoted { .. } => "outvoted",
            }),
        };
        let now = (kind, tally.differing > 0);
        if self.logged.replace(now) == Some(now) {
            return;
        }
        let Tally {
            agreeing,
            differing,
            ahead_ms,
        } = tally;
        match state {
            ClockState::Held {
                reason: Hold::Unconfirmed,
            } => tracing::debug!("waiting for the clocks of other nodes"),
            ClockState::Held { reason } => {
                tracing::error!(
                    agreeing,
                    differing,
                    %reason,
                    "this node does not lead and takes no runs"
                );
            }
            ClockState::Following if differing > 0 => tracing::warn!(
                agreeing,
                differing,
                ahead_ms,
                "clocks of other nodes show another time, and no majority says which is right"
            ),
            ClockState::Following => {
                tracing::info!(agreeing, ahead_ms, "the clock is believed");
            }
        }
    }
}
