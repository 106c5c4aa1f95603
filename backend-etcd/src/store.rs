//! One call to etcd: to which member, how long, and what its end means.
//!
//! # No retry
//! A call is sent once. The recipes repeat it, since they alone know a transaction that may be
//! sent twice from one that must not. The client below has one retry of its own, for requests
//! refused over an expired token; it is off, and we get the new token for the *next* call.
//!
//! # Trust
//! Every answer names its cluster and the revision it was given at. Another cluster (an endpoint
//! that points elsewhere) or a revision lower than one seen before the call began (a restored
//! backup, a member that lost its disk) means that what we believe may never have happened. The
//! store is then [`Broken`](BackendError::Broken) for good: a person has to look.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use etcd_client::{CompactionOptions, GetOptions, ResponseHeader};
use punctual::backend::{
    BackendError, BackendResult, BatchOutcome, Page, PageLimit, Requirement, Revision, Span, Txn,
    TxnOutcome, limits,
};
use tokio::time::{Instant, timeout_at};

use crate::convert::{self, Bounds};
use crate::error::{Call, ConnectError, Failure, Sign};
use crate::member::{Lines, Members};

/// No more entries are asked for at once, whatever the caller would take.
const ENTRIES_AT_ONCE: usize = 10_000;

pub(crate) struct Store {
    members: Members,
    cluster: u64,
    /// The newest revision that an answer has shown.
    seen: AtomicU64,
    broken: OnceLock<String>,
    version: String,
}

impl Store {
    pub(crate) async fn connect(members: Members) -> Result<Self, ConnectError> {
        let lines = members.any().await?;
        Ok(Self {
            cluster: lines.cluster,
            version: lines.version.clone(),
            members,
            seen: AtomicU64::new(0),
            broken: OnceLock::new(),
        })
    }

    pub(crate) fn members(&self) -> &Members {
        &self.members
    }

    pub(crate) fn cluster(&self) -> u64 {
        self.cluster
    }

    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// Sends one request, once.
    pub(crate) async fn call<T, F>(
        &self,
        call: Call,
        request: impl FnOnce(Arc<Lines>) -> F + Send,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>> + Send,
    {
        let within = self.members.config().request_timeout;
        let deadline = Instant::now() + within;
        let lines = self.lines(deadline).await?;
        let failure = match timeout_at(deadline, request(Arc::clone(&lines))).await {
            Ok(Ok(answer)) => {
                self.members.serves(&lines);
                return Ok(answer);
            }
            Ok(Err(error)) => Failure::sort(call, &error),
            Err(_) => {
                let why = format!("no answer within {} ms", within.as_millis());
                Failure::new(call.failed(why), Sign::Member)
            }
        };
        self.heed(&lines, failure.sign).await;
        Err(failure)
    }

    /// The member to ask. Nothing is sent yet, so whatever fails here is certain.
    pub(crate) async fn lines(&self, deadline: Instant) -> Result<Arc<Lines>, Failure> {
        if let Some(why) = self.broken.get() {
            return Err(Failure::new(BackendError::Broken(why.clone()), Sign::None));
        }
        let unavailable = |why: String| Failure::new(BackendError::Unavailable(why), Sign::None);
        match timeout_at(deadline, self.members.current()).await {
            Ok(Ok(lines)) if lines.cluster == self.cluster => Ok(lines),
            Ok(Ok(lines)) => {
                let error = self.break_down(format!(
                    "another cluster answers: {:x}, not {:x}",
                    lines.cluster, self.cluster
                ));
                Err(Failure::new(error, Sign::None))
            }
            Ok(Err(error)) => Err(unavailable(error.to_string())),
            Err(_) => {
                self.members.leave_current_unconnected();
                Err(unavailable("no connection in time".into()))
            }
        }
    }

    /// Acts on what a failure tells about the member, for the sake of the next call.
    pub(crate) async fn heed(&self, lines: &Lines, sign: Sign) {
        match sign {
            Sign::Member => self.members.turn_from(lines),
            Sign::Token => {
                let deadline = Instant::now() + self.members.config().request_timeout;
                match timeout_at(deadline, lines.authenticate()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::warn!(%error, "etcd does not know us"),
                    Err(_) => self.members.turn_from(lines),
                }
            }
            Sign::None | Sign::Compacted | Sign::TooLarge => {}
        }
    }

    fn break_down(&self, why: String) -> BackendError {
        tracing::error!(why, "this etcd cannot be trusted any more");
        BackendError::Broken(self.broken.get_or_init(|| why).clone())
    }

    fn seen(&self) -> u64 {
        self.seen.load(Ordering::SeqCst)
    }

    /// The revision of an answer to a call that began when `before` had been seen.
    fn trust(&self, before: u64, header: Option<&ResponseHeader>) -> BackendResult<Revision> {
        let Some(header) = header else {
            return Err(self.break_down("an answer without a header".into()));
        };
        if header.cluster_id() != self.cluster {
            return Err(self.break_down(format!(
                "another cluster answers: {:x}, not {:x}",
                header.cluster_id(),
                self.cluster
            )));
        }
        let revision = convert::revision(header.revision());
        if revision.0 < before {
            return Err(self.break_down(format!(
                "it stands at revision {revision} and stood at {before} before"
            )));
        }
        self.seen.fetch_max(revision.0, Ordering::SeqCst);
        Ok(revision)
    }

    pub(crate) async fn commit(&self, txn: &Txn) -> BackendResult<TxnOutcome> {
        limits::check_txn(txn)?;
        let (before, request) = (self.seen(), convert::txn(txn));
        let answer = self
            .call(Call::Write, |lines| async move {
                lines.kv.clone().txn(request).await
            })
            .await?;
        let at = self.trust(before, answer.header())?;
        convert::txn_outcome(txn, &answer, at)
    }

    pub(crate) async fn commit_batch(
        &self,
        guard: &[Requirement],
        txns: &[Txn],
    ) -> BackendResult<BatchOutcome> {
        limits::check_batch(guard, txns)?;
        let (before, request) = (self.seen(), convert::batch(guard, txns));
        let answer = self
            .call(Call::Write, |lines| async move {
                lines.kv.clone().txn(request).await
            })
            .await?;
        let at = self.trust(before, answer.header())?;
        convert::batch_outcome(guard, txns, &answer, at)
    }

    pub(crate) async fn range(
        &self,
        span: &Span,
        limit: PageLimit,
        at: Option<Revision>,
    ) -> BackendResult<Page> {
        if at == Some(Revision(0)) {
            // To etcd this is "now". No store ever stood there; the first to stand at is 1.
            return Err(match self.page(span, limit, Some(Revision(1))).await {
                Ok(_) => BackendError::Compacted {
                    oldest: Revision(1),
                },
                Err(error) => error,
            });
        }
        self.page(span, limit, at).await
    }

    async fn page(
        &self,
        span: &Span,
        limit: PageLimit,
        mut at: Option<Revision>,
    ) -> BackendResult<Page> {
        let bounds = Bounds::of(span);
        let mut rest = bounds.clone().unwrap_or_else(nowhere);
        let mut page = Page {
            entries: Vec::new(),
            revision: Revision(0),
            more: false,
        };
        let mut bytes = 0_usize;
        let mut step = limit.entries.clamp(1, ENTRIES_AT_ONCE);
        loop {
            let left = limit.entries.max(1) - page.entries.len();
            let part = match self.part(&rest, step.min(left), at).await {
                Err(failure) if failure.sign == Sign::TooLarge && step > 1 => {
                    step = (step / 8).max(1);
                    continue;
                }
                Err(failure) if failure.sign == Sign::Compacted => {
                    let oldest = self.oldest().await?;
                    return Err(BackendError::Compacted { oldest });
                }
                part => part?,
            };
            page.revision = at.unwrap_or(part.revision);
            at = Some(page.revision);
            if bounds.is_none() {
                return Ok(page);
            }
            for entry in part.entries {
                bytes = bytes.saturating_add(entry.key.len() + entry.value.len());
                if bytes > limit.bytes && !page.entries.is_empty() {
                    page.more = true;
                    return Ok(page);
                }
                page.entries.push(entry);
            }
            page.more = part.more;
            match page.entries.last() {
                Some(last) if part.more && page.entries.len() < limit.entries => {
                    rest.key = span.after(&last.key).start;
                }
                _ => return Ok(page),
            }
        }
    }

    /// One answer's worth of entries.
    async fn part(
        &self,
        bounds: &Bounds,
        entries: usize,
        at: Option<Revision>,
    ) -> Result<Page, Failure> {
        let options = GetOptions::new()
            .with_range(bounds.end.as_slice())
            .with_limit(i64::try_from(entries).unwrap_or(i64::MAX))
            .with_revision(at.map_or(0, convert::number));
        let (before, key) = (self.seen(), bounds.key.clone());
        let mut answer = self
            .call(Call::Read, |lines| async move {
                // The last resort must not fail for its size.
                let mut kv = match entries {
                    1 => lines.kv.clone(),
                    _ => lines.pages.clone(),
                };
                kv.get(key, Some(options)).await
            })
            .await?;
        let revision = self
            .trust(before, answer.header())
            .map_err(|broken| Failure::new(broken, Sign::None))?;
        Ok(Page {
            more: answer.more(),
            entries: answer.take_kvs().into_iter().map(convert::entry).collect(),
            revision,
        })
    }

    pub(crate) async fn compact(&self, revision: Revision) -> BackendResult<()> {
        if revision == Revision(0) {
            return Ok(());
        }
        let options = CompactionOptions::new();
        let answer = self
            .call(Call::Write, |lines| async move {
                let number = convert::number(revision);
                lines.kv.clone().compact(number, Some(options)).await
            })
            .await;
        match answer {
            Ok(_) => Ok(()),
            // It was forgotten before.
            Err(failure) if failure.sign == Sign::Compacted => Ok(()),
            Err(failure) => Err(failure.error),
        }
    }

    /// What a member says is wrong with it or the cluster.
    pub(crate) async fn complaints(&self) -> BackendResult<Vec<String>> {
        let status = self
            .call(Call::Read, |lines| async move {
                lines.maintenance.clone().status().await
            })
            .await?;
        Ok(status.errors().to_vec())
    }

    /// Bytes of the database, and its quota where this etcd tells it (3.6 does).
    pub(crate) async fn size(&self) -> BackendResult<(u64, Option<u64>)> {
        let status = self
            .call(Call::Read, |lines| async move {
                lines.maintenance.clone().status().await
            })
            .await?;
        let quota = u64::try_from(status.db_size_quota()).ok();
        Ok((
            u64::try_from(status.db_size()).unwrap_or(0),
            quota.filter(|quota| *quota > 0),
        ))
    }
}

/// Where to look when only the revision is of interest: any one key.
fn nowhere() -> Bounds {
    Bounds {
        key: vec![0],
        end: Vec::new(),
    }
}
