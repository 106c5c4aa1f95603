//! Jobs and what operators do to them.

use punctual::duration::Millis;
use punctual::job::spec::{JobSpec, Misfire, OnLost, Overlap};
use punctual::schedule::ScheduleSpec;
use serde_json::json;

use super::rng::Rng;
use super::schedule::Op;

/// The handler that every simulated job calls.
pub const HANDLER: &str = "work";

/// Jobs of one partition meet each other's changes; few names make that likely.
const NAMES: usize = 9;

fn name(index: usize) -> String {
    format!("job-{index}")
}

/// A job that is random in everything that exists.
pub fn job(rng: &mut Rng, id: &str, epoch_ms: i64, now_ms: u64) -> JobSpec {
    let mut spec = JobSpec::handler(id, HANDLER);
    spec.schedule = schedule(rng, epoch_ms, now_ms);
    spec.overlap = if rng.permille(350) {
        Overlap::Skip
    } else {
        Overlap::Allow
    };
    spec.misfire = rng.pick(&[Misfire::Latest, Misfire::All, Misfire::Skip]);
    if rng.permille(500) {
        spec.catch_up = Millis::from_ms(rng.range(1, 30) * 1_000);
    }
    if rng.permille(150) {
        spec.start_deadline = Some(Millis::from_ms(rng.range(2, 40) * 1_000));
    }
    if rng.permille(400) {
        spec.on_lost = OnLost::Retry;
        spec.idempotent = true;
    }
    if rng.permille(400) {
        spec.retry.attempts = Some(u32::try_from(rng.range(1, 5)).unwrap_or(1));
        spec.retry.backoff = Millis::from_ms(rng.range(0, 4) * 500);
    }
    if rng.permille(100) {
        spec.self_fence = true;
    }
    spec.timeout = Millis::from_ms(rng.range(2, 25) * 1_000);
    spec.unclaimed_after = Millis::from_secs(rng.range(40, 600));
    spec.history.keep_success = u32::try_from(rng.range(1, 25)).unwrap_or(1);
    spec.history.keep_skipped = u32::try_from(rng.range(1, 25)).unwrap_or(1);
    spec.history.keep_failed = u32::try_from(rng.range(1, 25)).unwrap_or(1);
    let behaviour = rng.pick(&[
        "ok", "ok", "ok", "ok", "ok", "fail", "flaky", "panic", "hang", "deaf",
    ]);
    let work_ms = match rng.range(0, 4) {
        0 => 0,
        1 => rng.range(1, 300),
        2 => rng.range(300, 3_000),
        _ => rng.range(3_000, 12_000),
    };
    spec.payload = json!({ "does": behaviour, "ms": work_ms, "salt": rng.range(0, 1_000) });
    spec
}

fn schedule(rng: &mut Rng, epoch_ms: i64, now_ms: u64) -> ScheduleSpec {
    let cron = match rng.range(0, 10) {
        0 | 1 => "* * * * * *".to_owned(),
        2 | 3 => format!("*/{} * * * * *", rng.range(2, 20)),
        4 => format!("{},{} * * * * *", rng.range(0, 30), rng.range(30, 60)),
        5 => format!("{} */2 * * * *", rng.range(0, 60)),
        6 => "* * * * *".to_owned(),
        7 => {
            return ScheduleSpec {
                every: Some(Millis::from_secs(rng.range(1, 40))),
                ..ScheduleSpec::default()
            };
        }
        8 => {
            let at = epoch_ms + now_ms.cast_signed() + rng.between(-20, 120) * 1_000;
            return ScheduleSpec {
                at: Some(punctual::time::rfc3339_ms(at - at.rem_euclid(1_000))),
                ..ScheduleSpec::default()
            };
        }
        _ => format!("{}-{} * * * * *", rng.range(0, 20), rng.range(20, 59)),
    };
    let jitter = rng
        .permille(100)
        .then(|| Millis::from_ms(rng.range(1, 5_000)));
    ScheduleSpec {
        cron: Some(cron),
        jitter,
        ..ScheduleSpec::default()
    }
}

/// What operators do until `until_ms`.
pub fn operations(
    rng: &mut Rng,
    nodes: usize,
    epoch_ms: i64,
    until_ms: u64,
) -> Vec<(u64, usize, Op)> {
    let mut ops = Vec::new();
    let jobs = usize::try_from(rng.range(1, NAMES as u64)).unwrap_or(1);
    for index in 0..jobs {
        let at = rng.range(500, 20_000);
        let spec = job(rng, &name(index), epoch_ms, at);
        ops.push((at, rng.index(nodes), Op::Put(Box::new(spec))));
    }
    let busy = rng.range(0, 60);
    for _ in 0..busy {
        let at = rng.range(15_000, until_ms.max(15_001));
        let id = name(rng.index(jobs));
        let op = match rng.range(0, 12) {
            0..=2 => Op::Put(Box::new(job(rng, &id, epoch_ms, at))),
            3 => {
                let count = rng.range(1, 4);
                let specs = (0..count)
                    .map(|n| {
                        let index = usize::try_from(n).unwrap_or(0) * 3 + rng.index(3);
                        job(rng, &name(index), epoch_ms, at)
                    })
                    .collect();
                Op::Apply(specs)
            }
            4 | 5 => Op::Pause(id),
            6 | 7 => Op::Resume(id),
            8 => Op::Delete(id),
            9 | 10 => Op::Trigger(id, format!("k{}", rng.range(0, 5))),
            _ => Op::Cancel(id),
        };
        ops.push((at, rng.index(nodes), op));
    }
    ops.sort_by_key(|(at, ..)| *at);
    ops
}
