//! Operations on one job.

use crate::job::record::{DelayRecord, decode};
use crate::job::spec::JobSpec;
use crate::job::{Definition, Job};
use crate::leader::delay::{ChainEnd, chain_end, due_ms};
use crate::schedule::{Calendars, Schedule, ScheduleKind};

use super::change::{self, Change, Current, Heads};
use super::objects::job_object;
use super::types::{ControlError, JobObject, PageOf, PutOutcome};
use super::{Control, IfMatch, MAX_CONFLICTS, Made, busy, read};

impl Control {
    /// Creates the job, or gives it a new definition. Writes nothing when the definition stands.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] with every finding; [`ControlError::Conflict`] when `if_match`
    /// does not hold; [`ControlError::Store`] when the store is away.
    pub async fn put_job(
        &self,
        spec: JobSpec,
        if_match: Option<IfMatch>,
    ) -> Result<(PutOutcome, JobObject), ControlError> {
        let now_ms = self.now_ms();
        spec.check(&Calendars::default(), now_ms)
            .map_err(|findings| {
                ControlError::Invalid(findings.into_iter().map(|f| (spec.id.clone(), f)).collect())
            })?;
        self.check_after(std::slice::from_ref(&spec), false).await?;
        let spec = spec.with_dialect_decided();
        let outcome = self
            .change(&spec.id, |heads, current, now_ms| {
                let stands = current.modified.map(|revision| revision.0);
                match if_match {
                    Some(IfMatch::Absent) if stands.is_some() => {
                        return Err(ControlError::Conflict(format!("job `{}` exists", spec.id)));
                    }
                    Some(IfMatch::Revision(revision)) if stands != Some(revision) => {
                        return Err(ControlError::Conflict(format!(
                            "job `{}` has changed meanwhile: read it again",
                            spec.id
                        )));
                    }
                    _ => {}
                }
                change::put(&self.keys, heads, current, &spec, now_ms)
            })
            .await?;
        Ok((outcome, self.changed_job(&spec.id).await?))
    }

    /// The job as it stands after a change that was made.
    pub(super) async fn changed_job(&self, id: &str) -> Result<JobObject, ControlError> {
        self.job(id).await.map_err(|error| match error {
            // Whoever hears "not found" would take the change for not made.
            ControlError::NotFound(_) => ControlError::Conflict(format!(
                "the change was made, and job `{id}` was deleted by somebody else right after it"
            )),
            error => error,
        })
    }

    /// Plans a change from what stands, and commits it; plans it anew after a conflict.
    async fn change<T>(
        &self,
        id: &str,
        plan: impl Fn(&Heads, &Current, i64) -> Result<(T, Option<Change>), ControlError>,
    ) -> Result<T, ControlError> {
        let partition = self.partition(id).await?;
        self.change_ms().await?;
        for _ in 0..MAX_CONFLICTS {
            let heads = read::heads(&self.store, &self.keys, partition).await?;
            let current = read::current(&self.store, &self.keys, partition, id).await?;
            let (outcome, change) = plan(&heads, &current, self.believed_ms()?)?;
            let Some(change) = change else {
                return Ok(outcome);
            };
            let name = self.name();
            let txn = change::transaction(&self.keys, &heads, &[change], name);
            match self.make(&heads, name, &txn).await? {
                Made::Now(_) | Made::Before => return Ok(outcome),
                Made::Not(_) => {}
            }
        }
        Err(busy())
    }

    /// Plans a change of a job that must exist.
    pub(super) async fn change_existing(
        &self,
        id: &str,
        plan: impl Fn(&Heads, &Job, i64) -> Result<Option<Change>, ControlError>,
    ) -> Result<(), ControlError> {
        self.change(id, |heads, current, now_ms| {
            let job = existing(id, current)?;
            Ok(((), plan(heads, job, now_ms)?))
        })
        .await
    }

    /// The job.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Store`].
    pub async fn job(&self, id: &str) -> Result<JobObject, ControlError> {
        let partition = self.partition(id).await?;
        let current = read::current(&self.store, &self.keys, partition, id).await?;
        let job = existing(id, &current)?;
        self.describe(partition, job).await
    }

    async fn describe(&self, partition: u16, job: &Job) -> Result<JobObject, ControlError> {
        let span = self.keys.runs_of(partition, &job.id);
        let (active, _) = self.store.list(&span, None).await?;
        let next_ms = self.next_in_chain(partition, job).await?;
        job_object(job, active.len(), next_ms, self.now_ms()).ok_or_else(|| {
            ControlError::Conflict(format!(
                "the definition of job `{}` cannot be read by this version; apply it again",
                job.id
            ))
        })
    }

    /// When a job that runs some time after its last run is due next, while it waits for that.
    async fn next_in_chain(&self, partition: u16, job: &Job) -> Result<Option<i64>, ControlError> {
        let schedule = job.definition().map(|definition| &definition.schedule);
        let kind = schedule.map(Schedule::kind);
        if !matches!(kind, Some(ScheduleKind::AfterFinish(_))) {
            return Ok(None);
        }
        let Some(entry) = self.store.get(&self.keys.delay(&job.id)).await? else {
            return Ok(None);
        };
        let Ok(record) = decode::<DelayRecord>(&entry.value) else {
            return Ok(None);
        };
        let now_ms = self.now_ms();
        let (store, keys) = (&self.store, &self.keys);
        let end = chain_end(store, keys, partition, &job.id, &record, now_ms).await?;
        Ok(match end {
            ChainEnd::Alive => None,
            ChainEnd::At(since_ms) => due_ms(job, &record, since_ms),
            ChainEnd::Unknown(_) => due_ms(job, &record, now_ms),
        })
    }

    /// Jobs in the order of their ids, behind `cursor` (the id of the last one seen).
    ///
    /// # Errors
    /// [`ControlError::Store`].
    pub async fn jobs(
        &self,
        cursor: Option<&str>,
        limit: usize,
    ) -> Result<PageOf<JobObject>, ControlError> {
        let meta = self.meta().await?;
        // The partitions are sorted each by itself: merge a page of each.
        let mut found = Vec::new();
        for partition in 0..meta.partitions {
            let mut span = self.keys.jobs_of(partition);
            span = match cursor {
                Some(id) => span.after(&self.keys.job(partition, id)),
                None => span.after(&self.keys.changes(partition)),
            };
            let page_limit = crate::backend::PageLimit {
                entries: limit + 1,
                ..crate::backend::PageLimit::default()
            };
            let page = self.store.range(&span, page_limit, None).await?;
            found.extend(page.entries.into_iter().filter_map(|entry| {
                let id = self.keys.parse_job(&entry.key)?.1?;
                Some((id, partition, entry))
            }));
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let more = found.len() > limit;
        found.truncate(limit);
        let next_cursor = found.last().filter(|_| more).map(|(id, ..)| id.clone());
        let mut items = Vec::new();
        for (id, partition, entry) in found {
            let job = read::read_job(&self.store, &self.keys, partition, &id, &entry).await?;
            match job {
                Some(job) => match self.describe(partition, &job).await {
                    Ok(object) => items.push(object),
                    Err(error) => tracing::warn!(id, %error, "left out of the listing"),
                },
                None => tracing::warn!(id, "left out of the listing: its record is unreadable"),
            }
        }
        Ok(PageOf { items, next_cursor })
    }

    /// Deletes the job. Runs that exist go on; no run is created afterwards.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Conflict`] when it does not stand at `if_match`,
    /// and while other jobs run after it.
    pub async fn delete_job(&self, id: &str, if_match: Option<u64>) -> Result<(), ControlError> {
        let followers = self.followers(id).await?;
        if !followers.is_empty() {
            return Err(ControlError::Conflict(format!(
                "job `{id}` is named under `after` of {}: change or delete these first",
                followers.join(", ")
            )));
        }
        self.change_existing(id, |heads, job, now_ms| {
            if if_match.is_some_and(|revision| revision != job.modified.0) {
                return Err(ControlError::Conflict(format!(
                    "job `{id}` has changed meanwhile: read it again"
                )));
            }
            Ok(Some(change::delete(&self.keys, heads, job, now_ms)))
        })
        .await
    }
}

/// The definition that a run by hand follows, if the job takes any now.
pub(super) fn ready(job: &Job, now_ms: i64) -> Result<&Definition, ControlError> {
    let id = &job.id;
    let definition = job.definition().ok_or_else(|| {
        ControlError::Conflict(format!(
            "the definition of job `{id}` cannot be read by this version; apply it again"
        ))
    })?;
    if job.record.paused_at(now_ms).is_some() {
        return Err(ControlError::Conflict(format!(
            "job `{id}` is paused: `punctual job resume {id}` first"
        )));
    }
    if !definition.spec.enabled {
        return Err(ControlError::Conflict(format!(
            "job `{id}` is disabled (`enabled: false` in its definition)"
        )));
    }
    Ok(definition)
}

pub(super) fn existing<'a>(id: &str, current: &'a Current) -> Result<&'a Job, ControlError> {
    match (&current.job, current.modified) {
        (Some(job), _) => Ok(job),
        (None, Some(_)) => Err(ControlError::Conflict(format!(
            "the record of job `{id}` cannot be read by this version; apply the job again"
        ))),
        (None, None) => Err(ControlError::NotFound(format!("there is no job `{id}`"))),
    }
}
