//! `/metrics` in OpenMetrics: what this node has seen itself, and the cluster as the store shows it.
//!
//! A registry a node, so that several fit one process. What can go wrong here: a label with as many
//! values as there are jobs fills the memory of whoever collects it, so only the first
//! [`MAX_JOBS`] jobs have their own name; and a look at the cluster reads every job, so it is
//! repeated only after [`REST`] times what it took.

mod doubt;
mod metered;
mod written;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use punctual::control::{Control, StatusObject};
use punctual::notify::Delivery;
use punctual::vitals::Vitals;

use doubt::Doubts;
pub(crate) use metered::Metered;
use written::Did;

/// The content type of what [`Metrics::render`] writes.
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// So many jobs have a label of their own; all others share `_other`.
const MAX_JOBS: usize = 1_000;
/// Seconds, from a command that does nothing to one of a day.
const EXECUTION: [f64; 14] = [
    0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 10_800.0, 43_200.0, 86_400.0,
];
/// Seconds, from an embedded store to a call that is given up.
const REQUEST: [f64; 11] = [
    0.000_1, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 2.0,
];
/// Seconds, from a fire that is on time to one that somebody slept through.
const WAIT: [f64; 18] = [
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 3_600.0, 86_400.0,
];
/// A look at the cluster is good for so long at least.
const FRESH: Duration = Duration::from_secs(5);
/// How many times longer than a look the pause after it is.
const REST: u32 = 20;
/// Whoever collects waits about ten seconds.
const LOOK: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct JobLabel {
    job_id: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TriggerLabels {
    job_id: String,
    status: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OpLabel {
    op: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct RequestLabels {
    op: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

type Timings<L> = Family<L, Histogram, fn() -> Histogram>;

/// What a node counts.
pub(crate) struct Metrics {
    registry: Registry,
    triggers: Family<TriggerLabels, Counter>,
    executions: Timings<JobLabel>,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Timings<OpLabel>,
    resyncs: Family<ReasonLabel, Counter>,
    notifications: Family<OutcomeLabel, Counter>,
    lateness: Histogram,
    queued: Histogram,
    lost: Counter,
    late_results: Counter,
    leads: Counter,
    fenced: Family<OpLabel, Counter>,
    doubts: Doubts,
    /// There once the node is.
    vitals: OnceLock<Arc<Vitals>>,
    jobs: Mutex<HashSet<String>>,
    cluster: tokio::sync::Mutex<Option<Look>>,
}

/// What a look at the cluster showed.
struct Look {
    at: Instant,
    took: Duration,
    status: Option<StatusObject>,
}

impl Look {
    /// One that failed shows nothing: whoever watches needs the next one, however long it took.
    fn good_for(&self) -> Duration {
        match self.status {
            Some(_) => FRESH.max(self.took * REST),
            None => FRESH,
        }
    }
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::default();
        let triggers = Family::default();
        registry.register(
            "scheduler_job_trigger",
            "Executions that ended on this node, by how (success, failed); and what this node wrote: runs \
             (fired), runs that were there already when it was about to make them (dedup), and records \
             of instants that do not run (skipped)",
            triggers.clone(),
        );
        let executions: Timings<JobLabel> =
            Family::new_with_constructor(|| Histogram::new(EXECUTION));
        registry.register_with_unit(
            "scheduler_job_latency",
            "How long executions on this node took",
            Unit::Seconds,
            executions.clone(),
        );
        let requests = Family::default();
        registry.register(
            "scheduler_store_requests",
            "Calls of this node to the store, by what came of them",
            requests.clone(),
        );
        let request_seconds: Timings<OpLabel> =
            Family::new_with_constructor(|| Histogram::new(REQUEST));
        registry.register_with_unit(
            "scheduler_store_request",
            "How long calls to the store took, those that were given up included",
            Unit::Seconds,
            request_seconds.clone(),
        );
        let resyncs = Family::default();
        registry.register(
            "scheduler_watch_resyncs",
            "Watches of this node that ended, after which it read anew what they watched",
            resyncs.clone(),
        );
        let notifications = Family::default();
        registry.register(
            "scheduler_notifications",
            "Messages of this node to those who asked to be told, by what came of them",
            notifications.clone(),
        );
        let lateness = Histogram::new(WAIT);
        registry.register_with_unit(
            "scheduler_fire_lateness",
            "From the instants of schedules to the answer of the store that this node has made their runs, by \
             its clock; runs that stand for several instants count from the last, and those that have no \
             instant (by hand, after another job, after a rest, for the past) not at all",
            Unit::Seconds,
            lateness.clone(),
        );
        let queued = Histogram::new(WAIT);
        registry.register_with_unit(
            "scheduler_queue",
            "How long the attempts that this node started might have been claimed before they were, by the clocks of \
             who made and who claimed them",
            Unit::Seconds,
            queued.clone(),
        );
        let lost = Counter::default();
        registry.register(
            "scheduler_runs_lost",
            "Attempts that this node ended as worker_lost: what became of them is not known",
            lost.clone(),
        );
        let late_results = Counter::default();
        registry.register(
            "scheduler_late_results",
            "Results of this node that came when the attempt had been ended otherwise, and were kept beside that",
            late_results.clone(),
        );
        let leads = Counter::default();
        registry.register(
            "scheduler_leader_changes",
            "How often this node took the lead; the sum over all nodes is how often the lead changed",
            leads.clone(),
        );
        let fenced: Family<OpLabel, Counter> = Family::default();
        for op in [written::LEAD, written::WORK] {
            // (There from the start, or the first one would be no increase.)
            drop(fenced.get_or_create(&OpLabel { op }));
        }
        registry.register(
            "scheduler_fenced_writes",
            "Requests of this node that were refused because its term (lead) or session (work) was over",
            fenced.clone(),
        );
        let doubts = Doubts::default();
        registry.register(
            "scheduler_unknown_outcomes",
            "Transactions of this node of which it did not hear what became of them, by how it found out: it \
             made the same one again, which was applied, or refused (most often because the first one had \
             been applied); given_up: it did not within a minute",
            doubts.resolved.clone(),
        );
        registry.register(
            "scheduler_build",
            "What runs here",
            Info::new(vec![
                ("version", env!("CARGO_PKG_VERSION").to_owned()),
                ("tzdb", punctual::schedule::tzdb_version().to_string()),
            ]),
        );
        Self {
            registry,
            triggers,
            executions,
            requests,
            request_seconds,
            resyncs,
            notifications,
            lateness,
            queued,
            lost,
            late_results,
            leads,
            fenced,
            doubts,
            vitals: OnceLock::new(),
            jobs: Mutex::default(),
            cluster: tokio::sync::Mutex::new(None),
        }
    }

    /// Shows what the node shows.
    pub(crate) fn show(&self, vitals: Arc<Vitals>) {
        // (A node is made once.)
        let _ = self.vitals.set(vitals);
    }

    /// An execution ended.
    pub(crate) fn executed(&self, job: &str, succeeded: bool, took: Duration) {
        let label = JobLabel {
            job_id: self.label(job),
        };
        self.executions
            .get_or_create(&label)
            .observe(took.as_secs_f64());
        self.trigger(job, if succeeded { "success" } else { "failed" });
    }

    /// A transaction of this node did something; the wall clock says `now_ms`.
    fn did(&self, did: &Did<'_>, now_ms: i64) {
        match *did {
            Did::Fired { job, at_ms } => {
                self.trigger(job, "fired");
                if let Some(at_ms) = at_ms {
                    // (A clock may have been set back since: nothing takes less than no time.)
                    let late_ms = now_ms.saturating_sub(at_ms).max(0);
                    self.lateness.observe(seconds(late_ms));
                }
            }
            Did::Met { job } => self.trigger(job, "dedup"),
            Did::Skipped { job } => self.trigger(job, "skipped"),
            Did::Started { waited_ms } => self.queued.observe(seconds(waited_ms)),
            Did::Lost => drop(self.lost.inc()),
            Did::CameLate => drop(self.late_results.inc()),
            Did::Led => drop(self.leads.inc()),
            Did::Fenced { op } => drop(self.fenced.get_or_create(&OpLabel { op }).inc()),
        }
    }

    fn trigger(&self, job: &str, status: &'static str) {
        let labels = TriggerLabels {
            job_id: self.label(job),
            status,
        };
        self.triggers.get_or_create(&labels).inc();
    }

    fn requested(&self, op: &'static str, outcome: &'static str, took: Duration) {
        self.requests
            .get_or_create(&RequestLabels { op, outcome })
            .inc();
        self.request_seconds
            .get_or_create(&OpLabel { op })
            .observe(took.as_secs_f64());
    }

    fn resynced(&self, reason: &'static str) {
        self.resyncs.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// A message was sent, or not.
    pub(crate) fn notified(&self, delivery: Delivery) {
        let outcome = match delivery {
            Delivery::Sent => "sent",
            Delivery::Failed => "failed",
            Delivery::GivenUp => "given_up",
        };
        self.notifications
            .get_or_create(&OutcomeLabel { outcome })
            .inc();
    }

    fn label(&self, job: &str) -> String {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if jobs.contains(job) {
            return job.to_owned();
        }
        if jobs.len() < MAX_JOBS {
            jobs.insert(job.to_owned());
            return job.to_owned();
        }
        "_other".into()
    }

    /// Everything as text. What the store does not tell at the moment is left out.
    pub(crate) async fn render(
        &self,
        control: &Control,
        node: &str,
    ) -> Result<String, std::fmt::Error> {
        let cluster = self.look(control, node).await;
        self.doubts.expire(Instant::now());
        let mut text = String::new();
        encode_registry(&mut text, &self.registry)?;
        encode_registry(&mut text, &cluster)?;
        if let Some(vitals) = self.vitals.get() {
            encode_registry(&mut text, &of_node(vitals))?;
        }
        encode_eof(&mut text)?;
        Ok(text)
    }

    /// The cluster as the last look showed it, or a new one.
    async fn look(&self, control: &Control, node: &str) -> Registry {
        let mut last = self.cluster.lock().await;
        let fresh = last
            .as_ref()
            .is_some_and(|look| look.at.elapsed() < look.good_for());
        if !fresh {
            let began = Instant::now();
            let status = tokio::time::timeout(LOOK, control.status(String::new())).await;
            *last = Some(Look {
                at: Instant::now(),
                took: began.elapsed(),
                status: status.ok().and_then(Result::ok),
            });
        }
        match last.as_ref().and_then(|look| look.status.as_ref()) {
            Some(status) => of_cluster(status, node),
            None => Registry::default(),
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "milliseconds of any lag are far from 2^53"
)]
fn seconds(ms: i64) -> f64 {
    ms as f64 / 1_000.0
}

fn whole(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What the node itself shows at this moment.
fn of_node(vitals: &Vitals) -> Registry {
    let mut registry = Registry::default();
    let slots: Family<StateLabel, Gauge> = Family::default();
    for (state, count) in [("busy", vitals.busy()), ("free", vitals.free())] {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        slots.get_or_create(&StateLabel { state }).set(count);
    }
    registry.register(
        "scheduler_slots",
        "How many runs this node has or is claiming (busy), and how many more it would take (free)",
        slots,
    );
    if let Some(age_ms) = vitals.tick_age_ms() {
        let age: Gauge<f64, std::sync::atomic::AtomicU64> = Gauge::default();
        age.set(seconds(whole(age_ms)));
        registry.register_with_unit(
            "scheduler_tick_age",
            "For how long the loop that fires has not turned, which it does twice a second unless the store \
             does not answer; only while this node leads",
            Unit::Seconds,
            age,
        );
    }
    registry
}

fn of_cluster(status: &StatusObject, node: &str) -> Registry {
    let mut registry = Registry::default();
    let leads: Gauge = Gauge::default();
    leads.set(i64::from(status.leader.as_deref() == Some(node)));
    registry.register("scheduler_is_leader", "1: this node leads", leads);
    let undecided: Gauge = Gauge::default();
    undecided.set(whole(status.undecided_instants));
    registry.register(
        "scheduler_undecided_instants",
        "Instants that are due for a second or more and not decided; 0 when healthy",
        undecided,
    );
    let lag: Gauge<f64, std::sync::atomic::AtomicU64> = Gauge::default();
    lag.set(seconds(whole(status.cursor_lag_ms)));
    registry.register_with_unit(
        "scheduler_cursor_lag",
        "Age of the oldest instant that is not decided",
        Unit::Seconds,
        lag,
    );
    let mut own = status.nodes.iter().filter(|live| live.node == node);
    if let Some(ahead_ms) = own.find_map(|live| live.clock_ahead_ms) {
        let skew: Gauge<f64, std::sync::atomic::AtomicU64> = Gauge::default();
        skew.set(seconds(ahead_ms));
        registry.register_with_unit(
            "scheduler_clock_skew",
            "How far this node's clock was ahead of the middle one of the other nodes' (negative: behind) when \
             it said so last, within a minute; an estimate, and not there while no other is known",
            Unit::Seconds,
            skew,
        );
    }
    let runs: Family<StateLabel, Gauge> = Family::default();
    for (state, count) in [
        ("PENDING", status.pending),
        ("LOCKED", status.locked),
        ("RUNNING", status.running),
    ] {
        runs.get_or_create(&StateLabel { state }).set(whole(count));
    }
    registry.register("scheduler_runs", "Runs that have not ended, by state", runs);
    registry
}

#[cfg(test)]
mod tests {
    use super::*;

    // A look that the store kept waiting for five seconds must not hide the cluster for a hundred.
    #[test]
    fn after_a_look_that_failed_the_next_one_is_soon() {
        let failed = Look {
            at: Instant::now(),
            took: LOOK,
            status: None,
        };
        assert_eq!(failed.good_for(), FRESH);
    }

    #[test]
    fn the_thousandth_job_is_the_last_with_a_name() {
        let metrics = Metrics::new();
        for i in 0..MAX_JOBS + 5 {
            metrics.executed(&format!("job-{i}"), i % 2 == 0, Duration::from_millis(20));
        }
        metrics.executed("job-0", false, Duration::from_secs(2));
        let mut text = String::new();
        encode_registry(&mut text, &metrics.registry).unwrap();
        let ended = |labels: &str| format!("scheduler_job_trigger_total{{{labels}}} ");
        for line in [
            ended("job_id=\"job-0\",status=\"success\"") + "1\n",
            ended("job_id=\"job-0\",status=\"failed\"") + "1\n",
            ended("job_id=\"job-999\",status=\"failed\"") + "1\n",
            ended("job_id=\"_other\",status=\"success\"") + "3\n",
            ended("job_id=\"_other\",status=\"failed\"") + "2\n",
            "scheduler_job_latency_seconds_count{job_id=\"_other\"} 5\n".into(),
        ] {
            assert!(text.contains(&line), "{line}");
        }
        assert!(!text.contains("job-1000"));
    }

    /// The skew is this node's own, and is not there when nothing is known of it: 0 would say that the
    /// clock is right.
    #[test]
    fn the_skew_is_that_of_this_node_if_it_is_known() {
        let node = |node: &str, ahead_ms: Option<i64>| {
            serde_json::json!({
                "node": node, "incarnation": "0123456789abcdef", "leader": node == "b",
                "slots": 1, "queues": [], "handlers": [], "since": "", "address": null,
                "clock_ahead_ms": ahead_ms,
            })
        };
        let status: StatusObject = serde_json::from_value(serde_json::json!({
            "store": "", "cluster_id": "c", "tzdb": "", "leader": "b", "term": 1, "jobs": 0,
            "nodes": [node("a", Some(-250)), node("b", Some(1_500)), node("c", None)],
            "pending": 0, "locked": 0, "running": 0, "undecided_instants": 0, "cursor_lag_ms": 0,
        }))
        .unwrap();
        let text = |node: &str| {
            let mut text = String::new();
            encode_registry(&mut text, &of_cluster(&status, node)).unwrap();
            text
        };
        assert!(text("a").contains("scheduler_clock_skew_seconds -0.25\n"));
        assert!(text("b").contains("scheduler_clock_skew_seconds 1.5\n"));
        assert!(text("b").contains("scheduler_is_leader 1\n"));
        assert!(!text("c").contains("scheduler_clock_skew"));
    }

    #[tokio::test]
    async fn slots_are_shown_and_no_tick_where_nobody_leads() {
        let vitals = Vitals::new(punctual::env::TokioEnv::shared(), 4);
        let mut text = String::new();
        encode_registry(&mut text, &of_node(&vitals)).unwrap();
        assert!(
            text.contains("scheduler_slots{state=\"busy\"} 0\n"),
            "{text}"
        );
        assert!(
            text.contains("scheduler_slots{state=\"free\"} 4\n"),
            "{text}"
        );
        assert!(!text.contains("scheduler_tick_age"), "{text}");
    }
}
