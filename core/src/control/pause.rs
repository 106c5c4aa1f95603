//! Pausing and resuming: one job, or all of them.

use crate::backend::{BackendError, limits};
use crate::job::record::Paused;
use crate::job::spec::SpecError;

use super::change;
use super::hold::{self, Scope};
use super::read::Partition;
use super::types::{AllReport, ControlError, JobObject, PauseWish};
use super::{Control, MAX_CONFLICTS, Made, busy};

/// Jobs in one transaction: two writes each, far below the limit of 128.
const JOBS_A_REQUEST: usize = 25;
/// A change of all jobs stops after so long, and says what remains: whoever asked still waits.
const ALL_MS: u64 = 15_000;

/// What is done to all jobs.
#[derive(Clone, Debug)]
enum Bulk {
    Pause(PauseWish),
    Resume,
}

impl Control {
    /// Holds the job: no run is created until it is resumed, or until the wish ends; then it fires
    /// again by itself. Once acknowledged this is final. A job that is paused already is paused for
    /// the longer of both times.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Invalid`] when `until` has passed;
    /// [`ControlError::Store`].
    pub async fn pause_job(&self, id: &str, wish: PauseWish) -> Result<JobObject, ControlError> {
        self.change_existing(id, |heads, job, now_ms| {
            let wish = paused(id, &wish, now_ms)?;
            hold::pause(&self.keys, heads, job, Scope::Job, &wish, now_ms)
        })
        .await?;
        self.changed_job(id).await
    }

    /// Lets the job fire again, also when all jobs are paused. Instants that passed meanwhile stay
    /// skipped.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Store`].
    pub async fn resume_job(&self, id: &str) -> Result<JobObject, ControlError> {
        self.change_existing(id, |heads, job, now_ms| {
            hold::resume(&self.keys, heads, job, Scope::Job, now_ms)
        })
        .await?;
        self.changed_job(id).await
    }

    /// Holds every job that there is, in batches; jobs that are made later fire. This hold stands
    /// beside the one of [`Control::pause_job`], and ends apart from it.
    ///
    /// # Errors
    /// As [`Control::pause_job`], when nothing was changed yet; later, the report says what remains.
    pub async fn pause_all(&self, wish: PauseWish) -> Result<AllReport, ControlError> {
        self.all(&Bulk::Pause(wish)).await
    }

    /// Ends the hold of [`Control::pause_all`], in batches. Jobs that were paused one by one stay so.
    ///
    /// # Errors
    /// As [`Control::pause_all`].
    pub async fn resume_all(&self) -> Result<AllReport, ControlError> {
        self.all(&Bulk::Resume).await
    }

    async fn all(&self, bulk: &Bulk) -> Result<AllReport, ControlError> {
        let partitions = self.meta().await?.partitions;
        let now_ms = self.change_ms().await?;
        if let Bulk::Pause(wish) = bulk {
            paused("*", wish, now_ms)?;
        }
        let give_up_ms = self.store.env().monotonic_ms() + ALL_MS;
        let mut report = AllReport::default();
        let mut damaged = None;
        for number in 0..partitions {
            let loaded = Partition::load(&self.store, &self.keys, number).await;
            let mut partition = match loaded {
                Ok(partition) => partition,
                // Nothing fires there; the others are not to wait for its repair.
                Err(error @ ControlError::Store(BackendError::Broken(_))) => {
                    damaged = Some(error);
                    continue;
                }
                // How many jobs it holds is not known: at least one, so that nobody takes it for done.
                Err(error) if report.has_begun() => {
                    report.stop(1, &error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let ids: Vec<String> = partition.ids().cloned().collect();
            let mut rest = ids.chunks(JOBS_A_REQUEST);
            while let Some(group) = rest.next() {
                let left = || group.len() + rest.clone().map(<[String]>::len).sum::<usize>();
                if self.store.env().monotonic_ms() >= give_up_ms || report.interrupted.is_some() {
                    report.remaining += left();
                    break;
                }
                let done = self.group_of_all(&mut partition, group, bulk).await;
                match done {
                    Ok(part) => report.add(part),
                    Err(error) if report.has_begun() => {
                        let left = left();
                        report.stop(left, &error);
                        break;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        match damaged {
            Some(error) if report.changed + report.unchanged == 0 => Err(error),
            Some(error) => {
                report.stop(1, &error);
                Ok(report)
            }
            None => Ok(report),
        }
    }

    /// Commits one group, planned anew after a conflict.
    async fn group_of_all(
        &self,
        partition: &mut Partition,
        group: &[String],
        bulk: &Bulk,
    ) -> Result<AllReport, ControlError> {
        for _ in 0..MAX_CONFLICTS {
            let now_ms = self.believed_ms()?;
            let (changes, part) = self.plan_all(partition, group, bulk, now_ms)?;
            if changes.is_empty() {
                return Ok(part);
            }
            let name = self.name();
            let txn = change::transaction(&self.keys, &partition.heads, &changes, name);
            if limits::check_txn(&txn).is_err() && group.len() > 1 {
                let (left, right) = group.split_at(group.len() / 2);
                let mut report = Box::pin(self.group_of_all(partition, left, bulk)).await?;
                report.add(Box::pin(self.group_of_all(partition, right, bulk)).await?);
                return Ok(report);
            }
            match self.make(&partition.heads, name, &txn).await? {
                Made::Now(revision) => {
                    partition.heads.changes =
                        change::next_changes(&partition.heads, &changes, name);
                    partition.heads.changes_revision = revision;
                    return Ok(part);
                }
                Made::Before => {
                    let number = partition.heads.partition;
                    *partition = Partition::load(&self.store, &self.keys, number).await?;
                    return Ok(part);
                }
                Made::Not(heads) => {
                    let number = heads.partition;
                    if heads.changes_revision == partition.heads.changes_revision {
                        // Only the cursor moved: no job changed.
                        partition.heads = heads;
                    } else {
                        *partition = Partition::load(&self.store, &self.keys, number).await?;
                    }
                }
            }
        }
        Err(busy())
    }

    fn plan_all(
        &self,
        partition: &Partition,
        group: &[String],
        bulk: &Bulk,
        now_ms: i64,
    ) -> Result<(Vec<change::Change>, AllReport), ControlError> {
        let mut changes = Vec::new();
        let mut report = AllReport::default();
        for id in group {
            let current = partition.current(id);
            let Some(job) = &current.job else {
                // Deleted meanwhile, or unreadable: that one fires nothing either.
                if current.modified.is_some() {
                    report.left_out.push(id.clone());
                }
                continue;
            };
            let heads = &partition.heads;
            let change = match bulk {
                Bulk::Pause(wish) => {
                    let wish = paused(id, wish, now_ms)?;
                    hold::pause(&self.keys, heads, job, Scope::All, &wish, now_ms)?
                }
                Bulk::Resume => hold::resume(&self.keys, heads, job, Scope::All, now_ms)?,
            };
            match change {
                Some(change) => {
                    changes.push(change);
                    report.changed += 1;
                }
                None => report.unchanged += 1,
            }
        }
        Ok((changes, report))
    }
}

impl AllReport {
    fn add(&mut self, part: Self) {
        self.changed += part.changed;
        self.unchanged += part.unchanged;
        self.left_out.extend(part.left_out);
        self.remaining += part.remaining;
    }

    fn has_begun(&self) -> bool {
        self.changed > 0
    }

    fn stop(&mut self, left: usize, error: &ControlError) {
        self.remaining += left;
        let why = match error {
            ControlError::Store(BackendError::Broken(_)) => {
                "a partition cannot be read: `punctual doctor` says which".into()
            }
            // Its own words may name its keys.
            ControlError::Store(_) => "the store went away".into(),
            error => error.to_string(),
        };
        self.interrupted.get_or_insert(why);
    }
}

/// The hold that a wish makes now.
fn paused(id: &str, wish: &PauseWish, now_ms: i64) -> Result<Paused, ControlError> {
    if wish.until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
        let past = SpecError::new("until", "this time has passed")
            .hint("give a later time, or leave it out to pause until somebody resumes");
        return Err(ControlError::Invalid(vec![(id.to_owned(), past)]));
    }
    Ok(Paused {
        since_ms: now_ms,
        until_ms: wish.until_ms,
        by: wish.by.clone(),
        reason: wish.reason.clone(),
    })
}
