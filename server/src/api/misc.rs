//! `/v1/status`, `/v1/next`, `/livez`, `/readyz`.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use punctual::control::StatusObject;
use punctual::schedule::query::{NextAnswer, NextQuery, answer};

use super::problem::Problem;
use super::{Api, Query, query};
use crate::times::now_ms;

pub(super) async fn status(State(api): State<Api>) -> Result<Json<StatusObject>, Problem> {
    Ok(Json(api.control.status(api.store.version()).await?))
}

pub(super) async fn next(question: Query<NextQuery>) -> Result<Json<NextAnswer>, Problem> {
    match answer(&query(question)?, now_ms()) {
        NextAnswer::Error { error, .. } => {
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error))
        }
        fires => Ok(Json(fires)),
    }
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
