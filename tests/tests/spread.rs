//! How work spreads over the nodes, in the simulation.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a failed check panics, that is its answer"
)]

use std::collections::BTreeMap;

use punctual::job::run::RunState;
use punctual::job::spec::JobSpec;
use punctual_tests::check::check;
use punctual_tests::check::history::{Change, History};
use punctual_tests::sim::scenario;
use punctual_tests::sim::schedule::{Fault, Op, Plan};
use punctual_tests::sim::workload::HANDLER;
use punctual_tests::sim::world::{Observed, simulate};

/// Three nodes and thirty jobs that are due every two seconds; nothing goes wrong.
fn busy(seed: u64, slots: [u32; 3]) -> Plan {
    let mut plan = scenario::plan("cut-leader", seed).expect("a scenario");
    plan.scenario = "spread".into();
    let jobs = (0..30).map(|n| {
        let mut job = JobSpec::handler(format!("job-{n}"), HANDLER).cron("*/2 * * * * *");
        job.payload = serde_json::json!({ "does": "ok", "ms": 100 });
        job
    });
    plan.ops = vec![(5_000, 0, Op::Apply(jobs.collect()))];
    plan.faults = vec![];
    for (node, slots) in plan.nodes.iter_mut().zip(slots) {
        node.slots = slots;
        // Who is behind the leader's clock takes up its share later.
        node.offset_ms = 0;
    }
    plan.heal_ms = 60_000;
    plan.end_ms = 70_000;
    plan
}

/// How many runs each node claimed, and the longest time from creation to claim.
fn claims(observed: &Observed) -> (BTreeMap<String, usize>, i64) {
    assert_eq!(check(observed), vec![]);
    let history = History::new(observed);
    let (mut by_node, mut longest_ms) = (BTreeMap::new(), 0);
    for (revised, _, step) in history.steps() {
        let Some(after) = &step.after else { continue };
        if after.record.state == RunState::Locked {
            let node = after.record.owner.as_ref().unwrap().node.clone();
            *by_node.entry(node).or_default() += 1;
            let ready_ms = after.record.not_before_ms.max(after.record.created_ms);
            longest_ms = longest_ms.max(revised.unix_ms - ready_ms);
        }
    }
    (by_node, longest_ms)
}

#[test]
fn nodes_rarely_want_the_same_run() {
    let (mut claimed, mut conflicts) = (0, 0);
    for seed in 0..4 {
        let observed = simulate(&busy(seed, [32, 32, 32]));
        let (by_node, longest_ms) = claims(&observed);
        println!(
            "{by_node:?}, longest {longest_ms} ms, {} conflicts",
            observed.claim_conflicts
        );
        claimed += by_node.values().sum::<usize>();
        conflicts += observed.claim_conflicts;
        assert!(by_node.values().all(|claims| *claims > 200), "{by_node:?}");
        assert!(longest_ms < 150, "{longest_ms} ms");
    }
    println!("{conflicts} conflicts in {claimed} claims");
    assert!(conflicts * 50 < claimed as u64, "{conflicts} of {claimed}");
}

/// A node that is full holds nobody up for longer than its turn.
#[test]
fn a_full_node_delays_its_share_by_one_turn() {
    for seed in 0..3 {
        let observed = simulate(&busy(seed, [1, 64, 64]));
        let (by_node, longest_ms) = claims(&observed);
        assert!(longest_ms < 700, "{by_node:?} {longest_ms} ms");
    }
}

/// A node that is gone keeps its place until its session ends, and costs one turn.
#[test]
fn a_dead_node_delays_its_share_by_one_turn() {
    for seed in 0..3 {
        let mut plan = busy(seed, [64, 64, 64]);
        plan.overdue_takeover_ms = 1_000;
        let down_ms = 15_000;
        plan.faults = vec![(30_000, Fault::Crash { node: 1, down_ms })];
        let observed = simulate(&plan);
        let (by_node, longest_ms) = claims(&observed);
        // A run that the dead node had claimed waits for the grace of its session.
        assert!(
            !(700..=10_000).contains(&longest_ms),
            "{by_node:?} {longest_ms} ms"
        );
        assert!(by_node["n1"] > 100, "it takes its share again: {by_node:?}");
    }
}

/// Claims of `node` between two times.
fn claims_between(observed: &Observed, node: &str, from_ms: u64, until_ms: u64) -> usize {
    let history = History::new(observed);
    history
        .steps()
        .filter(|(revised, ..)| (from_ms..until_ms).contains(&revised.at_ms))
        .filter_map(|(_, _, step)| Some(&step.after.as_ref()?.record))
        .filter(|record| record.state == RunState::Locked)
        .filter(|record| record.owner.as_ref().unwrap().node == node)
        .count()
}

/// Who leads at the end, and how often the lead changed.
fn leads(observed: &Observed) -> Vec<(u64, String)> {
    let history = History::new(observed);
    let changes = history.revisions.iter().flat_map(|revised| {
        let leader = |change: &Change| match change {
            Change::Leader { after: Some(after) } => {
                Some((revised.at_ms, after.record.owner.node.clone()))
            }
            _ => None,
        };
        revised
            .changes
            .iter()
            .filter_map(leader)
            .collect::<Vec<_>>()
    });
    changes.collect()
}

#[test]
fn a_drained_node_takes_no_work_and_no_lead_until_it_is_let_go() {
    for seed in 0..1 {
        for node in ["n0", "n1", "n2"] {
            let mut plan = busy(seed, [32, 32, 32]);
            let drain = |drained| Op::Drain(node.into(), drained);
            plan.ops.push((20_000, 1, drain(true)));
            // Twice is as good as once, and a restart changes nothing.
            plan.ops.push((25_000, 2, drain(true)));
            let index = node[1..].parse().unwrap();
            let restart = Fault::Crash {
                node: index,
                down_ms: 2_000,
            };
            plan.faults = vec![(30_000, restart)];
            plan.ops.push((50_000, 0, drain(false)));
            let observed = simulate(&plan);
            let (_, longest_ms) = claims(&observed);
            assert!(longest_ms < 150, "{longest_ms} ms");
            assert!(claims_between(&observed, node, 10_000, 20_000) > 20);
            assert_eq!(claims_between(&observed, node, 20_100, 50_000), 0);
            assert!(claims_between(&observed, node, 51_000, 60_000) > 20);
            for (at_ms, leader) in leads(&observed) {
                assert!(leader != node || !(20_000..50_000).contains(&at_ms));
            }
            let last = leads(&observed).pop().unwrap().1;
            assert_ne!(last, node, "the lead goes on where it is");
        }
    }
}
