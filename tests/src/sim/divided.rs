//! Jobs whose runs are divided into parts. Drawn from a branch of its own.

use punctual::duration::Millis;
use punctual::job::spec::{JobSpec, OnLost, Overlap};
use serde_json::json;

use super::rng::Rng;
use super::schedule::Op;
use super::workload::HANDLER;

/// Divides the runs of some of the jobs, and triggers and cancels them now and then.
pub fn widen(rng: &mut Rng, ops: &mut Vec<(u64, usize, Op)>, heal_ms: u64) {
    let mut divided = Vec::new();
    let mut take = |rng: &mut Rng, spec: &mut JobSpec| {
        let allowed = matches!(spec.overlap, Overlap::Allow | Overlap::Skip);
        if spec.id.starts_with("job-") && allowed && rng.permille(150) {
            if rng.permille(300) {
                spec.broadcast = true;
            } else {
                spec.fan_out = u32::try_from(rng.range(2, 13)).ok();
            }
            // Many parts every second are more than the nodes can do.
            if rng.permille(600) {
                spec.overlap = Overlap::Skip;
            }
            divided.push(spec.id.clone());
        }
    };
    for (_, _, op) in ops.iter_mut() {
        match op {
            Op::Put(spec) => take(rng, spec),
            Op::Apply(specs) => specs.iter_mut().for_each(|spec| take(rng, spec)),
            _ => {}
        }
    }
    if divided.is_empty() {
        return;
    }
    for n in 0..rng.range(0, 8) {
        let id = rng.pick(&divided);
        let op = match rng.range(0, 3) {
            0 => Op::Trigger(id, format!("d{n}")),
            1 => Op::Cancel(id),
            _ => Op::Retry(id, format!("d{n}")),
        };
        ops.push((rng.range(10_000, heal_ms), 0, op));
    }
    ops.sort_by_key(|(at, ..)| *at);
}

/// Six jobs in parts, with policies of all kinds.
pub fn jobs(rng: &mut Rng, heal_ms: u64) -> Vec<(u64, usize, Op)> {
    let mut ops: Vec<(u64, usize, Op)> = Vec::new();
    let kinds = [
        (Some(8), Overlap::Skip, None, "*/5 * * * * *"),
        (Some(3), Overlap::Allow, None, "*/3 * * * * *"),
        (Some(6), Overlap::Allow, Some(2), "*/20 * * * * *"),
        (Some(150), Overlap::Skip, None, "*/30 * * * * *"),
        (None, Overlap::Allow, None, "*/5 * * * * *"),
        (None, Overlap::Skip, None, "*/10 * * * * *"),
    ];
    for (index, (fan_out, overlap, concurrency, cron)) in kinds.into_iter().enumerate() {
        let mut spec = JobSpec::handler(format!("job-{index}"), HANDLER).cron(cron);
        spec.fan_out = fan_out;
        spec.broadcast = fan_out.is_none();
        spec.overlap = overlap;
        spec.concurrency = concurrency;
        spec.timeout = Millis::from_secs(10);
        spec.history.keep_success = 3;
        if rng.permille(500) {
            spec.on_lost = OnLost::Retry;
            spec.idempotent = true;
        }
        spec.retry.attempts = Some(2);
        spec.retry.backoff = Millis::from_ms(rng.range(0, 1_500));
        let does = rng.pick(&["ok", "ok", "flaky", "flaky", "fail"]);
        spec.payload = json!({ "does": does, "ms": rng.range(0, 2_500) });
        ops.push((3_000, 0, Op::Put(Box::new(spec.clone()))));
        for n in 0..6 {
            let id = spec.id.clone();
            let at = rng.range(8_000, heal_ms);
            let op = match rng.range(0, 8) {
                0 | 1 => Op::Trigger(id, format!("d{index}.{n}")),
                2..=4 => Op::Cancel(id),
                5 => Op::Retry(id, format!("d{index}.{n}")),
                6 => Op::Pause(id),
                _ => Op::Delete(id),
            };
            let again = matches!(op, Op::Delete(_) | Op::Pause(_));
            ops.push((at, rng.index(3), op));
            if again {
                let back = (at + rng.range(500, 20_000)).min(heal_ms);
                ops.push((back, 0, Op::Put(Box::new(spec.clone()))));
                ops.push((back + 300, 0, Op::Resume(spec.id.clone())));
            }
        }
    }
    ops.sort_by_key(|(at, ..)| *at);
    ops
}
