//! Calling others over HTTP: only those that may be called, at an address that was looked at before it
//! is called, and never by way of anybody else (no redirects, no proxies).

mod allow;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::header::{HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use punctual::job::spec::HttpUrl;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

pub use allow::{Allowed, ControlPlane, Pattern};

/// How long a name, an address or an agreement on encryption is waited for. (How long an answer may take
/// is the caller's affair.)
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// It may not be made.
    Refused(String),
    /// It was not sent.
    Unsent(String),
    /// It was ready, and may not be sent any more.
    Withheld,
    /// It may have arrived, wholly or in part.
    Unanswered(String),
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Withheld => f.write_str("it may not be sent any more"),
            Self::Refused(why) | Self::Unsent(why) | Self::Unanswered(why) => f.write_str(why),
        }
    }
}

/// An answer. Dropped, its connection is closed.
pub struct Answer {
    /// Status and headers, and a body that is still to be read.
    pub response: Response<Incoming>,
    _connection: Connection,
}

/// Ends with whoever holds it.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Calls whom it may.
pub struct Client {
    allowed: Allowed,
    /// Whom to believe; read when it is first needed.
    roots: OnceCell<Arc<ClientConfig>>,
}

impl Client {
    /// Believes whom this machine believes.
    #[must_use]
    pub fn new(allowed: Allowed) -> Self {
        Self {
            allowed,
            roots: OnceCell::new(),
        }
    }

    /// Believes only these.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn believing(
        allowed: Allowed,
        certificates: Vec<CertificateDer<'static>>,
    ) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates);
        Ok(Self {
            allowed,
            roots: OnceCell::new_with(Some(config_of(roots)?)),
        })
    }

    /// Whom it may call.
    #[must_use]
    pub fn allowed(&self) -> &Allowed {
        &self.allowed
    }

    /// Calls the URL with this request, whose target and `Host` are set here. `may_send` is asked when
    /// all is ready, since it may take a while until then.
    ///
    /// # Errors
    /// There is no answer.
    pub async fn call(
        &self,
        url: &str,
        mut request: Request<Full<Bytes>>,
        may_send: &(dyn Fn() -> bool + Sync),
    ) -> Result<Answer, CallError> {
        let url = self.allowed.permits(url).map_err(CallError::Refused)?;
        address(&mut request, &url).map_err(CallError::Refused)?;
        let found = lookup(&url.host, url.port)
            .await
            .map_err(CallError::Unsent)?;
        self.allowed
            .permits_all(&url, &found)
            .map_err(CallError::Refused)?;
        self.is_not_ours(&found).await?;
        let stream = self.connect(&found).await?;
        if !url.tls {
            return send(stream, request, may_send).await;
        }
        let config = self.roots.get_or_try_init(believed).await;
        let config = config.map_err(CallError::Unsent)?;
        let name = ServerName::try_from(url.host.clone())
            .map_err(|error| CallError::Unsent(format!("no name for a certificate: {error}")))?;
        let agreed = TlsConnector::from(Arc::clone(config)).connect(name, stream);
        let stream = within(agreed)
            .await
            .map_err(|error| CallError::Unsent(format!("no encryption: {error}")))?;
        send(stream, request, may_send).await
    }

    /// The store may be known by a name, and called by an address.
    async fn is_not_ours(&self, found: &[SocketAddr]) -> Result<(), CallError> {
        for name in self.allowed.control_plane().names() {
            // What cannot be looked up now is not reached either.
            let ours = within(lookup_host(name)).await;
            let ours: Vec<SocketAddr> = ours.map(Iterator::collect).unwrap_or_default();
            let same = |at: &&SocketAddr| ours.iter().any(|our| allow::is_same(*our, **at));
            if let Some(at) = found.iter().find(same) {
                return Err(CallError::Refused(allow::belongs_to_us(&at.to_string())));
            }
        }
        Ok(())
    }

    /// To the first address that answers.
    async fn connect(&self, found: &[SocketAddr]) -> Result<TcpStream, CallError> {
        let mut why = "its name stands for no address".to_owned();
        for at in found {
            match within(TcpStream::connect(at)).await {
                Ok(stream) => {
                    let ours = self.allowed.control_plane();
                    if ours.is_own(*at, stream.local_addr().ok()) {
                        return Err(CallError::Refused(allow::belongs_to_us(&at.to_string())));
                    }
                    return Ok(stream);
                }
                Err(error) => why = format!("{at}: {error}"),
            }
        }
        Err(CallError::Unsent(why))
    }
}

/// The same future, which fails when it takes too long.
async fn within<T>(future: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    match timeout(PATIENCE, future).await {
        Ok(result) => result,
        Err(_) => Err(std::io::ErrorKind::TimedOut.into()),
    }
}

async fn lookup(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found = within(lookup_host((host, port))).await;
    let found = found.map_err(|error| format!("{host} cannot be looked up: {error}"))?;
    Ok(found.collect())
}

/// Says in the request where it goes.
fn address(request: &mut Request<Full<Bytes>>, url: &HttpUrl) -> Result<(), String> {
    let unfit = |error: &dyn fmt::Display| format!("no request can be made of it: {error}");
    *request.uri_mut() = url.path.parse().map_err(|error| unfit(&error))?;
    let default_port = if url.tls { 443 } else { 80 };
    let receiver = url.receiver();
    let host = match receiver.rsplit_once(':') {
        Some((host, _)) if url.port == default_port => host,
        _ => &receiver,
    };
    let host = HeaderValue::from_str(host).map_err(|error| unfit(&error))?;
    request.headers_mut().insert(HOST, host);
    let ours = HeaderValue::from_static(concat!("punctual/", env!("CARGO_PKG_VERSION")));
    request.headers_mut().entry(USER_AGENT).or_insert(ours);
    Ok(())
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
    may_send: &(dyn Fn() -> bool + Sync),
) -> Result<Answer, CallError> {
    let lost = |error: hyper::Error| CallError::Unanswered(said(&error));
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(lost)?;
    let connection = Connection(tokio::spawn(async move {
        // What goes wrong there is told to whoever waits for the answer.
        let _ = connection.await;
    }));
    if !may_send() {
        return Err(CallError::Withheld);
    }
    let response = sender.send_request(request).await.map_err(lost)?;
    Ok(Answer {
        response,
        _connection: connection,
    })
}

/// An error with what it comes from.
pub(crate) fn said(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

/// Whom this machine believes.
async fn believed() -> Result<Arc<ClientConfig>, String> {
    let loaded = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs)
        .await
        .map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(loaded.certs);
    if roots.is_empty() {
        return Err("this machine has no certificates of those whom it believes".into());
    }
    config_of(roots)
}

fn config_of(roots: RootCertStore) -> Result<Arc<ClientConfig>, String> {
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
