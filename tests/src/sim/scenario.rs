//! Named scenarios: the same world and the same checks, with the faults of one story.

use punctual::duration::Millis;
use punctual::job::spec::{JobSpec, Misfire, OnLost};
use serde_json::json;

use super::ablation::Ablations;
use super::boots;
use super::chains;
use super::chaos;
use super::divided;
use super::faults::{Cut, Rates, Trouble, Window};
use super::overlaps;
use super::rng::Rng;
use super::saves;
use super::schedule::{Fault, NodePlan, Op, Plan, Times};
use super::told;
use super::workload::{self, HANDLER};

/// Every scenario, and what it tells.
pub const ALL: &[(&str, &str)] = &[
    ("default", "everything at once, drawn from the seed"),
    (
        "classic",
        "the same in UTC, with five nodes and nine jobs at most: what earlier seeds mean",
    ),
    (
        "paused-leader",
        "the leader stands still and wakes, again and again",
    ),
    (
        "cut-leader",
        "a leader is cut from the store, one way or both",
    ),
    (
        "two-believers",
        "a leader loses its lease and is paused before it hears",
    ),
    (
        "lease-loss",
        "leases end without reason while work is running",
    ),
    (
        "late-writes",
        "requests arrive long after their senders gave up",
    ),
    (
        "clock-year-ahead",
        "the clock of a running node jumps a year ahead",
    ),
    (
        "sessions",
        "sessions end while the watches that would tell are stalled",
    ),
    (
        "clock-minutes-ahead",
        "the clock of a running node jumps ten minutes ahead for a while",
    ),
    ("triggers", "triggers on a network that repeats and delays"),
    (
        "slow-store",
        "every write takes long, for an hour, under clocks that differ",
    ),
    (
        "cut-worker",
        "workers with long work are cut from the store for longer than their sessions last",
    ),
    (
        "edits",
        "operators change several jobs of one partition at once, between its fires",
    ),
    (
        "twins",
        "two jobs of one partition are changed at once, and watches leave out revisions",
    ),
    (
        "long-windows",
        "outages whose catching up takes many batches, under leaders that come and go",
    ),
    (
        "open-windows",
        "an outage is caught up on a slow store, and each leader falls before it is done",
    ),
    (
        "boots-a-year-ahead",
        "a node starts with a clock a year ahead, for good, and the others have their troubles",
    ),
    (
        "wrong-boots",
        "nodes boot with clocks that are seconds to days off, one after another",
    ),
    (
        "clock-creeps",
        "the clock of one node leaves those of the others, too slowly for a step",
    ),
    (
        "overlaps",
        "queues, replacements and limited jobs under triggers that race the fires",
    ),
    (
        "divided",
        "runs in parts on a network that repeats and delays, under leaders and workers that come and go",
    ),
    (
        "checkpoints",
        "runs that keep checkpoints on such a network, and workers that lose them to others",
    ),
    (
        "news",
        "many jobs tell what becomes of their runs, under leaders and workers that vanish, one or all",
    ),
    (
        "chains",
        "jobs run after others and after a rest, while leaders come and go, and are held and edited",
    ),
    (
        "late-news",
        "runs wait for about as long as makes them late, under leaders that hear late of their starts",
    ),
];

const HEAL_MS: u64 = 180_000;

/// The plan of a seed; `None` when there is no such scenario.
#[must_use]
pub fn plan(name: &str, seed: u64) -> Option<Plan> {
    if name == "default" {
        // A leader hardly ever falls inside an open window by chance.
        let falls = Rng::new(seed).branch("story", 0).permille(20);
        return match plan("open-windows", seed).filter(|_| falls) {
            Some(story) => Some(Plan {
                scenario: "default".into(),
                ..story
            }),
            None => Some(chaos::plan(seed)),
        };
    }
    if name == "classic" {
        return Some(chaos::classic(seed));
    }
    ALL.iter().find(|(known, _)| *known == name)?;
    let root = Rng::new(seed).branch(name, 0);
    let mut rng = root.branch("scenario", 0);
    let epoch_ms = 1_772_323_200_000 - 60_000 + rng.between(0, 999);
    let mut plan = Plan {
        seed,
        scenario: name.into(),
        epoch_ms,
        nodes: (0..3).map(|_| node(&mut rng)).collect(),
        relist_ms: 60_000,
        overdue_takeover_ms: 1_000,
        times: Times::default(),
        faults: Vec::new(),
        ops: workload::operations(&mut root.branch("workload", 0), 3, epoch_ms, HEAL_MS),
        heal_ms: HEAL_MS,
        end_ms: HEAL_MS + chaos::SETTLE_MS,
        ablation: Ablations::default(),
        naive: false,
    };
    match name {
        "sessions" => plan.ops = steady_jobs(),
        "triggers" => plan.ops = triggers(&mut rng),
        "overlaps" => {
            plan.ops = overlaps::jobs(&mut rng, epoch_ms, HEAL_MS);
            for node in &mut plan.nodes {
                node.slots = u32::try_from(rng.range(1, 9)).unwrap_or(4);
            }
        }
        "divided" => plan.ops = divided::jobs(&mut rng, HEAL_MS),
        "checkpoints" => plan.ops = saves::jobs(&mut rng, HEAL_MS),
        "chains" => {
            plan.ops = chains::jobs(&mut rng, HEAL_MS);
            plan.faults = chains::network(&mut rng, 9_000, HEAL_MS);
        }
        "late-news" => {
            plan.ops = chains::late_jobs(&mut rng);
            // The jobs are there first.
            plan.faults = (0..3).map(|n| (9_000, bad_network(n, 9_000))).collect();
        }
        "news" => {
            if rng.permille(300) {
                plan.ops = divided::jobs(&mut rng, HEAL_MS);
            }
            told::widen(&mut rng, &mut plan.ops);
        }
        "slow-store" => slow_store(&mut rng, &mut plan),
        "boots-a-year-ahead" => {
            plan.nodes[1].offset_ms = 365 * 86_400_000;
            // The first node of all would be alone with its clock.
            plan.nodes[1].start_ms = rng.range(8_000, 20_000);
            plan.faults = around_a_wrong_node(&mut rng);
        }
        "wrong-boots" => {
            plan.faults = (0..4)
                .map(|turn| {
                    let node = rng.index(3);
                    (30_000 + turn * 36_000, boots::wrong(&mut rng, node))
                })
                .collect();
        }
        "clock-creeps" => {
            let node = rng.index(3);
            let ms = rng.between(200, 1_800) * if rng.permille(500) { 1 } else { -1 };
            plan.faults = (0..14)
                .map(|turn| (20_000 + turn * 11_000, Fault::Creep { node, ms }))
                .collect();
        }
        "cut-worker" => {
            plan.ops = long_jobs();
            // A leader that would wait less than a worker needs.
            plan.times.mixed = true;
        }
        "long-windows" => plan.ops = busy_partition(&mut rng, "* * * * * *"),
        "open-windows" => {
            plan.ops = busy_partition(&mut rng, "* * * * * *");
            plan.faults = open_windows(&mut rng);
        }
        "edits" => {
            plan.ops = busy_partition(&mut rng, "*/5 * * * * *");
            plan.ops.extend(edits(&mut rng));
        }
        "twins" => {
            plan.ops = busy_partition(&mut rng, "* * * * * *");
            plan.ops.extend(twins(&mut rng));
            plan.faults = (0..3)
                .map(|node| (0, link(node, 0, HEAL_MS, Trouble::WatchSkips)))
                .collect();
        }
        _ => {}
    }
    for _ in 0..rng.range(3, 9) {
        let at = rng.range(10_000, HEAL_MS - 20_000);
        plan.faults.extend(faults(&mut rng, name, at));
    }
    if matches!(
        name,
        "late-writes" | "triggers" | "long-windows" | "edits" | "divided" | "checkpoints"
    ) {
        plan.faults
            .extend((0..3).map(|node| (0, bad_network(node, 0))));
    }
    plan.faults.sort_by_key(|(at, _)| *at);
    Some(plan)
}

fn node(rng: &mut Rng) -> NodePlan {
    NodePlan {
        mono_base_ms: rng.range(0, 10_000_000),
        drift_ppm: 0,
        offset_ms: rng.between(-300, 300),
        slots: 32,
        has_handler: true,
        start_ms: rng.range(0, 2_000),
    }
}

fn link(node: usize, from_ms: u64, length_ms: u64, trouble: Trouble) -> Fault {
    let until_ms = (from_ms + length_ms).min(HEAL_MS);
    Fault::Link {
        node,
        window: Window {
            from_ms,
            until_ms,
            trouble,
        },
    }
}

/// The store is slow for an hour, a few times slower still for some seconds, and nothing else is
/// wrong.
fn slow_store(rng: &mut Rng, plan: &mut Plan) {
    let heal_ms = 3_600_000;
    plan.heal_ms = heal_ms;
    plan.end_ms = heal_ms + chaos::SETTLE_MS;
    plan.ops = steady_jobs();
    let slow_ms = rng.pick(&[300, 300, 300, 700, 1_200]);
    let mut slow = |from_ms: u64, until_ms: u64, ms: u64| {
        for node in 0..plan.nodes.len() {
            let window = Window {
                from_ms,
                until_ms,
                trouble: Trouble::SlowWrites(ms),
            };
            plan.faults.push((from_ms, Fault::Link { node, window }));
        }
    };
    let mut at = 20_000;
    while at < heal_ms {
        let calm = (at + rng.range(60_000, 900_000)).min(heal_ms);
        slow(at, calm, slow_ms);
        let worse = (calm + rng.range(1_000, 20_000)).min(heal_ms);
        slow(calm, worse, rng.range(slow_ms, 1_800));
        at = worse;
    }
    for node in &mut plan.nodes {
        node.offset_ms = rng.between(-900, 900);
    }
}

fn bad_network(node: usize, from_ms: u64) -> Fault {
    let rates = Rates {
        late: 100,
        duplicate: 200,
        unknown: 50,
        unknown_not: 50,
        ..Rates::default()
    };
    link(node, from_ms, HEAL_MS, Trouble::Lossy(rates))
}

/// Two minutes without a store are many batches; then each of them takes long, and nobody leads for
/// longer than a few.
fn open_windows(rng: &mut Rng) -> Vec<(u64, Fault)> {
    let (from_ms, length_ms) = (rng.range(15_000, 25_000), rng.range(90_000, 120_000));
    let back = from_ms + length_ms;
    let slow_ms = rng.range(200, 450);
    let mut all = Vec::new();
    for node in 0..3 {
        let cut = Trouble::Cut(Cut::Both);
        all.push((from_ms, link(node, from_ms, length_ms, cut)));
        let slow = Trouble::SlowWrites(slow_ms);
        all.push((back, link(node, back, 30_000, slow)));
    }
    let mut at = back;
    for _ in 0..12 {
        at += rng.range(700, 2_500);
        all.push((at, Fault::RevokeLeader));
    }
    all
}

/// What happens to the two others, and that the wrong one boots again when both are there.
fn around_a_wrong_node(rng: &mut Rng) -> Vec<(u64, Fault)> {
    let mut all = Vec::new();
    for turn in [35_000, 80_000, 125_000] {
        let down_ms = rng.range(100, 20_000);
        let node = rng.pick(&[0, 2]);
        let other = match rng.range(0, 5) {
            0 => Fault::CrashLeader { down_ms },
            1 => Fault::PauseLeader { for_ms: down_ms },
            2 => Fault::Leave { node, down_ms },
            3 => Fault::RevokeNode { node },
            _ => Fault::RevokeLeader,
        };
        all.push((turn + rng.range(0, 2_000), other));
        if rng.permille(600) {
            let down_ms = rng.range(100, 2_000);
            all.push((turn + 35_000, Fault::Crash { node: 1, down_ms }));
        }
    }
    all
}

fn faults(rng: &mut Rng, name: &str, at: u64) -> Vec<(u64, Fault)> {
    let node = rng.index(3);
    match name {
        "news" => match rng.range(0, 4) {
            // Nobody decides anything for a while.
            3 => {
                let down_ms = rng.range(1_000, 25_000);
                let all = (0..3).map(|node| (at, Fault::Crash { node, down_ms }));
                all.collect()
            }
            0 => vec![(
                at,
                Fault::CrashLeader {
                    down_ms: rng.range(100, 9_000),
                },
            )],
            1 => vec![(
                at,
                Fault::Crash {
                    node,
                    down_ms: rng.range(100, 30_000),
                },
            )],
            _ => vec![(at, Fault::RevokeNode { node })],
        },
        "paused-leader" => vec![(
            at,
            Fault::PauseLeader {
                for_ms: rng.range(500, 30_000),
            },
        )],
        "cut-leader" => {
            let cut = rng.pick(&[Cut::Both, Cut::Replies, Cut::Requests]);
            vec![(
                at,
                link(node, at, rng.range(2_000, 40_000), Trouble::Cut(cut)),
            )]
        }
        "two-believers" => {
            let for_ms = rng.range(200, 9_000);
            let before = rng.range(0, 50);
            vec![
                (at, Fault::PauseLeader { for_ms }),
                (at.saturating_sub(before), Fault::RevokeLeader),
            ]
        }
        "lease-loss" => vec![
            (at, Fault::RevokeNode { node }),
            (at + rng.range(0, 5_000), Fault::RevokeLeader),
        ],
        "late-writes" => vec![(
            at,
            Fault::CrashLeader {
                down_ms: rng.range(100, 20_000),
            },
        )],
        "clock-year-ahead" => vec![
            (
                at,
                Fault::Step {
                    node,
                    ms: 365 * 86_400_000,
                },
            ),
            (at + rng.range(5_000, 50_000), Fault::Step { node, ms: 0 }),
        ],
        "cut-worker" => {
            let cut = Trouble::Cut(Cut::Both);
            vec![(at, link(node, at, rng.range(20_000, 50_000), cut))]
        }
        "edits" => vec![(at, Fault::RevokeLeader)],
        "checkpoints" => match rng.range(0, 4) {
            0 => {
                let down_ms = rng.range(100, 5_000);
                vec![(at, Fault::Crash { node, down_ms })]
            }
            1 => vec![(
                at,
                Fault::PauseLeader {
                    for_ms: rng.range(500, 30_000),
                },
            )],
            _ => {
                let cut = rng.pick(&[Cut::Both, Cut::Replies, Cut::Requests]);
                vec![(
                    at,
                    link(node, at, rng.range(15_000, 50_000), Trouble::Cut(cut)),
                )]
            }
        },
        "chains" | "late-news" => chains::faults(rng, at, HEAL_MS),
        "overlaps" | "divided" => overlaps::faults(rng, at, HEAL_MS),
        "long-windows" => {
            let length = rng.range(20_000, 60_000);
            let back = (at + length).min(HEAL_MS);
            let mut all: Vec<(u64, Fault)> = (0..3)
                .map(|other| (at, link(other, at, length, Trouble::Cut(Cut::Both))))
                .collect();
            // While they catch up, leaders fall one after another.
            all.extend((1..6).map(|n| (back + n * rng.range(100, 3_000), Fault::RevokeLeader)));
            all
        }
        "clock-minutes-ahead" => vec![
            (at, Fault::Step { node, ms: 600_000 }),
            (at + rng.range(5_000, 50_000), Fault::Step { node, ms: 0 }),
        ],
        "sessions" => {
            let gone = at + rng.range(500, 4_000);
            let mut all: Vec<(u64, Fault)> = (0..3)
                .map(|other| {
                    // The end of the session is still seen, its renewal is not.
                    let from = gone + rng.range(10, 400);
                    (from, link(other, from, 1, Trouble::WatchStall))
                })
                .collect();
            all.push((gone, Fault::RevokeNode { node }));
            all
        }
        _ => vec![],
    }
}

fn steady_jobs() -> Vec<(u64, usize, Op)> {
    (0..4)
        .map(|index| {
            let mut spec = JobSpec::handler(format!("job-{index}"), HANDLER).cron("*/2 * * * * *");
            spec.timeout = Millis::from_secs(60);
            if index % 2 == 0 {
                spec.on_lost = OnLost::Retry;
                spec.idempotent = true;
            }
            let ms = 9_000 + 7_000 * index;
            spec.payload = json!({ "does": "ok", "ms": ms });
            (3_000 + index, 0, Op::Put(Box::new(spec)))
        })
        .collect()
}

/// Work that outlasts a session and its grace, and that another worker may begin again.
fn long_jobs() -> Vec<(u64, usize, Op)> {
    ["ok", "deaf", "deaf"]
        .iter()
        .enumerate()
        .map(|(index, does)| {
            let mut spec = JobSpec::handler(format!("job-{index}"), HANDLER);
            spec.schedule.cron = Some("*/10 * * * * *".into());
            spec.timeout = Millis::from_secs(100);
            spec.on_lost = OnLost::Retry;
            spec.idempotent = true;
            spec.payload = json!({ "does": does, "ms": 50_000 });
            (3_000, 0, Op::Put(Box::new(spec)))
        })
        .collect()
}

/// The jobs of [`busy_partition`].
fn busy_names() -> impl Iterator<Item = String> {
    let partition =
        |id: &str| punctual::keys::partition_of(id, punctual::bootstrap::DEFAULT_PARTITIONS);
    let all = (0..).map(|n| format!("busy-{n}"));
    all.filter(move |id| partition(id) == 0).take(6)
}

/// A hold or a release of one job, an edit of another, within half a second.
fn edits(rng: &mut Rng) -> Vec<(u64, usize, Op)> {
    let names: Vec<String> = busy_names().collect();
    let mut ops = Vec::new();
    for _ in 0..60 {
        let at = rng.range(10_000, HEAL_MS - 10_000);
        let (held, edited) = (rng.pick(&names), rng.pick(&names));
        let hold = match rng.range(0, 5) {
            0 | 1 => Op::Pause(held),
            2 | 3 => Op::Resume(held),
            _ => Op::Delete(held),
        };
        let mut spec = JobSpec::handler(edited, HANDLER).cron("*/5 * * * * *");
        spec.payload = json!({ "does": "ok", "ms": 0, "salt": rng.range(0, 1_000_000) });
        ops.push((at, rng.index(3), hold));
        ops.push((
            at + rng.range(1, 500),
            rng.index(3),
            Op::Put(Box::new(spec)),
        ));
    }
    ops.sort_by_key(|(at, ..)| *at);
    ops
}

/// A hold or a release of one job and an edit of another through another node, in the same
/// milliseconds: both have read the same heads.
fn twins(rng: &mut Rng) -> Vec<(u64, usize, Op)> {
    let names: Vec<String> = busy_names().collect();
    let mut ops = Vec::new();
    for turn in 0..50 {
        let at = 10_000 + turn * 3_000 + rng.range(0, 1_000);
        let (held, edited) = (rng.index(3), 3 + rng.index(3));
        let hold = if rng.permille(500) {
            Op::Pause(names[held].clone())
        } else {
            Op::Resume(names[held].clone())
        };
        let mut spec = JobSpec::handler(names[edited].clone(), HANDLER).cron("* * * * * *");
        spec.payload = json!({ "does": "ok", "ms": 0, "salt": rng.range(0, 1_000_000) });
        let through = rng.index(3);
        let edit = Op::Put(Box::new(spec));
        let other = (through + 1) % 3;
        ops.push((at, through, hold));
        ops.push((at + rng.range(0, 3), other, edit));
    }
    ops
}

/// Jobs of one partition with every policy.
fn busy_partition(rng: &mut Rng, cron: &str) -> Vec<(u64, usize, Op)> {
    busy_names()
        .map(|id| {
            let mut spec = JobSpec::handler(id, HANDLER).cron(cron);
            if rng.permille(400) {
                spec.misfire = rng.pick(&[Misfire::Latest, Misfire::All, Misfire::Skip]);
                spec.catch_up = Millis::from_secs(rng.range(5, 60));
            }
            spec.payload = json!({ "does": "ok", "ms": 0 });
            (3_000, 0, Op::Put(Box::new(spec)))
        })
        .collect()
}

fn triggers(rng: &mut Rng) -> Vec<(u64, usize, Op)> {
    let mut ops: Vec<(u64, usize, Op)> = (0..3)
        .map(|index| {
            let mut spec = JobSpec::handler(format!("job-{index}"), HANDLER);
            spec.payload = json!({ "does": "ok", "ms": 0 });
            spec.history.keep_success = 1;
            (3_000 + index, 0, Op::Put(Box::new(spec)))
        })
        .collect();
    for n in 0..120 {
        let id = format!("job-{}", rng.range(0, 3));
        let op = Op::Trigger(id, format!("key-{n}"));
        ops.push((rng.range(20_000, HEAL_MS), rng.index(3), op));
    }
    ops.sort_by_key(|(at, ..)| *at);
    ops
}
