//! A chain of runs goes on although nothing that can be believed says when its last run ended, however
//! often the leader lists anew what it knows.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

use std::sync::Arc;

use punctual::backend::{Changes, CoordinationBackend, Entry, Event, Revision, Span, Txn};
use punctual::bootstrap::bootstrap;
use punctual::clock::FireClock;
use punctual::control::Control;
use punctual::duration::Millis;
use punctual::job::record::{RunRecord, decode, encode};
use punctual::job::run::RunState;
use punctual::job::spec::JobSpec;
use punctual::keys::Keys;
use punctual::leader::LeaderContext;
use punctual::leader::authority::Authority;
use punctual::leader::delay::Delays;
use punctual::leader::overdue::Policy;
use punctual::recipe::retry::Store;
use punctual::recipe::session::{Opened, Session};
use punctual::recipe::view::ViewEvent;
use punctual::vitals::Vitals;
use punctual_memory::MemoryBackend;
use punctual_tests::manual::ManualEnv;

const NAMESPACE: &str = "chains";
const RELIST_S: u64 = 60;
const DELAY_S: u64 = 150;

/// What a leader knows of chains, driven by hand, second by second.
struct Stage {
    env: Arc<ManualEnv>,
    backend: MemoryBackend,
    context: LeaderContext,
    authority: Authority,
    delays: Delays,
    now_s: u64,
    told: Revision,
}

/// With a job `a` whose runs come so long after each other.
async fn stage() -> Stage {
    let env = ManualEnv::new();
    env.advance(1_000_000);
    let backend = MemoryBackend::new(env.shared());
    let store = Store::new(Arc::new(backend.clone()), env.shared(), 2_000);
    let keys = Keys::new(NAMESPACE);
    let meta = bootstrap(&store, &keys).await.unwrap();
    let opened = Session::open(&store, keys.leader(), Vec::new(), 10_000_000);
    let Opened::Ours(session) = opened.await.unwrap() else {
        panic!("somebody else leads");
    };
    let clock = Arc::new(FireClock::new(env.shared(), 2_000));
    let shared = Arc::new(backend.clone());
    let control = Control::with_clock(shared, env.shared(), NAMESPACE, clock.clone());
    let mut job = JobSpec::handler("a", "h");
    job.schedule.after_finish = Some(Millis::from_secs(DELAY_S));
    control.put_job(job, None).await.unwrap();
    let context = LeaderContext {
        store: store.clone(),
        keys,
        meta,
        clock,
        relist_ms: RELIST_S * 1_000,
        lost_grace_ms: 15_000,
        notifier: None,
        takeover: Policy {
            takeover_ms: 0,
            max_skew_ms: 2_000,
        },
        vitals: Arc::new(Vitals::new(env.shared(), 0)),
    };
    Stage {
        authority: Authority::new(store, Arc::new(session)),
        delays: Delays::default(),
        now_s: 0,
        told: Revision(0),
        env,
        backend,
        context,
    }
}

impl Stage {
    fn list(&self, span: &Span) -> Vec<Entry> {
        let entries = self.backend.entries().unwrap().into_iter();
        entries.filter(|entry| span.contains(&entry.key)).collect()
    }

    async fn write(&self, txn: Txn) {
        let outcome = self.backend.commit(&txn).await.unwrap();
        assert!(outcome.applied().is_some());
    }

    /// What the view tells each time it lists its span.
    fn relist(&mut self) {
        let listed = self.list(&self.context.keys.delays());
        let revision = self.backend.revision().unwrap();
        self.delays
            .take(&self.context, ViewEvent::Listed(listed, revision));
    }

    /// What it tells as soon as something has changed.
    fn watch(&mut self) {
        for entry in self.list(&self.context.keys.delays()) {
            if entry.modified <= self.told {
                continue;
            }
            self.told = entry.modified;
            let changes = Changes {
                revision: entry.modified,
                events: vec![Event::Put(entry)],
            };
            self.delays.take(&self.context, ViewEvent::Changed(changes));
        }
    }

    /// A second goes by.
    async fn second(&mut self) {
        self.env.advance(1_000);
        self.now_s += 1;
        self.watch();
        if self.now_s.is_multiple_of(RELIST_S) {
            self.relist();
        }
        let runs = self.list(&self.context.keys.runs());
        let alive = |_: &str, run: &str| {
            let keys = &self.context.keys;
            let attempts = runs.iter().filter_map(|run| keys.parse_attempt(&run.key));
            attempts.into_iter().any(|attempt| attempt.run == run)
        };
        self.delays
            .tick(&self.context, &self.authority, alive)
            .await
            .unwrap();
    }

    /// The seconds until there is a run, if one comes in time.
    async fn until_run(&mut self, within_s: u64) -> Option<u64> {
        for waited_s in 0..=within_s {
            if !self.list(&self.context.keys.runs()).is_empty() {
                return Some(waited_s);
            }
            self.second().await;
        }
        None
    }

    /// The run that is alive ends, by a record that says so long from now; none: without a record.
    async fn end(&self, says_s: Option<i64>) {
        let entry = self.list(&self.context.keys.runs()).pop().unwrap();
        let key = self.context.keys.parse_attempt(&entry.key).unwrap();
        let mut record: RunRecord = decode(&entry.value).unwrap();
        let txn = Txn::new().delete(entry.key);
        let Some(says_s) = says_s else {
            return self.write(txn).await;
        };
        record.state = RunState::Success;
        record.ended_ms = Some(self.context.clock.now_ms() + 1_000 * says_s);
        self.write(txn.put(self.context.keys.done(&key), encode(&record)))
            .await;
    }
}

const HOUR_S: i64 = 3_600;

#[tokio::test]
async fn a_chain_goes_on_over_relistings_when_its_last_end_lies_in_the_future() {
    for says_s in [Some(2 * HOUR_S), Some(48 * HOUR_S), None] {
        let mut stage = stage().await;
        stage.relist();
        assert!(stage.until_run(2).await.is_some());
        for round in 0..3 {
            // At different times between two listings.
            for _ in 0..7 + 20 * round {
                stage.second().await;
            }
            stage.end(says_s).await;
            let waited_s = stage.until_run(2 * DELAY_S + RELIST_S).await;
            let in_time = waited_s.is_some_and(|s| (DELAY_S..=DELAY_S + 3).contains(&s));
            assert!(in_time, "{says_s:?}, round {round}: {waited_s:?}");
        }
    }
}

/// Somebody had the run again, and it ended anew: the wait begins anew when that is seen, which is when
/// chains are listed anew, or when the next run would have been due.
#[tokio::test]
async fn another_end_in_the_future_begins_another_wait() {
    let mut stage = stage().await;
    stage.relist();
    assert!(stage.until_run(2).await.is_some());
    stage.end(Some(2 * HOUR_S)).await;
    for _ in 0..100 {
        stage.second().await;
    }
    let entry = stage.list(&stage.context.keys.all_done()).pop().unwrap();
    let mut record: RunRecord = decode(&entry.value).unwrap();
    record.ended_ms = record.ended_ms.map(|ended_ms| ended_ms + 1_000);
    let again = Txn::new().put(entry.key, encode(&record));
    stage.write(again).await;
    let waited_s = stage.until_run(3 * DELAY_S).await.unwrap();
    let expected = DELAY_S..=DELAY_S + (DELAY_S - 100) + 4;
    assert!(expected.contains(&waited_s), "{waited_s}");
}
