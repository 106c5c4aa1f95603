//! Jobs whose runs meet: queues, replacements, limited concurrency, and triggers that race the fires.
//! Drawn from a branch of its own.

use punctual::duration::Millis;
use punctual::job::spec::{JobSpec, OnLost, Overlap};
use serde_json::json;

use super::faults::{Trouble, Window};
use super::rng::Rng;
use super::schedule::{Fault, Op};
use super::workload::HANDLER;

/// Gives some of the jobs such a policy, and adds triggers that fall close to each other.
pub fn widen(rng: &mut Rng, ops: &mut Vec<(u64, usize, Op)>, nodes: usize, heal_ms: u64) {
    let mut limited = Vec::new();
    let mut take = |rng: &mut Rng, spec: &mut JobSpec| {
        if spec.id.starts_with("job-") && rng.permille(400) {
            policy(rng, spec);
            limited.push(spec.id.clone());
        }
    };
    for (_, _, op) in ops.iter_mut() {
        match op {
            Op::Put(spec) => take(rng, spec),
            Op::Apply(specs) => specs.iter_mut().for_each(|spec| take(rng, spec)),
            _ => {}
        }
    }
    if limited.is_empty() {
        return;
    }
    for n in 0..rng.range(0, 12) {
        let at = rng.range(10_000, heal_ms);
        let id = rng.pick(&limited);
        for more in 0..rng.range(1, 5) {
            let op = Op::Trigger(id.clone(), format!("o{n}.{more}"));
            ops.push((at + rng.range(0, 40), rng.index(nodes), op));
        }
    }
    ops.sort_by_key(|(at, ..)| *at);
}

/// One of the policies that look at other runs of the job.
fn policy(rng: &mut Rng, spec: &mut JobSpec) {
    let count = |rng: &mut Rng| u32::try_from(rng.range(1, 4)).unwrap_or(1);
    spec.overlap = rng.pick(&[
        Overlap::Allow,
        Overlap::Queue,
        Overlap::Queue,
        Overlap::Replace,
    ]);
    spec.concurrency = match spec.overlap {
        Overlap::Allow => Some(count(rng)),
        _ => rng.permille(400).then(|| count(rng)),
    };
    spec.queue_limit = (spec.overlap == Overlap::Queue && rng.permille(600)).then(|| count(rng));
}

/// Five jobs with work about as long as their period, and triggers around their instants.
pub fn jobs(rng: &mut Rng, epoch_ms: i64, heal_ms: u64) -> Vec<(u64, usize, Op)> {
    let policies = [
        (Overlap::Queue, None, None),
        (Overlap::Queue, Some(2), Some(2)),
        (Overlap::Queue, None, Some(3)),
        (Overlap::Replace, None, None),
        (Overlap::Allow, Some(2), None),
    ];
    let mut ops: Vec<(u64, usize, Op)> = Vec::new();
    for (index, (overlap, concurrency, queue_limit)) in policies.into_iter().enumerate() {
        let id = format!("job-{index}");
        let mut spec = JobSpec::handler(id.clone(), HANDLER).cron("*/2 * * * * *");
        spec.overlap = overlap;
        spec.concurrency = concurrency;
        spec.queue_limit = queue_limit;
        spec.timeout = Millis::from_secs(20);
        if rng.permille(500) {
            spec.on_lost = OnLost::Retry;
            spec.idempotent = true;
        }
        spec.retry.attempts = Some(2);
        spec.retry.backoff = Millis::from_ms(rng.range(0, 500));
        let does = rng.pick(&["ok", "ok", "ok", "flaky", "fail"]);
        let ms = rng.range(1, 3) * 2_000 - rng.range(0, 60);
        spec.payload = json!({ "does": does, "ms": ms });
        ops.push((3_000, 0, Op::Put(Box::new(spec))));
    }
    for n in 0..300 {
        // Around an instant, when the leader decides.
        let at = rng.range(5_000, heal_ms);
        let into_ms = (epoch_ms + at.cast_signed())
            .rem_euclid(2_000)
            .unsigned_abs();
        let at = at - into_ms + rng.range(0, 30);
        let op = Op::Trigger(format!("job-{}", rng.range(0, 5)), format!("key-{n}"));
        ops.push((at, rng.index(3), op));
    }
    ops.sort_by_key(|(at, ..)| *at);
    ops
}

/// A store that takes its time, watches that stall, workers and leaders that go.
pub fn faults(rng: &mut Rng, at: u64, heal_ms: u64) -> Vec<(u64, Fault)> {
    let node = rng.index(3);
    let link = |node: usize, length_ms: u64, trouble: Trouble| {
        let window = Window {
            from_ms: at,
            until_ms: (at + length_ms).min(heal_ms),
            trouble,
        };
        (at, Fault::Link { node, window })
    };
    match rng.range(0, 5) {
        0 => {
            let slow = Trouble::SlowWrites(rng.range(10, 200));
            (0..3).map(|node| link(node, 20_000, slow)).collect()
        }
        1 => vec![link(node, rng.range(1_000, 10_000), Trouble::WatchStall)],
        2 => vec![(at, Fault::RevokeLeader)],
        3 => {
            let down_ms = rng.range(100, 5_000);
            vec![(at, Fault::Crash { node, down_ms })]
        }
        _ => vec![(at, Fault::RevokeNode { node })],
    }
}
