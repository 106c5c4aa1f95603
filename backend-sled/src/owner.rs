//! The one thread that owns model and disk.
//!
//! Everything goes through its queue, reads too: so nobody ever sees a state that is not durable,
//! and requests that wait while the disk works share the next flush. A round is: take what is
//! queued, apply it to the model, write one batch, flush once, and only then answer and publish.
//!
//! If a write fails, model and disk have parted ways and nobody can say what a restart will find.
//! The thread then ends for good without answering anyone: callers see a broken store.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use punctual::backend::{BackendResult, Changes, Revision, Span};
use punctual::env::SharedEnv;
use punctual::model::{Model, Revised, Step};
use tokio::sync::oneshot;

use crate::Fate;
use crate::disk::Disk;

/// A request: changes the model, and answers when that is durable.
pub(crate) type Request = Box<dyn FnOnce(&mut Model) -> (Vec<Arc<Revised>>, Answer) + Send>;
/// Lets the answer out.
pub(crate) type Answer = Box<dyn FnOnce() + Send>;

pub(crate) enum Message {
    Request(Request),
    Seek(Seeker),
    Close,
}

/// A watcher that wants to know what happens to a span from a revision on. Parked until
/// something does.
pub(crate) struct Seeker {
    pub(crate) span: Span,
    pub(crate) from: Revision,
    pub(crate) reply: oneshot::Sender<BackendResult<Found>>,
}

/// Changes for a watcher, and where to seek next.
pub(crate) struct Found {
    pub(crate) changes: Vec<Changes>,
    pub(crate) next: Revision,
}

/// Most messages that share a flush, so that the first of them does not wait for ever.
const MAX_ROUND: usize = 1_024;
/// Most bytes that share a flush, a request more or less.
const MAX_ROUND_BYTES: usize = 8 << 20;
/// Most revisions handed to a watcher at once, so that a long replay does not hold up the queue.
const MAX_FOUND: usize = 64;
/// Longest wait for a lease to end: the clock in `Env` may run faster than the thread's.
const MAX_WAIT: Duration = Duration::from_secs(60);

pub(crate) struct Owner {
    pub(crate) model: Model,
    pub(crate) disk: Disk,
    pub(crate) env: SharedEnv,
    pub(crate) queue: Receiver<Message>,
    pub(crate) parked: Vec<Seeker>,
    pub(crate) fate: Arc<Fate>,
}

/// What a round has gathered before it is durable.
#[derive(Default)]
struct Round {
    revised: Vec<Arc<Revised>>,
    answers: Vec<Answer>,
    seekers: Vec<Seeker>,
    bytes: usize,
    close: bool,
}

impl Round {
    fn is_full(&self) -> bool {
        self.close
            || self.answers.len() + self.seekers.len() >= MAX_ROUND
            || self.bytes >= MAX_ROUND_BYTES
    }

    fn add(&mut self, revised: Vec<Arc<Revised>>) {
        self.bytes += revised.iter().map(|r| r.bytes()).sum::<usize>();
        self.revised.extend(revised);
    }
}

impl Owner {
    /// Serves until closed or broken; says which through its fate before anyone can notice.
    pub(crate) fn serve(mut self) {
        loop {
            let round = self.round();
            if let Err(error) = self.make_durable(&round.revised) {
                self.fate.break_down(format!("a write failed: {error}"));
                // Dropped unanswered, all of them: whoever waits learns that the store is broken.
                return;
            }
            for answer in round.answers {
                answer();
            }
            if !round.revised.is_empty() {
                for seeker in std::mem::take(&mut self.parked) {
                    self.seek(seeker);
                }
            }
            for seeker in round.seekers {
                self.seek(seeker);
            }
            if round.close {
                self.fate.close();
                self.disk.close();
                return;
            }
        }
    }

    fn round(&mut self) -> Round {
        let mut round = Round::default();
        let first = match self.next_wait() {
            None => self
                .queue
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(wait) => self.queue.recv_timeout(wait),
        };
        match first {
            Ok(message) => self.take(message, &mut round),
            Err(RecvTimeoutError::Timeout) => self.let_time_pass(&mut round),
            Err(RecvTimeoutError::Disconnected) => round.close = true,
        }
        while !round.is_full() {
            match self.queue.try_recv() {
                Ok(message) => self.take(message, &mut round),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => round.close = true,
            }
        }
        round
    }

    fn next_wait(&self) -> Option<Duration> {
        let deadline_ms = self.model.next_deadline_ms()?;
        let left_ms = deadline_ms.saturating_sub(self.env.monotonic_ms());
        Some(Duration::from_millis(left_ms).min(MAX_WAIT))
    }

    fn take(&mut self, message: Message, round: &mut Round) {
        // For each request anew: a lease lives its full time from when it was asked for.
        self.let_time_pass(round);
        match message {
            Message::Request(request) => {
                let (revised, answer) = request(&mut self.model);
                round.add(revised);
                round.answers.push(answer);
            }
            Message::Seek(seeker) => round.seekers.push(seeker),
            Message::Close => round.close = true,
        }
    }

    fn let_time_pass(&mut self, round: &mut Round) {
        let Step { revised, .. } = self.model.advance(self.env.monotonic_ms());
        round.add(revised);
    }

    fn make_durable(&mut self, revised: &[Arc<Revised>]) -> std::io::Result<()> {
        if revised.is_empty() && self.model.next_lease() == self.disk.meta().next_lease {
            return Ok(());
        }
        self.disk.write(&self.model, revised)
    }

    /// Answers a seeker if there is something to say, else parks it.
    fn seek(&mut self, mut seeker: Seeker) {
        if seeker.reply.is_closed() {
            return;
        }
        match find(&self.model, &seeker.span, seeker.from) {
            Ok(found) if found.changes.is_empty() => {
                seeker.from = found.next;
                self.park(seeker);
            }
            // Nobody listens any more: then nobody misses it.
            found => drop(seeker.reply.send(found)),
        }
    }

    fn park(&mut self, seeker: Seeker) {
        // A watch parks at most one seeker; those of dropped watches are swept out before the
        // list grows.
        if self.parked.len() == self.parked.capacity() {
            self.parked.retain(|parked| !parked.reply.is_closed());
        }
        self.parked.push(seeker);
    }
}

/// What there is to report to a watch of `span` that stands at `from`.
pub(crate) fn find(model: &Model, span: &Span, from: Revision) -> BackendResult<Found> {
    let mut changes = Vec::new();
    let mut next = from;
    while changes.len() < MAX_FOUND {
        let seek = model.seek(span, next)?;
        next = seek.next;
        match seek.changes {
            Some(found) => changes.push(found),
            None => break,
        }
    }
    Ok(Found { changes, next })
}
