//! What goes of a job's history, and what is remembered of its growth.

use std::sync::Arc;

use super::*;
use crate::bootstrap::bootstrap;
use crate::clock::FireClock;
use crate::control::Control;
use crate::duration::Millis;
use crate::env::TokioEnv;
use crate::job::record::encode;
use crate::keys::Keys;
use crate::leader::overdue::Policy;
use crate::model::shell_tests::Shell;
use crate::recipe::retry::Store;
use crate::recipe::session::{Opened, Session};
use crate::vitals::Vitals;

fn record(run: &str, state: RunState, ended_ms: i64) -> (AttemptKey, RunRecord) {
    let json = serde_json::json!({
        "job": "j", "run": run, "attempt": 1, "kind": "scheduled", "scheduled_ms": 0,
        "job_uid": 1, "generation": 1, "queue": "default", "needs": "command",
        "deadline_ms": 0, "state": state, "not_before_ms": 0, "created_ms": 0,
        "ended_ms": ended_ms,
    });
    let key = AttemptKey {
        partition: 0,
        job: "j".into(),
        run: run.into(),
        attempt: 1,
    };
    (key, serde_json::from_value(json).unwrap())
}

#[test]
fn the_newest_of_each_kind_are_kept_and_nothing_too_old() {
    let history = HistorySpec {
        keep_success: 2,
        keep_failed: 1,
        keep_skipped: 5,
        keep_for: Millis::from_secs(100),
    };
    let records = [
        record("s1", RunState::Success, 910_000),
        record("s3", RunState::Success, 930_000),
        record("s2", RunState::Success, 920_000),
        record("f1", RunState::Failed, 915_000),
        record("f2", RunState::Failed, 925_000),
        record("k1", RunState::Skipped, 899_999),
        record("k2", RunState::Skipped, 900_000),
    ];
    let mut runs: Vec<String> = victims(records.into_iter(), &history, 1_000_000)
        .into_iter()
        .map(|key| key.run)
        .collect();
    runs.sort();
    assert_eq!(runs, ["f1", "k1", "s1"]);
}

#[test]
fn the_last_attempt_of_a_run_goes_with_or_after_those_before_it() {
    let history = HistorySpec {
        keep_success: 1,
        keep_failed: 10,
        keep_skipped: 5,
        keep_for: Millis::from_secs(1_000),
    };
    let attempt = |run: &str, attempt: u32, state, ended_ms| {
        let (key, record) = record(run, state, ended_ms);
        (AttemptKey { attempt, ..key }, record)
    };
    let records = [
        attempt("old", 1, RunState::Failed, 910_000),
        // Its clock was behind.
        attempt("old", 2, RunState::Failed, 909_000),
        attempt("old", 3, RunState::Success, 911_000),
        attempt("new", 1, RunState::Failed, 912_000),
        attempt("new", 2, RunState::Success, 913_000),
    ];
    let gone: Vec<(String, u32)> = victims(records.into_iter(), &history, 1_000_000)
        .into_iter()
        .map(|key| (key.run, key.attempt))
        .collect();
    assert_eq!(
        gone,
        [("old".into(), 1), ("old".into(), 2), ("old".into(), 3)]
    );
}

/// A leader's retention and what it works with, driven by hand.
struct Stage {
    shell: Arc<Shell>,
    context: LeaderContext,
    authority: Authority,
    control: Control,
    retention: Retention,
}

async fn stage() -> Stage {
    let (shell, env) = (Shell::shared(), TokioEnv::shared());
    let store = Store::new(shell.clone(), env.clone(), 2_000);
    let keys = Keys::new("t");
    let meta = bootstrap(&store, &keys).await.unwrap();
    let opened = Session::open(&store, keys.leader(), Vec::new(), 600_000);
    let Opened::Ours(session) = opened.await.unwrap() else {
        panic!("somebody else leads");
    };
    let context = LeaderContext {
        store: store.clone(),
        keys,
        meta,
        clock: Arc::new(FireClock::new(env.clone(), 2_000)),
        relist_ms: 60_000,
        lost_grace_ms: 15_000,
        notifier: None,
        takeover: Policy {
            takeover_ms: 0,
            max_skew_ms: 2_000,
        },
        vitals: Arc::new(Vitals::new(env.clone(), 0)),
    };
    Stage {
        control: Control::new(shell.clone(), env, "t"),
        authority: Authority::new(store, Arc::new(session)),
        context,
        shell,
        retention: Retention {
            grown: BTreeMap::new(),
            due: VecDeque::new(),
            sweep_at_ms: u64::MAX,
            sweep: None,
        },
    }
}

impl Stage {
    async fn put(&self, job: &str, keep: u32) {
        let mut spec = JobSpec::handler(job, "h");
        spec.history.keep_success = keep;
        self.control.put_job(spec, None).await.unwrap();
    }

    async fn delete(&self, job: &str) {
        self.control.delete_job(job, None).await.unwrap();
    }

    /// So many more records of the job were written, as the leader is told.
    fn note(&mut self, job: &str, records: u32) {
        let key = self.context.keys.job(self.partition(job), job);
        let entry = self.shell.entries(&Span::key(key)).pop();
        let definition = entry.and_then(|entry| {
            let record: JobRecord = decode(&entry.value).ok()?;
            Some((entry.created.0, record.generation))
        });
        self.retention.note(Notice {
            job: job.into(),
            records,
            definition: definition.unwrap_or(UNKNOWN),
        });
    }

    async fn tick(&mut self, is_sweep: bool) {
        if is_sweep {
            self.retention.sweep_at_ms = 0;
        }
        let ticked = self.retention.tick(&self.context, &self.authority);
        ticked.await.unwrap();
    }

    fn partition(&self, job: &str) -> u16 {
        partition_of(job, self.context.meta.partitions)
    }

    fn grown(&self) -> Vec<&str> {
        self.retention.grown.keys().map(String::as_str).collect()
    }

    /// Writes so many successes.
    fn succeed(&self, job: &str, count: usize) {
        let now_ms = self.context.clock.now_ms();
        for index in 0..count {
            let ended_ms = now_ms - 1_000 * i64::try_from(index).unwrap();
            let (key, mut record) = record(&format!("{job}#{index}"), RunState::Success, ended_ms);
            record.job = job.into();
            let key = AttemptKey {
                partition: self.partition(job),
                job: job.into(),
                ..key
            };
            let put = Txn::new().put(self.context.keys.done(&key), encode(&record));
            self.shell.write(&put);
        }
    }

    fn kept(&self, job: &str) -> usize {
        let span = self.context.keys.done_of(self.partition(job), job);
        self.shell.entries(&span).len()
    }
}

#[tokio::test]
async fn of_a_job_that_is_deleted_nothing_is_remembered() {
    let mut stage = stage().await;
    for job in ["stays", "small", "due", "known"] {
        stage.put(job, 20).await;
    }
    stage.note("known", 8);
    stage.tick(false).await;
    for job in ["stays", "small", "known"] {
        stage.note(job, 1);
    }
    for job in ["small", "known", "due"] {
        stage.delete(job).await;
    }
    // A run of a deleted job ends, and another one's history is due.
    stage.note("small", 1);
    stage.note("due", 8);
    assert_eq!(stage.grown(), ["due", "known", "small", "stays"]);
    stage.tick(false).await;
    assert_eq!(stage.grown(), ["known", "small", "stays"]);
    stage.tick(true).await;
    assert_eq!(stage.grown(), ["stays"]);
    // What ends later is forgotten later; what grows under bounds that were known, when it is pruned.
    stage.note("small", 1);
    stage.note("known", 8);
    stage.tick(true).await;
    stage.tick(true).await;
    assert_eq!(stage.grown(), ["stays"]);
    assert!(stage.retention.due.is_empty());
    assert_eq!(stage.retention.grown["stays"].added, 1);
}

#[tokio::test]
async fn jobs_that_come_and_go_do_not_pile_up() {
    let mut stage = stage().await;
    for round in 0..5 {
        for index in 0..20 {
            let job = format!("job-{round}-{index}");
            stage.put(&job, 20).await;
            // Some are pruned once in their life.
            stage.note(&job, 1 + index);
        }
        stage.tick(false).await;
        for index in 0..20 {
            stage.delete(&format!("job-{round}-{index}")).await;
        }
        assert_eq!(stage.grown().len(), 20);
        stage.tick(true).await;
        assert_eq!(stage.grown(), [""; 0]);
    }
}

/// The defaults keep twenty: whoever took these for bounds that cannot be read would delete.
#[tokio::test]
async fn nothing_is_pruned_by_bounds_that_cannot_be_read() {
    for is_sweep in [false, true] {
        for damage in 0..4 {
            let mut stage = stage().await;
            let keys = stage.context.keys.clone();
            for job in ["hit", "sound", "gone"] {
                stage.put(job, 5).await;
                stage.succeed(job, 30);
            }
            stage.delete("gone").await;
            let number = stage.partition("hit");
            let (job, def) = (keys.job(number, "hit"), keys.def(number, "hit", 1));
            let key = if damage < 2 { &def } else { &job };
            let before = stage.shell.entries(&Span::key(key.clone())).pop().unwrap();
            stage.shell.write(&match damage {
                0 => Txn::new().put(key.clone(), "?"),
                1 => Txn::new().delete(key.clone()),
                2 => Txn::new().put(key.clone(), "?"),
                // Of a version that is newer than this one.
                _ => Txn::new().put(key.clone(), r#"{"v":99,"r":{}}"#),
            });
            let look = async |stage: &mut Stage| {
                if is_sweep {
                    stage.retention.sweep = Some(keys.all_done());
                } else {
                    for job in ["hit", "sound", "gone"] {
                        stage.note(job, 8);
                    }
                }
                stage.tick(false).await;
                assert!(stage.retention.sweep.is_none());
                ["hit", "sound", "gone"].map(|job| stage.kept(job))
            };
            let what = format!("damage {damage}, sweep {is_sweep}");
            assert_eq!(look(&mut stage).await, [30, 5, 20], "{what}");
            // Again, and when it can be read again.
            assert_eq!(look(&mut stage).await, [30, 5, 20], "{what}");
            stage
                .shell
                .write(&Txn::new().put(key.clone(), before.value));
            assert_eq!(look(&mut stage).await, [5, 5, 20], "{what}");
        }
    }
}
