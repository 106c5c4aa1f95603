//! The hand that breaks things.

use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use punctual::backend::{CoordinationBackend, Entry, Revision, Txn};
use punctual::bootstrap::DEFAULT_PARTITIONS;
use punctual::cancel::StopCause;
use punctual::control::RunKind;
use punctual::job::record::{JobRecord, LeaderRecord, RunRecord, decode, encode};
use punctual::job::run::Owner;
use punctual::job::{Definition, Definitions, Job};
use punctual::keys::{AttemptKey, Keys, partition_of};
use punctual::leader::fire::pending;
use punctual::time::compact;

use super::{Event, Life, NAMESPACE, Slot, World};
use crate::sim::coverage;
use crate::sim::executor::Proc;
use crate::sim::schedule::{Fault, Spoilt};

impl World<'_> {
    fn leader(&self) -> Option<usize> {
        let key = Keys::new(NAMESPACE).leader();
        let entries = self.store.entries().ok()?;
        let entry = entries.iter().find(|entry| entry.key == key)?;
        let record: LeaderRecord = decode(&entry.value).ok()?;
        self.slots
            .iter()
            .position(|slot| self.owner_of(slot) == Some(record.owner.clone()))
    }

    fn owner_of(&self, slot: &Slot) -> Option<Owner> {
        let lives = self.lives.lock().unwrap();
        Some(lives.get(&slot.proc?)?.owner.clone())
    }

    pub(super) fn fault(&mut self, fault: &Fault) {
        let now = self.executor.now_ms();
        if now > self.plan.heal_ms {
            return;
        }
        match *fault {
            Fault::Link { .. } => {}
            Fault::Crash { node, down_ms } => {
                self.count("crash");
                self.kill(node);
                self.at(now + down_ms, Event::Start(node));
            }
            Fault::CrashLeader { down_ms } => {
                if let Some(node) = self.leader() {
                    self.count("leader crash");
                    self.kill(node);
                    self.at(now + down_ms, Event::Start(node));
                }
            }
            Fault::Leave { node, down_ms } => {
                if let Some(stop) = &self.slots[node].stop {
                    stop.stop(StopCause::Cancelled);
                    self.slots[node].leaving = true;
                    self.count("graceful leave");
                    // What is not gone by then is killed, as an init system does.
                    self.at(
                        now + down_ms,
                        Event::Fault(Fault::Crash { node, down_ms: 100 }),
                    );
                }
            }
            Fault::Pause { node, for_ms } => self.pause(node, for_ms),
            Fault::PauseLeader { for_ms } => {
                if let Some(node) = self.leader() {
                    self.pause(node, for_ms);
                }
            }
            Fault::RevokeNode { node } => {
                if let Some(owner) = self.owner_of(&self.slots[node]) {
                    let key = Keys::new(NAMESPACE).node(&owner.node, &owner.incarnation);
                    self.revoke(&key);
                }
            }
            Fault::RevokeLeader => self.revoke(&Keys::new(NAMESPACE).leader()),
            Fault::ProlongLeases => {
                self.count("leases prolonged");
                for lease in self.store.leases().unwrap_or_default() {
                    let _ = self.store.keep_alive(lease).now_or_never();
                }
            }
            Fault::Step { node, ms } => {
                self.count("clock step");
                let before = self.offset_ms(node);
                self.set_clock(node, ms);
                let step_ms = self.offset_ms(node) - before;
                if self.slots[node].proc.is_some() && coverage::is_not_believed(step_ms) {
                    self.count("clock step, not believed");
                }
            }
            Fault::Creep { node, ms } => {
                self.count("clock creeps");
                let clock = &self.slots[node].clock;
                clock.offset_ms.fetch_add(ms, Ordering::SeqCst);
            }
            Fault::BootWrong {
                node,
                down_ms,
                ms,
                right_after_ms,
            } => {
                self.count("boot with a wrong clock");
                self.kill(node);
                let start = now + down_ms;
                self.at(start, Event::StartWrong(node, ms));
                let right = Fault::Step { node, ms: 0 };
                self.at(start + right_after_ms, Event::Fault(right));
            }
            Fault::ForeignRun {
                ref job,
                instant_ms,
            } => {
                if self.foreign_run(job, instant_ms).is_some() {
                    self.count("run written past the cursor");
                }
                self.drain_tap();
            }
            Fault::Spoil {
                ref record,
                delete,
                for_ms,
            } => self.spoil(record, delete, for_ms),
            Fault::TakeLeaderLease => {
                let key = Keys::new(NAMESPACE).leader();
                if let Some(entry) = self.entry(&key) {
                    self.write(Txn::new().put(key, entry.value));
                    self.count("leader's key without a lease");
                }
            }
            Fault::Compact { keep } => {
                self.count("compaction");
                self.drain_tap();
                if let Ok(revision) = self.store.revision() {
                    let _ = self
                        .store
                        .compact(Revision(revision.0.saturating_sub(keep).max(1)));
                }
            }
        }
    }

    fn entry(&self, key: &[u8]) -> Option<Entry> {
        let entries = self.store.entries().unwrap_or_default();
        entries.into_iter().find(|entry| entry.key == key)
    }

    /// Past every wire.
    pub(super) fn write(&self, txn: Txn) {
        self.drain_tap();
        let _ = self.store.commit(&txn).now_or_never();
        self.drain_tap();
    }

    fn spoil(&mut self, record: &Spoilt, delete: bool, for_ms: Option<u64>) {
        let keys = Keys::new(NAMESPACE);
        let key = match record {
            Spoilt::Cursor(partition) => keys.cursor(*partition),
            Spoilt::Changes(partition) => keys.changes(*partition),
            Spoilt::Drain(node) => keys.drain(node),
        };
        let before = self.entry(&key);
        self.count("record spoilt by hand");
        self.write(match delete {
            true => Txn::new().delete(key.clone()),
            false => Txn::new().put(key.clone(), b"spoilt".to_vec()),
        });
        if let (Some(for_ms), Some(before)) = (for_ms, before) {
            let at = self.executor.now_ms() + for_ms;
            self.at(at, Event::PutBack(key, before.value));
        }
    }

    fn foreign_run(&self, id: &str, instant_ms: u64) -> Option<()> {
        let keys = Keys::new(NAMESPACE);
        let partition = partition_of(id, DEFAULT_PARTITIONS);
        let entries = self.store.entries().ok()?;
        let at = |key: Vec<u8>| entries.iter().find(|entry| entry.key == key);
        let entry = at(keys.job(partition, id))?;
        let record: JobRecord = decode(&entry.value).ok()?;
        let generation = record.generation;
        let spec = at(keys.def(partition, id, generation))?;
        let definition = Definition::decode(&spec.value, record.created_ms).ok()?;
        let job = Job {
            id: id.into(),
            uid: entry.created,
            modified: entry.modified,
            record,
            definitions: Definitions::default(),
        };
        let unix_ms = |ms: u64| self.plan.epoch_ms + ms.cast_signed();
        let (at_ms, now_ms) = (unix_ms(instant_ms), unix_ms(self.executor.now_ms()));
        let run = RunRecord {
            run: format!("{id}@{}", compact(at_ms)),
            scheduled_ms: at_ms,
            not_before_ms: at_ms,
            ..pending(
                &job,
                &definition,
                generation,
                RunKind::Scheduled,
                now_ms,
                now_ms,
            )
        };
        let key = AttemptKey {
            partition,
            job: run.job.clone(),
            run: run.run.clone(),
            attempt: 1,
        };
        let txn = Txn::new().put(keys.run(&key), encode(&run));
        self.store.commit(&txn).now_or_never()?.ok().map(drop)
    }

    fn pause(&mut self, index: usize, for_ms: u64) {
        let now = self.executor.now_ms();
        let Some(proc) = self.slots[index].proc else {
            return;
        };
        if let Some(life) = self.lives.lock().unwrap().get_mut(&proc) {
            close_pause(life, now);
            life.paused.push((now, u64::MAX));
        }
        self.count("pause");
        self.executor.pause(proc);
        self.at(now + for_ms, Event::Resume(proc));
    }

    pub(super) fn resume(&mut self, proc: Proc) {
        self.executor.resume(proc);
        let now = self.executor.now_ms();
        if let Some(life) = self.lives.lock().unwrap().get_mut(&proc) {
            close_pause(life, now);
        }
    }

    fn revoke(&mut self, key: &[u8]) {
        let entries = self.store.entries().unwrap_or_default();
        let lease = entries
            .iter()
            .find(|entry| entry.key == key)
            .and_then(|entry| entry.lease);
        if let Some(lease) = lease {
            self.count("spurious revoke");
            let _ = self.store.revoke(lease).now_or_never();
            self.drain_tap();
        }
    }
}

/// Ends the last pause, if it is open.
pub(super) fn close_pause(life: &mut Life, now: u64) {
    if let Some(last) = life.paused.last_mut() {
        last.1 = last.1.min(now);
    }
}
