//! Each example of `docs/jobs.md`, applied to a node and run to what its comments say. That every key
//! of a job is in one of them is asserted beside the table of keys (`jobfile/schema.rs`).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::Api;
use crate::node::serve;
use crate::{Place, Running, wait_for};

/// What the tests of this file and of its neighbours (`calls.rs`, `notify.rs`, `overlap.rs`,
/// `progress.rs`, and `../docs.rs` for handlers) tell, by the heading above the example.
const TOLD: [&str; 14] = [
    "# The job file",
    "## When it runs",
    "## Runs that overlap",
    "## Who is told",
    "## \"The machine was off last night\"",
    "## A run that fails, or whose node goes",
    "## Which node runs it, and how soon",
    "## What is kept",
    "## Calling a URL",
    "## Handlers",
    "## One job after another",
    "## Runs in parts",
    "## Progress and checkpoints",
    "## Which commands a node runs",
];

fn page() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/jobs.md");
    fs::read_to_string(page).unwrap()
}

/// Every block of the page, with the heading that it stands under.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let mut blocks = Vec::new();
    let mut heading = "";
    let mut rest = page;
    while let Some((line, behind)) = rest.split_once('\n') {
        rest = behind;
        if line.starts_with('#') {
            heading = line;
        } else if line == "```yaml" {
            let (block, behind) = rest.split_once("```").unwrap();
            blocks.push((heading, block));
            rest = behind;
        }
    }
    blocks
}

/// The block under this heading of `docs/jobs.md`.
pub(crate) fn example(heading: &str) -> String {
    let page = page();
    let mut under = blocks(&page).into_iter().filter(|(h, _)| *h == heading);
    let (_, block) = under.next().unwrap();
    assert!(under.next().is_none(), "two blocks under {heading}");
    block.to_owned()
}

pub(crate) fn trigger(place: &Place, job: &str) -> String {
    let run = place.run(&["job", "trigger", job, "-o", "name"]).ok();
    run.trim().to_owned()
}

pub(crate) fn shown(place: &Place, run: &str) -> Value {
    place.run(&["run", "show", run, "-o", "json"]).json()
}

pub(crate) fn becomes(place: &Place, run: &str, state: &str) -> Value {
    wait_for(&format!("{run} {state}"), || {
        let shown = shown(place, run);
        (shown["state"] == state).then_some(shown)
    })
}

/// The example under the heading, on a node with these options besides.
fn start(place: &Place, heading: &str, options: &[&str]) -> (Running, Api) {
    place.write("jobs.yaml", example(heading));
    // What an earlier life left behind names another port.
    let _ = fs::remove_file(place.path("data/client.json"));
    let arguments = [
        "serve",
        "--store",
        "sled:data",
        "--listen",
        "127.0.0.1:0",
        "--jobs",
        "jobs.yaml",
    ];
    let running = Running::start(place, "log", &[&arguments, options].concat());
    place.wait_for_jobs();
    (running, Api::of(place))
}

fn time(text: &Value) -> jiff::Timestamp {
    text.as_str().unwrap().parse().unwrap()
}

/// Triggers the job and waits until it has succeeded.
fn succeeds(place: &Place, job: &str) -> Value {
    becomes(place, &trigger(place, job), "SUCCESS")
}

/// An example without a test would be one that may be wrong.
#[test]
fn each_example_has_a_test() {
    let page = page();
    for (heading, _) in blocks(&page) {
        assert!(
            TOLD.contains(&heading),
            "no test runs the example under {heading}"
        );
    }
}

#[test]
fn the_first_example() {
    let place = Place::new();
    let (_node, api) = start(&place, TOLD[0], &[]);
    let run = succeeds(&place, "daily-report");
    assert_eq!(run["output_tail"], "report\n");
    let job = api.get("/v1/jobs/daily-report");
    let next = job["next_at"].as_str().unwrap();
    assert!(
        next.ends_with("T16:05:00.000Z"),
        "five past midnight there: {next}"
    );
    assert_eq!(job["spec"]["labels"], json!({ "team": "billing" }));
    assert_eq!(job["spec"]["name"], "Daily channel report");
}

/// The instants between two times that a backfill would run.
fn instants(api: &Api, job: &str, from: &str, to: &str) -> Vec<String> {
    let body = json!({
        "from": format!("2026-{from}T00:00:00Z"),
        "to": format!("2026-{to}T00:00:00Z"),
        "dry_run": true,
    });
    let path = format!("/v1/jobs/{job}/backfill");
    let plan = api.ask("POST", &path, &[], &body.to_string()).expect(200);
    let slots = plan["slots"].as_array().unwrap();
    let at = slots.iter().map(|slot| slot["at"].as_str().unwrap());
    at.map(|at| at["2026-".len().."2026-01-01T00:00".len()].to_owned())
        .collect()
}

#[test]
fn the_example_of_schedules() {
    let place = Place::new();
    let (_node, api) = start(&place, "## When it runs", &[]);
    // Around Easter and the first of May.
    assert_eq!(
        instants(&api, "opening", "04-01", "04-09"),
        ["04-01T07:00", "04-02T07:00", "04-07T07:00", "04-08T07:00"]
    );
    assert_eq!(
        instants(&api, "opening", "04-30", "05-05"),
        ["04-30T07:00", "05-04T07:00"]
    );
    assert_eq!(
        instants(&api, "closing", "01-01", "04-01"),
        ["01-30T18:00", "02-27T18:00", "03-27T18:00"]
    );
    assert_eq!(
        instants(&api, "nightly", "03-28", "03-31"),
        ["03-28T01:30", "03-30T00:30"]
    );
    assert_eq!(
        instants(&api, "nightly", "10-24", "10-27"),
        ["10-24T00:30", "10-25T00:30", "10-25T01:30", "10-26T01:30"]
    );
    let next = |job: &str| api.get(&format!("/v1/jobs/{job}"))["next_at"].clone();
    assert_eq!(next("new-year"), "2099-12-31T22:59:59.000Z");
    assert_eq!(next("fair"), "2099-03-01T06:00:00.000Z");
    let jobs = ["opening", "closing", "nightly", "fair", "new-year"];
    for job in jobs {
        let said = succeeds(&place, job)["output_tail"].clone();
        assert_eq!(said, format!("{}\n", job.replace('-', " ")));
    }
}

/// What the third job's comment says is seen; the policies of the others need hours, and are told in
/// rows M01 and A11.
#[test]
fn the_example_of_what_passed_meanwhile() {
    let place = Place::new();
    let heading = "## \"The machine was off last night\"";
    let (mut node, api) = start(&place, heading, &[]);
    let spec = |job: &str| api.get(&format!("/v1/jobs/{job}"))["spec"].clone();
    assert_eq!(spec("ledger-close")["misfire"], "all");
    assert_eq!(spec("cache-warmer")["catch_up"], "1m");
    succeeds(&place, "ledger-close");
    succeeds(&place, "cache-warmer");
    wait_for("a run", || {
        (!api.runs("door-light", "&state=SUCCESS").is_empty()).then_some(())
    });
    node.signal(Signal::TERM);
    assert_eq!(node.wait().code(), Some(0));
    sleep(Duration::from_secs(8));
    let (_node, api) = start(&place, heading, &[]);
    let dropped = wait_for("a record of what was dropped", || {
        let skipped = api.runs("door-light", "&state=SKIPPED");
        skipped.into_iter().find(|run| run["reason"] == "deadline")
    });
    assert!(dropped["stands_for"].as_u64() >= Some(3), "{dropped}");
    let age = time(&dropped["created_at"]).duration_since(time(&dropped["scheduled_at"]));
    assert!(age.as_millis() > 3_000, "{dropped}");
    // Those behind it ran, late, and the rest in time.
    wait_for("runs after the outage", || {
        let runs = api.runs("door-light", "&state=SUCCESS");
        let behind = runs
            .iter()
            .filter(|run| run["scheduled_at"].as_str() > dropped["scheduled_at"].as_str());
        (behind.count() >= 4).then_some(())
    });
}

/// U14 among them: what follows when a node vanishes is the job's choice; by default no second run.
#[test]
fn the_example_of_runs_that_fail() {
    let place = Place::new();
    let heading = "## A run that fails, or whose node goes";
    let quick = [
        "--session-ttl",
        "2s",
        "--leader-ttl",
        "2s",
        "--lost-grace",
        "8s",
    ];
    let (mut node, api) = start(&place, heading, &quick);
    let flaky = succeeds(&place, "flaky");
    assert_eq!(flaky["attempt"], 3, "{flaky}");
    let attempts = api.get(&format!("/v1/runs/{}", flaky["run_id"].as_str().unwrap()));
    let states: Vec<_> = attempts["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| attempt["state"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(states, ["FAILED", "FAILED", "SUCCESS"]);
    let endless = becomes(&place, &trigger(&place, "endless"), "FAILED");
    assert_eq!(endless["reason"], "timeout", "{endless}");
    succeeds(&place, "sole-writer");

    let careful = trigger(&place, "charge-cards");
    let safe = trigger(&place, "build-index");
    for run in [&careful, &safe] {
        becomes(&place, run, "RUNNING");
    }
    node.signal(Signal::KILL);
    node.wait();
    let (_node, api) = start(&place, heading, &quick);
    let lost = becomes(&place, &careful, "FAILED");
    assert_eq!(
        (&lost["reason"], &lost["attempt"]),
        (&"worker_lost".into(), &1.into())
    );
    let again = becomes(&place, &safe, "SUCCESS");
    assert_eq!(again["attempt"], 2, "{again}");
    let runs = api.runs("charge-cards", "");
    assert_eq!(runs.len(), 1, "{runs:?}");
}

#[test]
fn the_example_of_queues() {
    let place = Place::new();
    let heading = "## Which node runs it, and how soon";
    let options = ["--queues", "default,gpu", "--slots", "1"];
    let (node, api) = start(&place, heading, &options);
    // One runs; what waits then goes by priority, whatever came first.
    let film = trigger(&place, "render-film");
    becomes(&place, &film, "RUNNING");
    let later = trigger(&place, "render-film");
    let preview = trigger(&place, "render-preview");
    place.run(&["run", "cancel", &film]).ok();
    let preview = becomes(&place, &preview, "SUCCESS");
    let next = becomes(&place, &later, "RUNNING");
    assert!(preview["ended_at"].as_str() <= next["started_at"].as_str());
    place.run(&["run", "cancel", &later]).ok();
    let nobodys = becomes(&place, &trigger(&place, "archive"), "FAILED");
    assert_eq!(nobodys["reason"], "no_handler", "{nobodys}");
    place.run(&["job", "trigger", "draft"]).fails(4, "disabled");
    let draft = api.get("/v1/jobs/draft");
    assert_eq!(
        (&draft["state"], &draft["next_at"]),
        (&"disabled".into(), &Value::Null)
    );
    assert_eq!(api.runs("draft", ""), [] as [Value; 0]);
    drop(node);
    // Without the queue nobody takes it.
    let (_node, _) = start(&place, heading, &[]);
    let waits = trigger(&place, "render-preview");
    sleep(Duration::from_secs(2));
    assert_eq!(shown(&place, &waits)["state"], "PENDING");
}

#[test]
fn the_example_of_history() {
    let place = Place::new();
    let (_node, api) = start(&place, "## What is kept", &[]);
    let mut seen = BTreeSet::new();
    wait_for("many runs", || {
        for _ in 0..5 {
            let path = "/v1/jobs/heartbeat/trigger";
            api.ask("POST", path, &[], "").expect(202);
        }
        let runs = api.runs("heartbeat", "&state=SUCCESS");
        seen.extend(runs.iter().map(|run| run["run_id"].to_string()));
        (seen.len() >= 30).then_some(())
    });
    wait_for("the last pruning", || {
        let runs = api.runs("heartbeat", "&state=SUCCESS");
        (runs.len() <= 3 + 8).then_some(())
    });
    let kept = api.get("/v1/jobs/heartbeat")["spec"]["history"].clone();
    let said = json!({
        "keep_success": 3, "keep_failed": 10, "keep_skipped": 5, "keep_for": "1h"
    });
    assert_eq!(kept, said);
}

#[test]
fn the_example_of_a_chain() {
    let place = Place::new();
    let (_node, api) = start(&place, "## One job after another", &[]);
    let loaded = succeeds(&place, "load-orders");
    assert_eq!(loaded["output_tail"], "loading\n");
    let billed = wait_for("the run after it", || {
        api.runs("bill-orders", "&state=SUCCESS").pop()
    });
    assert_eq!(billed["output_tail"], "billing\n");
    assert_eq!(billed["triggered_by"], loaded["run_id"]);
    // The first one at once, the next 30 s after its end.
    let polled = wait_for("the first poll", || {
        api.runs("poll-mailbox", "&state=SUCCESS").pop()
    });
    let next = wait_for("the next poll", || {
        let next = api.get("/v1/jobs/poll-mailbox")["next_at"].clone();
        next.is_string().then_some(next)
    });
    let rest = time(&next).duration_since(time(&polled["ended_at"]));
    assert_eq!(rest.as_millis(), 30_000, "{polled} {next}");
    sleep(Duration::from_secs(25));
    let again = wait_for("the next poll", || {
        let runs = api.runs("poll-mailbox", "&state=SUCCESS");
        runs.into_iter()
            .find(|run| run["run_id"] != polled["run_id"])
    });
    assert_eq!(again["scheduled_at"], next);
}

#[test]
fn the_example_of_runs_in_parts() {
    let place = Place::new();
    let (_node, api) = start(&place, "## Runs in parts", &[]);
    let outputs = |job: &str| {
        let run = succeeds(&place, job)["run_id"].clone();
        let run = api.get(&format!("/v1/runs/{}", run.as_str().unwrap()));
        let parts = run["parts"].as_array().unwrap().iter();
        parts
            .map(|part| part["output_tail"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let each: Vec<String> = (0..8).map(|n| format!("part {n} of 8\n")).collect();
    assert_eq!(outputs("thumbnails"), each);
    assert_eq!(outputs("rotate-logs"), ["rotating\n"], "one node is live");
}

#[test]
fn the_example_of_named_commands() {
    let place = Place::new();
    place.write("jobs.yaml", example("## Which commands a node runs"));
    let _node = serve(&place, "log");
    assert_eq!(succeeds(&place, "daily")["output_tail"], "report\n");
}
