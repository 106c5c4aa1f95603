//! Who comes in, and what is refused.

use super::*;

const ROUTES: [(&str, &str); 19] = [
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
    ("GET", "/v1/nodes"),
    ("POST", "/v1/nodes/a/drain"),
    ("POST", "/v1/nodes/a/undrain"),
    ("POST", "/v1/clock/accept"),
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
    for (levels, status) in [(64, 202), (65, 422), (200, 400)] {
        let list = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let body = format!("{{\"payload\":{list}}}");
        let (answer, _) = send(&fixture, Method::POST, path, &[bearer()], &body).await;
        assert_eq!(answer.status(), status, "{levels} levels");
    }
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
            (3, 25, "schedule.cron"),
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

/// A bug of ours is the client's 500, with nothing of the inside.
#[tokio::test]
async fn a_panic_is_a_problem_like_others() {
    async fn broken() -> &'static str {
        panic!("the secret inside");
    }
    let router = axum::Router::new()
        .route("/broken", axum::routing::get(broken))
        .layer(axum::middleware::from_fn_with_state(
            BODY_TIME,
            super::super::finish,
        ));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    tokio::spawn(async { axum::serve(listener, router).await });
    let request = b"GET /broken HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    assert!(
        answer.contains("request_id") && !answer.contains("secret"),
        "{answer}"
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
