//! Runs steps on a backend and on the model, and compares.

use std::sync::Arc;

use futures_util::FutureExt as _;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use punctual::backend::{
    BackendError, BackendResult, Changes, CoordinationBackend, LeaseId, PageLimit, Revision, Span,
    Watch,
};
use punctual::env::Env as _;
use punctual::model::{Answer, Model, Operation, Restored, Retention, Revised};
use punctual_memory::MemoryBackend;
use punctual_sled::{Options, SledBackend};
use punctual_tests::manual::ManualEnv;

use crate::counts::Counts;
use crate::steps::{Sense, Step, span};

/// A backend under test.
pub(crate) trait Subject {
    fn store(&self) -> &dyn CoordinationBackend;
    fn env(&self) -> &ManualEnv;
    fn compact(&self, revision: Revision) -> impl Future<Output = BackendResult<()>>;
    /// Closes and opens again.
    fn reopen(&mut self);
}

pub(crate) struct Memory {
    env: Arc<ManualEnv>,
    store: MemoryBackend,
}

impl Memory {
    pub(crate) fn new(retention: Retention) -> Self {
        let env = ManualEnv::new();
        let store = MemoryBackend::with_retention(env.shared(), retention);
        Self { env, store }
    }
}

impl Subject for Memory {
    fn store(&self) -> &dyn CoordinationBackend {
        &self.store
    }

    fn env(&self) -> &ManualEnv {
        &self.env
    }

    async fn compact(&self, revision: Revision) -> BackendResult<()> {
        self.store.compact(revision)
    }

    fn reopen(&mut self) {
        unreachable!("a store in memory has no second life");
    }
}

pub(crate) struct Sled {
    env: Arc<ManualEnv>,
    store: SledBackend,
    options: Options,
    place: tempfile::TempDir,
}

impl Sled {
    pub(crate) fn new(retention: Retention, rewrite_above_bytes: u64) -> Self {
        let place = tempfile::tempdir().unwrap();
        let env = ManualEnv::new();
        let options = Options {
            retention,
            rewrite_above_bytes,
            ..Options::default()
        };
        let store = SledBackend::open(place.path(), env.shared(), options).unwrap();
        Self {
            env,
            store,
            options,
            place,
        }
    }
}

impl Subject for Sled {
    fn store(&self) -> &dyn CoordinationBackend {
        &self.store
    }

    fn env(&self) -> &ManualEnv {
        &self.env
    }

    fn compact(&self, revision: Revision) -> impl Future<Output = BackendResult<()>> {
        self.store.compact(revision)
    }

    fn reopen(&mut self) {
        self.store.close();
        self.store = SledBackend::open(self.place.path(), self.env.shared(), self.options).unwrap();
    }
}

/// What reading a watch came to.
enum Read {
    Changes,
    Quiet,
    Ended,
}

/// A watch, and how far it has come.
struct Open {
    watch: Box<dyn Watch>,
    span: Span,
    next: Revision,
}

struct Run<'a, S> {
    subject: &'a mut S,
    model: Model,
    retention: Retention,
    leases: Vec<LeaseId>,
    watches: Vec<Open>,
    /// All that ever happened, compacted or not.
    all: Vec<Arc<Revised>>,
    counts: &'a mut Counts,
}

pub(crate) fn run(
    subject: &mut impl Subject,
    retention: Retention,
    steps: &[Step],
    counts: &mut Counts,
) -> TestCaseResult {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut run = Run {
        subject,
        model: Model::new(retention),
        retention,
        leases: Vec::new(),
        watches: Vec::new(),
        all: Vec::new(),
        counts,
    };
    runtime.block_on(async {
        for step in steps {
            run.step(step).await?;
        }
        run.finish().await
    })
}

impl<S: Subject> Run<'_, S> {
    async fn step(&mut self, step: &Step) -> TestCaseResult {
        let sense = Sense {
            model: &self.model,
            leases: &self.leases,
            now_ms: self.subject.env().monotonic_ms(),
        };
        if let Some(operation) = sense.operation(step) {
            return self.request(&operation).await;
        }
        match step {
            Step::Watch { span: index, back } => {
                let from = sense.back(*back);
                self.open_watch(span(*index), from).await
            }
            Step::ReadWatch(index) if *index < self.watches.len() => {
                self.read_watch(*index).await.map(drop)
            }
            Step::DropWatch(index) if *index < self.watches.len() => {
                self.watches.swap_remove(*index);
                Ok(())
            }
            Step::Reopen => self.reopen().await,
            _ => Ok(()),
        }
    }

    async fn request(&mut self, operation: &Operation) -> TestCaseResult {
        let expected = self.model.apply(operation);
        if let Operation::Advance { now_ms } = operation {
            let env = self.subject.env();
            env.advance(now_ms - env.monotonic_ms());
            self.counts.leases_ended += expected.revised.len() as u64;
        }
        let answer = self.ask(operation).await;
        prop_assert_eq!(&answer, &expected.answer, "{:?}", operation);
        if let (Operation::Grant { .. }, Ok(Answer::Lease(lease))) = (operation, &answer) {
            self.leases.push(lease.id);
        }
        self.counts.note(&answer);
        self.all.extend(expected.revised);
        Ok(())
    }

    async fn ask(&self, operation: &Operation) -> BackendResult<Answer> {
        let store = self.subject.store();
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
            // The clock was moved already.
            Operation::Advance { .. } => Ok(Answer::Done),
            Operation::Compact { revision } => {
                self.subject.compact(*revision).await.map(|()| Answer::Done)
            }
        }
    }

    async fn open_watch(&mut self, span: Span, from: Revision) -> TestCaseResult {
        let expected = self.model.seek(&span, from).map(drop);
        let opened = self.subject.store().watch(&span, from).await;
        match opened {
            Ok(watch) => {
                prop_assert_eq!(Ok(()), expected);
                let next = from;
                self.watches.push(Open { watch, span, next });
            }
            Err(error) => {
                prop_assert_eq!(Err(error), expected);
                self.counts.watches_ended += 1;
            }
        }
        Ok(())
    }

    /// Reads one change of a watch, if it has one to report. A watch that ended is removed.
    async fn read_watch(&mut self, index: usize) -> Result<Read, TestCaseError> {
        let open = &mut self.watches[index];
        let found = match poll(open, self.subject.store()).await {
            Some(found) => found,
            None => {
                let expected = next_of(&self.all, open);
                prop_assert_eq!(None, expected, "the watch has more to report");
                self.counts.watches_quiet += 1;
                // A watch that waits has seen everything up to now.
                open.next = open.next.max(Revision(self.model.revision().0 + 1));
                return Ok(Read::Quiet);
            }
        };
        match found {
            Ok(changes) => {
                let expected = next_of(&self.all, open);
                open.next = Revision(changes.revision.0 + 1);
                prop_assert_eq!(Some(changes), expected);
                self.counts.changes_watched += 1;
                Ok(Read::Changes)
            }
            Err(error) => {
                // The answer may have waited here while more was compacted.
                match (self.model.seek(&open.span, open.next), &error) {
                    (
                        Err(BackendError::Compacted { oldest: now }),
                        BackendError::Compacted { oldest: then },
                    ) => prop_assert!(*then <= now && *then > open.next),
                    other => prop_assert!(false, "{:?}", other),
                }
                self.watches.swap_remove(index);
                self.counts.watches_ended += 1;
                Ok(Read::Ended)
            }
        }
    }

    async fn reopen(&mut self) -> TestCaseResult {
        let restored = Restored {
            entries: self
                .model
                .entries(&Span::prefix(""))
                .map(|entry| entry.as_ref().clone())
                .collect(),
            revision: self.model.revision(),
            next_lease: self.model.next_lease(),
        };
        let step = Model::restore(restored, self.retention);
        self.model = step.answer.unwrap();
        let now_ms = self.subject.env().monotonic_ms();
        prop_assert!(self.model.advance(now_ms).revised.is_empty());
        self.all.extend(step.revised);
        self.subject.reopen();
        for mut open in std::mem::take(&mut self.watches) {
            // What it had fetched already it may still report; then it must end.
            let over = loop {
                match open.watch.next().await {
                    Ok(changes) => {
                        let expected = next_of(&self.all, &open);
                        open.next = Revision(changes.revision.0 + 1);
                        prop_assert_eq!(Some(changes), expected);
                    }
                    Err(over) => break over,
                }
            };
            let ended = matches!(
                over,
                BackendError::Unavailable(_) | BackendError::Compacted { .. }
            );
            prop_assert!(ended, "{:?}", over);
        }
        Ok(())
    }

    /// The whole state is equal, and every watch reports all that is left.
    async fn finish(mut self) -> TestCaseResult {
        let everything = Operation::Range {
            span: Span::prefix(""),
            limit: PageLimit::default(),
            at: None,
        };
        self.request(&everything).await?;
        while !self.watches.is_empty() {
            if matches!(self.read_watch(0).await?, Read::Quiet) {
                self.watches.swap_remove(0);
            }
        }
        Ok(())
    }
}

/// The next change of a watch, if it has one. The call is dropped when it has to wait: nothing
/// must be lost by that. A request in between makes sure that a store with a thread of its own
/// has had its say.
async fn poll(open: &mut Open, store: &dyn CoordinationBackend) -> Option<BackendResult<Changes>> {
    for _ in 0..2 {
        if let Some(found) = open.watch.next().now_or_never() {
            return Some(found);
        }
        let nothing = Span::key("nothing");
        let page = store.range(&nothing, PageLimit::default(), None).await;
        assert!(page.is_ok(), "{page:?}");
    }
    open.watch.next().now_or_never()
}

/// What a watch has to report next, of all that ever happened.
fn next_of(all: &[Arc<Revised>], open: &Open) -> Option<Changes> {
    let from = all.partition_point(|revised| revised.revision < open.next);
    all[from..]
        .iter()
        .find_map(|revised| revised.within(&open.span))
}
