//! The API over a real socket, with a real node on the store in memory.

mod again;
mod crowd;
mod door;
mod work;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use hyper::{Method, Response};
use punctual::cancel::Canceller;
use punctual::control::{AllReport, Control, JobObject, JobState, PageOf, RunObject};
use punctual::env::TokioEnv;
use punctual::handler::{Executors, HandlerError, RunContext};
use punctual::job::run::RunState;
use punctual::node::{Node, NodeConfig};
use punctual_memory::MemoryBackend;

use crate::store::Opened;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::problem::Problem;
use super::{Api, ApplyAnswer, ApplyLine, NDJSON, RunWithAttempts};
use crate::cli::failure::{Exit, Failure};
use crate::client::{Call, Client};
use crate::commands::NodeCommands;
use crate::config::Commands;
use crate::files::{ClientFile, hash};
use punctual_server::exec::http::HttpCalls;
use punctual_server::jobfile::JobFile;
use punctual_server::outbound::{self, Allowed, ControlPlane};

/// So long may a body take here.
const BODY_TIME: Duration = Duration::from_secs(2);

const TOKEN: &str = "pt_of_the_tests";

struct Fixture {
    url: String,
    control: Control,
    _stop: Canceller,
}

async fn start() -> Fixture {
    let env = TokioEnv::shared();
    let opened = Opened::new(MemoryBackend::new(Arc::clone(&env)));
    let backend = Arc::clone(&opened.backend);
    let config = NodeConfig::default();
    let control = Control::new(Arc::clone(&backend), Arc::clone(&env), &config.namespace);
    let mut executors = Executors::default();
    executors.handlers.insert(
        "ok".into(),
        Arc::new(|_: RunContext| async { Ok::<(), HandlerError>(()) }),
    );
    let attempts = AtomicU32::new(0);
    executors.handlers.insert(
        "second".into(),
        Arc::new(move |_: RunContext| {
            let first = attempts.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                match first {
                    true => Err(HandlerError("the first time".into())),
                    false => Ok(()),
                }
            }
        }),
    );
    executors.handlers.insert(
        "wait".into(),
        Arc::new(|ctx: RunContext| async move {
            let cause = ctx.cancel.cancelled().await;
            Err::<(), _>(HandlerError(format!("{cause:?}")))
        }),
    );
    let node = Node::new(backend, env, executors, config).unwrap();
    let (stop, shutdown) = Canceller::new();
    tokio::spawn(node.run(shutdown));
    let none = NodeCommands::new(Commands::Off, ".".into(), &JobFile::default());
    let metrics = Arc::new(crate::metrics::Metrics::new());
    let nobody = |option| Allowed::named(option, Vec::new(), ControlPlane::default());
    let api = Api {
        control: control.clone(),
        tokens: [hash("pt_another"), hash(TOKEN)].into(),
        store: opened,
        data_dir: ".".into(),
        metrics: Arc::clone(&metrics),
        webhooks: Arc::new(crate::notify::Webhooks::new(
            outbound::Client::new(nobody("--notify-allow")),
            None,
            Arc::clone(&metrics),
        )),
        calls: Arc::new(crate::calls::NodeCalls::new(
            HttpCalls::new(outbound::Client::new(nobody("--http-allow")), "."),
            metrics,
        )),
        node: "node".into(),
        commands: Arc::new(none),
        job_files: crate::job_files::JobFiles::default(),
        body_time: BODY_TIME,
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(api.serve(listener, std::future::pending()));
    let fixture = Fixture {
        url,
        control,
        _stop: stop,
    };
    for _ in 0..200 {
        if fixture.control.jobs(None, 1).await.is_ok() {
            return fixture;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the node did not start");
}

impl Fixture {
    fn client_with(&self, token: &str) -> Client {
        let server = ClientFile {
            url: self.url.clone(),
            token: token.into(),
        };
        Client::new(server, Duration::from_secs(10)).unwrap()
    }

    fn client(&self) -> Client {
        self.client_with(TOKEN)
    }

    /// A request in exactly these bytes.
    async fn raw(&self, request: &str) -> String {
        let address = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    async fn put(&self, id: &str, spec: &str) -> JobObject {
        let call = Call {
            body: spec.as_bytes().to_vec(),
            headers: vec![],
        };
        let path = format!("/v1/jobs/{id}");
        self.client().json(Method::PUT, &path, call).await.unwrap()
    }
}

/// Sends a request without looking at the status.
async fn send(
    fixture: &Fixture,
    method: Method,
    path: &str,
    headers: &[(HeaderName, &str)],
    body: &str,
) -> (Response<()>, Problem) {
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    let answer = fixture.raw(&head).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap();
    let mut response = Response::builder().status(status);
    for line in lines {
        let (name, value) = line.split_once(": ").unwrap();
        response = response.header(name, value);
    }
    let problem = serde_json::from_str(body).unwrap_or_default();
    (response.body(()).unwrap(), problem)
}

fn bearer() -> (HeaderName, &'static str) {
    (AUTHORIZATION, "Bearer pt_of_the_tests")
}

#[track_caller]
fn failed<T: std::fmt::Debug>(result: Result<T, Failure>) -> Failure {
    result.unwrap_err()
}

/// The run, once it has ended.
async fn ended(client: &mut Client, run_id: &str) -> RunWithAttempts {
    let path = format!("/v1/runs/{run_id}");
    for _ in 0..250 {
        let run: RunWithAttempts = client.get(&path).await.unwrap();
        if run.run.state.is_terminal() {
            return run;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{run_id} has not ended");
}

fn keyed(key: &str) -> Vec<(HeaderName, &str)> {
    vec![(HeaderName::from_static("idempotency-key"), key)]
}
