//! Attempts that meet: at once, too late, and once more.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::Duration;

use punctual::cancel::{Canceller, StopCause};
use punctual::control::{Control, RunObject};
use punctual::duration::Millis;
use punctual::env::TokioEnv;
use punctual::handler::{Executors, FencingToken, HandlerError, RunContext};
use punctual::job::run::RunState;
use punctual::job::spec::{JobSpec, OnLost};
use punctual::node::{Node, NodeConfig};
use punctual_memory::MemoryBackend;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::sink;

fn database() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("effects.db");
    sink::open(&path).unwrap();
    (place, path)
}

fn number(path: &Path, query: &str) -> i64 {
    let database = sink::open(path).unwrap();
    database.query_row(query, [], |row| row.get(0)).unwrap()
}

/// Sixteen attempts with connections of their own pay for the same eight runs at the same moment.
#[test]
fn of_many_attempts_at_once_one_pays() {
    const ATTEMPTS: usize = 16;
    const RUNS: usize = 8;
    let (_place, path) = database();
    let together = Arc::new(Barrier::new(ATTEMPTS));
    let attempts: Vec<_> = (0..ATTEMPTS)
        .map(|_| {
            let (path, together) = (path.clone(), Arc::clone(&together));
            std::thread::spawn(move || {
                let database = sink::open(&path).unwrap();
                together.wait();
                (0..RUNS)
                    .filter(|run| sink::pay(&database, &format!("bill@{run}"), 5).unwrap())
                    .count()
            })
        })
        .collect();
    let paid: usize = attempts.into_iter().map(|it| it.join().unwrap()).sum();
    assert_eq!(paid, RUNS, "each is told whether it was the one");
    assert_eq!(number(&path, "SELECT sum(cents) FROM payment"), 40);
}

/// Writers with growing tokens write one cell at the same time, each several times. Every value that
/// the cell ever had is kept by the database itself: its token never becomes smaller.
#[test]
fn a_fenced_cell_never_goes_back() {
    const WRITERS: u64 = 12;
    let (_place, path) = database();
    let kept = "
        CREATE TABLE past (place INTEGER PRIMARY KEY AUTOINCREMENT, token INTEGER NOT NULL);
        CREATE TRIGGER made AFTER INSERT ON report BEGIN
            INSERT INTO past (token) VALUES (new.token);
        END;
        CREATE TRIGGER changed AFTER UPDATE ON report BEGIN
            INSERT INTO past (token) VALUES (new.token);
        END;";
    let first = sink::open(&path).unwrap();
    first.execute_batch(kept).unwrap();
    assert!(!sink::rewrite(&first, "daily", FencingToken(0), "text").unwrap());
    assert!(sink::write(&first, "daily", FencingToken(0), "text").unwrap());
    let together = Arc::new(Barrier::new(usize::try_from(WRITERS).unwrap()));
    let writers: Vec<_> = (1..=WRITERS)
        .map(|token| {
            let (path, together) = (path.clone(), Arc::clone(&together));
            std::thread::spawn(move || {
                let database = sink::open(&path).unwrap();
                together.wait();
                // Both statements, beside each other.
                let statement = match token % 2 {
                    0 => sink::rewrite,
                    _ => sink::write,
                };
                let token = FencingToken(token);
                let write = || statement(&database, "daily", token, "text").unwrap();
                (0..20).filter(|_| write()).count()
            })
        })
        .collect();
    let taken: Vec<usize> = writers.into_iter().map(|it| it.join().unwrap()).collect();
    let last = usize::try_from(WRITERS).unwrap() - 1;
    assert_eq!(taken[last], 20, "nobody is newer than the last one");
    let past = number(&path, "SELECT count(*) FROM past");
    let past = usize::try_from(past).unwrap();
    assert_eq!(past, 1 + taken.iter().sum::<usize>());
    let back = "SELECT count(*) FROM past a JOIN past b ON b.place = a.place + 1
        WHERE b.token < a.token";
    assert_eq!(number(&path, back), 0);
    assert_eq!(number(&path, "SELECT token FROM report"), 12);
    // It is the condition that does it: without it the smallest token gets in again.
    let database = sink::open(&path).unwrap();
    for statement in [sink::write, sink::rewrite] {
        assert!(!statement(&database, "daily", FencingToken(11), "late").unwrap());
    }
    let bare = "UPDATE report SET token = 11 WHERE name = 'daily'";
    assert_eq!(database.execute(bare, []).unwrap(), 1);
    assert_eq!(number(&path, back), 1);
}

/// A node with one handler, and one run of a job that calls it, to its end.
async fn run_once(spec: JobSpec, handler: impl punctual::handler::Handler) -> Vec<RunObject> {
    let env = TokioEnv::shared();
    let backend = MemoryBackend::new(env.clone());
    let config = NodeConfig {
        kill_grace_ms: 200,
        ..NodeConfig::default()
    };
    let control = Control::new(Arc::new(backend.clone()), env.clone(), &config.namespace);
    let mut executors = Executors::default();
    executors.handlers.insert("work".into(), Arc::new(handler));
    let node = Node::new(Arc::new(backend), env, executors, config).unwrap();
    let (stop, stopping) = Canceller::new();
    let life = tokio::spawn(node.run(stopping));
    while control.status(String::new()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let id = spec.id.clone();
    control.put_job(spec, None).await.unwrap();
    let run = control.trigger(&id, None, "key").await.unwrap().run_id;
    let patience = std::time::Instant::now() + Duration::from_secs(60);
    let attempts = loop {
        let attempts = control.run(&run).await.unwrap();
        if attempts.last().unwrap().state == RunState::Success {
            break attempts;
        }
        assert!(std::time::Instant::now() < patience, "{attempts:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    stop.stop(StopCause::Cancelled);
    life.await.unwrap().unwrap();
    attempts
}

fn write(database: &Connection, run: &RunContext, text: &str) -> sink::Answer<()> {
    sink::or_stop(sink::write(database, "daily", run.fencing_token, text))
}

fn job(attempts: u32) -> JobSpec {
    let mut spec = JobSpec::handler("bills", "work");
    spec.retry.attempts = Some(attempts);
    spec.retry.backoff = Millis::from_ms(50);
    spec.on_lost = OnLost::Retry;
    spec.idempotent = true;
    spec
}

/// An attempt pays and hears nothing: it fails, and the next ones are sent for the same run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_attempt_pays_nothing_more() {
    let (_place, path) = database();
    let told = Arc::new(Mutex::new(Vec::new()));
    let (database, seen) = (path.clone(), Arc::clone(&told));
    let attempts = run_once(job(3), move |run: RunContext| {
        let (database, seen) = (database.clone(), Arc::clone(&seen));
        async move {
            let paid = sink::pay(&sink::open(&database).unwrap(), &run.run_id, 250).unwrap();
            seen.lock().unwrap().push(paid);
            match run.attempt {
                1 | 2 => Err(HandlerError("the answer was lost".into())),
                _ => Ok(()),
            }
        }
    })
    .await;
    assert_eq!(attempts.len(), 3);
    assert_eq!(*told.lock().unwrap(), [true, false, false]);
    assert_eq!(number(&path, "SELECT count(*) FROM payment"), 1);
    assert_eq!(number(&path, "SELECT sum(cents) FROM payment"), 250);
}

/// The first attempt hangs where nobody can stop it, until its time is over and its successor has
/// written and succeeded. Then it wakes and goes on: it is refused, and what it pays is paid already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_wakes_behind_its_successor_is_refused() {
    #[derive(Default)]
    struct Meeting {
        succeeded: Mutex<bool>,
        changed: Condvar,
    }
    let (_place, path) = database();
    let meeting = Arc::new(Meeting::default());
    let stale = Arc::new(Mutex::new(None));
    let mut spec = job(2);
    spec.timeout = Millis::from_ms(300);
    let (database, met, told) = (path.clone(), Arc::clone(&meeting), Arc::clone(&stale));
    let attempts = run_once(spec, move |run: RunContext| {
        let (path, met, told) = (database.clone(), Arc::clone(&met), Arc::clone(&told));
        async move {
            let database = sink::open(&path).unwrap();
            write(&database, &run, "begun").unwrap();
            if run.attempt > 1 {
                write(&database, &run, "done").unwrap();
                assert!(sink::pay(&database, &run.run_id, 250).unwrap());
                return Ok(());
            }
            // A thread of its own, as that of a library: it outlives the handler.
            let thread = std::thread::spawn(move || {
                let succeeded = met.succeeded.lock().unwrap();
                let _awake = met
                    .changed
                    .wait_while(succeeded, |succeeded| !*succeeded)
                    .unwrap();
                let refused = write(&database, &run, "stale").is_err();
                let paid = sink::pay(&database, &run.run_id, 250).unwrap();
                (refused, paid)
            });
            *told.lock().unwrap() = Some(thread);
            std::future::pending::<Result<(), HandlerError>>().await
        }
    })
    .await;
    let reasons: Vec<_> = attempts.iter().map(|it| it.reason.as_deref()).collect();
    assert_eq!(reasons, [Some("timeout"), None]);
    *meeting.succeeded.lock().unwrap() = true;
    meeting.changed.notify_all();
    let thread = stale.lock().unwrap().take().unwrap();
    assert_eq!(
        thread.join().unwrap(),
        (true, false),
        "refused, and paid already"
    );
    let done = "SELECT count(*) FROM report WHERE text = 'done'";
    assert_eq!(number(&path, done), 1);
    assert_eq!(number(&path, "SELECT sum(cents) FROM payment"), 250);
}
