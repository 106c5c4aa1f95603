//! The leader: the one node that decides what becomes of each instant.
//!
//! Data takes one way here: definitions and cursor -> [`crate::plan`] -> guarded commit. Every
//! duty is safe to be done twice or half, because every step is its own guarded transaction and
//! the next leader finds the rest by reading. Losing the lead ends this code and nothing else:
//! running work belongs to the workers.

pub mod authority;
pub mod fire;
pub mod keeper;
pub mod partition;
pub mod retain;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::Either;
use tokio::sync::mpsc;

use crate::backend::{BackendError, BackendResult, Revision, limits};
use crate::clock::{ClockState, FireClock};
use crate::env::race;
use crate::job::record::Meta;
use crate::keys::Keys;
use crate::plan::plan;
use crate::recipe::retry::{Backoff, Store};
use crate::recipe::session::Session;
use crate::recipe::view::{View, ViewEvent, forward};

use authority::{Authority, Ruling};
use fire::{Fire, Verdict};
use partition::Partition;

/// What a leader works with.
#[derive(Clone)]
pub struct LeaderContext {
    /// The store.
    pub store: Store,
    /// The namespace's keys.
    pub keys: Keys,
    /// The namespace.
    pub meta: Meta,
    /// Decides what is due.
    pub clock: Arc<FireClock>,
    /// How often views are listed anew, in milliseconds.
    pub relist_ms: u64,
    /// How long a session must be gone before its runs are taken, in milliseconds.
    pub lost_grace_ms: u64,
}

/// So many partitions share a request.
const PARTITIONS_A_REQUEST: usize = 16;
/// Sleeping is a hint: the loop looks at the clock at least so often.
const TICK_MS: i64 = 500;
/// How often a leader looks whether its clock still follows.
const CLOCK_CHECK: Duration = Duration::from_secs(1);

/// Leads until the lead is lost. Comes back only then (or when the store is broken).
pub async fn lead(context: &LeaderContext, session: Arc<Session>) {
    let authority = Authority::new(context.store.clone(), session.clone());
    let (notices, inbox) = mpsc::channel(256);
    let keeper = context.store.env().spawn(
        "keeper",
        Box::pin(keeper::keep(context.clone(), authority.clone(), inbox)),
    );
    let firing = async {
        let mut backoff = Backoff::default();
        loop {
            match fire_loop(context, &authority, &notices).await {
                Ok(()) => return,
                Err(error)
                    if error.is_transient() || matches!(error, BackendError::Compacted { .. }) =>
                {
                    tracing::warn!(%error, "leader interrupted; starting over");
                    backoff.wait(context.store.env()).await;
                }
                Err(error) => {
                    tracing::error!(%error, "leader stopped");
                    return;
                }
            }
        }
    };
    let over = race(session.ended(), clock_steps(context));
    let _ = race(over, firing).await;
    drop(keeper);
}

/// Completes when the clock is held. Nothing fires here until it is believed, which may take a
/// person: another node, whose clock is right, must lead.
async fn clock_steps(context: &LeaderContext) {
    loop {
        if let ClockState::Held { reason } = context.clock.state() {
            tracing::warn!(%reason, "giving up the lead");
            return;
        }
        context.store.env().sleep(CLOCK_CHECK).await;
    }
}

/// Loads everything, then fires what is due until deposed.
async fn fire_loop(
    context: &LeaderContext,
    authority: &Authority,
    notices: &mpsc::Sender<keeper::Notice>,
) -> BackendResult<()> {
    let LeaderContext {
        store, keys, clock, ..
    } = context;
    let mut partitions = Vec::new();
    for number in 0..context.meta.partitions {
        partitions.push(Partition::load(store, keys, number).await?);
    }
    let oldest = partitions
        .iter()
        .map(|p| p.loaded)
        .min()
        .unwrap_or_default();
    let jobs: usize = partitions.iter().map(|p| p.jobs.len()).sum();
    tracing::info!(jobs, "leading");

    // Only a hint: what it misses is found by the heads of the logs, below and in every commit.
    let (events, mut feed) = mpsc::channel(1_024);
    let _watch = forward(
        View::resume(
            store.clone(),
            keys.jobs(),
            Revision(oldest.0 + 1),
            u64::MAX / 2,
        ),
        events,
        |event| event,
    );
    let mut check_at_ms = store.env().monotonic_ms() + context.relist_ms;
    loop {
        for partition in partitions.iter_mut().filter(|p| p.stale && !p.stopped) {
            partition.reload(store, keys).await?;
        }
        let next_ms = match fire_due(context, authority, notices, &mut partitions).await? {
            Fired::Deposed => return Ok(()),
            Fired::Untrusted => None,
            Fired::Until(next_ms) => next_ms,
        };
        let wait_ms = next_ms
            .map_or(TICK_MS, |next| next - clock.now_ms())
            .clamp(1, TICK_MS);
        let sleep = store
            .env()
            .sleep(Duration::from_millis(wait_ms.unsigned_abs()));
        if let Either::Left(Some(event)) = race(feed.recv(), sleep).await {
            follow(context, &mut partitions, event).await?;
            while let Ok(event) = feed.try_recv() {
                follow(context, &mut partitions, event).await?;
            }
        }
        if store.env().monotonic_ms() >= check_at_ms {
            check_heads(context, &mut partitions).await?;
            check_at_ms = store.env().monotonic_ms() + context.relist_ms;
        }
    }
}

async fn follow(
    context: &LeaderContext,
    partitions: &mut [Partition],
    event: ViewEvent,
) -> BackendResult<()> {
    match event {
        ViewEvent::Listed(..) => partitions.iter_mut().for_each(|p| p.stale = true),
        ViewEvent::Changed(changes) => {
            let mut numbers: Vec<u16> = changes
                .events
                .iter()
                .filter_map(|event| {
                    context
                        .keys
                        .parse_job(event.key())
                        .map(|(number, _)| number)
                })
                .collect();
            numbers.dedup();
            for number in numbers {
                if let Some(partition) = partitions.get_mut(usize::from(number)) {
                    partition
                        .follow(&context.store, &context.keys, &changes)
                        .await?;
                }
            }
        }
    }
    Ok(())
}

/// A watch that stalled is found here: a partition whose log has moved is read anew.
async fn check_heads(context: &LeaderContext, partitions: &mut [Partition]) -> BackendResult<()> {
    for partition in partitions {
        let head = context
            .store
            .get(&context.keys.changes(partition.number))
            .await?;
        if head.map(|head| head.modified) != Some(partition.changes_revision) {
            partition.stale = true;
        }
    }
    Ok(())
}

/// How firing ended.
enum Fired {
    /// Everything due is decided; the next instant, if there is one.
    Until(Option<i64>),
    /// The lease may have ended; try again when it is prolonged.
    Untrusted,
    /// Somebody else leads.
    Deposed,
}

/// Decides everything that is due, batch by batch, without a pause between.
async fn fire_due(
    context: &LeaderContext,
    authority: &Authority,
    notices: &mpsc::Sender<keeper::Notice>,
    partitions: &mut [Partition],
) -> BackendResult<Fired> {
    loop {
        let now_ms = context.clock.now_ms();
        let fires = prepare(context, partitions, now_ms);
        if fires.is_empty() {
            let next = partitions
                .iter()
                .filter(|p| !p.stopped)
                .filter_map(|p| p.due.next_ms())
                .min();
            return Ok(Fired::Until(next));
        }
        let (numbers, txns): (Vec<_>, Vec<_>) = fires
            .iter()
            .map(|(number, fire)| (*number, fire.txn.clone()))
            .unzip();
        match authority.commit(&txns).await? {
            Ruling::Deposed => return Ok(Fired::Deposed),
            Ruling::Untrusted => return Ok(Fired::Untrusted),
            Ruling::Judged(revision, outcomes) => {
                for ((number, outcome), (_, fire)) in numbers.iter().zip(&outcomes).zip(&fires) {
                    let partition = &mut partitions[usize::from(*number)];
                    if fire.settle(partition, revision, outcome) == Verdict::Decided {
                        tell_keeper(notices, *number, fire);
                    }
                }
            }
        }
        for partition in partitions.iter_mut().filter(|p| p.stale && !p.stopped) {
            partition.reload(&context.store, &context.keys).await?;
        }
    }
}

/// Skip records never pass through `run/`, so the keeper would not notice them by itself.
fn tell_keeper(notices: &mpsc::Sender<keeper::Notice>, number: u16, fire: &Fire) {
    for (job, count) in fire.skip_records() {
        // A full channel only delays the pruning to the next sweep.
        let _ = notices.try_send(keeper::Notice {
            partition: number,
            job: job.to_string(),
            records: count,
        });
    }
}

/// Plans for every partition that has something due, as many as fit into one request.
fn prepare(context: &LeaderContext, partitions: &mut [Partition], now_ms: i64) -> Vec<(u16, Fire)> {
    let mut fires: Vec<(u16, Fire)> = Vec::new();
    let mut bytes = 0;
    for partition in partitions.iter_mut().filter(|p| !p.stale && !p.stopped) {
        if fires.len() == PARTITIONS_A_REQUEST {
            break;
        }
        let planned = plan(
            &partition.jobs,
            &partition.due,
            &partition.cursor,
            now_ms,
            partition.batch,
        );
        let Some(planned) = planned else { continue };
        let fire = Fire::new(&context.keys, partition, planned, now_ms);
        let size = limits::txn_bytes(&fire.txn);
        if size > limits::MAX_REQUEST_BYTES - 4_096 {
            partition.batch = (partition.batch / 2).max(1);
            continue;
        }
        if bytes + size > limits::MAX_REQUEST_BYTES - 4_096 {
            break;
        }
        bytes += size;
        fires.push((partition.number, fire));
    }
    fires
}
