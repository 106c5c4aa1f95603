//! Pausing and resuming, one job or all.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use punctual::control::{AllReport, PauseWish};
use serde::Deserialize;

use super::jobs::{json_or_default, with_etag};
use super::problem::Problem;
use super::{Api, Body};
use crate::times::{ahead, now_ms};

/// The longest reason.
const MAX_REASON: usize = 1_024;
/// The longest name.
const MAX_BY: usize = 255;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseBody {
    #[serde(default)]
    reason: Option<String>,
    /// RFC 3339, or a duration from now on.
    #[serde(default)]
    until: Option<String>,
    /// Who asks, for the others.
    #[serde(default)]
    by: Option<String>,
}

fn wish(bytes: Body) -> Result<PauseWish, Problem> {
    let PauseBody { reason, until, by } = json_or_default(bytes)?;
    let is_long = |text: &Option<String>, most| text.as_ref().is_some_and(|t| t.len() > most);
    if is_long(&reason, MAX_REASON) {
        return Err(Problem::bad_request("reason: at most 1024 bytes"));
    }
    if is_long(&by, MAX_BY) {
        return Err(Problem::bad_request("by: at most 255 bytes"));
    }
    let until_ms = until.map(|text| ahead(&text, now_ms())).transpose();
    Ok(PauseWish {
        reason,
        until_ms: until_ms.map_err(|why| Problem::bad_request(format!("until: {why}")))?,
        by,
    })
}

pub(super) async fn pause(
    State(api): State<Api>,
    Path(id): Path<String>,
    bytes: Body,
) -> Result<Response, Problem> {
    let job = api.control.pause_job(&id, wish(bytes)?).await?;
    Ok(with_etag(StatusCode::OK, job))
}

pub(super) async fn resume(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let job = api.control.resume_job(&id).await?;
    Ok(with_etag(StatusCode::OK, job))
}

pub(super) async fn pause_all(
    State(api): State<Api>,
    bytes: Body,
) -> Result<Json<AllReport>, Problem> {
    Ok(Json(api.control.pause_all(wish(bytes)?).await?))
}

pub(super) async fn resume_all(State(api): State<Api>) -> Result<Json<AllReport>, Problem> {
    Ok(Json(api.control.resume_all().await?))
}
