//! An etcd, and namespaces on it, each for one measurement.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use punctual::backend::CoordinationBackend;
use punctual::bootstrap::bootstrap;
use punctual::control::Control;
use punctual::duration::Millis;
use punctual::env::{SharedEnv, TokioEnv};
use punctual::job::record::{RunRecord, decode};
use punctual::job::spec::{JobSpec, Misfire};
use punctual::keys::{Keys, partition_of};
use punctual::recipe::retry::Store;
use punctual::schedule::ScheduleSpec;
use punctual::time::rfc3339_ms;
use punctual_tests::etcd::{Etcd, EtcdCluster};

use crate::counted::wall_ms;
use crate::nodes::{HANDLER, connect};

/// Long enough for any listing of a benchmark.
const TIMEOUT_MS: u64 = 60_000;
/// Partitions whose jobs are created at the same time.
const PARTS_AT_ONCE: usize = 3;

enum Source {
    Given,
    One(Etcd),
    Three(#[allow(dead_code, reason = "lives as long as this")] EtcdCluster),
}

/// The etcd of a run of the benchmark.
pub(crate) struct Stage {
    pub(crate) etcd: String,
    pub(crate) members: usize,
    source: Source,
}

impl Stage {
    /// The process of an etcd of our own that has one member.
    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.source {
            Source::One(etcd) => Some(etcd.pid()),
            Source::Given | Source::Three(_) => None,
        }
    }

    /// The given etcd, or one of our own with so many members.
    pub(crate) fn open(given: Option<&str>, members: usize) -> Self {
        // A million jobs take more than etcd's two gigabytes.
        let options = ["--quota-backend-bytes=8589934592", "--snapshot-count=10000"];
        match (given, members) {
            (Some(given), _) => Self {
                etcd: given.to_owned(),
                members: given.split(',').count(),
                source: Source::Given,
            },
            (None, 1) => {
                let etcd = Etcd::start_with(&options);
                Self {
                    etcd: etcd.endpoint(),
                    members,
                    source: Source::One(etcd),
                }
            }
            (None, _) => {
                let etcd = EtcdCluster::start(members);
                Self {
                    etcd: etcd.endpoints().join(","),
                    members,
                    source: Source::Three(etcd),
                }
            }
        }
    }

    /// A namespace that nobody has used.
    pub(crate) async fn namespace(&self, purpose: &str) -> Result<Namespace, String> {
        let env: SharedEnv = TokioEnv::shared();
        let name = format!("{purpose}-{:08x}", env.random_u64() >> 32);
        let backend = connect(&self.etcd).await?;
        let store = Store::new(backend.clone(), env.clone(), TIMEOUT_MS).unreported();
        let keys = Keys::new(&name);
        let meta = bootstrap(&store, &keys).await.map_err(text)?;
        Ok(Namespace {
            control: Control::new(backend.clone(), env, &name),
            partitions: meta.partitions,
            name,
            keys,
            backend,
            store,
        })
    }
}

/// A namespace of its own.
pub(crate) struct Namespace {
    pub(crate) name: String,
    pub(crate) keys: Keys,
    pub(crate) backend: Arc<dyn CoordinationBackend>,
    control: Control,
    store: Store,
    partitions: u16,
}

/// When jobs fire: every second from `from_s` (not included) to `to_s` (included), Unix seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from_s: i64,
    pub(crate) to_s: i64,
}

impl Window {
    /// Of so many seconds, beginning soon.
    pub(crate) fn of(seconds: i64) -> Self {
        Self::from(wall_ms() / 1_000 + 2, seconds)
    }

    /// Of so many seconds from there on.
    pub(crate) fn from(from_s: i64, seconds: i64) -> Self {
        Self {
            from_s,
            to_s: from_s + seconds,
        }
    }

    pub(crate) fn instants(self) -> usize {
        usize::try_from(self.to_s - self.from_s).unwrap_or(0)
    }

    /// Waits until its last instant has passed.
    pub(crate) async fn passed(self) {
        let left = self.to_s * 1_000 - wall_ms();
        let left = u64::try_from(left).unwrap_or(0);
        tokio::time::sleep(Duration::from_millis(left + 5)).await;
    }
}

/// A job that fires each second of the window, and does nothing.
pub(crate) fn each_second(id: String, window: Window) -> JobSpec {
    let mut job = JobSpec::handler(id, HANDLER);
    job.schedule = ScheduleSpec {
        every: Some(Millis::from_secs(1)),
        start: Some(rfc3339_ms(window.from_s * 1_000)),
        end: Some(rfc3339_ms(window.to_s * 1_000)),
        ..ScheduleSpec::default()
    };
    // What is measured must be there to be checked afterwards.
    job.history.keep_success = 1_000;
    // However late it is decided, each instant has a run of its own.
    job.misfire = Misfire::All;
    job
}

/// What the store holds of a window's runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Audit {
    pub(crate) runs: usize,
    pub(crate) missed: usize,
    pub(crate) duplicates: usize,
}

impl Audit {
    pub(crate) fn add(&mut self, other: Self) {
        self.runs += other.runs;
        self.missed += other.missed;
        self.duplicates += other.duplicates;
    }

    /// An error when anything was missed or doubled.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        match (self.missed, self.duplicates) {
            (0, 0) if self.runs > 0 => Ok(()),
            _ => Err(format!("something was missed or doubled: {self:?}")),
        }
    }
}

impl Namespace {
    /// Creates the jobs.
    pub(crate) async fn apply(&self, jobs: Vec<JobSpec>) -> Result<(), String> {
        self.apply_with(jobs, &|_| {}).await
    }

    /// Creates the jobs, partition by partition, so that each is read once; tells of progress.
    pub(crate) async fn apply_with(
        &self,
        jobs: Vec<JobSpec>,
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<(), String> {
        let mut parts: BTreeMap<u16, Vec<JobSpec>> = BTreeMap::new();
        for job in jobs {
            let partition = partition_of(&job.id, self.partitions);
            parts.entry(partition).or_default().push(job);
        }
        let apply = |part: Vec<JobSpec>| async move {
            let count = part.len();
            let applied = self.control.apply(part, false, &|_, _| {}).await;
            applied.map_err(|error| format!("{error:?}"))?;
            Ok::<usize, String>(count)
        };
        let mut applied = stream::iter(parts.into_values().map(apply)).buffered(PARTS_AT_ONCE);
        let mut done = 0;
        while let Some(count) = applied.try_next().await? {
            done += count;
            progress(done);
        }
        Ok(())
    }

    /// The records of these jobs, ended or not.
    async fn records(&self, jobs: &[String]) -> Result<Vec<RunRecord>, String> {
        let mut records = Vec::new();
        for job in jobs {
            let partition = partition_of(job, self.partitions);
            let spans = [
                self.keys.runs_of(partition, job),
                self.keys.done_of(partition, job),
            ];
            for span in spans {
                let (entries, _) = self.store.list(&span, None).await.map_err(text)?;
                for entry in entries {
                    records.push(decode(&entry.value).map_err(text)?);
                }
            }
        }
        Ok(records)
    }

    /// Waits until each of these jobs has had all its runs, and all have ended.
    pub(crate) async fn ended(
        &self,
        jobs: &[String],
        window: Window,
        patience: Duration,
    ) -> Result<Vec<RunRecord>, String> {
        let begun = Instant::now();
        loop {
            let records = self.records(jobs).await?;
            let ended = records.iter().filter(|record| record.ended_ms.is_some());
            let ended = ended.count();
            if ended >= jobs.len() * window.instants() {
                return Ok(records);
            }
            if begun.elapsed() > patience {
                let all = records.len();
                let wanted = jobs.len() * window.instants();
                return Err(format!(
                    "{ended} of {all} runs ended after {patience:?}, and {wanted} were expected"
                ));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Whether a run of the job has been decided since it was created.
    pub(crate) async fn has_fired(&self, job: &str) -> Result<bool, String> {
        let records = self.records(&[job.to_owned()]).await?;
        Ok(!records.is_empty())
    }

    /// Looks at every record.
    pub(crate) async fn audit(&self, jobs: &[String], window: Window) -> Result<Audit, String> {
        let mut records = Vec::new();
        for span in [self.keys.runs(), self.keys.all_done()] {
            let (entries, _) = self.store.list(&span, None).await.map_err(text)?;
            for entry in entries {
                records.push(decode(&entry.value).map_err(text)?);
            }
        }
        Ok(audit_of(jobs, window, &records))
    }
}

/// Each of `jobs` has each instant of the window once, and no other one.
pub(crate) fn audit_of(jobs: &[String], window: Window, records: &[RunRecord]) -> Audit {
    let mut found: BTreeMap<&str, BTreeMap<i64, usize>> = BTreeMap::new();
    for record in records {
        let instants = found.entry(&record.job).or_default();
        *instants.entry(record.scheduled_ms).or_default() += 1;
    }
    let mut audit = Audit::default();
    for job in jobs {
        let instants = found.remove(job.as_str()).unwrap_or_default();
        for second in window.from_s + 1..=window.to_s {
            match instants.get(&(second * 1_000)) {
                None => audit.missed += 1,
                Some(times) => {
                    audit.runs += 1;
                    audit.duplicates += times - 1;
                }
            }
        }
        audit.duplicates += instants.len().saturating_sub(window.instants());
    }
    audit
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
