//! What has been is run again: retries and backfills by hand.

use std::collections::BTreeMap;

use punctual::control::{BackfillObject, RunKind, SlotOutcome, Verdict, WhyObject};

use super::work::ms;
use super::*;

/// `{}`.
const EMPTY: BTreeMap<String, String> = BTreeMap::new();

async fn trigger(client: &mut Client, job: &str, key: &str) -> RunObject {
    let path = format!("/v1/jobs/{job}/trigger");
    client.post(&path, &EMPTY, keyed(key)).await.unwrap()
}

async fn retry(client: &mut Client, run: &str, key: &str) -> Result<RunObject, Failure> {
    let path = format!("/v1/runs/{run}/retry");
    client.post(&path, &EMPTY, keyed(key)).await
}

/// A run that failed is repeated as its next attempt, once a key; one that ended well is not.
#[tokio::test]
async fn a_failed_run_is_repeated_by_hand() {
    let fixture = start().await;
    fixture.put("a", r#"{"run":{"handler":"second"}}"#).await;
    let mut client = fixture.client();
    let run = trigger(&mut client, "a", "k").await.run_id;
    assert_eq!(ended(&mut client, &run).await.run.state, RunState::Failed);
    let next = retry(&mut client, &run, "again").await.unwrap();
    assert_eq!(
        (next.run_id.as_str(), next.attempt, next.kind),
        (run.as_str(), 2, RunKind::Retry)
    );
    let done = ended(&mut client, &run).await;
    assert_eq!(done.run.state, RunState::Success);
    assert_eq!(done.attempts.len(), 2);
    // The same request again is the same attempt; another one is refused.
    let same = retry(&mut client, &run, "again").await.unwrap();
    assert_eq!((same.attempt, same.state), (2, RunState::Success));
    let failure = failed(retry(&mut client, &run, "more").await);
    assert_eq!(failure.exit, Exit::Conflict);
    assert!(failure.message.contains("ended as SUCCESS"), "{failure}");
    let failure = failed(retry(&mut client, "a~m-nothing", "x").await);
    assert_eq!(failure.exit, Exit::NotFound);
}

/// A run is not repeated beside itself, nor beside another one where runs must not overlap, nor while
/// the job is paused or gone.
#[tokio::test]
async fn a_retry_waits_for_nothing_and_passes_nobody() {
    let fixture = start().await;
    let waits = r#"{"run":{"handler":"wait"},"overlap":"skip"}"#;
    fixture.put("a", waits).await;
    let mut client = fixture.client();
    let run = trigger(&mut client, "a", "k").await.run_id;
    let failure = failed(retry(&mut client, &run, "1").await);
    assert!(failure.message.contains("is not finished"), "{failure}");
    let cancel = format!("/v1/runs/{run}/cancel");
    client
        .post::<RunObject>(&cancel, &EMPTY, vec![])
        .await
        .unwrap();
    assert_eq!(ended(&mut client, &run).await.run.state, RunState::Failed);

    let other = trigger(&mut client, "a", "other").await.run_id;
    let failure = failed(retry(&mut client, &run, "1").await);
    assert_eq!(failure.exit, Exit::Conflict);
    assert!(failure.message.contains(&other), "{failure}");
    let cancel = format!("/v1/runs/{other}/cancel");
    client
        .post::<RunObject>(&cancel, &EMPTY, vec![])
        .await
        .unwrap();
    ended(&mut client, &other).await;

    client
        .post::<JobObject>("/v1/jobs/a/pause", &EMPTY, vec![])
        .await
        .unwrap();
    let failure = failed(retry(&mut client, &run, "1").await);
    assert!(failure.message.contains("paused"), "{failure}");
    fixture.control.delete_job("a", None).await.unwrap();
    let failure = failed(retry(&mut client, &run, "1").await);
    assert!(failure.message.contains("no job `a` any more"), "{failure}");
    // Made again it is another job.
    fixture.put("a", waits).await;
    let failure = failed(retry(&mut client, &run, "1").await);
    assert!(failure.message.contains("earlier job"), "{failure}");
}

/// Past instants are run once a key, and those that have fired only on request.
#[tokio::test]
async fn past_instants_are_run_by_request() {
    let fixture = start().await;
    fixture
        .put(
            "a",
            r#"{"schedule":{"cron":"0 * * * *"},"run":{"handler":"ok"}}"#,
        )
        .await;
    let mut client = fixture.client();
    let path = "/v1/jobs/a/backfill";
    let (from, to) = ("2026-01-01T00:00:00Z", "2026-01-04T03:00:00Z");
    let wish = serde_json::json!({ "from": from, "to": to, "dry_run": true });
    let plan: BackfillObject = client.post(path, &wish, keyed("k")).await.unwrap();
    assert_eq!(plan.slots.len(), 75);
    assert!(plan.slots.iter().all(|s| s.outcome == SlotOutcome::Create));
    assert_eq!(plan.slots[0].at, "2026-01-01T00:00:00.000Z");
    assert!(fixture.control.run(&plan.slots[0].run_id).await.is_err());

    let wish = serde_json::json!({ "from": from, "to": to });
    let outcomes = async |client: &mut Client, wish: &serde_json::Value, key: &str| {
        let done: BackfillObject = client.post(path, wish, keyed(key)).await.unwrap();
        let count = |wanted| done.slots.iter().filter(|s| s.outcome == wanted).count();
        (
            count(SlotOutcome::Created),
            count(SlotOutcome::Exists),
            count(SlotOutcome::LeftOut),
        )
    };
    assert_eq!(outcomes(&mut client, &wish, "k").await, (75, 0, 0));
    assert_eq!(outcomes(&mut client, &wish, "k").await, (0, 75, 0));
    let run = ended(&mut client, &plan.slots[74].run_id).await.run;
    assert_eq!(
        (run.state, run.kind, run.scheduled_at.as_str()),
        (
            RunState::Success,
            RunKind::Backfill,
            "2026-01-04T02:00:00.000Z"
        )
    );
    // Another request sees the last runs; what is pruned it cannot see.
    for slot in &plan.slots {
        let known = fixture.control.run(&slot.run_id).await.is_ok();
        assert!(known || slot.run_id != run.run_id);
    }
    let one = serde_json::json!({ "from": "2026-01-04T02:00:00Z", "to": to });
    assert_eq!(outcomes(&mut client, &one, "k2").await, (0, 0, 1));
    let again = serde_json::json!({ "from": "2026-01-04T02:00:00Z", "to": to, "again": true });
    assert_eq!(outcomes(&mut client, &again, "k3").await, (1, 0, 0));

    // A key stands for one request.
    let failure = failed(client.post::<BackfillObject>(path, &one, keyed("k")).await);
    assert_eq!(failure.exit, Exit::Conflict);
    for (wrong, says) in [
        (serde_json::json!({ "from": to, "to": from }), "before"),
        (
            serde_json::json!({ "from": from, "to": "2100-01-01T00:00:00Z" }),
            "future",
        ),
        (
            serde_json::json!({ "from": "2025-01-01T00:00:00Z", "to": to }),
            "more than 100 instants",
        ),
        (
            serde_json::json!({ "from": from, "to": to, "limit": 1001 }),
            "1 to 1000",
        ),
        (serde_json::json!({ "from": "yesterday", "to": to }), "from"),
    ] {
        let failure = failed(
            client
                .post::<BackfillObject>(path, &wrong, keyed("w"))
                .await,
        );
        assert_eq!(failure.exit, Exit::Usage, "{wrong}: {failure}");
        assert!(failure.message.contains(says), "{wrong}: {failure}");
    }
}

/// Runs that must not be beside each other are not made so by a backfill.
#[tokio::test]
async fn a_backfill_puts_no_two_runs_beside_each_other_that_must_not_be() {
    let fixture = start().await;
    let spec = r#"{"schedule":{"cron":"0 * * * *"},"run":{"handler":"wait"},"overlap":"skip"}"#;
    fixture.put("a", spec).await;
    let mut client = fixture.client();
    let path = "/v1/jobs/a/backfill";
    let wish = |from: &str, to: &str| serde_json::json!({ "from": from, "to": to });
    // They wait for each other, which a hundred need not.
    let many = wish("2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z");
    let failure = failed(client.post::<BackfillObject>(path, &many, keyed("0")).await);
    assert_eq!(failure.exit, Exit::Usage);
    assert!(failure.message.contains("overlap: skip"), "{failure}");
    let two = wish("2026-01-01T00:00:00Z", "2026-01-01T02:00:00Z");
    let done: BackfillObject = client.post(path, &two, keyed("1")).await.unwrap();
    assert_eq!(done.slots[0].outcome, SlotOutcome::Created);
    assert_eq!(done.slots[1].outcome, SlotOutcome::Created);
    let next = wish("2026-01-01T02:00:00Z", "2026-01-01T03:00:00Z");
    let failure = failed(client.post::<BackfillObject>(path, &next, keyed("2")).await);
    assert_eq!(failure.exit, Exit::Conflict);
    assert!(failure.message.contains(&done.slots[0].run_id), "{failure}");
    // Each would tell the one before to go.
    let spec = r#"{"schedule":{"cron":"0 * * * *"},"run":{"handler":"wait"},"overlap":"replace"}"#;
    fixture.put("b", spec).await;
    let path = "/v1/jobs/b/backfill";
    let failure = failed(client.post::<BackfillObject>(path, &two, keyed("1")).await);
    assert!(failure.message.contains("overlap: replace"), "{failure}");
}

/// A key stands for one payload.
#[tokio::test]
async fn a_trigger_with_the_key_of_another_payload_is_refused() {
    let fixture = start().await;
    fixture.put("a", r#"{"run":{"handler":"ok"}}"#).await;
    let mut client = fixture.client();
    let path = "/v1/jobs/a/trigger";
    let send = async |client: &mut Client, payload: serde_json::Value| {
        let body = serde_json::json!({ "payload": payload });
        client.post::<RunObject>(path, &body, keyed("k")).await
    };
    let first = send(&mut client, 1.into()).await.unwrap();
    assert_eq!(
        send(&mut client, 1.into()).await.unwrap().run_id,
        first.run_id
    );
    let failure = failed(send(&mut client, 2.into()).await);
    assert_eq!(failure.exit, Exit::Conflict);
    assert!(failure.message.contains("another payload"), "{failure}");
    // None is not null.
    let failure = failed(client.post::<RunObject>(path, &EMPTY, keyed("k")).await);
    assert_eq!(failure.exit, Exit::Conflict);
}

/// What is recorded of an instant is told in words; so is why there is nothing.
#[tokio::test]
async fn why_an_instant_ran_or_did_not() {
    let fixture = start().await;
    fixture
        .put(
            "a",
            r#"{"schedule":{"cron":"* * * * * *"},"run":{"handler":"ok"}}"#,
        )
        .await;
    fixture
        .put("lost", r#"{"run":{"handler":"nobody has it"}}"#)
        .await;
    let mut client = fixture.client();
    let why = async |client: &mut Client, job: &str, at: Option<&str>| {
        let path = format!("/v1/jobs/{job}/why");
        let path = at.map_or(path.clone(), |at| {
            crate::client::with_query(&path, &[("at", at)])
        });
        client.get::<WhyObject>(&path).await
    };
    let run = loop {
        let query = [("state", "SUCCESS")];
        let runs: Vec<RunObject> = client.pages("/v1/jobs/a/runs", &query, None).await.unwrap();
        if let Some(run) = runs.into_iter().next() {
            break run;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let answer = why(&mut client, "a", Some(&run.scheduled_at))
        .await
        .unwrap();
    assert_eq!(answer.verdict, Verdict::Fired);
    assert!(answer.summary.contains("SUCCESS"), "{answer:?}");
    assert_eq!(answer.run.unwrap().run_id, run.run_id);
    assert_eq!(answer.next.len(), 3);

    let body = serde_json::json!({ "reason": "release", "by": "ann" });
    let job: JobObject = client
        .post("/v1/jobs/a/pause", &body, vec![])
        .await
        .unwrap();
    let since = ms(&job.paused.unwrap().since);
    let held = punctual::time::rfc3339_ms((since / 1_000 + 2) * 1_000);
    let skipped = loop {
        let answer = why(&mut client, "a", Some(&held)).await.unwrap();
        if answer.verdict == Verdict::Skipped {
            break answer;
        }
        assert!(
            [Verdict::Paused, Verdict::Undecided].contains(&answer.verdict),
            "{answer:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(
        skipped.summary.contains("paused by ann") && skipped.summary.contains("(release)"),
        "{skipped:?}"
    );

    let spec = r#"{"schedule":{"cron":"*/5 * * * *"},"run":{"handler":"ok"}}"#;
    fixture.put("five", spec).await;
    for (job, at, verdict, says) in [
        (
            "five",
            "2100-01-01T00:07:00Z",
            Verdict::NoMatch,
            "minute 07 is not in `*/5`",
        ),
        ("five", "2100-01-01T00:05:00Z", Verdict::Future, "ahead"),
        (
            "five",
            "2020-01-01T00:05:00Z",
            Verdict::NotCreated,
            "made later",
        ),
        (
            "lost",
            "2100-01-01T00:05:00Z",
            Verdict::NoMatch,
            "on demand only",
        ),
    ] {
        let answer = why(&mut client, job, Some(at)).await.unwrap();
        assert_eq!(answer.verdict, verdict, "{answer:?}");
        assert!(answer.summary.contains(says), "{answer:?}");
    }
    let lost = trigger(&mut client, "lost", "k").await;
    let answer = why(&mut client, "lost", Some(&lost.scheduled_at))
        .await
        .unwrap();
    assert_eq!(answer.verdict, Verdict::Fired);
    let evidence = answer.evidence.join("; ");
    assert!(
        evidence.contains("has the handler `nobody has it`"),
        "{evidence}"
    );
    fixture.control.delete_job("five", None).await.unwrap();
    let answer = why(&mut client, "five", None).await.unwrap();
    assert_eq!(answer.verdict, Verdict::Deleted);
    let failure = failed(why(&mut client, "nobody", None).await);
    assert_eq!(failure.exit, Exit::NotFound);
    let failure = failed(why(&mut client, "a", Some("noon")).await);
    assert_eq!(failure.exit, Exit::Usage);
}
