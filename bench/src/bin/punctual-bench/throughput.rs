//! `decisions` and `runs`: how fast a backlog is worked off.
//!
//! Jobs that fire every second are created while no node runs. When their last instant has passed,
//! one node starts, and what it commits is timed from its first decision on: what it takes to start
//! is not in the figure. Each round measures the baseline, the product and the ceiling one after
//! the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use punctual::backend::BackendResult;
use punctual::cancel::{Canceller, StopCause};
use punctual::env::TokioEnv;
use punctual::handler::{Executors, RunContext};
use punctual::node::{Node, NodeConfig};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::counted::{Counted, Tally};
use crate::figures::{Rounds, machine, quotients, round};
use crate::nodes::HANDLER;
use crate::procs::cpu_ms;
use crate::rival::{Rival, Shape};
use crate::stage::{Audit, Namespace, Stage, Window, each_second, text};

/// Rounds of a figure.
pub(crate) const ROUNDS: usize = 5;
/// So long an idle node is watched, after this time to come to rest.
const IDLE: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_secs(5);
/// A backlog that takes longer than this is not worked off.
const PATIENCE: Duration = Duration::from_secs(120);

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Runs are decided, and nobody executes them.
    Decisions,
    /// Runs are decided, claimed, started, executed and ended.
    Runs,
}

impl What {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Decisions => "decisions",
            Self::Runs => "runs",
        }
    }

    /// Jobs, and seconds of backlog.
    fn size(self) -> (usize, i64) {
        match self {
            Self::Decisions => (4_000, 10),
            Self::Runs => (2_000, 10),
        }
    }

    fn slots(self) -> u32 {
        match self {
            Self::Decisions => 0,
            Self::Runs => 512,
        }
    }
}

/// What was measured.
pub(crate) struct Report {
    what: What,
    product: Rounds,
    baseline: Rounds,
    ceiling: Rounds,
    audit: Audit,
    /// Of the last round, for the table of operations.
    cost: Cost,
    /// Microseconds of processor time a run, likewise.
    cpu: Value,
    idle: Option<Value>,
}

/// What a run costs the store.
#[derive(Clone, Debug, Default)]
struct Cost {
    runs: usize,
    commits: usize,
    writes: usize,
    bytes: usize,
    events: usize,
    event_bytes: usize,
    reads: usize,
}

impl Cost {
    fn of(tally: &Tally, runs: usize) -> Self {
        let asked = |kind: &str| tally.others.get(kind).copied().unwrap_or(0);
        Self {
            runs,
            commits: tally.commits.len(),
            writes: tally.commits.iter().map(|commit| commit.writes).sum(),
            bytes: tally.commits.iter().map(|commit| commit.bytes).sum(),
            events: tally.events,
            event_bytes: tally.event_bytes,
            reads: asked("range") + asked("lookup"),
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn json(&self) -> Value {
        let each = |count: usize| round(count as f64 / self.runs.max(1) as f64, 4);
        json!({
            "write_requests": each(self.commits),
            "writes": each(self.writes),
            "write_bytes": each(self.bytes),
            "reads": each(self.reads),
            "watch_events": each(self.events),
            "watch_bytes": each(self.event_bytes),
        })
    }
}

impl Report {
    pub(crate) fn json(&self) -> Value {
        let baseline = quotients(&self.product, &self.baseline);
        let ceiling = quotients(&self.product, &self.ceiling);
        json!({
            "scenario": self.what.name(),
            "product_per_s": round(self.product.median(), 0),
            "baseline_per_s": round(self.baseline.median(), 0),
            "ceiling_per_s": round(self.ceiling.median(), 0),
            "vs_baseline": round(baseline.median(), 2),
            "vs_ceiling": round(ceiling.median(), 2),
            "rounds": {
                "product_per_s": self.product.all(),
                "baseline_per_s": self.baseline.all(),
                "ceiling_per_s": self.ceiling.all(),
            },
            "per_run": self.cost.json(),
            "cpu_us_per_run": self.cpu,
            "idle_node_per_minute": self.idle,
            "runs": self.audit.runs,
            "missed": self.audit.missed,
            "duplicates": self.audit.duplicates,
            "machine": machine(),
        })
    }

    pub(crate) fn table(&self) -> String {
        let baseline = quotients(&self.product, &self.baseline);
        let ceiling = quotients(&self.product, &self.ceiling);
        format!(
            "{}, a second: median (min to max) of {} rounds\n\
             product   {}\nbaseline  {}\nceiling   {}\n\
             product / baseline  {}\nproduct / ceiling   {}\n\
             {} runs, {} missed, {} duplicates",
            self.what.name(),
            self.product.len(),
            self.product.text(0),
            self.baseline.text(0),
            self.ceiling.text(0),
            baseline.text(2),
            ceiling.text(2),
            self.audit.runs,
            self.audit.missed,
            self.audit.duplicates
        )
    }

    pub(crate) fn verdict(&self) -> Result<(), String> {
        self.audit.verdict()
    }
}

/// Measures.
pub(crate) async fn run(stage: &Stage, what: What, rounds: usize) -> Result<Report, String> {
    let mut rival = Rival::connect(&stage.etcd, &format!("/rival-{}", what.name())).await?;
    let mut report = Report {
        what,
        product: Rounds::default(),
        baseline: Rounds::default(),
        ceiling: Rounds::default(),
        audit: Audit::default(),
        cost: Cost::default(),
        cpu: Value::Null,
        idle: None,
    };
    // A record's size is known after the first round; this is what it comes to.
    let mut bytes = 450;
    for number in 1..=rounds {
        let (count, seconds) = what.size();
        let namespace = stage.namespace(what.name()).await?;
        let window = Window::of(seconds);
        let ids: Vec<String> = (0..count).map(|n| format!("job-{n:05}")).collect();
        let jobs = ids.iter().map(|id| each_second(id.clone(), window));
        namespace.apply(jobs.collect()).await?;
        let runs = count * window.instants();
        let baseline = rival.baseline(runs / 4, bytes, what == What::Runs).await?;
        report.baseline.push(baseline);
        window.passed().await;

        let done = product(stage, &namespace, what, runs).await?;
        let ours = Cpu::now(stage)?.since(done.since_first);
        // (Behind runs a leader sweeps and prunes for a while.)
        let is_last = number == rounds && what == What::Decisions;
        let sample = done.end(is_last).await?;
        let before = Cpu::now(stage)?;
        report.product.push(sample.per_s);
        bytes = sample.shape.bytes;
        let shape = sample.shape;
        let ceiling = rival.ceiling(shape).await? / shape.writes_a_run(runs);
        report.ceiling.push(ceiling);
        let bare = Cpu::now(stage)?.since(before);
        report.cpu = json!({ "product": ours.us_each(runs), "ceiling": bare.us_each(runs) });
        report.audit.add(namespace.audit(&ids, window).await?);
        report.cost = sample.cost;
        report.idle = sample.idle;
        eprintln!(
            "{} round {number}: product {:.0}/s, baseline {baseline:.0}/s, ceiling {ceiling:.0}/s \
             ({} puts a request of {bytes} bytes, {} in flight)",
            what.name(),
            sample.per_s,
            shape.a_request,
            shape.in_flight,
        );
    }
    Ok(report)
}

/// Processor time that this process and its etcd have used.
#[derive(Clone, Copy)]
struct Cpu {
    here_ms: f64,
    etcd_ms: f64,
}

impl Cpu {
    /// Of an etcd that was given nothing is known.
    fn now(stage: &Stage) -> Result<Self, String> {
        Ok(Self {
            here_ms: cpu_ms(std::process::id())?,
            etcd_ms: stage.pid().map_or(Ok(0.0), cpu_ms)?,
        })
    }

    fn since(self, before: Self) -> Self {
        Self {
            here_ms: self.here_ms - before.here_ms,
            etcd_ms: self.etcd_ms - before.etcd_ms,
        }
    }

    /// Microseconds of each of so many runs.
    #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn us_each(self, runs: usize) -> Value {
        let each = |ms: f64| round(ms * 1_000.0 / runs.max(1) as f64, 1);
        json!({ "client": each(self.here_ms), "etcd": each(self.etcd_ms) })
    }
}

/// A node that has worked its backlog off.
struct Done {
    /// As it was within ten milliseconds of the first decision.
    since_first: Cpu,
    counted: Counted,
    sample: Sample,
    canceller: Canceller,
    life: JoinHandle<BackendResult<()>>,
}

impl Done {
    /// Ends it; before, looks at what it does when nothing is to be done, if that is wanted.
    async fn end(self, and_idle: bool) -> Result<Sample, String> {
        let mut sample = self.sample;
        if and_idle {
            sample.idle = Some(idle(&self.counted).await);
        }
        self.canceller.stop(StopCause::Cancelled);
        self.life.await.map_err(text)?.map_err(text)?;
        Ok(sample)
    }
}

struct Sample {
    per_s: f64,
    shape: Shape,
    cost: Cost,
    idle: Option<Value>,
}

async fn product(
    stage: &Stage,
    namespace: &Namespace,
    what: What,
    runs: usize,
) -> Result<Done, String> {
    let counted = Counted::new(namespace.backend.clone(), namespace.keys.clone());
    let mut executors = Executors::default();
    let nothing = |_: RunContext| async { Ok::<(), String>(()) };
    executors.handlers.insert(HANDLER.into(), Arc::new(nothing));
    let config = NodeConfig {
        node_id: "n1".into(),
        namespace: namespace.name.clone(),
        slots: what.slots(),
        ..NodeConfig::default()
    };
    let node = Node::new(
        Arc::new(counted.clone()),
        TokioEnv::shared(),
        executors,
        config,
    )?;
    let (canceller, shutdown) = Canceller::new();
    let life = tokio::spawn(async move { node.run(shutdown).await });
    let done = |tally: &Tally| -> usize {
        let of = |commit: &crate::counted::Commit| match what {
            What::Decisions => commit.fires,
            What::Runs => commit.ends,
        };
        tally.commits.iter().map(of).sum()
    };
    let begun = Instant::now();
    let mut first = None;
    while done(&counted.tally()) < runs {
        // What it takes to start is not of the runs.
        if first.is_none() && counted.tally().commits.iter().any(|c| c.fires > 0) {
            first = Some(Cpu::now(stage)?);
        }
        if begun.elapsed() > PATIENCE {
            let done = done(&counted.tally());
            return Err(format!("{done} of {runs} runs after {PATIENCE:?}"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let sample = sample(&counted.tally(), what, runs);
    let since_first = first.ok_or("everything was done within ten milliseconds")?;
    Ok(Done {
        since_first,
        counted,
        sample,
        canceller,
        life,
    })
}

/// What a node that leads and has nothing to do asks of the store in a minute.
async fn idle(counted: &Counted) -> Value {
    // What the last runs left to be done is done.
    tokio::time::sleep(SETTLE).await;
    let before = counted.tally().clone();
    tokio::time::sleep(IDLE).await;
    let after = counted.tally().clone();
    let scale = 60.0 / IDLE.as_secs_f64();
    let minute = |after: usize, before: usize| {
        let count = u32::try_from(after - before).unwrap_or(u32::MAX);
        round(f64::from(count) * scale, 1)
    };
    let others = after.others.iter().map(|(kind, count)| {
        let known = before.others.get(kind).copied().unwrap_or(0);
        ((*kind).to_owned(), json!(minute(*count, known)))
    });
    let mut all: serde_json::Map<String, Value> = others.collect();
    let commits = minute(after.commits.len(), before.commits.len());
    all.insert("write_requests".into(), json!(commits));
    all.insert(
        "watch_events".into(),
        json!(minute(after.events, before.events)),
    );
    Value::Object(all)
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are small"
)]
fn sample(tally: &Tally, what: What, runs: usize) -> Sample {
    let counts = |commit: &&crate::counted::Commit| match what {
        What::Decisions => commit.fires > 0,
        What::Runs => commit.fires > 0 || commit.ends > 0,
    };
    let ours: Vec<_> = tally.commits.iter().filter(counts).collect();
    let first = ours.iter().map(|commit| commit.sent).min();
    let last = ours.iter().map(|commit| commit.answered).max();
    let took = first
        .zip(last)
        .map_or(Duration::ZERO, |(first, last)| last - first);
    let writes: usize = ours.iter().map(|commit| commit.writes).sum();
    let bytes: usize = ours.iter().map(|commit| commit.bytes).sum();
    let flown: Duration = ours.iter().map(|c| c.answered - c.sent).sum();
    let in_flight = flown.as_secs_f64() / took.as_secs_f64();
    Sample {
        per_s: runs as f64 / took.as_secs_f64(),
        shape: Shape {
            puts: writes,
            a_request: writes / ours.len().max(1),
            bytes: bytes / writes.max(1),
            in_flight: (in_flight.ceil() as usize).max(1),
        },
        cost: Cost::of(tally, runs),
        idle: None,
    }
}
