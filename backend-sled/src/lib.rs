//! The embedded store: one process, one directory, durable. [`punctual::model`] decides every
//! answer; [sled](https://docs.rs/sled) keeps what it decided.
//!
//! # What is promised
//! * **Acknowledged is durable.** One thread owns the state. It applies what is queued, writes it
//!   as one atomic batch, flushes, and only then answers; reads wait in the same queue, so nobody
//!   acts on what a crash could take back. What that survives is a choice: [`Durability`].
//! * **One process.** The directory is locked. Whoever opens it is alone, so the leases in it
//!   belong to a dead process: their keys are deleted as one revision before anything is served.
//! * **Nothing goes back.** Revisions and numbers of leases continue over restarts. The history
//!   does not: a watch from before the restart ends in
//!   [`Compacted`](BackendError::Compacted).
//! * **Damage is found, never served.** Each record carries a checksum, the meta record a sum over
//!   all of them, and a file beside the database remembers how many writes were acknowledged. Who
//!   finds anything else gets [`OpenError::Damaged`]; [`export`] and [`import`] are the way out.
//!
//! # What can go wrong
//! * **A write fails** (disk full, disk gone). Whether it will be there after a restart cannot be
//!   known, so the store is [`Broken`](BackendError::Broken) from then on and acknowledges nothing
//!   more. Opening it again settles the question.
//! * **Memory.** The live state is held in memory, and the history as far as [`Retention`] keeps
//!   it: count 300 bytes an entry beside its key and value (365 MB for 500,000 entries of 450
//!   bytes, measured after opening).
//! * **Disk.** sled alone would take eleven times the live data under steady churn. So the store
//!   is written anew when it has grown by twice its live data (`Options::rewrite_above_bytes`):
//!   count on four times the live data, on seven while that goes on under full load, and never on
//!   less than a few MiB (`examples/churn.rs`). Opening needs room for a copy.
//! * **Blocking.** [`SledBackend::open`] reads the whole database, and [`SledBackend::close`] (like
//!   the drop of the last handle) waits for the thread to end. Both block; everything else is
//!   async and never blocks on the disk.

mod codec;
mod disk;
mod dump;
mod error;
mod load;
mod owner;
mod place;
mod rewrite;
mod watch;
mod witness;

pub use dump::{DumpError, Exported, Imported, export, import};
pub use error::OpenError;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;

use async_trait::async_trait;
use punctual::backend::{
    BackendError, BackendInfo, BackendResult, BatchOutcome, CoordinationBackend, Lease, LeaseId,
    Page, PageLimit, Requirement, Revision, Span, Txn, TxnOutcome, Usage, Watch,
};
use punctual::env::SharedEnv;
use punctual::model::{Model, Retention, Step};
use tokio::sync::oneshot;

use crate::disk::Disk;
use crate::owner::{Message, Owner, find};
use crate::watch::SledWatch;

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The death of the process at any moment, `kill -9` included. Not a loss of power: the
    /// operating system has the data, and the disk has most of it. A store that lost acknowledged
    /// writes this way says so when it is opened.
    #[default]
    Flush,
    /// A loss of power as well, as far as the disk keeps what it confirms: every flush is followed
    /// by an fsync. Costs a few milliseconds for each group of writes.
    Fsync,
}

/// How to open a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// What an acknowledged write survives.
    pub durability: Durability,
    /// How much of the past can be read and watched.
    pub retention: Retention,
    /// The store is written anew, in the background, when it has grown by more than twice its live
    /// data and takes more than so many bytes on disk.
    pub rewrite_above_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::default(),
            retention: Retention::default(),
            rewrite_above_bytes: 8 << 20,
        }
    }
}

/// A store in a directory. Clones are handles on the same store; the last one closes it.
#[derive(Clone, Debug)]
pub struct SledBackend {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    cluster: u64,
    queue: Sender<Message>,
    fate: Arc<Fate>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// How the owner's thread ended, if it has. Set before anything that waits for the thread can
/// see that it is gone.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    ended: OnceLock<End>,
}

#[derive(Clone, Debug)]
enum End {
    Closed,
    Broken(String),
}

impl Fate {
    fn close(&self) {
        // The first end counts.
        let _ = self.ended.set(End::Closed);
    }

    fn break_down(&self, why: String) {
        tracing::error!(why, "the store is broken and acknowledges nothing more");
        let _ = self.ended.set(End::Broken(why));
    }

    /// For a call that the owner never saw, or that only asked.
    fn not_seen(&self) -> BackendError {
        match self.ended.get() {
            Some(End::Broken(why)) => BackendError::Broken(why.clone()),
            Some(End::Closed) | None => BackendError::Unavailable("the store is closed".into()),
        }
    }

    /// For a call that was sent to the owner and got no answer.
    fn not_answered(&self) -> BackendError {
        match self.ended.get() {
            // All that came before the close was answered; what came behind it was not seen.
            Some(_) => self.not_seen(),
            // A panic under way.
            None => BackendError::Unknown("the store ended before it answered".into()),
        }
    }
}

impl SledBackend {
    /// Opens the store that lies in `directory`, or makes one there. Leases live by the clock of
    /// `env`. Blocks while it reads.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        directory: impl AsRef<Path>,
        env: SharedEnv,
        options: Options,
    ) -> Result<Self, OpenError> {
        let directory = directory.as_ref();
        let (mut disk, restored) = Disk::open(directory, options, env.random_u64())?;
        let Step { answer, revised } = Model::restore(restored, options.retention);
        let mut model = answer.map_err(|error| OpenError::damaged(directory, error.to_string()))?;
        // From here on leases count from now.
        let _ = model.advance(env.monotonic_ms());
        if !revised.is_empty() {
            disk.write(&model, &revised)
                .map_err(OpenError::io(directory))?;
        }
        tracing::info!(
            directory = %directory.display(), revision = %model.revision(), keys = model.len(),
            "store opened"
        );
        Self::start(directory, env, disk, model)
    }

    fn start(
        directory: &Path,
        env: SharedEnv,
        disk: Disk,
        model: Model,
    ) -> Result<Self, OpenError> {
        let (sender, queue) = mpsc::channel();
        let cluster = disk.meta().cluster;
        let fate = Arc::new(Fate::default());
        let owner = Owner {
            model,
            disk,
            env,
            queue,
            parked: Vec::new(),
            fate: Arc::clone(&fate),
        };
        let seal = Arc::clone(&fate);
        let thread = std::thread::Builder::new()
            .name("punctual-sled".into())
            .spawn(move || run(owner, &seal))
            .map_err(OpenError::io(directory))?;
        Ok(Self {
            inner: Arc::new(Inner {
                directory: directory.to_path_buf(),
                cluster,
                queue: sender,
                fate,
                thread: Mutex::new(Some(thread)),
            }),
        })
    }

    /// A random number made with the store, which tells it from all others.
    #[must_use]
    pub fn cluster_id(&self) -> u64 {
        self.inner.cluster
    }

    /// Forgets the history before `revision`, which stays readable.
    ///
    /// # Errors
    /// [`BackendError::Rejected`] when the revision lies in the future.
    pub async fn compact(&self, revision: Revision) -> BackendResult<()> {
        self.inspect(move |model| model.compact(revision)).await
    }

    /// Answers what was asked before, ends the thread and gives the directory free. Blocks
    /// meanwhile. Later calls on any handle answer [`BackendError::Unavailable`].
    pub fn close(&self) {
        self.inner.close();
    }

    /// Sends a request to the owner and waits for its durable answer.
    async fn call<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut Model) -> Step<T> + Send + 'static,
    ) -> BackendResult<T> {
        let (reply, answer) = oneshot::channel();
        let request = Message::Request(Box::new(move |model| {
            let step = request(model);
            // A caller that has gone away misses the answer; the write stands.
            let out = move || drop(reply.send(step.answer));
            (step.revised, Box::new(out))
        }));
        if self.inner.queue.send(request).is_err() {
            return Err(self.inner.fate.not_seen());
        }
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(self.inner.fate.not_answered()),
        }
    }

    /// Sends a request that changes no key.
    async fn inspect<T: Send + 'static>(
        &self,
        request: impl FnOnce(&mut Model) -> BackendResult<T> + Send + 'static,
    ) -> BackendResult<T> {
        self.call(|model| Step {
            answer: request(model),
            revised: Vec::new(),
        })
        .await
    }
}

/// The body of the owner's thread. A panic in there leaves a store that nobody can vouch for.
fn run(owner: Owner, fate: &Fate) {
    let served = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| owner.serve()));
    if served.is_err() {
        fate.break_down("a panic inside the store".into());
    }
}

impl Inner {
    fn close(&self) {
        // Cannot be sent when the thread has ended, which is what we want.
        let _ = self.queue.send(Message::Close);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // It catches its own panics.
            let _ = thread.join();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

#[async_trait]
impl CoordinationBackend for SledBackend {
    async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        let span = span.clone();
        self.inspect(move |model| model.range(&span, limit, at))
            .await
    }

    async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        let txn = txn.clone();
        self.call(move |model| model.commit(&txn)).await
    }

    async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        let (guard, txns) = (guard.to_vec(), txns.to_vec());
        self.call(move |model| model.commit_batch(&guard, &txns))
            .await
    }

    async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        self.call(move |model| model.grant(ttl_ms)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> BackendResult<Lease> {
        self.call(move |model| model.keep_alive(lease)).await
    }

    async fn revoke(&self, lease: LeaseId) -> BackendResult<()> {
        self.call(move |model| model.revoke(lease)).await
    }

    async fn watch(&self, span: &Span, from: Revision) -> BackendResult<Box<dyn Watch>> {
        let queue = self.inner.queue.clone();
        let fate = Arc::clone(&self.inner.fate);
        let span = span.clone();
        let within = span.clone();
        let found = self
            .inspect(move |model| find(model, &within, from))
            .await?;
        Ok(Box::new(SledWatch::new(queue, fate, span, found)))
    }
}

#[async_trait]
impl BackendInfo for SledBackend {
    fn version(&self) -> String {
        "sled 0.34.7".into()
    }

    async fn usage(&self) -> BackendResult<Usage> {
        match place::bytes_in(&self.inner.directory) {
            Ok(used_bytes) => Ok(Usage {
                used_bytes,
                quota_bytes: None,
            }),
            Err(error) => Err(BackendError::Unavailable(error.to_string())),
        }
    }
}
