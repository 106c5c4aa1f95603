//! Jobs whose runs say how far they have come and keep checkpoints. Drawn from a branch of its own.

use punctual::duration::Millis;
use punctual::job::spec::{JobSpec, OnLost};
use serde_json::json;

use super::rng::Rng;
use super::schedule::Op;
use super::workload::HANDLER;

/// Lets some of the jobs do so.
pub fn widen(rng: &mut Rng, ops: &mut [(u64, usize, Op)]) {
    let mut take = |spec: &mut JobSpec| {
        if spec.id.starts_with("job-") && spec.payload.is_object() && rng.permille(250) {
            spec.payload["saves"] = json!(rng.range(1, 3_000));
        }
    };
    for (_, _, op) in ops {
        match op {
            Op::Put(spec) => take(spec),
            Op::Apply(specs) => specs.iter_mut().for_each(&mut take),
            _ => {}
        }
    }
}

/// Four jobs whose attempts are cut off in many ways, and cancelled and deleted now and then.
pub fn jobs(rng: &mut Rng, heal_ms: u64) -> Vec<(u64, usize, Op)> {
    let mut ops: Vec<(u64, usize, Op)> = Vec::new();
    for (index, does) in ["ok", "fail", "hang", "flaky"].into_iter().enumerate() {
        let mut spec = JobSpec::handler(format!("job-{index}"), HANDLER).cron("*/10 * * * * *");
        spec.timeout = Millis::from_secs(rng.range(5, 30));
        spec.on_lost = OnLost::Retry;
        spec.idempotent = true;
        spec.retry.attempts = Some(u32::try_from(rng.range(2, 6)).unwrap_or(2));
        spec.retry.backoff = Millis::from_ms(rng.range(0, 2_000));
        spec.history.keep_success = 5;
        let ms = rng.range(1_000, 25_000);
        spec.payload = json!({ "does": does, "ms": ms, "saves": rng.range(1, 1_500) });
        if index == 3 && rng.permille(500) {
            spec.fan_out = Some(3);
        }
        ops.push((3_000, 0, Op::Put(Box::new(spec.clone()))));
        for n in 0..4 {
            let at = rng.range(10_000, heal_ms);
            let id = spec.id.clone();
            let op = match rng.range(0, 5) {
                0..=2 => Op::Cancel(id),
                3 => Op::Retry(id, format!("s{index}.{n}")),
                _ => {
                    let back = (at + rng.range(500, 5_000)).min(heal_ms);
                    ops.push((back, 0, Op::Put(Box::new(spec.clone()))));
                    Op::Delete(id)
                }
            };
            ops.push((at, rng.index(3), op));
        }
    }
    ops.sort_by_key(|(at, ..)| *at);
    ops
}
