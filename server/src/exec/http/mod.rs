//! Calling URLs: `run.http`.
//!
//! What is promised: an attempt makes the call at most once, to an address that was checked, and says in
//! it which run it is. It is told to stop and is gone at once, but what was sent cannot be called back:
//! a receiver that must not do the work twice looks at `Idempotency-Key` and `Punctual-Fencing-Token`.
//! A secret is in the request, and nowhere else.

#[cfg(test)]
mod fixture;
mod later;
mod request;
mod secrets;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use async_trait::async_trait;
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::header::HeaderMap;
use punctual::cancel::StopCause;
use punctual::handler::{Execution, HttpExecutor, RunContext};
use punctual::job::run::FailReason;
use punctual::job::spec::{HttpSpec, HttpUrl, Piece, pieces};

use self::request::{Prepared, prepare};
use self::secrets::{Environment, hide, missing};
use super::output::{Output, log_path};
use crate::outbound::{Answer, CallError, Client, said};

/// How much of an answer is read.
const MAX_ANSWER_BYTES: usize = 256 << 10;
/// How much of its end is kept with the run; the same as of a command's output.
const TAIL_BYTES: usize = 2 << 10;
/// So often in a row a receiver that has taken the work may not answer when it is asked.
const MAX_SILENCES: u32 = 5;

/// Calls URLs.
pub struct HttpCalls {
    client: Client,
    data_dir: PathBuf,
    environment: Box<Environment>,
}

/// What has been read of an answer.
#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    /// Whether that is all of it.
    whole: bool,
}

/// An answer of which all has been read that will be.
struct Heard {
    status: StatusCode,
    headers: HeaderMap,
}

impl HttpCalls {
    /// Calls whom the client may; answers are kept in `logs/` below `data_dir` as the output of commands
    /// is.
    #[must_use]
    pub fn new(client: Client, data_dir: impl Into<PathBuf>) -> Self {
        Self {
            client,
            data_dir: data_dir.into(),
            environment: Box::new(|name| std::env::var_os(name)),
        }
    }

    /// Why this node would not make the call, as far as can be told without making it.
    #[must_use]
    pub fn refusal(&self, call: &HttpSpec) -> Option<String> {
        if let Err(why) = self.permits(call) {
            return Some(why);
        }
        let values = call.headers.values().filter_map(|value| pieces(value).ok());
        values.flatten().find_map(|piece| match piece {
            Piece::Secret(name) => missing(name, &*self.environment),
            Piece::Text(_) => None,
        })
    }

    /// Whoever may change a job must not be able to have a secret sent to a place of their own.
    fn permits(&self, call: &HttpSpec) -> Result<HttpUrl, String> {
        let allowed = self.client.allowed();
        let url = allowed.permits(&call.url)?;
        if call.has_secrets() && !allowed.names(&url) {
            return Err(format!(
                "a secret is sent only to whom the node names, and it has no {}",
                allowed.advice(&url)
            ));
        }
        Ok(url)
    }

    /// Makes the call and waits for what comes of it.
    async fn converse(
        &self,
        ctx: &RunContext,
        call: &HttpSpec,
        prepared: &Prepared,
        received: &mut Received,
    ) -> Execution {
        let may_send = || ctx.fence.as_ref().is_none_or(|fence| fence.holds());
        let answer = self.client.call(&call.url, prepared.request(), &may_send);
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(CallError::Withheld) => {
                return Execution::failed(
                    FailReason::NotStarted,
                    "the node's session ran out before the call was made",
                );
            }
            Err(error) => return Execution::failed(FailReason::Error, explain(&error)),
        };
        let heard = match hear(answer, received).await {
            Ok(heard) => heard,
            Err(broken) => return Execution::failed(FailReason::Error, broken),
        };
        if heard.status != StatusCode::ACCEPTED {
            return judge(heard.status);
        }
        match later::place(&call.url, &heard.headers) {
            Ok(None) => Execution::success(),
            Ok(Some(place)) => {
                self.ask_until_done(place, &heard.headers, prepared, &may_send, received)
                    .await
            }
            Err(why) => Execution::failed(
                FailReason::Error,
                format!(
                    "HTTP 202, and where to ask (`Location`) {why}; what became of it is not known"
                ),
            ),
        }
    }

    /// The receiver has taken the work: asks until it says how that ended.
    async fn ask_until_done(
        &self,
        mut place: String,
        headers: &HeaderMap,
        prepared: &Prepared,
        may_send: &(dyn Fn() -> bool + Sync),
        received: &mut Received,
    ) -> Execution {
        let mut wait = later::wait(headers);
        let mut silences = 0;
        loop {
            tokio::time::sleep(wait).await;
            let answer = match self
                .client
                .call(&place, prepared.question(), may_send)
                .await
            {
                Err(CallError::Withheld) => {
                    let message = "the node's session ran out while it asked for the end; the receiver may go on";
                    return Execution::stopped(StopCause::Fenced, message);
                }
                Err(error @ CallError::Refused(_)) => {
                    return Execution::failed(FailReason::Error, explain(&error));
                }
                Err(error) => Err(explain(&error)),
                Ok(answer) => hear(answer, received).await,
            };
            // To ask does no harm: what is lost on the way is asked again.
            let silence = match answer {
                Ok(heard) if later::is_passing(heard.status) => {
                    wait = later::wait(&heard.headers);
                    format!("HTTP {}", heard.status)
                }
                Ok(heard) if heard.status == StatusCode::ACCEPTED => {
                    silences = 0;
                    wait = later::wait(&heard.headers);
                    match later::place(&place, &heard.headers) {
                        Ok(None) => continue,
                        Ok(Some(next)) => {
                            place = next;
                            continue;
                        }
                        Err(why) => format!("HTTP 202, and where to ask (`Location`) {why}"),
                    }
                }
                Ok(heard) => return judge(heard.status),
                Err(why) => why,
            };
            silences += 1;
            if silences == MAX_SILENCES {
                return Execution::failed(
                    FailReason::Error,
                    format!(
                        "the receiver took it (HTTP 202) and was then asked {silences} times in vain for \
                         the end, the last time: {silence}"
                    ),
                );
            }
        }
    }

    /// Keeps what was answered, without secrets.
    async fn keep(
        &self,
        ctx: &RunContext,
        received: Received,
        prepared: &Prepared,
        mut execution: Execution,
    ) -> Execution {
        let Some(log) = log_path(&self.data_dir, &ctx.job_id, &ctx.run_id, ctx.attempt) else {
            return execution;
        };
        let shown = hide(received.bytes, &prepared.secrets, received.whole);
        let mut output = Output::new(log, MAX_ANSWER_BYTES as u64, TAIL_BYTES);
        output.drain(shown.as_slice()).await;
        let (tail, truncated) = output.finish().await;
        execution.output_truncated = tail.is_some() && (truncated || !received.whole);
        execution.output_tail = tail;
        if let Some(failure) = &mut execution.failure {
            let hidden = hide(
                failure.message.clone().into_bytes(),
                &prepared.secrets,
                true,
            );
            failure.message = String::from_utf8_lossy(&hidden).into_owned();
        }
        execution
    }
}

#[async_trait]
impl HttpExecutor for HttpCalls {
    async fn execute(&self, ctx: RunContext, call: HttpSpec) -> Execution {
        if let Some(cause) = ctx.cancel.cause() {
            return Execution::stopped(cause, "told to stop before the call was made");
        }
        let refused =
            |why: String| Execution::failed(FailReason::Error, format!("not called: {why}"));
        if let Err(why) = self.permits(&call) {
            return refused(why);
        }
        let prepared = match prepare(&ctx, &call, &*self.environment).await {
            Ok(prepared) => prepared,
            Err(why) => return refused(why),
        };
        let mut received = Received::default();
        let execution = tokio::select! {
            biased;
            cause = ctx.cancel.cancelled() => given_up(cause),
            ended = self.converse(&ctx, &call, &prepared, &mut received) => ended,
        };
        self.keep(&ctx, received, &prepared, execution).await
    }
}

/// Reads what there is to read of an answer.
async fn hear(mut answer: Answer, received: &mut Received) -> Result<Heard, String> {
    *received = Received::default();
    let status = answer.response.status();
    let headers = answer.response.headers().clone();
    loop {
        match answer.response.body_mut().frame().await {
            None => {
                received.whole = true;
                break;
            }
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    received.bytes.extend_from_slice(&bytes);
                }
                if received.bytes.len() > MAX_ANSWER_BYTES {
                    break;
                }
            }
            Some(Err(error)) => {
                return Err(format!(
                    "HTTP {status}, and the answer broke off: {}; how it ended is not known",
                    said(&error)
                ));
            }
        }
    }
    Ok(Heard { status, headers })
}

/// What a status says of the work.
fn judge(status: StatusCode) -> Execution {
    if status.is_success() {
        return Execution::success();
    }
    let mut message = format!("HTTP {status}");
    if matches!(status.as_u16(), 301..=303 | 307 | 308) {
        message.push_str(": redirects are not followed");
    }
    Execution::failed(FailReason::Error, message)
}

fn given_up(cause: StopCause) -> Execution {
    let why = match cause {
        StopCause::Cancelled => "cancelled",
        StopCause::Timeout => "longer than its timeout",
        StopCause::Fenced => "the node's session ran out, or the time that a stopping node waits",
    };
    let message =
        format!("{why}: no answer is waited for; what was sent, the receiver may go on with");
    Execution::stopped(cause, message)
}

fn explain(error: &CallError) -> String {
    match error {
        CallError::Refused(why) => format!("not called: {why}"),
        CallError::Unsent(why) => format!("not called, nothing was sent: {why}"),
        CallError::Withheld => format!("not called: {error}"),
        CallError::Unanswered(why) => {
            format!("no answer: {why}; whether the receiver did it is not known")
        }
    }
}
