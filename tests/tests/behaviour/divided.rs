//! Runs in parts: `fan_out` and `broadcast`.

use std::collections::BTreeSet;

use punctual::backend::Event;
use punctual::control::RunKind;
use punctual::duration::Millis;
use punctual::job::record::RunRecord;
use punctual::job::run::{FailReason, RunState};
use punctual::job::spec::{JobSpec, Overlap};
use punctual::keys::{Keys, part_of};
use punctual_tests::sim::schedule::{Fault, Op};
use punctual_tests::sim::world::NAMESPACE;

use crate::stage::{MINUTE, Seen, Story as _, cron, does, job, stage};

fn fan_out(mut spec: JobSpec, parts: u32) -> JobSpec {
    spec.fan_out = Some(parts);
    spec
}

fn broadcast(mut spec: JobSpec) -> JobSpec {
    spec.broadcast = true;
    spec
}

/// How the runs of a job ended, without their parts.
fn wholes<'a>(seen: &'a Seen, job: &'a str) -> impl Iterator<Item = &'a RunRecord> {
    seen.ends(job).filter(|end| end.shard.is_none())
}

fn parts<'a>(seen: &'a Seen, job: &'a str) -> impl Iterator<Item = &'a RunRecord> {
    seen.ends(job).filter(|end| end.shard.is_some())
}

/// Every instant has its parts, each once, over leaders that come and go; and what runs after the job
/// runs once for all of them. (That each is made once, and that a run ends as its parts do, are
/// invariants.)
#[test]
fn each_run_has_all_its_parts_and_one_success() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 2 * MINUTE);
    let mut next = job("next");
    next.after = vec!["a".into()];
    plan.put_all(
        3_000,
        vec![
            fan_out(does(cron("a", "*/10 * * * * *"), "ok", 400), 100),
            next,
        ],
    );
    for turn in 0..15 {
        plan.fault(10_000 + turn * 7_300, Fault::RevokeLeader);
    }
    let seen = plan.play();
    assert!(seen.leads.len() > 10, "{}", seen.leads.len());
    let fires = seen.fires("a").len();
    assert!(fires >= 12, "{fires}");
    let good = wholes(&seen, "a").filter(|end| end.state == RunState::Success);
    let good: BTreeSet<&str> = good.map(|end| end.run.as_str()).collect();
    assert!(good.len() + 1 >= fires, "{} of {fires}", good.len());
    assert!(parts(&seen, "a").count() >= 100 * good.len());
    assert!(parts(&seen, "a").all(|end| end.kind == RunKind::Shard));
    let followed = seen.created.iter().filter(|w| w.record.job == "next");
    let causes: Vec<String> = followed
        .map(|written| written.record.cause.clone().unwrap().run)
        .collect();
    let causes: BTreeSet<&str> = causes.iter().map(String::as_str).collect();
    assert_eq!(causes, good);
    // All three nodes took part.
    let nodes: BTreeSet<_> = parts(&seen, "a")
        .filter_map(|end| end.owner.as_ref().map(|owner| &owner.node))
        .collect();
    assert_eq!(nodes.len(), 3);
}

/// A part that fails is repeated by itself; one that fails for good fails its run, which says so.
#[test]
fn a_part_is_repeated_by_itself_and_fails_its_run() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", MINUTE);
    let mut flaky = fan_out(does(cron("flaky", "*/20 * * * * *"), "flaky", 0), 4);
    flaky.retry.attempts = Some(4);
    flaky.retry.backoff = Millis::from_ms(500);
    let broken = fan_out(does(cron("broken", "*/20 * * * * *"), "fail", 0), 3);
    plan.put_all(3_000, vec![flaky, broken]);
    let seen = plan.play();
    assert!(parts(&seen, "flaky").any(|end| end.attempt == 2));
    let again: BTreeSet<&str> = parts(&seen, "flaky").map(|end| end.run.as_str()).collect();
    assert!(parts(&seen, "flaky").count() > again.len());
    let errors: BTreeSet<_> = wholes(&seen, "broken")
        .map(|end| (end.failed, end.error.as_deref()))
        .collect();
    let told = "3 of 3 parts failed: 0 (error), 1 (error), 2 (error)";
    assert_eq!(
        errors.into_iter().collect::<Vec<_>>(),
        [(Some(FailReason::Error), Some(told))]
    );
}

/// `concurrency` limits the parts, not the runs; `overlap: skip` waits for the last part.
#[test]
fn a_limit_counts_parts_and_a_run_overlaps_until_its_last_part_has_ended() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", MINUTE);
    let mut pair = fan_out(does(cron("a", "*/5 * * * * *"), "ok", 2_000), 6);
    pair.concurrency = Some(2);
    pair.overlap = Overlap::Skip;
    plan.put(3_000, pair);
    let seen = plan.play();
    let runs = seen.runs("a");
    let most = runs.iter().map(|run| {
        let beside = runs.iter().filter(|other| {
            other.start_ms <= run.start_ms
                && other.end_ms.is_none_or(|end_ms| end_ms > run.start_ms)
        });
        beside.count()
    });
    assert_eq!(most.max(), Some(2));
    // Three turns of two seconds: every other instant finds parts at work.
    let skipped = seen.skips("a").len();
    assert!((7..=13).contains(&skipped), "{skipped}");
    let good = wholes(&seen, "a").filter(|end| end.state == RunState::Success);
    assert!(good.count() >= 5);
}

/// The run is cancelled while parts run and wait: all end, none is made or repeated, and it says so.
#[test]
fn a_cancelled_run_takes_its_parts_with_it() {
    let mut plan = stage(2, "2026-03-01T00:00:00Z", MINUTE);
    for node in &mut plan.nodes {
        node.slots = 2;
    }
    let mut slow = fan_out(does(job("a"), "ok", 8_000), 10);
    slow.retry.attempts = Some(3);
    plan.put(3_000, slow);
    plan.ops
        .push((10_000, 0, Op::Trigger("a".into(), "k".into())));
    // The newest part is that of the highest number, an odd one: it alone is cancelled. The one
    // before it stands for the whole run.
    plan.ops.push((13_000, 0, Op::Cancel("a".into())));
    plan.ops.push((15_000, 0, Op::Cancel("a".into())));
    let seen = plan.play();
    let whole: Vec<&RunRecord> = wholes(&seen, "a").collect();
    assert_eq!(whole.len(), 1);
    assert_eq!(whole[0].failed, Some(FailReason::Cancelled));
    let told = "cancelled: 0 of 10 parts succeeded";
    assert_eq!(whole[0].error.as_deref(), Some(told));
    assert_eq!(parts(&seen, "a").count(), 10);
    assert!(parts(&seen, "a").all(|end| end.failed == Some(FailReason::Cancelled)));
    // As many as there were slots, and one more if the part that was cancelled alone had one.
    assert!((4..=5).contains(&seen.runs("a").len()));
    assert!(
        seen.runs("a")
            .iter()
            .all(|run| run.end_ms.unwrap() < 18_000)
    );
}

/// A broadcast reaches every node that is there, each once; a node that goes before it has taken its
/// part fails that part, and no other node runs it.
#[test]
fn a_broadcast_runs_once_on_each_node() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 2 * MINUTE);
    plan.put(3_000, broadcast(cron("a", "*/10 * * * * *")));
    // Its session is there for some seconds more.
    let down_ms = 60_000;
    plan.fault(59_900, Fault::Crash { node: 2, down_ms });
    let seen = plan.play();
    for whole in wholes(&seen, "a").filter(|end| end.state == RunState::Success) {
        let nodes = whole.parts.as_ref().unwrap().nodes.as_ref().unwrap();
        for (index, node) in nodes.iter().enumerate() {
            let run = format!("{}~s-{index:04}", whole.run);
            let end = parts(&seen, "a").find(|end| end.run == run).unwrap();
            assert_eq!(&end.owner.as_ref().unwrap().node, node);
        }
    }
    let sizes: BTreeSet<u32> = wholes(&seen, "a")
        .filter_map(|end| end.parts.as_ref().map(|parts| parts.total))
        .collect();
    assert_eq!(sizes, BTreeSet::from([2, 3]));
    let lost: Vec<&RunRecord> = parts(&seen, "a")
        .filter(|end| end.state == RunState::Failed)
        .collect();
    assert!(!lost.is_empty());
    for end in lost {
        assert_eq!(end.failed, Some(FailReason::NoHandler));
        let told = "node n2, which this part was for, is gone, and had not taken it";
        assert_eq!(end.error.as_deref(), Some(told));
    }
}

/// Without a node that could run it a broadcast waits for one, and fails when none has come.
#[test]
fn a_broadcast_to_nobody_fails_in_time() {
    let mut plan = stage(2, "2026-03-01T00:00:00Z", 2 * MINUTE);
    let mut elsewhere = broadcast(job("a"));
    elsewhere.queue = "elsewhere".into();
    elsewhere.unclaimed_after = Millis::from_secs(20);
    plan.put(3_000, elsewhere);
    plan.ops
        .push((10_000, 0, Op::Trigger("a".into(), "k".into())));
    let seen = plan.play();
    let whole: Vec<&RunRecord> = seen.ends("a").collect();
    assert_eq!(whole.len(), 1);
    assert_eq!(whole[0].failed, Some(FailReason::NoHandler));
    let waited_ms = whole[0].ended_ms.unwrap() - whole[0].created_ms;
    assert!((20_000..22_000).contains(&waited_ms), "{waited_ms}");
}

/// The parts of a run are kept and pruned with it, and do not push the history of their job out.
#[test]
fn the_history_of_a_job_counts_its_runs_and_not_their_parts() {
    let mut plan = stage(2, "2026-03-01T00:00:00Z", 2 * MINUTE);
    let mut spec = fan_out(does(cron("a", "*/2 * * * * *"), "ok", 0), 5);
    spec.history.keep_success = 3;
    spec.history.keep_failed = 3;
    spec.history.keep_skipped = 3;
    plan.put(3_000, spec);
    let seen = plan.play();
    let keys = Keys::new(NAMESPACE);
    let mut kept: BTreeSet<String> = BTreeSet::new();
    for event in seen.observed.log.iter().flat_map(|logged| &logged.events) {
        if let Some(key) = keys.parse_attempt(event.key())
            && keys.all_done().contains(event.key())
        {
            match event {
                Event::Put(_) => kept.insert(key.run),
                Event::Delete { .. } => kept.remove(&key.run),
            };
        }
    }
    let (parts, wholes): (Vec<_>, Vec<_>) = kept.iter().partition(|run| part_of(run).is_some());
    // Pruned when eight more than that have come.
    assert!((3..=14).contains(&wholes.len()), "{wholes:?}");
    assert!(seen.fires("a").len() > 50);
    for run in wholes {
        let of = parts.iter().filter(|part| part_of(part).unwrap().0 == *run);
        assert_eq!(of.count(), 5, "{run}");
    }
    assert!(parts.len() <= 5 * 16, "{}", parts.len());
}

/// A deleted job makes no more parts; a run that is edited meanwhile keeps its own number.
#[test]
fn an_edit_and_a_deletion_leave_runs_in_parts_in_order() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", MINUTE);
    plan.put(
        3_000,
        fan_out(does(cron("a", "*/10 * * * * *"), "ok", 3_000), 4),
    );
    plan.put(22_000, does(cron("a", "*/10 * * * * *"), "ok", 0));
    plan.put(
        32_000,
        fan_out(does(cron("a", "*/10 * * * * *"), "ok", 9_000), 2),
    );
    plan.ops.push((43_000, 0, Op::Delete("a".into())));
    let seen = plan.play();
    let totals: Vec<Option<u32>> = wholes(&seen, "a")
        .filter(|end| end.state != RunState::Skipped)
        .map(|end| end.parts.as_ref().map(|parts| parts.total))
        .collect();
    assert!(totals.contains(&Some(4)) && totals.contains(&Some(2)) && totals.contains(&None));
    assert!(wholes(&seen, "a").all(|end| end.state != RunState::Failed));
}
