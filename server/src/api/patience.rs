//! How long the body of a request may take to arrive.
//!
//! What can go wrong here: somebody sends a body a byte a minute, or stops half-way. The connection is
//! one of those that are open at once, and would be so for ever.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use futures_util::{StreamExt, stream};
use tokio::time::{Instant, timeout_at};

/// How long a body may take, from its head to its last byte.
pub(crate) const BODY: Duration = Duration::from_secs(60);

/// Whether a body did not come in time.
#[derive(Clone, Default)]
pub(super) struct Late(Arc<AtomicBool>);

impl Late {
    pub(super) fn is(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// The request with a body that ends in an error when it takes longer than `within`.
pub(super) fn limit(request: Request, within: Duration) -> (Request, Late) {
    let late = Late::default();
    if request.body().is_end_stream() {
        return (request, late);
    }
    let (head, body) = request.into_parts();
    let deadline = Instant::now() + within;
    let told = late.clone();
    let parts = stream::unfold(body.into_data_stream(), move |mut data| {
        let told = told.clone();
        async move {
            let part = match timeout_at(deadline, data.next()).await {
                Ok(part) => part?.map_err(io::Error::other),
                Err(_) => {
                    told.0.store(true, Ordering::SeqCst);
                    Err(io::ErrorKind::TimedOut.into())
                }
            };
            Some((part, data))
        }
    });
    (Request::from_parts(head, Body::from_stream(parts)), late)
}
