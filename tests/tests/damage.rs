//! Records that somebody spoils, deletes or overwrites by hand: what is hit stands still and says so,
//! the rest goes on, and it comes back by itself once the record is put back.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a failed check panics, that is its answer"
)]

use std::sync::Arc;
use std::time::Duration;

use punctual::backend::{BackendError, CoordinationBackend, Txn};
use punctual::bootstrap::{DEFAULT_PARTITIONS, bootstrap};
use punctual::cancel::{Canceller, StopCause};
use punctual::control::{Control, PauseWish, StatusObject};
use punctual::duration::Millis;
use punctual::env::TokioEnv;
use punctual::handler::Executors;
use punctual::job::run::RunState;
use punctual::job::spec::JobSpec;
use punctual::keys::{Keys, partition_of};
use punctual::node::{Node, NodeConfig};
use punctual::recipe::retry::Store;
use punctual_memory::MemoryBackend;
use punctual_tests::check::check;
use punctual_tests::check::history::{Change, History};
use punctual_tests::sim::scenario;
use punctual_tests::sim::schedule::{Fault, Op, Plan, Spoilt};
use punctual_tests::sim::workload::HANDLER;
use punctual_tests::sim::world::{Observed, simulate};

/// Two jobs that are due every second, in two partitions.
const HIT: &str = "hit";
const SPARED: &str = "spared";

fn every_second(id: &str) -> JobSpec {
    let mut job = JobSpec::handler(id, HANDLER);
    job.schedule.every = Some(Millis::from_ms(1_000));
    job.payload = serde_json::json!({ "does": "ok", "ms": 0 });
    job
}

/// Three nodes whose clocks agree, and nothing wrong but what is added.
fn quiet(faults: Vec<(u64, Fault)>) -> Plan {
    assert_ne!(number(HIT), number(SPARED));
    let mut plan = scenario::plan("cut-leader", 1).expect("a scenario");
    plan.scenario = "damage".into();
    let put = |job| (3_000, 0, Op::Put(Box::new(job)));
    plan.ops = vec![put(every_second(HIT)), put(every_second(SPARED))];
    plan.faults = faults;
    for node in &mut plan.nodes {
        node.offset_ms = 0;
    }
    plan.heal_ms = 80_000;
    plan.end_ms = 130_000;
    plan
}

fn number(job: &str) -> u16 {
    partition_of(job, DEFAULT_PARTITIONS)
}

/// What else is wrong than the damage itself, which the checkers see too.
fn wrong(observed: &Observed) -> Vec<String> {
    let damage = [
        "records are readable",
        "the cursor goes forward",
        "leaders write under their own term",
    ];
    check(observed)
        .into_iter()
        .filter(|violation| !damage.contains(&violation.invariant))
        .map(|violation| format!("{}: {}", violation.invariant, violation.what))
        .collect()
}

/// How late each run of a job was created that was created between two times.
fn fires(observed: &Observed, job: &str, from_ms: u64, until_ms: u64) -> Vec<i64> {
    History::new(observed)
        .steps()
        .filter(|(revised, done, step)| {
            !done && step.before.is_none() && (from_ms..until_ms).contains(&revised.at_ms)
        })
        .filter_map(|(revised, _, step)| {
            let record = &step.after.as_ref()?.record;
            (record.job == job).then_some(revised.unix_ms - record.scheduled_ms)
        })
        .collect()
}

/// From second 20 on for 20 seconds nothing of the partition can be read, whoever leads.
fn a_partition_stands_still(record: &Spoilt, delete: bool, more: Vec<(u64, Fault)>) {
    let spoil = Fault::Spoil {
        record: record.clone(),
        delete,
        for_ms: Some(20_000),
    };
    let restarts = !more.is_empty();
    let mut faults = vec![(20_000, spoil)];
    faults.extend(more);
    let observed = simulate(&quiet(faults));
    let what = format!("{record:?}, deleted: {delete}, restarts: {restarts}");
    assert_eq!(wrong(&observed), Vec::<String>::new(), "{what}");

    let spared = fires(&observed, SPARED, 20_000, 40_000);
    assert!((18..=20).contains(&spared.len()), "{what}: {spared:?}");
    let most = if restarts { 1_500 } else { 100 };
    assert!(spared.iter().all(|late| *late < most), "{what}: {spared:?}");

    let held = fires(&observed, HIT, 20_100, 40_000);
    assert!(held.is_empty(), "{what}: {held:?}");
    // It goes on as soon as the record is there again, and nothing was lost.
    let caught_up = fires(&observed, HIT, 40_000, 40_900);
    assert!(caught_up.len() >= 19, "{what}: {caught_up:?}");
    assert!(!fires(&observed, HIT, 41_000, 45_000).is_empty(), "{what}");
}

#[test]
fn a_cursor_that_cannot_be_read_stops_its_own_partition_only() {
    let cursor = Spoilt::Cursor(number(HIT));
    a_partition_stands_still(&cursor, false, vec![]);
    a_partition_stands_still(&cursor, true, vec![]);
}

#[test]
fn a_log_of_changes_that_cannot_be_read_stops_its_own_partition_only() {
    let changes = Spoilt::Changes(number(HIT));
    a_partition_stands_still(&changes, false, vec![]);
    a_partition_stands_still(&changes, true, vec![]);
}

/// Nodes that have never seen the partition whole lead all the same.
#[test]
fn whoever_starts_beside_the_damage_leads_the_rest() {
    for record in [Spoilt::Cursor(number(HIT)), Spoilt::Changes(number(HIT))] {
        let restart = |node| {
            (
                22_000 + 200 * node as u64,
                Fault::Leave { node, down_ms: 400 },
            )
        };
        a_partition_stands_still(&record, false, (0..3).map(restart).collect());
    }
}

/// Claims of `node` between two times.
fn claims(observed: &Observed, node: &str, from_ms: u64, until_ms: u64) -> usize {
    History::new(observed)
        .steps()
        .filter(|(revised, ..)| (from_ms..until_ms).contains(&revised.at_ms))
        .filter_map(|(_, _, step)| Some(&step.after.as_ref()?.record))
        .filter(|record| record.state == RunState::Locked)
        .filter(|record| record.owner.as_ref().unwrap().node == node)
        .count()
}

#[test]
fn a_drained_node_whose_record_is_spoilt_stays_drained_until_it_is_let_go() {
    let spoil = Fault::Spoil {
        record: Spoilt::Drain("n1".into()),
        delete: false,
        for_ms: None,
    };
    let restart = Fault::Crash {
        node: 1,
        down_ms: 1_000,
    };
    let mut plan = quiet(vec![(20_000, spoil), (30_000, restart)]);
    plan.ops.extend((0..20).map(|index| {
        let job = every_second(&format!("job-{index}"));
        (3_000, 0, Op::Put(Box::new(job)))
    }));
    plan.ops.push((12_000, 0, Op::Drain("n1".into(), true)));
    plan.ops.push((45_000, 0, Op::Drain("n1".into(), false)));
    let observed = simulate(&plan);
    assert_eq!(wrong(&observed), Vec::<String>::new());
    assert!(claims(&observed, "n1", 5_000, 12_000) > 20);
    assert_eq!(claims(&observed, "n1", 12_500, 45_000), 0);
    assert!(claims(&observed, "n1", 46_000, 60_000) > 20);
}

/// How many leads there were, and the latest fire.
fn leads(observed: &Observed) -> (usize, i64) {
    let history = History::new(observed);
    let changes = history.revisions.iter().flat_map(|r| &r.changes);
    let leads = changes
        .filter(|change| matches!(change, Change::Leader { after: Some(_) }))
        .count();
    let late = fires(observed, SPARED, 0, u64::MAX);
    (leads, late.into_iter().max().unwrap())
}

/// Without `overdue_takeover`, only the end of a lease ends the lead of who has died.
#[test]
fn a_leaders_key_without_a_lease_does_not_outlive_its_leader() {
    let hand = (30_000, Fault::TakeLeaderLease);
    // At once: no standby has seen the key yet, and the leader is gone.
    let dies = |at| (at, Fault::CrashLeader { down_ms: 40_000 });
    for faults in [
        vec![hand.clone(), dies(30_000)],
        vec![hand.clone(), dies(35_000)],
    ] {
        let mut plan = quiet(faults);
        plan.overdue_takeover_ms = 0;
        let observed = simulate(&plan);
        assert_eq!(wrong(&observed), Vec::<String>::new());
        let (leads, late_ms) = leads(&observed);
        assert!(leads >= 2 && late_ms < 8_000, "{leads} leads, {late_ms} ms");
    }
    // Alone: the next life of the node finds the key of the last one.
    let restart = Fault::Crash {
        node: 0,
        down_ms: 2_000,
    };
    let mut plan = quiet(vec![hand, (30_000, restart)]);
    plan.overdue_takeover_ms = 0;
    plan.nodes.truncate(1);
    let observed = simulate(&plan);
    assert_eq!(wrong(&observed), Vec::<String>::new());
    let (_, late_ms) = leads(&observed);
    assert!(late_ms < 8_000, "{late_ms} ms");
}

/// A namespace whose `meta` is gone is not made anew: its cursors would begin again.
#[tokio::test]
async fn no_namespace_is_made_over_the_rest_of_another() {
    let env = TokioEnv::shared();
    let backend = MemoryBackend::new(env.clone());
    let store = Store::new(Arc::new(backend.clone()), env, 2_000);
    let keys = Keys::new("prod");
    let meta = bootstrap(&store, &keys).await.unwrap();
    assert_eq!(bootstrap(&store, &keys).await, Ok(meta.clone()));
    let stands = store.get(&keys.meta()).await.unwrap().unwrap();
    let before = backend.entries().unwrap();
    let gone = Txn::new().delete(keys.meta());
    let _ = backend.commit(&gone).await.unwrap();

    let refused = bootstrap(&store, &keys).await.unwrap_err();
    let BackendError::Broken(why) = &refused else {
        panic!("{refused:?}");
    };
    assert!(why.contains("`/prod/meta` is missing"), "{why}");
    assert!(why.contains("16 cursors"), "{why}");
    let after = backend.entries().unwrap();
    assert_eq!(after.len() + 1, before.len());
    assert!(after.iter().all(|entry| before.contains(entry)));

    let back = Txn::new().put(keys.meta(), stands.value);
    let _ = backend.commit(&back).await.unwrap();
    assert_eq!(bootstrap(&store, &keys).await, Ok(meta));
}

/// `status` answers, names the partition and the record, and forgets them once it is mended.
#[tokio::test]
async fn status_names_the_partition_that_stands_still() {
    let env = TokioEnv::shared();
    let backend = MemoryBackend::new(env.clone());
    let config = NodeConfig::default();
    let keys = Keys::new(&config.namespace);
    let control = Control::new(Arc::new(backend.clone()), env.clone(), &config.namespace);
    let node = Node::new(Arc::new(backend.clone()), env, Executors::default(), config).unwrap();
    let (stop, stopping) = Canceller::new();
    let life = tokio::spawn(node.run(stopping));
    let status = async || -> StatusObject {
        loop {
            if let Ok(status) = control.status("memory".into()).await {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert_eq!(status().await.damaged_partitions, []);
    for job in [HIT, SPARED] {
        assert_ne!(number(job), 3);
        control.put_job(every_second(job), None).await.unwrap();
    }
    let key = keys.cursor(3);
    let cursor = |entries: Vec<punctual::backend::Entry>| {
        let mut entries = entries.into_iter();
        entries.find(|entry| entry.key == key).unwrap().value
    };
    let before = cursor(backend.entries().unwrap());
    let spoil = Txn::new().put(key.clone(), b"spoilt".to_vec());
    let _ = backend.commit(&spoil).await.unwrap();
    let damaged = status().await.damaged_partitions;
    assert_eq!(damaged.len(), 1, "{damaged:?}");
    assert_eq!(damaged[0].partition, 3);
    assert!(damaged[0].what.contains("cursor/003"), "{damaged:?}");
    // What is asked of all jobs is done for those in sound partitions, and says what is left.
    let report = control.pause_all(PauseWish::default()).await.unwrap();
    assert_eq!((report.changed, report.remaining), (2, 1));
    let why = report.interrupted.unwrap();
    assert!(why.contains("cannot be read"), "{why}");
    let mend = Txn::new().put(key.clone(), before);
    let _ = backend.commit(&mend).await.unwrap();
    assert_eq!(status().await.damaged_partitions, []);
    stop.stop(StopCause::Cancelled);
    life.await.unwrap().unwrap();
}
