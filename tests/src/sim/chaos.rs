//! A seed's schedule of faults: which kinds, how many, how bad.

use super::ablation::Ablations;
use super::boots;
use super::breadth::Breadth;
use super::divided;
use super::faults::{Cut, Rates, Trouble, Window};
use super::overlaps;
use super::rng::Rng;
use super::saves;
use super::schedule::{Fault, NodePlan, Op, Plan, Times};
use super::told;
use super::workload;

/// Time for everything to settle after the faults.
pub const SETTLE_MS: u64 = 150_000;

/// The plan of a seed: everything that exists.
#[must_use]
pub fn plan(seed: u64) -> Plan {
    draw(seed, "default")
}

/// The plan of a seed as it was before there were time zones and crowds: seeds that once failed
/// are named by it.
#[must_use]
pub fn classic(seed: u64) -> Plan {
    draw(seed, "classic")
}

fn draw(seed: u64, scenario: &str) -> Plan {
    let root = Rng::new(seed);
    let mut rng = root.branch("chaos", 0);
    let broad = (scenario == "default").then(|| Breadth::draw(&root));
    let heal_ms = rng.range(60, 420) * 1_000;
    let drawn = usize::try_from(rng.range(1, 6)).unwrap_or(1);
    let count = broad.as_ref().map_or(drawn, |broad| broad.nodes);
    let skewed = rng.permille(500);
    let drifting = rng.permille(300);
    // 2026-03-01T00:00:00Z and some hours: midnight and the end of a month are close.
    let epoch_ms =
        1_772_323_200_000 - 60_000 + rng.between(-3, 3) * 3_600_000 + rng.between(0, 999);
    let epoch_ms = broad
        .as_ref()
        .and_then(|broad| broad.epoch_ms(heal_ms))
        .unwrap_or(epoch_ms);
    let nodes = (0..count)
        .map(|index| NodePlan {
            mono_base_ms: rng.range(0, 10_000_000),
            drift_ppm: if drifting {
                rng.between(-4_000, 4_000)
            } else {
                0
            },
            offset_ms: if skewed { rng.between(-900, 900) } else { 0 },
            slots: u32::try_from(rng.range(4, 40)).unwrap_or(4),
            has_handler: true,
            start_ms: if index == 0 { 0 } else { rng.range(0, 5_000) },
        })
        .collect();
    let mut faults = Vec::new();
    let kinds = if broad.is_some() { KINDS + 2 } else { KINDS };
    for kind in 0..kinds {
        if !rng.permille(350) {
            continue;
        }
        for _ in 0..rng.range(1, 6) {
            let at = rng.range(1_000, heal_ms);
            faults.extend(fault(&mut rng, kind, at, count, heal_ms));
        }
    }
    faults.sort_by_key(|(at, _)| *at);
    let mut ops = workload::operations(&mut root.branch("workload", 0), count, epoch_ms, heal_ms);
    ops.extend(drains(&mut root.branch("drains", 0), count, heal_ms));
    if let Some(broad) = &broad {
        broad.widen(&mut ops, epoch_ms);
        told::widen(&mut root.branch("notify", 0), &mut ops);
        overlaps::widen(&mut root.branch("overlaps", 0), &mut ops, count, heal_ms);
        hold(&mut root.branch("holds", 0), &mut ops, epoch_ms);
        again(&mut root.branch("again", 0), &mut ops);
        divided::widen(&mut root.branch("divided", 0), &mut ops, heal_ms);
        saves::widen(&mut root.branch("saves", 0), &mut ops);
    }
    ops.sort_by_key(|(at, ..)| *at);
    let mut plan = Plan {
        seed,
        scenario: scenario.into(),
        epoch_ms,
        nodes,
        relist_ms: rng.pick(&[5_000, 15_000, 60_000]),
        overdue_takeover_ms: rng.pick(&[1_000, 1_000, 1_000, 400, 0]),
        times: broad.map_or_else(Times::default, |broad| broad.times),
        faults,
        ops,
        heal_ms,
        end_ms: heal_ms + SETTLE_MS,
        ablation: Ablations::default(),
        naive: false,
    };
    boots::add(&mut plan, &mut root.branch("boots", 0));
    plan
}

/// Operators drain a node now and then, through whichever node, and at the end let all go.
fn drains(rng: &mut Rng, count: usize, heal_ms: u64) -> Vec<(u64, usize, Op)> {
    let mut ops = Vec::new();
    if !rng.permille(250) {
        return ops;
    }
    for _ in 0..rng.range(1, 5) {
        let at = rng.range(5_000, heal_ms);
        let op = Op::Drain(format!("n{}", rng.index(count)), rng.permille(600));
        ops.push((at, rng.index(count), op));
    }
    for node in 0..count {
        let op = Op::Drain(format!("n{node}"), false);
        ops.push((heal_ms + 40_000, node, op));
    }
    ops
}

/// Some of the holds end by themselves, and now and then all jobs are held and let go at once.
fn hold(rng: &mut Rng, ops: &mut Vec<(u64, usize, Op)>, epoch_ms: i64) {
    let end = |rng: &mut Rng, at: u64| epoch_ms + (at + rng.range(0, 90_000)).cast_signed();
    let mut more = Vec::new();
    for (at, node, op) in ops.iter_mut() {
        if let Op::Pause(id) = op {
            if rng.permille(500) {
                *op = Op::PauseUntil(id.clone(), end(rng, *at));
            }
            if rng.permille(250) {
                let until_ms = rng.permille(500).then(|| end(rng, *at));
                more.push((*at + rng.range(0, 20_000), *node, Op::PauseAll(until_ms)));
                more.push((*at + rng.range(0, 60_000), *node, Op::ResumeAll));
            }
        }
    }
    ops.extend(more);
}

/// Where there is a run by hand, some runs that failed are repeated, and some of the past is run.
fn again(rng: &mut Rng, ops: &mut Vec<(u64, usize, Op)>) {
    let mut more = Vec::new();
    for (at, node, op) in ops.iter() {
        let Op::Trigger(id, _) = op else { continue };
        let key = format!("again-{}", rng.range(0, 3));
        if rng.permille(400) {
            let at = *at + rng.range(0, 30_000);
            more.push((at, *node, Op::Retry(id.clone(), key.clone())));
        }
        if rng.permille(300) {
            let until = rng.range(0, 30_000);
            let range = [until + rng.range(0, 15_000), until];
            let op = Op::Backfill(id.clone(), range, key, rng.permille(500));
            let at = *at + rng.range(0, 30_000);
            more.push((at, *node, op.clone()));
            if rng.permille(500) {
                more.push((at + rng.range(0, 100), *node, op));
            }
        }
    }
    ops.extend(more);
}

const KINDS: u64 = 14;

fn fault(rng: &mut Rng, kind: u64, at: u64, nodes: usize, heal_ms: u64) -> Vec<(u64, Fault)> {
    let node = rng.index(nodes);
    let until = |length: u64| (at + length).min(heal_ms);
    let link = |length: u64, trouble: Trouble| {
        vec![(
            at,
            Fault::Link {
                node,
                window: Window {
                    from_ms: at,
                    until_ms: until(length),
                    trouble,
                },
            },
        )]
    };
    match kind {
        0 => link(rng.range(5_000, 120_000), Trouble::Lossy(rates(rng))),
        1 => link(rng.range(1_000, 60_000), Trouble::Cut(Cut::Both)),
        2 => {
            let cut = rng.pick(&[Cut::Replies, Cut::Requests]);
            link(rng.range(1_000, 40_000), Trouble::Cut(cut))
        }
        3 => vec![(
            at,
            Fault::Crash {
                node,
                down_ms: rng.range(100, 60_000),
            },
        )],
        4 => vec![(
            at,
            Fault::Leave {
                node,
                down_ms: rng.range(5_000, 90_000),
            },
        )],
        5 => vec![(
            at,
            Fault::Pause {
                node,
                for_ms: rng.range(100, 60_000),
            },
        )],
        6 => vec![(
            at,
            Fault::PauseLeader {
                for_ms: rng.range(1_000, 60_000),
            },
        )],
        7 => vec![(
            at,
            Fault::CrashLeader {
                down_ms: rng.range(100, 60_000),
            },
        )],
        8 => vec![(at, Fault::RevokeNode { node })],
        9 => vec![(at, Fault::RevokeLeader)],
        10 => step(rng, at, node, heal_ms),
        11 => vec![(
            at,
            Fault::Compact {
                keep: rng.range(0, 20),
            },
        )],
        12 => {
            let trouble = rng.pick(&[
                Trouble::WatchStall,
                Trouble::WatchDelay,
                Trouble::WatchEnd,
                Trouble::WatchDropsDeletes,
                Trouble::WatchRepeats,
            ]);
            link(rng.range(1_000, 60_000), trouble)
        }
        14 => link(rng.range(1_000, 60_000), Trouble::WatchSkips),
        // Leases end late, as under a store whose own leader changes again and again.
        15 => (0..rng.range(3, 20))
            .map(|n| (at + n * 1_000, Fault::ProlongLeases))
            .filter(|(at, _)| *at < heal_ms)
            .collect(),
        _ => match rng.range(0, 3) {
            0 => vec![(at, Fault::ProlongLeases)],
            // An outage: the store is away for everybody.
            1 => {
                let length = rng.range(1_000, 60_000);
                (0..nodes)
                    .map(|node| {
                        let window = Window {
                            from_ms: at,
                            until_ms: until(length),
                            trouble: Trouble::Cut(Cut::Both),
                        };
                        (at, Fault::Link { node, window })
                    })
                    .collect()
            }
            _ => link(rng.range(1_000, 30_000), Trouble::NoSpace),
        },
    }
}

fn rates(rng: &mut Rng) -> Rates {
    let mut some = |most: u64| {
        if rng.permille(500) {
            u32::try_from(rng.range(1, most)).unwrap_or(0)
        } else {
            0
        }
    };
    Rates {
        refuse: some(200),
        lose_request: some(100),
        lose_reply: some(200),
        unknown: some(200),
        unknown_not: some(200),
        late: some(150),
        duplicate: some(200),
        slow: some(300),
    }
}

/// A step that a node may believe is small; a large one is taken back before it is believed.
fn step(rng: &mut Rng, at: u64, node: usize, heal_ms: u64) -> Vec<(u64, Fault)> {
    let ms = if rng.permille(500) {
        rng.between(-1_900, 1_900)
    } else {
        rng.between(-8 * 3_600_000, 8 * 3_600_000)
    };
    let back = (at + rng.range(1_000, 50_000)).min(heal_ms);
    vec![
        (at, Fault::Step { node, ms }),
        (back, Fault::Step { node, ms: 0 }),
    ]
}
