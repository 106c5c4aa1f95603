//! `POST /v1/jobs/{id}/backfill`.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use punctual::control::{BackfillObject, BackfillWish};
use serde::Deserialize;

use super::jobs::{idempotency_key, json_or_default};
use super::problem::Problem;
use super::{Api, Body};
use crate::times::{ms_of, now_ms};

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct BackfillBody {
    /// RFC 3339: the first instant.
    from: String,
    /// RFC 3339: the first one that is not meant. Now if it is left out.
    to: Option<String>,
    limit: Option<usize>,
    /// Also instants that have fired.
    again: bool,
    /// Say what would be done, and do nothing.
    dry_run: bool,
}

pub(super) async fn backfill(
    State(api): State<Api>,
    Path(id): Path<String>,
    headers: HeaderMap,
    bytes: Body,
) -> Result<(StatusCode, Json<BackfillObject>), Problem> {
    let given: BackfillBody = json_or_default(bytes)?;
    let time = |name: &str, text: &str| {
        ms_of(text).ok_or_else(|| {
            Problem::bad_request(format!(
                "{name}: must be a time such as 2026-12-24T18:00:00Z"
            ))
        })
    };
    let wish = BackfillWish {
        from_ms: time("from", &given.from)?,
        to_ms: match &given.to {
            Some(text) => time("to", text)?,
            None => now_ms(),
        },
        limit: given.limit,
        again: given.again,
    };
    let key = idempotency_key(&headers)?;
    if given.dry_run {
        let plan = api.control.plan_backfill(&id, &wish, &key).await?;
        return Ok((StatusCode::OK, Json(plan)));
    }
    let done = api.control.backfill(&id, &wish, &key).await?;
    Ok((StatusCode::ACCEPTED, Json(done)))
}
