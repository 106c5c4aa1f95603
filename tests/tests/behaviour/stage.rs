//! A stage: three calm nodes and a story made by hand; and what was seen on it.

use punctual::control::RunKind;
use punctual::duration::Millis;
use punctual::job::record::RunRecord;
use punctual::job::run::{RunState, SkipReason};
use punctual::job::spec::JobSpec;
use punctual_tests::check::check_history;
use punctual_tests::check::history::{Change, History};
use punctual_tests::sim::ablation::Ablations;
use punctual_tests::sim::executor::Proc;
use punctual_tests::sim::faults::{Trouble, Window};
use punctual_tests::sim::ledger::Effect;
use punctual_tests::sim::schedule::{Fault, NodePlan, Op, Plan, Times};
use punctual_tests::sim::workload::HANDLER;
use punctual_tests::sim::world::{Observed, simulate};
use serde_json::json;

pub(crate) const MINUTE: u64 = 60_000;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;

/// Nobody judges an instant so close to the end.
const AFTER_HEALING: u64 = 40_000;

/// As in `2026-03-01T00:00:00Z`, in Unix milliseconds.
pub(crate) fn unix_ms(text: &str) -> i64 {
    text.parse::<jiff::Timestamp>().unwrap().as_millisecond()
}

/// So many nodes from that time on, for so long. The first one leads: the others come a second later.
pub(crate) fn stage(nodes: u64, start: &str, length_ms: u64) -> Plan {
    let node = |index: u64| NodePlan {
        mono_base_ms: 1_000 * index,
        drift_ppm: 0,
        offset_ms: 0,
        slots: 32,
        has_handler: true,
        start_ms: if index == 0 { 0 } else { 1_000 + 100 * index },
    };
    Plan {
        seed: 1,
        scenario: "by hand".into(),
        epoch_ms: unix_ms(start),
        nodes: (0..nodes).map(node).collect(),
        relist_ms: 60_000,
        overdue_takeover_ms: 1_000,
        times: Times::default(),
        faults: vec![],
        ops: vec![],
        heal_ms: length_ms,
        end_ms: length_ms + AFTER_HEALING,
        ablation: Ablations::default(),
        naive: false,
    }
}

/// A job that does nothing and takes no time.
pub(crate) fn job(id: impl Into<String>) -> JobSpec {
    let mut spec = JobSpec::handler(id, HANDLER);
    spec.history.keep_success = 10_000;
    spec.history.keep_failed = 10_000;
    spec.history.keep_skipped = 10_000;
    does(spec, "ok", 0)
}

pub(crate) fn cron(id: impl Into<String>, expression: &str) -> JobSpec {
    job(id).cron(expression)
}

pub(crate) fn zoned(id: impl Into<String>, expression: &str, zone: &str) -> JobSpec {
    let mut spec = cron(id, expression);
    spec.schedule.timezone = Some(zone.into());
    spec
}

pub(crate) fn every(id: impl Into<String>, seconds: u64) -> JobSpec {
    let mut spec = job(id);
    spec.schedule.every = Some(Millis::from_secs(seconds));
    spec
}

pub(crate) fn once(id: impl Into<String>, at_ms: i64) -> JobSpec {
    let mut spec = job(id);
    spec.schedule.at = Some(punctual::time::rfc3339_ms(at_ms));
    spec
}

pub(crate) fn does(mut spec: JobSpec, what: &str, ms: u64) -> JobSpec {
    spec.payload = json!({ "does": what, "ms": ms });
    spec
}

/// What a story is told with.
pub(crate) trait Story {
    fn put(&mut self, at_ms: u64, job: JobSpec);
    fn put_all(&mut self, at_ms: u64, jobs: Vec<JobSpec>);
    fn fault(&mut self, at_ms: u64, fault: Fault);
    fn trouble(&mut self, node: usize, from_ms: u64, until_ms: u64, trouble: Trouble);
    /// The same for all nodes.
    fn all(&mut self, at_ms: u64, fault: impl Fn(usize) -> Fault);
    fn play(&mut self) -> Seen;
}

impl Story for Plan {
    fn put(&mut self, at_ms: u64, job: JobSpec) {
        self.ops.push((at_ms, 0, Op::Put(Box::new(job))));
    }

    fn put_all(&mut self, at_ms: u64, jobs: Vec<JobSpec>) {
        self.ops.push((at_ms, 0, Op::Apply(jobs)));
    }

    fn fault(&mut self, at_ms: u64, fault: Fault) {
        self.faults.push((at_ms, fault));
    }

    fn trouble(&mut self, node: usize, from_ms: u64, until_ms: u64, trouble: Trouble) {
        let window = Window {
            from_ms,
            until_ms,
            trouble,
        };
        self.fault(from_ms, Fault::Link { node, window });
    }

    fn all(&mut self, at_ms: u64, fault: impl Fn(usize) -> Fault) {
        for node in 0..self.nodes.len() {
            self.fault(at_ms, fault(node));
        }
    }

    fn play(&mut self) -> Seen {
        self.faults.sort_by_key(|(at, _)| *at);
        self.ops.sort_by_key(|(at, ..)| *at);
        Seen::of(simulate(self))
    }
}

/// A record, and when it was written.
pub(crate) struct Written {
    pub(crate) at_ms: u64,
    pub(crate) record: RunRecord,
}

/// What was seen. Every invariant held.
pub(crate) struct Seen {
    pub(crate) observed: Observed,
    /// The first record of each attempt.
    pub(crate) created: Vec<Written>,
    /// What each attempt, and each instant that was not run, ended as.
    pub(crate) ended: Vec<Written>,
    /// Who led from when on.
    pub(crate) leads: Vec<(u64, usize, Proc)>,
    /// Who moved a cursor, and when.
    pub(crate) decided: Vec<(u64, Proc)>,
}

impl Seen {
    fn of(observed: Observed) -> Self {
        let history = History::new(&observed);
        assert_eq!(check_history(&history), []);
        for asked in &observed.asked {
            assert!(asked.answer.is_some(), "nobody answered {:?}", asked.op);
        }
        let (mut created, mut ended) = (Vec::new(), Vec::new());
        for (revised, done, step) in history.steps() {
            let (None, Some(after)) = (&step.before, &step.after) else {
                continue;
            };
            let written = Written {
                at_ms: revised.at_ms,
                record: after.record.clone(),
            };
            if done { &mut ended } else { &mut created }.push(written);
        }
        let (mut leads, mut decided) = (Vec::new(), Vec::new());
        for revised in &history.revisions {
            for change in &revised.changes {
                match (change, revised.writer) {
                    (Change::Leader { after: Some(_) }, Some(proc)) => {
                        leads.push((revised.at_ms, observed.lives[&proc].node, proc));
                    }
                    (Change::Cursor { .. }, Some(proc)) => decided.push((revised.at_ms, proc)),
                    _ => {}
                }
            }
        }
        Self {
            created,
            ended,
            leads,
            decided,
            observed,
        }
    }

    /// The instants at which the schedule ran the job.
    pub(crate) fn fires(&self, job: &str) -> Vec<i64> {
        let fires = self.scheduled(job).map(|fire| fire.record.scheduled_ms);
        let mut fires: Vec<i64> = fires.collect();
        fires.sort_unstable();
        fires
    }

    /// The same in seconds of virtual time.
    pub(crate) fn fires_s(&self, job: &str) -> Vec<i64> {
        let virtual_s = |at: i64| (at - self.observed.plan.epoch_ms) / 1_000;
        self.fires(job).into_iter().map(virtual_s).collect()
    }

    /// The decisions to run that the schedule made.
    pub(crate) fn scheduled(&self, job: &str) -> impl Iterator<Item = &Written> {
        self.created.iter().filter(move |written| {
            let record = &written.record;
            record.job == job && record.attempt == 1 && record.kind == RunKind::Scheduled
        })
    }

    /// How much later than its instant each run was created.
    pub(crate) fn late_ms(&self, job: &str) -> Vec<i64> {
        let epoch_ms = self.observed.plan.epoch_ms;
        let late = |fire: &Written| fire.at_ms.cast_signed() + epoch_ms - fire.record.scheduled_ms;
        self.scheduled(job).map(late).collect()
    }

    /// How much later than its instant each run's code began, in the order of their starts.
    pub(crate) fn started_late_ms(&self, job: &str) -> Vec<i64> {
        let epoch_ms = self.observed.plan.epoch_ms;
        self.runs(job)
            .iter()
            .map(|effect| effect.start_ms.cast_signed() + epoch_ms - effect.scheduled_ms)
            .collect()
    }

    /// What the job's code did, in the order of the starts.
    pub(crate) fn runs(&self, job: &str) -> Vec<&Effect> {
        let effects = self.observed.effects.iter();
        effects.filter(|effect| effect.job == job).collect()
    }

    /// When that attempt of the job's first run that has one became RUNNING.
    pub(crate) fn running_ms(&self, job: &str, attempt: u32) -> u64 {
        let history = History::new(&self.observed);
        let mut steps = history.steps();
        let running = steps.find(|(_, done, step)| {
            let after = step.after.as_ref();
            let is_running = after.is_some_and(|after| after.record.state == RunState::Running);
            !done && step.key.job == job && step.key.attempt == attempt && is_running
        });
        running.unwrap().0.at_ms
    }

    /// The states that the job's attempts ended in.
    pub(crate) fn states(&self, job: &str) -> Vec<RunState> {
        self.ends(job).map(|record| record.state).collect()
    }

    /// The records that the job's attempts ended with.
    pub(crate) fn ends(&self, job: &str) -> impl Iterator<Item = &RunRecord> {
        let ended = self.ended.iter().map(|written| &written.record);
        ended.filter(move |record| record.job == job)
    }

    /// What was decided not to run: why, and how many instants.
    pub(crate) fn skips(&self, job: &str) -> Vec<(SkipReason, u64)> {
        self.ends(job)
            .filter(|record| record.state == RunState::Skipped)
            .map(|record| (record.skipped.unwrap(), record.stands_for))
            .collect()
    }

    /// The node that a process belonged to.
    pub(crate) fn node(&self, proc: Proc) -> usize {
        self.observed.lives[&proc].node
    }
}
