//! `/v1/nodes`: who is there, and who shall take no work.

use axum::Json;
use axum::extract::{Path, State};
use punctual::control::{ClockObject, DrainObject, NodeObject};
use serde::Deserialize;

use super::jobs::json_or_default;
use super::problem::Problem;
use super::{Api, Body};

/// The longest reason.
const MAX_REASON: usize = 1_024;

pub(super) async fn list(State(api): State<Api>) -> Result<Json<Vec<NodeObject>>, Problem> {
    Ok(Json(api.control.live_nodes().await?))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainBody {
    #[serde(default)]
    reason: Option<String>,
}

pub(super) async fn drain(
    State(api): State<Api>,
    Path(id): Path<String>,
    bytes: Body,
) -> Result<Json<DrainObject>, Problem> {
    let given: DrainBody = json_or_default(bytes)?;
    if given
        .reason
        .as_ref()
        .is_some_and(|reason| reason.len() > MAX_REASON)
    {
        return Err(Problem::bad_request("reason: at most 1024 bytes"));
    }
    Ok(Json(api.control.drain_node(&id, given.reason).await?))
}

pub(super) async fn undrain(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<DrainObject>, Problem> {
    Ok(Json(api.control.undrain_node(&id).await?))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct AcceptBody {
    /// The node whose clock is right; the one that is asked if not given.
    #[serde(default)]
    node: Option<String>,
}

pub(super) async fn accept_clock(
    State(api): State<Api>,
    bytes: Body,
) -> Result<Json<ClockObject>, Problem> {
    let given: AcceptBody = json_or_default(bytes)?;
    Ok(Json(match given.node {
        Some(node) if node != api.node => api.control.accept_clock_of(&node).await?,
        _ => api.control.accept_clock(&api.node)?,
    }))
}
