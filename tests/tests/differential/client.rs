//! A client that asks a store at random, behind a network that fails at random.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use punctual::backend::{
    BackendError, BackendResult, CoordinationBackend, Page, PageLimit, Revision, Span, Watch,
    Write, limits,
};
use punctual::model::{Answer, Operation};
use punctual_etcd::{EtcdBackend, EtcdConfig};
use punctual_tests::proxy::{Proxy, Wire};
use punctual_tests::sim::rng::Rng;
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use crate::checker::{Checked, Checker};
use crate::leases::each_write;
use crate::possible::Id;
use crate::steps::{Sense, Step, span, step};

/// So long a call may take.
pub(crate) const CALL: Duration = Duration::from_millis(600);
/// A request may arrive so much later than its caller waits for it.
pub(crate) const LATE: Duration = Duration::from_millis(400);
/// Longer than the shortest lease.
const SHORTEST_LEASE: Duration = Duration::from_millis(limits::MIN_LEASE_TTL_MS + 200);
/// In so many of a thousand calls the network fails.
const FAULTS_PERMILLE: u32 = 40;
/// A watch that has something to report does so within this.
const PATIENCE: Duration = Duration::from_secs(20);

/// A store as a client uses it: as it is, or with a fault that must be found.
pub(crate) type Wrap = fn(EtcdBackend) -> Arc<dyn CoordinationBackend>;

/// What the network does to a call.
#[derive(Clone, Copy, Debug)]
enum Fault {
    LostReply,
    LostRequest,
    /// It arrives when its caller has given up.
    Late,
    /// The same, and by then its connection is gone.
    LateAndAlone,
    /// The connection breaks while the call is open.
    Break,
    /// It broke before.
    Broken,
}

/// What reading a watch came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    Changes,
    Quiet,
    /// It lost its history, and will not do better.
    Refused,
    /// The network failed it.
    Broken,
}

/// A watch, and how far it has come.
struct Open {
    watch: Box<dyn Watch>,
    span: Span,
    next: Revision,
}

pub(crate) struct Client {
    name: String,
    direct: EtcdBackend,
    store: Arc<dyn CoordinationBackend>,
    proxy: Proxy,
    rng: Rng,
    steps: TestRunner,
    watches: Vec<Open>,
    /// Writes of unknown outcome, to be sent again.
    unknown: Vec<Operation>,
    asked: u64,
}

/// The checker, and a way to the store on which nothing fails.
pub(crate) struct Watcher {
    pub(crate) checker: Mutex<Checker>,
    pub(crate) direct: EtcdBackend,
}

impl Watcher {
    /// What stands in the store now, and stood at the revisions that some state has still to come
    /// to, as far as they can be read.
    async fn look(&self, checker: &Checker) -> Vec<Page> {
        let newest = self.read(None).await.unwrap();
        let first = checker.least_revision().0 + 1;
        let mut seen = Vec::new();
        for revision in first..newest.revision.0 {
            seen.extend(self.read(Some(Revision(revision))).await);
        }
        seen.push(newest);
        seen
    }

    /// `None` when it is compacted.
    async fn read(&self, at: Option<Revision>) -> Option<Page> {
        loop {
            let all = Span::prefix("");
            match self.direct.range(&all, PageLimit::default(), at).await {
                Ok(page) => return Some(page),
                Err(BackendError::Compacted { .. }) if at.is_some() => return None,
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    }

    async fn end(&self, id: Id, answer: BackendResult<Answer>) -> Checked {
        // Nobody asks anything before it is known what this answer means.
        let mut checker = self.checker.lock().await;
        let seen = if checker.is_plain(id, &answer) {
            Vec::new()
        } else {
            self.look(&checker).await
        };
        checker.end(id, answer, seen)
    }
}

impl Client {
    /// Connects through a network of its own.
    pub(crate) async fn connect(port: u16, wrap: Wrap, name: String, rng: Rng) -> Self {
        let seed = rng.branch("proxy", 0).next_u64();
        let proxy = Proxy::start(port, seed);
        let direct = connect(proxy.endpoint(), CALL).await;
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&rng.branch("steps", 0).next_u64().to_be_bytes());
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        Self {
            name,
            store: wrap(direct.clone()),
            direct,
            proxy,
            rng,
            steps: TestRunner::new_with_rng(Config::default(), random),
            watches: Vec::new(),
            unknown: Vec::new(),
            asked: 0,
        }
    }

    /// Asks until nothing is left to ask.
    pub(crate) async fn work(&mut self, watcher: &Watcher, left: &Cell<usize>) -> Checked {
        let half = left.get() / 2;
        let mut waited = false;
        while left.get() > 0 {
            if left.get() <= half && !waited {
                waited = true;
                // However fast the machine is, leases end between requests.
                sleep(SHORTEST_LEASE).await;
            }
            let asked = self.asked;
            self.step(watcher).await?;
            // Watches come on top.
            let asked = usize::try_from(self.asked - asked).unwrap();
            left.set(left.get().saturating_sub(asked));
        }
        Ok(())
    }

    async fn step(&mut self, watcher: &Watcher) -> Checked {
        let step = step(false).new_tree(&mut self.steps).unwrap().current();
        let (model, leases) = {
            let checker = watcher.checker.lock().await;
            (checker.guess(), checker.leases().all())
        };
        let sense = Sense {
            model: &model,
            leases: &leases,
            now_ms: 0,
        };
        match step {
            // Time goes on by itself: the place for the cure of an unknown outcome.
            Step::Advance { by_ms } => match self.unknown.pop() {
                Some(again) => self.request(&again, watcher).await,
                None if by_ms % 2 == 0 => self.request(&everything(), watcher).await,
                None => {
                    sleep(Duration::from_millis(by_ms / 40)).await;
                    Ok(())
                }
            },
            Step::Watch { span: index, back } => {
                let from = sense.back(back);
                self.watch(span(index), from, watcher).await
            }
            Step::ReadWatch(index) if index < self.watches.len() => self
                .read_watch(index, Duration::from_millis(20), watcher)
                .await
                .map(drop),
            Step::DropWatch(index) if index < self.watches.len() => {
                self.watches.swap_remove(index);
                Ok(())
            }
            step => match sense.operation(&step) {
                Some(mut operation) => {
                    let tag = format!("{}{}", self.name, self.asked);
                    each_write(&mut operation, |write| {
                        // No two clients write alike, so that it shows who did.
                        if let Write::Put { value, .. } = write {
                            value.extend(tag.as_bytes());
                        }
                    });
                    self.request(&operation, watcher).await
                }
                None => Ok(()),
            },
        }
    }

    async fn request(&mut self, operation: &Operation, watcher: &Watcher) -> Checked {
        self.asked += 1;
        let fault = self.fault();
        let (asked, id) = {
            let mut checker = watcher.checker.lock().await;
            if let Some(fault) = fault {
                checker.tell(format!("{}: the network fails: {fault:?}", self.name));
            }
            let asked = checker.leases().for_the_store(operation);
            (asked, checker.begin(&self.name, operation))
        };
        let answer = self.suffer(fault, &asked).await;
        let is_unknown = matches!(answer, Err(BackendError::Unknown(_)));
        watcher.end(id, answer).await?;
        let is_txn = matches!(
            operation,
            Operation::Commit(_) | Operation::CommitBatch { .. }
        );
        if is_unknown && is_txn {
            self.unknown.push(operation.clone());
        }
        Ok(())
    }

    fn fault(&mut self) -> Option<Fault> {
        self.rng.permille(FAULTS_PERMILLE).then(|| {
            self.rng.pick(&[
                Fault::LostReply,
                Fault::LostReply,
                Fault::LostRequest,
                Fault::Late,
                Fault::LateAndAlone,
                Fault::Break,
                Fault::Break,
                Fault::Broken,
            ])
        })
    }

    /// Asks while the network fails.
    async fn suffer(
        &mut self,
        fault: Option<Fault>,
        operation: &Operation,
    ) -> BackendResult<Answer> {
        let late = Duration::from_millis(self.rng.range(20, 360));
        let soon = Duration::from_micros(self.rng.range(0, 4_000));
        match fault {
            None => {}
            Some(Fault::LostReply) => self.proxy.set(Wire::ANSWERS_LOST),
            Some(Fault::LostRequest) => self.proxy.set(Wire::REQUESTS_LOST),
            Some(Fault::Late | Fault::LateAndAlone) => {
                self.proxy.set(Wire::requests_late(CALL + late));
            }
            Some(Fault::Broken) => self.proxy.kill_connections(),
            Some(Fault::Break) => {
                let breaking = async {
                    sleep(soon).await;
                    self.proxy.kill_connections();
                };
                return tokio::join!(self.ask(operation), breaking).0;
            }
        }
        let answer = self.ask(operation).await;
        if matches!(fault, Some(Fault::LateAndAlone)) {
            self.proxy.kill_connections();
        }
        self.proxy.set(Wire::default());
        answer
    }

    async fn ask(&self, operation: &Operation) -> BackendResult<Answer> {
        let store = &self.store;
        match operation {
            Operation::Range { span, limit, at } => {
                store.range(span, *limit, *at).await.map(Answer::Page)
            }
            Operation::Commit(txn) => store.commit(txn).await.map(Answer::Txn),
            Operation::CommitBatch { guard, txns } => {
                store.commit_batch(guard, txns).await.map(Answer::Batch)
            }
            Operation::Grant { ttl_ms } => store.grant(*ttl_ms).await.map(Answer::Lease),
            Operation::KeepAlive(lease) => store.keep_alive(*lease).await.map(Answer::Lease),
            Operation::Revoke(lease) => store.revoke(*lease).await.map(|()| Answer::Done),
            Operation::Compact { revision } => {
                self.direct.compact(*revision).await.map(|()| Answer::Done)
            }
            Operation::Advance { .. } => unreachable!("time goes on by itself"),
        }
    }

    async fn watch(&mut self, span: Span, from: Revision, watcher: &Watcher) -> Checked {
        match self.store.watch(&span, from).await {
            Ok(watch) => {
                let next = from;
                self.watches.push(Open { watch, span, next });
                Ok(())
            }
            Err(error) => self.over(&error, from, watcher).await.map(drop),
        }
    }

    /// Reads one change of a watch, if it reports one in time. A watch that ended is removed.
    async fn read_watch(
        &mut self,
        index: usize,
        within: Duration,
        watcher: &Watcher,
    ) -> Checked<Read> {
        let open = &mut self.watches[index];
        let Ok(found) = timeout(within, open.watch.next()).await else {
            return Ok(Read::Quiet);
        };
        match found {
            Ok(changes) => {
                let (next, revision) = (open.next, changes.revision);
                open.next = Revision(revision.0 + 1);
                let span = open.span.clone();
                let mut checker = watcher.checker.lock().await;
                let seen = if checker.least_revision() >= revision {
                    Vec::new()
                } else {
                    watcher.look(&checker).await
                };
                checker.changes(&self.name, &span, next, changes, seen)?;
                Ok(Read::Changes)
            }
            Err(error) => {
                let open = self.watches.swap_remove(index);
                self.over(&error, open.next, watcher).await
            }
        }
    }

    /// A watch that stood at `next` has ended.
    async fn over(&self, error: &BackendError, next: Revision, watcher: &Watcher) -> Checked<Read> {
        let mut checker = watcher.checker.lock().await;
        match error {
            BackendError::Compacted { oldest } => {
                let seen = watcher.look(&checker).await;
                checker.refused(&self.name, next, *oldest, seen)?;
                Ok(Read::Refused)
            }
            BackendError::Unavailable(_) => Ok(Read::Broken),
            other => Err(checker.violation(&format!("a watch ended: {other}"))),
        }
    }

    /// The network is well again: the whole state can be read, and every watch reports what it
    /// owes.
    pub(crate) async fn finish(&mut self, watcher: &Watcher) -> Checked {
        self.proxy.set(Wire::default());
        self.read_everything(watcher).await?;
        while let Some(Open { span, next, .. }) = self.watches.first() {
            let (span, next) = (span.clone(), *next);
            if !watcher.checker.lock().await.owes(&span, next) {
                self.watches.swap_remove(0);
                continue;
            }
            match self.read_watch(0, PATIENCE, watcher).await? {
                Read::Changes | Read::Refused => {}
                // Where it stood, another one goes on.
                Read::Broken => self.watch(span, next, watcher).await?,
                Read::Quiet => {
                    let what = format!("a watch of {span:?} at {next} keeps silent");
                    return Err(watcher.checker.lock().await.violation(&what));
                }
            }
        }
        Ok(())
    }

    async fn read_everything(&mut self, watcher: &Watcher) -> Checked {
        for _ in 0..50 {
            let id = watcher
                .checker
                .lock()
                .await
                .begin(&self.name, &everything());
            let answer = self.ask(&everything()).await;
            let is_read = answer.is_ok();
            watcher.end(id, answer).await?;
            if is_read {
                return Ok(());
            }
            sleep(CALL / 4).await;
        }
        Err(watcher
            .checker
            .lock()
            .await
            .violation("nothing can be read any more"))
    }
}

/// A way to the store.
pub(crate) async fn connect(endpoint: String, request_timeout: Duration) -> EtcdBackend {
    let mut config = EtcdConfig::new([endpoint]);
    config.watch_silence = Duration::from_secs(1);
    // Whatever etcd is on the PATH: nothing here is to be kept.
    config.allow_corrupting_version = true;
    config.request_timeout = request_timeout;
    loop {
        // A busy machine is no fault of the store.
        match EtcdBackend::connect(config.clone()).await {
            Ok(store) => return store,
            Err(_) => sleep(CALL).await,
        }
    }
}

fn everything() -> Operation {
    Operation::Range {
        span: Span::prefix(""),
        limit: PageLimit::default(),
        at: None,
    }
}
