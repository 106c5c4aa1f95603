//! After healing: one leader, no dead owner, no run that nobody ends, every node alive.
//! (That everything due is decided is the business of `exactly_once`.)

use std::collections::BTreeSet;

use punctual::control::RunKind;
use punctual::job::record::{LeaderRecord, RunRecord, decode};
use punctual::job::run::{Owner, RunState};
use punctual::keys::{Keys, part_of};

use super::history::{Change, History, Violation};
use crate::sim::world::NAMESPACE;

/// No attempt is in one state for longer than its time limit, twice the grace, and this.
const GRACE_MS: i64 = 60_000;

/// Checks it.
#[must_use]
pub fn check(history: &History<'_>) -> Vec<Violation> {
    let observed = history.observed;
    let keys = Keys::new(NAMESPACE);
    let mut violations = flapping(history);
    let now_ms = observed.plan.epoch_ms + observed.plan.end_ms.cast_signed();
    for life in observed.lives.values() {
        if let Some(why) = &life.gave_up {
            violations.push(Violation::new(
                "a node never gives up",
                format!("{}: {why}", life.owner),
            ));
        }
    }
    let living: BTreeSet<&Owner> = observed
        .lives
        .values()
        .filter(|life| life.until_ms.is_none())
        .map(|life| &life.owner)
        .collect();
    let leader = history
        .last
        .get(keys.leader().as_slice())
        .and_then(|(value, _)| decode::<LeaderRecord>(value).ok())
        .map(|record| record.owner);
    if leader
        .as_ref()
        .is_none_or(|leader| !living.contains(leader))
    {
        violations.push(Violation::new(
            "after healing, a living node leads",
            format!("{leader:?}"),
        ));
    }
    let sessions: BTreeSet<Owner> = history
        .last
        .keys()
        .filter_map(|key| keys.parse_node(key))
        .map(|(node, incarnation)| Owner { node, incarnation })
        .collect();
    if sessions.iter().collect::<BTreeSet<_>>() != living {
        violations.push(Violation::new(
            "after healing, the sessions are the living nodes",
            format!("{sessions:?}, living: {living:?}"),
        ));
    }
    for (key, (value, _)) in &history.last {
        let Some(attempt) = keys
            .parse_attempt(key)
            .filter(|_| keys.runs().contains(key))
        else {
            continue;
        };
        let Ok(record) = decode::<RunRecord>(value) else {
            continue;
        };
        // `parts` looks after the runs that are divided.
        if record.parts.is_some() {
            continue;
        }
        if let Some(owner) = &record.owner
            && !living.contains(owner)
        {
            violations.push(Violation::new(
                "after healing, no dead owner",
                format!("{attempt:?} is {} at {owner}", record.state),
            ));
        }
        let backfilled =
            record.kind == RunKind::Backfill || is_backfilled_part(history, &keys, &record);
        if backfilled && waits_for_others(history, &keys, &record) {
            continue;
        }
        let spec = history.spec(&record.job, record.generation, u64::MAX);
        let limit = match record.state {
            // All slots may be taken; then the leader ends it in time.
            RunState::Pending => {
                let patience = spec.map_or(3_600_000, |spec| spec.unclaimed_after.ms_i64());
                // Each run of a backfill waits for those before it.
                let ready_ms = record.not_before_ms.max(record.created_ms);
                let patience = match backfilled {
                    true => patience.max(record.deadline_ms - ready_ms),
                    false => patience,
                };
                patience - GRACE_MS / 2
            }
            _ => spec.map_or(3_600_000, |spec| spec.timeout.ms_i64()) + 10_000,
        };
        let since = match record.state {
            RunState::Running => record.started_ms,
            RunState::Locked => record.locked_ms,
            _ => Some(record.not_before_ms.max(record.created_ms)),
        };
        let since = match since {
            Some(since) if record.concurrency.is_some() || record.shard.is_some() => {
                Some(chance_ms(history, &record, since))
            }
            since => since,
        };
        let stuck_ms = now_ms - since.unwrap_or(record.created_ms);
        if stuck_ms > limit + GRACE_MS {
            violations.push(Violation::new(
                "nothing is stuck under a healthy owner",
                format!("{attempt:?} is {} since {stuck_ms} ms", record.state),
            ));
        }
    }
    for effect in &observed.effects {
        let over = observed
            .lives
            .get(&effect.proc)
            .is_none_or(|life| life.until_ms.is_some());
        if over && effect.end_ms.is_none() {
            violations.push(Violation::new(
                "the code ends with its process",
                format!("{effect:?}"),
            ));
        }
    }
    violations
}

/// Since when nothing kept a limited run from being claimed: the last end of an execution of its
/// job, or the last change of the leader, who must see one end before he counts.
fn chance_ms(history: &History<'_>, record: &RunRecord, since_ms: i64) -> i64 {
    if record.state != RunState::Pending {
        return since_ms;
    }
    let mut chance_ms = since_ms;
    let mut executing = BTreeSet::new();
    for revised in &history.revisions {
        for change in &revised.changes {
            match change {
                Change::Slot { job, index, held } if *job == record.job => {
                    chance_ms = chance_ms.max(revised.unix_ms);
                    if *held {
                        executing.insert(*index);
                    } else {
                        executing.remove(index);
                    }
                }
                Change::Leader { .. } => chance_ms = chance_ms.max(revised.unix_ms),
                // Parts wait for their like.
                Change::Run(step)
                    if record.shard.is_some()
                        && step.key.job == record.job
                        && part_of(&step.key.run).is_some()
                        && step
                            .before
                            .as_ref()
                            .is_some_and(|it| it.record.owner.is_some()) =>
                {
                    chance_ms = chance_ms.max(revised.unix_ms);
                }
                _ => {}
            }
        }
    }
    // As long as all slots are held, nothing keeps it but that.
    let limit = record.concurrency.unwrap_or(u32::MAX);
    let full = executing.len() >= usize::try_from(limit).unwrap_or(usize::MAX)
        || executing.last().is_some_and(|last| *last >= limit);
    if full { i64::MAX / 2 } else { chance_ms }
}

/// Whether it is a part of a run that was backfilled: it may wait as long as that.
fn is_backfilled_part(history: &History<'_>, keys: &Keys, record: &RunRecord) -> bool {
    let Some((whole, _)) = part_of(&record.run) else {
        return false;
    };
    history.last.iter().any(|(key, (value, _))| {
        keys.runs().contains(key)
            && keys.parse_attempt(key).is_some_and(|at| at.run == whole)
            && decode::<RunRecord>(value).is_ok_and(|it| it.kind == RunKind::Backfill)
    })
}

/// Whether a backfilled run waits for the others of its job, which it may do for long.
fn waits_for_others(history: &History<'_>, keys: &Keys, record: &RunRecord) -> bool {
    let of_job = history.last.iter().filter(|(key, _)| {
        let attempt = keys.parse_attempt(key);
        keys.runs().contains(key) && attempt.is_some_and(|attempt| attempt.job == record.job)
    });
    let executing = of_job
        .filter_map(|(_, (value, _))| decode::<RunRecord>(value).ok())
        .any(|other| matches!(other.state, RunState::Locked | RunState::Running));
    record.state == RunState::Pending && executing
}

/// Takeovers make the cluster patient: so many deposals in a minute are the most.
const DEPOSALS_A_MINUTE: usize = 10;
/// Where the store is slow and nothing else is wrong, a new leader helps nobody.
const LEADS_ON_A_SLOW_STORE: usize = 3;

fn flapping(history: &History<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut leads = 0;
    let mut deposals: Vec<u64> = Vec::new();
    for revised in &history.revisions {
        for change in &revised.changes {
            match change {
                Change::Leader { after: Some(_) } => leads += 1,
                Change::Leader { after: None } if revised.writer.is_some() => {
                    deposals.push(revised.at_ms);
                }
                _ => {}
            }
        }
    }
    if deposals
        .windows(DEPOSALS_A_MINUTE + 1)
        .any(|some| some[DEPOSALS_A_MINUTE] - some[0] < 60_000)
    {
        violations.push(Violation::new(
            "leadership does not flap",
            format!("deposals at {deposals:?} ms"),
        ));
    }
    if history.observed.plan.scenario == "slow-store" && leads > LEADS_ON_A_SLOW_STORE {
        violations.push(Violation::new(
            "leadership does not flap",
            format!("{leads} leads on a slow store, deposals at {deposals:?} ms"),
        ));
    }
    violations
}
