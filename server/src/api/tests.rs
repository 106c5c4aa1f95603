//! The API over a real socket, with a real node on the store in memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use hyper::{Method, Response};
use punctual::backend::CoordinationBackend;
use punctual::cancel::Canceller;
use punctual::control::{Control, JobObject, JobState, PageOf, RunObject};
use punctual::env::TokioEnv;
use punctual::handler::{CommandExecutor, Executors, HandlerError, RunContext};
use punctual::job::run::RunState;
use punctual::node::{Node, NodeConfig};
use punctual_memory::MemoryBackend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::problem::Problem;
use super::{Api, ApplyAnswer, ApplyLine, NDJSON, RunWithAttempts};
use crate::cli::failure::{Exit, Failure};
use crate::client::{Call, Client};
use crate::commands::NodeCommands;
use crate::config::Commands;
use crate::files::{ClientFile, hash};
use crate::jobfile::JobFile;

const TOKEN: &str = "pt_of_the_tests";

struct Fixture {
    url: String,
    control: Control,
    _stop: Canceller,
}

async fn start() -> Fixture {
    let env = TokioEnv::shared();
    let backend: Arc<dyn CoordinationBackend> = Arc::new(MemoryBackend::new(Arc::clone(&env)));
    let config = NodeConfig::default();
    let control = Control::new(Arc::clone(&backend), Arc::clone(&env), &config.namespace);
    let mut executors = Executors::default();
    executors.handlers.insert(
        "ok".into(),
        Arc::new(|_: RunContext| async { Ok::<(), HandlerError>(()) }),
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
    let api = Api {
        control: control.clone(),
        tokens: [hash("pt_another"), hash(TOKEN)].into(),
        store: "memory".into(),
        commands: Arc::new(none) as Arc<dyn CommandExecutor>,
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

const ROUTES: [(&str, &str); 15] = [
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/a"),
    ("PUT", "/v1/jobs/a"),
    ("DELETE", "/v1/jobs/a"),
    ("POST", "/v1/jobs/a/pause"),
    ("POST", "/v1/jobs/a/resume"),
    ("POST", "/v1/jobs/a/trigger"),
    ("GET", "/v1/jobs/a/runs"),
    ("GET", "/v1/runs"),
    ("GET", "/v1/runs/a"),
    ("POST", "/v1/runs/a/cancel"),
    ("GET", "/v1/status"),
    ("GET", "/v1/next?expr=x"),
    ("POST", "/v1/apply"),
    ("GET", "/no/such/page"),
];

/// Q01, Q04: without a valid token nothing answers, not even that it does not exist.
#[tokio::test]
async fn nobody_comes_in_without_a_token() {
    let fixture = start().await;
    let wrong = [
        None,
        Some(""),
        Some("Bearer"),
        Some("Bearer "),
        Some("Bearer null"),
        Some("Bearer undefined"),
        Some("Bearer pt_of_the_test"),
        Some("Bearer pt_of_the_tests2"),
        Some("Basic pt_of_the_tests"),
        Some("pt_of_the_tests"),
    ];
    for (method, path) in ROUTES {
        for value in wrong {
            let headers: Vec<_> = value.map(|v| (AUTHORIZATION, v)).into_iter().collect();
            let method: Method = method.parse().unwrap();
            let (answer, problem) = send(&fixture, method, path, &headers, "").await;
            assert_eq!(answer.status(), 401, "{path} {value:?}");
            assert_eq!(answer.headers()[WWW_AUTHENTICATE], "Bearer");
            assert_eq!(problem.status, 401);
        }
    }
    let twice = [bearer(), (AUTHORIZATION, "Bearer other")];
    let (answer, _) = send(&fixture, Method::GET, "/v1/jobs", &twice, "").await;
    assert_eq!(answer.status(), 401);
    for path in ["/livez", "/readyz"] {
        let (answer, _) = send(&fixture, Method::GET, path, &[], "").await;
        assert_eq!(answer.status(), 200, "{path}");
    }
    let failure = failed(
        fixture
            .client_with("x")
            .get::<JobObject>("/v1/jobs/a")
            .await,
    );
    assert_eq!(failure.exit, Exit::Denied);
    fixture
        .client_with("pt_another")
        .get::<PageOf<JobObject>>("/v1/jobs")
        .await
        .unwrap();
}

#[tokio::test]
async fn errors_are_problem_details_with_an_id_of_their_own() {
    let fixture = start().await;
    let mut ids = BTreeSet::new();
    for (method, path, body, status) in [
        (Method::GET, "/no/such/page", "", 404),
        (Method::PATCH, "/v1/jobs/a", "", 405),
        (Method::GET, "/v1/jobs/nope", "", 404),
        (Method::GET, "/v1/jobs/%ff", "", 400),
        (Method::GET, "/v1/jobs/nope/runs", "", 404),
        (Method::GET, "/v1/runs/nope", "", 404),
        (Method::POST, "/v1/runs/nope/cancel", "", 404),
        (Method::GET, "/v1/jobs?limit=0", "", 400),
        (Method::GET, "/v1/jobs?limit=501", "", 400),
        (Method::GET, "/v1/jobs?limit=x", "", 400),
        (Method::GET, "/v1/jobs?bogus=1", "", 400),
        (Method::GET, "/v1/runs?state=LOST", "", 400),
        (Method::PUT, "/v1/jobs/a", "{", 422),
        (Method::PUT, "/v1/jobs/a", "", 422),
        (
            Method::PUT,
            "/v1/jobs/A",
            "{\"run\":{\"handler\":\"ok\"}}",
            422,
        ),
        (
            Method::PUT,
            "/v1/jobs/a",
            "{\"id\":\"b\",\"run\":{\"handler\":\"ok\"}}",
            400,
        ),
        (Method::POST, "/v1/jobs/nope/trigger", "", 404),
        (Method::POST, "/v1/jobs/nope/trigger", "[", 400),
        (
            Method::POST,
            "/v1/jobs/nope/trigger",
            "{\"payloat\":1}",
            400,
        ),
        (Method::POST, "/v1/jobs/nope/pause", "", 404),
        (Method::GET, "/v1/next?expr=0+0+32+*+*", "", 422),
        (Method::POST, "/v1/apply?prune", "jobs: []", 400),
        (Method::POST, "/v1/apply?purge", "jobs: []", 400),
    ] {
        let (answer, problem) = send(&fixture, method.clone(), path, &[bearer()], body).await;
        assert_eq!(
            answer.status(),
            status,
            "{method} {path} {body}: {problem:?}"
        );
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/problem+json");
        assert_eq!(problem.status, status);
        assert!(problem.kind.starts_with("urn:punctual:problem:"));
        assert_eq!(
            answer.headers()["x-request-id"],
            problem.request_id.as_str()
        );
        assert!(ids.insert(problem.request_id));
        let text = format!("{}{:?}", problem.detail, problem.findings);
        assert!(
            !text.contains("/jobs/") && !text.contains("panicked"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn bodies_and_payloads_have_limits() {
    let fixture = start().await;
    fixture.put("a", r#"{"run":{"handler":"ok"}}"#).await;
    let large = format!(
        "{{\"run\":{{\"handler\":\"ok\"}},\"name\":\"{}\"}}",
        "x".repeat(257 << 10)
    );
    let (answer, problem) = send(&fixture, Method::PUT, "/v1/jobs/a", &[bearer()], &large).await;
    assert_eq!(answer.status(), 413);
    assert_eq!(problem.detail, "a body here has at most 256 KiB");
    let payload = format!("{{\"payload\":\"{}\"}}", "x".repeat(65 << 10));
    let path = "/v1/jobs/a/trigger";
    let (answer, _) = send(&fixture, Method::POST, path, &[bearer()], &payload).await;
    assert_eq!(answer.status(), 422);
    // The same size is welcome where whole files go.
    let file = format!("# {}\njobs: []\n", "x".repeat(1 << 20));
    let (answer, _) = send(&fixture, Method::POST, "/v1/apply", &[bearer()], &file).await;
    assert_eq!(answer.status(), 200);
}

/// C19, A09: what cannot work is refused where it is defined, with its place.
#[tokio::test]
async fn findings_say_where_and_what() {
    let fixture = start().await;
    let body = "{\n  \"run\": {\"handler\": \"ok\"},\n  \"schedule\": {\"cron\": \"0 0 31 2 *\"},\n  \"history\": {\"keep_success\": \"2\"},\n  \"retry\": {\"attempts\": 2147483648}\n}";
    let (answer, problem) = send(&fixture, Method::PUT, "/v1/jobs/a", &[bearer()], body).await;
    assert_eq!(answer.status(), 422);
    let found: Vec<_> = problem
        .findings
        .iter()
        .map(|f| (f.line, f.column, f.path.as_deref().unwrap()))
        .collect();
    assert_eq!(
        found,
        [
            (3, 24, "schedule.cron"),
            (4, 31, "history.keep_success"),
            (5, 25, "retry.attempts"),
        ],
        "{:?}",
        problem.findings
    );
    assert!(problem.findings[0].message.contains("never fires"));
    let (answer, _) = send(&fixture, Method::GET, "/v1/jobs/a", &[bearer()], "").await;
    assert_eq!(answer.status(), 404);
}

/// A01: a PUT replaces the whole definition, and only the one that its author has seen.
#[tokio::test]
async fn definitions_change_only_as_their_author_saw_them() {
    let fixture = start().await;
    let path = "/v1/jobs/a";
    let spec = |text: &str| format!("{{\"run\":{{\"handler\":\"ok\"}},\"name\":\"{text}\"}}");
    let put = async |headers: &[(HeaderName, &str)], text: &str| {
        let mut all = vec![bearer()];
        all.extend(headers.iter().cloned());
        let (answer, _) = send(&fixture, Method::PUT, path, &all, &spec(text)).await;
        let tag = answer
            .headers()
            .get(ETAG)
            .map(|tag| tag.to_str().unwrap().to_owned());
        (answer.status().as_u16(), tag)
    };
    let (status, first) = put(&[(IF_NONE_MATCH, "*")], "one").await;
    assert_eq!(status, 201);
    let first = first.unwrap();
    assert_eq!(put(&[(IF_NONE_MATCH, "*")], "two").await.0, 412);
    assert_eq!(put(&[(IF_MATCH, "\"1\"")], "two").await.0, 412);
    let (status, second) = put(&[(IF_MATCH, &first)], "two").await;
    assert_eq!(status, 200);
    assert_ne!(second.as_ref(), Some(&first));
    assert_eq!(put(&[(IF_MATCH, &first)], "three").await.0, 412);
    let job: JobObject = fixture.client().get(path).await.unwrap();
    assert_eq!(
        (job.spec.name.as_deref(), job.state),
        (Some("two"), JobState::OnDemand)
    );
    // The same again changes nothing.
    let (status, again) = put(&[], "two").await;
    assert_eq!((status, again), (200, second.clone()));
    let delete = async |tag: &str| {
        let headers = [bearer(), (IF_MATCH, tag)];
        send(&fixture, Method::DELETE, path, &headers, "")
            .await
            .0
            .status()
    };
    assert_eq!(delete(&first).await, 412);
    assert_eq!(delete(&second.unwrap()).await, 204);
    assert_eq!(delete("*").await, 404);
}

#[tokio::test]
async fn a_trigger_with_the_same_key_is_one_run() {
    let fixture = start().await;
    fixture.put("a", r#"{"run":{"handler":"ok"}}"#).await;
    let mut client = fixture.client();
    let key = HeaderName::from_static("idempotency-key");
    let mut runs = BTreeSet::new();
    for given in ["one", "one", "two"] {
        let headers = vec![(key.clone(), given)];
        let run: RunObject = client
            .post("/v1/jobs/a/trigger", &serde_json::json!({}), headers)
            .await
            .unwrap();
        runs.insert(run.run_id);
    }
    assert_eq!(runs.len(), 2);
    let path = format!("/v1/runs/{}", runs.first().unwrap());
    for _ in 0..200 {
        let run: RunWithAttempts = client.get(&path).await.unwrap();
        if run.run.state == RunState::Success {
            assert_eq!(run.attempts.len(), 1);
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the run did not succeed");
}

/// A14: cancelling one run ends that one, and no other.
#[tokio::test]
async fn one_of_several_runs_is_cancelled() {
    let fixture = start().await;
    fixture.put("a", r#"{"run":{"handler":"wait"}}"#).await;
    let mut client = fixture.client();
    let mut ids = Vec::new();
    for _ in 0..5 {
        let body = serde_json::json!({});
        let run: RunObject = client
            .post("/v1/jobs/a/trigger", &body, vec![])
            .await
            .unwrap();
        ids.push(run.run_id);
    }
    let in_state = async |client: &mut Client, state: &str| {
        let query = [("state", state)];
        let runs: Vec<RunObject> = client.pages("/v1/jobs/a/runs", &query, None).await.unwrap();
        runs.into_iter().map(|run| run.run_id).collect::<Vec<_>>()
    };
    for _ in 0..200 {
        if in_state(&mut client, "RUNNING").await.len() == 5 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let path = format!("/v1/runs/{}/cancel", ids[2]);
    client.post::<RunObject>(&path, &(), vec![]).await.unwrap();
    for _ in 0..250 {
        if in_state(&mut client, "FAILED").await == [ids[2].clone()] {
            assert_eq!(in_state(&mut client, "RUNNING").await.len(), 4);
            let failure = failed(client.post::<RunObject>(&path, &(), vec![]).await);
            assert_eq!(failure.exit, Exit::Conflict);
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the run was not cancelled");
}

#[tokio::test]
async fn listings_come_in_pages_without_gaps() {
    let fixture = start().await;
    let jobs = (0..25).map(|n| format!("{{\"id\":\"j{n:02}\",\"run\":{{\"handler\":\"ok\"}}}}"));
    let file = format!("{{\"jobs\":[{}]}}", jobs.collect::<Vec<_>>().join(","));
    let (answer, _) = send(&fixture, Method::POST, "/v1/apply", &[bearer()], &file).await;
    assert_eq!(answer.status(), 200);
    let mut client = fixture.client();
    let mut seen = Vec::new();
    let mut path = "/v1/jobs?limit=10".to_owned();
    loop {
        let page: PageOf<JobObject> = client.get(&path).await.unwrap();
        assert!(page.items.len() <= 10);
        seen.extend(page.items.into_iter().map(|job| job.spec.id));
        match page.next_cursor {
            Some(cursor) => {
                path =
                    crate::client::with_query("/v1/jobs", &[("limit", "10"), ("cursor", &cursor)]);
            }
            None => break,
        }
    }
    let expected: Vec<String> = (0..25).map(|n| format!("j{n:02}")).collect();
    assert_eq!(seen, expected);
    let three: Vec<JobObject> = client.pages("/v1/jobs", &[], Some(3)).await.unwrap();
    assert_eq!(three.len(), 3);
}

#[tokio::test]
async fn an_apply_is_all_or_nothing_and_tells_what_it_did() {
    let fixture = start().await;
    let apply = async |query: &str, body: &str| {
        let call = Call {
            body: body.as_bytes().to_vec(),
            headers: vec![],
        };
        let path = format!("/v1/apply{query}");
        fixture
            .client()
            .json::<ApplyAnswer>(Method::POST, &path, call)
            .await
    };
    let two =
        r#"{"jobs":[{"id":"a","run":{"handler":"ok"}},{"id":"b","run":{"command":["true"]}}]}"#;
    let plan = apply("?dry_run", two).await.unwrap();
    assert_eq!(plan.report.created, ["a", "b"]);
    assert!(
        fixture
            .control
            .jobs(None, 1)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    let done = apply("", two).await.unwrap();
    assert_eq!(done.report.created, ["a", "b"]);
    assert_eq!(done.warnings.len(), 1);
    assert!(done.warnings[0].starts_with("b: this node would not run it: "));
    let done = apply("", two).await.unwrap();
    assert_eq!((done.report.unchanged, done.report.created.len()), (2, 0));
    // One bad job, and the good ones stay as they are.
    let bad = r#"{"jobs":[{"id":"a","name":"x","run":{"handler":"ok"}},{"id":"B","run":{}}]}"#;
    let failure = failed(apply("", bad).await);
    assert_eq!(failure.exit, Exit::Usage);
    assert!(failure.message.contains("body:1:"), "{failure}");
    assert_eq!(fixture.control.job("a").await.unwrap().spec.name, None);
    let pruned = apply(
        "?prune=true",
        r#"{"jobs":[{"id":"a","run":{"handler":"ok"}}]}"#,
    )
    .await;
    assert_eq!(pruned.unwrap().report.deleted, ["b"]);
    assert_eq!(fixture.control.jobs(None, 9).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn an_apply_can_be_followed_line_by_line() {
    let fixture = start().await;
    let call = Call {
        body: br#"{"jobs":[{"id":"a","run":{"handler":"ok"}}]}"#.to_vec(),
        headers: vec![(ACCEPT, NDJSON)],
    };
    let mut client = fixture.client();
    let body = client.bytes(Method::POST, "/v1/apply", call).await.unwrap();
    let lines: Vec<ApplyLine> = std::str::from_utf8(&body)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let Some(ApplyLine::Done(answer)) = lines.last() else {
        panic!("{lines:?}");
    };
    assert_eq!(answer.report.created, ["a"]);
}

#[tokio::test]
async fn the_rest_of_the_api_answers() {
    let fixture = start().await;
    let mut client = fixture.client();
    let next: serde_json::Value = client
        .get("/v1/next?expr=5+0+*+*+*&tz=Asia%2FShanghai&after=2025-12-31T16:00:00Z&count=1")
        .await
        .unwrap();
    assert_eq!(
        next,
        serde_json::json!({ "next": ["2026-01-01T00:05:00+08:00"] })
    );
    fixture
        .put("a", r#"{"schedule":{"every":"1h"},"run":{"handler":"ok"}}"#)
        .await;
    let body = serde_json::json!({ "reason": "holiday" });
    let job: JobObject = client
        .post("/v1/jobs/a/pause", &body, vec![])
        .await
        .unwrap();
    assert_eq!(job.state, JobState::Paused);
    assert_eq!(job.paused.unwrap().reason.as_deref(), Some("holiday"));
    let job: JobObject = client.post("/v1/jobs/a/resume", &(), vec![]).await.unwrap();
    assert_eq!(job.state, JobState::Active);
    let status: serde_json::Value = client.get("/v1/status").await.unwrap();
    assert_eq!(
        (&status["store"], &status["jobs"]),
        (&"memory".into(), &1.into())
    );
}

/// S04: while the store is away the answer says so, and when to come again.
#[tokio::test]
async fn a_store_that_is_away_is_503() {
    let problem = Problem::from(punctual::control::ControlError::Store(
        punctual::backend::BackendError::Unavailable("no route".into()),
    ));
    let response = problem.render();
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()[RETRY_AFTER], "1");
}
