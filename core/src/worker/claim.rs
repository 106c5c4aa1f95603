//! claim -> start, for many runs at once.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};

use crate::backend::{BackendError, BackendResult, BatchOutcome, TxnOutcome};
use crate::job::finish::{self, Attempt};
use crate::job::record::encode;
use crate::recipe::session::Session;

use super::execute::{COMMAND_PATIENCE_MS, start_patience_ms};
use super::held::Held;
use super::queue::Taken;
use super::step::{Following, Starts, Step, send};
use super::{MAX_CLAIMS, Worker, WorkerContext};

impl Worker {
    /// Claims what there is room for, starts it, and hands it to a task of its own. Two requests are
    /// on their way at once: one starts what the one before has claimed, the other claims more.
    pub(super) async fn claim(&mut self, session: &Arc<Session>) -> BackendResult<()> {
        self.ask_for_slots().await;
        let store = self.context.store.clone();
        let guard = [session.guard()];
        let mut locked = Vec::new();
        loop {
            let claims = self.claims(session);
            let starts = self.starts(std::mem::take(&mut locked)).await;
            if claims.txns.is_empty() && starts.step.txns.is_empty() {
                return Ok(());
            }
            let Starts { step, of, begun_ms } = starts;
            let starting = pin!(send(&store, &guard, &step.txns));
            let claiming = pin!(send(&store, &guard, &claims.txns));
            // Before anything else is waited for: what is RUNNING must run.
            let (started, claimed) = match select(starting, claiming).await {
                Either::Left((answer, claiming)) => {
                    let started = self.started(session, &step, of, begun_ms, answer);
                    (started, claiming.await)
                }
                Either::Right((claimed, starting)) => {
                    let answer = starting.await;
                    let started = self.started(session, &step, of, begun_ms, answer);
                    (started, claimed)
                }
            };
            let claimed = self.taken(session, &claims, claimed);
            let left = match started {
                Ok(left) => left,
                Err(error) => {
                    // Nobody would start these: they are strays now, and given back as such.
                    for attempt in claimed.unwrap_or_default() {
                        self.held.remove(&attempt.key);
                    }
                    self.reconciled = None;
                    return Err(error);
                }
            };
            // These did not start: most likely somebody cancelled them.
            for attempt in left {
                self.abandon_if_cancelled(attempt).await;
            }
            locked = claimed?;
        }
    }

    /// PENDING -> LOCKED, for what there is room for.
    fn claims(&mut self, session: &Session) -> Step {
        let free = self.context.slots.saturating_sub(self.held.len());
        // (What is claimed already is started even so: its request decides whether it may.)
        let free = if session.trust.holds() { free } else { 0 };
        let now_ms = self.context.clock.now_ms();
        let wanted = self.queue.take(free.min(MAX_CLAIMS), now_ms);
        let now_ms = self.context.clock.record_ms();
        let mut step = Step::default();
        for Taken { attempt, slot } in wanted {
            if self.held.contains_key(&attempt.key) {
                continue;
            }
            let WorkerContext { keys, owner, .. } = &*self.context;
            let claim = finish::claim(keys, &attempt, owner, slot, now_ms);
            let Ok((txn, record)) = claim else { continue };
            if !step.fits(&txn) {
                self.queue.offer(attempt, now_ms);
                continue;
            }
            step.add(attempt.key.clone(), txn, record);
            self.held.insert(attempt.key, Held::new());
        }
        self.show();
        step
    }

    /// LOCKED -> RUNNING; what cannot run here is given back.
    async fn starts(&mut self, locked: Vec<Attempt>) -> Starts {
        let mut starts = Starts::default();
        let WorkerContext { store, keys, .. } = &*self.context;
        let found = self.definitions.of(store, keys, &locked).await;
        starts.begun_ms = store.env().monotonic_ms();
        for (attempt, found) in locked.into_iter().zip(found) {
            let definition = match self.runnable(found) {
                Ok(definition) => definition,
                Err(reason) => {
                    self.decline(attempt, &reason).await;
                    continue;
                }
            };
            let now_ms = self.context.clock.record_ms();
            let kill_grace_ms = self.context.kill_grace_ms;
            // A process that stands still is stopped by its supervisor when its session has run
            // out, and not before: an end that came sooner would let another attempt run beside it.
            let stands_still_ms = self.context.lost_grace_ms + kill_grace_ms;
            let stopped_ms = kill_grace_ms + COMMAND_PATIENCE_MS;
            let grace_ms = stands_still_ms.max(start_patience_ms(kill_grace_ms) + stopped_ms);
            let end_ms = definition.spec.timeout.ms() + grace_ms;
            let start = finish::start(
                &self.context.keys,
                &attempt,
                &self.context.owner,
                finish::Start {
                    place: u8::try_from(starts.step.txns.len()).unwrap_or(u8::MAX),
                    now_ms,
                    deadline_ms: now_ms.saturating_add(i64::try_from(end_ms).unwrap_or(i64::MAX)),
                    grace_ms: self.context.lost_grace_ms,
                },
            );
            let Ok((txn, record)) = start else { continue };
            starts.step.add(attempt.key.clone(), txn, record);
            starts.of.insert(attempt.key.clone(), (attempt, definition));
        }
        starts
    }

    /// Runs what is RUNNING now; gives what did not start.
    fn started(
        &mut self,
        session: &Session,
        step: &Step,
        mut left: Following,
        begun_ms: u64,
        answer: BackendResult<BatchOutcome>,
    ) -> BackendResult<Vec<Attempt>> {
        for running in self.taken(session, step, answer)? {
            if let Some((_, definition)) = left.remove(&running.key) {
                let trust = session.trust.clone();
                self.run((running, definition), begun_ms, trust);
            }
        }
        Ok(left.into_values().map(|(attempt, _)| attempt).collect())
    }

    /// What became of one step of several runs; gives those that took it. The others are no longer
    /// held.
    fn taken(
        &mut self,
        session: &Session,
        step: &Step,
        answer: BackendResult<BatchOutcome>,
    ) -> BackendResult<Vec<Attempt>> {
        let (revision, outcomes) = match answer {
            Ok(BatchOutcome::Judged { revision, outcomes }) => (revision, outcomes),
            // No store takes it: what is in it is too large, and the session as good as before.
            Err(error @ BackendError::Rejected(_)) => {
                let now_ms = self.context.clock.now_ms();
                for (key, _) in &step.records {
                    self.held.remove(key);
                    self.queue.avoid(key, now_ms);
                }
                return Err(error);
            }
            other => {
                // The session is gone. Nothing is known of earlier copies of the request; whatever
                // they did is found and given back when the runs are read next.
                for (key, _) in &step.records {
                    self.held.remove(key);
                }
                self.reconciled = None;
                session.trust.end();
                return other.map(|_| Vec::new());
            }
        };
        let mut taken = Vec::new();
        for (((key, record), outcome), txn) in step.records.iter().zip(outcomes).zip(&step.txns) {
            let modified = match outcome {
                TxnOutcome::Applied { .. } => Some(revision),
                // An earlier copy of this very request may have won.
                TxnOutcome::Conflict { seen } => {
                    let at = seen.first().and_then(Option::as_ref);
                    let ours = at.filter(|entry| entry.value == encode(record));
                    if ours.is_none() && record.slot.is_some() {
                        self.slot_refused(txn, &seen);
                    }
                    ours.map(|entry| entry.modified)
                }
            };
            match modified {
                Some(modified) => {
                    if let Some(slot) = record.slot {
                        self.queue.hold(key, slot);
                    }
                    taken.push(Attempt {
                        key: key.clone(),
                        record: record.clone(),
                        modified,
                    });
                }
                None => {
                    self.held.remove(key);
                }
            }
        }
        Ok(taken)
    }
}
