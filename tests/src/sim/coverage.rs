//! What must have happened in a campaign for its silence to mean something.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use jiff::tz::TimeZoneDatabase;
use punctual::bootstrap::DEFAULT_PARTITIONS;
use punctual::job::run::{FailReason, Owner, RunState};
use punctual::keys::{AttemptKey, partition_of};

use super::world::Observed;
use crate::check::history::{Change, History, Revised};

/// A campaign of so many seeds that misses one of [`DANGERS`] has failed.
pub const ENFORCED_FROM: u64 = 500;

/// What is dangerous.
pub const DANGERS: [&str; 16] = [
    "unknown, then committed",
    "unknown, then not committed",
    "late write after an absent read",
    "leader lost in the middle of a window",
    "spurious loss of a session with running work",
    "late result",
    "LOCKED recovered",
    "RUNNING recovered",
    "retention beside an old leader",
    "edit racing a fire",
    "compaction under a watch or a listing",
    "no space",
    "clock held",
    "clock set forward under a job",
    "clock set back under a job",
    "attempt that goes on from a checkpoint",
];

/// What the wire and the hand write down beside the faults.
const FACTS: [&str; 5] = [
    "write applied, not heard",
    "write lost, not heard",
    "late write after an absent read",
    "compacted",
    "clock step, not believed",
];

/// The faults alone.
#[must_use]
pub fn faults(observed: &Observed) -> BTreeMap<&'static str, u64> {
    let mut faults = observed.counts.clone();
    faults.retain(|what, _| !FACTS.contains(what));
    faults
}

/// An edit and a fire so close together are a race.
const RACE_MS: u64 = 50;
/// A leader that was replaced may not know it for so long.
const OLD_LEADER_MS: u64 = 10_000;
/// Steps of a clock beyond this are not believed at once.
const MAX_SKEW_MS: i64 = 2_000;

/// How often each happened in one simulation.
#[must_use]
pub fn count(observed: &Observed, history: &History<'_>) -> BTreeMap<&'static str, u64> {
    let mut counter = Counter::default();
    for danger in DANGERS {
        counter.counts.insert(danger, 0);
    }
    for (danger, fault) in [
        ("unknown, then committed", "write applied, not heard"),
        ("unknown, then not committed", "write lost, not heard"),
        (
            "late write after an absent read",
            "late write after an absent read",
        ),
        ("compaction under a watch or a listing", "compacted"),
        ("no space", "no space"),
        ("clock held", "clock step, not believed"),
    ] {
        counter.add(danger, observed.counts.get(fault).copied().unwrap_or(0));
    }
    for revised in &history.revisions {
        for change in &revised.changes {
            counter.change(history, revised, change);
        }
    }
    let late = observed.log.iter().flat_map(|logged| &logged.events);
    let late = late.filter(|event| is_late(event.key())).count();
    counter.add("late result", late as u64);
    let given = observed.effects.iter().filter(|e| e.given.is_some());
    counter.add(
        "attempt that goes on from a checkpoint",
        given.count() as u64,
    );
    counter.clock_changes(history);
    counter.counts
}

/// What did not happen.
#[must_use]
pub fn missing(counts: &BTreeMap<&'static str, u64>) -> Vec<&'static str> {
    let happened = |danger: &&str| counts.get(*danger).is_some_and(|count| *count > 0);
    DANGERS
        .into_iter()
        .filter(|danger| !happened(danger))
        .collect()
}

/// For people.
#[must_use]
pub fn table(counts: &BTreeMap<&'static str, u64>) -> String {
    let line = |danger: &str| format!("{:>10}  {danger}", counts.get(danger).unwrap_or(&0));
    DANGERS.map(line).join("\n")
}

fn is_late(key: &[u8]) -> bool {
    key.split(|byte| *byte == b'/').nth(2) == Some(b"late")
}

#[derive(Default)]
struct Counter {
    counts: BTreeMap<&'static str, u64>,
    /// Partitions whose window is open.
    open: BTreeSet<u16>,
    running: BTreeMap<AttemptKey, Owner>,
    leader: Option<Owner>,
    /// Who led before, and until when.
    old_leader: Option<(Owner, u64)>,
    fired: BTreeMap<u16, u64>,
    edited: BTreeMap<u16, u64>,
}

impl Counter {
    fn add(&mut self, danger: &'static str, times: u64) {
        *self.counts.entry(danger).or_default() += times;
    }

    fn change(&mut self, history: &History<'_>, revised: &Revised, change: &Change) {
        let lives = |owner: &Owner| {
            let mut lives = history.observed.lives.values();
            lives.any(|life| {
                life.owner == *owner && life.until_ms.is_none_or(|until| until > revised.at_ms)
            })
        };
        match change {
            Change::Leader { after } => {
                let next = after.as_ref().map(|after| after.record.owner.clone());
                let lost = std::mem::replace(&mut self.leader, next);
                if lost.is_some() && !self.open.is_empty() {
                    self.add("leader lost in the middle of a window", 1);
                }
                if let Some(lost) = lost {
                    self.old_leader = Some((lost, revised.at_ms));
                }
            }
            Change::Session {
                owner,
                there: false,
            } => {
                let works = self.running.values().any(|running| running == owner);
                // Whoever leaves ends its session itself.
                let asked = history.owner(revised.writer) == Some(owner);
                if works && lives(owner) && !asked {
                    self.add("spurious loss of a session with running work", 1);
                }
            }
            Change::Cursor {
                partition,
                after: Some(after),
                ..
            } => {
                if after.record.is_open() {
                    self.open.insert(*partition);
                } else {
                    self.open.remove(partition);
                }
                self.fired.insert(*partition, revised.at_ms);
                self.race(self.edited.get(partition).copied(), revised.at_ms);
            }
            Change::Job {
                id,
                before: Some(_),
                ..
            } => {
                let partition = partition_of(id, DEFAULT_PARTITIONS);
                self.edited.insert(partition, revised.at_ms);
                self.race(self.fired.get(&partition).copied(), revised.at_ms);
            }
            Change::Run(step) => {
                let before = step.before.as_ref().map(|stood| &stood.record);
                let after = step.after.as_ref().map(|stood| &stood.record);
                let states = (before.map(|r| r.state), after.map(|r| r.state));
                if states == (Some(RunState::Locked), Some(RunState::Pending))
                    && before.and_then(|r| r.owner.as_ref()) != history.owner(revised.writer)
                {
                    self.add("LOCKED recovered", 1);
                }
                match after
                    .filter(|r| r.state == RunState::Running)
                    .and_then(|r| r.owner.clone())
                {
                    Some(owner) => self.running.insert(step.key.clone(), owner),
                    None => self.running.remove(&step.key),
                };
            }
            Change::Done(step) => {
                let failed = step.after.as_ref().and_then(|after| after.record.failed);
                if step.before.is_none() && failed == Some(FailReason::WorkerLost) {
                    self.add("RUNNING recovered", 1);
                }
                if step.after.is_none()
                    && let Some((old, since)) = &self.old_leader
                    && revised.at_ms - since < OLD_LEADER_MS
                    && self.leader.as_ref() != Some(old)
                    && lives(old)
                {
                    self.add("retention beside an old leader", 1);
                }
            }
            _ => {}
        }
    }

    fn race(&mut self, other_ms: Option<u64>, now_ms: u64) {
        if other_ms.is_some_and(|other| now_ms - other <= RACE_MS) {
            self.add("edit racing a fire", 1);
        }
    }

    /// Jobs in zones whose clock changed while they stood.
    fn clock_changes(&mut self, history: &History<'_>) {
        let plan = &history.observed.plan;
        let (from, until) = (plan.epoch_ms, plan.epoch_ms + plan.heal_ms.cast_signed());
        for (_, spec) in history.definitions.values().flatten() {
            let Some(zone) = &spec.schedule.timezone else {
                continue;
            };
            let Ok(zone) = TimeZoneDatabase::bundled().get(zone) else {
                continue;
            };
            let offset = |ms: i64| {
                let at = Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH);
                zone.to_offset(at)
            };
            if offset(from) < offset(until) {
                self.add("clock set forward under a job", 1);
            } else if offset(from) > offset(until) {
                self.add("clock set back under a job", 1);
            }
        }
    }
}

/// Whether a step of a clock must hold what is decided by it.
#[must_use]
pub fn is_not_believed(step_ms: i64) -> bool {
    step_ms.abs() > MAX_SKEW_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_happen_is_named() {
        let mut counts: BTreeMap<_, _> = DANGERS.into_iter().map(|danger| (danger, 1)).collect();
        assert_eq!(missing(&counts), [""; 0]);
        counts.insert("no space", 0);
        counts.remove("late result");
        assert_eq!(missing(&counts), ["late result", "no space"]);
        assert!(table(&counts).contains("         0  no space"));
    }
}
