//! What the API does.

use super::*;

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

/// A pause with an end says when it ends and who asked for it; the instants behind its end fire.
#[tokio::test]
async fn a_pause_has_an_end_and_an_author() {
    let fixture = start().await;
    fixture
        .put("a", r#"{"schedule":{"every":"1s"},"run":{"handler":"ok"}}"#)
        .await;
    let mut client = fixture.client();
    let body = serde_json::json!({ "reason": "release", "until": "3s", "by": "ann" });
    let job: JobObject = client
        .post("/v1/jobs/a/pause", &body, vec![])
        .await
        .unwrap();
    assert_eq!(job.state, JobState::Paused);
    let paused = job.paused.unwrap();
    assert_eq!(
        (paused.by.as_deref(), paused.reason.as_deref(), paused.all),
        (Some("ann"), Some("release"), false)
    );
    let until = paused.until.unwrap();
    assert!(job.next_at.as_ref() >= Some(&until), "{:?}", job.next_at);
    let failure = failed(
        client
            .post::<RunObject>("/v1/jobs/a/trigger", &serde_json::json!({}), vec![])
            .await,
    );
    assert_eq!(failure.exit, Exit::Conflict);
    for wrong in [
        r#"{"until":"2020-01-01T00:00:00Z"}"#,
        r#"{"until":"soon"}"#,
        r#"{"until":"0s"}"#,
    ] {
        let path = "/v1/jobs/a/pause";
        let (answer, problem) = send(&fixture, Method::POST, path, &[bearer()], wrong).await;
        assert!(
            [400, 422].contains(&answer.status().as_u16()),
            "{wrong}: {}",
            problem.detail
        );
    }
    for _ in 0..400 {
        let query = [("state", "SUCCESS")];
        let runs: Vec<RunObject> = client.pages("/v1/jobs/a/runs", &query, None).await.unwrap();
        let behind = runs.iter().filter(|run| run.scheduled_at >= until).count();
        if behind >= 2 {
            let first = runs.iter().rfind(|run| run.scheduled_at >= until).unwrap();
            let gap = ms(&first.scheduled_at) - ms(&until);
            assert!((0..1_000).contains(&gap), "{gap} ms");
            let held = runs
                .iter()
                .any(|run| run.scheduled_at >= paused.since && run.scheduled_at < until);
            assert!(!held, "{runs:?}");
            let job: JobObject = client.get("/v1/jobs/a").await.unwrap();
            assert_eq!((job.state, job.paused), (JobState::Active, None));
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it did not fire again");
}

pub(super) fn ms(time: &str) -> i64 {
    crate::times::ms_of(time).unwrap()
}

/// All jobs at once, twice; and only what was held so is let go so.
#[tokio::test]
async fn all_jobs_are_paused_and_resumed_at_once() {
    let fixture = start().await;
    let jobs = (0..60).map(|n| {
        format!("{{\"id\":\"j{n:02}\",\"schedule\":{{\"every\":\"1h\"}},\"run\":{{\"handler\":\"ok\"}}}}")
    });
    let file = format!("{{\"jobs\":[{}]}}", jobs.collect::<Vec<_>>().join(","));
    let (answer, _) = send(&fixture, Method::POST, "/v1/apply", &[bearer()], &file).await;
    assert_eq!(answer.status(), 200);
    let mut client = fixture.client();
    let body = serde_json::json!({ "reason": "mine" });
    client
        .post::<JobObject>("/v1/jobs/j07/pause", &body, vec![])
        .await
        .unwrap();
    let body = serde_json::json!({ "reason": "fire in the house" });
    for (address, changed) in [
        ("/v1/pause", 60),
        ("/v1/pause", 0),
        ("/v1/resume", 60),
        ("/v1/resume", 0),
    ] {
        let body = match address {
            "/v1/pause" => body.clone(),
            _ => serde_json::json!({}),
        };
        let report: AllReport = client.post(address, &body, vec![]).await.unwrap();
        assert_eq!(
            (report.changed, report.unchanged, report.remaining),
            (changed, 60 - changed, 0),
            "{address}"
        );
        let jobs: Vec<JobObject> = client.pages("/v1/jobs", &[], None).await.unwrap();
        let held = jobs.iter().filter(|job| job.state == JobState::Paused);
        let expected = if address == "/v1/pause" { 60 } else { 1 };
        assert_eq!(held.count(), expected);
        let mine = jobs.iter().find(|job| job.spec.id == "j07").unwrap();
        assert_eq!(mine.state, JobState::Paused);
        let reason = mine.paused.as_ref().and_then(|p| p.reason.as_deref());
        if address == "/v1/resume" {
            assert_eq!(reason, Some("mine"));
        }
    }
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
        (&"memory 0.1.0".into(), &1.into())
    );
}
