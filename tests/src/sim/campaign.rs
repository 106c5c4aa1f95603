//! Many seeds, on all cores.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use serde_json::{Value, json};

use super::ablation::Ablations;
use super::schedule::Plan;
use super::world::{Observed, simulate};
use super::{chaos, coverage, crew, scenario};
use crate::check::{Violation, check, check_history, history};

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many.
    pub seeds: u64,
    /// The first.
    pub start: u64,
    /// Which kind.
    pub scenario: String,
    /// Safeguards that are taken away.
    pub ablation: Ablations,
    /// Print plan and log of each failure.
    pub verbose: bool,
    /// Run so many of the first seeds once more, and compare the fingerprints.
    pub replay: u64,
    /// How many seeds at once.
    pub threads: usize,
    /// Only these faults and operations of the plan, by their numbers.
    pub keep: Option<(Vec<usize>, Vec<usize>)>,
    /// Make a failing plan smaller.
    pub shrink: bool,
    /// Run the articles' design instead of the product.
    pub naive: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seeds: 100,
            start: 0,
            scenario: "default".into(),
            ablation: Ablations::default(),
            verbose: false,
            replay: 0,
            threads: crew::cores(),
            keep: None,
            shrink: true,
            naive: false,
        }
    }
}

impl Options {
    /// How to call it.
    pub const USAGE: &str = "sim [--seeds N] [--start S] [--scenario NAME] [--ablate NAME[,NAME]] [--naive] [--keep FAULTS:OPS] [--replay N | --twice] [--threads N] [--no-shrink] [--verbose] [-o json]";

    /// From the command line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self::default();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            let number = |text: String| text.parse().map_err(|_| format!("`{text}` is no number"));
            match arg.as_str() {
                "--seeds" => options.seeds = number(value()?)?,
                "--start" => options.start = number(value()?)?,
                "--scenario" => {
                    options.scenario = value()?;
                    if !scenario::ALL
                        .iter()
                        .any(|(name, _)| *name == options.scenario)
                    {
                        return Err(format!("no scenario `{}`", options.scenario));
                    }
                }
                "--naive" => options.naive = true,
                "--replay" => options.replay = number(value()?)?,
                "--twice" => options.replay = u64::MAX,
                "--threads" => {
                    let threads = number(value()?)?;
                    options.threads = usize::try_from(threads).unwrap_or(usize::MAX).clamp(1, 256);
                }
                "--verbose" => options.verbose = true,
                "--no-shrink" => options.shrink = false,
                "--ablate" => options.ablation = Ablations::parse(&value()?)?,
                "--keep" => options.keep = Some(parse_keep(&value()?)?),
                "-o" => {
                    if value()? != "json" {
                        return Err("the only output is json".into());
                    }
                }
                _ => return Err(format!("unknown option `{arg}`")),
            }
        }
        Ok(options)
    }

    /// The plan of one seed.
    #[must_use]
    pub fn plan(&self, seed: u64) -> Plan {
        let mut plan = scenario::plan(&self.scenario, seed).unwrap_or_else(|| chaos::plan(seed));
        plan.ablation = self.ablation;
        if let Some((faults, ops)) = &self.keep {
            plan = only(&plan, faults, ops);
        }
        plan
    }
}

fn parse_keep(text: &str) -> Result<(Vec<usize>, Vec<usize>), String> {
    let numbers = |text: &str| {
        text.split(',')
            .filter(|part| !part.is_empty())
            .map(|part| part.parse().map_err(|_| format!("`{part}` is no number")))
            .collect::<Result<Vec<usize>, String>>()
    };
    let (faults, ops) = text
        .split_once(':')
        .ok_or("--keep is FAULTS:OPS, such as 0,3:1,2")?;
    Ok((numbers(faults)?, numbers(ops)?))
}

/// The same plan with only these faults and operations.
#[must_use]
pub fn only(plan: &Plan, faults: &[usize], ops: &[usize]) -> Plan {
    let mut smaller = plan.clone();
    smaller.faults = faults
        .iter()
        .filter_map(|n| plan.faults.get(*n).cloned())
        .collect();
    smaller.ops = ops
        .iter()
        .filter_map(|n| plan.ops.get(*n).cloned())
        .collect();
    smaller
}

/// A seed that failed.
#[derive(Debug)]
pub struct Failure {
    /// Which.
    pub seed: u64,
    /// Why.
    pub violations: Vec<Violation>,
    /// How to run it again.
    pub replay: String,
    /// What is left of its faults and operations.
    pub schedule: Vec<String>,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Campaign {
    /// The first seed.
    pub start: u64,
    /// Seeds that were run.
    pub seeds: u64,
    /// Those that failed.
    pub failures: Vec<Failure>,
    /// Scheduled runs.
    pub fires: u64,
    /// Faults.
    pub faults: std::collections::BTreeMap<&'static str, u64>,
    /// Leaders after leaders.
    pub leader_changes: u64,
    /// Leaders that a standby deposed.
    pub deposals: u64,
    /// Seeds that were run once more.
    pub replayed: u64,
    /// How many seeds ran at once.
    pub threads: usize,
    /// Of all seeds' fingerprints: the same in each run and with any number of threads.
    pub fingerprint: u64,
    /// Simulated time.
    pub simulated_ms: u64,
    /// Real time.
    pub wall_s: f64,
    /// Executions of the user's code.
    pub executions: u64,
    /// Polls of tasks.
    pub polls: u64,
    /// Claims of runs that somebody else had claimed already.
    pub claim_conflicts: u64,
    /// How often what is dangerous happened.
    pub coverage: std::collections::BTreeMap<&'static str, u64>,
    /// What must have happened in so many seeds and did not.
    pub uncovered: Vec<&'static str>,
    /// Violations by invariant.
    pub invariants: std::collections::BTreeMap<&'static str, u64>,
}

impl Campaign {
    /// Runs the seeds; tells of failures in the order of the seeds.
    pub fn run(options: &Options, tell: impl Fn(String)) -> Self {
        let begun = Instant::now();
        let mut campaign = Self {
            threads: options.threads,
            start: options.start,
            ..Self::default()
        };
        let replays = options.replay.min(options.seeds);
        let mut fingerprints = Vec::new();
        crew::in_order(
            options.seeds + replays,
            options.threads,
            |number| {
                if number < options.seeds {
                    Done::Seed(Box::new(Seed::run(options, options.start + number)))
                } else {
                    let seed = options.start + number - options.seeds;
                    Done::Again(seed, fingerprint(options, seed))
                }
            },
            |done| match done {
                Done::Seed(seed) => {
                    fingerprints.push(seed.fingerprint);
                    campaign.add(*seed, &tell);
                }
                Done::Again(seed, fingerprint) => {
                    let index = usize::try_from(campaign.replayed).unwrap_or(usize::MAX);
                    campaign.replayed += 1;
                    if fingerprints.get(index) != Some(&fingerprint) {
                        campaign.differs(options, seed, &tell);
                    }
                }
            },
        );
        let bytes: Vec<u8> = fingerprints
            .into_iter()
            .flat_map(|fingerprint| fingerprint.unwrap_or(0).to_be_bytes())
            .collect();
        let whole = options.scenario == "default" && options.ablation.is_empty();
        if whole && options.keep.is_none() && options.seeds >= coverage::ENFORCED_FROM {
            campaign.uncovered = coverage::missing(&campaign.coverage);
        }
        campaign.fingerprint = punctual::keys::fnv1a(&bytes);
        campaign.wall_s = begun.elapsed().as_secs_f64();
        campaign
    }

    fn add(&mut self, seed: Seed, tell: &impl Fn(String)) {
        self.seeds += 1;
        self.simulated_ms += seed.simulated_ms;
        self.executions += seed.executions;
        self.polls += seed.polls;
        self.fires += seed.fires;
        self.leader_changes += seed.leader_changes;
        self.deposals += seed.deposals;
        self.claim_conflicts += seed.claim_conflicts;
        for (fault, count) in seed.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        for (danger, count) in seed.coverage {
            *self.coverage.entry(danger).or_default() += count;
        }
        if let Some(failure) = seed.failure {
            self.fail(failure, tell);
        }
        if let Some(dump) = seed.dump {
            tell(dump);
        }
    }

    fn fail(&mut self, failure: Failure, tell: &impl Fn(String)) {
        for violation in &failure.violations {
            *self.invariants.entry(violation.invariant).or_default() += 1;
        }
        tell(failure.text());
        self.failures.push(failure);
    }

    fn differs(&mut self, options: &Options, seed: u64, tell: &impl Fn(String)) {
        let violation = Violation::new("same seed, same history", "it differs");
        let whole = Options {
            shrink: false,
            ..options.clone()
        };
        let failure = explain(&whole, &options.plan(seed), vec![violation]);
        self.fail(failure, tell);
    }

    /// Whether a seed failed, or the seeds say too little.
    #[must_use]
    pub fn failed(&self) -> bool {
        !self.failures.is_empty() || !self.uncovered.is_empty()
    }

    /// How many seeds it took to find each failure: those since the one before, itself included.
    fn seeds_to_find(&self) -> Vec<u64> {
        let mut before = None;
        let mut all: Vec<u64> = Vec::new();
        for failure in &self.failures {
            let since = before.map_or(failure.seed + 1, |before| failure.seed - before);
            all.push(since - if before.is_none() { self.start } else { 0 });
            before = Some(failure.seed);
        }
        all.sort_unstable();
        all
    }

    /// Simulations a second of real time, replays among them.
    #[must_use]
    pub fn seeds_per_s(&self) -> f64 {
        #[allow(clippy::cast_precision_loss, reason = "there are less than 2^52 seeds")]
        let simulations = (self.seeds + self.replayed) as f64;
        (simulations / self.wall_s.max(1e-9) * 100.0).round() / 100.0
    }

    /// The output.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "seeds": self.seeds,
            "failed": self.failures.len(),
            "fires": self.fires,
            "executions": self.executions,
            "faults": self.faults.values().sum::<u64>(),
            "faults_by_kind": self.faults,
            "leader_changes": self.leader_changes,
            "deposals": self.deposals,
            "simulated_s": self.simulated_ms / 1_000,
            "wall_s": self.wall_s,
            "threads": self.threads,
            "seeds_per_s": self.seeds_per_s(),
            "replayed": self.replayed,
            "fingerprint": format!("{:016x}", self.fingerprint),
            "polls": self.polls,
            "claim_conflicts": self.claim_conflicts,
            "coverage": self.coverage,
            "uncovered": self.uncovered,
            "median_seeds_to_find": median(&self.seeds_to_find()),
            "failing_seeds": self.failures.iter().map(|failure| failure.seed).collect::<Vec<_>>(),
            "violations": self.invariants,
            "failures": self.failures.iter().map(|failure| json!({
                "seed": failure.seed,
                "invariant": failure.violations[0].invariant,
                "what": failure.violations[0].what,
                "violations": failure.violations.len(),
                "schedule": failure.schedule,
                "replay": failure.replay,
            })).collect::<Vec<_>>(),
        })
    }
}

fn median(sorted: &[u64]) -> Option<u64> {
    sorted.get(sorted.len() / 2).copied()
}

/// What a thread has done.
enum Done {
    Seed(Box<Seed>),
    /// The fingerprint of a seed that was run before.
    Again(u64, Option<u64>),
}

/// What came of one seed.
#[derive(Debug, Default)]
struct Seed {
    fingerprint: Option<u64>,
    simulated_ms: u64,
    executions: u64,
    polls: u64,
    fires: u64,
    leader_changes: u64,
    deposals: u64,
    claim_conflicts: u64,
    faults: std::collections::BTreeMap<&'static str, u64>,
    coverage: std::collections::BTreeMap<&'static str, u64>,
    failure: Option<Failure>,
    dump: Option<String>,
}

impl Seed {
    fn run(options: &Options, seed: u64) -> Self {
        let plan = options.plan(seed);
        let whole = catch_unwind(AssertUnwindSafe(|| {
            let observed = simulate(&plan);
            let history = history::History::new(&observed);
            let violations = check_history(&history);
            let mut seed = Self::count(&observed, &history);
            seed.dump = (options.verbose && !violations.is_empty()).then(|| dump(&observed));
            (seed, violations)
        }));
        let (mut seed, violations) =
            whole.unwrap_or_else(|panic| (Self::default(), vec![panicked(&*panic)]));
        if !violations.is_empty() {
            seed.failure = Some(explain(options, &plan, violations));
        }
        seed
    }

    fn count(observed: &Observed, history: &history::History<'_>) -> Self {
        let mut seed = Self {
            fingerprint: Some(observed.fingerprint),
            simulated_ms: observed.plan.end_ms,
            executions: observed.effects.len() as u64,
            polls: observed.polls,
            claim_conflicts: observed.claim_conflicts,
            faults: coverage::faults(observed),
            coverage: coverage::count(observed, history),
            ..Self::default()
        };
        let changes = history
            .revisions
            .iter()
            .flat_map(|revised| revised.changes.iter().map(move |change| (revised, change)));
        for (revised, change) in changes {
            match change {
                // A lease that ends, by itself or not, is nobody's write.
                history::Change::Leader { after: None } if revised.writer.is_some() => {
                    seed.deposals += 1;
                }
                history::Change::Run(step) if step.before.is_none() && step.key.attempt == 1 => {
                    seed.fires += 1;
                }
                history::Change::Leader { after: Some(_) } => seed.leader_changes += 1,
                _ => {}
            }
        }
        seed
    }
}

/// A simulation or checker that panics is a failure of its seed, with a replay like any other.
fn panicked(panic: &(dyn std::any::Any + Send)) -> Violation {
    let what = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied());
    Violation::new("nothing panics", what.unwrap_or("for no reason given"))
}

fn fingerprint(options: &Options, seed: u64) -> Option<u64> {
    let again = || simulate(&options.plan(seed)).fingerprint;
    catch_unwind(AssertUnwindSafe(again)).ok()
}

impl Failure {
    fn text(&self) -> String {
        let mut text = format!("seed {} failed:", self.seed);
        for violation in self.violations.iter().take(6) {
            text += &format!("\n  {}: {}", violation.invariant, violation.what);
        }
        if self.violations.len() > 6 {
            text += &format!("\n  and {} more", self.violations.len() - 6);
        }
        for line in &self.schedule {
            text += &format!("\n    {line}");
        }
        text + "\n  replay: " + &self.replay
    }
}

/// Makes the plan as small as it can be made while the same invariant fails.
fn explain(options: &Options, plan: &Plan, violations: Vec<Violation>) -> Failure {
    let mut faults: Vec<usize> = (0..plan.faults.len()).collect();
    let mut ops: Vec<usize> = (0..plan.ops.len()).collect();
    let invariant = violations[0].invariant;
    // What is kept by hand is replayed as it is.
    let shrinks = options.shrink && options.keep.is_none();
    if shrinks {
        let fails = |faults: &[usize], ops: &[usize]| {
            let smaller = only(plan, faults, ops);
            catch_unwind(AssertUnwindSafe(|| check(&simulate(&smaller))))
                .unwrap_or_else(|panic| vec![panicked(&*panic)])
                .iter()
                .any(|violation| violation.invariant == invariant)
        };
        let mut budget = 150;
        shrink(&mut faults, &mut budget, |faults| fails(faults, &ops));
        shrink(&mut ops, &mut budget, |ops| fails(&faults, ops));
    }
    let list = |numbers: &[usize]| {
        let texts: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        texts.join(",")
    };
    let mut replay = format!(
        "cargo run --release -p punctual-tests --bin sim -- --seeds 1 --start {}",
        plan.seed
    );
    if options.scenario != "default" {
        replay += &format!(" --scenario {}", options.scenario);
    }
    if !options.ablation.is_empty() {
        replay += &format!(" --ablate {}", options.ablation.names());
    }
    let kept = options.keep.clone();
    if let Some((faults, ops)) = kept.or_else(|| shrinks.then(|| (faults.clone(), ops.clone()))) {
        replay += &format!(" --keep {}:{}", list(&faults), list(&ops));
    }
    let small = only(plan, &faults, &ops);
    let violations = if shrinks {
        // What the replay will show, and not what the whole plan did.
        let mut shown = catch_unwind(AssertUnwindSafe(|| check(&simulate(&small))))
            .unwrap_or_else(|panic| vec![panicked(&*panic)]);
        shown.sort_by_key(|violation| violation.invariant != invariant);
        shown
    } else {
        violations
    };
    let mut schedule: Vec<(u64, String)> = small
        .faults
        .iter()
        .map(|(at, fault)| (*at, format!("{at} ms: {fault:?}")))
        .chain(
            small
                .ops
                .iter()
                .map(|(at, node, op)| (*at, format!("{at} ms: through n{node}: {}", brief(op)))),
        )
        .collect();
    schedule.sort();
    if !options.shrink {
        schedule.clear();
    }
    Failure {
        seed: plan.seed,
        violations,
        replay,
        schedule: schedule.into_iter().map(|(_, line)| line).collect(),
    }
}

fn brief(op: &super::schedule::Op) -> String {
    serde_json::to_string(op).unwrap_or_default()
}

/// Leaves out halves, quarters, ... single ones, as long as it still fails.
fn shrink(items: &mut Vec<usize>, budget: &mut u32, fails: impl Fn(&[usize]) -> bool) {
    let mut size = items.len().div_ceil(2);
    while size > 0 {
        let mut from = 0;
        while from < items.len() && *budget > 0 {
            let mut fewer = items.clone();
            fewer.drain(from..(from + size).min(items.len()));
            *budget -= 1;
            if fails(&fewer) {
                *items = fewer;
            } else {
                from += size;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
}

fn dump(observed: &Observed) -> String {
    let mut text = format!("plan: {:#?}\n", observed.plan);
    for logged in &observed.log {
        for event in &logged.events {
            let key = String::from_utf8_lossy(event.key()).into_owned();
            let value = match event {
                punctual::backend::Event::Put(entry) => {
                    String::from_utf8_lossy(&entry.value).into_owned()
                }
                punctual::backend::Event::Delete { .. } => "deleted".into(),
            };
            text += &format!(
                "{} {} ms by {:?}: {key} {value}\n",
                logged.revision, logged.at_ms, logged.writer
            );
        }
    }
    for effect in &observed.effects {
        text += &format!("{effect:?}\n");
    }
    for asked in &observed.asked {
        text += &format!("{asked:?}\n");
    }
    for (proc, life) in &observed.lives {
        text += &format!("{proc}: {life:?}\n");
    }
    text
}
