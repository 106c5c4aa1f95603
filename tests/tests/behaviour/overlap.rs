//! Runs that meet the next instant.

use punctual::backend::Event;
use punctual::duration::Millis;
use punctual::job::run::{FailReason, RunState, SkipReason};
use punctual::job::spec::{HistorySpec, JobSpec, OnLost, Overlap};
use punctual::keys::Keys;
use punctual_tests::sim::schedule::{Fault, Op, Plan};
use punctual_tests::sim::world::NAMESPACE;

use crate::stage::{MINUTE, Seen, Story as _, cron, does, every, stage};

/// The most executions of the job at once.
fn at_once(seen: &Seen, job: &str) -> usize {
    let runs = seen.runs(job);
    let beside = |at: u64| {
        let running = runs
            .iter()
            .filter(|run| run.start_ms <= at && run.end_ms.is_none_or(|end_ms| end_ms > at));
        running.count()
    };
    runs.iter()
        .map(|run| beside(run.start_ms))
        .max()
        .unwrap_or(0)
}

fn trigger(plan: &mut Plan, at_ms: u64, node: usize, job: &str, key: &str) {
    plan.ops
        .push((at_ms, node, Op::Trigger(job.into(), key.into())));
}

fn queued(job: JobSpec) -> JobSpec {
    JobSpec {
        overlap: Overlap::Queue,
        ..job
    }
}

/// U21: a limit on executions takes nothing away from the claims: each run is still claimed once,
/// and never are there more at once than the limit says, on all nodes together.
#[test]
fn u21_two_at_once_in_a_cluster_and_one_claim_each() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 3 * MINUTE);
    let mut pair = does(every("a", 5), "ok", 9_000);
    pair.concurrency = Some(2);
    plan.put(3_000, pair);
    for turn in 0..6 {
        plan.fault(20_000 + turn * 21_300, Fault::RevokeLeader);
    }
    for n in 0..3 {
        trigger(
            &mut plan,
            61_000 + n,
            usize::try_from(n).unwrap(),
            "a",
            &format!("k{n}"),
        );
    }
    let crash = Fault::Crash {
        node: 1,
        down_ms: 5_000,
    };
    plan.fault(90_000, crash);
    let seen = plan.play();
    assert_eq!(at_once(&seen, "a"), 2);
    let runs = seen.runs("a");
    assert!(runs.len() > 30, "{}", runs.len());
    let mut names: Vec<(&str, u32)> = runs.iter().map(|r| (r.run.as_str(), r.attempt)).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), runs.len(), "each started once");
    // Oldest first, since one node prefers all of them.
    let calm: Vec<i64> = runs.iter().take(8).map(|run| run.scheduled_ms).collect();
    assert!(calm.is_sorted(), "{calm:?}");
}

/// O04: the first run, triggered at once, counts: the instant that falls into it waits, and runs
/// when it has ended.
#[test]
fn o04_a_first_run_by_hand_counts() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", MINUTE);
    plan.put(
        12_000,
        queued(does(cron("a", "20 0 * * * *"), "ok", 15_000)),
    );
    trigger(&mut plan, 12_200, 1, "a", "first");
    let seen = plan.play();
    let runs = seen.runs("a");
    assert_eq!(runs.len(), 2);
    assert!(runs[0].run.contains("~m-") && runs[1].run.contains('@'));
    let first_end = runs[0].end_ms.unwrap();
    assert!(first_end > 27_000);
    let waited = runs[1].start_ms - first_end;
    assert!(waited < 100, "{waited} ms after a free slot");
    assert_eq!(at_once(&seen, "a"), 1);
}

/// O06: a queue that is full for more than ten minutes. History is pruned all the same, what waits
/// is not given up, and when there is room again the policy applies.
#[test]
fn o06_a_full_queue_is_not_stuck() {
    let mut plan = stage(3, "2026-03-01T00:00:30Z", 16 * MINUTE);
    let mut slow = queued(does(cron("a", "* * * * *"), "ok", 750_000));
    slow.timeout = Millis::from_secs(3_600);
    let keep = HistorySpec {
        keep_success: 5,
        keep_failed: 2,
        keep_skipped: 2,
        ..HistorySpec::default()
    };
    slow.history = keep.clone();
    plan.put(3_000, slow);
    let mut other = every("b", 5);
    other.history = keep;
    plan.put(3_000, other);
    for (index, at) in [(0, 4 * MINUTE), (1, 9 * MINUTE)] {
        plan.fault(at, Fault::RevokeLeader);
        trigger(&mut plan, at + 5_000, index, "a", &format!("k{index}"));
    }
    let seen = plan.play();
    let runs = seen.runs("a");
    // At 30 s the first, at 90 s the one that waits, for longer than `unclaimed_after`.
    assert_eq!(seen.fires_s("a")[..3], [30, 90, 810]);
    let (first, second) = (runs[0], runs[1]);
    assert_eq!(seen.observed.plan.epoch_ms + 90_000, second.scheduled_ms);
    let waited = second.start_ms - first.end_ms.unwrap();
    assert!(waited < 100, "{waited} ms after a free slot");
    let full: Vec<_> = seen
        .ends("a")
        .filter(|e| e.skipped == Some(SkipReason::Overlap))
        .collect();
    let until_room = full
        .iter()
        .filter(|skip| skip.scheduled_ms < seen.observed.plan.epoch_ms + 780_000);
    assert_eq!(until_room.count(), 11);
    // Two triggers were refused by name.
    let refused = seen.observed.asked.iter().filter(|asked| {
        let answer = format!("{:?}", asked.answer);
        matches!(asked.op, Op::Trigger(..))
            && answer.contains("queue of job `a` is full")
            && answer.contains(&first.run)
            && answer.contains(&second.run)
    });
    assert_eq!(refused.count(), 2);
    // Pruning went on, for the full one too.
    let keys = Keys::new(NAMESPACE);
    let mut standing = std::collections::BTreeSet::new();
    let mut most = std::collections::BTreeMap::new();
    for event in seen.observed.log.iter().flat_map(|logged| &logged.events) {
        let Some(key) = keys.parse_attempt(event.key()) else {
            continue;
        };
        if !keys.all_done().contains(event.key()) {
            continue;
        }
        match event {
            Event::Put(_) => standing.insert(event.key().to_vec()),
            Event::Delete { .. } => standing.remove(event.key()),
        };
        let span = keys.done_of(key.partition, &key.job);
        let count = standing.iter().filter(|key| span.contains(key)).count();
        let most = most.entry(key.job).or_insert(0);
        *most = count.max(*most);
    }
    assert!(most["a"] <= 2 + 8 + 1, "{most:?}");
    assert!(most["b"] <= 5 + 8 + 1, "{most:?}");
}

/// A queue holds so many and no more, and lets them go in their order.
#[test]
fn a_queue_of_three_beside_two() {
    let mut plan = stage(3, "2026-03-01T00:00:05Z", 2 * MINUTE);
    let mut job = queued(does(cron("a", "10-16 0 * * * *"), "ok", 20_000));
    (job.concurrency, job.queue_limit) = (Some(2), Some(3));
    plan.put(3_000, job);
    let seen = plan.play();
    assert_eq!(seen.fires_s("a"), [5, 6, 7, 8, 9]);
    assert_eq!(seen.skips("a"), [(SkipReason::Overlap, 1); 2]);
    assert_eq!(at_once(&seen, "a"), 2);
    let starts: Vec<i64> = seen.runs("a").iter().map(|run| run.scheduled_ms).collect();
    assert!(starts.is_sorted() && starts.len() == 5, "{starts:?}");
}

/// A replacement waits until the one before has stopped, however long that takes to obey.
#[test]
fn a_replacement_waits_until_the_other_has_stopped() {
    for does_what in ["ok", "deaf"] {
        let mut plan = stage(3, "2026-03-01T00:00:00Z", 2 * MINUTE);
        let mut job = does(cron("a", "*/20 * * * * *"), does_what, 50_000);
        job.overlap = Overlap::Replace;
        job.retry.attempts = Some(3);
        plan.put(3_000, job);
        // Two by hand at once: the first waits for the one that runs, and ends while it waits.
        trigger(&mut plan, 65_000, 0, "a", "one");
        trigger(&mut plan, 65_200, 1, "a", "two");
        let seen = plan.play();
        assert_eq!(at_once(&seen, "a"), 1, "{does_what}");
        let ended: Vec<_> = seen.ends("a").filter(|end| end.scheduled_ms > 0).collect();
        assert!(
            ended.iter().all(|end| end.attempt == 1),
            "no retry of a replaced run"
        );
        let cancelled = ended
            .iter()
            .filter(|end| end.failed == Some(FailReason::Cancelled));
        assert!(cancelled.count() >= 6, "{does_what}");
        if does_what == "deaf" {
            let waiting = ended.iter().filter_map(|end| end.error.as_deref());
            let by_hand = waiting.filter(|error| error.starts_with("replaced by a~m-"));
            assert_eq!(by_hand.count(), 1);
        }
        assert_eq!(seen.skips("a"), []);
    }
}

/// Runs follow the definition under which they were made: after an edit from three to one, the three
/// end, and only then the next one runs.
#[test]
fn a_lower_limit_counts_what_runs_under_the_old_one() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 2 * MINUTE);
    let mut job = does(cron("a", "10,11,12,20,21 0 * * * *"), "ok", 15_000);
    job.concurrency = Some(3);
    plan.put(3_000, job.clone());
    job.concurrency = Some(1);
    plan.put(15_000, job);
    let seen = plan.play();
    let runs = seen.runs("a");
    assert_eq!(runs.len(), 5);
    assert_eq!(at_once(&seen, "a"), 3);
    let old_end = runs[..3].iter().filter_map(|run| run.end_ms).max().unwrap();
    assert!(runs[3].start_ms >= old_end && runs[3].start_ms < old_end + 100);
    assert!(runs[4].start_ms >= runs[3].end_ms.unwrap());
}

/// O01: a run goes on over three further instants, while the lead changes ten times.
#[test]
fn o01_new_leaders_know_of_the_run() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 2 * MINUTE);
    let mut long = does(cron("a", "*/20 * * * * *"), "ok", 75_000);
    long.overlap = Overlap::Skip;
    plan.put(3_000, long);
    for turn in 0..10 {
        plan.fault(24_000 + turn * 6_400, Fault::RevokeLeader);
    }
    let seen = plan.play();
    assert_eq!(seen.leads.len(), 11);
    let until = |at: u64| at < 95_000;
    let fires: Vec<_> = seen.scheduled("a").filter(|run| until(run.at_ms)).collect();
    assert_eq!(fires.len(), 1);
    let skips: Vec<_> = seen.ended.iter().filter(|end| until(end.at_ms)).collect();
    assert_eq!(skips.len(), 3);
    for skip in skips {
        assert_eq!(skip.record.skipped, Some(SkipReason::Overlap));
        assert_eq!(skip.record.stands_for, 1);
    }
}

/// O02: the host of a run dies, and the run is started again: that counts at the next instant.
#[test]
fn o02_a_run_that_was_started_again_counts() {
    let mut plan = stage(3, "2026-03-01T00:00:30Z", 5 * MINUTE);
    let mut long = does(cron("a", "* * * * *"), "ok", 80_000);
    long.overlap = Overlap::Skip;
    long.on_lost = OnLost::Retry;
    long.idempotent = true;
    long.timeout = Millis::from_secs(200);
    plan.put(3_000, long);
    let dry = plan.play();
    let node = dry.node(dry.runs("a")[0].proc);
    plan.fault(
        35_000,
        Fault::Crash {
            node,
            down_ms: 8_000,
        },
    );
    let seen = plan.play();
    let runs = seen.runs("a");
    assert_eq!((runs[0].attempt, runs[1].attempt), (1, 2));
    assert_eq!(runs[0].run, runs[1].run);
    let (from, until) = (runs[1].start_ms, runs[1].end_ms.unwrap());
    assert!(until - from == 80_000 && runs[1].completed);
    // Two minutes begin before it ends.
    assert!(from < 90_000 && until > 130_000, "{from}..{until}");
    for slot_s in [90, 150] {
        if slot_s * 1_000 < until {
            assert!(!seen.fires_s("a").contains(&i64::try_from(slot_s).unwrap()));
        }
    }
    let skips: Vec<_> = seen
        .ends("a")
        .filter(|end| end.state == RunState::Skipped)
        .collect();
    assert!(
        skips
            .iter()
            .all(|skip| skip.skipped == Some(SkipReason::Overlap))
    );
    let first = skips.iter().map(|skip| skip.scheduled_ms).min();
    assert_eq!(first, Some(seen.observed.plan.epoch_ms + 90_000));
}
