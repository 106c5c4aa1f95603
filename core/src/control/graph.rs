//! Which jobs run after which: no circles, and nobody waits for a job that is not there.
//!
//! This is a courtesy to whoever writes the file. Two definitions that meet can make a circle all
//! the same; the leader stops such a chain ([`crate::leader::chain::MAX_HOPS`]). A job whose
//! predecessor is gone simply does not run after it.

use std::collections::BTreeMap;

use crate::job::record::{JobRecord, decode};
use crate::job::spec::{JobSpec, SpecError};
use crate::keys::partition_of;

use super::Control;
use super::types::ControlError;

/// So many jobs are looked at behind one definition.
const MAX_LOOKED_AT: usize = 1_000;

/// What each job runs after; none: there is no such job.
type Known = BTreeMap<String, Option<Vec<String>>>;

impl Control {
    /// What is wrong with `after` in these definitions, beside what stands in the store (with
    /// `alone`, nothing else will stand there).
    pub(super) async fn check_after(
        &self,
        specs: &[JobSpec],
        alone: bool,
    ) -> Result<(), ControlError> {
        if specs.iter().all(|spec| spec.after.is_empty()) {
            return Ok(());
        }
        let mut known: Known = specs
            .iter()
            .map(|spec| (spec.id.clone(), Some(spec.after.clone())))
            .collect();
        let mut open: Vec<String> = specs.iter().flat_map(|spec| spec.after.clone()).collect();
        let limit = known.len() + MAX_LOOKED_AT;
        while let Some(id) = open.pop() {
            if known.contains_key(&id) || known.len() >= limit {
                continue;
            }
            let after = if alone {
                None
            } else {
                self.after_of(&id).await?
            };
            open.extend(after.iter().flatten().cloned());
            known.insert(id, after);
        }
        let findings: Vec<(String, SpecError)> = specs
            .iter()
            .flat_map(|spec| findings(spec, &known))
            .collect();
        if findings.is_empty() {
            Ok(())
        } else {
            Err(ControlError::Invalid(findings))
        }
    }

    /// What a job of the store runs after; nothing when its definition cannot be read.
    async fn after_of(&self, id: &str) -> Result<Option<Vec<String>>, ControlError> {
        let partition = partition_of(id, self.meta().await?.partitions);
        let Some(entry) = self.store.get(&self.keys.job(partition, id)).await? else {
            return Ok(None);
        };
        let Ok(record) = decode::<JobRecord>(&entry.value) else {
            return Ok(Some(Vec::new()));
        };
        let key = self.keys.def(partition, id, record.generation);
        let definition = self.store.get(&key).await?;
        let spec = definition.and_then(|entry| decode::<JobSpec>(&entry.value).ok());
        Ok(Some(spec.map(|spec| spec.after).unwrap_or_default()))
    }

    /// The jobs that run after this one.
    pub(super) async fn followers(&self, id: &str) -> Result<Vec<String>, ControlError> {
        let (markers, _) = self.store.list(&self.keys.followers_of(id), None).await?;
        let mut followers = Vec::new();
        for marker in &markers {
            if let Some((_, follower)) = self.keys.parse_follower(&marker.key)
                && let Some(after) = self.after_of(&follower).await?
                && after.iter().any(|job| job == id)
            {
                followers.push(follower);
            }
        }
        Ok(followers)
    }
}

fn findings(spec: &JobSpec, known: &Known) -> Vec<(String, SpecError)> {
    let mut findings = Vec::new();
    for (index, job) in spec.after.iter().enumerate() {
        let path = format!("after[{index}]");
        if matches!(known.get(job), Some(None)) {
            let missing = SpecError::new(path, format!("there is no job `{job}`"))
                .hint("define it in the same file, or apply its own file first");
            findings.push((spec.id.clone(), missing));
        } else if let Some(way) = way(job, &spec.id, known) {
            let circle = SpecError::new(path, format!("a circle: {} -> {way}", spec.id))
                .hint("each of these jobs would start the next one for ever");
            findings.push((spec.id.clone(), circle));
        }
    }
    findings
}

/// How `from` runs after `to`, if it does: `b -> c -> a`.
fn way(from: &str, to: &str, known: &Known) -> Option<String> {
    let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
    let mut open = vec![from];
    while let Some(job) = open.pop() {
        if job == to {
            let mut steps = vec![job];
            while let Some(before) = steps.last().and_then(|step| came_from.get(step)) {
                steps.push(before);
            }
            steps.reverse();
            return Some(steps.join(" -> "));
        }
        for next in known.get(job).into_iter().flatten().flatten() {
            if next != from && !came_from.contains_key(next.as_str()) {
                came_from.insert(next, job);
                open.push(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(id: &str, after: &[&str]) -> JobSpec {
        JobSpec {
            after: after.iter().map(|job| (*job).to_owned()).collect(),
            ..JobSpec::handler(id, "h")
        }
    }

    fn wrong(specs: &[JobSpec], stands: &[(&str, &[&str])]) -> Vec<String> {
        let mut known: Known = stands
            .iter()
            .map(|(id, after)| {
                let after = after.iter().map(|job| (*job).to_owned()).collect();
                ((*id).to_owned(), Some(after))
            })
            .collect();
        known.insert("none".into(), None);
        for spec in specs {
            known.insert(spec.id.clone(), Some(spec.after.clone()));
        }
        let all = specs.iter().flat_map(|spec| findings(spec, &known));
        all.map(|(id, finding)| format!("{id}: {finding}"))
            .collect()
    }

    #[test]
    fn what_is_missing_and_what_goes_round_is_named() {
        assert_eq!(wrong(&[spec("b", &["a"]), spec("a", &[])], &[]), [""; 0]);
        assert_eq!(
            wrong(&[spec("b", &["none"])], &[]),
            ["b: after[0]: there is no job `none`"]
        );
        assert_eq!(
            wrong(
                &[spec("a", &["x", "c"])],
                &[("x", &[]), ("c", &["b"]), ("b", &["a", "x"])]
            ),
            ["a: after[1]: a circle: a -> c -> b -> a"]
        );
        // A diamond is no circle, and a circle elsewhere is not this job's.
        let diamond: &[(&str, &[&str])] = &[("b", &["a"]), ("c", &["a"]), ("a", &[])];
        assert_eq!(wrong(&[spec("d", &["b", "c"])], diamond), [""; 0]);
        let elsewhere: &[(&str, &[&str])] = &[("b", &["c"]), ("c", &["b"])];
        assert_eq!(wrong(&[spec("d", &["b"])], elsewhere), [""; 0]);
    }
}
