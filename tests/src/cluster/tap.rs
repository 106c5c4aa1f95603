//! The complete event log of a real store: a watch from the first revision on, taken up again
//! where it ended, however often it ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use punctual::backend::{
    BackendError, BackendExt as _, CoordinationBackend as _, Entry, Event, Key, LeaseId, Revision,
    Span, Txn, TxnOutcome,
};
use punctual::job::record::{LeaderRecord, RunRecord, decode};
use punctual::job::run::Owner;
use punctual::keys::Keys;
use punctual_etcd::{EtcdBackend, EtcdConfig};

use super::{PATIENCE, unix_ms};
use crate::sim::tap::Logged;
use crate::sim::world::NAMESPACE;

/// A tap on a store. Dropping it ends it.
#[derive(Debug)]
pub struct Tap {
    epoch_ms: i64,
    endpoints: Vec<String>,
    heard: Arc<Mutex<Heard>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What stands, by key.
pub type Standing = BTreeMap<Key, Entry>;

#[derive(Debug, Default)]
struct Heard {
    log: Vec<Logged>,
    standing: Standing,
}

impl Heard {
    fn take(&mut self, logged: Logged) {
        apply(&mut self.standing, &logged.events);
        self.log.push(logged);
    }
}

fn apply(standing: &mut Standing, events: &[Event]) {
    for event in events {
        match event {
            Event::Put(entry) => standing.insert(entry.key.clone(), entry.clone()),
            Event::Delete { key, .. } => standing.remove(key),
        };
    }
}

async fn connect(endpoints: &[String]) -> Option<EtcdBackend> {
    let mut config = EtcdConfig::new(endpoints);
    // Whatever etcd is on the PATH: nothing here is to be kept.
    config.allow_corrupting_version = true;
    EtcdBackend::connect(config).await.ok()
}

fn everything() -> Span {
    Span::prefix(format!("/{NAMESPACE}/"))
}

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

impl Tap {
    /// From now on; the store need not be there yet. Times count from `epoch_ms`.
    #[must_use]
    pub fn start(endpoints: Vec<String>, epoch_ms: i64) -> Self {
        let (heard, over) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let thread = {
            let (endpoints, heard, over) =
                (endpoints.clone(), Arc::clone(&heard), Arc::clone(&over));
            std::thread::spawn(move || runtime().block_on(run(&endpoints, epoch_ms, &heard, &over)))
        };
        Self {
            epoch_ms,
            endpoints,
            heard,
            over,
            thread: Some(thread),
        }
    }

    /// Everything so far.
    #[must_use]
    pub fn log(&self) -> Vec<Logged> {
        self.heard().log.clone()
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What stands, by what was heard.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.heard().standing.clone()
    }

    /// Everything until now, proven complete: what the events amount to is what the store holds.
    ///
    /// # Panics
    /// When it is not, or the store does not answer.
    #[must_use]
    pub fn complete(&self) -> Vec<Logged> {
        let listed = self.by_hand(async |store| store.list(&everything()).await);
        let (entries, at) = listed.expect("etcd answers");
        let start = Instant::now();
        loop {
            let log = self.log();
            let heard: Vec<Entry> = standing(&log, at).into_values().collect();
            if heard == entries {
                return log;
            }
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "the log is not complete: {} entries heard, {} listed at {at}",
                heard.len(),
                entries.len()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Who leads, and the revision of the term.
    #[must_use]
    pub fn leader(&self) -> Option<(Owner, Revision)> {
        let standing = self.standing();
        let entry = standing.get(&Keys::new(NAMESPACE).leader())?;
        let record: LeaderRecord = decode(&entry.value).ok()?;
        Some((record.owner, entry.created))
    }

    /// Whose sessions stand, with their entries.
    #[must_use]
    pub fn sessions(&self) -> Vec<(Owner, Entry)> {
        let keys = Keys::new(NAMESPACE);
        let owner = |key: &[u8]| {
            let (node, incarnation) = keys.parse_node(key)?;
            Some(Owner { node, incarnation })
        };
        self.standing()
            .into_iter()
            .filter_map(|(key, entry)| Some((owner(&key)?, entry)))
            .collect()
    }

    /// Attempts that did not end.
    #[must_use]
    pub fn unfinished(&self) -> Vec<RunRecord> {
        let runs = Keys::new(NAMESPACE).runs();
        self.standing()
            .into_iter()
            .filter(|(key, _)| runs.contains(key))
            .filter_map(|(_, entry)| decode(&entry.value).ok())
            .collect()
    }

    /// Ends a lease by hand.
    ///
    /// # Panics
    /// When the store does not do it.
    pub fn revoke(&self, lease: LeaseId) {
        let ended = self.by_hand(async move |store| store.revoke(lease).await);
        ended.expect("the lease is there");
    }

    /// Deletes a key by hand; twice, if the first answer is lost.
    ///
    /// # Panics
    /// When the store does not do it.
    pub fn delete(&self, key: &[u8]) {
        let txn = Txn::new().delete(key);
        let deleted = self.by_hand(async move |store| {
            let start = Instant::now();
            loop {
                match store.commit(&txn).await {
                    Err(error) if error.is_transient() && start.elapsed() < PATIENCE => {}
                    definite => return definite,
                }
            }
        });
        assert!(
            matches!(deleted, Ok(TxnOutcome::Applied { .. })),
            "{deleted:?}"
        );
    }

    fn by_hand<T>(&self, act: impl AsyncFnOnce(EtcdBackend) -> T) -> T {
        runtime().block_on(async {
            let start = Instant::now();
            let store = loop {
                if let Some(store) = connect(&self.endpoints).await {
                    break store;
                }
                assert!(start.elapsed() < PATIENCE, "etcd does not answer");
            };
            act(store).await
        })
    }

    /// Times of the log count from here, in Unix milliseconds.
    #[must_use]
    pub fn epoch_ms(&self) -> i64 {
        self.epoch_ms
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let failed = thread.join().is_err();
            assert!(!failed || std::thread::panicking(), "the tap failed");
        }
    }
}

/// What stood at a revision, by the events until then.
fn standing(log: &[Logged], at: Revision) -> Standing {
    let mut all = Standing::new();
    for logged in log.iter().take_while(|logged| logged.revision <= at) {
        apply(&mut all, &logged.events);
    }
    all
}

async fn run(endpoints: &[String], epoch_ms: i64, heard: &Mutex<Heard>, over: &AtomicBool) {
    let mut next = Revision(1);
    let mut connected = None;
    while !over.load(Ordering::SeqCst) {
        if connected.is_none() {
            connected = connect(endpoints).await;
        }
        let opened = match &connected {
            Some(store) => store.watch(&everything(), next).await,
            None => Err(BackendError::Unavailable("not there yet".into())),
        };
        let mut watch = match opened {
            Ok(watch) => watch,
            Err(error) => {
                assert!(error.is_transient(), "{error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while !over.load(Ordering::SeqCst) {
            let turn = tokio::time::timeout(Duration::from_millis(100), watch.next()).await;
            match turn {
                Err(_) => {}
                Ok(Ok(changes)) => {
                    next = Revision(changes.revision.0 + 1);
                    let at_ms = u64::try_from(unix_ms() - epoch_ms).unwrap_or(0);
                    let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
                    heard.take(Logged {
                        revision: changes.revision,
                        at_ms,
                        writer: None,
                        events: changes.events,
                    });
                }
                // What was left out would be found by nobody.
                Ok(Err(error)) => {
                    assert!(error.is_transient(), "{error}");
                    break;
                }
            }
        }
    }
}
