//! What makes a seed broad: time zones whose clocks change, both dialects, excluded dates, crowds of
//! jobs, more nodes, other times. Drawn from a branch of its own.

use jiff::Timestamp;
use jiff::tz::TimeZoneDatabase;
use punctual::duration::Millis;
use punctual::job::spec::JobSpec;
use punctual::schedule::{Dialect, DstRules, Gap, Overlap, ScheduleSpec};
use serde_json::json;

use super::rng::Rng;
use super::schedule::{Op, Times};
use super::workload::HANDLER;

/// Zones with changes of an hour, of half an hour, at midnight, of two hours, at odd offsets.
const ZONES: &[&str] = &[
    "America/New_York",
    "Europe/Berlin",
    "Europe/Dublin",
    "America/Santiago",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
    "Africa/Cairo",
];

/// Some run after others whose number is lower, so that none goes round in a circle; some run again
/// after a while.
fn after(rng: &mut Rng, spec: &mut JobSpec) {
    if rng.permille(120) {
        spec.schedule = ScheduleSpec {
            after_finish: Some(Millis::from_ms(rng.range(1_000, 15_000))),
            jitter: spec.schedule.jitter,
            ..ScheduleSpec::default()
        };
        return;
    }
    let number: Option<u64> = spec.id.strip_prefix("job-").and_then(|n| n.parse().ok());
    if let Some(number) = number.filter(|n| *n > 0)
        && rng.permille(250)
    {
        let mut names: Vec<String> = (0..rng.range(1, 3))
            .map(|_| format!("job-{}", rng.range(0, number)))
            .collect();
        names.dedup();
        spec.after = names;
        // A job that is not there yet is refused.
        if rng.permille(300) {
            spec.schedule = ScheduleSpec::default();
        }
    }
}

/// A change of a zone's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockChange {
    /// The zone.
    pub zone: &'static str,
    /// Unix seconds.
    pub at: i64,
    /// Seconds added to Unix time before.
    pub before: i64,
    /// And after.
    pub after: i64,
}

/// The changes of these zones' clocks in 2026 and 2027.
#[must_use]
pub fn clock_changes(zones: &[&'static str]) -> Vec<ClockChange> {
    let from = Timestamp::from_second(1_767_225_600).expect("2026-01-01");
    let until = Timestamp::from_second(1_830_297_600).expect("2028-01-01");
    let mut all = Vec::new();
    for name in zones {
        let zone = TimeZoneDatabase::bundled()
            .get(name)
            .expect("a zone of the database");
        let mut before = i64::from(zone.to_offset(from).seconds());
        for change in zone.following(from).take_while(|c| c.timestamp() < until) {
            let after = i64::from(change.offset().seconds());
            all.push(ClockChange {
                zone: name,
                at: change.timestamp().as_second(),
                before,
                after,
            });
            before = after;
        }
    }
    all.retain(|change| change.before != change.after);
    all
}

/// What a seed draws on top of the classic plan.
pub struct Breadth {
    /// One to seven.
    pub nodes: usize,
    /// Of the nodes' configuration.
    pub times: Times,
    change: Option<ClockChange>,
    rng: Rng,
}

impl Breadth {
    /// From the seed's root.
    #[must_use]
    pub fn draw(root: &Rng) -> Self {
        let mut rng = root.branch("breadth", 0);
        let nodes = usize::try_from(rng.range(1, 8)).unwrap_or(1);
        let times = if rng.permille(500) {
            times(&mut rng)
        } else {
            Times::default()
        };
        let change = rng.permille(450).then(|| rng.pick(&clock_changes(ZONES)));
        Self {
            nodes,
            times,
            change,
            rng,
        }
    }

    /// The time at which the simulation begins, when it meets a change of the clock.
    #[must_use]
    pub fn epoch_ms(&self, heal_ms: u64) -> Option<i64> {
        let mut rng = self.rng.branch("epoch", 0);
        let into = rng.range(25_000, heal_ms.max(30_000)).cast_signed();
        Some(self.change?.at * 1_000 - into - rng.between(0, 999))
    }

    /// Changes what the operators ask for.
    pub fn widen(&self, ops: &mut Vec<(u64, usize, Op)>, epoch_ms: i64) {
        let mut rng = self.rng.branch("jobs", 0);
        for (_, _, op) in ops.iter_mut() {
            match op {
                Op::Put(spec) => self.spec(&mut rng, spec, epoch_ms),
                Op::Apply(specs) => specs
                    .iter_mut()
                    .for_each(|spec| self.spec(&mut rng, spec, epoch_ms)),
                _ => {}
            }
        }
        let mut chains = self.rng.branch("after", 0);
        for (_, _, op) in ops.iter_mut() {
            match op {
                Op::Put(spec) => after(&mut chains, spec),
                Op::Apply(specs) => specs.iter_mut().for_each(|spec| after(&mut chains, spec)),
                _ => {}
            }
        }
        // A minute is what most expressions in the world are about.
        let mut minutes = JobSpec::handler("minutes", HANDLER).cron("* * * * *");
        minutes.payload = json!({ "does": "ok", "ms": rng.range(0, 3_000) });
        ops.push((rng.range(500, 5_000), 0, Op::Put(Box::new(minutes))));
        if rng.permille(20) {
            let node = rng.index(self.nodes);
            ops.extend(crowd(&mut rng).map(|(at, op)| (at, node, op)));
        }
        ops.sort_by_key(|(at, ..)| *at);
    }

    fn spec(&self, rng: &mut Rng, spec: &mut JobSpec, epoch_ms: i64) {
        if spec.schedule.at.is_some() {
            return;
        }
        let is_cron = spec.schedule.cron.is_some();
        match (self.change, rng.range(0, 10)) {
            (Some(change), 0..=5) if is_cron => {
                spec.schedule = ScheduleSpec {
                    timezone: Some(change.zone.into()),
                    dst: DstRules {
                        gap: rng.pick(&[Gap::Fire, Gap::Skip]),
                        overlap: rng.pick(&[Overlap::Once, Overlap::Twice]),
                    },
                    cron: Some(local(rng, change)),
                    ..spec.schedule.clone()
                };
            }
            (_, 6) if is_cron => {
                let (text, dialect) = quartz(rng);
                spec.schedule.cron = Some(text);
                spec.schedule.dialect = dialect;
            }
            (_, 7) if is_cron => spec.schedule.cron = Some(days(rng)),
            (None, 8) => spec.schedule.timezone = Some(rng.pick(ZONES).into()),
            _ => {}
        }
        if rng.permille(100) {
            let day = |ahead: i64| punctual::time::rfc3339_ms(epoch_ms + ahead)[..10].to_owned();
            let today = day(0);
            let exclude = match rng.range(0, 3) {
                0 => today,
                1 => day(86_400_000),
                _ => format!("{today}..{}", day(86_400_000)),
            };
            spec.schedule.exclude = vec![exclude];
        }
    }
}

fn times(rng: &mut Rng) -> Times {
    let session_ttl_ms = rng.pick(&[3_000, 6_000, 10_000]);
    let kill_grace_ms = rng.pick(&[500, 2_000, 5_000]);
    Times {
        leader_ttl_ms: rng.pick(&[2_000, 3_000, 5_000]),
        session_ttl_ms,
        kill_grace_ms,
        lost_grace_ms: session_ttl_ms + kill_grace_ms + rng.pick(&[0, 1_000, 5_000]),
        store_timeout_ms: rng.pick(&[500, 1_000, 2_000]),
        mixed: rng.permille(200),
    }
}

/// An expression about local times near the change: fixed times or an interval.
fn local(rng: &mut Rng, change: ClockChange) -> String {
    let lower = change.before.min(change.after);
    let near = (change.at + lower + rng.between(-300, 4_200)).rem_euclid(86_400);
    let (hour, minute) = (near / 3_600, near / 60 % 60);
    let next = (hour + 1) % 24;
    let hours = format!("{},{}", hour.min(next), hour.max(next));
    let second = rng.range(0, 60);
    match rng.range(0, 6) {
        0 => format!("{second} {minute} {hour} * * *"),
        1 => format!("{second},{} 0-59 {hours} * * *", (second + 17) % 60),
        2 => {
            let list: Vec<String> = (0..30).map(|n| (n * 2).to_string()).collect();
            format!("{second} {} {hours} * * *", list.join(","))
        }
        3 => format!("*/{} * {hours} * * *", rng.range(5, 31)),
        4 => format!("{second} */{} * * * *", rng.range(1, 4)),
        _ => format!("0-{} * * * * *", rng.range(1, 20)),
    }
}

fn quartz(rng: &mut Rng) -> (String, Dialect) {
    match rng.range(0, 4) {
        0 => (
            format!("0/{} * * ? * SUN-SAT", rng.range(3, 30)),
            Dialect::Auto,
        ),
        1 => (
            format!("{} * * * * ? 2026-2028", rng.range(0, 60)),
            Dialect::Auto,
        ),
        2 => (
            format!("{}/20 * * ? * 1-7", rng.range(0, 20)),
            Dialect::Quartz,
        ),
        _ => ("*/15 * * ? JAN-DEC MON,SUN,SAT".into(), Dialect::Quartz),
    }
}

/// Days of the week and of the month.
fn days(rng: &mut Rng) -> String {
    let second = rng.range(0, 60);
    match rng.range(0, 3) {
        0 => format!("{second},{} * * * * SUN,MON", (second + 31) % 60),
        1 => "*/20 * * 1-7,20-31 * WED".into(),
        _ => format!("{second} * * 1,28-31 * *"),
    }
}

/// Up to 500 jobs, applied a hundred at a time.
fn crowd(rng: &mut Rng) -> impl Iterator<Item = (u64, Op)> {
    let count = rng.range(100, 501);
    let mut rng = rng.branch("crowd", count);
    (0..count.div_ceil(100)).map(move |block| {
        let size = (count - block * 100).min(100);
        let specs = (0..size).map(|n| {
            let id = format!("crowd-{}", block * 100 + n);
            let mut spec = JobSpec::handler(id, HANDLER);
            spec.schedule.cron = Some(format!("{} * * * * *", rng.range(0, 60)));
            spec.history.keep_success = 2;
            spec.unclaimed_after = Millis::from_secs(600);
            spec.payload = json!({ "does": "ok", "ms": 0 });
            spec
        });
        (10_000 + block * 2_000, Op::Apply(specs.collect()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_zone_has_both_changes() {
        for zone in ZONES {
            let all = clock_changes(&[zone]);
            let forward = all.iter().filter(|change| change.before < change.after);
            assert!((1..all.len()).contains(&forward.count()), "{zone}");
        }
    }
}
