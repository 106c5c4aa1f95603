//! The client of the HTTP API: HTTP/1.1 over one connection, kept open between requests.

use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderName};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

use crate::api::MAX_PAGE;
use crate::api::problem::Problem;
use crate::cli::failure::{Exit, Failure, Outcome};
use crate::discover::not_running;
use crate::files::ClientFile;
use punctual::control::PageOf;

/// The largest answer that is read into memory.
const MAX_ANSWER: usize = 256 << 20;

/// A connection to a server.
pub(crate) struct Client {
    url: String,
    host: String,
    port: u16,
    token: String,
    timeout: Duration,
    sender: Option<SendRequest<Full<Bytes>>>,
}

/// What is sent, beside method and path.
#[derive(Default)]
pub(crate) struct Call<'a> {
    pub(crate) body: Vec<u8>,
    pub(crate) headers: Vec<(HeaderName, &'a str)>,
}

impl Client {
    pub(crate) fn new(server: ClientFile, timeout: Duration) -> Outcome<Self> {
        let fail = |what: &str| Failure::usage(format!("--server {}: {what}", server.url));
        let uri: Uri = server.url.parse().map_err(|_| fail("not a URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(fail("only http:// is in this version")
                .hint("reach a distant server through a tunnel that ends on this machine"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(fail("write only http://HOST:PORT"));
        }
        let Some(host) = uri.host() else {
            return Err(fail("the host is missing"));
        };
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(80),
            token: server.token,
            timeout,
            sender: None,
            url: server.url,
        })
    }

    /// Asks for an object.
    pub(crate) async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Outcome<T> {
        self.json(Method::GET, path, Call::default()).await
    }

    /// Sends JSON, gets JSON.
    pub(crate) async fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
        headers: Vec<(HeaderName, &str)>,
    ) -> Outcome<T> {
        let body = serde_json::to_vec(body).map_err(|e| bug(&e))?;
        self.json(Method::POST, path, Call { body, headers }).await
    }

    /// Sends a request whose answer is an object.
    pub(crate) async fn json<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        call: Call<'_>,
    ) -> Outcome<T> {
        let bytes = self.bytes(method, path, call).await?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Failure::new(Exit::Bug, format!("the answer makes no sense: {error}"))
                .hint("are client and server of the same version?")
        })
    }

    /// All pages of a listing, up to `limit` items.
    pub(crate) async fn pages<T: DeserializeOwned>(
        &mut self,
        path: &str,
        query: &[(&str, &str)],
        limit: Option<usize>,
    ) -> Outcome<Vec<T>> {
        let limit = limit.unwrap_or(usize::MAX);
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        while items.len() < limit {
            let size = (limit - items.len()).min(MAX_PAGE).to_string();
            let mut query = query.to_vec();
            query.push(("limit", &size));
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let page: PageOf<T> = self.get(&with_query(path, &query)).await?;
            items.extend(page.items);
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        items.truncate(limit);
        Ok(items)
    }

    /// The body of a good answer.
    pub(crate) async fn bytes(
        &mut self,
        method: Method,
        path: &str,
        call: Call<'_>,
    ) -> Outcome<Bytes> {
        let response = self.send(method, path, call).await?;
        self.collect(response).await
    }

    /// Sends a request; an answer that is no success is a failure with the server's words.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        path: &str,
        call: Call<'_>,
    ) -> Outcome<Response<Incoming>> {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.url.trim_start_matches("http://"))
            .header(AUTHORIZATION, format!("Bearer {}", self.token));
        if !call.body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        for (name, value) in call.headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Full::new(Bytes::from(call.body)))
            .map_err(|e| Failure::usage(format!("not a request: {e}")))?;
        let timeout = self.timeout;
        let sent = tokio::time::timeout(timeout, async {
            let sender = self.connection().await?;
            let sent = sender.send_request(request).await;
            sent.map_err(|error| lost(&error))
        });
        let response = sent.await.map_err(|_| self.timed_out())??;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = self.collect(response).await?;
        Err(refused(status, &body))
    }

    async fn collect(&self, response: Response<Incoming>) -> Outcome<Bytes> {
        let body = http_body_util::Limited::new(response.into_body(), MAX_ANSWER);
        let read = tokio::time::timeout(self.timeout, body.collect()).await;
        let read = read.map_err(|_| self.timed_out())?;
        Ok(read.map_err(|error| lost(&*error))?.to_bytes())
    }

    async fn connection(&mut self) -> Outcome<&mut SendRequest<Full<Bytes>>> {
        // One that the server has closed meanwhile is of no use.
        if let Some(sender) = &mut self.sender
            && sender.ready().await.is_err()
        {
            self.sender = None;
        }
        if self.sender.is_none() {
            let stream = TcpStream::connect((self.host.as_str(), self.port)).await;
            let stream = stream
                .map_err(|error| not_running(&format!("no server at {}: {error}", self.url)))?;
            // Requests are small and somebody waits for them.
            let _ = stream.set_nodelay(true);
            let connected = handshake(TokioIo::new(stream)).await;
            let (sender, connection) = connected.map_err(|error| lost(&error))?;
            tokio::spawn(async move {
                // Its end shows at the sender.
                let _ = connection.await;
            });
            self.sender = Some(sender);
        }
        self.sender
            .as_mut()
            .ok_or_else(|| Failure::new(Exit::Unreachable, "no connection"))
    }

    fn timed_out(&self) -> Failure {
        Failure::new(
            Exit::TimedOut,
            format!("{} did not answer in {:?}", self.url, self.timeout),
        )
        .hint("what was asked may have been done all the same; look before you repeat it")
    }
}

fn lost(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(
        Exit::Unreachable,
        format!("the connection to the server was lost: {error}"),
    )
}

fn bug(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(Exit::Bug, error.to_string())
}

/// What the server's refusal means for whoever called.
fn refused(status: StatusCode, body: &[u8]) -> Failure {
    let problem = serde_json::from_slice::<Problem>(body);
    let problem = problem.unwrap_or_else(|_| Problem::new(status, ""));
    failure_of(&problem)
}

/// The exit code and the words for a problem.
pub(crate) fn failure_of(problem: &Problem) -> Failure {
    let exit = match problem.status {
        400 | 405 | 413 | 422 => Exit::Usage,
        401 | 403 => Exit::Denied,
        404 => Exit::NotFound,
        409 | 412 => Exit::Conflict,
        429 | 502 | 503 => Exit::Unreachable,
        504 => Exit::TimedOut,
        _ => Exit::Bug,
    };
    let mut message = match problem.detail.as_str() {
        "" => problem.title.clone(),
        detail => detail.to_owned(),
    };
    if !problem.findings.is_empty() {
        let lines: Vec<String> = problem.findings.iter().map(ToString::to_string).collect();
        message = format!("{message}\n{}", lines.join("\n"));
    }
    let failure = Failure::new(exit, message);
    match (exit, problem.request_id.as_str()) {
        (Exit::Denied, _) => failure.hint(
            "the token is not valid for this server; on the server's machine the valid one stands\n\
             in client.json in its data directory (--data-dir DIR finds it)",
        ),
        (Exit::Bug, id) if !id.is_empty() => {
            failure.hint(format!("the server's log says more at request {id}"))
        }
        _ => failure,
    }
}

/// A path with a query string.
pub(crate) fn with_query(path: &str, query: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = query
        .iter()
        .map(|(name, value)| format!("{name}={}", escape(value)))
        .collect();
    format!("{path}?{}", pairs.join("&"))
}

/// A text as one segment of a path, or one value of a query.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_cannot_leave_their_place_in_the_path() {
        assert_eq!(escape("a/../b?x=ü#"), "a%2F..%2Fb%3Fx%3D%C3%BC%23");
        assert_eq!(
            with_query("/v1/runs", &[("job", "a&b")]),
            "/v1/runs?job=a%26b"
        );
    }

    #[test]
    fn every_refusal_has_its_exit_code() {
        for (status, exit) in [
            (400, Exit::Usage),
            (401, Exit::Denied),
            (404, Exit::NotFound),
            (409, Exit::Conflict),
            (412, Exit::Conflict),
            (422, Exit::Usage),
            (429, Exit::Unreachable),
            (500, Exit::Bug),
            (503, Exit::Unreachable),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(refused(status, b"<html>").exit, exit, "{status}");
        }
    }

    #[test]
    fn only_plain_addresses_are_servers() {
        let client = |url: &str| {
            Client::new(
                ClientFile {
                    url: url.into(),
                    token: "t".into(),
                },
                Duration::from_secs(1),
            )
        };
        for url in [
            "https://h:1",
            "http://",
            "http://h/x",
            "nonsense",
            "ftp://h",
        ] {
            assert!(client(url).is_err(), "{url}");
        }
        let client = client("http://[::1]:7717").unwrap();
        assert_eq!((client.host.as_str(), client.port), ("::1", 7717));
    }
}
