//! What a real cluster did, in the words of the checkers of the simulation.

use std::collections::BTreeMap;

use punctual::backend::Event;
use punctual::job::record::{NodeRecord, RunRecord, decode};
use punctual::job::run::{Owner, RunState};
use punctual::keys::Keys;

use super::ledger::Execution;
use super::node::ProcessLife;
use crate::check::exactly_once::LATE_MS;
use crate::sim::ablation::Ablations;
use crate::sim::executor::Proc;
use crate::sim::ledger::Effect;
use crate::sim::schedule::{Plan, Times};
use crate::sim::tap::Logged;
use crate::sim::world::{Life, NAMESPACE, Observed};

/// A node's id, and its lives in order.
pub type NodeLives = (String, Vec<ProcessLife>);

/// Puts together what was witnessed. Whatever was due at `now_ms` must be decided.
#[must_use]
pub fn observe(
    nodes: &[NodeLives],
    log: Vec<Logged>,
    executions: &[Execution],
    epoch_ms: i64,
    now_ms: i64,
    seed: u64,
) -> Observed {
    let end_ms = u64::try_from(now_ms - epoch_ms + LATE_MS).unwrap_or(0);
    let lives = lives(nodes, &log, epoch_ms);
    let effects = effects(executions, &log, &lives, epoch_ms);
    Observed {
        plan: Plan {
            seed,
            scenario: "real".into(),
            epoch_ms,
            nodes: vec![],
            relist_ms: 60_000,
            overdue_takeover_ms: 1_000,
            times: Times::default(),
            faults: vec![],
            ops: vec![],
            heal_ms: end_ms,
            end_ms,
            ablation: Ablations::default(),
            naive: false,
        },
        by_watch: true,
        log,
        effects,
        told: vec![],
        asked: vec![],
        lives,
        counts: BTreeMap::new(),
        fingerprint: 0,
        polls: 0,
        claim_conflicts: 0,
        fenced_writes: 0,
    }
}

/// First registration of each incarnation, in order, by the node's own clock.
fn registrations(log: &[Logged]) -> Vec<(Owner, i64)> {
    let keys = Keys::new(NAMESPACE);
    let mut all: Vec<(Owner, i64)> = Vec::new();
    for event in log.iter().flat_map(|logged| &logged.events) {
        if let Event::Put(entry) = event
            && let Some((node, incarnation)) = keys.parse_node(&entry.key)
            && let Ok(record) = decode::<NodeRecord>(&entry.value)
        {
            let owner = Owner { node, incarnation };
            if all.iter().all(|(known, _)| *known != owner) {
                all.push((owner, record.since_ms));
            }
        }
    }
    all
}

fn lives(nodes: &[NodeLives], log: &[Logged], epoch_ms: i64) -> BTreeMap<Proc, Life> {
    let since = |ms: i64| u64::try_from(ms - epoch_ms).unwrap_or(0);
    let registrations = registrations(log);
    let mut all = BTreeMap::new();
    let mut proc = 0;
    for (index, (name, lives)) in nodes.iter().enumerate() {
        for life in lives {
            proc += 1;
            let ProcessLife {
                from_ms,
                until_ms,
                paused,
                gave_up,
            } = life;
            let ours = registrations.iter().find(|(owner, at_ms)| {
                owner.node == *name
                    && from_ms <= at_ms
                    && until_ms.is_none_or(|until_ms| *at_ms <= until_ms)
            });
            // One that never registered owned nothing.
            let owner = ours.map_or_else(
                || Owner {
                    node: name.clone(),
                    incarnation: format!("unregistered-{proc}"),
                },
                |(owner, _)| owner.clone(),
            );
            let life = Life {
                node: index,
                owner,
                from_ms: since(*from_ms),
                until_ms: until_ms.map(since),
                paused: paused.iter().map(|(a, b)| (since(*a), since(*b))).collect(),
                gave_up: gave_up.clone(),
            };
            all.insert(proc, life);
        }
    }
    all
}

fn effects(
    executions: &[Execution],
    log: &[Logged],
    lives: &BTreeMap<Proc, Life>,
    epoch_ms: i64,
) -> Vec<Effect> {
    let owners = owners(log);
    let proc_of = |execution: &Execution| {
        let owner = owners.get(&(execution.run.clone(), execution.attempt))?;
        let life = lives.iter().find(|(_, life)| life.owner == *owner);
        life.map(|(proc, _)| *proc)
    };
    executions
        .iter()
        .map(|execution| Effect {
            // 0 is nobody.
            proc: proc_of(execution).unwrap_or(0),
            job: execution.job.clone(),
            run: execution.run.clone(),
            attempt: execution.attempt,
            token: execution.token,
            scheduled_ms: execution.scheduled_ms,
            start_ms: u64::try_from(execution.start_ms - epoch_ms).unwrap_or(0),
            // It ran until its last line at least.
            end_ms: (!execution.lives())
                .then(|| u64::try_from(execution.last_ms - epoch_ms).unwrap_or(0)),
            completed: execution.completed,
            given: None,
            kept: Vec::new(),
        })
        .collect()
}

/// Who had each attempt when it became RUNNING.
fn owners(log: &[Logged]) -> BTreeMap<(String, u32), Owner> {
    let runs = Keys::new(NAMESPACE).runs();
    let mut all = BTreeMap::new();
    for event in log.iter().flat_map(|logged| &logged.events) {
        if let Event::Put(entry) = event
            && runs.contains(&entry.key)
            && let Ok(record) = decode::<RunRecord>(&entry.value)
            && record.state == RunState::Running
            && let Some(owner) = record.owner
        {
            all.insert((record.run, record.attempt), owner);
        }
    }
    all
}
