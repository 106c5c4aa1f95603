//! Runs that meet the next instant.

use punctual::duration::Millis;
use punctual::job::run::{RunState, SkipReason};
use punctual::job::spec::{OnLost, Overlap};
use punctual_tests::sim::schedule::Fault;

use crate::stage::{MINUTE, Story as _, cron, does, stage};

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
