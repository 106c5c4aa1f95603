//! Real connections to receivers that behave well, badly, or not at all.

use std::time::{Duration, Instant};

use punctual::cancel::Canceller;
use punctual::env::TokioEnv;
use punctual::handler::FencingToken;
use punctual::progress::Reporter;
use punctual::recipe::session::Trust;
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::fixture::{Does, Receiver, WATCHDOG, place, says};
use super::*;

pub(super) fn context() -> RunContext {
    RunContext {
        job_id: "report".into(),
        run_id: "report@20260812T000500Z".into(),
        attempt: 2,
        shard: None,
        shards: None,
        scheduled_at_ms: 1_786_493_100_007,
        fencing_token: FencingToken(129),
        payload: serde_json::json!({ "channel": "all" }),
        trace_id: "0af7651916cd43dd8448eb211c80319c".into(),
        timeout_ms: 60_000,
        kill_grace_ms: 250,
        cancel: Canceller::new().1,
        fence: None,
        reporter: Reporter::detached(),
        resume_from: None,
    }
}

fn why(execution: &Execution) -> (FailReason, &str) {
    let failure = execution.failure.as_ref().unwrap();
    (failure.reason, &failure.message)
}

#[tokio::test]
async fn a_call_says_which_run_it_is_and_sends_the_payload() {
    let receiver = Receiver::new(vec![says("201 Created", "done\n")]).await;
    let place = place(&[&receiver.url], &[]);
    let url = format!("{}/tasks?a=1", receiver.url);
    let headers = serde_json::json!({ "X-Team": "billing", "User-Agent": "ours/1" });
    let ended = place
        .call(serde_json::json!({ "url": url, "headers": headers }))
        .await;
    assert_eq!(ended.failure, None);
    assert_eq!(ended.output_tail.as_deref(), Some("done\n"));
    assert!(!ended.output_truncated);
    assert_eq!(place.log(), "done\n");
    let got = receiver.got().pop().unwrap();
    let (head, body) = got.split_once("\r\n\r\n").unwrap();
    assert_eq!(body, r#"{"channel":"all"}"#);
    let span = punctual_traceparent();
    let mut lines: Vec<&str> = head.lines().collect();
    assert_eq!(lines.remove(0), "POST /tasks?a=1 HTTP/1.1");
    lines.sort_unstable();
    let host = format!("host: {}", &receiver.url["http://".len()..]);
    let traceparent = format!("traceparent: {span}");
    assert_eq!(
        lines,
        [
            "content-length: 17",
            "content-type: application/json",
            &host,
            "idempotency-key: report@20260812T000500Z",
            "punctual-attempt: 2",
            "punctual-fencing-token: 129",
            "punctual-job-id: report",
            "punctual-scheduled-at: 2026-08-12T00:05:00.007Z",
            &traceparent,
            "user-agent: ours/1",
            "x-team: billing",
        ]
    );
    let part = RunContext {
        shard: Some(3),
        shards: Some(8),
        payload: serde_json::Value::Null,
        ..context()
    };
    let call = serde_json::json!({ "url": url });
    assert_eq!(place.execute(part, call).await.failure, None);
    let got = receiver.got().pop().unwrap();
    assert!(
        got.contains("punctual-shard: 3\r\npunctual-shards: 8\r\n"),
        "{got}"
    );
    assert!(got.contains("user-agent: punctual/") && got.contains("content-length: 0\r\n"));
    assert!(
        got.ends_with("\r\n\r\n") && !got.contains("content-type"),
        "{got}"
    );
}

fn punctual_traceparent() -> String {
    crate::exec::command::traceparent(&context())
}

#[tokio::test]
async fn a_body_is_what_the_job_says() {
    let receiver = Receiver::new(vec![says("204 No Content", "")]).await;
    let place = place(&[&receiver.url], &[]);
    let json = "content-type: application/json\r\n";
    let text = "content-type: text/plain; charset=utf-8\r\n";
    for (call, first, kind, body) in [
        (serde_json::json!({ "method": "GET" }), "GET ", "", ""),
        (serde_json::json!({ "method": "HEAD" }), "HEAD ", "", ""),
        (serde_json::json!({ "method": "DELETE" }), "DELETE ", "", ""),
        (
            serde_json::json!({ "method": "DELETE", "body": [1] }),
            "DELETE ",
            json,
            "[1]",
        ),
        (
            serde_json::json!({ "method": "PUT", "body": "a b" }),
            "PUT ",
            text,
            "a b",
        ),
        (
            serde_json::json!({ "body": { "a": 1 } }),
            "POST ",
            json,
            r#"{"a":1}"#,
        ),
        (
            serde_json::json!({ "method": "PATCH", "body": "a", "headers": { "Content-Type": "x/y" } }),
            "PATCH ",
            "content-type: x/y\r\n",
            "a",
        ),
    ] {
        let mut call = call;
        call["url"] = receiver.url.clone().into();
        let ended = place.call(call.clone()).await;
        assert_eq!(ended.failure, None, "{call}");
        let got = receiver.got().pop().unwrap();
        assert!(got.starts_with(first) && got.contains(kind), "{call} {got}");
        assert!(got.ends_with(&format!("\r\n\r\n{body}")), "{call} {got}");
        assert_eq!(got.contains("content-type"), !kind.is_empty(), "{got}");
    }
}

#[tokio::test]
async fn a_status_says_how_it_ended_and_nothing_leads_elsewhere() {
    for (answer, expected) in [
        (says("200 OK", ""), None),
        (says("202 Accepted", ""), None),
        (says("299 x", ""), None),
        (
            says("302 Found\r\nlocation: http://127.0.0.1:1/", ""),
            Some("HTTP 302 Found: redirects are not"),
        ),
        (says("404 Not Found", ""), Some("HTTP 404 Not Found")),
        (
            says("503 Service Unavailable\r\nretry-after: 1", ""),
            Some("HTTP 503 Service"),
        ),
        (Does::Says("nonsense\r\n\r\n".into()), Some("no answer: ")),
        (Does::Says(String::new()), Some("no answer: ")),
        (
            Does::Says("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".into()),
            Some("HTTP 200 OK, and the answer broke off"),
        ),
    ] {
        let receiver = Receiver::new(vec![answer]).await;
        let place = place(&[&receiver.url], &[]);
        let ended = place.call(serde_json::json!({ "url": receiver.url })).await;
        match expected {
            None => assert_eq!(ended.failure, None),
            Some(expected) => {
                let (reason, message) = why(&ended);
                assert_eq!(reason, FailReason::Error);
                assert!(message.starts_with(expected), "{message}");
            }
        }
        assert_eq!(receiver.got().len(), 1, "called once");
    }
}

#[tokio::test]
async fn nobody_there_is_told_from_somebody_who_does_not_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let place = place(&[&url, "http://no-such-host.invalid"], &[]);
    for url in [url.as_str(), "http://no-such-host.invalid/"] {
        let ended = place.call(serde_json::json!({ "url": url })).await;
        let (_, message) = why(&ended);
        assert!(
            message.starts_with("not called, nothing was sent: "),
            "{message}"
        );
    }
}

#[tokio::test]
async fn an_answer_of_any_size_is_kept_up_to_a_limit() {
    let long = format!("{}the end", "x".repeat(3 << 20));
    let receiver = Receiver::new(vec![
        says("200 OK", &long),
        says("500 Internal Server Error", &"0123456789".repeat(1_000)),
    ])
    .await;
    let place = place(&[&receiver.url], &[]);
    let call = serde_json::json!({ "url": receiver.url });
    let ended = place.call(call.clone()).await;
    assert_eq!(ended.failure, None, "the status counts");
    assert!(ended.output_truncated);
    let tail = ended.output_tail.unwrap();
    assert!(tail.len() <= TAIL_BYTES && !tail.contains("the end"));
    let log = place.log();
    assert!(
        log.starts_with(&"x".repeat(MAX_ANSWER_BYTES)),
        "{}",
        log.len()
    );
    assert!(log.contains("is not kept") && log.len() < MAX_ANSWER_BYTES + 200);
    let failed = place.call(call).await;
    assert_eq!(why(&failed).1, "HTTP 500 Internal Server Error");
    assert!(failed.output_truncated && failed.output_tail.unwrap().ends_with("6789"));
}

#[tokio::test]
async fn what_is_accepted_is_asked_for_until_it_has_ended() {
    let receiver = Receiver::new(vec![
        says(
            "202 Accepted\r\nlocation: /tasks/7\r\nretry-after: 1",
            "queued",
        ),
        says("202 Accepted\r\nretry-after: 1", "working"),
        says("503 Service Unavailable\r\nretry-after: 1", "a proxy"),
        says("202 Accepted\r\nretry-after: 1\r\nlocation: /tasks/8", ""),
        says("200 OK", "done"),
    ])
    .await;
    let place = place(&[&receiver.url], &[("PUNCTUAL_SECRET_A", "hunter2")]);
    let headers = serde_json::json!({ "Authorization": "Bearer ${secret:A}", "X-Team": "b" });
    let began = Instant::now();
    let ended = place
        .call(serde_json::json!({ "url": format!("{}/tasks", receiver.url), "headers": headers }))
        .await;
    assert_eq!(ended.failure, None);
    assert_eq!(ended.output_tail.as_deref(), Some("done"));
    assert!(began.elapsed() >= Duration::from_secs(4));
    let got = receiver.got();
    let first: Vec<&str> = got
        .iter()
        .map(|asked| asked.lines().next().unwrap())
        .collect();
    assert_eq!(
        first,
        [
            "POST /tasks HTTP/1.1",
            "GET /tasks/7 HTTP/1.1",
            "GET /tasks/7 HTTP/1.1",
            "GET /tasks/7 HTTP/1.1",
            "GET /tasks/8 HTTP/1.1",
        ]
    );
    for asked in &got[1..] {
        assert!(asked.contains("idempotency-key: report@"), "{asked}");
        assert!(
            asked.contains("authorization: Bearer hunter2\r\n"),
            "{asked}"
        );
        assert!(
            !asked.contains("content-type") && asked.ends_with("\r\n\r\n"),
            "{asked}"
        );
    }
}

#[tokio::test]
async fn what_was_accepted_may_fail_or_never_be_heard_of_again() {
    let accepted = |location: &str| {
        let head = format!("202 Accepted\r\nlocation: {location}\r\nretry-after: 0");
        says(&head, "")
    };
    for (then, expected, asked) in [
        (says("410 Gone", ""), "HTTP 410 Gone", 2),
        (
            says("303 See Other\r\nlocation: /r", ""),
            "HTTP 303 See Other: redirects",
            2,
        ),
        (
            Does::Says(String::new()),
            "the receiver took it (HTTP 202) and was then asked 5 times",
            6,
        ),
    ] {
        let receiver = Receiver::new(vec![accepted("/x"), then]).await;
        let place = place(&[&receiver.url], &[]);
        let ended = place.call(serde_json::json!({ "url": receiver.url })).await;
        assert!(why(&ended).1.starts_with(expected), "{ended:?}");
        assert_eq!(receiver.got().len(), asked);
    }
    for elsewhere in [
        "https://example.org/x",
        "http://127.0.0.2:1/",
        "//example.org/",
        "x",
    ] {
        let receiver = Receiver::new(vec![accepted(elsewhere)]).await;
        let place = place(&[&receiver.url], &[]);
        let ended = place.call(serde_json::json!({ "url": receiver.url })).await;
        assert!(
            why(&ended).1.starts_with("HTTP 202, and where to ask"),
            "{ended:?}"
        );
        assert_eq!(receiver.got().len(), 1);
    }
}

/// Told to stop, a call is gone at once, wherever it is, and sends nothing more.
#[tokio::test]
async fn a_call_that_is_told_to_stop_is_gone() {
    let hangs = |text: &str| Does::Hangs(text.into());
    for (script, cause, tail) in [
        (vec![hangs("")], StopCause::Timeout, None),
        (
            vec![hangs("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")],
            StopCause::Cancelled,
            Some("half"),
        ),
        (
            vec![says(
                "202 Accepted\r\nlocation: /x\r\nretry-after: 60",
                "wait",
            )],
            StopCause::Fenced,
            Some("wait"),
        ),
    ] {
        let held_open = matches!(script[0], Does::Hangs(_));
        let receiver = Receiver::new(script).await;
        let place = place(&[&receiver.url], &[]);
        let (canceller, cancel) = Canceller::new();
        let ctx = RunContext {
            cancel,
            ..context()
        };
        let stop = async {
            receiver.is_called().await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            canceller.stop(cause);
            Instant::now()
        };
        let call = serde_json::json!({ "url": receiver.url });
        let (ended, stopped) = tokio::join!(place.execute(ctx, call), stop);
        assert!(stopped.elapsed() < Duration::from_secs(1));
        assert_eq!(why(&ended).0, why(&Execution::stopped(cause, "")).0);
        assert!(
            why(&ended).1.contains("the receiver may go on"),
            "{ended:?}"
        );
        assert_eq!(ended.output_tail.as_deref(), tail);
        assert_eq!(ended.output_truncated, tail == Some("half"), "{ended:?}");
        if held_open {
            let closed = async {
                while *receiver.left.lock().unwrap() == 0 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            timeout(WATCHDOG, closed)
                .await
                .expect("the connection stays");
        }
        assert_eq!(receiver.got().len(), 1);
    }
    let receiver = Receiver::new(vec![says("200 OK", "")]).await;
    let place = place(&[&receiver.url], &[]);
    let (canceller, cancel) = Canceller::new();
    canceller.stop(StopCause::Cancelled);
    let call = serde_json::json!({ "url": receiver.url });
    let before = place
        .execute(
            RunContext {
                cancel,
                ..context()
            },
            call.clone(),
        )
        .await;
    assert_eq!(why(&before).0, FailReason::Cancelled);
    // Without a session that holds, another node may have the run already.
    let distrusted = RunContext {
        fence: Some(Trust::none(TokioEnv::shared())),
        ..context()
    };
    let distrusted = place.execute(distrusted, call).await;
    assert_eq!(why(&distrusted).0, FailReason::NotStarted);
    assert!(receiver.got().is_empty());
}

/// Q06, Q09: a secret is in the request and nowhere else.
#[tokio::test]
async fn a_secret_goes_to_whom_the_node_names_and_is_not_kept() {
    let echo = "you sent Bearer hunter2, \"hunter2\"";
    let receiver = Receiver::new(vec![
        says("200 OK", echo),
        says("401 Unauthorized", echo),
        says("202 Accepted\r\nlocation: http://hunter2.example/", echo),
        Does::Hangs(format!(
            "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{echo} hunt"
        )),
    ])
    .await;
    let secrets = [("PUNCTUAL_SECRET_TOKEN", "hunter2")];
    let place = place(&[&receiver.url], &secrets);
    let headers = serde_json::json!({ "Authorization": "Bearer ${secret:TOKEN}" });
    let call = serde_json::json!({ "url": receiver.url, "headers": headers });
    let mut all = String::new();
    for _ in 0..3 {
        all.push_str(&format!("{:?}", place.call(call.clone()).await));
    }
    let (canceller, cancel) = Canceller::new();
    let stop = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        canceller.stop(StopCause::Timeout);
    };
    let ctx = RunContext {
        cancel,
        ..context()
    };
    let (ended, ()) = tokio::join!(place.execute(ctx, call.clone()), stop);
    all.push_str(&format!("{ended:?} {}", place.log()));
    for asked in receiver.got() {
        assert!(
            asked.contains("authorization: Bearer hunter2\r\n"),
            "{asked}"
        );
    }
    assert_eq!(receiver.got().len(), 4);
    assert!(
        all.contains("you sent Bearer ***") && !all.contains("hunt"),
        "{all}"
    );

    // Nor is it sent to somebody whom only the job names.
    let public = serde_json::json!({ "url": "https://example.org/", "headers": headers });
    let refused = place.call(public.clone()).await;
    let (_, message) = why(&refused);
    assert!(
        message.contains("--http-allow example.org:443"),
        "{message}"
    );
    let spec = |call: &serde_json::Value| serde_json::from_value::<HttpSpec>(call.clone()).unwrap();
    assert!(place.calls.refusal(&spec(&public)).is_some());
    assert_eq!(place.calls.refusal(&spec(&call)), None);
}

#[tokio::test]
async fn what_may_not_be_called_or_is_not_there_is_told_before_anything_is_sent() {
    let receiver = Receiver::new(vec![says("200 OK", "")]).await;
    let nobody = place(&[], &[]);
    let encrypted = receiver.url.replace("http://", "https://");
    for (url, says) in [
        (
            receiver.url.as_str(),
            "has no --http-allow http://127.0.0.1:",
        ),
        (encrypted.as_str(), "no public address"),
        ("http://example.org/", "without encryption"),
        (
            "https://169.254.169.254/latest/meta-data",
            "no public address",
        ),
        ("https://[::ffff:10.0.0.1]/", "no public address"),
    ] {
        let call = serde_json::json!({ "url": url });
        let ended = nobody.call(call.clone()).await;
        assert_eq!(why(&ended).0, FailReason::Error);
        assert!(why(&ended).1.contains(says), "{url}: {ended:?}");
        let call: HttpSpec = serde_json::from_value(call).unwrap();
        assert!(
            nobody
                .calls
                .refusal(&call)
                .is_some_and(|why| why.contains(says))
        );
    }
    // What a name stands for is known when it is looked up.
    let ended = nobody
        .call(serde_json::json!({ "url": "https://localhost/" }))
        .await;
    assert!(why(&ended).1.contains("localhost stands for "), "{ended:?}");
    let named = place(&[&receiver.url], &[]);
    for (name, value, says) in [
        ("X-A", "${secret:TOKEN}", "PUNCTUAL_SECRET_TOKEN_FILE"),
        ("Host", "other.example", "not the job's to set"),
        ("Punctual-Attempt", "1", "not the job's to set"),
    ] {
        let call = serde_json::json!({ "url": receiver.url, "headers": { name: value } });
        let ended = named.call(call).await;
        assert!(why(&ended).1.contains(says), "{ended:?}");
    }
    assert!(receiver.got().is_empty());
}
