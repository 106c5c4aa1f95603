//! `/v1/jobs`.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use punctual::control::{ControlError, IfMatch, JobObject, PageOf, PutOutcome, RunObject};
use punctual::job::spec::MAX_PAYLOAD_BYTES;
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::{Api, Body, MAX_BODY, Paging, Query, body, query, text};
use crate::files::{hex, random};
use crate::times::now_ms;
use punctual_server::jobfile::{Format, JobFile, Source};

pub(super) async fn list(
    State(api): State<Api>,
    paging: Query<Paging>,
) -> Result<Json<PageOf<JobObject>>, Problem> {
    let paging = query(paging)?;
    if paging.job.is_some() || paging.state.is_some() {
        return Err(Problem::bad_request(
            "jobs are listed by cursor and limit only",
        ));
    }
    let limit = paging.limit()?;
    Ok(Json(
        api.control.jobs(paging.cursor.as_deref(), limit).await?,
    ))
}

pub(super) async fn show(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    Ok(with_etag(StatusCode::OK, api.control.job(&id).await?))
}

pub(super) async fn put(
    State(api): State<Api>,
    Path(id): Path<String>,
    headers: HeaderMap,
    bytes: Body,
) -> Result<Response, Problem> {
    let source = Source {
        name: "body".into(),
        format: Format::Json,
        text: text(body(bytes, MAX_BODY)?)?,
    };
    let spec = JobFile::parse_job(&source, &id, now_ms()).map_err(Problem::findings)?;
    if spec.id != id {
        return Err(Problem::bad_request(format!(
            "the body is about the job `{}`, the address about another one",
            punctual_server::jobfile::shorten(&spec.id, 63)
        )));
    }
    let refused = api.webhooks.refused(std::slice::from_ref(&spec));
    if !refused.is_empty() {
        return Err(ControlError::Invalid(refused).into());
    }
    let condition = put_condition(&headers)?;
    let put = api.control.put_job(spec, condition).await;
    let (outcome, job) = put.map_err(|error| conditional(error, condition.is_some()))?;
    Ok(with_etag(
        match outcome {
            PutOutcome::Created => StatusCode::CREATED,
            PutOutcome::Updated | PutOutcome::Unchanged => StatusCode::OK,
        },
        job,
    ))
}

pub(super) async fn delete(
    State(api): State<Api>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let revision = match header_text(&headers, &header::IF_MATCH)? {
        None | Some("*") => None,
        Some(tag) => Some(parse_etag(tag)?),
    };
    let deleted = api.control.delete_job(&id, revision).await;
    deleted.map_err(|error| conditional(error, revision.is_some()))?;
    if !api.commands.has_job(&id) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let warning = format!(
        "{id} stands in this server's --jobs files: it comes back with the next start or SIGHUP \
         unless it is removed there too"
    );
    Ok(Json(Deleted {
        warnings: vec![warning],
    })
    .into_response())
}

/// What is worth knowing about a deletion.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Deleted {
    pub(crate) warnings: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct TriggerBody {
    /// `null` is a payload too; leaving it out means the job's own.
    #[serde(default, deserialize_with = "some")]
    payload: Option<serde_json::Value>,
}

/// As deep as lists and maps may nest in a job file.
const MAX_PAYLOAD_DEPTH: usize = 64;

fn is_deeper(value: &serde_json::Value, levels: usize) -> bool {
    let inside = |item| is_deeper(item, levels - 1);
    match value {
        serde_json::Value::Array(items) => levels == 0 || items.iter().any(inside),
        serde_json::Value::Object(map) => levels == 0 || map.values().any(inside),
        _ => false,
    }
}

fn some<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<serde_json::Value>, D::Error> {
    serde_json::Value::deserialize(deserializer).map(Some)
}

pub(super) async fn trigger(
    State(api): State<Api>,
    Path(id): Path<String>,
    headers: HeaderMap,
    bytes: Body,
) -> Result<(StatusCode, Json<RunObject>), Problem> {
    let given: TriggerBody = json_or_default(bytes)?;
    let payload = given.payload;
    if payload
        .as_ref()
        .is_some_and(|p| p.to_string().len() > MAX_PAYLOAD_BYTES)
    {
        return Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("payload: larger than {MAX_PAYLOAD_BYTES} bytes"),
        ));
    }
    // It is kept inside other JSON, which is read with a limit of its own.
    if payload
        .as_ref()
        .is_some_and(|p| is_deeper(p, MAX_PAYLOAD_DEPTH))
    {
        return Err(Problem::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            format!("payload: nested deeper than {MAX_PAYLOAD_DEPTH} levels"),
        ));
    }
    let key = idempotency_key(&headers)?;
    let run = api.control.trigger(&id, payload, &key).await?;
    Ok((StatusCode::ACCEPTED, Json(run)))
}

/// The client's key, or one that nobody else has.
pub(super) fn idempotency_key(headers: &HeaderMap) -> Result<String, Problem> {
    match headers.get("idempotency-key").map(HeaderValue::to_str) {
        None => random::<16>()
            .map(|bytes| hex(&bytes))
            .map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "no random numbers")),
        Some(Ok(key)) if (1..=255).contains(&key.len()) => Ok(key.to_owned()),
        Some(_) => Err(Problem::bad_request(
            "Idempotency-Key: 1 to 255 visible ASCII characters",
        )),
    }
}

pub(super) fn json_or_default<T: Default + serde::de::DeserializeOwned>(
    bytes: Body,
) -> Result<T, Problem> {
    let bytes = body(bytes, MAX_BODY)?;
    if bytes.trim_ascii().is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(&bytes).map_err(|error| Problem::bad_request(format!("body: {error}")))
}

fn put_condition(headers: &HeaderMap) -> Result<Option<IfMatch>, Problem> {
    let if_match = header_text(headers, &header::IF_MATCH)?;
    let if_none_match = header_text(headers, &header::IF_NONE_MATCH)?;
    match (if_match, if_none_match) {
        (None, None) => Ok(None),
        (None, Some("*")) => Ok(Some(IfMatch::Absent)),
        (Some(tag), None) => Ok(Some(IfMatch::Revision(parse_etag(tag)?))),
        (None, Some(_)) => Err(Problem::bad_request(
            "If-None-Match: only `*` has a meaning here",
        )),
        (Some(_), Some(_)) => Err(Problem::bad_request(
            "If-Match and If-None-Match exclude each other",
        )),
    }
}

fn header_text<'a>(
    headers: &'a HeaderMap,
    name: &header::HeaderName,
) -> Result<Option<&'a str>, Problem> {
    headers
        .get(name)
        .map(|value| value.to_str().map(str::trim))
        .transpose()
        .map_err(|_| Problem::bad_request(format!("{name}: not ASCII")))
}

/// The revision in an entity tag of ours: `"123"`.
fn parse_etag(tag: &str) -> Result<u64, Problem> {
    let inner = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    inner
        .and_then(|inner| inner.parse().ok())
        .ok_or_else(|| Problem::bad_request("If-Match: one ETag of this job, such as \"123\""))
}

/// A conflict with what the client named is a failed precondition.
fn conditional(error: ControlError, has_condition: bool) -> Problem {
    match error {
        ControlError::Conflict(what) if has_condition => {
            Problem::new(StatusCode::PRECONDITION_FAILED, what)
        }
        error => error.into(),
    }
}

pub(super) fn with_etag(status: StatusCode, job: JobObject) -> Response {
    let tag = HeaderValue::from_str(&format!("\"{}\"", job.revision));
    let mut response = (status, Json(job)).into_response();
    if let Ok(tag) = tag {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read_strictly() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| {
                let name = header::HeaderName::from_static(name);
                (name, HeaderValue::from_static(value))
            });
            pairs.collect::<HeaderMap>()
        };
        let read = |pairs: &[_]| put_condition(&headers(pairs));
        assert!(matches!(read(&[]), Ok(None)));
        assert!(matches!(
            read(&[("if-match", "\"7\"")]),
            Ok(Some(IfMatch::Revision(7)))
        ));
        assert!(matches!(
            read(&[("if-none-match", "*")]),
            Ok(Some(IfMatch::Absent))
        ));
        for wrong in ["7", "W/\"7\"", "\"\"", "\"7", "\"7\", \"8\"", ""] {
            assert!(read(&[("if-match", wrong)]).is_err(), "{wrong}");
        }
        assert!(read(&[("if-match", "\"7\""), ("if-none-match", "*")]).is_err());
    }

    #[test]
    fn a_null_payload_is_a_payload() {
        let body: TriggerBody = serde_json::from_str("{\"payload\":null}").unwrap();
        assert_eq!(body.payload, Some(serde_json::Value::Null));
        let body: TriggerBody = serde_json::from_str("{}").unwrap();
        assert_eq!(body.payload, None);
    }
}
