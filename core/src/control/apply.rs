//! Many definitions at once.
//!
//! Everything is checked before the first write. Then the jobs are written in atomic groups,
//! partition by partition; an apply that is interrupted is finished by doing it again.
//!
//! What it costs follows from the jobs that are named, not from those that stand beside them (with
//! `prune`, which looks for these, from both).

use std::collections::{BTreeMap, BTreeSet};

use crate::backend::limits;
use crate::job::spec::{JobSpec, SpecError};
use crate::keys::partition_of;
use crate::schedule::{Calendars, Schedule};

use super::change::{self, Change};
use super::read::Partition;
use super::types::{ApplyReport, ControlError, PutOutcome};
use super::{Control, MAX_CONFLICTS, Made, busy};

/// Jobs in one transaction: four writes each, below the limit of 128.
const JOBS_A_REQUEST: usize = 25;
/// Findings that are reported; a generated file may have a hundred thousand of one kind.
const MAX_FINDINGS: usize = 1_000;

/// Told of progress: jobs done, jobs in all.
type Progress<'a> = &'a (dyn Fn(usize, usize) + Send + Sync);

enum Wanted<'a> {
    Put(&'a JobSpec),
    Delete(String),
}

impl Wanted<'_> {
    fn id(&self) -> &str {
        match self {
            Self::Put(spec) => &spec.id,
            Self::Delete(id) => id,
        }
    }
}

/// How far an apply has come.
struct Way {
    /// Named jobs that it has not come to.
    remain: BTreeSet<String>,
    report: ApplyReport,
    write: bool,
}

impl Way {
    fn done(&mut self, group: &[Wanted<'_>], part: ApplyReport) {
        for wanted in group {
            self.remain.remove(wanted.id());
        }
        self.report.add(part);
    }

    /// It ends here: as if nothing had happened, if that is so.
    fn cut_off(self, why: ControlError) -> ControlError {
        if !self.write || self.report.changes_nothing() {
            return why;
        }
        ControlError::HalfWay {
            remain: self.remain.into_iter().collect(),
            why: Box::new(why),
        }
    }
}

impl Control {
    /// What an apply would do.
    ///
    /// # Errors
    /// As [`Control::apply`].
    pub async fn plan_apply(
        &self,
        specs: &[JobSpec],
        prune: bool,
    ) -> Result<ApplyReport, ControlError> {
        self.run_apply(specs, prune, false, &|_, _| {}).await
    }

    /// Makes the store's jobs those of `specs`; with `prune`, and no others.
    ///
    /// # Errors
    /// [`ControlError::HalfWay`] when some of it is written; all others before anything is.
    pub async fn apply(
        &self,
        specs: Vec<JobSpec>,
        prune: bool,
        progress: Progress<'_>,
    ) -> Result<ApplyReport, ControlError> {
        // Some findings depend on what stands in the store: a schedule that has had its time is
        // fine for a job that is there, and refused for a new one. All of them come before the
        // first write.
        let now_ms = self.now_ms();
        if specs.iter().any(|spec| depends_on_the_store(spec, now_ms)) {
            self.run_apply(&specs, prune, false, &|_, _| {}).await?;
        }
        self.run_apply(&specs, prune, true, progress).await
    }

    async fn run_apply(
        &self,
        specs: &[JobSpec],
        prune: bool,
        write: bool,
        progress: Progress<'_>,
    ) -> Result<ApplyReport, ControlError> {
        check(specs, self.now_ms())?;
        self.check_after(specs, prune).await?;
        let specs: Vec<JobSpec> = specs
            .iter()
            .map(|spec| spec.clone().with_dialect_decided())
            .collect();
        let partitions = self.meta().await?.partitions;
        let mut by_partition: BTreeMap<u16, Vec<&JobSpec>> = BTreeMap::new();
        for spec in &specs {
            by_partition
                .entry(partition_of(&spec.id, partitions))
                .or_default()
                .push(spec);
        }
        let mut way = Way {
            remain: specs.iter().map(|spec| spec.id.clone()).collect(),
            report: ApplyReport::default(),
            write,
        };
        for number in 0..partitions {
            let ours = by_partition.remove(&number).unwrap_or_default();
            if ours.is_empty() && !prune {
                continue;
            }
            let told = |remain| progress(specs.len() - remain, specs.len());
            if let Err(why) = self.go(number, &ours, prune, &mut way, &told).await {
                return Err(way.cut_off(why));
            }
        }
        let mut report = way.report;
        report.created.sort_unstable();
        report.updated.sort_unstable();
        report.deleted.sort_unstable();
        Ok(report)
    }

    /// Goes through one partition.
    async fn go(
        &self,
        number: u16,
        ours: &[&JobSpec],
        prune: bool,
        way: &mut Way,
        remain: &(dyn Fn(usize) + Send + Sync),
    ) -> Result<(), ControlError> {
        let (store, keys) = (&self.store, &self.keys);
        let mut partition = match prune {
            true => Partition::load(store, keys, number).await?,
            false => Partition::load_for(store, keys, number, ours.len()).await?,
        };
        let mut wanted: Vec<Wanted<'_>> = ours.iter().copied().map(Wanted::Put).collect();
        if prune {
            let kept: BTreeSet<&str> = ours.iter().map(|spec| spec.id.as_str()).collect();
            let surplus = partition.ids().filter(|id| !kept.contains(id.as_str()));
            wanted.extend(surplus.cloned().map(Wanted::Delete));
        }
        for group in wanted.chunks(JOBS_A_REQUEST) {
            self.group(&mut partition, group, way).await?;
            remain(way.remain.len());
        }
        Ok(())
    }

    /// Commits one group, planned anew after a conflict.
    async fn group(
        &self,
        partition: &mut Partition,
        group: &[Wanted<'_>],
        way: &mut Way,
    ) -> Result<(), ControlError> {
        let (store, keys) = (&self.store, &self.keys);
        let ids: Vec<&str> = group.iter().map(Wanted::id).collect();
        for _ in 0..MAX_CONFLICTS {
            partition.look_at(store, keys, &ids).await?;
            let now_ms = if way.write {
                self.change_ms().await?
            } else {
                self.now_ms()
            };
            let (changes, part) = self.plan_group(partition, group, now_ms)?;
            if changes.is_empty() || !way.write {
                way.done(group, part);
                return Ok(());
            }
            let name = self.name();
            let txn = change::transaction(&self.keys, &partition.heads, &changes, name);
            if limits::check_txn(&txn).is_err() && group.len() > 1 {
                // Large payloads: in halves.
                let (left, right) = group.split_at(group.len() / 2);
                Box::pin(self.group(partition, left, way)).await?;
                return Box::pin(self.group(partition, right, way)).await;
            }
            match self.make(&partition.heads, name, &txn).await? {
                Made::Now(revision) => {
                    partition.heads.changes =
                        change::next_changes(&partition.heads, &changes, name);
                    partition.heads.changes_revision = revision;
                    way.done(group, part);
                    return Ok(());
                }
                Made::Before => {
                    partition.read_anew(store, keys).await?;
                    way.done(group, part);
                    return Ok(());
                }
                Made::Not(heads) => partition.catch_up(store, keys, heads).await?,
            }
        }
        Err(busy())
    }

    fn plan_group(
        &self,
        partition: &Partition,
        group: &[Wanted<'_>],
        now_ms: i64,
    ) -> Result<(Vec<Change>, ApplyReport), ControlError> {
        let mut changes = Vec::new();
        let mut report = ApplyReport::default();
        for wanted in group {
            match wanted {
                Wanted::Put(spec) => {
                    let current = partition.current(&spec.id);
                    let (outcome, change) =
                        change::put(&self.keys, &partition.heads, &current, spec, now_ms)?;
                    match outcome {
                        PutOutcome::Created => report.created.push(spec.id.clone()),
                        PutOutcome::Updated => report.updated.push(spec.id.clone()),
                        PutOutcome::Unchanged => report.unchanged += 1,
                    }
                    changes.extend(change);
                }
                Wanted::Delete(id) => {
                    if let Some(job) = partition.current(id).job {
                        changes.push(change::delete(&self.keys, &partition.heads, &job, now_ms));
                        report.deleted.push(id.clone());
                    }
                }
            }
        }
        Ok((changes, report))
    }
}

impl ApplyReport {
    fn changes_nothing(&self) -> bool {
        self.created.is_empty() && self.updated.is_empty() && self.deleted.is_empty()
    }

    fn add(&mut self, part: Self) {
        self.created.extend(part.created);
        self.updated.extend(part.updated);
        self.deleted.extend(part.deleted);
        self.unchanged += part.unchanged;
    }
}

fn depends_on_the_store(spec: &JobSpec, now_ms: i64) -> bool {
    let late_at = spec.schedule.at.is_some() && spec.start_deadline.is_some();
    late_at || Schedule::check(&spec.schedule, now_ms, &Calendars::default()).is_err()
}

/// Checks everything; one bad job rejects the whole apply.
fn check(specs: &[JobSpec], now_ms: i64) -> Result<(), ControlError> {
    let mut findings: Vec<(String, SpecError)> = Vec::new();
    let mut ids = BTreeSet::new();
    for spec in specs {
        if let Err(errors) = spec.check(&Calendars::default(), now_ms) {
            findings.extend(errors.into_iter().map(|e| (spec.id.clone(), e)));
        }
        if !ids.insert(spec.id.as_str()) {
            let twice = SpecError::new("id", "defined twice").hint("ids are unique");
            findings.push((spec.id.clone(), twice));
        }
        if findings.len() >= MAX_FINDINGS {
            break;
        }
    }
    if findings.is_empty() {
        Ok(())
    } else {
        Err(ControlError::Invalid(findings))
    }
}
