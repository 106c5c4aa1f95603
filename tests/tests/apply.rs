//! What an apply reads follows from the jobs that it names, not from those that stand beside them; and
//! whatever comes in between, it plans from what stands.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use punctual::backend::{
    BackendError, BackendResult, BatchOutcome, CoordinationBackend, Entry, Lease, LeaseId, Page,
    PageLimit, Requirement, Revision, Span, Txn, TxnOutcome, Watch,
};
use punctual::bootstrap::bootstrap;
use punctual::control::types::ApplyReport;
use punctual::control::{Control, ControlError};
use punctual::duration::Millis;
use punctual::env::{SharedEnv, TokioEnv};
use punctual::job::record::{ChangesRecord, GoneRecord, JobRecord, decode, encode};
use punctual::job::spec::JobSpec;
use punctual::keys::{Keys, partition_of};
use punctual::recipe::retry::Store;
use punctual_memory::MemoryBackend;

const NAMESPACE: &str = "apply";
const PARTITIONS: u16 = 16;
/// Beside so many no partition is read as a whole for the sake of one job.
const MANY: usize = 600;

/// What somebody else does before a request.
type Meanwhile = Box<dyn Fn(Control) -> tokio::task::JoinHandle<()> + Send + Sync>;

/// A store that counts, and lets somebody else go first at one request.
struct Watched {
    store: MemoryBackend,
    env: SharedEnv,
    requests: AtomicUsize,
    entries: AtomicUsize,
    before: Mutex<Option<(usize, Meanwhile)>>,
    /// From this request on it is broken.
    breaks_at: AtomicUsize,
}

impl Watched {
    async fn count(&self) -> BackendResult<()> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let meanwhile = self
            .before
            .lock()
            .unwrap()
            .take_if(|(before, _)| *before == number);
        if let Some((_, meanwhile)) = meanwhile {
            let other = Control::new(Arc::new(self.store.clone()), self.env.clone(), NAMESPACE);
            meanwhile(other).await.unwrap();
        }
        match number >= self.breaks_at.load(Ordering::SeqCst) {
            true => Err(BackendError::Broken("no space left".into())),
            false => Ok(()),
        }
    }

    fn answered(&self, entries: usize) {
        self.entries.fetch_add(entries, Ordering::SeqCst);
    }

    /// Requests, and the entries that were answered, since the last call.
    fn counts(&self) -> (usize, usize) {
        let take = |count: &AtomicUsize| count.swap(0, Ordering::SeqCst);
        (take(&self.requests), take(&self.entries))
    }
}

#[async_trait]
impl CoordinationBackend for Watched {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        self.count().await?;
        let page = self.store.range(span, limit, at).await?;
        self.answered(page.entries.len());
        Ok(page)
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        self.count().await?;
        let outcome = self.store.commit(txn).await?;
        if let TxnOutcome::Conflict { seen } = &outcome {
            self.answered(seen.iter().flatten().count());
        }
        Ok(outcome)
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        self.count().await?;
        self.store.commit_batch(guard, txns).await
    }

    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        self.store.grant(ttl_ms).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        self.store.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        self.store.revoke(lease).await
    }

    async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>> {
        self.store.watch(span, from).await
    }
}

struct Stage {
    watched: Arc<Watched>,
    keys: Keys,
    /// Through the store that counts.
    ours: Control,
    /// Past it.
    other: Control,
}

/// A namespace with so many jobs.
async fn stage(jobs: usize) -> Stage {
    let env: SharedEnv = TokioEnv::shared();
    let store = MemoryBackend::new(env.clone());
    let plain: Arc<dyn CoordinationBackend> = Arc::new(store.clone());
    let keys = Keys::new(NAMESPACE);
    bootstrap(&Store::new(plain.clone(), env.clone(), 2_000), &keys)
        .await
        .unwrap();
    let watched = Arc::new(Watched {
        store,
        env: env.clone(),
        requests: AtomicUsize::new(0),
        entries: AtomicUsize::new(0),
        before: Mutex::new(None),
        breaks_at: AtomicUsize::new(usize::MAX),
    });
    let stage = Stage {
        ours: Control::new(watched.clone(), env.clone(), NAMESPACE),
        other: Control::new(plain, env, NAMESPACE),
        watched,
        keys,
    };
    let beside = (0..jobs).map(|n| job(&format!("beside-{n}"), "0 5 * * *"));
    put(&stage.other, beside.collect()).await.unwrap();
    stage
}

impl Stage {
    async fn write(&self, txn: Txn) {
        let outcome = self.watched.store.commit(&txn).await.unwrap();
        assert!(outcome.applied().is_some(), "{outcome:?}");
    }

    /// All that stands of a job: keys, and what of the values does not tell the time.
    async fn stands(&self, id: &str) -> Vec<String> {
        let number = partition_of(id, PARTITIONS);
        let of = |entry: &Entry| {
            let key = String::from_utf8(entry.key.clone()).unwrap();
            if !key.split('/').any(|part| part == id) {
                return None;
            }
            if entry.key == self.keys.job(number, id)
                && let Ok(record) = decode::<JobRecord>(&entry.value)
            {
                let generations: Vec<u64> = record.segments.iter().map(|s| s.generation).collect();
                let (version, newest) = (record.version, record.generation);
                return Some(format!(
                    "{key}: version {version}, {newest} of {generations:?}"
                ));
            }
            Some(key)
        };
        let entries = self.watched.store.entries().unwrap();
        entries.iter().filter_map(of).collect()
    }
}

fn job(id: &str, cron: &str) -> JobSpec {
    JobSpec::handler(id, "h").cron(cron)
}

async fn put(control: &Control, specs: Vec<JobSpec>) -> Result<ApplyReport, ControlError> {
    control.apply(specs, false, &|_, _| {}).await
}

async fn cron_of(control: &Control, id: &str) -> String {
    let job = control.job(id).await.unwrap();
    job.spec.schedule.cron.unwrap()
}

#[tokio::test]
async fn what_is_read_for_one_job_does_not_depend_on_those_beside_it() {
    let mut all = Vec::new();
    for beside in [MANY, 2_000] {
        let stage = stage(beside).await;
        let mut counts = Vec::new();
        // Made, left alone, changed.
        for cron in ["0 5 * * *", "0 5 * * *", "0 6 * * *"] {
            let planned = stage.ours.plan_apply(&[job("a", cron)], false).await;
            counts.push(stage.watched.counts());
            let applied = put(&stage.ours, vec![job("a", cron)]).await;
            counts.push(stage.watched.counts());
            assert_eq!(planned.unwrap(), applied.unwrap());
        }
        for (requests, entries) in &counts {
            assert!(*requests <= 8 && *entries <= 40, "{counts:?}");
        }
        // All of it is read to find what is to go.
        let pruned = stage.ours.plan_apply(&[job("a", "0 6 * * *")], true).await;
        assert_eq!(pruned.unwrap().deleted.len(), beside);
        assert!(stage.watched.counts().1 > 2 * beside);
        all.push(counts);
    }
    assert_eq!(all[0], all[1]);
}

#[tokio::test]
async fn many_jobs_are_read_with_few_requests() {
    let stage = stage(2_000).await;
    let specs = |cron: &str| {
        (0..2_000)
            .map(|n| job(&format!("beside-{n}"), cron))
            .collect()
    };
    let applied = put(&stage.ours, specs("0 5 * * *")).await.unwrap();
    assert_eq!(applied.unchanged, 2_000);
    // Partition by partition as a whole: nothing is asked for one by one.
    let (requests, _) = stage.watched.counts();
    assert!(requests <= 8 * usize::from(PARTITIONS), "{requests}");
    let applied = put(&stage.ours, specs("0 6 * * *")).await.unwrap();
    assert_eq!(applied.updated.len(), 2_000);
}

/// Lets somebody else apply `theirs` (or delete the job) before the first request, the second, and so
/// on to the last, of an apply of a job that stands as `0 1 * * *`; and of its plan.
async fn between(theirs: Option<&'static str>, ours: &str, then: impl AsyncFn(Stage, ApplyReport)) {
    for write in [true, false] {
        for before in 0.. {
            let stage = stage(MANY).await;
            let first = vec![job("a", "0 1 * * *")];
            put(&stage.other, first).await.unwrap();
            let meanwhile: Meanwhile = Box::new(move |other| {
                tokio::spawn(async move {
                    match theirs {
                        Some(cron) => drop(put(&other, vec![job("a", cron)]).await.unwrap()),
                        None => other.delete_job("a", None).await.unwrap(),
                    }
                })
            });
            *stage.watched.before.lock().unwrap() = Some((before, meanwhile));
            let report = match write {
                true => put(&stage.ours, vec![job("a", ours)]).await,
                false => stage.ours.plan_apply(&[job("a", ours)], false).await,
            };
            let report = report.unwrap();
            if stage.watched.before.lock().unwrap().is_some() {
                assert!(before >= 5, "they came too seldom: {before}");
                break;
            }
            match write {
                true => then(stage, report).await,
                false => {
                    let told = report.created.len() + report.updated.len() + report.unchanged;
                    assert_eq!(told, 1, "before {before}");
                }
            }
        }
    }
}

#[tokio::test]
async fn an_apply_that_comes_in_between_is_seen() {
    between(Some("0 2 * * *"), "0 3 * * *", async |stage, report| {
        // Theirs, then ours; never theirs over ours, since ours ended behind theirs.
        assert_eq!(cron_of(&stage.other, "a").await, "0 3 * * *");
        assert_eq!(report.updated, ["a"]);
        assert_eq!(stage.other.job("a").await.unwrap().generation, 3);
    })
    .await;
}

#[tokio::test]
async fn the_same_apply_that_comes_in_between_leaves_nothing_to_do() {
    between(Some("0 3 * * *"), "0 3 * * *", async |stage, report| {
        assert_eq!((report.unchanged, report.updated.len()), (1, 0));
        assert_eq!(stage.other.job("a").await.unwrap().generation, 2);
    })
    .await;
}

#[tokio::test]
async fn a_job_that_is_deleted_in_between_is_made_anew() {
    between(None, "0 3 * * *", async |stage, report| {
        assert_eq!(report.created, ["a"]);
        // Its earlier life had the first one.
        assert_eq!(stage.other.job("a").await.unwrap().generation, 2);
    })
    .await;
}

/// A job that has run every minute for an hour, and an apply of an instant that has passed: allowed
/// since the job has had it already. In between somebody else gives the job that instant too, and the
/// definition that had it is dropped: allowed since the job remembers it. Whoever has read the job as it
/// was before, and finds the definition gone, would refuse.
#[tokio::test]
async fn nothing_is_refused_because_of_what_stood_at_different_times() {
    let minute = 60_000;
    for before in 0.. {
        let stage = stage(MANY).await;
        put(&stage.other, vec![job("a", "* * * * *")])
            .await
            .unwrap();
        let number = partition_of("a", PARTITIONS);
        let (key, first) = (stage.keys.job(number, "a"), stage.keys.def(number, "a", 1));
        let entries = stage.watched.store.entries().unwrap();
        let entry = entries.iter().find(|entry| entry.key == key).unwrap();
        let mut record: JobRecord = decode(&entry.value).unwrap();
        let now_ms = record.created_ms;
        record.created_ms -= 60 * minute;
        record.segments[0].from_ms -= 60 * minute;
        stage.write(Txn::new().put(key, encode(&record))).await;

        let at = |handler: &str| {
            let mut spec = JobSpec::handler("a", handler);
            let passed_ms = now_ms - 10 * minute - now_ms % minute;
            spec.schedule.at = Some(punctual::time::rfc3339_ms(passed_ms));
            spec
        };
        let mut ours = at("ours");
        ours.start_deadline = Some(Millis::from_secs(1));
        let (theirs, store) = (at("theirs"), stage.watched.store.clone());
        let meanwhile: Meanwhile = Box::new(move |other| {
            let (theirs, store, first) = (theirs.clone(), store.clone(), first.clone());
            tokio::spawn(async move {
                put(&other, vec![theirs]).await.unwrap();
                let dropped = store.commit(&Txn::new().delete(first)).await;
                assert!(dropped.unwrap().applied().is_some());
            })
        });
        *stage.watched.before.lock().unwrap() = Some((before, meanwhile));
        let applied = put(&stage.ours, vec![ours]).await;
        assert_eq!(applied.unwrap().updated, ["a"], "before {before}");
        if stage.watched.before.lock().unwrap().is_some() {
            assert!(before >= 9, "they came too seldom: {before}");
            return;
        }
    }
}

#[tokio::test]
async fn after_a_conflict_only_what_is_named_is_read_again() {
    let mut all = Vec::new();
    for beside in [MANY, 2_000] {
        let stage = stage(beside).await;
        // Before the commit, which is the last request.
        let plan = stage.ours.plan_apply(&[job("a", "0 3 * * *")], false).await;
        assert_eq!(plan.unwrap().created, ["a"]);
        let (commit, _) = stage.watched.counts();
        let meanwhile: Meanwhile = Box::new(|other| {
            tokio::spawn(async move { drop(put(&other, vec![job("a", "0 2 * * *")]).await) })
        });
        *stage.watched.before.lock().unwrap() = Some((commit, meanwhile));
        let applied = put(&stage.ours, vec![job("a", "0 3 * * *")]).await.unwrap();
        assert_eq!(
            (applied.updated, applied.created),
            (vec!["a".into()], vec![])
        );
        assert!(stage.watched.before.lock().unwrap().is_none());
        all.push(stage.watched.counts());
    }
    assert_eq!(all[0], all[1]);
    assert!(all[0].0 <= 14, "{all:?}");
}

/// What may stand of a job `a`, written by hand, before it is applied.
async fn odd(case: usize, stage: &Stage) {
    let number = partition_of("a", PARTITIONS);
    let spec = job("a", "0 1 * * *");
    let stray = stage.keys.def(number, "a", 9);
    let gone = |generation| GoneRecord {
        generation,
        deleted_ms: 1,
    };
    if ![0, 3, 4].contains(&case) {
        put(&stage.other, vec![spec.clone()]).await.unwrap();
    }
    let txn = Txn::new();
    let txn = match case {
        // A definition of nobody; one that is newer than the job knows, and two of them.
        0 | 1 => txn.put(stray, encode(&spec)),
        2 => txn
            .put(stage.keys.def(number, "a", 5), encode(&spec))
            .put(stray, encode(&spec)),
        // An earlier life, and one whose definitions are newer than what is remembered.
        3 => txn.put(stage.keys.gone(number, "a"), encode(&gone(7))),
        4 => txn
            .put(stage.keys.gone(number, "a"), encode(&gone(7)))
            .put(stray, encode(&spec)),
        // A record, and a definition, that nobody can read.
        5 => txn.put(stage.keys.job(number, "a"), "?"),
        6 => txn.put(stage.keys.def(number, "a", 1), "?"),
        // None at all.
        7 => txn.delete(stage.keys.def(number, "a", 1)),
        // A chain that goes on.
        8 => {
            let mut chain = JobSpec::handler("a", "h");
            chain.schedule.after_finish = Some(Millis::from_secs(60));
            put(&stage.other, vec![chain]).await.unwrap();
            return;
        }
        // Two segments that may both be owed.
        _ => {
            let again = job("a", "*/2 * * * *");
            put(&stage.other, vec![again]).await.unwrap();
            return;
        }
    };
    stage.write(txn).await;
}

#[tokio::test]
async fn a_job_is_written_beside_many_as_it_is_alone() {
    for case in 0..10 {
        let mut stood = Vec::new();
        // Alone its partition is read as a whole.
        for beside in [0, MANY] {
            for again in [false, true] {
                let stage = stage(beside).await;
                odd(case, &stage).await;
                let cron = if again { "0 1 * * *" } else { "0 3 * * *" };
                let plan = stage.ours.plan_apply(&[job("a", cron)], false).await;
                let report = put(&stage.ours, vec![job("a", cron)]).await.unwrap();
                assert_eq!(plan.unwrap(), report, "{case}");
                stood.push((report, stage.stands("a").await));
            }
        }
        let alone = stood.drain(..2).collect::<Vec<_>>();
        assert_eq!(alone, stood, "{case}");
        assert!(stood.iter().all(|(_, stands)| !stands.is_empty()));
    }
}

#[tokio::test]
async fn a_partition_whose_log_of_changes_cannot_be_read_is_not_changed() {
    let stage = stage(MANY).await;
    let number = partition_of("a", PARTITIONS);
    let changes = stage.keys.changes(number);
    let entries = stage.watched.store.entries().unwrap();
    let before = entries.iter().find(|entry| entry.key == changes).unwrap();
    assert!(decode::<ChangesRecord>(&before.value).is_ok());
    stage.write(Txn::new().put(changes.clone(), "?")).await;
    let refused = put(&stage.ours, vec![job("a", "0 3 * * *")]).await;
    assert!(
        matches!(&refused, Err(ControlError::Store(error)) if !error.is_transient()),
        "{refused:?}"
    );
    assert_eq!(stage.stands("a").await, [""; 0]);
}

// Whoever is told that nothing was changed must be able to rely on it, and whoever is told that something
// was must know what remains.
#[tokio::test]
async fn an_apply_that_is_cut_off_names_what_remains() {
    let ids: Vec<String> = (0..40).map(|n| format!("job-{n}")).collect();
    let specs = || {
        ids.iter()
            .map(|id| job(id, "0 5 * * *"))
            .collect::<Vec<_>>()
    };
    let mut half_way = 0;
    for breaks_at in 0.. {
        let stage = stage(0).await;
        stage.watched.breaks_at.store(breaks_at, Ordering::SeqCst);
        let answer = put(&stage.ours, specs()).await;
        let mut missing = Vec::new();
        for id in &ids {
            match stage.other.job(id).await {
                Ok(_) => {}
                Err(ControlError::NotFound(_)) => missing.push(id.clone()),
                Err(error) => panic!("{error}"),
            }
        }
        match answer {
            Ok(_) => {
                assert!(missing.is_empty());
                break;
            }
            Err(ControlError::HalfWay { mut remain, why }) => {
                assert!(matches!(*why, ControlError::Store(_)), "{why}");
                missing.sort_unstable();
                remain.sort_unstable();
                assert_eq!(remain, missing);
                assert!(!missing.is_empty() && missing.len() < ids.len());
                half_way += 1;
            }
            Err(_) => assert_eq!(missing.len(), ids.len(), "at {breaks_at}"),
        }
        stage.watched.breaks_at.store(usize::MAX, Ordering::SeqCst);
        let again = put(&stage.ours, specs()).await.unwrap();
        let created = again.created.len();
        assert_eq!(
            (created, again.unchanged),
            (missing.len(), ids.len() - created)
        );
    }
    assert!(half_way > 10, "{half_way}");
}

/// Ids of so many jobs of one partition.
fn neighbours(count: usize) -> Vec<String> {
    let all = (0..).map(|n| format!("near-{n}"));
    all.filter(|id| partition_of(id, PARTITIONS) == 15)
        .take(count)
        .collect()
}

// A group of jobs with large payloads is written in halves.
#[tokio::test]
async fn what_is_written_of_a_group_in_halves_does_not_remain() {
    let ids = neighbours(24);
    let large = |id: &String| {
        let mut job = job(id, "0 5 * * *");
        job.payload = serde_json::json!("x".repeat(60_000));
        job
    };
    let mut half_way = 0;
    for breaks_at in 0.. {
        let stage = stage(0).await;
        stage.watched.breaks_at.store(breaks_at, Ordering::SeqCst);
        let answer = put(&stage.ours, ids.iter().map(large).collect()).await;
        let Err(error) = answer else { break };
        let mut written = Vec::new();
        for id in &ids {
            written.extend(stage.other.job(id).await.is_ok().then(|| id.clone()));
        }
        let ControlError::HalfWay { remain, .. } = error else {
            assert!(written.is_empty(), "at {breaks_at}: {written:?}");
            continue;
        };
        half_way += 1;
        assert_eq!(remain.len() + written.len(), ids.len());
        assert!(written.iter().all(|id| !remain.contains(id)));
    }
    assert!(half_way > 0, "it was never cut off between the halves");
}

// A day after a job was deleted the leader forgets it, which is no change of the partition's jobs.
#[tokio::test]
async fn a_deleted_job_that_is_forgotten_meanwhile_is_made() {
    let mut conflicts = 0;
    for before in 0.. {
        let stage = stage(0).await;
        put(&stage.other, vec![job("a", "0 1 * * *")])
            .await
            .unwrap();
        stage.other.delete_job("a", None).await.unwrap();
        let (keys, store) = (stage.keys.clone(), stage.watched.store.clone());
        let number = partition_of("a", PARTITIONS);
        let meanwhile: Meanwhile = Box::new(move |_| {
            let forget = Txn::new().delete(keys.gone(number, "a"));
            let store = store.clone();
            tokio::spawn(async move {
                let outcome = store.commit(&forget).await.unwrap();
                assert!(outcome.applied().is_some());
            })
        });
        *stage.watched.before.lock().unwrap() = Some((before, meanwhile));
        let report = put(&stage.ours, vec![job("a", "0 2 * * *")]).await.unwrap();
        assert_eq!(report.created, ["a"], "before request {before}");
        if stage.watched.before.lock().unwrap().is_some() {
            break;
        }
        conflicts += usize::from(stage.watched.counts().0 > 8);
    }
    assert!(conflicts > 0, "it was never forgotten in between");
}
