//! `jobs-1m`: what a million jobs cost the leader while they sleep, and what they add to a fire.
//!
//! The node is a process of its own, so that its memory and its processor time are its own. The cost
//! of a fire is the processor time of the node over the fires of twenty seconds, idling included;
//! it is compared with that of a node whose namespace has only the jobs that fire and a few more.

use std::time::{Duration, Instant};

use punctual::job::record::RunRecord;
use punctual::job::spec::JobSpec;
use serde_json::{Value, json};

use crate::counted::wall_ms;
use crate::figures::{machine, round};
use crate::nodes::{HANDLER, Nodes};
use crate::procs::{cpu_ms, memory_mb};
use crate::stage::{Audit, Namespace, Stage, Window, audit_of, each_second};

/// Jobs that fire each second while the cost of a fire is taken.
const FIRING: usize = 500;
/// So long the cost is taken.
const SECONDS: i64 = 20;
/// So long the node is watched while nothing fires.
const IDLE: Duration = Duration::from_secs(30);
/// Jobs that are due in one and the same second.
const AT_ONCE: usize = 10_000;
/// Jobs of the comparison.
const FEW: usize = 1_000;
/// A node that has not fired after this never will.
const PATIENCE: Duration = Duration::from_secs(300);
const NODE: &str = "n1";

/// What was measured.
#[derive(Debug)]
pub(crate) struct Report {
    jobs: usize,
    many: Cost,
    few: Cost,
    /// Until the last run of that second was planned, as its record says, and until all had ended;
    /// in milliseconds.
    at_once_planned_ms: i64,
    at_once_ended_ms: i64,
    create_s: f64,
    audit: Audit,
}

/// Of one node.
#[derive(Debug)]
struct Cost {
    rss_mb: f64,
    peak_mb: f64,
    /// From the start of the process to the first decision.
    takeover_s: f64,
    idle_cpu_pct: f64,
    /// The most that a decision was late while it fired.
    late_ms: i64,
    /// Milliseconds of processor time a fire.
    fire_ms: f64,
}

impl Report {
    pub(crate) fn json(&self) -> Value {
        json!({
            "scenario": "jobs-1m",
            "jobs": self.jobs,
            "leader_rss_mb": round(self.many.rss_mb, 1),
            "leader_peak_mb": round(self.many.peak_mb, 1),
            "takeover_s": round(self.many.takeover_s, 2),
            "idle_cpu_pct": round(self.many.idle_cpu_pct, 2),
            "fire_cost_ratio": round(self.many.fire_ms / self.few.fire_ms, 2),
            "fire_cpu_ms": round(self.many.fire_ms, 3),
            "planned_late_max_ms": self.many.late_ms,
            "at_once": AT_ONCE,
            "at_once_planned_ms": self.at_once_planned_ms,
            "at_once_ended_ms": self.at_once_ended_ms,
            "create_s": round(self.create_s, 1),
            "few": {
                "jobs": FEW,
                "leader_rss_mb": round(self.few.rss_mb, 1),
                "takeover_s": round(self.few.takeover_s, 2),
                "idle_cpu_pct": round(self.few.idle_cpu_pct, 2),
                "fire_cpu_ms": round(self.few.fire_ms, 3),
            },
            "runs": self.audit.runs,
            "missed": self.audit.missed,
            "duplicates": self.audit.duplicates,
            "machine": machine(),
        })
    }

    pub(crate) fn table(&self) -> String {
        let row = |name: &str, of: fn(&Cost) -> f64, digits: usize| {
            let (many, few) = (of(&self.many), of(&self.few));
            format!("\n{name:<42}{many:>12.digits$}{few:>12.digits$}")
        };
        let mut out = format!("{:<42}{:>12}{FEW:>12}", "jobs", self.jobs);
        out += &row("memory of the leader, MB", |c| c.rss_mb, 1);
        out += &row("at its largest, MB", |c| c.peak_mb, 1);
        out += &row("start to first fire, s", |c| c.takeover_s, 2);
        out += &row("processor while nothing fires, %", |c| c.idle_cpu_pct, 2);
        out += &row("processor time a fire, ms", |c| c.fire_ms, 3);
        out + &format!(
            "\n{AT_ONCE} due in one second: planned after {} ms, ended after {} ms\n\
             {} runs, {} missed, {} duplicates",
            self.at_once_planned_ms,
            self.at_once_ended_ms,
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
pub(crate) async fn run(stage: &Stage, jobs: usize) -> Result<Report, String> {
    let mut audit = Audit::default();
    let namespace = stage.namespace("few").await?;
    namespace.apply(sleepers(FEW)).await?;
    let few = cost(stage, &namespace, &mut audit).await?;

    let namespace = stage.namespace("many").await?;
    let begun = Instant::now();
    namespace
        .apply_with(sleepers(jobs), &|done| {
            eprintln!("jobs-1m: {done} of {jobs} jobs created");
        })
        .await?;
    let create_s = begun.elapsed().as_secs_f64();
    let many = cost(stage, &namespace, &mut audit).await?;
    let (at_once_planned_ms, at_once_ended_ms) = at_once(stage, &namespace, &mut audit).await?;
    Ok(Report {
        jobs,
        many,
        few,
        at_once_planned_ms,
        at_once_ended_ms,
        create_s,
        audit,
    })
}

/// Jobs that fire once a day or once a month, none of them in the next hour.
fn sleepers(count: usize) -> Vec<JobSpec> {
    let hour = (wall_ms() / 3_600_000 + 12) % 24;
    let job = |n: usize| {
        let (minute, day) = (n % 60, n / 60 % 28 + 1);
        let cron = match n % 2 {
            0 => format!("{minute} {hour} * * *"),
            _ => format!("{minute} {hour} {day} * *"),
        };
        JobSpec::handler(format!("sleeper-{n:07}"), HANDLER).cron(cron)
    };
    (0..count).map(job).collect()
}

/// Starts a node, lets it lead, idle, and fire.
async fn cost(stage: &Stage, namespace: &Namespace, audit: &mut Audit) -> Result<Cost, String> {
    // One job fires all the time, so that the first decision of the new leader is seen.
    let mut signal = JobSpec::handler("signal", HANDLER);
    signal.history.keep_success = 1;
    let signal = signal.every(punctual::duration::Millis::from_secs(1));
    namespace.apply(vec![signal.clone()]).await?;
    let mut nodes = Nodes::new(&stage.etcd, &namespace.name, 1_000);
    let begun = Instant::now();
    nodes.start(NODE)?;
    while !namespace.has_fired("signal").await? {
        if begun.elapsed() > PATIENCE {
            return Err("no fire after five minutes".into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let takeover_s = begun.elapsed().as_secs_f64();
    let mut rest = signal;
    rest.enabled = false;
    namespace.apply(vec![rest]).await?;
    tokio::time::sleep(Duration::from_secs(10)).await;

    let pid = nodes.pid(NODE)?;
    let before = cpu_ms(pid)?;
    tokio::time::sleep(IDLE).await;
    let idle_ms = cpu_ms(pid)? - before;
    let rss_mb = memory_mb(pid, "VmRSS:")?;

    let ids: Vec<String> = (0..FIRING).map(|n| format!("firing-{n:04}")).collect();
    let window = Window::from(wall_ms() / 1_000 + 8, SECONDS + 2);
    let jobs = ids.iter().map(|id| each_second(id.clone(), window));
    namespace.apply(jobs.collect()).await?;
    if wall_ms() >= window.from_s * 1_000 {
        return Err("the jobs took too long to create".into());
    }
    eprintln!(
        "jobs-1m: {takeover_s:.2} s to the first fire, {rss_mb:.0} MB, idle {idle_ms:.0} ms in {IDLE:?}"
    );
    Window::from(window.from_s, 1).passed().await;
    let (before, at) = (cpu_ms(pid)?, wall_ms());
    Window::from(window.from_s, 1 + SECONDS).passed().await;
    let seconds = f64::from(i32::try_from(wall_ms() - at).unwrap_or(i32::MAX)) / 1e3;
    let busy_ms = cpu_ms(pid)? - before;
    window.passed().await;
    let records = namespace.ended(&ids, window, PATIENCE).await?;
    audit.add(audit_of(&ids, window, &records));
    let late_ms = |record: &RunRecord| record.created_ms - record.scheduled_ms;
    let late_ms = records.iter().map(late_ms).max().unwrap_or(0);
    let peak_mb = memory_mb(pid, "VmHWM:")?;
    Ok(Cost {
        rss_mb,
        peak_mb,
        takeover_s,
        late_ms,
        idle_cpu_pct: idle_ms / IDLE.as_secs_f64() / 10.0,
        fire_ms: busy_ms / seconds / f64::from(u32::try_from(FIRING).unwrap_or(1)),
    })
}

/// Many jobs of many, due in one and the same second.
async fn at_once(
    stage: &Stage,
    namespace: &Namespace,
    audit: &mut Audit,
) -> Result<(i64, i64), String> {
    let ids: Vec<String> = (0..AT_ONCE).map(|n| format!("at-once-{n:05}")).collect();
    // The node that is started meanwhile reads all jobs first.
    let window = Window::from(wall_ms() / 1_000 + 40, 1);
    let jobs = ids.iter().map(|id| each_second(id.clone(), window));
    namespace.apply(jobs.collect()).await?;
    let mut nodes = Nodes::new(&stage.etcd, &namespace.name, 1_000);
    nodes.start(NODE)?;
    if wall_ms() > window.from_s * 1_000 - 25_000 {
        return Err("the jobs took too long to create".into());
    }
    window.passed().await;
    let due_ms = window.to_s * 1_000;
    let records = namespace.ended(&ids, window, PATIENCE).await?;
    audit.add(audit_of(&ids, window, &records));
    let last = |of: fn(&RunRecord) -> i64| records.iter().map(of).max().unwrap_or(due_ms);
    let decided_ms = last(|record| record.created_ms);
    let ended_ms = last(|record| record.ended_ms.unwrap_or(i64::MAX));
    Ok((decided_ms - due_ms, ended_ms - due_ms))
}
