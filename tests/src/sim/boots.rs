//! Nodes that boot with a wrong clock.
//!
//! Nobody can tell a clock that is alone, or in a tie, that it is wrong, so these happen where a
//! majority of right ones is there and not troubled: what is checked then is that they are heard.

use super::rng::Rng;
use super::schedule::{Fault, Plan};

/// Before and after, so long nothing else goes wrong: sessions that were lost are back.
const QUIET_BEFORE_MS: u64 = 25_000;
const QUIET_AFTER_MS: u64 = 12_000;

/// How far a clock is off: seconds to days, ahead or behind.
pub fn offset_ms(rng: &mut Rng) -> i64 {
    let ms = match rng.range(0, 4) {
        0 => rng.between(500, 10_000),
        1 => rng.between(10_000, 600_000),
        2 => rng.between(600_000, 86_400_000),
        _ => rng.between(86_400_000, 400 * 86_400_000),
    };
    if rng.permille(500) { ms } else { -ms }
}

/// The node dies, boots with a wrong clock, and a time server sets it right later.
pub fn wrong(rng: &mut Rng, node: usize) -> Fault {
    Fault::BootWrong {
        node,
        down_ms: rng.range(100, 4_000),
        ms: offset_ms(rng),
        right_after_ms: rng.range(1_000, 30_000),
    }
}

/// Adds some to a plan, where it is quiet and nodes enough are there.
pub fn add(plan: &mut Plan, rng: &mut Rng) {
    if plan.nodes.len() < 3 || !rng.permille(500) {
        return;
    }
    for _ in 0..rng.range(1, 30) {
        let at = rng.range(QUIET_BEFORE_MS, plan.heal_ms);
        let node = rng.index(plan.nodes.len());
        let fault = wrong(rng, node);
        let (from, until) = (at - QUIET_BEFORE_MS, at + lasts_ms(&fault) + QUIET_AFTER_MS);
        let quiet = plan.faults.iter().all(|(start, other)| {
            let end = start + lasts_ms(other) + QUIET_AFTER_MS;
            end < from || until < *start
        });
        // A step lasts until its clock is set back.
        let stepped = plan.faults.iter().any(|(start, other)| {
            matches!(other, Fault::Step { node: stepped, ms } if *ms != 0
                && *start < until
                && !plan.faults.iter().any(|(back, fault)| *start < *back && *back < from
                    && *fault == Fault::Step { node: *stepped, ms: 0 }))
        });
        if quiet && !stepped && until < plan.heal_ms {
            plan.faults.push((at, fault));
        }
    }
    plan.faults.sort_by_key(|(at, _)| *at);
}

fn lasts_ms(fault: &Fault) -> u64 {
    match fault {
        Fault::Link { window, .. } => window.until_ms - window.from_ms,
        Fault::Crash { down_ms, .. }
        | Fault::Leave { down_ms, .. }
        | Fault::CrashLeader { down_ms } => *down_ms,
        Fault::Pause { for_ms, .. } | Fault::PauseLeader { for_ms } => *for_ms,
        Fault::BootWrong {
            down_ms,
            right_after_ms,
            ..
        } => down_ms + right_after_ms,
        Fault::RevokeNode { .. }
        | Fault::RevokeLeader
        | Fault::ProlongLeases
        | Fault::Step { .. }
        | Fault::Creep { .. }
        | Fault::ForeignRun { .. }
        | Fault::Spoil { .. }
        | Fault::TakeLeaderLease
        | Fault::Compact { .. } => 0,
    }
}
