//! Telling people by HTTP: one POST, to a receiver that somebody allowed, at an address that was
//! looked at before it is called.

mod sign;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, StatusCode};
use punctual::job::spec::{JobSpec, SpecError};
use punctual::leader::notes::SEND_TIMEOUT_MS;
use punctual::notify::{Delivery, Message, NotTaken, Notifier};
use punctual_server::outbound::Client;

use crate::cli::failure::{Failure, Outcome};
use crate::metrics::Metrics;
use crate::times::now_ms;

/// How a node calls receivers.
pub(crate) struct Webhooks {
    client: Client,
    secret: Option<Vec<u8>>,
    metrics: Arc<Metrics>,
}

impl Webhooks {
    pub(crate) fn new(client: Client, secret: Option<Vec<u8>>, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            secret,
            metrics,
        }
    }

    /// What this node would not call for these jobs.
    pub(crate) fn refused(&self, specs: &[JobSpec]) -> Vec<(String, SpecError)> {
        let mut refused = Vec::new();
        for spec in specs {
            for (index, to) in spec.notify.iter().enumerate() {
                if let Err(why) = self.client.allowed().permits(&to.webhook) {
                    let path = format!("notify[{index}].webhook");
                    let finding = SpecError::new(path, why)
                        .hint("start every node with --notify-allow HOST for it, or leave it out");
                    refused.push((spec.id.clone(), finding));
                }
            }
        }
        refused
    }

    /// Calls the receiver; the status that it answers with. What it says beside that is not read.
    async fn call(&self, message: &Message) -> Result<StatusCode, String> {
        let timestamp = (now_ms() / 1_000).to_string();
        let mut request = Request::builder()
            .method(Method::POST)
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
        let answer = self.client.call(&message.webhook, request, &|| true).await;
        answer
            .map(|answer| answer.response.status())
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
