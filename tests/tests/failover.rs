//! How soon somebody else fires, when whoever led is gone: measured in the simulation, by the
//! lateness of a job that is due every second.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a failed check panics, that is its answer"
)]

use punctual::duration::Millis;
use punctual::job::spec::{JobSpec, Overlap};
use punctual_tests::check::check;
use punctual_tests::check::history::{Change, History};
use punctual_tests::sim::scenario;
use punctual_tests::sim::schedule::{Fault, Op, Plan};
use punctual_tests::sim::workload::HANDLER;
use punctual_tests::sim::world::simulate;

const AT_MS: u64 = 30_000;

/// Three nodes whose clocks agree, one job, and one thing that happens after half a minute.
fn quiet(seed: u64, takeover_ms: u64, fault: Option<Fault>) -> Plan {
    let mut plan = scenario::plan("cut-leader", seed).expect("a scenario");
    plan.scenario = "failover".into();
    plan.overdue_takeover_ms = takeover_ms;
    let mut job = JobSpec::handler("often", HANDLER);
    job.schedule.every = Some(Millis::from_ms(1_000));
    job.overlap = Overlap::Allow;
    job.payload = serde_json::json!({ "does": "ok", "ms": 0 });
    plan.ops = vec![(3_000, 0, Op::Put(Box::new(job)))];
    plan.faults = fault.into_iter().map(|fault| (AT_MS, fault)).collect();
    for node in &mut plan.nodes {
        node.offset_ms = 0;
    }
    plan.heal_ms = 80_000;
    plan.end_ms = 90_000;
    plan
}

/// The latest decision of an instant, in milliseconds after it, and how many leads there were.
fn worst(plan: &Plan) -> (i64, usize) {
    let observed = simulate(plan);
    assert_eq!(check(&observed), vec![]);
    let history = History::new(&observed);
    let late = history
        .steps()
        .filter(|(_, done, step)| !done && step.before.is_none())
        .map(|(revised, _, step)| {
            revised.unix_ms - step.after.as_ref().expect("created").record.scheduled_ms
        });
    let late = late.max().expect("it fires");
    let leads = history
        .revisions
        .iter()
        .flat_map(|revised| &revised.changes)
        .filter(|change| matches!(change, Change::Leader { after: Some(_) }))
        .count();
    (late, leads)
}

#[test]
fn a_dead_leader_is_replaced_before_its_lease_ends() {
    for seed in 0..8 {
        let crash = Some(Fault::CrashLeader { down_ms: 40_000 });
        let (late, leads) = worst(&quiet(seed, 1_000, crash.clone()));
        // One second of patience, and a few ways to the store and back.
        assert!((1_000..1_400).contains(&late), "seed {seed}: {late} ms");
        assert_eq!(leads, 2);
        let (late, leads) = worst(&quiet(seed, 0, crash));
        assert!((2_500..8_000).contains(&late), "seed {seed}: {late} ms");
        assert_eq!(leads, 2);
    }
}

#[test]
fn a_leader_that_stands_still_is_replaced_too() {
    for seed in 0..4 {
        let pause = Some(Fault::PauseLeader { for_ms: 20_000 });
        let (late, leads) = worst(&quiet(seed, 1_000, pause));
        assert!((1_000..1_400).contains(&late), "seed {seed}: {late} ms");
        assert_eq!(leads, 2);
    }
}

/// A standby has everything in view already, so the next leader fires at once.
#[test]
fn a_leader_that_leaves_costs_a_quarter_of_a_second_at_most() {
    for seed in 0..8 {
        let leaves = (0..3)
            .map(|node| {
                let leave = Fault::Leave {
                    node,
                    down_ms: 40_000,
                };
                worst(&quiet(seed, 1_000, Some(leave)))
            })
            .collect::<Vec<_>>();
        assert!(leaves.iter().all(|(late, _)| *late < 250), "{leaves:?}");
        // One of the three led.
        assert_eq!(leaves.iter().filter(|(_, leads)| *leads == 2).count(), 1);
    }
}

#[test]
fn nobody_is_deposed_while_nothing_is_wrong_however_clocks_differ() {
    for seed in 0..6 {
        let mut plan = quiet(seed, 1_000, None);
        for (index, offset) in [-900, 900, 0].into_iter().enumerate() {
            plan.nodes[index].offset_ms = offset;
            plan.nodes[index].start_ms = (seed * 7 + index as u64 * 400) % 1_100;
        }
        let (_, leads) = worst(&plan);
        assert_eq!(leads, 1, "seed {seed}");
    }
}

#[test]
fn leadership_does_not_flap_on_a_slow_store() {
    for seed in 0..2 {
        let mut plan = scenario::plan("slow-store", seed).expect("a scenario");
        // The hour is the business of the binary `sim`.
        plan.heal_ms = 600_000;
        plan.end_ms = 750_000;
        assert_eq!(check(&simulate(&plan)), vec![]);
    }
}
