//! What that design missed, and what it did twice.

use std::collections::BTreeMap;

use punctual::backend::Event;

use super::{NaiveJob, job_of};
use crate::check::exactly_once::LATE_MS;
use crate::check::oracle::instants;
use crate::sim::world::Observed;

/// Instants so close to a change of their job are not counted as missed: clocks differ, and this
/// design has no rule for them.
const MARGIN_MS: i64 = 5_000;

/// Of one simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Instants that were due while their job stood unchanged.
    pub instants: u64,
    /// Those at which nothing was executed.
    pub misses: u64,
    /// Executions of an instant beyond its first.
    pub duplicates: u64,
}

/// Counts.
#[must_use]
pub fn count(observed: &Observed) -> Count {
    let mut done: BTreeMap<(&str, i64), u64> = BTreeMap::new();
    for effect in &observed.effects {
        *done.entry((&effect.job, effect.scheduled_ms)).or_default() += 1;
    }
    let mut total = Count {
        duplicates: done.values().map(|times| times - 1).sum(),
        ..Count::default()
    };
    for (id, job, from_ms, until_ms) in stood(observed) {
        let due = instants(
            &job.spec,
            job.created_ms,
            from_ms + MARGIN_MS,
            until_ms - MARGIN_MS,
        );
        for at in due.expect("the oracle reads what the simulation makes") {
            total.instants += 1;
            total.misses += u64::from(!done.contains_key(&(id.as_str(), at)));
        }
    }
    total
}

/// Jobs that were not held, and from when to when (in Unix milliseconds) they stood unchanged.
fn stood(observed: &Observed) -> Vec<(String, NaiveJob, i64, i64)> {
    let epoch_ms = observed.plan.epoch_ms;
    let mut open: BTreeMap<String, (NaiveJob, i64)> = BTreeMap::new();
    let mut all = Vec::new();
    for logged in &observed.log {
        let now_ms = epoch_ms + logged.at_ms.cast_signed();
        for event in &logged.events {
            let Some(id) = job_of(event.key()) else {
                continue;
            };
            if let Some((job, from_ms)) = open.remove(id) {
                all.push((id.to_owned(), job, from_ms, now_ms));
            }
            if let Event::Put(entry) = event {
                let job = serde_json::from_slice(&entry.value).expect("written by `operate`");
                open.insert(id.to_owned(), (job, now_ms));
            }
        }
    }
    let end_ms = epoch_ms + observed.plan.end_ms.cast_signed() - LATE_MS + MARGIN_MS;
    let last = open
        .into_iter()
        .map(|(id, (job, from))| (id, job, from, end_ms));
    all.extend(last);
    all.retain(|(_, job, ..)| !job.paused);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::ablation::Ablations;
    use crate::sim::schedule::{NodePlan, Op, Plan, Times};
    use crate::sim::workload::HANDLER;
    use crate::sim::world::simulate;
    use punctual::job::spec::JobSpec;

    /// Nothing goes wrong here, and nothing is missed: the control is not rigged.
    fn calm() -> Observed {
        let mut spec = JobSpec::handler("job", HANDLER).cron("*/10 * * * * *");
        spec.payload = serde_json::json!({ "does": "ok", "ms": 100 });
        let observed = simulate(&Plan {
            seed: 1,
            scenario: "calm".into(),
            // Ticks fall into the middle of their seconds.
            epoch_ms: 1_772_323_200_500,
            nodes: vec![NodePlan {
                mono_base_ms: 0,
                drift_ppm: 0,
                offset_ms: 0,
                slots: 4,
                has_handler: true,
                start_ms: 0,
            }],
            relist_ms: 60_000,
            times: Times::default(),
            faults: vec![],
            ops: vec![(1_000, 0, Op::Put(Box::new(spec)))],
            heal_ms: 60_000,
            end_ms: 90_000,
            ablation: Ablations::default(),
            naive: true,
            overdue_takeover_ms: 0,
        });
        let found = count(&observed);
        assert_eq!((found.misses, found.duplicates), (0, 0), "{found:?}");
        assert!(found.instants >= 6, "{found:?}");
        observed
    }

    #[test]
    fn an_execution_that_is_left_out_is_a_miss() {
        let mut observed = calm();
        observed.effects.remove(2);
        assert_eq!(count(&observed).misses, 1);
    }

    #[test]
    fn an_execution_too_many_is_a_duplicate() {
        let mut observed = calm();
        let again = observed.effects[2].clone();
        observed.effects.push(again);
        assert_eq!(count(&observed).duplicates, 1);
    }
}
