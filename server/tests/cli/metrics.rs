//! What a collector gets.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use rustix::process::Signal;
use serde_json::Value;

use crate::{Place, Running, wait_for};

fn get(url: &str, path: &str, token: &str) -> String {
    let mut stream = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n{token}\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_metrics_are_those_of_the_contract_and_only_for_those_with_a_token() {
    let place = Place::new();
    place.write(
        "jobs.yaml",
        "jobs:\n  - id: good\n    schedule: { every: 1s }\n    run: { command: [\"true\"] }\n  \
         - id: bad\n    run: { command: [\"false\"] }\n",
    );
    let given = "0123456789abcdef0123456789abcdef";
    place.write("token", given);
    let _node = Running::start(
        &place,
        "log",
        &[
            "serve",
            "--store",
            "sled:data",
            "--listen",
            "127.0.0.1:0",
            "--jobs",
            "jobs.yaml",
            "--admin-token-file",
            "token",
        ],
    );
    let failed = wait_for("the job", || {
        let run = place.run(&["job", "trigger", "bad", "--wait"]);
        (run.code == Some(1)).then_some(run)
    });
    assert!(failed.out.contains("FAILED"), "{failed:?}");
    let client = fs::read_to_string(place.path("data/client.json")).unwrap();
    let client: Value = serde_json::from_str(&client).unwrap();
    let (url, own) = (client["url"].as_str().unwrap(), &client["token"]);
    assert!(get(url, "/metrics", "").starts_with("HTTP/1.1 401"));
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let answer = get(url, "/metrics", &bearer(own.as_str().unwrap()));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");

    // The given token opens the same door.
    let text = wait_for("a fire and a look at the cluster", || {
        let text = get(url, "/metrics", &bearer(given));
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map_or(0, |value| value.trim().parse::<u64>().unwrap())
        };
        // All fires of the schedule had an instant, the trigger had none, and each run was claimed once.
        // (One may come between two lines of a text, but not always.)
        let fired = value("scheduler_job_trigger_total{job_id=\"good\",status=\"fired\"}");
        let with_instant = value("scheduler_fire_lateness_seconds_count");
        let claimed = value("scheduler_queue_seconds_count");
        (text.contains("{job_id=\"good\",status=\"success\"}")
            && text.contains("\nscheduler_is_leader 1\n")
            && fired == with_instant
            && claimed == fired + 1
            && value("scheduler_leader_changes_total") >= 1)
            .then_some(text)
    });
    assert!(text.contains("content-type: application/openmetrics-text; version=1.0.0"));
    for line in [
        "# TYPE scheduler_job_trigger counter",
        "scheduler_job_trigger_total{job_id=\"bad\",status=\"fired\"} 1",
        "# TYPE scheduler_fire_lateness_seconds histogram",
        "# TYPE scheduler_queue_seconds histogram",
        "scheduler_runs_lost_total 0",
        "# TYPE scheduler_slots gauge",
        "# TYPE scheduler_tick_age_seconds gauge",
        "scheduler_late_results_total 0",
        "scheduler_fenced_writes_total{op=\"lead\"}",
        "scheduler_fenced_writes_total{op=\"work\"}",
        "scheduler_job_trigger_total{job_id=\"bad\",status=\"failed\"} 1",
        "# TYPE scheduler_job_latency_seconds histogram",
        "scheduler_job_latency_seconds_count{job_id=\"bad\"} 1",
        "scheduler_undecided_instants 0",
        "scheduler_cursor_lag_seconds 0.0",
        "scheduler_runs{state=\"RUNNING\"}",
        "scheduler_store_requests_total{op=\"commit\",outcome=\"ok\"}",
        "# TYPE scheduler_store_request_seconds histogram",
        "scheduler_build_info{version=",
    ] {
        assert!(text.contains(&format!("\n{line}")), "{line}\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
    // (A node alone has nobody to compare its clock with.)
    assert!(!text.contains("scheduler_clock_skew_seconds"), "{text}");
}

/// A node dies with a run, and the next one counts that it is lost: nobody else would.
#[test]
fn a_run_that_is_lost_with_its_node_is_counted_by_whoever_ends_it() {
    let place = Place::new();
    place.write(
        "jobs.yaml",
        "jobs:\n  - id: long\n    run: { command: [\"sleep\", \"60\"] }\n",
    );
    let serve = [
        "serve",
        "--store",
        "sled:data",
        "--listen",
        "127.0.0.1:0",
        "--jobs",
        "jobs.yaml",
        "--session-ttl",
        "2s",
        "--lost-grace",
        "7s",
    ];
    let metrics = || {
        let client = fs::read_to_string(place.path("data/client.json")).ok()?;
        let client: Value = serde_json::from_str(&client).ok()?;
        let (url, token) = (client["url"].as_str()?, client["token"].as_str()?);
        Some(get(
            url,
            "/metrics",
            &format!("Authorization: Bearer {token}\r\n"),
        ))
    };
    let has = |line: &str| {
        let text = metrics();
        text.is_some_and(|text| text.contains(line)).then_some(())
    };
    let mut first = Running::start(&place, "first.log", &serve);
    place.wait_for_jobs();
    place.run(&["job", "trigger", "long"]).ok();
    wait_for("its claim", || has("\nscheduler_slots{state=\"busy\"} 1\n"));
    wait_for("its start", || {
        let runs = place.run(&["run", "ls"]);
        runs.out.contains("RUNNING").then_some(())
    });
    first.signal(Signal::KILL);
    first.wait();
    let _second = Running::start(&place, "second.log", &serve);
    place.wait_for_jobs();
    wait_for("its end", || has("\nscheduler_runs_lost_total 1\n"));
    let runs = place.run(&["run", "ls"]).ok();
    assert!(runs.contains("worker_lost"), "{runs}");
}
