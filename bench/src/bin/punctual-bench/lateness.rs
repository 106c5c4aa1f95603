//! `lateness`: from the instant to the durable decision, and to the handler's first instruction.
//!
//! Every instant is a whole second, so a thousand jobs that fire each second are a thousand fires at
//! once, each second. That is the figure called *burst*. With `jitter: 1s` the same jobs start
//! evenly over the second, and count from the moment at which each may start: *spread*.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use punctual::cancel::{Canceller, StopCause};
use punctual::duration::Millis;
use punctual::env::TokioEnv;
use punctual::handler::{Executors, RunContext};
use punctual::node::{Node, NodeConfig};
use punctual::schedule::{Calendars, Schedule};
use serde_json::{Value, json};

use crate::counted::{Counted, wall_ms};
use crate::figures::{machine, permille};
use crate::nodes::HANDLER;
use crate::stage::{Audit, Stage, Window, each_second, text};

/// Fires a second.
pub(crate) const RATES: &[usize] = &[1, 100, 1_000, 5_000];
/// The one whose figures stand for the scenario.
const MAIN_RATE: usize = 1_000;
/// Those that `all` has time for with three members.
pub(crate) const FEW_RATES: &[usize] = &[1_000];
/// Seconds that are measured, after two that are not.
const SECONDS: i64 = 10;
const WARM_UP_S: i64 = 2;

/// Milliseconds of one rate.
#[derive(Debug)]
struct Row {
    rate: usize,
    members: usize,
    spread: bool,
    decided: [i64; 3],
    started: [i64; 3],
    audit: Audit,
}

/// What was measured.
#[derive(Debug, Default)]
pub(crate) struct Report {
    rows: Vec<Row>,
}

impl Report {
    /// The row of [`MAIN_RATE`], and all of them.
    pub(crate) fn json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "rate_per_s": row.rate,
                "etcd_members": row.members,
                "arrivals": if row.spread { "spread" } else { "burst" },
                "p50_ms": row.started[0],
                "p99_ms": row.started[1],
                "max_ms": row.started[2],
                "decided_p50_ms": row.decided[0],
                "decided_p99_ms": row.decided[1],
                "decided_max_ms": row.decided[2],
                "runs": row.audit.runs,
                "missed": row.audit.missed,
                "duplicates": row.audit.duplicates,
            })
        };
        let is_main = |row: &&Row| row.rate == MAIN_RATE && row.spread;
        let main = self.rows.iter().find(is_main).map_or(json!({}), row);
        let mut audit = Audit::default();
        self.rows.iter().for_each(|row| audit.add(row.audit));
        json!({
            "scenario": "lateness",
            "rate_per_s": main["rate_per_s"],
            "p50_ms": main["p50_ms"],
            "p99_ms": main["p99_ms"],
            "max_ms": main["max_ms"],
            "missed": audit.missed,
            "duplicates": audit.duplicates,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "machine": machine(),
        })
    }

    pub(crate) fn table(&self) -> String {
        let mut out = format!(
            "{:<8}{:<9}{:<9}{:>24}{:>27}",
            "fires/s", "members", "arrive", "decided p50 p99 max", "handler p50 p99 max, ms"
        );
        for row in &self.rows {
            let [d50, d99, dmax] = row.decided;
            let [s50, s99, smax] = row.started;
            out += &format!(
                "\n{:<8}{:<9}{:<9}{:>24}{:>27}",
                row.rate,
                row.members,
                if row.spread { "spread" } else { "burst" },
                format!("{d50} {d99} {dmax}"),
                format!("{s50} {s99} {smax}")
            );
        }
        let mut audit = Audit::default();
        self.rows.iter().for_each(|row| audit.add(row.audit));
        out + &format!(
            "\n{} runs, {} missed, {} duplicates",
            audit.runs, audit.missed, audit.duplicates
        )
    }

    pub(crate) fn verdict(&self) -> Result<(), String> {
        self.rows.iter().try_for_each(|row| row.audit.verdict())
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.rows.extend(other.rows);
    }
}

/// Measures these rates on this etcd.
pub(crate) async fn run(stage: &Stage, rates: &[usize]) -> Result<Report, String> {
    let mut report = Report::default();
    for &rate in rates {
        for spread in [true, false] {
            let row = measure(stage, rate, spread).await?;
            eprintln!(
                "lateness at {rate}/s, {}: decided {:?}, handler {:?} ms (p50, p99, max)",
                if spread { "spread" } else { "burst" },
                row.decided,
                row.started
            );
            report.rows.push(row);
        }
    }
    Ok(report)
}

type Started = Arc<Mutex<Vec<(String, i64, i64)>>>;

async fn measure(stage: &Stage, rate: usize, spread: bool) -> Result<Row, String> {
    let namespace = stage.namespace("lateness").await?;
    let counted = Counted::new(namespace.backend.clone(), namespace.keys.clone()).looking();
    let started = Started::default();
    let mut executors = Executors::default();
    let note = started.clone();
    let handler = move |run: RunContext| {
        let now_ms = wall_ms();
        let mut all = note.lock().unwrap_or_else(PoisonError::into_inner);
        all.push((run.job_id, run.scheduled_at_ms, now_ms));
        async { Ok::<(), String>(()) }
    };
    executors.handlers.insert(HANDLER.into(), Arc::new(handler));
    let config = NodeConfig {
        node_id: "n1".into(),
        namespace: namespace.name.clone(),
        slots: 512,
        ..NodeConfig::default()
    };
    let backend = Arc::new(counted.clone());
    let node = Node::new(backend, TokioEnv::shared(), executors, config)?;
    let (canceller, shutdown) = Canceller::new();
    let life = tokio::spawn(async move { node.run(shutdown).await });

    // Five thousand jobs take a moment to create.
    let window = Window::from(wall_ms() / 1_000 + 5, WARM_UP_S + SECONDS);
    let ids: Vec<String> = (0..rate).map(|n| format!("job-{n:05}")).collect();
    let mut schedules = BTreeMap::new();
    let mut jobs = Vec::new();
    for id in &ids {
        let mut job = each_second(id.clone(), window);
        job.schedule.jitter = spread.then_some(Millis::from_secs(1));
        let calendars = Calendars::default();
        let schedule = Schedule::compile(&job.schedule, window.from_s * 1_000, &calendars);
        schedules.insert(id.clone(), schedule.map_err(text)?);
        jobs.push(job);
    }
    namespace.apply(jobs).await?;
    if wall_ms() >= window.from_s * 1_000 {
        return Err("the jobs took too long to create".into());
    }
    window.passed().await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    canceller.stop(StopCause::Cancelled);
    life.await.map_err(text)?.map_err(text)?;

    let warm_ms = (window.from_s + WARM_UP_S) * 1_000;
    let mut decided = Vec::new();
    for (at_ms, now_ms, count) in &counted.tally().decided {
        if *at_ms > warm_ms {
            decided.extend(std::iter::repeat_n(now_ms - at_ms, *count));
        }
    }
    let mut late = Vec::new();
    for (job, at_ms, now_ms) in &*started.lock().unwrap_or_else(PoisonError::into_inner) {
        if *at_ms > warm_ms {
            let jitter_ms = schedules.get(job).map_or(0, |s| s.jitter_ms(job, *at_ms));
            let jitter_ms = i64::try_from(jitter_ms).unwrap_or(0);
            late.push(now_ms - at_ms - jitter_ms);
        }
    }
    let of = |values: &mut Vec<i64>| {
        [
            permille(values, 500),
            permille(values, 990),
            permille(values, 1_000),
        ]
    };
    Ok(Row {
        rate,
        members: stage.members,
        spread,
        decided: of(&mut decided),
        started: of(&mut late),
        audit: namespace.audit(&ids, window).await?,
    })
}
