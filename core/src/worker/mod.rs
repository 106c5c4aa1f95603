//! The worker: claim -> start -> run -> report.
//!
//! What can go wrong: two workers want one run (the record decides); the session is lost between
//! claim and start (the start requires it); the answer to a claim is lost (the same request again,
//! until it is definite); a claim succeeded that we no longer know of (given back when the runs
//! are read next). LOCKED is durable before RUNNING, and RUNNING before the user's code.

mod claim;
mod definitions;
pub mod execute;
mod held;
mod leave;
pub mod queue;
mod recorder;
mod refused;
pub mod report;
pub mod share;
mod slots;
mod step;
mod strays;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use tokio::sync::{mpsc, watch};

use crate::backend::{Entry, Event, Revision};
use crate::cancel::{CancelToken, Canceller, StopCause};
use crate::clock::{ClockState, FireClock};
use crate::drain::Drained;
use crate::env::race;
use crate::handler::Executors;
use crate::job::Definition;
use crate::job::finish::{self, Attempt, End};
use crate::job::record::{Glance, NodeRecord, decode};
use crate::job::run::{FailReason, Owner, RunEvent, RunState};
use crate::keys::{AttemptKey, Keys, part_of};
use crate::recipe::committer::Committer;
use crate::recipe::retry::Store;
use crate::recipe::session::{Session, Trust};
use crate::recipe::view::{View, ViewEvent, forward};
use crate::spool::Spool;
use crate::vitals::Vitals;

use definitions::{Definitions, Found};
use execute::{Running, command_line, execute};
use held::Held;
use queue::Queue;
use share::{Peer, Peers};

/// What a worker works with.
pub struct WorkerContext {
    /// The store.
    pub store: Store,
    /// The namespace's keys.
    pub keys: Keys,
    /// Tells the namespace from others.
    pub cluster_id: String,
    /// The namespace's epoch.
    pub epoch: u8,
    /// The way of results into the store.
    pub committer: Committer,
    /// Where results wait that the store does not take.
    pub spool: Option<Arc<dyn Spool>>,
    /// When a run is due, and the time of records.
    pub clock: Arc<FireClock>,
    /// Who we are.
    pub owner: Owner,
    /// How many runs at once.
    pub slots: usize,
    /// The queues we serve.
    pub queues: Vec<String>,
    /// How long a run that was told to stop may take, in milliseconds.
    pub kill_grace_ms: u64,
    /// How long this worker may need to stop what it runs once its session is gone, in milliseconds.
    pub lost_grace_ms: u64,
    /// How long running work may take after a shutdown, in milliseconds.
    pub drain_timeout_ms: u64,
    /// How often views are listed anew, in milliseconds.
    pub relist_ms: u64,
    /// The nodes that operators have drained.
    pub drained: Drained,
    /// What the node shows of itself.
    pub vitals: Arc<Vitals>,
}

/// Claims a request at most.
const MAX_CLAIMS: usize = 100;
/// Sleeping is a hint: the loop looks around at least so often.
const TICK_MS: u64 = 500;
/// The same while it may not claim, whatever is due.
const UNABLE_TICK_MS: u64 = 50;

/// The session that the node has at the moment.
pub type CurrentSession = watch::Receiver<Option<Arc<Session>>>;

enum Input {
    Runs(ViewEvent),
    Cancels(ViewEvent),
    Nodes(ViewEvent),
    Ended(AttemptKey),
}

/// Works until `shutdown`, then drains.
pub async fn work(
    context: Arc<WorkerContext>,
    executors: Arc<Executors>,
    sessions: CurrentSession,
    shutdown: CancelToken,
) {
    let (inputs, mut inbox) = mpsc::channel(1_024);
    let view = |span| View::new(context.store.clone(), span, context.relist_ms);
    // Who has no slots claims nothing, so that nobody's runs matter here.
    let _views = (context.slots > 0).then(|| {
        [
            forward(view(context.keys.runs()), inputs.clone(), Input::Runs),
            forward(view(context.keys.cancels()), inputs.clone(), Input::Cancels),
        ]
    });
    let _nodes = forward(view(context.keys.nodes()), inputs.clone(), Input::Nodes);
    let env = context.store.env().clone();
    let me = Peer {
        slots: u32::try_from(context.slots).unwrap_or(u32::MAX),
        queues: context.queues.iter().cloned().collect(),
        needs: executors.needs(),
    };
    // What an earlier life did comes before anything new.
    let _replay = report::replay(&context).await;
    let mut worker = Worker {
        queue: Queue::new(&context.owner.node, me),
        nodes: BTreeMap::new(),
        nodes_known: false,
        drained: Arc::default(),
        context,
        executors,
        sessions,
        inputs,
        held: BTreeMap::new(),
        definitions: Definitions::default(),
        reconciled: None,
    };
    while !shutdown.is_cancelled() {
        let able = worker.step(&mut inbox).await;
        worker.show();
        let now_ms = worker.context.clock.now_ms();
        let wait_ms = if able {
            worker.queue.wait_ms(now_ms).clamp(1, TICK_MS)
        } else {
            UNABLE_TICK_MS
        };
        let wake = race(
            shutdown.cancelled(),
            env.sleep(Duration::from_millis(wait_ms)),
        );
        if let Either::Left(Some(input)) = race(inbox.recv(), wake).await {
            worker.take(input).await;
            worker.show();
        }
    }
    worker.drain(&mut inbox).await;
}

struct Worker {
    context: Arc<WorkerContext>,
    executors: Arc<Executors>,
    sessions: CurrentSession,
    inputs: mpsc::Sender<Input>,
    queue: Queue,
    /// The live nodes.
    nodes: BTreeMap<Owner, NodeRecord>,
    nodes_known: bool,
    /// The nodes that claim nothing.
    drained: Arc<BTreeSet<String>>,
    held: BTreeMap<AttemptKey, Held>,
    definitions: Definitions,
    /// The session under which the runs were last checked for strays.
    reconciled: Option<Revision>,
}

impl Worker {
    /// Shows how many slots are taken.
    fn show(&self) {
        self.context.vitals.set_busy(self.held.len());
    }

    /// Takes everything that has arrived, then claims what there is room for. Answers whether it may
    /// claim at all now: what is due waits without it.
    async fn step(&mut self, inbox: &mut mpsc::Receiver<Input>) -> bool {
        while let Ok(input) = inbox.try_recv() {
            self.take(input).await;
        }
        let session = self.sessions.borrow().clone();
        let Some(session) = session.filter(|s| s.trust.holds()) else {
            return false;
        };
        if self.reconciled != Some(session.revision) {
            match self
                .context
                .store
                .list(&self.context.keys.runs(), None)
                .await
            {
                Ok((entries, _)) => {
                    self.queue.clear();
                    entries.iter().for_each(|entry| self.offer(entry));
                    self.reconciled = Some(session.revision);
                    self.give_back_strays(&entries).await;
                }
                Err(error) => crate::recipe::outage::again(&error, "cannot look for strays"),
            }
        }
        if let ClockState::Held { reason } = self.context.clock.state() {
            // The leader judges a new run's time limit by its own clock: with a limit from a wrong
            // one it would end, and start again elsewhere, what still runs here.
            tracing::debug!(%reason, "claiming nothing");
            return false;
        }
        if !self.may_claim() {
            return false;
        }
        if let Err(error) = self.claim(&session).await {
            crate::recipe::outage::again(&error, "cannot claim");
        }
        true
    }

    async fn take(&mut self, input: Input) {
        match input {
            Input::Ended(key) => {
                self.held.remove(&key);
            }
            Input::Runs(ViewEvent::Listed(entries, _)) => {
                self.queue.clear();
                for entry in &entries {
                    self.offer(entry);
                }
                self.give_back_strays(&entries).await;
            }
            Input::Runs(ViewEvent::Changed(changes)) => {
                for event in &changes.events {
                    match event {
                        Event::Put(entry) => self.offer(entry),
                        Event::Delete { key, .. } => {
                            if let Some(key) = self.context.keys.parse_attempt(key) {
                                self.queue.remove(&key);
                                self.queue.free(&key, self.context.clock.now_ms());
                            }
                        }
                    }
                }
            }
            Input::Nodes(ViewEvent::Listed(entries, _)) => {
                self.nodes.clear();
                entries.iter().for_each(|entry| self.node(entry));
                self.nodes_known = true;
                self.share();
            }
            Input::Nodes(ViewEvent::Changed(changes)) => {
                for event in &changes.events {
                    match event {
                        Event::Put(entry) => self.node(entry),
                        Event::Delete { key, .. } => {
                            if let Some((node, incarnation)) = self.context.keys.parse_node(key) {
                                self.nodes.remove(&Owner { node, incarnation });
                            }
                        }
                    }
                }
                self.share();
            }
            Input::Cancels(ViewEvent::Listed(entries, _)) => {
                for entry in &entries {
                    self.cancel(&entry.key);
                }
            }
            Input::Cancels(ViewEvent::Changed(changes)) => {
                for event in &changes.events {
                    if let Event::Put(entry) = event {
                        self.cancel(&entry.key);
                    }
                }
            }
        }
    }

    fn node(&mut self, entry: &Entry) {
        if let Some((node, incarnation)) = self.context.keys.parse_node(&entry.key)
            && let Ok(record) = decode(&entry.value)
        {
            self.nodes.insert(Owner { node, incarnation }, record);
        }
    }

    /// Shares the runs among those that are there now, and claim.
    fn share(&mut self) {
        let drained = self.context.drained.borrow().clone().unwrap_or_default();
        let me = (self.context.owner.node.as_str(), self.queue.me().clone());
        self.queue.set_peers(Peers::new(&self.nodes, &drained, me));
        self.drained = drained;
    }

    /// A node claims when it knows with whom to share, and is not drained.
    fn may_claim(&mut self) -> bool {
        let Some(drained) = self.context.drained.borrow().clone() else {
            return false;
        };
        if drained != self.drained {
            self.share();
        }
        self.nodes_known && !drained.contains(&self.context.owner.node)
    }

    fn cancel(&self, key: &[u8]) {
        let Some(run) = self.context.keys.parse_cancel(key) else {
            return;
        };
        for (key, held) in &self.held {
            let whole = part_of(&key.run).map(|(whole, _)| whole);
            if key.run == run || whole == Some(run.as_str()) {
                held.canceller.stop(StopCause::Cancelled);
            }
        }
    }

    fn offer(&mut self, entry: &Entry) {
        let keys = &self.context.keys;
        let Some(key) = keys.parse_attempt(&entry.key) else {
            return;
        };
        // What runs here already is old news (a listing may be newer than the watch): claiming it
        // again would replace, and so abort, the execution. Most other news is of what others took.
        let glance = Glance::at(&entry.value);
        let pending = glance.is_some_and(|glance| glance.state == RunState::Pending);
        let news = pending && !self.held.contains_key(&key);
        let now_ms = self.context.clock.now_ms();
        match glance.and_then(|glance| glance.slot) {
            Some(slot) => self.queue.hold(&key, slot),
            None if news => self.queue.free(&key, now_ms),
            None => {}
        }
        match news.then(|| Attempt::read(keys, entry)).flatten() {
            Some(attempt) => self.queue.offer(attempt, now_ms),
            None => self.queue.remove(&key),
        }
    }

    /// The definition of a run that can run here, or why it cannot.
    fn runnable(&self, found: Found) -> Result<Arc<Definition>, String> {
        let definition = found.map_err(|error| error.to_string())?;
        let definition = definition.ok_or("its definition is gone or cannot be read")?;
        if let Some(command) = command_line(&definition) {
            let commands = self.executors.commands.as_ref();
            commands
                .ok_or("this node runs no commands")?
                .allows(&command)?;
        }
        if definition.spec.run.http.is_some() && self.executors.http.is_none() {
            return Err("this node calls no URLs".into());
        }
        Ok(definition)
    }

    /// LOCKED -> PENDING: for another node, or for the leader to end in time.
    async fn decline(&mut self, attempt: Attempt, reason: &str) {
        tracing::warn!(run = attempt.key.run, reason, "not run here");
        self.queue.avoid(&attempt.key, self.context.clock.now_ms());
        let event = RunEvent::Decline(self.context.owner.clone());
        if let Ok(txn) = finish::give_back(&self.context.keys, &attempt, &event) {
            let settled = self.context.store.settle(&txn).await;
            if let Err(error) = settled {
                tracing::error!(run = attempt.key.run, %error, "cannot give the run back");
            }
        }
        self.held.remove(&attempt.key);
    }

    async fn abandon_if_cancelled(&mut self, attempt: Attempt) {
        let mut wanted = false;
        for cancel in attempt.cancels(&self.context.keys) {
            wanted |= matches!(self.context.store.get(&cancel).await, Ok(Some(_)));
        }
        if !wanted {
            // Whoever moved it knows more; the view will tell, and strays are given back.
            self.reconciled = None;
            return;
        }
        let end = End {
            now_ms: self.context.clock.record_ms(),
            nonce: self.context.store.env().random_u64(),
            epoch: self.context.epoch,
            execution: None,
            error: Some("cancelled before it started".into()),
            spec: None,
            uncertain: false,
            late: false,
        };
        let event = RunEvent::Abandon(FailReason::Cancelled);
        if let Ok(txn) = finish::end(&self.context.keys, &attempt, &event, &end)
            && let Err(error) = self.context.store.settle(&txn).await
        {
            tracing::error!(run = attempt.key.run, %error, "cannot end the cancelled run");
        }
    }

    /// Under the session that made it RUNNING: a later one proves nothing about the time between,
    /// in which the run may have been taken for lost.
    fn run(
        &mut self,
        (attempt, definition): (Attempt, Arc<Definition>),
        begun_ms: u64,
        trust: Trust,
    ) {
        let key = attempt.key.clone();
        let (canceller, token) = Canceller::new();
        let canceller = Arc::new(canceller);
        let running = Running {
            attempt,
            definition,
            owner: self.context.owner.clone(),
            begun_ms,
            trust,
            canceller: canceller.clone(),
            token,
        };
        let (context, executors) = (self.context.clone(), self.executors.clone());
        let (inputs, ended) = (self.inputs.clone(), key.clone());
        let task = self.context.store.env().spawn(
            "run",
            Box::pin(async move {
                execute(context, executors, running).await;
                let _ = inputs.send(Input::Ended(ended)).await;
            }),
        );
        let held = Held {
            canceller,
            task: Some(task),
        };
        self.held.insert(key, held);
    }
}
