//! What an operator asks for once is done at most once: a copy of the request that arrives late
//! must not bring back a job that was deleted since, nor an older definition.

use std::collections::BTreeMap;

use punctual::job::record::{JobRecord, Paused};
use punctual::job::spec::JobSpec;

use super::history::{Change, Held, History, Violation};
use crate::sim::schedule::Op;

/// Checks it.
#[must_use]
pub fn check(history: &History<'_>) -> Vec<Violation> {
    if history.observed.by_watch {
        // Whoever drives a real cluster counts its own requests.
        return Vec::new();
    }
    let mut asked: BTreeMap<(String, &'static str, String), usize> = BTreeMap::new();
    // To hold and to let go all jobs.
    let mut everybody = (0, 0);
    let mut ask =
        |id: &str, what, text| *asked.entry((id.to_owned(), what, text)).or_default() += 1;
    // As it is stored.
    let text = |spec: &JobSpec| {
        serde_json::to_string(&spec.clone().with_dialect_decided())
            .expect("a definition can be written")
    };
    for operation in &history.observed.asked {
        match &operation.op {
            Op::Put(spec) => ask(&spec.id, "defined", text(spec)),
            Op::Apply(specs) => specs
                .iter()
                .for_each(|spec| ask(&spec.id, "defined", text(spec))),
            Op::Pause(id) | Op::PauseUntil(id, _) => ask(id, "held", String::new()),
            Op::PauseAll(_) => everybody.0 += 1,
            Op::ResumeAll => everybody.1 += 1,
            Op::Resume(id) => ask(id, "let go", String::new()),
            Op::Delete(id) => ask(id, "deleted", String::new()),
            Op::Trigger(..) | Op::Cancel(_) | Op::Retry(..) | Op::Backfill(..) | Op::Drain(..) => {}
        }
    }
    let resumed: BTreeMap<String, usize> = asked
        .iter()
        .filter(|((_, what, _), _)| *what == "let go")
        .map(|((id, ..), count)| (id.clone(), *count))
        .collect();
    let mut violations = Vec::new();
    for revised in &history.revisions {
        for change in &revised.changes {
            let Change::Job { id, before, after } = change else {
                continue;
            };
            let own = |stood: &Held<JobRecord>| stood.as_ref()?.record.paused.clone();
            let all = |stood: &Held<JobRecord>| stood.as_ref()?.record.paused_all.clone();
            // One that has come to its end is not ended by anybody.
            let late_ms = revised.unix_ms + history.observed.plan.skew_ms();
            let ended = |was: Option<Box<Paused>>, is: Option<Box<Paused>>| {
                is.is_none() && was.is_some_and(|was| was.holds(late_ms))
            };
            let generation = |stood: &Held<JobRecord>| {
                stood
                    .as_ref()
                    .map(|stood| (stood.created, stood.record.generation))
            };
            let (what, wanted) = match after {
                None => ("deleted", String::new()),
                Some(stood) if generation(before) != generation(after) => {
                    let spec = history.spec(id, stood.record.generation, revised.revision);
                    ("defined", spec.map(text).unwrap_or_default())
                }
                Some(_) if own(after).is_some() && own(after) != own(before) => {
                    ("held", String::new())
                }
                Some(_) if all(after).is_some() && all(after) != all(before) => {
                    ("held with all", String::new())
                }
                Some(_) if ended(own(before), own(after)) => ("let go", String::new()),
                // By whoever lets go all jobs, or this one.
                Some(_) if ended(all(before), all(after)) => ("let go with all", String::new()),
                Some(_) => continue,
            };
            let times = match what {
                "held with all" => everybody.0,
                "let go with all" => everybody.1 + resumed.get(id).copied().unwrap_or(0),
                _ => 0,
            };
            let key = (id.clone(), what, wanted);
            if times > 0 {
                asked.entry(key.clone()).or_insert(times);
            }
            let left = asked.get_mut(&key);
            match left.filter(|left| **left > 0) {
                Some(left) => *left -= 1,
                None => violations.push(Violation::new(
                    "a change applies at most once",
                    format!(
                        "{id} is {what} at revision {}, once more than asked",
                        revised.revision
                    ),
                )),
            }
        }
    }
    violations
}
