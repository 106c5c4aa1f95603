//! Errors as problem details (RFC 9457): what a client may know, and nothing of the inside.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use punctual::backend::BackendError;
use punctual::control::ControlError;
use serde::{Deserialize, Serialize};

use punctual_server::jobfile::Finding;

/// The most findings in one answer.
const MAX_FINDINGS: usize = 1_000;
/// So many of the jobs that remain are named.
const MAX_NAMED: usize = 10;

/// An error as clients see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Problem {
    /// Names the kind of problem.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// The kind in words.
    pub(crate) title: String,
    pub(crate) status: u16,
    /// What happened this time.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) detail: String,
    /// What is wrong with the definitions that were sent.
    #[serde(default, skip_serializing_if = "<[Finding]>::is_empty")]
    pub(crate) findings: Box<[Finding]>,
    /// Finds the request in the server's log.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) request_id: String,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        let name = title.to_ascii_lowercase().replace(' ', "-");
        Self {
            kind: format!("urn:punctual:problem:{name}"),
            title: title.into(),
            status: status.as_u16(),
            detail: detail.into(),
            ..Self::default()
        }
    }

    pub(crate) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Definitions that are not valid.
    pub(crate) fn findings(mut findings: Vec<Finding>) -> Self {
        let count = findings.len();
        findings.truncate(MAX_FINDINGS);
        let detail = match findings.as_slice() {
            [only] => only.message.clone(),
            _ => format!("{count} findings"),
        };
        Self {
            findings: findings.into(),
            ..Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                format!("{detail}; nothing was changed"),
            )
        }
    }

    /// Some of what was asked is done.
    fn half_way(remain: &[String], why: ControlError) -> Self {
        let (what, then) = match &why {
            // (What the store says is for the log.)
            ControlError::Store(BackendError::Unknown(_)) => (
                "the store did not answer in time, so that some of these may be in force"
                    .to_owned(),
                "Apply it again to finish",
            ),
            ControlError::Store(_) => {
                ("the store went away".to_owned(), "Apply it again to finish")
            }
            ControlError::Invalid(_) => (why.to_string(), "Mend that and apply it again to finish"),
            other => (other.to_string(), "Apply it again to finish"),
        };
        let first = remain.iter().take(MAX_NAMED).map(String::as_str);
        let first = first.collect::<Vec<_>>().join(", ");
        let left = match (remain.len(), remain.len().saturating_sub(MAX_NAMED)) {
            (0, _) => "jobs that were to be deleted remain".to_owned(),
            (count, 0) => format!("of the jobs that it names {count} remain: {first}"),
            (count, more) => {
                format!("of the jobs that it names {count} remain: {first} and {more} more")
            }
        };
        Self {
            detail: format!("stopped half-way: {left}; {what}. {then}"),
            ..Self::from(why)
        }
    }

    fn code(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// As it goes over the wire.
    pub(super) fn render(&self) -> Response {
        let body = serde_json::to_vec(self).unwrap_or_default();
        let mut response = (self.code(), body).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        if matches!(self.status, 429 | 503) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == 401 {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl IntoResponse for Problem {
    /// Travels as an extension until the outermost layer adds the request's id and renders it.
    fn into_response(self) -> Response {
        let mut response = self.code().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Invalid(found) => {
                let findings = found.into_iter().map(|(job, error)| Finding {
                    job: Some(job),
                    path: Some(error.path).filter(|path| !path.is_empty()),
                    hint: error.hint,
                    ..Finding::without_place(error.message)
                });
                Self::findings(findings.collect())
            }
            ControlError::NotFound(what) => Self::new(StatusCode::NOT_FOUND, what),
            ControlError::Conflict(what) => Self::new(StatusCode::CONFLICT, what),
            ControlError::Busy(what) => Self::new(StatusCode::TOO_MANY_REQUESTS, what),
            ControlError::Store(error) => store_problem(&error),
            ControlError::HalfWay { remain, why } => Self::half_way(&remain, *why),
        }
    }
}

/// The store's own words may name its keys: they go to the log, not to the client.
fn store_problem(error: &BackendError) -> Problem {
    // A store that is away is spoken of by the node.
    if error.is_transient() {
        tracing::debug!(%error, "the store failed a request");
    } else {
        tracing::warn!(%error, "the store failed a request");
    }
    match error {
        BackendError::Unknown(_) => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the store did not answer in time: the request was carried out once or not at all; look, or repeat it",
        ),
        BackendError::Rejected(_) | BackendError::Broken(_) => Problem::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the store refused the request; the server's log says why",
        ),
        _ => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the store is not reachable; nothing was changed",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_apply_that_was_cut_off_says_what_remains() {
        let away = || Box::new(BackendError::Unavailable("/ns/jobs/secret".into()).into());
        let half_way = |count: usize| ControlError::HalfWay {
            remain: (0..count).map(|n| format!("job-{n:02}")).collect(),
            why: away(),
        };
        let detail = Problem::from(half_way(12)).detail;
        assert!(detail.contains("12 remain: job-00, "), "{detail}");
        assert!(
            detail.contains("job-09 and 2 more; the store went away. Apply it again"),
            "{detail}"
        );
        let few = Problem::from(half_way(1));
        assert!(few.detail.contains("1 remain: job-00; "), "{}", few.detail);
        for problem in [Problem::from(half_way(0)), few] {
            assert_eq!(problem.status, 503);
            for wrong in ["nothing was changed", "secret"] {
                assert!(!problem.detail.contains(wrong), "{}", problem.detail);
            }
        }
    }

    #[test]
    fn the_inside_of_the_store_stays_inside() {
        for error in [
            BackendError::Unavailable("/ns/jobs/secret".into()),
            BackendError::Unknown("/ns/jobs/secret".into()),
            BackendError::Rejected("/ns/jobs/secret".into()),
            BackendError::Broken("/ns/jobs/secret".into()),
            BackendError::LeaseLost,
        ] {
            let response = Problem::from(ControlError::Store(error)).render();
            let retry = response.headers().contains_key(header::RETRY_AFTER);
            assert_eq!(retry, response.status() == StatusCode::SERVICE_UNAVAILABLE);
        }
        let problem = Problem::from(ControlError::Store(BackendError::Unknown(
            "/ns/secret".into(),
        )));
        assert!(!serde_json::to_string(&problem).unwrap().contains("secret"));
    }
}
