//! The store's complete event log, stamped with virtual time and with who wrote.

use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use punctual::backend::{CoordinationBackend, Event, Revision, Span, Watch};
use punctual_memory::MemoryBackend;

use super::executor::{Executor, Proc};

/// One revision.
#[derive(Clone, Debug)]
pub struct Logged {
    /// Which.
    pub revision: Revision,
    /// Virtual time at which it was seen.
    pub at_ms: u64,
    /// The process whose request made it; `None` when a lease ended.
    pub writer: Option<Proc>,
    /// What changed, in key order.
    pub events: Vec<Event>,
}

/// Reads the store's history as it grows.
#[derive(Clone)]
pub struct Tap {
    executor: Executor,
    watch: Arc<Mutex<Box<dyn Watch>>>,
    log: Arc<Mutex<Vec<Logged>>>,
}

impl Tap {
    /// From revision 1 on.
    #[must_use]
    pub fn new(executor: Executor, store: &MemoryBackend) -> Self {
        let watch = store
            .watch(&Span::prefix([]), Revision(1))
            .now_or_never()
            .expect("the store in memory answers at once")
            .expect("nothing is compacted yet");
        Self {
            executor,
            watch: Arc::new(Mutex::new(watch)),
            log: Arc::default(),
        }
    }

    /// Takes what is new. `wrote`: the request of this process made this revision.
    pub fn drain(&self, wrote: Option<(Proc, Revision)>) {
        let mut watch = self.watch.lock().unwrap();
        let mut log = self.log.lock().unwrap();
        while let Some(changes) = watch.next().now_or_never() {
            let changes = changes.expect("read before anything is compacted");
            log.push(Logged {
                revision: changes.revision,
                at_ms: self.executor.now_ms(),
                writer: wrote
                    .filter(|(_, revision)| *revision == changes.revision)
                    .map(|(proc, _)| proc),
                events: changes.events,
            });
        }
    }

    /// Takes everything so far.
    #[must_use]
    pub fn take(&self) -> Vec<Logged> {
        std::mem::take(&mut self.log.lock().unwrap())
    }
}
