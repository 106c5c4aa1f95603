//! What an operator asks for once is done at most once: a copy of the request that arrives late
//! must not bring back a job that was deleted since, nor an older definition.

use std::collections::BTreeMap;

use punctual::job::record::JobRecord;
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
            Op::Pause(id) => ask(id, "held", String::new()),
            Op::Resume(id) => ask(id, "let go", String::new()),
            Op::Delete(id) => ask(id, "deleted", String::new()),
            Op::Trigger(..) | Op::Cancel(_) | Op::Drain(..) => {}
        }
    }
    let mut violations = Vec::new();
    for revised in &history.revisions {
        for change in &revised.changes {
            let Change::Job { id, before, after } = change else {
                continue;
            };
            let paused = |stood: &Held<JobRecord>| {
                stood
                    .as_ref()
                    .is_some_and(|stood| stood.record.paused.is_some())
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
                Some(_) if paused(after) && !paused(before) => ("held", String::new()),
                Some(_) if !paused(after) && paused(before) => ("let go", String::new()),
                Some(_) => continue,
            };
            let left = asked.get_mut(&(id.clone(), what, wanted));
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
