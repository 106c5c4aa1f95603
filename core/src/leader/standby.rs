//! A standby: knows what the leader knows, leads when nobody does, and deposes a leader under whom
//! instants stay undecided.
//!
//! To depose is to delete the leader's key, if it is the very key that was seen *and* the oldest
//! overdue instant is still undecided. So where the store is merely slow, what the leader has on
//! its way decides first, and the deposal conflicts. Then everybody campaigns as usual, with a
//! fresh lease: a term is the revision that created the key. The old leader's transactions fail
//! from then on, whatever it believes.

use futures_util::future::Either;

use crate::backend::{BackendResult, Requirement, Txn, TxnOutcome};
use crate::clock::ClockState;
use crate::drain::{self, Drained};
use crate::env::race;
use crate::job::record::{LeaderRecord, encode};
use crate::job::run::Owner;
use crate::recipe::election::{Tried, try_lead};
use crate::recipe::retry::Backoff;
use crate::recipe::session::Session;
use crate::worker::CurrentSession;

use super::LeaderContext;
use super::outlook::Outlook;
use super::overdue::{Judgement, is_late, judge};

/// Sleeping is a hint: a standby looks around at least so often.
const TICK_MS: u64 = 500;
/// The same while it may not stand, whatever is due.
const UNFIT_TICK_MS: u64 = 100;
/// A node whose store did not answer waits at most so long before it accuses the leader: it may be on
/// its way back, between two tries. These grow with the time that the store is away, so a short outage
/// is followed by a short grace.
const STORE_GRACE_MS: u64 = 4_000;

/// How long to wait after a failure of a store that has been away for so long. With the takeover's own
/// second it covers a leader's longest wait between two tries: that is no longer than the outage, nor
/// than two seconds.
fn grace_ms(away_ms: u64) -> u64 {
    (away_ms / 2).min(STORE_GRACE_MS)
}

/// Who stands for election.
pub struct Candidate {
    /// The node.
    pub owner: Owner,
    /// Its session: who has none does not stand.
    pub sessions: CurrentSession,
    /// Who is drained does not stand either.
    pub drained: Drained,
    /// Time to live of a leadership.
    pub leader_ttl_ms: u64,
}

/// Stands by for ever. Comes back only as leader.
pub async fn stand_by(
    context: &LeaderContext,
    outlook: &mut Outlook,
    candidate: &Candidate,
) -> Session {
    let mut standby = Standby {
        context,
        candidate,
        backoff: Backoff::default(),
        away_since_ms: None,
        warned: false,
    };
    let mut sessions = candidate.sessions.clone();
    let mut drained = candidate.drained.clone();
    loop {
        let wait_ms = match standby.step(outlook).await {
            Ok(Step::Leads(session)) => return session,
            Ok(Step::Wait(ms)) => {
                standby.backoff = Backoff::default();
                standby.away_since_ms = None;
                ms
            }
            Err(error) => {
                crate::recipe::outage::again(&error, "standby interrupted");
                let now_ms = context.store.env().monotonic_ms();
                let since_ms = *standby.away_since_ms.get_or_insert(now_ms);
                standby.blind(outlook, grace_ms(now_ms - since_ms));
                standby.backoff.wait(context.store.env()).await;
                0
            }
        };
        // Registered, or drained no more.
        let fit = async {
            let changed = race(sessions.changed(), drained.changed()).await;
            if matches!(changed, Either::Left(Err(_)) | Either::Right(Err(_))) {
                std::future::pending::<()>().await;
            }
        };
        if let Err(error) = outlook.wait(wait_ms.clamp(1, TICK_MS), fit).await {
            crate::recipe::outage::again(&error, "cannot follow the schedule");
        }
    }
}

enum Step {
    Leads(Session),
    Wait(u64),
}

struct Standby<'a> {
    context: &'a LeaderContext,
    candidate: &'a Candidate,
    backoff: Backoff,
    /// Since when the store does not answer.
    away_since_ms: Option<u64>,
    warned: bool,
}

impl Standby<'_> {
    async fn step(&mut self, outlook: &mut Outlook) -> BackendResult<Step> {
        outlook.refresh().await?;
        if !self.is_fit() {
            self.blind(outlook, STORE_GRACE_MS);
            return Ok(Step::Wait(UNFIT_TICK_MS));
        }
        if outlook.lead.known.0 == 0 {
            return Ok(Step::Wait(TICK_MS));
        }
        match &outlook.lead.entry {
            None => return self.campaign(outlook).await,
            Some(leader) if leader.lease.is_none() => return self.free(outlook).await,
            Some(_) => {}
        }
        let sight = outlook.sight();
        let at_ms = self.context.store.env().monotonic_ms();
        outlook.pulse.note(self.context.takeover, at_ms, &sight);
        match judge(self.context.takeover, &sight) {
            Judgement::Rest => Ok(Step::Wait(TICK_MS)),
            Judgement::Wait { ms } => Ok(Step::Wait(ms)),
            Judgement::Overdue => {
                self.accuse(outlook).await?;
                Ok(Step::Wait(0))
            }
        }
    }

    /// A node that is not registered, or whose clock is not believed, must not lead.
    fn is_fit(&mut self) -> bool {
        if let ClockState::Held { reason } = self.context.clock.state() {
            if !self.warned {
                tracing::info!(%reason, "not standing for election");
            }
            self.warned = true;
            return false;
        }
        self.warned = false;
        if !drain::is_free(&self.candidate.drained, &self.candidate.owner.node) {
            return false;
        }
        let session = self.candidate.sessions.borrow().clone();
        session.is_some_and(|session| session.trust.holds())
    }

    fn blind(&self, outlook: &mut Outlook, for_ms: u64) {
        let now_ms = self.context.store.env().monotonic_ms();
        outlook.pulse.blind_until(now_ms + for_ms);
    }

    async fn campaign(&mut self, outlook: &mut Outlook) -> BackendResult<Step> {
        let LeaderContext { store, keys, .. } = self.context;
        let sight = outlook.sight();
        let late = u32::from(is_late(self.context.takeover, &sight));
        let takeovers = sight.takeovers.saturating_add(late);
        let record = LeaderRecord {
            owner: self.candidate.owner.clone(),
            since_ms: store.env().wall_ms(),
            takeovers,
        };
        let ttl_ms = self.candidate.leader_ttl_ms;
        match try_lead(store, &keys.leader(), encode(&record), ttl_ms).await {
            Tried::Leads(session) => Ok(Step::Leads(session)),
            Tried::Taken(entry) => {
                let revision = entry.modified;
                outlook.leads(Some(entry), revision, false);
                Ok(Step::Wait(0))
            }
            Tried::Failed => {
                self.backoff.wait(store.env()).await;
                Ok(Step::Wait(0))
            }
        }
    }

    /// The leader's key is under no lease: something else wrote it. It would outlive its leader for
    /// ever, so it is deleted, by its very revision. A leader that is still there loses its lead and
    /// nothing else, and whoever leads next has a lease.
    async fn free(&mut self, outlook: &mut Outlook) -> BackendResult<Step> {
        let (Some(session), Some(leader)) = (
            self.candidate.sessions.borrow().clone(),
            outlook.lead.entry.clone(),
        ) else {
            return Ok(Step::Wait(TICK_MS));
        };
        let txn = Txn::new()
            .require(Requirement::Modified(leader.key.clone(), leader.modified))
            .require(session.guard())
            .delete(leader.key);
        match self.context.store.try_commit(&txn).await? {
            TxnOutcome::Applied { revision, .. } => {
                let written = outlook.lead.record.as_ref().map(|r| r.owner.to_string());
                tracing::warn!(
                    ?written,
                    "the leader's key had no lease, so something else wrote it; deleted, so that \
                     the lead can end by itself again"
                );
                outlook.leads(None, revision, true);
                Ok(Step::Wait(0))
            }
            // Somebody else was faster: the watches will tell.
            TxnOutcome::Conflict { .. } => Ok(Step::Wait(TICK_MS)),
        }
    }

    /// The leader is late as far as is known here: asks the store, and if it is so, deposes it.
    async fn accuse(&mut self, outlook: &mut Outlook) -> BackendResult<()> {
        let LeaderContext { store, keys, .. } = self.context;
        let Some(session) = self.candidate.sessions.borrow().clone() else {
            return Ok(());
        };
        let Some(partition) = outlook.oldest() else {
            return Ok(());
        };
        let number = partition.number;
        let (cursor_revision, changes_revision) =
            (partition.cursor_revision, partition.changes_revision);

        let env = store.env();
        let mut slowest_ms = 0;
        let mut timed = |start_ms: u64| {
            slowest_ms = slowest_ms.max(env.monotonic_ms().saturating_sub(start_ms));
        };
        let start_ms = env.monotonic_ms();
        let cursor = store.get(&keys.cursor(number)).await?;
        timed(start_ms);
        let start_ms = env.monotonic_ms();
        let changes = store.get(&keys.changes(number)).await?;
        timed(start_ms);
        if let Some(cursor) = cursor.filter(|cursor| cursor.modified != cursor_revision) {
            tracing::info!("the leader is not late: the watch of the cursors is");
            outlook.moved(&cursor, false);
            outlook.follow_cursors_anew();
            return Ok(());
        }
        if changes.map(|head| head.modified) != Some(changes_revision) {
            outlook.check_soon();
            return Ok(());
        }
        if slowest_ms > self.context.takeover.takeover_ms / 4 {
            tracing::info!(slowest_ms, "instants are late, and the store is slow");
            self.blind(outlook, STORE_GRACE_MS);
            return Ok(());
        }
        let Some(leader) = outlook.lead.entry.clone() else {
            return Ok(());
        };
        let txn = Txn::new()
            .require(Requirement::Modified(leader.key.clone(), leader.modified))
            .require(Requirement::Modified(keys.cursor(number), cursor_revision))
            .require(session.guard())
            .delete(leader.key);
        let oldest_ms = outlook.sight().oldest_ms;
        match store.try_commit(&txn).await? {
            TxnOutcome::Applied { revision, .. } => {
                let deposed = outlook.lead.record.as_ref().map(|r| r.owner.to_string());
                tracing::warn!(
                    ?deposed,
                    ?oldest_ms,
                    "instants stayed undecided; deposed the leader"
                );
                outlook.leads(None, revision, true);
            }
            TxnOutcome::Conflict { .. } => {
                // The leader was faster, or somebody else deposed it: the watches will tell.
                let now_ms = env.monotonic_ms();
                outlook.pulse.blind_until(now_ms);
            }
        }
        Ok(())
    }
}
