//! Leases: in seconds, and by the answer.

use etcd_client::Error;
use punctual::backend::{BackendError, BackendResult, Lease, LeaseId, limits};

use crate::convert::lease_number;
use crate::error::Call;
use crate::store::Store;

/// The longest lease that etcd knows.
const MAX_SECONDS: u64 = 9_000_000_000;

impl Store {
    pub(crate) async fn grant(&self, ttl_ms: u64) -> BackendResult<Lease> {
        let seconds = ttl_ms
            .max(limits::MIN_LEASE_TTL_MS)
            .div_ceil(1_000)
            .min(MAX_SECONDS);
        let granted = self
            .call(Call::Write, |lines| async move {
                let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
                lines.lease.clone().grant(seconds, None).await
            })
            .await?;
        lease(granted.id(), granted.ttl())
    }

    /// One prolongation.
    ///
    /// The client throws the first answer's time to live away, so the second message on the same
    /// stream asks again: what counts is what etcd says, not what was once granted.
    pub(crate) async fn keep_alive(&self, id: LeaseId) -> BackendResult<Lease> {
        let number = lease_number(id);
        let answer = self
            .call(Call::Write, |lines| async move {
                let (mut keeper, mut answers) = lines.lease.clone().keep_alive(number).await?;
                keeper.keep_alive().await?;
                answers.message().await?.ok_or_else(|| {
                    Error::LeaseKeepAliveError("the stream ended without an answer".into())
                })
            })
            .await?;
        match answer.ttl() {
            ..=0 => Err(BackendError::LeaseLost),
            ttl => lease(answer.id(), ttl),
        }
    }

    pub(crate) async fn revoke(&self, id: LeaseId) -> BackendResult<()> {
        let number = lease_number(id);
        self.call(Call::Write, |lines| async move {
            lines.lease.clone().revoke(number).await
        })
        .await?;
        Ok(())
    }
}

fn lease(id: i64, seconds: i64) -> BackendResult<Lease> {
    match (u64::try_from(id), u64::try_from(seconds)) {
        (Ok(id), Ok(seconds)) if id > 0 => Ok(Lease {
            id: LeaseId(id),
            ttl_ms: seconds.saturating_mul(1_000),
        }),
        _ => Err(BackendError::Broken(format!(
            "etcd granted lease {id} for {seconds} s"
        ))),
    }
}
