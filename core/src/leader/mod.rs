//! The leader: the one node that decides what becomes of each instant.
//!
//! Data takes one way here: definitions and cursor -> [`crate::plan`] -> guarded commit. Every
//! duty is safe to be done twice or half, because every step is its own guarded transaction and
//! the next leader finds the rest by reading. Losing the lead ends this code and nothing else:
//! running work belongs to the workers.

pub mod authority;
pub mod chain;
pub mod crowd;
pub mod delay;
pub mod fire;
pub mod keeper;
pub mod notes;
pub mod outlook;
pub mod overdue;
pub mod partition;
pub mod parts;
pub mod retain;
pub mod siblings;
pub mod standby;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;

use crate::backend::{BackendError, BackendResult, Revision, limits};
use crate::clock::{ClockState, FireClock};
use crate::env::race;
use crate::job::record::Meta;
use crate::keys::Keys;
use crate::notify::Notifier;
use crate::plan::plan;
use crate::recipe::retry::{Backoff, Store};
use crate::recipe::session::Session;
use crate::vitals::Vitals;

use authority::{Authority, Ruling};
use fire::{Fire, Verdict};
use outlook::Outlook;
use overdue::Policy;
use partition::Partition;
use retain::Notice;

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
    /// Tells people, if this node can.
    pub notifier: Option<Arc<dyn Notifier>>,
    /// When a standby deposes the leader.
    pub takeover: Policy,
    /// What the node shows of itself.
    pub vitals: Arc<Vitals>,
}

/// So many partitions share a request.
const PARTITIONS_A_REQUEST: usize = 16;
/// With so many decisions a request is large enough: further partitions go into the next one.
const DECISIONS_A_REQUEST: usize = 700;
/// So many requests are on their way at once: one is answered while the next is planned.
const REQUESTS_IN_FLIGHT: usize = 2;
/// Sleeping is a hint: the loop looks at the clock at least so often.
const TICK_MS: i64 = 500;
/// How often a leader looks whether its clock still follows.
const CLOCK_CHECK: Duration = Duration::from_secs(1);

/// Leads until the lead is lost, with what `outlook` knows already. Comes back only then (or when
/// the store is broken).
pub async fn lead(context: &LeaderContext, outlook: &mut Outlook, session: Arc<Session>) {
    let _leading = context.vitals.lead();
    let authority = Authority::new(context.store.clone(), session.clone());
    let (notices, inbox) = mpsc::unbounded_channel();
    let env = context.store.env();
    let keeper = keeper::keep(context.clone(), authority.clone(), notices.clone());
    let keeper = env.spawn("keeper", Box::pin(keeper));
    let retention = retain::retain(context.clone(), authority.clone(), inbox);
    let retention = env.spawn("retention", Box::pin(retention));
    let term = session.revision;
    let firing = async {
        let mut backoff = Backoff::default();
        loop {
            match fire_loop(context, outlook, &authority, term, &notices).await {
                Ok(()) => return,
                Err(error)
                    if error.is_transient() || matches!(error, BackendError::Compacted { .. }) =>
                {
                    crate::recipe::outage::again(&error, "leader interrupted");
                    backoff.wait(context.store.env()).await;
                }
                Err(error) => {
                    tracing::error!(%error, "leader stopped");
                    outlook.distrust();
                    return;
                }
            }
        }
    };
    let over = race(session.ended(), clock_steps(context));
    let _ = race(over, firing).await;
    drop((keeper, retention));
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

/// Fires what is due until deposed.
async fn fire_loop(
    context: &LeaderContext,
    outlook: &mut Outlook,
    authority: &Authority,
    term: Revision,
    notices: &mpsc::UnboundedSender<Notice>,
) -> BackendResult<()> {
    loop {
        outlook.refresh().await?;
        let fired = fire_due(context, authority, notices, &mut outlook.partitions).await?;
        let next_ms = match fired {
            Fired::Deposed => return Ok(()),
            Fired::Untrusted => None,
            Fired::Until(next_ms) => next_ms,
        };
        let wait_ms = next_ms
            .map_or(TICK_MS, |next| next - context.clock.now_ms())
            .clamp(1, TICK_MS);
        outlook
            .wait(wait_ms.unsigned_abs(), std::future::pending())
            .await?;
        if outlook.is_deposed(term) {
            return Ok(());
        }
    }
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

/// Decides everything that is due, batch by batch, without a pause between. While one request is on
/// its way, the next one is planned for other partitions: a partition has one plan at a time.
async fn fire_due(
    context: &LeaderContext,
    authority: &Authority,
    notices: &mpsc::UnboundedSender<Notice>,
    partitions: &mut [Partition],
) -> BackendResult<Fired> {
    let mut flying = FuturesUnordered::new();
    // Partitions of a flight that was dropped are planned from what is known of them: if it was
    // committed all the same, the next plan conflicts, and they are read anew.
    let mut away: BTreeSet<u16> = BTreeSet::new();
    loop {
        context.vitals.tick();
        while flying.len() < REQUESTS_IN_FLIGHT {
            let fires = prepare(context, partitions, &away).await?;
            if fires.is_empty() {
                break;
            }
            away.extend(fires.iter().map(|(number, _)| *number));
            flying.push(async move {
                let txns: Vec<_> = fires.iter().map(|(_, fire)| fire.txn.clone()).collect();
                (authority.commit(&txns).await, fires)
            });
        }
        let Some((ruling, fires)) = flying.next().await else {
            let at_ms = context.store.env().monotonic_ms();
            if partitions.iter().any(|p| p.is_to_be_read(at_ms)) {
                read_anew(context, partitions, &away).await?;
                continue;
            }
            // (One that rests is overdue, and so looked at again at once.)
            let next = partitions
                .iter()
                .filter(|p| !p.stopped)
                .filter_map(|p| p.due.next_ms())
                .min();
            return Ok(Fired::Until(next));
        };
        let (revision, outcomes) = match ruling? {
            Ruling::Deposed => return Ok(Fired::Deposed),
            Ruling::Untrusted => return Ok(Fired::Untrusted),
            Ruling::Judged(revision, outcomes) => (revision, outcomes),
        };
        for ((number, fire), outcome) in fires.iter().zip(&outcomes) {
            away.remove(number);
            let partition = &mut partitions[usize::from(*number)];
            match fire.settle(partition, revision, outcome) {
                Verdict::Decided => note_skips(notices, partition, fire),
                Verdict::Stale => {}
                Verdict::Overtaken => partition.rest(context.store.env().monotonic_ms()),
            }
        }
        read_anew(context, partitions, &away).await?;
    }
}

/// Reads the partitions that were found to be behind; one whose plan is on its way waits for that.
async fn read_anew(
    context: &LeaderContext,
    partitions: &mut [Partition],
    away: &BTreeSet<u16>,
) -> BackendResult<()> {
    let now_ms = context.store.env().monotonic_ms();
    for partition in partitions.iter_mut() {
        if partition.is_to_be_read(now_ms) && !away.contains(&partition.number) {
            partition.reload(&context.store, &context.keys).await?;
        }
    }
    Ok(())
}

/// Skip records never pass through `run/`, so that nobody else would notice them.
fn note_skips(notices: &mpsc::UnboundedSender<Notice>, partition: &Partition, fire: &Fire) {
    for (id, count) in fire.skip_records() {
        let job = partition.jobs.get(id);
        // Whoever does not listen any more ends with this leader.
        let _ = notices.send(Notice {
            job: id.to_string(),
            records: count,
            definition: job.map_or((0, 0), |job| (job.uid.0, job.record.generation)),
        });
    }
}

/// Plans for partitions that have something due and are not `away`, as many as go into one request.
async fn prepare(
    context: &LeaderContext,
    partitions: &mut [Partition],
    away: &BTreeSet<u16>,
) -> BackendResult<Vec<(u16, Fire)>> {
    let now_ms = context.clock.now_ms();
    let mut fires: Vec<(u16, Fire)> = Vec::new();
    let (mut bytes, mut decisions) = (0, 0);
    let at_ms = context.store.env().monotonic_ms();
    let is_here = |p: &Partition| !p.stale && !p.stopped && !away.contains(&p.number);
    let mut ready: Vec<&mut Partition> = partitions
        .iter_mut()
        .filter(|p| is_here(p) && p.rest_until_ms <= at_ms)
        .collect();
    // The oldest instants first: under load not every partition has a place in each request.
    ready.sort_by_key(|p| p.due.next_ms().unwrap_or(i64::MAX));
    for partition in ready {
        if fires.len() == PARTITIONS_A_REQUEST || decisions >= DECISIONS_A_REQUEST {
            break;
        }
        let planned = plan(
            &partition.jobs,
            &partition.due,
            &partition.cursor,
            now_ms,
            partition.batch,
        );
        let Some(mut planned) = planned else { continue };
        planned.truncate(fire::independent(partition, &planned));
        let (store, keys) = (&context.store, &context.keys);
        let known = siblings::known(store, keys, partition, &planned.decisions).await?;
        let Some(known) = known else {
            // A job of the plan is gone: read anew, but not again and again without a pause.
            partition.stale = true;
            partition.rest(at_ms);
            continue;
        };
        let fire = Fire::new(keys, partition, planned, &known, now_ms);
        let size = limits::txn_bytes(&fire.txn);
        if size > limits::MAX_REQUEST_BYTES - 4_096 {
            partition.batch = (partition.batch / 2).max(1);
            continue;
        }
        if bytes + size > limits::MAX_REQUEST_BYTES - 4_096 {
            break;
        }
        bytes += size;
        decisions += fire.plan.decisions.len();
        fires.push((partition.number, fire));
    }
    Ok(fires)
}
