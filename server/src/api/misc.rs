//! `/v1/status`, `/v1/doctor`, `/v1/next`, `/metrics`, `/livez`, `/readyz`.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use punctual::control::{StatusObject, WhyObject};
use punctual::schedule::query::{NextAnswer, NextQuery, answer};
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::{Api, Query, query};
use crate::doctor::{Report, examine};
use crate::metrics::OPENMETRICS;
use crate::times::{ms_of, now_ms};

/// The cluster at a glance, and what only the node that answers knows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NodeStatus {
    #[serde(flatten)]
    pub(crate) cluster: StatusObject,
    /// Why the job files of this node are not in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) job_files_refused: Option<String>,
}

pub(super) async fn status(State(api): State<Api>) -> Result<Json<NodeStatus>, Problem> {
    Ok(Json(NodeStatus {
        cluster: api.control.status(api.store.info.version()).await?,
        job_files_refused: api.job_files.refused(),
    }))
}

pub(super) async fn doctor(State(api): State<Api>) -> Json<Report> {
    Json(examine(&api).await)
}

pub(super) async fn next(question: Query<NextQuery>) -> Result<Json<NextAnswer>, Problem> {
    match answer(&query(question)?, now_ms()) {
        NextAnswer::Error { error, .. } => {
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error))
        }
        fires => Ok(Json(fires)),
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct At {
    at: Option<String>,
}

pub(super) async fn why(
    State(api): State<Api>,
    Path(id): Path<String>,
    question: Query<At>,
) -> Result<Json<WhyObject>, Problem> {
    let at = query(question)?.at;
    let at_ms = at.map(|text| {
        ms_of(&text)
            .ok_or_else(|| Problem::bad_request("at: must be a time such as 2026-12-24T18:00:00Z"))
    });
    Ok(Json(api.control.why(&id, at_ms.transpose()?).await?))
}

/// For a collector, which sends a token as everybody does: names of jobs are not for all.
pub(super) async fn metrics(State(api): State<Api>) -> Result<impl IntoResponse, Problem> {
    let text = api.metrics.render(&api.control, &api.node).await;
    let text = text.map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, ""))?;
    Ok(([(header::CONTENT_TYPE, OPENMETRICS)], text))
}

/// The process lives.
pub(super) async fn live() -> &'static str {
    "ok\n"
}

/// The store answers, so the node can work.
pub(super) async fn ready(State(api): State<Api>) -> Result<&'static str, Problem> {
    api.control.jobs(None, 1).await?;
    Ok("ok\n")
}
