//! Watches that end honestly.
//!
//! # What etcd promises, and what is added here
//! * A response holds whole revisions as long as fragments are not asked for, so grouping its
//!   events by revision is all there is to joining them; within one they come in the order of the
//!   writes and are sorted here.
//! * **A start at the compacted revision.** etcd accepts it, but what that revision deleted may be
//!   gone. So the past is watched from one revision *before* the start, which etcd refuses in
//!   exactly that case, and the surplus is dropped. A start in the future is taken as it is.
//! * **Silence.** A watch without changes says nothing, and so does a dead one. After a silence it
//!   asks for its progress; when nothing comes back for as long again, it ends in an error. Only
//!   waiting counts: a watch that nobody reads does not end for that.
//! * **No leader.** Streams require one: etcd ends them when the member has lost its leader.
//!
//! # What is left
//! A watch that lags behind until history is compacted right where it stands can lose a delete of
//! that very revision (a fault of etcd before 3.4.36, 3.5.18 and 3.6). The scheduler's periodic
//! re-list finds it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};
use punctual::backend::{BackendError, BackendResult, Changes, Event, Revision, Span, Watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::convert::{self, Bounds};
use crate::error::{Call, Failure, Sign};
use crate::member::Lines;
use crate::store::Store;

/// An open stream and the answer that opened it.
struct Opened {
    lines: Arc<Lines>,
    stream: WatchStream,
    answer: WatchResponse,
}

pub(crate) struct EtcdWatch {
    store: Arc<Store>,
    lines: Arc<Lines>,
    stream: WatchStream,
    span: Span,
    from: Revision,
    silence: Duration,
    heard: Instant,
    /// When progress was asked for, if it has not come.
    asked: Option<Instant>,
    ready: VecDeque<Changes>,
    over: Option<BackendError>,
}

impl Store {
    pub(crate) async fn watch(
        self: &Arc<Self>,
        span: &Span,
        from: Revision,
    ) -> BackendResult<EtcdWatch> {
        let bounds = Bounds::of(span).unwrap_or(Bounds {
            // Nothing belongs to the span; the filter below drops what belongs to this.
            key: vec![0],
            end: Vec::new(),
        });
        let mut opened = self.open(&bounds, from).await?;
        let stands_at = opened.answer.header().map_or(0, |header| header.revision());
        if stands_at >= convert::number(from) {
            let before = Revision(from.0.saturating_sub(1));
            opened = self.open(&bounds, before).await?;
        }
        let mut watch = EtcdWatch {
            store: Arc::clone(self),
            lines: opened.lines,
            stream: opened.stream,
            span: span.clone(),
            from,
            silence: self.members().config().watch_silence,
            heard: Instant::now(),
            asked: None,
            ready: VecDeque::new(),
            over: None,
        };
        watch.take(&opened.answer);
        match watch.over {
            Some(error) => Err(error),
            None => Ok(watch),
        }
    }

    /// Opens a stream and waits until etcd has confirmed it.
    async fn open(&self, bounds: &Bounds, from: Revision) -> BackendResult<Opened> {
        let within = self.members().config().request_timeout;
        let deadline = Instant::now() + within;
        let lines = self.lines(deadline).await?;
        let options = WatchOptions::new()
            .with_range(bounds.end.as_slice())
            // 0 would be "from now on".
            .with_start_revision(convert::number(from).max(1));
        let opening = async {
            let key = bounds.key.as_slice();
            let mut stream = lines.watch.clone().watch(key, Some(options)).await?;
            let answer = stream.message().await?;
            Ok((stream, answer))
        };
        let failure = match timeout_at(deadline, opening).await {
            Ok(Ok((stream, Some(answer)))) => {
                return Ok(Opened {
                    lines,
                    stream,
                    answer,
                });
            }
            Ok(Ok((_, None))) => ended(),
            Ok(Err(error)) => Failure::sort(Call::Read, &error),
            Err(_) => {
                let why = format!("no watch within {} ms", within.as_millis());
                Failure::new(Call::Read.failed(why), Sign::Member)
            }
        };
        self.heed(&lines, failure.sign).await;
        Err(failure.error)
    }

    /// The oldest revision that can be read, of a store that is known to have forgotten some.
    /// Only the refusal of a watch names it.
    pub(crate) async fn oldest(&self) -> BackendResult<Revision> {
        let anything = Bounds {
            key: vec![0],
            end: Vec::new(),
        };
        let mut opened = self.open(&anything, Revision(1)).await?;
        let deadline = Instant::now() + self.members().config().request_timeout;
        let mut answer = Some(opened.answer);
        while let Some(message) = answer {
            if message.compact_revision() > 0 {
                return Ok(convert::revision(message.compact_revision()));
            }
            answer = match timeout_at(deadline, opened.stream.message()).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => return Err(Failure::sort(Call::Read, &error).error),
                Err(_) => break,
            };
        }
        Err(BackendError::Unavailable(
            "the revision is compacted, and which is not is not told".into(),
        ))
    }
}

fn ended() -> Failure {
    let why = "the watch was ended by the other side";
    Failure::new(BackendError::Unavailable(why.into()), Sign::Member)
}

impl EtcdWatch {
    /// Takes what a message holds; sets `over` when it is the last one.
    fn take(&mut self, message: &WatchResponse) {
        self.heard = Instant::now();
        self.asked = None;
        // Events of one revision follow each other.
        for event in message.events() {
            let Some(pair) = event.kv() else { continue };
            let revision = convert::revision(pair.mod_revision());
            if revision < self.from || !self.span.contains(pair.key()) {
                continue;
            }
            let event = match event.event_type() {
                EventType::Put => Event::Put(convert::entry(pair.clone())),
                EventType::Delete => Event::Delete {
                    key: pair.key().to_vec(),
                    revision,
                },
            };
            match self.ready.back_mut() {
                Some(changes) if changes.revision == revision => changes.events.push(event),
                _ => self.ready.push_back(Changes {
                    revision,
                    events: vec![event],
                }),
            }
        }
        for changes in &mut self.ready {
            changes.events.sort_by(|a, b| a.key().cmp(b.key()));
        }
        if message.compact_revision() > 0 {
            self.over = Some(BackendError::Compacted {
                oldest: convert::revision(message.compact_revision()),
            });
        } else if message.canceled() {
            let why = match message.cancel_reason() {
                "" => "etcd ended the watch",
                reason => reason,
            };
            self.over = Some(BackendError::Unavailable(why.into()));
        }
    }

    async fn end(&mut self, failure: Failure) {
        self.over = Some(failure.error);
        let lines = Arc::clone(&self.lines);
        self.store.heed(&lines, failure.sign).await;
    }
}

#[async_trait]
impl Watch for EtcdWatch {
    /// Cancel safe: a message is taken from the stream and stored without waiting in between.
    async fn next(&mut self) -> BackendResult<Changes> {
        loop {
            if let Some(changes) = self.ready.pop_front() {
                return Ok(changes);
            }
            if let Some(error) = &self.over {
                return Err(error.clone());
            }
            let due = self.asked.unwrap_or(self.heard) + self.silence;
            tokio::select! {
                // What has arrived counts, however late it is asked for.
                biased;
                message = self.stream.message() => match message {
                    Ok(Some(message)) => self.take(&message),
                    Ok(None) => self.end(ended()).await,
                    Err(error) => self.end(Failure::sort(Call::Read, &error)).await,
                },
                () = sleep_until(due) => match self.asked {
                    None => {
                        self.asked = Some(Instant::now());
                        if let Err(error) = self.stream.request_progress().await {
                            self.end(Failure::sort(Call::Read, &error)).await;
                        }
                    }
                    Some(asked) => {
                        let why = format!("a silent watch: no sign of life within {} ms", asked.elapsed().as_millis());
                        let error = BackendError::Unavailable(why);
                        self.end(Failure::new(error, Sign::Member)).await;
                    }
                },
            }
        }
    }
}
