//! Jobs that run after others, jobs that run again some time after they ended, and jobs whose runs are
//! often late: what the leader writes beside the cursor. Drawn from a branch of its own.

use punctual::duration::Millis;
use punctual::job::spec::{JobSpec, NotifyEvent, NotifySpec, OnLost, Overlap};
use punctual::schedule::ScheduleSpec;
use serde_json::json;

use super::faults::{Rates, Trouble, Window};
use super::rng::Rng;
use super::schedule::{Fault, Op};
use super::workload::HANDLER;

/// More than one request decides.
const FOLLOWERS: u64 = 18;
const RESTING: u64 = 4;

/// One job that many follow, under each policy of overlap, one that follows one of those, and some that
/// run again after a rest; all held, edited, deleted, triggered and repeated now and then.
pub fn jobs(rng: &mut Rng, heal_ms: u64) -> Vec<(u64, usize, Op)> {
    let mut ops: Vec<(u64, usize, Op)> = Vec::new();
    let mut specs = Vec::new();
    let mut head = JobSpec::handler("head", HANDLER).cron("*/4 * * * * *");
    head.payload = json!({ "does": "ok", "ms": 0 });
    ops.push((3_000, 0, Op::Put(Box::new(head))));
    for number in 0..=FOLLOWERS {
        let mut spec = JobSpec::handler(format!("job-{number}"), HANDLER);
        let leads = if number == FOLLOWERS { "job-0" } else { "head" };
        spec.after = vec![leads.to_owned()];
        spec.overlap = rng.pick(&[
            Overlap::Allow,
            Overlap::Allow,
            Overlap::Skip,
            Overlap::Queue,
            Overlap::Replace,
        ]);
        spec.timeout = Millis::from_secs(20);
        spec.history.keep_success = 5;
        spec.payload = json!({ "does": "ok", "ms": rng.pick(&[0, 0, 300, 3_000]) });
        let at = if number == FOLLOWERS { 7_000 } else { 5_000 };
        ops.push((at, 0, Op::Put(Box::new(spec.clone()))));
        specs.push(spec);
    }
    for number in 0..RESTING {
        let mut spec = JobSpec::handler(format!("rests-{number}"), HANDLER);
        spec.schedule = ScheduleSpec {
            after_finish: Some(Millis::from_ms(rng.range(1_000, 3_000))),
            ..ScheduleSpec::default()
        };
        spec.timeout = Millis::from_secs(20);
        spec.history.keep_success = 5;
        if rng.permille(300) {
            spec.on_lost = OnLost::Retry;
            spec.idempotent = true;
        }
        let does = rng.pick(&["ok", "fail", "fail"]);
        spec.payload = json!({ "does": does, "ms": rng.pick(&[0, 200, 2_000]) });
        ops.push((5_000, 0, Op::Put(Box::new(spec.clone()))));
        specs.push(spec);
    }
    for n in 0..120 {
        let at = rng.range(9_000, heal_ms);
        let spec = &specs[rng.index(specs.len())];
        let id = spec.id.clone();
        let op = match rng.range(0, 8) {
            0..=2 => Op::Pause(id.clone()),
            3 => Op::Delete(id.clone()),
            4 => Op::Cancel(id.clone()),
            _ => Op::Trigger("head".to_owned(), format!("c{n}")),
        };
        match &op {
            Op::Pause(_) => {
                let back = (at + rng.range(500, 10_000)).min(heal_ms);
                ops.push((back, rng.index(3), Op::Resume(id)));
            }
            Op::Delete(_) => {
                let back = (at + rng.range(500, 10_000)).min(heal_ms);
                ops.push((back, rng.index(3), Op::Put(Box::new(spec.clone()))));
            }
            _ => {}
        }
        ops.push((at, rng.index(3), op));
    }
    for n in 0..160 {
        let id = format!("rests-{}", rng.range(0, RESTING));
        let at = rng.range(9_000, heal_ms);
        ops.push((at, rng.index(3), Op::Retry(id, format!("r{n}"))));
    }
    ops.sort_by_key(|(at, ..)| *at);
    ops
}

/// Jobs whose runs wait for each other for about as long as nobody calls late, and more and more often
/// longer.
pub fn late_jobs(rng: &mut Rng) -> Vec<(u64, usize, Op)> {
    let mut ops: Vec<(u64, usize, Op)> = Vec::new();
    for number in 0..5 {
        let mut spec = JobSpec::handler(format!("job-{number}"), HANDLER).cron("*/6 * * * * *");
        spec.concurrency = Some(1);
        spec.timeout = Millis::from_secs(30);
        spec.payload = json!({ "does": "ok", "ms": rng.range(2_500, 6_500) });
        spec.notify = vec![NotifySpec {
            webhook: format!("https://{number}.example.org/"),
            on: vec![NotifyEvent::Late],
            late_after: Some(Millis::from_secs(rng.range(2, 8))),
        }];
        ops.push((3_000, 0, Op::Put(Box::new(spec))));
    }
    ops
}

/// A network that repeats much and delays little, so that the many reads of one decision come through;
/// and a store that takes its time now and then, so that what was read is old when it is written.
pub fn network(rng: &mut Rng, from_ms: u64, heal_ms: u64) -> Vec<(u64, Fault)> {
    let rates = Rates {
        late: 8,
        duplicate: 200,
        unknown: 8,
        unknown_not: 4,
        ..Rates::default()
    };
    let mut all = Vec::new();
    let mut everywhere = |from_ms: u64, until_ms: u64, trouble: Trouble| {
        let window = Window {
            from_ms,
            until_ms,
            trouble,
        };
        all.extend((0..3).map(|node| (from_ms, Fault::Link { node, window })));
    };
    everywhere(from_ms, heal_ms, Trouble::Lossy(rates));
    let mut at = from_ms;
    while at < heal_ms {
        let until = (at + rng.range(5_000, 20_000)).min(heal_ms);
        everywhere(at, until, Trouble::SlowWrites(rng.range(100, 900)));
        at = until + rng.range(1_000, 10_000);
    }
    all
}

/// Leaders that go, stand still, or are the last to hear.
pub fn faults(rng: &mut Rng, at: u64, heal_ms: u64) -> Vec<(u64, Fault)> {
    let everywhere = |length_ms: u64, trouble: Trouble| -> Vec<(u64, Fault)> {
        let window = Window {
            from_ms: at,
            until_ms: (at + length_ms).min(heal_ms),
            trouble,
        };
        let nodes = 0..3;
        nodes
            .map(|node| (at, Fault::Link { node, window }))
            .collect()
    };
    match rng.range(1, 6) {
        1 => everywhere(rng.range(1_000, 10_000), Trouble::WatchDelay),
        2 => everywhere(1, Trouble::WatchStall),
        3 => vec![(at, Fault::RevokeLeader)],
        4 => {
            let down_ms = rng.range(100, 9_000);
            vec![(at, Fault::CrashLeader { down_ms })]
        }
        _ => {
            let for_ms = rng.range(500, 12_000);
            let before = rng.range(0, 50);
            vec![
                (at, Fault::PauseLeader { for_ms }),
                (at.saturating_sub(before), Fault::RevokeLeader),
            ]
        }
    }
}
