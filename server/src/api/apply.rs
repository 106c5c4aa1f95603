//! `POST /v1/apply`: a whole job file at once.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use punctual::control::{ApplyReport, ControlError};
use punctual::job::spec::JobSpec;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::problem::Problem;
use super::{Api, Body, Query, RequestId, body, query, text};
use crate::times::now_ms;
use punctual_server::jobfile::{Format, JobFile, MAX_BYTES, Source};

/// Lines of progress, for clients that ask for them.
pub(crate) const NDJSON: &str = "application/x-ndjson";
/// The most warnings in one answer.
const MAX_WARNINGS: usize = 5;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Options {
    dry_run: Option<Flag>,
    prune: Option<Flag>,
}

/// `?prune`, `?prune=true` and `?prune=1` mean the same.
#[derive(Debug, Clone, Copy, Deserialize)]
enum Flag {
    #[serde(rename = "", alias = "true", alias = "1")]
    Yes,
    #[serde(rename = "false", alias = "0")]
    No,
}

impl Flag {
    fn is_set(flag: Option<Self>) -> bool {
        matches!(flag, Some(Self::Yes))
    }
}

/// What an apply did, or would do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ApplyAnswer {
    #[serde(flatten)]
    pub(crate) report: ApplyReport,
    /// What may not work as meant, such as commands that this node does not run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
}

/// A line of an answer with progress.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ApplyLine {
    Progress { done: usize, total: usize },
    Done(ApplyAnswer),
    Failed(Problem),
}

pub(super) async fn apply(
    State(api): State<Api>,
    Extension(id): Extension<RequestId>,
    options: Query<Options>,
    headers: HeaderMap,
    bytes: Body,
) -> Result<Response, Problem> {
    let options = query(options)?;
    let limit = usize::try_from(MAX_BYTES).unwrap_or(usize::MAX);
    let text = text(body(bytes, limit)?)?;
    let format = format_of(&headers, &text);
    // Tens of megabytes of YAML would hold up everybody else.
    let specs = tokio::task::spawn_blocking(move || parse(format, text))
        .await
        .map_err(|_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, ""))??;
    let prune = Flag::is_set(options.prune);
    if prune && specs.is_empty() {
        return Err(Problem::bad_request(
            "an empty file with `prune` would delete every job; delete jobs by their ids",
        ));
    }
    let refused = api.webhooks.refused(&specs);
    if !refused.is_empty() {
        return Err(ControlError::Invalid(refused).into());
    }
    let warnings = warnings(&api, &specs).await;
    if Flag::is_set(options.dry_run) {
        let report = api.control.plan_apply(&specs, prune).await?;
        return Ok(Json(ApplyAnswer { report, warnings }).into_response());
    }
    // In a task of its own: a client that goes away does not stop it half-way.
    let (lines, received) = mpsc::channel(16);
    tokio::spawn(run(api, id, specs, prune, warnings, lines));
    if accepts_lines(&headers) {
        Ok(stream(received))
    } else {
        last_line(received).await
    }
}

async fn run(
    api: Api,
    id: RequestId,
    specs: Vec<JobSpec>,
    prune: bool,
    warnings: Vec<String>,
    lines: mpsc::Sender<ApplyLine>,
) {
    let progress = |done, total| {
        // A reader that is slow misses some of the progress, nothing else.
        let _ = lines.try_send(ApplyLine::Progress { done, total });
    };
    let last = match api.control.apply(specs, prune, &progress).await {
        Ok(report) => ApplyLine::Done(ApplyAnswer { report, warnings }),
        Err(error) => {
            let mut problem = Problem::from(error);
            problem.request_id = id.0;
            ApplyLine::Failed(problem)
        }
    };
    let _ = lines.send(last).await;
}

async fn last_line(mut lines: mpsc::Receiver<ApplyLine>) -> Result<Response, Problem> {
    while let Some(line) = lines.recv().await {
        match line {
            ApplyLine::Progress { .. } => {}
            ApplyLine::Done(answer) => return Ok(Json(answer).into_response()),
            ApplyLine::Failed(problem) => return Err(problem),
        }
    }
    Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, ""))
}

fn stream(lines: mpsc::Receiver<ApplyLine>) -> Response {
    let lines = futures_util::stream::unfold(lines, |mut lines| async {
        let line = lines.recv().await?;
        let mut json = serde_json::to_vec(&line).unwrap_or_default();
        json.push(b'\n');
        Some((Ok::<_, Infallible>(Bytes::from(json)), lines))
    });
    let mut response = axum::body::Body::from_stream(lines).into_response();
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    response
}

fn accepts_lines(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT);
    accept.is_some_and(|value| value.as_bytes() == NDJSON.as_bytes())
}

fn format_of(headers: &HeaderMap, text: &str) -> Format {
    let kind = headers
        .get(header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok());
    let kind = kind
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    match kind {
        "application/json" => Format::Json,
        "application/toml" => Format::Toml,
        "application/yaml" | "application/x-yaml" | "text/yaml" => Format::Yaml,
        _ => Format::guess(text),
    }
}

fn parse(format: Format, text: String) -> Result<Vec<JobSpec>, Problem> {
    let source = Source {
        name: "body".into(),
        format,
        text,
    };
    let file = JobFile::parse(&[source], now_ms());
    if file.findings.is_empty() {
        Ok(file.jobs)
    } else {
        Err(Problem::findings(file.findings))
    }
}

/// Jobs that this node would not run, or whose calls it would not make. Others may: it is a warning, not an error.
///
/// Before it warns, the node looks into its own files as they are now: whoever has just edited the
/// file that `--jobs` names and applies that same file has declared what is in it.
async fn warnings(api: &Api, specs: &[JobSpec]) -> Vec<String> {
    let mut unreadable = String::new();
    if api.commands.may_declare_more() && specs.iter().any(|s| api.commands.refusal(s).is_some()) {
        let commands = Arc::clone(&api.commands);
        match tokio::task::spawn_blocking(move || commands.read_again()).await {
            Ok(Ok((_, gone))) => {
                let (commands, control) = (Arc::clone(&api.commands), api.control.clone());
                tokio::spawn(async move { commands.warn_of_gone(&control, gone).await });
            }
            Ok(Err(failure)) => {
                tracing::warn!("the node's own job files cannot be read now: {failure}");
                " (they cannot be read now; the log says why)".clone_into(&mut unreadable);
            }
            Err(_) => {}
        }
    }
    let mut refused = 0_usize;
    let mut all = Vec::new();
    for spec in specs {
        let command = api.commands.refusal(spec);
        let command = command.map(|refusal| format!("{refusal}{unreadable}"));
        let Some(refusal) = command.or_else(|| api.calls.refusal(spec)) else {
            continue;
        };
        refused += 1;
        if refused <= MAX_WARNINGS {
            all.push(format!(
                "{}: this node would not run it: {refusal}",
                spec.id
            ));
        }
    }
    if refused > MAX_WARNINGS {
        all.push(format!("and {} more jobs", refused - MAX_WARNINGS));
    }
    all
}
