//! From a job's call to the requests that are made.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request};
use punctual::handler::RunContext;
use punctual::job::spec::{HttpSpec, Piece, is_reserved_header, pieces};
use serde_json::Value;

use super::secrets::{Environment, Secret, find};
use crate::exec::command::{scheduled_at, traceparent};

/// What is sent, and what of it must not be shown.
pub(super) struct Prepared {
    method: Method,
    headers: HeaderMap,
    body: Bytes,
    pub(super) secrets: Vec<Secret>,
}

impl Prepared {
    /// The call.
    pub(super) fn request(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }

    /// The question whether what was called has come to its end.
    pub(super) fn question(&self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.headers_mut() = self.headers.clone();
        for of_the_body in [CONTENT_LENGTH, CONTENT_TYPE] {
            request.headers_mut().remove(of_the_body);
        }
        request
    }
}

/// Makes the call ready, or says why it cannot be made.
pub(super) async fn prepare(
    ctx: &RunContext,
    call: &HttpSpec,
    environment: &Environment,
) -> Result<Prepared, String> {
    let method = Method::from_bytes(call.method.as_str().as_bytes())
        .map_err(|error| format!("`method`: {error}"))?;
    let (body, kind) = body(ctx, call);
    let mut headers = HeaderMap::new();
    if let Some(kind) = kind {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    }
    if body.is_empty() && call.method.sends_payload() {
        // Not said of itself, and some receivers insist.
        headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
    let mut secrets = Vec::new();
    for (name, value) in &call.headers {
        // It was checked when the job was applied; this is the last door.
        let key = HeaderName::from_bytes(name.as_bytes())
            .ok()
            .filter(|key| !is_reserved_header(key.as_str()))
            .ok_or_else(|| format!("the header {name:?} is not the job's to set"))?;
        let mut text = String::new();
        let mut is_secret = false;
        for piece in pieces(value).map_err(|why| format!("the header {name} {why}"))? {
            match piece {
                Piece::Text(piece) => text.push_str(piece),
                Piece::Secret(secret) => {
                    let secret = find(secret, environment).await?;
                    text.push_str(secret.expose());
                    secrets.push(secret);
                    is_secret = true;
                }
            }
        }
        let mut value = HeaderValue::from_str(&text)
            .map_err(|_| format!("the header {name} has a value that cannot be sent"))?;
        value.set_sensitive(is_secret);
        headers.insert(key, value);
    }
    // Last: a job cannot give itself another identity.
    for (name, value) in ours(ctx)? {
        let value = HeaderValue::from_str(&value)
            .map_err(|_| format!("{name} cannot be sent as a header: {value:?}"))?;
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(Prepared {
        method,
        headers,
        body,
        secrets,
    })
}

/// What is sent, and what kind of text it is.
fn body(ctx: &RunContext, call: &HttpSpec) -> (Bytes, Option<&'static str>) {
    let json = Some("application/json");
    match &call.body {
        Some(Value::String(text)) => (text.clone().into(), Some("text/plain; charset=utf-8")),
        Some(value) => (value.to_string().into(), json),
        None if call.method.sends_payload() && !ctx.payload.is_null() => {
            (ctx.payload.to_string().into(), json)
        }
        None => (Bytes::new(), None),
    }
}

/// What we say of the run.
fn ours(ctx: &RunContext) -> Result<Vec<(&'static str, String)>, String> {
    let mut ours = vec![
        // The same for all attempts: they are one piece of work.
        ("idempotency-key", ctx.run_id.clone()),
        ("punctual-job-id", ctx.job_id.clone()),
        ("punctual-attempt", ctx.attempt.to_string()),
        ("punctual-fencing-token", ctx.fencing_token.to_string()),
        ("punctual-scheduled-at", scheduled_at(ctx)?),
        ("traceparent", traceparent(ctx)),
    ];
    let part = [
        ("punctual-shard", ctx.shard),
        ("punctual-shards", ctx.shards),
    ];
    ours.extend(
        part.into_iter()
            .filter_map(|(name, number)| Some((name, number?.to_string()))),
    );
    Ok(ours)
}
