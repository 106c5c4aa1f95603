//! Who leads, who hears of it, and what a view of the store misses.

use punctual::job::run::SkipReason;
use punctual_tests::sim::faults::Trouble;
use punctual_tests::sim::schedule::{Fault, Op};

use crate::stage::{MINUTE, Story as _, cron, does, stage};

/// E07: the leader is gone, and no standby hears that its key is. They look by themselves.
#[test]
fn e07_a_lost_event_does_not_end_the_election() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 2 * MINUTE);
    // The other way to notice: off.
    plan.overdue_takeover_ms = 0;
    plan.put(3_000, cron("often", "* * * * * *"));
    for node in 0..3 {
        plan.trouble(node, 29_000, 60_000, Trouble::WatchDropsDeletes);
    }
    plan.fault(30_000, Fault::CrashLeader { down_ms: 45_000 });
    plan.fault(30_000, Fault::RevokeNode { node: 0 });
    let seen = plan.play();
    let next = seen.leads[1].0;
    // The lease of 5 s, and the period of 10 s.
    assert!((31_000..=45_500).contains(&next), "{:?}", seen.leads);
    let fires = seen.fires_s("often");
    assert!(fires.windows(2).all(|two| two[1] == two[0] + 1));
}

/// E09: the lead is lost a thousand times, at every phase of what a leader does.
#[test]
fn e09_a_lead_lost_anywhere_breaks_nothing() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 640_000);
    plan.put(3_000, does(cron("often", "* * * * * *"), "ok", 300));
    let mut other = cron("other", "*/2 * * * * *");
    other.overlap = punctual::job::spec::Overlap::Skip;
    plan.put(3_000, does(other, "ok", 2_500));
    // 613 ms and a second have no common measure: each phase comes once.
    for turn in 0..1_000 {
        plan.fault(5_000 + turn * 613, Fault::RevokeLeader);
    }
    let seen = plan.play();
    let revoked = seen.observed.counts["spurious revoke"];
    assert!(revoked >= 900, "{revoked}");
    assert!(seen.leads.len() >= 900);
    assert_eq!(seen.observed.lives.len(), 3);
    assert!(
        seen.observed
            .lives
            .values()
            .all(|life| life.gave_up.is_none())
    );
    assert_eq!(seen.runs("often").len(), seen.fires("often").len());
}

/// E11: a leader resigns, and the request is under way for eight seconds. It has been replaced by a
/// later life of the same node by then, whose lead goes on.
#[test]
fn e11_a_late_resignation_does_not_end_the_next_term() {
    let mut plan = stage(1, "2026-03-01T00:00:00Z", MINUTE);
    plan.put(3_000, cron("often", "* * * * * *"));
    plan.trouble(0, 20_000, 22_900, Trouble::SlowWrites(8_000));
    plan.fault(
        20_001,
        Fault::Leave {
            node: 0,
            down_ms: 2_950,
        },
    );
    let seen = plan.play();
    assert_eq!(seen.leads.len(), 2, "{:?}", seen.leads);
    // Before the resignation arrived.
    assert!(seen.leads[1].0 < 27_500, "{:?}", seen.leads);
    let late = seen.scheduled("often").filter(|run| run.at_ms > 27_500);
    let epoch_ms = seen.observed.plan.epoch_ms;
    let late = late.map(|run| run.at_ms.cast_signed() - (run.record.scheduled_ms - epoch_ms));
    let late: Vec<i64> = late.collect();
    assert!(
        late.len() > 30 && late.iter().all(|late| *late < 100),
        "{late:?}"
    );
}

/// E12: jobs that are made through nodes that do not lead.
#[test]
fn e12_a_job_made_at_any_node_fires() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", MINUTE);
    for node in 0..3 {
        let job = cron(format!("job-{node}"), "*/5 * * * * *");
        plan.ops.push((12_000, node, Op::Put(Box::new(job))));
    }
    plan.fault(30_200, Fault::CrashLeader { down_ms: 60_000 });
    let seen = plan.play();
    assert_eq!(seen.leads[0].1, 0);
    let expected: Vec<i64> = (3..).map(|n| n * 5).take(9).collect();
    for node in 0..3 {
        assert_eq!(seen.fires_s(&format!("job-{node}"))[..9], expected);
    }
}

/// W09: three puts and two deletes that no watch tells the leader of, in each way in which a watch can
/// keep something to itself.
#[test]
fn w09_a_gap_in_the_watch() {
    let repeated = Trouble::WatchRepeats;
    for trouble in [
        Trouble::WatchStall,
        Trouble::WatchEnd,
        Trouble::WatchDelay,
        Trouble::WatchDropsDeletes,
        Trouble::WatchSkips,
        repeated,
    ] {
        let mut plan = stage(3, "2026-03-01T00:00:00Z", 150_000);
        plan.put_all(
            3_000,
            vec![cron("old-0", "* * * * * *"), cron("old-1", "* * * * * *")],
        );
        for node in 0..3 {
            plan.trouble(node, 19_900, 21_000, trouble);
        }
        for n in 0..3 {
            let job = cron(format!("new-{n}"), "* * * * * *");
            plan.ops.push((20_000 + n, 1, Op::Put(Box::new(job))));
        }
        for n in 0..2 {
            plan.ops
                .push((20_003 + n, 1, Op::Delete(format!("old-{n}"))));
        }
        let seen = plan.play();
        for n in 0..2 {
            let fires = seen.fires_s(&format!("old-{n}"));
            assert!(fires.iter().all(|at| *at <= 20), "{trouble:?}: {fires:?}");
            assert!(fires.len() > 14);
        }
        for n in 0..3 {
            let fires = seen.fires_s(&format!("new-{n}"));
            assert!(
                fires.windows(2).all(|two| two[1] == two[0] + 1),
                "{trouble:?}"
            );
            assert!(
                fires.len() > 140 && fires[0] == 21,
                "{trouble:?}: {fires:?}"
            );
        }
    }
}

/// W11: a job is edited five times, then deleted: one fire an instant in between, none after.
#[test]
fn w11_edits_leave_nothing_behind() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", MINUTE);
    plan.put(3_000, cron("a", "* * * * * *"));
    for turn in 1..6 {
        plan.put(
            5_000 + turn * 4_130,
            does(cron("a", "* * * * * *"), "ok", turn),
        );
    }
    plan.ops.push((40_020, 2, Op::Delete("a".into())));
    // Watches that lose what they can.
    for node in 0..3 {
        plan.trouble(node, 5_000, 45_000, Trouble::WatchDropsDeletes);
    }
    let seen = plan.play();
    let fires = seen.fires_s("a");
    assert!(fires.windows(2).all(|two| two[1] == two[0] + 1));
    assert_eq!(fires.last(), Some(&40));
    assert_eq!(seen.runs("a").len(), fires.len());
    let mut generations: Vec<u64> = seen
        .scheduled("a")
        .map(|run| run.record.generation)
        .collect();
    generations.dedup();
    assert_eq!(generations.len(), 6, "each was in force once");
    let skipped = seen
        .skips("a")
        .into_iter()
        .filter(|skip| skip.0 == SkipReason::Deleted);
    assert!(skipped.count() <= 1);
}
