//! The HTTP API: any node answers, from the store alone.
//!
//! What can go wrong here: a door without a lock (so authentication is one layer around
//! everything, with a list of two exceptions), an answer that tells of the inside, a body that
//! fills memory.

mod apply;
mod auth;
mod backfill;
mod connections;
mod jobs;
mod misc;
mod nodes;
mod patience;
mod pause;
pub(crate) mod problem;
mod runs;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::FutureExt;
use punctual::control::Control;
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::calls::NodeCalls;
use crate::commands::NodeCommands;
use crate::files::{TokenHash, hex, random};
use crate::job_files::JobFiles;
use crate::metrics::Metrics;
use crate::notify::Webhooks;
use crate::store::Opened;
pub(crate) use apply::{ApplyAnswer, ApplyLine, NDJSON};
pub(crate) use jobs::Deleted;
pub(crate) use misc::NodeStatus;
pub(crate) use patience::BODY as BODY_TIME;
use punctual_server::jobfile::MAX_BYTES;
pub(crate) use runs::RunWithAttempts;

use problem::Problem;

/// The largest body, but for `/v1/apply`.
const MAX_BODY: usize = 256 << 10;
/// The largest page.
pub(crate) const MAX_PAGE: usize = 500;
const DEFAULT_PAGE: usize = 100;

/// What the API answers from.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) control: Control,
    /// Hashes of the tokens that open it. Empty: nobody comes in.
    pub(crate) tokens: Arc<[TokenHash]>,
    /// The store, for what it knows of itself.
    pub(crate) store: Opened,
    /// Where the node's own files lie.
    pub(crate) data_dir: PathBuf,
    /// What this node counts.
    pub(crate) metrics: Arc<Metrics>,
    /// The node's name.
    pub(crate) node: String,
    /// What this node runs, to warn of jobs that it would not.
    pub(crate) commands: Arc<NodeCommands>,
    /// Whom this node may call.
    pub(crate) webhooks: Arc<Webhooks>,
    pub(crate) calls: Arc<NodeCalls>,
    /// How the node's own job files stand.
    pub(crate) job_files: JobFiles,
    /// How long the body of a request may take to arrive.
    pub(crate) body_time: Duration,
}

impl Api {
    pub(crate) fn router(self) -> Router {
        let auth = from_fn_with_state(Arc::clone(&self.tokens), auth::require_token);
        Router::new()
            .route("/v1/jobs", get(jobs::list))
            .route(
                "/v1/jobs/{id}",
                get(jobs::show).put(jobs::put).delete(jobs::delete),
            )
            .route("/v1/jobs/{id}/pause", post(pause::pause))
            .route("/v1/jobs/{id}/resume", post(pause::resume))
            .route("/v1/pause", post(pause::pause_all))
            .route("/v1/resume", post(pause::resume_all))
            .route("/v1/jobs/{id}/trigger", post(jobs::trigger))
            .route("/v1/jobs/{id}/backfill", post(backfill::backfill))
            .route("/v1/jobs/{id}/why", get(misc::why))
            .route("/v1/jobs/{id}/runs", get(runs::of_job))
            .route("/v1/runs", get(runs::list))
            .route("/v1/runs/{id}", get(runs::show))
            .route("/v1/runs/{id}/cancel", post(runs::cancel))
            .route("/v1/runs/{id}/retry", post(runs::retry))
            .route("/v1/nodes", get(nodes::list))
            .route("/v1/nodes/{id}/drain", post(nodes::drain))
            .route("/v1/nodes/{id}/undrain", post(nodes::undrain))
            .route("/v1/clock/accept", post(nodes::accept_clock))
            .route("/v1/status", get(misc::status))
            .route("/v1/doctor", get(misc::doctor))
            .route("/v1/next", get(misc::next))
            .route(
                "/v1/apply",
                post(apply::apply).layer(DefaultBodyLimit::max(
                    usize::try_from(MAX_BYTES).unwrap_or(usize::MAX),
                )),
            )
            .route("/metrics", get(misc::metrics))
            .route("/livez", get(misc::live))
            .route("/readyz", get(misc::ready))
            .fallback(not_found)
            .layer(DefaultBodyLimit::max(MAX_BODY))
            .layer(auth)
            .layer(from_fn_with_state(self.body_time, finish))
            .with_state(self)
    }

    /// Answers on `listener` until `stop` ends, then lets open requests finish.
    pub(crate) async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        connections::serve(listener, self.router(), stop).await;
        Ok(())
    }
}

async fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "there is nothing at this address")
}

/// Finds a request in the log.
#[derive(Clone, Debug, Default)]
struct RequestId(String);

/// Gives every request an id and every error its form; a panic is an error too.
async fn finish(State(within): State<Duration>, mut request: Request, next: Next) -> Response {
    let id = random::<8>().map(|bytes| hex(&bytes)).unwrap_or_default();
    request.extensions_mut().insert(RequestId(id.clone()));
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let (request, late) = patience::limit(request, within);
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
    let mut response = answer.unwrap_or_else(|_| {
        tracing::error!(request = id, %method, path, "a request made the server panic");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "").into_response()
    });
    if late.is() {
        let detail = format!("the body did not arrive within {} s", within.as_secs());
        response = Problem::new(StatusCode::REQUEST_TIMEOUT, detail).into_response();
    }
    let status = response.status();
    if status.is_client_error() || status.is_server_error() {
        let problem = response.extensions_mut().remove::<Problem>();
        // Whatever the framework refused by itself has no words of ours yet.
        let mut problem = problem.unwrap_or_else(|| Problem::new(status, ""));
        problem.request_id.clone_from(&id);
        let kept = response.headers().get(header::ALLOW).cloned();
        response = problem.render();
        if let Some(allow) = kept {
            response.headers_mut().insert(header::ALLOW, allow);
        }
        let detail = punctual_server::jobfile::shorten(&problem.detail, 300);
        let status = status.as_u16();
        // Probes ask every few seconds; that the store is away is said elsewhere.
        if status == 503 {
            tracing::debug!(request = id, %method, path, status, detail, "request refused");
        } else {
            tracing::info!(request = id, %method, path, status, detail, "request refused");
        }
    } else {
        tracing::debug!(request = id, %method, path, status = status.as_u16(), "request");
    }
    let headers = response.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&id) {
        headers.insert(HeaderName::from_static("x-request-id"), value);
    }
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// The page that a listing asks for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Paging {
    cursor: Option<String>,
    limit: Option<usize>,
    job: Option<String>,
    /// States, with commas between them.
    state: Option<String>,
}

impl Paging {
    fn limit(&self) -> Result<usize, Problem> {
        match self.limit {
            None => Ok(DEFAULT_PAGE),
            Some(limit) if (1..=MAX_PAGE).contains(&limit) => Ok(limit),
            Some(_) => Err(Problem::bad_request(format!(
                "limit: must be 1 to {MAX_PAGE}"
            ))),
        }
    }
}

/// A query string that was read, or what is wrong with it.
type Query<T> = Result<axum::extract::Query<T>, axum::extract::rejection::QueryRejection>;

fn query<T>(query: Query<T>) -> Result<T, Problem> {
    match query {
        Ok(axum::extract::Query(query)) => Ok(query),
        Err(rejection) => Err(Problem::bad_request(rejection.body_text())),
    }
}

/// A body that was read, or why not.
type Body = Result<axum::body::Bytes, axum::extract::rejection::BytesRejection>;

fn body(body: Body, limit: usize) -> Result<axum::body::Bytes, Problem> {
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("a body here has at most {} KiB", limit >> 10),
        ),
        _ => Problem::bad_request("the body did not arrive"),
    })
}

/// The body as text in UTF-8.
fn text(bytes: axum::body::Bytes) -> Result<String, Problem> {
    punctual_server::jobfile::decode("body", bytes.into())
        .map_err(|error| Problem::bad_request(error.0))
}
