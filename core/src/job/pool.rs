//! One definition in memory for all jobs that are decided alike.
//!
//! A leader holds the definitions of all jobs. A million jobs have a few hundred distinct sets of
//! policies and schedules; what else a definition says (what to run, with which payload, under which
//! name) only workers and people look at, and they read it from the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::schedule::{Interner, Schedule, ScheduleSpec};

use super::Definition;
use super::record::encode;
use super::spec::{HttpSpec, JobSpec};

/// Below this size nothing is swept.
const SMALL: usize = 1_024;

/// Hands out shared definitions.
#[derive(Debug, Default)]
pub struct Pool {
    /// By the bytes of their policies.
    alike: BTreeMap<Vec<u8>, Alike>,
    schedules: Interner,
    count: usize,
    /// Size at which what nobody holds any more is dropped.
    sweep_at: usize,
}

/// Definitions of the same policies.
#[derive(Debug)]
struct Alike {
    spec: Arc<JobSpec>,
    by_schedule: BTreeMap<Schedule, Arc<Definition>>,
}

impl Pool {
    /// The definition as deciding needs it, in as little memory as there can be.
    pub fn share(&mut self, definition: &Definition) -> Arc<Definition> {
        let spec = lean(&definition.spec);
        let key = encode(&spec);
        if self.count >= self.sweep_at.max(SMALL) {
            self.sweep();
        }
        let alike = self.alike.entry(key).or_insert_with(|| Alike {
            spec: Arc::new(spec),
            by_schedule: BTreeMap::new(),
        });
        if let Some(known) = alike.by_schedule.get(&definition.schedule) {
            return known.clone();
        }
        let schedule = self.schedules.share(definition.schedule.clone());
        let shared = Arc::new(Definition {
            spec: alike.spec.clone(),
            schedule: schedule.clone(),
        });
        alike.by_schedule.insert(schedule, shared.clone());
        self.count += 1;
        shared
    }

    fn sweep(&mut self) {
        self.alike.retain(|_, alike| {
            let held = |definition: &mut Arc<Definition>| Arc::strong_count(definition) > 1;
            alike.by_schedule.retain(|_, definition| held(definition));
            !alike.by_schedule.is_empty()
        });
        self.count = self.alike.values().map(|a| a.by_schedule.len()).sum();
        self.sweep_at = self.count * 2;
    }
}

/// Without what only workers and people look at, and without the text of the schedule.
fn lean(spec: &JobSpec) -> JobSpec {
    let mut lean = JobSpec::handler("", "");
    lean.schedule = ScheduleSpec {
        jitter: spec.schedule.jitter,
        ..ScheduleSpec::default()
    };
    // (Which kind it is says what a node must have: `JobSpec::needs`.)
    lean.run.handler.clone_from(&spec.run.handler);
    lean.run.http = spec.run.http.as_ref().map(|_| HttpSpec::default());
    JobSpec {
        id: lean.id,
        name: None,
        schedule: lean.schedule,
        run: lean.run,
        payload: lean.payload,
        labels: lean.labels,
        ..spec.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duration::Millis;
    use crate::job::spec::{CommandSpec, Overlap};
    use crate::schedule::Calendars;

    fn definition(spec: JobSpec) -> Definition {
        let schedule = Schedule::compile(&spec.schedule, 0, &Calendars::default()).unwrap();
        Definition {
            spec: Arc::new(spec),
            schedule,
        }
    }

    #[test]
    fn jobs_that_differ_only_in_what_they_run_share_one() {
        let mut pool = Pool::default();
        let mut one = JobSpec::handler("a", "h").cron("0 5 * * *");
        one.payload = serde_json::json!({"a": 1});
        let mut other = JobSpec::handler("b", "h").cron("0 5 * * *");
        other.name = Some("B".into());
        other.labels.insert("team".into(), "x".into());
        let (one, other) = (pool.share(&definition(one)), pool.share(&definition(other)));
        assert!(Arc::ptr_eq(&one, &other));
        let later = JobSpec::handler("c", "h").cron("0 6 * * *");
        let later = pool.share(&definition(later));
        assert!(Arc::ptr_eq(&one.spec, &later.spec) && one.schedule != later.schedule);
        assert_eq!(one.spec.needs(), "handler:h");
        let call = |url: &str| {
            let mut spec = JobSpec::handler(url, "h").cron("0 7 * * *");
            spec.run.handler = None;
            spec.run.http = Some(HttpSpec {
                url: format!("https://{url}.org/"),
                ..HttpSpec::default()
            });
            definition(spec)
        };
        let (one, other) = (pool.share(&call("a")), pool.share(&call("b")));
        assert!(Arc::ptr_eq(&one, &other));
        assert_eq!(one.spec.needs(), "http");
    }

    #[test]
    fn what_deciding_looks_at_is_kept() {
        let mut spec = JobSpec::handler("a", "h").every(Millis::from_secs(60));
        spec.run.handler = None;
        spec.run.command = Some(CommandSpec::Named("report".into()));
        spec.overlap = Overlap::Queue;
        spec.queue_limit = Some(3);
        spec.queue = "slow".into();
        spec.priority = 4;
        spec.fan_out = Some(5);
        spec.misfire = crate::job::spec::Misfire::All;
        spec.schedule.jitter = Some(Millis::from_secs(7));
        let whole = definition(spec);
        let lean = Pool::default().share(&whole);
        assert_eq!(lean.spec.needs(), whole.spec.needs());
        assert_eq!(lean.jitter(), whole.jitter());
        assert_eq!(lean.schedule, whole.schedule);
        let policies = |spec: &JobSpec| {
            let spec = spec.clone();
            (
                spec.overlap,
                spec.queue_limit,
                spec.queue,
                spec.priority,
                spec.fan_out,
                spec.misfire,
            )
        };
        assert_eq!(policies(&lean.spec), policies(&whole.spec));
    }

    #[test]
    fn what_nobody_holds_is_dropped() {
        let mut pool = Pool::default();
        for n in 0..5_000 {
            let mut spec = JobSpec::handler("a", "h").cron("0 5 * * *");
            spec.queue = format!("queue-{n}");
            drop(pool.share(&definition(spec)));
        }
        assert!(pool.alike.len() <= SMALL);
    }
}
