//! P14: what people do with jobs gets the same answers from each store.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

use std::fmt::Debug;
use std::sync::Arc;

use punctual::backend::CoordinationBackend;
use punctual::bootstrap::bootstrap;
use punctual::control::{Control, ControlError, IfMatch, PauseWish, RunFilter};
use punctual::duration::Millis;
use punctual::env::{SharedEnv, TokioEnv};
use punctual::job::spec::JobSpec;
use punctual::keys::Keys;
use punctual::recipe::retry::Store;
use punctual_etcd::{EtcdBackend, EtcdConfig};
use punctual_memory::MemoryBackend;
use punctual_sled::{Options, SledBackend};
use punctual_tests::etcd::Etcd;

const NAMESPACE: &str = "p14";

/// What was answered, without what differs from store to store: times and revisions.
#[derive(Default)]
struct Transcript(Vec<String>);

impl Transcript {
    fn note<T: Debug>(&mut self, what: &str, answer: Result<T, ControlError>) {
        let answer = match answer {
            Ok(value) => format!("{value:?}"),
            // The kind and the words.
            Err(error) => format!("{}: {error}", kind(&error)),
        };
        self.0.push(format!("{what} -> {answer}"));
    }
}

fn kind(error: &ControlError) -> &'static str {
    match error {
        ControlError::NotFound(_) => "not found",
        ControlError::Conflict(_) => "conflict",
        ControlError::Invalid(_) => "invalid",
        _ => "other",
    }
}

fn daily(id: &str) -> JobSpec {
    JobSpec::handler(id, "nobody").cron("0 0 * * *")
}

async fn list(control: &Control, log: &mut Transcript) {
    let jobs = control.jobs(None, 100).await;
    let shown = jobs.map(|page| {
        let jobs = page.items.iter();
        let shown = jobs.map(|job| (job.spec.clone(), job.generation, job.state));
        shown.collect::<Vec<_>>()
    });
    log.note("list", shown);
}

async fn runs(control: &Control, log: &mut Transcript) {
    let runs = control.runs(&RunFilter::default(), None, 100).await;
    let shown = runs.map(|page| {
        let runs = page.items.into_iter();
        let mut shown: Vec<_> = runs
            .map(|run| (run.job_id, run.kind, run.state, run.reason, run.attempt))
            .collect();
        shown.sort_by(|a, b| a.0.cmp(&b.0));
        shown
    });
    log.note("runs", shown);
}

/// Everything twice: the second time is where stores differed elsewhere.
async fn story(store: Arc<dyn CoordinationBackend>, env: SharedEnv) -> Vec<String> {
    let keys = Keys::new(NAMESPACE);
    let settling = Store::new(Arc::clone(&store), Arc::clone(&env), 5_000);
    bootstrap(&settling, &keys).await.unwrap();
    let control = Control::new(store, env, NAMESPACE);
    let mut log = Transcript::default();
    list(&control, &mut log).await;
    for id in ["a", "b", "a"] {
        let put = control.put_job(daily(id), None).await;
        log.note(id, put.map(|(outcome, job)| (outcome, job.generation)));
    }
    let absent = control.put_job(daily("b"), Some(IfMatch::Absent)).await;
    log.note("absent", absent.map(|(outcome, _)| outcome));
    let mut edited = daily("a");
    edited.timeout = Millis::from_secs(5);
    let edit = control.put_job(edited, None).await;
    log.note("edit", edit.map(|(outcome, job)| (outcome, job.generation)));
    list(&control, &mut log).await;
    for key in ["k", "k"] {
        let run = control.trigger("b", None, key).await;
        log.note("trigger", run.map(|run| (run.state, run.attempt)));
    }
    for _ in 0..2 {
        let paused = control.pause_job("a", PauseWish::default()).await;
        log.note("pause", paused.map(|job| job.state));
    }
    log.note("trigger", control.trigger("a", None, "k").await.map(drop));
    for id in ["b", "b", "never"] {
        log.note("delete", control.delete_job(id, None).await);
        log.note("show", control.job(id).await.map(|job| job.generation));
    }
    list(&control, &mut log).await;
    runs(&control, &mut log).await;
    let again = control.put_job(daily("b"), Some(IfMatch::Absent)).await;
    log.note(
        "again",
        again.map(|(outcome, job)| (outcome, job.generation)),
    );
    let both = vec![daily("c"), daily("b")];
    let applied = control.apply(both, true, &|_, _| {}).await;
    log.note("apply", applied);
    log.note("delete", control.delete_job("a", None).await);
    list(&control, &mut log).await;
    log.0
}

/// P14: create, change, delete, delete again, list, on the store in memory, on disk and on etcd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p14_each_store_gives_the_same_answers() {
    let env = TokioEnv::shared();
    let memory = MemoryBackend::new(Arc::clone(&env));
    let in_memory = story(Arc::new(memory), Arc::clone(&env)).await;

    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("db");
    let sled = SledBackend::open(directory, Arc::clone(&env), Options::default()).unwrap();
    let on_disk = story(Arc::new(sled), Arc::clone(&env)).await;

    let etcd = Etcd::start();
    let mut config = EtcdConfig::new([etcd.endpoint()]);
    // Whatever etcd is on the PATH: nothing here is to be kept.
    config.allow_corrupting_version = true;
    let backend = EtcdBackend::connect(config).await.unwrap();
    let on_etcd = story(Arc::new(backend), env).await;

    assert_eq!(in_memory, on_disk);
    assert_eq!(in_memory, on_etcd);
    let says = |what: &str| in_memory.iter().filter(|line| line.contains(what)).count();
    let whole = in_memory.join("\n");
    assert_eq!(says("delete -> ()"), 1, "{whole}");
    assert_eq!(says("delete -> not found"), 3, "{whole}");
    assert_eq!(says("show -> not found"), 3, "{whole}");
    assert_eq!(says("absent -> conflict"), 1, "{whole}");
}
