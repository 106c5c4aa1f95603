//! `/v1/runs`.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use punctual::control::{PageOf, RunFilter, RunObject};
use serde::{Deserialize, Serialize};

use super::jobs::{idempotency_key, json_or_default};
use super::problem::Problem;
use super::{Api, Body, Paging, Query, query};
use crate::cli::args::parse_state;

/// A run: its latest attempt, and all of them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunWithAttempts {
    /// The latest.
    #[serde(flatten)]
    pub(crate) run: RunObject,
    /// Oldest first.
    pub(crate) attempts: Vec<RunObject>,
    /// Of a run in parts: each part as its last attempt stands, by index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<RunObject>,
}

pub(super) async fn list(
    State(api): State<Api>,
    paging: Query<Paging>,
) -> Result<Json<PageOf<RunObject>>, Problem> {
    page(&api, query(paging)?).await
}

pub(super) async fn of_job(
    State(api): State<Api>,
    Path(id): Path<String>,
    paging: Query<Paging>,
) -> Result<Json<PageOf<RunObject>>, Problem> {
    let mut paging = query(paging)?;
    if paging.job.is_some() {
        return Err(Problem::bad_request("job: the address names it already"));
    }
    // An unknown job has no runs; that it is unknown is the better answer.
    api.control.job(&id).await?;
    paging.job = Some(id);
    page(&api, paging).await
}

async fn page(api: &Api, paging: Paging) -> Result<Json<PageOf<RunObject>>, Problem> {
    let limit = paging.limit()?;
    let states = paging.state.as_deref().unwrap_or_default();
    let states = states.split(',').filter(|text| !text.trim().is_empty());
    let states: Result<Vec<_>, _> = states.map(parse_state).collect();
    let filter = RunFilter {
        job: paging.job,
        states: states.map_err(|error| Problem::bad_request(format!("state: {error}")))?,
    };
    let cursor = paging.cursor.as_deref();
    Ok(Json(api.control.runs(&filter, cursor, limit).await?))
}

pub(super) async fn show(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<RunWithAttempts>, Problem> {
    let attempts = api.control.run(&id).await?;
    match attempts.last().cloned() {
        Some(run) => {
            let parts = match (run.shard, run.shards) {
                (None, Some(_)) => api.control.parts(&id).await?,
                _ => Vec::new(),
            };
            Ok(Json(RunWithAttempts {
                run,
                attempts,
                parts,
            }))
        }
        None => Err(Problem::new(StatusCode::NOT_FOUND, "there is no such run")),
    }
}

pub(super) async fn cancel(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<RunObject>, Problem> {
    Ok(Json(api.control.cancel_run(&id).await?))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RetryBody {
    /// Also when the run's node vanished, and the job is not idempotent.
    #[serde(default)]
    force: bool,
}

pub(super) async fn retry(
    State(api): State<Api>,
    Path(id): Path<String>,
    headers: HeaderMap,
    bytes: Body,
) -> Result<(StatusCode, Json<RunObject>), Problem> {
    let given: RetryBody = json_or_default(bytes)?;
    let key = idempotency_key(&headers)?;
    let run = api.control.retry_run(&id, given.force, &key).await?;
    Ok((StatusCode::ACCEPTED, Json(run)))
}
