//! A watch: a place in the owner's history, and at most one question about it under way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use async_trait::async_trait;
use punctual::backend::{BackendError, BackendResult, Changes, Revision, Span, Watch};
use tokio::sync::oneshot;

use crate::Fate;
use crate::owner::{Found, Message, Seeker};

pub(crate) struct SledWatch {
    queue: Sender<Message>,
    fate: Arc<Fate>,
    span: Span,
    next: Revision,
    ready: VecDeque<Changes>,
    asked: Option<oneshot::Receiver<BackendResult<Found>>>,
    over: Option<BackendError>,
}

impl SledWatch {
    pub(crate) fn new(queue: Sender<Message>, fate: Arc<Fate>, span: Span, found: Found) -> Self {
        Self {
            queue,
            fate,
            span,
            next: found.next,
            ready: found.changes.into(),
            asked: None,
            over: None,
        }
    }

    fn ask(&self) -> BackendResult<oneshot::Receiver<BackendResult<Found>>> {
        let (reply, asked) = oneshot::channel();
        let seeker = Seeker {
            span: self.span.clone(),
            from: self.next,
            reply,
        };
        match self.queue.send(Message::Seek(seeker)) {
            Ok(()) => Ok(asked),
            Err(_) => Err(self.fate.not_seen()),
        }
    }

    /// Cancel safe: the question outlives a dropped call, and the next call takes its answer.
    async fn found(&mut self) -> BackendResult<Found> {
        let asked = match self.asked.take() {
            Some(asked) => asked,
            None => self.ask()?,
        };
        let answer = self.asked.insert(asked).await;
        self.asked = None;
        match answer {
            Ok(found) => found,
            Err(_) => Err(self.fate.not_seen()),
        }
    }
}

#[async_trait]
impl Watch for SledWatch {
    async fn next(&mut self) -> BackendResult<Changes> {
        loop {
            if let Some(changes) = self.ready.pop_front() {
                return Ok(changes);
            }
            if let Some(over) = &self.over {
                return Err(over.clone());
            }
            match self.found().await {
                Ok(found) => {
                    self.next = found.next;
                    self.ready.extend(found.changes);
                }
                Err(error) => self.over = Some(error),
            }
        }
    }
}
