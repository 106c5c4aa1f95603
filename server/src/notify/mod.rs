//! Telling people by HTTP: one POST, to a receiver that somebody allowed, at an address that was
//! looked at before it is called.

mod allow;
mod sign;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use punctual::job::spec::{JobSpec, SpecError, WebhookUrl};
use punctual::leader::notes::SEND_TIMEOUT_MS;
use punctual::notify::{Delivery, Message, NotTaken, Notifier};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::cli::failure::{Failure, Outcome};
use crate::metrics::Metrics;
use crate::times::now_ms;
pub(crate) use allow::{Allowed, Pattern};

/// How a node calls receivers.
pub(crate) struct Webhooks {
    allowed: Allowed,
    secret: Option<Vec<u8>>,
    metrics: Arc<Metrics>,
    /// Whom to believe; read when it is first needed.
    roots: tokio::sync::OnceCell<Arc<ClientConfig>>,
}

impl Webhooks {
    pub(crate) fn new(allowed: Allowed, secret: Option<Vec<u8>>, metrics: Arc<Metrics>) -> Self {
        Self {
            allowed,
            secret,
            metrics,
            roots: tokio::sync::OnceCell::new(),
        }
    }

    /// What this node would not call for these jobs.
    pub(crate) fn refused(&self, specs: &[JobSpec]) -> Vec<(String, SpecError)> {
        let mut refused = Vec::new();
        for spec in specs {
            for (index, to) in spec.notify.iter().enumerate() {
                if let Err(why) = self.allowed.permits(&to.webhook) {
                    let path = format!("notify[{index}].webhook");
                    let finding = SpecError::new(path, why)
                        .hint("start every node with --notify-allow HOST for it, or leave it out");
                    refused.push((spec.id.clone(), finding));
                }
            }
        }
        refused
    }

    /// Calls the receiver; the status that it answers with.
    async fn call(&self, message: &Message) -> Result<StatusCode, String> {
        let url = self.allowed.permits(&message.webhook)?;
        let found = lookup_host((url.host.as_str(), url.port)).await;
        let found: Vec<SocketAddr> = found
            .map_err(|error| format!("{} cannot be looked up: {error}", url.host))?
            .collect();
        self.allowed.permits_all(&url, &found)?;
        let stream = connect(&found).await?;
        if !url.tls {
            return self.post(stream, &url, message).await;
        }
        let config = self.roots.get_or_try_init(believed).await?;
        let name = ServerName::try_from(url.host.clone())
            .map_err(|error| format!("no name for a certificate: {error}"))?;
        let stream = TlsConnector::from(Arc::clone(config))
            .connect(name, stream)
            .await
            .map_err(|error| format!("no encryption: {error}"))?;
        self.post(stream, &url, message).await
    }

    async fn post(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        url: &WebhookUrl,
        message: &Message,
    ) -> Result<StatusCode, String> {
        let timestamp = (now_ms() / 1_000).to_string();
        let default_port = if url.tls { 443 } else { 80 };
        let receiver = url.receiver();
        let host = match receiver.rsplit_once(':') {
            Some((host, _)) if url.port == default_port => host,
            _ => &receiver,
        };
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(&url.path)
            .header(HOST, host)
            .header(USER_AGENT, concat!("punctual/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/json")
            .header("punctual-event-id", &message.id)
            .header("punctual-timestamp", &timestamp);
        if let Some(secret) = &self.secret {
            let signature = sign::signature(secret, &timestamp, &message.body);
            request = request.header("punctual-signature", signature);
        }
        let request = request
            .body(Full::new(Bytes::from(message.body.clone())))
            .map_err(|error| error.to_string())?;
        let (mut sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        let mut connection = std::pin::pin!(connection);
        let mut answer = std::pin::pin!(sender.send_request(request));
        // What the receiver says beside the status is not read.
        let answer = tokio::select! {
            answer = &mut answer => answer,
            ended = &mut connection => match ended {
                Ok(()) => answer.await,
                Err(error) => Err(error),
            },
        };
        answer
            .map(|answer| answer.status())
            .map_err(|error| error.to_string())
    }
}

#[async_trait]
impl Notifier for Webhooks {
    async fn send(&self, message: &Message) -> Result<(), NotTaken> {
        let limit = Duration::from_millis(SEND_TIMEOUT_MS);
        let status = tokio::time::timeout(limit, self.call(message))
            .await
            .map_err(|_| "no answer in time".to_owned())??;
        if status.is_success() {
            return Ok(());
        }
        let why = format!("it answers {status}");
        let is_away = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        Err(if is_away {
            NotTaken::Away(why)
        } else {
            NotTaken::Refused(why)
        })
    }

    fn count(&self, delivery: Delivery) {
        self.metrics.notified(delivery);
    }
}

/// To the first address that answers.
async fn connect(found: &[SocketAddr]) -> Result<TcpStream, String> {
    let mut why = "its name stands for no address".to_owned();
    for at in found {
        match TcpStream::connect(at).await {
            Ok(stream) => return Ok(stream),
            Err(error) => why = format!("{at}: {error}"),
        }
    }
    Err(why)
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

/// Reads `--notify-secret-file`.
pub(crate) fn secret_of_file(path: &Path) -> Outcome<Vec<u8>> {
    let shown = path.display();
    let bytes = std::fs::read(path)
        .map_err(|e| Failure::usage(format!("--notify-secret-file {shown}: {e}")))?;
    // Editors and `echo` end a file with a newline.
    let end = bytes
        .iter()
        .rposition(|byte| !matches!(byte, b'\n' | b'\r'))
        .map_or(0, |last| last + 1);
    if end == 0 {
        return Err(Failure::usage(format!(
            "--notify-secret-file {shown}: the secret is empty"
        )));
    }
    Ok(bytes[..end].to_vec())
}
