//! A call over HTTP: `run.http` in a job's definition.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::url::HttpUrl;
use super::{MAX_PAYLOAD_BYTES, SpecError, depth};

/// So many headers of one call.
const MAX_HEADERS: usize = 32;
/// The longest value of a header, before its secrets stand in it.
const MAX_HEADER_BYTES: usize = 4 << 10;
/// The deepest body, as the deepest payload.
const MAX_BODY_DEPTH: usize = 64;
/// What a secret's name follows in the environment of a node.
pub const SECRET_VARIABLE: &str = "PUNCTUAL_SECRET_";
/// How a reference to a secret begins; it ends with `}`.
const SECRET: &str = "${secret:";
/// What comes behind a secret's name in the environment for a file with it.
const FILE: &str = "_FILE";

/// Headers that the scheduler sets, or that say how a message travels: a job has no say in them.
const RESERVED: [&str; 14] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "idempotency-key",
    "keep-alive",
    "proxy-connection",
    "te",
    "traceparent",
    "tracestate",
    "trailer",
    "transfer-encoding",
    "upgrade",
];
/// Headers by which a receiver knows who calls: a definition is shown to everybody who may look, so
/// they have their value from a secret.
const CREDENTIALS: [&str; 5] = [
    "authorization",
    "cookie",
    "proxy-authorization",
    "x-api-key",
    "x-auth-token",
];

/// A call over HTTP.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSpec {
    /// Where to: `https://HOST/PATH`.
    #[serde(default)]
    pub url: String,
    /// How. Default POST.
    #[serde(default, skip_serializing_if = "super::is_default")]
    pub method: HttpMethod,
    /// Added to those that the scheduler sets. `${secret:NAME}` stands for a secret of the node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// What is sent: a text as it is, anything else as JSON. Default: the payload as JSON, with a
    /// method that has a body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<serde_json::Value>,
}

/// How a URL is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum HttpMethod {
    /// POST.
    #[default]
    Post,
    /// GET.
    Get,
    /// PUT.
    Put,
    /// PATCH.
    Patch,
    /// DELETE.
    Delete,
    /// HEAD.
    Head,
}

impl HttpMethod {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Post,
        Self::Get,
        Self::Put,
        Self::Patch,
        Self::Delete,
        Self::Head,
    ];

    /// As in a request.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Post => "POST",
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Head => "HEAD",
        }
    }

    /// Whether the payload is sent with it when nothing else is said.
    #[must_use]
    pub fn sends_payload(self) -> bool {
        matches!(self, Self::Post | Self::Put | Self::Patch)
    }
}

/// A piece of a header's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// As it is.
    Text(&'a str),
    /// What the node keeps under this name.
    Secret(&'a str),
}

/// Takes a header's value apart.
///
/// # Errors
/// What is wrong with a reference in it, for people.
pub fn pieces(value: &str) -> Result<Vec<Piece<'_>>, String> {
    let mut found = Vec::new();
    let mut rest = value;
    while let Some(at) = rest.find(SECRET) {
        let (text, reference) = rest.split_at(at);
        if !text.is_empty() {
            found.push(Piece::Text(text));
        }
        let (name, behind) = reference[SECRET.len()..]
            .split_once('}')
            .ok_or("has a `${secret:` without its `}`")?;
        if !is_secret_name(name) {
            return Err("names a secret in a way that no node can keep it".into());
        }
        found.push(Piece::Secret(name));
        rest = behind;
    }
    if !rest.is_empty() {
        found.push(Piece::Text(rest));
    }
    Ok(found)
}

/// Whether a secret can be called so: it is part of the name of a variable, and what ends in `_FILE` is
/// the place of another one.
#[must_use]
pub fn is_secret_name(name: &str) -> bool {
    let first = name.bytes().next();
    name.len() <= 64
        && first.is_some_and(|byte| byte.is_ascii_uppercase())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
        && !name.ends_with(FILE)
}

/// Whether a header is not the job's to set, however it is spelled.
#[must_use]
pub fn is_reserved_header(name: &str) -> bool {
    let name = plain(name);
    RESERVED.contains(&name.as_str()) || name.starts_with("punctual-")
}

/// The name of a header, of which its spellings are one to some receiver: whoever sees headers as CGI
/// variables does not tell `_` from `-`.
fn plain(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

impl HttpSpec {
    /// Whether a secret goes out with the call.
    #[must_use]
    pub fn has_secrets(&self) -> bool {
        self.headers.values().any(|value| value.contains(SECRET))
    }

    /// Everything that is wrong with it. (No value is shown: it may be a secret that should not be
    /// there.)
    pub(super) fn check(&self, errors: &mut Vec<SpecError>) {
        if self.url.contains(SECRET) {
            errors.push(
                SpecError::new("run.http.url", "a secret can stand in a header only")
                    .hint("a URL is shown to everybody who may look at the job"),
            );
        } else if let Err(why) = HttpUrl::parse(&self.url) {
            errors.push(
                SpecError::new("run.http.url", format!("it {why}"))
                    .hint("for example  https://example.org/tasks/report"),
            );
        }
        self.check_headers(errors);
        self.check_body(errors);
    }

    fn check_headers(&self, errors: &mut Vec<SpecError>) {
        if self.headers.len() > MAX_HEADERS {
            let message = format!("more than {MAX_HEADERS} headers");
            errors.push(SpecError::new("run.http.headers", message));
        }
        let mut seen = std::collections::BTreeSet::new();
        for (name, value) in &self.headers {
            let shown: String = name.chars().take(80).collect();
            let mut wrong = |message: &str, hint: &str| {
                let finding = SpecError::new(format!("run.http.headers.{shown}"), message);
                errors.push(match hint {
                    "" => finding,
                    hint => finding.hint(hint),
                });
            };
            let plain = plain(name);
            if !is_token(name) {
                wrong("not the name of a header", "letters, digits and `-`");
            } else if is_reserved_header(name) {
                wrong(
                    "this header is set by the scheduler",
                    "leave it out; docs/jobs.md lists what is sent",
                );
            } else if !seen.insert(plain.clone()) {
                wrong("this header stands twice, in another spelling", "");
            } else if value.len() > MAX_HEADER_BYTES {
                let message = format!("its value is longer than {MAX_HEADER_BYTES} bytes");
                wrong(&message, "");
            } else if !value
                .bytes()
                .all(|byte| matches!(byte, b' '..=b'~' | b'\t'))
            {
                wrong(
                    "its value has a line break, a control character or one that is not ASCII",
                    "",
                );
            } else if value.trim() != value {
                wrong("its value begins or ends with a blank", "");
            } else {
                match pieces(value) {
                    Err(why) => wrong(
                        &format!("its value {why}"),
                        "write ${secret:NAME}: upper case letters, digits, `_`, and not _FILE at the end",
                    ),
                    Ok(found) => {
                        let is_secret = |piece: &Piece<'_>| matches!(piece, Piece::Secret(_));
                        if CREDENTIALS.contains(&plain.as_str()) && !found.iter().any(is_secret) {
                            wrong(
                                "a credential is not written into a job, which is shown to everybody who may look",
                                "write \"Bearer ${secret:NAME}\", and give the node PUNCTUAL_SECRET_NAME or \
                                 PUNCTUAL_SECRET_NAME_FILE",
                            );
                        }
                    }
                }
            }
        }
    }

    fn check_body(&self, errors: &mut Vec<SpecError>) {
        let Some(body) = &self.body else { return };
        let mut wrong = |message: String, hint: &str| {
            errors.push(SpecError::new("run.http.body", message).hint(hint));
        };
        if matches!(self.method, HttpMethod::Get | HttpMethod::Head) {
            let message = format!("{} sends no body", self.method.as_str());
            wrong(message, "use `method: POST`, or leave it out");
        } else if depth(body) > MAX_BODY_DEPTH {
            let message = format!("nested deeper than {MAX_BODY_DEPTH} levels");
            wrong(message, "make it flatter");
        } else {
            // Only now: printing it is recursive.
            let text = body.to_string();
            if text.len() > MAX_PAYLOAD_BYTES {
                let message = format!("larger than {MAX_PAYLOAD_BYTES} bytes as JSON");
                wrong(
                    message,
                    "keep the data elsewhere and send a reference to it",
                );
            } else if text.contains(SECRET) {
                wrong(
                    "a secret can stand in a header only".into(),
                    "put it into a header",
                );
            }
        }
    }
}

/// Whether RFC 9110 takes it for a name.
fn is_token(name: &str) -> bool {
    let named = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !name.is_empty() && name.len() <= 64 && name.bytes().all(named)
}

#[cfg(test)]
mod tests {
    use super::super::JobSpec;
    use super::*;
    use crate::schedule::Calendars;

    /// What is wrong with a job of this call: the paths, without `run.http.`.
    fn findings(http: serde_json::Value) -> String {
        let mut spec = JobSpec::handler("a", "h");
        spec.run.handler = None;
        spec.run.http = Some(serde_json::from_value(http).unwrap());
        let found = spec.check(&Calendars::default(), 0).err();
        let paths = found.into_iter().flatten().map(|finding| {
            let all = format!("{finding} {}", finding.hint.clone().unwrap_or_default());
            assert!(!all.contains("hunter2"), "{all}");
            finding.path.replace("run.http.", "")
        });
        paths.collect::<Vec<_>>().join(" ")
    }

    fn headers(headers: serde_json::Value) -> String {
        findings(serde_json::json!({ "url": "https://a.org", "headers": headers }))
    }

    #[test]
    fn a_call_that_can_be_made_is_taken() {
        for http in [
            serde_json::json!({ "url": "https://a.org" }),
            serde_json::json!({ "url": "http://a.org:8080/x?y=1", "method": "GET" }),
            serde_json::json!({ "url": "https://a.org", "method": "DELETE", "body": {"a": 1} }),
            serde_json::json!({
                "url": "https://a.org", "method": "PUT", "body": "a text",
                "headers": {
                    "X-Team": "billing", "Authorization": "Bearer ${secret:REPORT_TOKEN}",
                    "Cookie": "a=${secret:A1}; b=${secret:B_2}", "User-Agent": "ours/1",
                    "Content-Type": "text/csv", "X-Empty": "", "X-Dollar": "${other}",
                },
            }),
        ] {
            assert_eq!(findings(http.clone()), "", "{http}");
        }
        let spec: HttpSpec = serde_json::from_str(r#"{"url": "https://a.org"}"#).unwrap();
        assert_eq!(
            serde_json::to_string(&spec).unwrap(),
            r#"{"url":"https://a.org"}"#
        );
        assert!(serde_json::from_str::<HttpSpec>(r#"{"url": "u", "uri": "u"}"#).is_err());
    }

    #[test]
    fn a_call_that_cannot_be_made_is_refused() {
        for url in [
            "",
            "a.org",
            "ftp://a.org",
            "https://u:hunter2@a.org/",
            "https://a.org/${secret:A}",
            "https://a.org/hunter2 b",
        ] {
            let http = serde_json::json!({ "url": url });
            assert_eq!(findings(http), "url", "{url}");
        }
        let body = |method: &str, body: serde_json::Value| {
            findings(serde_json::json!({ "url": "https://a.org", "method": method, "body": body }))
        };
        let deep = (0..65).fold(serde_json::json!(1), |inner, _| serde_json::json!([inner]));
        for (method, wrong) in [
            ("GET", serde_json::json!("x")),
            ("HEAD", serde_json::json!({})),
            ("POST", serde_json::json!("x".repeat(MAX_PAYLOAD_BYTES))),
            ("POST", serde_json::json!({ "token": "${secret:A}" })),
            ("POST", deep),
        ] {
            assert_eq!(body(method, wrong), "body");
        }
        let both = r#"{"id": "a", "run": {"command": ["a"], "http": {"url": "https://a.org"}}}"#;
        let both: JobSpec = serde_json::from_str(both).unwrap();
        let found = both.check(&Calendars::default(), 0).unwrap_err();
        assert_eq!(found[0].path, "run");
        let env = r#"{"id": "a", "run": {"env": {"A": "b"}, "http": {"url": "https://a.org"}}}"#;
        let env: JobSpec = serde_json::from_str(env).unwrap();
        assert_eq!(
            env.check(&Calendars::default(), 0).unwrap_err()[0].path,
            "run.env"
        );
    }

    #[test]
    fn headers_that_are_not_the_jobs_to_set_are_refused() {
        for name in RESERVED {
            assert_eq!(
                headers(serde_json::json!({ name: "x" })),
                format!("headers.{name}")
            );
        }
        for name in [
            "HOST",
            "Punctual-Attempt",
            "punctual-anything",
            "Idempotency_Key",
            "Punctual_Fencing_Token",
        ] {
            let path = format!("headers.{name}");
            assert_eq!(headers(serde_json::json!({ name: "x" })), path);
        }
        let twice = headers(serde_json::json!({ "X-A": "1", "x-a": "2" }));
        assert_eq!(twice, "headers.x-a");
        for (name, value) in [
            ("", "x"),
            ("a b", "x"),
            ("a:", "x"),
            ("\u{e4}", "x"),
            ("X-A", "a\r\nHost: b"),
            ("X-A", "a\nb"),
            ("X-A", "\u{e4}"),
            ("X-A", " a"),
            ("X-A", "a\t"),
            ("X-A", "\u{7f}"),
        ] {
            let found = headers(serde_json::json!({ name: value }));
            assert_eq!(found, format!("headers.{name}"), "{name:?} {value:?}");
        }
        let long = "x".repeat(MAX_HEADER_BYTES + 1);
        assert_eq!(headers(serde_json::json!({ "X-A": long })), "headers.X-A");
        let many: BTreeMap<_, _> = (0..33).map(|n| (format!("X-{n}"), "a")).collect();
        assert_eq!(headers(serde_json::json!(many)), "headers");
    }

    /// Q06: a credential is a reference.
    #[test]
    fn a_credential_that_is_written_out_is_refused() {
        for name in [
            "Authorization",
            "COOKIE",
            "proxy-authorization",
            "X-Api-Key",
        ] {
            for value in ["Bearer hunter2", "hunter2", "", "${SECRET:A} hunter2"] {
                let path = format!("headers.{name}");
                assert_eq!(headers(serde_json::json!({ name: value })), path);
            }
            assert_eq!(headers(serde_json::json!({ name: "x ${secret:A}" })), "");
        }
        for value in [
            "${secret:}",
            "${secret:hunter2}",
            "${secret:A",
            "${secret:A} ${secret:B",
            "${secret:A-B}",
            "${secret:1A}",
            "${secret:A_FILE}",
            "${secret: A}",
        ] {
            let found = headers(serde_json::json!({ "X-A": value }));
            assert_eq!(found, "headers.X-A", "{value}");
        }
    }

    #[test]
    fn a_value_is_taken_apart() {
        use Piece::{Secret, Text};
        assert_eq!(pieces(""), Ok(vec![]));
        assert_eq!(pieces("a ${b}"), Ok(vec![Text("a ${b}")]));
        assert_eq!(
            pieces("a ${secret:B}${secret:C_1} d"),
            Ok(vec![Text("a "), Secret("B"), Secret("C_1"), Text(" d")])
        );
    }

    #[test]
    fn methods_are_spelled_as_in_requests() {
        for method in HttpMethod::ALL {
            assert_eq!(serde_json::json!(method), method.as_str());
        }
    }
}
