//! What every node knows of the schedule, leading or not: the partitions, and who leads.
//!
//! Loaded once and kept by watches, so that whoever becomes leader fires without reading anything.
//! Nothing rests on it: each commit requires the cursor and the log of changes as they are known
//! here, so an outlook that is behind makes a conflict and is read anew, and a watch that lost
//! something is found by looking at the heads now and then.

use std::future::Future;
use std::time::Duration;

use futures_util::future::Either;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use crate::backend::{BackendResult, Entry, Event, Revision, Span};
use crate::env::{TaskHandle, race};
use crate::job::record::{LeaderRecord, decode};
use crate::recipe::retry::Backoff;
use crate::recipe::view::{View, ViewEvent, forward};

use super::LeaderContext;
use super::overdue::{Pulse, Sight};
use super::partition::{Moved, Partition};

/// The leader's key is read at least so often: a watch that lost the end of the last leader must
/// not cost a minute.
const LEADER_RELIST_MS: u64 = 10_000;
/// So many partitions are read at a time: the store answers one while another is decoded.
const PARTITIONS_AT_ONCE: usize = 2;
/// So often it is told how far the reading has come.
const PROGRESS_MS: u64 = 2_000;

enum Input {
    Jobs(ViewEvent),
    Cursors(ViewEvent),
    Leader(ViewEvent),
}

/// Who leads, as far as is known.
#[derive(Clone, Debug, Default)]
pub struct Lead {
    /// The revision at which this was so.
    pub known: Revision,
    /// The key; `None`: nobody leads.
    pub entry: Option<Entry>,
    /// What it says, when it can be read.
    pub record: Option<LeaderRecord>,
}

/// The partitions and the leader, followed.
pub struct Outlook {
    context: LeaderContext,
    /// All partitions, by number.
    pub partitions: Vec<Partition>,
    /// Who leads.
    pub lead: Lead,
    /// Signs of the leader's life.
    pub pulse: Pulse,
    inputs: mpsc::Sender<Input>,
    feed: mpsc::Receiver<Input>,
    _jobs: TaskHandle,
    cursors: TaskHandle,
    _leader: TaskHandle,
    check_at_ms: u64,
}

impl Outlook {
    /// Reads everything, and follows it from then on. Waits for a store that is away.
    pub async fn open(context: LeaderContext) -> Self {
        let mut backoff = Backoff::default();
        let partitions = loop {
            match load(&context).await {
                Ok(partitions) => break partitions,
                Err(error) => {
                    crate::recipe::outage::again(&error, "cannot read the schedule");
                    backoff.wait(context.store.env()).await;
                }
            }
        };
        let jobs: usize = partitions.iter().map(|p| p.jobs.len()).sum();
        tracing::info!(jobs, "following the schedule");
        let oldest = partitions.iter().map(|p| p.loaded).min();
        let next = Revision(oldest.unwrap_or_default().0 + 1);
        let (inputs, feed) = mpsc::channel(1_024);
        let (store, keys) = (&context.store, &context.keys);
        // Only a hint, and never listed anew: what it misses is found by the heads of the logs.
        let jobs = View::resume(store.clone(), keys.jobs(), next, u64::MAX / 2);
        let leader = View::new(
            store.clone(),
            Span::key(keys.leader()),
            context.relist_ms.min(LEADER_RELIST_MS),
        );
        let now_ms = store.env().monotonic_ms();
        Self {
            _jobs: forward(jobs, inputs.clone(), Input::Jobs),
            cursors: follow_cursors(&context, &inputs),
            _leader: forward(leader, inputs.clone(), Input::Leader),
            partitions,
            lead: Lead::default(),
            pulse: Pulse::new(now_ms),
            inputs,
            feed,
            check_at_ms: now_ms + context.relist_ms,
            context,
        }
    }

    /// Takes in what has arrived; waits for the first of it for at most `ms`, or until `wake`.
    ///
    /// # Errors
    /// Those of the store; what could not be taken in is read anew.
    pub async fn wait(&mut self, ms: u64, wake: impl Future<Output = ()>) -> BackendResult<()> {
        let env = self.context.store.env().clone();
        let sleep = race(env.sleep(Duration::from_millis(ms)), wake);
        let Either::Left(Some(input)) = race(self.feed.recv(), sleep).await else {
            return Ok(());
        };
        self.take(input).await?;
        while let Ok(input) = self.feed.try_recv() {
            self.take(input).await?;
        }
        Ok(())
    }

    async fn take(&mut self, input: Input) -> BackendResult<()> {
        match input {
            Input::Jobs(ViewEvent::Listed(..)) => self.distrust(),
            Input::Jobs(ViewEvent::Changed(changes)) => {
                let keys = &self.context.keys;
                let mut numbers: Vec<u16> = changes
                    .events
                    .iter()
                    .filter_map(|event| keys.parse_job(event.key()).map(|(number, _)| number))
                    .collect();
                numbers.dedup();
                for number in numbers {
                    if let Some(partition) = self.partitions.get_mut(usize::from(number)) {
                        partition
                            .follow(&self.context.store, keys, &changes)
                            .await?;
                    }
                }
            }
            Input::Cursors(ViewEvent::Listed(entries, _)) => {
                for entry in &entries {
                    self.moved(entry, false);
                }
            }
            Input::Cursors(ViewEvent::Changed(changes)) => {
                for event in &changes.events {
                    if let Event::Put(entry) = event {
                        self.moved(entry, true);
                    }
                }
            }
            Input::Leader(ViewEvent::Listed(entries, revision)) => {
                self.leads(entries.into_iter().next(), revision, false);
            }
            Input::Leader(ViewEvent::Changed(changes)) => {
                let last = changes.events.into_iter().next_back();
                let entry = match last {
                    Some(Event::Put(entry)) => Some(entry),
                    _ => None,
                };
                self.leads(entry, changes.revision, true);
            }
        }
        Ok(())
    }

    /// A cursor stands there; `live`: it has just come there. Whether this was news.
    pub fn moved(&mut self, entry: &Entry, live: bool) -> bool {
        let Some(number) = self.context.keys.parse_cursor(&entry.key) else {
            return false;
        };
        let Some(partition) = self.partitions.get_mut(usize::from(number)) else {
            return false;
        };
        let Moved::On { opened_ms } = partition.moved(entry) else {
            return false;
        };
        let now_ms = self.context.clock.now_ms();
        let late_ms = opened_ms
            .filter(|_| live)
            .map(|opened_ms| now_ms.saturating_sub(opened_ms));
        let at_ms = self.context.store.env().monotonic_ms();
        self.pulse.decided(at_ms, late_ms);
        true
    }

    /// Who leads as of `revision`; `live`: it has just changed.
    pub fn leads(&mut self, entry: Option<Entry>, revision: Revision, live: bool) {
        if revision <= self.lead.known {
            return;
        }
        let term = |entry: &Option<Entry>| entry.as_ref().map(|entry| entry.created);
        let another = term(&entry).is_some() && term(&entry) != term(&self.lead.entry);
        let record = entry
            .as_ref()
            .and_then(|entry| decode::<LeaderRecord>(&entry.value).ok());
        if another {
            let since_ms = record.as_ref().filter(|_| live).map(|r| r.since_ms);
            let late_ms = since_ms.map(|ms| self.context.clock.now_ms().saturating_sub(ms));
            let at_ms = self.context.store.env().monotonic_ms();
            self.pulse.lead_began(at_ms, late_ms);
        }
        self.lead = Lead {
            known: revision,
            // What the last leader left behind is asked for when the next one begins.
            record: record.or(self.lead.record.take()),
            entry,
        };
    }

    /// What a standby sees now.
    #[must_use]
    pub fn sight(&self) -> Sight {
        let oldest = self
            .partitions
            .iter()
            .filter(|p| !p.stale && !p.stopped)
            .filter_map(|p| p.due.next_ms())
            .min();
        let takeovers = self.lead.record.as_ref().map_or(0, |r| r.takeovers);
        let at_ms = self.context.store.env().monotonic_ms();
        self.pulse
            .sight(at_ms, self.context.clock.now_ms(), oldest, takeovers)
    }

    /// The partition whose next instant is the oldest.
    #[must_use]
    pub fn oldest(&self) -> Option<&Partition> {
        self.partitions
            .iter()
            .filter(|p| !p.stale && !p.stopped)
            .filter(|p| p.due.next_ms().is_some())
            .min_by_key(|p| p.due.next_ms())
    }

    /// Whether somebody else leads since the lead that began at `term`, or nobody.
    #[must_use]
    pub fn is_deposed(&self, term: Revision) -> bool {
        self.lead.known > term && self.lead.entry.as_ref().map(|e| e.created) != Some(term)
    }

    /// The watch of the cursors has missed something.
    pub fn follow_cursors_anew(&mut self) {
        self.cursors = follow_cursors(&self.context, &self.inputs);
    }

    /// Everything is read anew before it is used again.
    pub fn distrust(&mut self) {
        self.partitions.iter_mut().for_each(|p| p.stale = true);
    }

    /// The heads are looked at when next possible.
    pub fn check_soon(&mut self) {
        self.check_at_ms = 0;
    }

    /// Reads anew what is not known to be complete, and looks at the heads when it is time: a watch
    /// that stalled is found there.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn refresh(&mut self) -> BackendResult<()> {
        let LeaderContext { store, keys, .. } = &self.context;
        if store.env().monotonic_ms() >= self.check_at_ms {
            for partition in &mut self.partitions {
                let head = store.get(&keys.changes(partition.number)).await?;
                if head.map(|head| head.modified) != Some(partition.changes_revision) {
                    partition.stale = true;
                }
            }
            self.check_at_ms = store.env().monotonic_ms() + self.context.relist_ms;
        }
        let now_ms = store.env().monotonic_ms();
        let unread = self
            .partitions
            .iter_mut()
            .filter(|p| p.is_to_be_read(now_ms));
        for partition in unread {
            partition.reload(store, keys).await?;
        }
        Ok(())
    }
}

/// Reads all partitions, the next ones while one is decoded, and tells how far it has come.
async fn load(context: &LeaderContext) -> BackendResult<Vec<Partition>> {
    let env = context.store.env();
    let of = context.meta.partitions;
    let open = |number| Partition::open(&context.store, &context.keys, number);
    let mut opened = stream::iter((0..of).map(open)).buffered(PARTITIONS_AT_ONCE);
    let (mut partitions, mut jobs) = (Vec::new(), 0);
    let mut tell_at_ms = env.monotonic_ms() + PROGRESS_MS;
    while let Some(partition) = opened.try_next().await? {
        jobs += partition.jobs.len();
        partitions.push(partition);
        if env.monotonic_ms() >= tell_at_ms {
            tell_at_ms = env.monotonic_ms() + PROGRESS_MS;
            let done = partitions.len();
            tracing::info!(partitions = done, of, jobs, "reading the schedule");
        }
    }
    Ok(partitions)
}

fn follow_cursors(context: &LeaderContext, inputs: &mpsc::Sender<Input>) -> TaskHandle {
    let view = View::new(
        context.store.clone(),
        context.keys.cursors(),
        context.relist_ms,
    );
    forward(view, inputs.clone(), Input::Cursors)
}
