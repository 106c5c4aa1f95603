//! Rows of the catalogue of what went wrong with others (`H`: seen from outside), on a node of its
//! own, by its API and its command line. Which row is shown where: `docs/failure-modes.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::http::Api;
use crate::{Place, Running, wait_for};

/// A node that runs what jobs say, so that jobs can be made by the API alone.
fn node(place: &Place, log: &str) -> (Running, Api) {
    // What an earlier life left behind names another port.
    let _ = fs::remove_file(place.path("data/client.json"));
    let arguments = [
        "serve",
        "--store",
        "sled:data",
        "--listen",
        "127.0.0.1:0",
        "--commands",
        "any",
    ];
    let running = Running::start(place, log, &arguments);
    let api = wait_for("the node", || {
        let ready = place.run(&["job", "ls"]).code == Some(0);
        ready.then(|| Api::of(place))
    });
    (running, api)
}

#[track_caller]
fn put(api: &Api, id: &str, spec: &Value) -> Value {
    let answer = api.ask("PUT", &format!("/v1/jobs/{id}"), &[], &spec.to_string());
    let made = if answer.status == 201 { 201 } else { 200 };
    answer.expect(made)
}

fn shell(script: &str) -> Value {
    json!({ "command": ["/bin/sh", "-c", script] })
}

fn second(time: &Value) -> i64 {
    let time: jiff::Timestamp = time.as_str().unwrap().parse().unwrap();
    assert_eq!(time.as_millisecond() % 1_000, 0, "{time}");
    time.as_second()
}

/// How often each second was decided by the schedule. A record of skipped instants stands for each of
/// them; a run that stands for others (`misfire: latest`) leaves such a record for these.
fn decided(runs: &[Value]) -> BTreeMap<i64, u32> {
    let mut seconds = BTreeMap::new();
    let records = runs.iter().filter(|run| run["kind"] == "scheduled");
    for run in records {
        let last = second(&run["scheduled_at"]);
        let first = match &run["stands_from"] {
            Value::Null => last,
            from => second(from),
        };
        assert_eq!(run["stands_for"], last - first + 1, "{run}");
        let decided = if run["state"] == "SKIPPED" {
            first
        } else {
            last
        };
        for at in decided..=last {
            *seconds.entry(at).or_default() += 1;
        }
    }
    seconds
}

#[track_caller]
fn each_second_once(seconds: &BTreeMap<i64, u32>) {
    let (first, last) = (seconds.keys().next(), seconds.keys().next_back());
    let wanted = last.unwrap() - first.unwrap() + 1;
    assert_eq!(i64::try_from(seconds.len()).unwrap(), wanted, "{seconds:?}");
    assert!(seconds.values().all(|times| *times == 1), "{seconds:?}");
}

/// O07: a run is longer than the interval (2.5 s and 1 s; the row says 65 s and a minute). Each
/// instant that met it is a SKIPPED / `overlap` record, and the metric counts each record.
#[test]
fn o07_every_instant_that_met_a_run_leaves_a_record_and_is_counted() {
    let place = Place::new();
    let (_node, api) = node(&place, "log");
    let spec = json!({
        "schedule": { "every": "1s" },
        "run": shell("sleep 2.5"),
        "overlap": "skip",
        "history": { "keep_success": 100, "keep_skipped": 100 },
    });
    put(&api, "slow", &spec);
    wait_for("six skipped instants", || {
        (api.runs("slow", "&state=SKIPPED").len() >= 6).then_some(())
    });
    api.ask("POST", "/v1/jobs/slow/pause", &[], "").expect(200);
    let runs = api.runs("slow", "");
    each_second_once(&decided(&runs));
    let skipped: Vec<_> = runs
        .iter()
        .filter(|run| run["state"] == "SKIPPED")
        .collect();
    let met = skipped.iter().filter(|run| run["reason"] == "overlap");
    assert!(met.clone().count() >= 6, "{skipped:?}");
    let metrics = api.ask("GET", "/metrics", &[], "").body;
    let line = "scheduler_job_trigger_total{job_id=\"slow\",status=\"skipped\"} ";
    let counted = metrics.lines().find_map(|text| text.strip_prefix(line));
    assert_eq!(
        counted,
        Some(skipped.len().to_string().as_str()),
        "{metrics}"
    );
}

/// P12: a run prints 50 MB. The store holds its last 2 KiB and says that there was more; the rest is
/// a file of the node.
#[test]
fn p12_the_store_holds_the_tail_of_a_large_output() {
    const PRINTED: usize = 50_000_000;
    let place = Place::new();
    let (mut running, api) = node(&place, "log");
    let script = format!("head -c {PRINTED} /dev/zero | tr '\\0' x; echo the end");
    put(&api, "loud", &json!({ "run": shell(&script) }));
    let done = place.run(&["job", "trigger", "loud", "--wait", "-o", "json"]);
    let run = done.json();
    let tail = run["output_tail"].as_str().unwrap();
    assert!(tail.len() <= 2_048 && tail.ends_with("xthe end\n"), "{run}");
    assert_eq!(run["output_truncated"], true);
    let shown = api.ask(
        "GET",
        &format!("/v1/runs/{}", run["run_id"].as_str().unwrap()),
        &[],
        "",
    );
    assert!(shown.body.len() < 16 << 10, "{} bytes", shown.body.len());
    let logs = fs::read_dir(place.path("data/logs/loud")).unwrap();
    let sizes = logs.map(|log| log.unwrap().metadata().unwrap().len());
    let whole = u64::try_from(PRINTED + "the end\n".len()).unwrap();
    assert_eq!(sizes.collect::<Vec<_>>(), [whole]);
    running.signal(Signal::TERM);
    running.wait();
    let dump = place.run(&["store", "export", "--store", "sled:data"]).ok();
    let largest = dump.lines().map(str::len).max();
    assert!(largest < Some(64 << 10), "a value of {largest:?} bytes");
}

/// A01: one field is changed by a PUT of what was read, under the condition that nobody else has
/// changed it. All other fields stay; a PUT without them takes them away.
#[test]
fn a01_one_field_is_changed_and_the_others_stay() {
    let place = Place::new();
    let (_node, api) = node(&place, "log");
    let spec = json!({
        "name": "one",
        "schedule": { "cron": "5 0 * * *", "timezone": "Asia/Shanghai", "jitter": "3s" },
        "run": { "command": ["true"], "env": { "A": "1" } },
        "payload": { "deep": [1, { "two": null }] },
        "timeout": "5m",
        "retry": { "attempts": 3, "factor": 1.5 },
        "labels": { "team": "billing" },
        "history": { "keep_failed": 7 },
    });
    put(&api, "a", &spec);
    let read = api.ask("GET", "/v1/jobs/a", &[], "");
    let tag = read.header("etag").unwrap().to_owned();
    let before = read.expect(200)["spec"].clone();
    let mut wanted = before.clone();
    wanted["timeout"] = "6m".into();
    let condition = format!("If-Match: {tag}");
    let write = || api.ask("PUT", "/v1/jobs/a", &[&condition], &wanted.to_string());
    write().expect(200);
    assert_eq!(api.get("/v1/jobs/a")["spec"], wanted);
    // The condition held once.
    write().expect(412);
    let less = json!({ "run": { "command": ["true"] } });
    let replaced = put(&api, "a", &less)["spec"].clone();
    assert_eq!(
        replaced,
        json!({ "id": "a", "run": { "command": ["true"] } })
    );
}

/// A02: a job that others run after is not deleted before these are changed, and the answer names
/// them. To delete one that runs after another leaves that, and its run, alone.
#[test]
fn a02_no_reference_is_left_dangling() {
    let place = Place::new();
    let (_node, api) = node(&place, "log");
    put(&api, "parent", &json!({ "run": shell("sleep 3") }));
    let child = json!({ "after": ["parent"], "run": { "command": ["true"] } });
    put(&api, "child-1", &child);
    put(&api, "child-2", &child);
    let run = api
        .ask("POST", "/v1/jobs/parent/trigger", &[], "{}")
        .expect(202);
    let refused = api.ask("DELETE", "/v1/jobs/parent", &[], "").expect(409);
    let detail = refused["detail"].as_str().unwrap();
    assert!(
        detail.contains("child-1") && detail.contains("child-2"),
        "{detail}"
    );
    for child in ["child-1", "child-2"] {
        api.ask("DELETE", &format!("/v1/jobs/{child}"), &[], "")
            .expect(204);
    }
    let path = format!("/v1/runs/{}", run["run_id"].as_str().unwrap());
    let ended = wait_for("the end of the parent's run", || {
        let run = api.get(&path);
        run["ended_at"].is_string().then_some(run)
    });
    assert_eq!(
        (&ended["state"], &ended["attempt"]),
        (&"SUCCESS".into(), &1.into())
    );
    api.ask("DELETE", "/v1/jobs/parent", &[], "").expect(204);
    let jobs = api.get("/v1/jobs");
    assert_eq!(jobs["items"], json!([]));
    // A reference to what is not there is refused as well.
    let dangling = api.ask("PUT", "/v1/jobs/child-1", &[], &child.to_string());
    let findings = dangling.expect(422);
    assert!(findings.to_string().contains("parent"), "{findings}");
}

/// A04: a payload that was changed is the payload of the next instant, and the job says which
/// version of it is in force.
#[test]
fn a04_the_next_run_has_the_new_payload() {
    let place = Place::new();
    let (_node, api) = node(&place, "log");
    let spec = |version: u32| {
        json!({
            "schedule": { "every": "1s" },
            "run": shell("echo $PUNCTUAL_PAYLOAD"),
            "payload": { "v": version },
            "history": { "keep_success": 100 },
        })
    };
    let said = |version: u32| format!("{{\"v\":{version}}}\n");
    let succeeded = |at_least: usize, version: u32| {
        wait_for("runs", || {
            let runs = api.runs("a", "&state=SUCCESS");
            let of = runs
                .iter()
                .filter(|run| run["output_tail"] == said(version));
            (of.count() >= at_least).then_some(runs)
        })
    };
    let first = put(&api, "a", &spec(1));
    succeeded(2, 1);
    let second = put(&api, "a", &spec(2));
    let updated = second["updated_at"].as_str().unwrap().to_owned();
    assert!(second["generation"].as_u64() > first["generation"].as_u64());
    let runs = succeeded(2, 2);
    each_second_once(&decided(&runs));
    for run in &runs {
        // RFC 3339 in UTC with milliseconds: the order of texts is the order of times.
        let after = run["scheduled_at"].as_str().unwrap() >= updated.as_str();
        assert_eq!(run["output_tail"], said(if after { 2 } else { 1 }), "{run}");
        let generation = if after { &second } else { &first }["generation"].clone();
        assert_eq!(run["generation"], generation, "{run}");
    }
}

/// A06: what is asked for is unique by the instant that it is for, not by the time of asking. Two
/// instants half an hour apart, asked for in the same second, are two runs; the same instant again
/// is none.
#[test]
fn a06_a_request_is_unique_by_its_instant() {
    let place = Place::new();
    let (_node, api) = node(&place, "log");
    let spec = json!({
        "schedule": { "cron": "0,30 * * * *" },
        "run": { "command": ["true"] },
    });
    put(&api, "a", &spec);
    let ask = |from: &str, to: &str, key: &str| {
        let body = json!({
            "from": format!("2026-01-01T{from}:00Z"),
            "to": format!("2026-01-01T{to}:00Z"),
        });
        let key = format!("Idempotency-Key: {key}");
        api.ask("POST", "/v1/jobs/a/backfill", &[&key], &body.to_string())
    };
    let outcome = |from: &str, to: &str, key: &str| {
        let slots = ask(from, to, key).expect(202)["slots"].clone();
        assert_eq!(slots.as_array().unwrap().len(), 1, "{slots}");
        (
            slots[0]["outcome"].clone(),
            slots[0]["run_id"].as_str().unwrap().to_owned(),
        )
    };
    let (first, one) = outcome("00:00", "00:01", "k1");
    let (second, two) = outcome("00:30", "00:31", "k2");
    assert_eq!((first, second), ("created".into(), "created".into()));
    assert_ne!(one, two);
    // The same request again, and another one for the same instant.
    let (again, same) = outcome("00:00", "00:01", "k1");
    assert_eq!((again, same), ("exists".into(), one.clone()));
    wait_for("both runs", || {
        (api.runs("a", "&state=SUCCESS").len() == 2).then_some(())
    });
    let (other, _) = outcome("00:00", "00:01", "k3");
    assert_eq!(other, "left_out");
    ask("00:30", "00:31", "k1").expect(409);
    let runs = api.runs("a", "");
    let ids: BTreeSet<_> = runs
        .iter()
        .filter_map(|run| run["run_id"].as_str())
        .collect();
    assert_eq!((runs.len(), ids), (2, BTreeSet::from([&*one, &*two])));
}

/// A07: the longest id that is taken runs, in every way in which a run gets its name; a longer one is
/// refused when the job is made.
#[test]
fn a07_the_longest_name_still_runs() {
    let place = Place::new();
    let (_node, api) = node(&place, "log");
    let longest = "a".repeat(63);
    let before = "b".repeat(63);
    put(&api, &before, &json!({ "run": { "command": ["true"] } }));
    let spec = json!({
        "schedule": { "cron": "* * * * * *" },
        "run": shell("echo $PUNCTUAL_JOB_ID"),
        "after": [before],
        "fan_out": 2,
        "queue": "default",
    });
    put(&api, &longest, &spec);
    api.ask("POST", &format!("/v1/jobs/{longest}/trigger"), &[], "{}")
        .expect(202);
    api.ask("POST", &format!("/v1/jobs/{before}/trigger"), &[], "{}")
        .expect(202);
    let body = json!({ "from": "2026-01-01T00:00:00Z", "to": "2026-01-01T00:00:01Z" });
    let path = format!("/v1/jobs/{longest}/backfill");
    api.ask("POST", &path, &[], &body.to_string()).expect(202);
    for kind in ["scheduled", "manual", "chained", "backfill", "shard"] {
        wait_for(kind, || {
            let runs = api.runs(&longest, "&state=SUCCESS");
            runs.iter().find(|run| run["kind"] == kind).map(|_| ())
        });
    }
    // A command's output is a file that is named after the run.
    let part = wait_for("a part", || {
        let runs = api.runs(&longest, "&state=SUCCESS");
        runs.into_iter().find(|run| run["kind"] == "shard")
    });
    assert_eq!(part["output_tail"], format!("{longest}\n"));
    let run = part["run_id"].as_str().unwrap();
    let log = place.path(&format!("data/logs/{longest}/{run}.1.log"));
    assert_eq!(fs::read_to_string(&log).unwrap(), format!("{longest}\n"));
    let longer = format!("{longest}a");
    let spec = json!({ "run": { "command": ["true"] } });
    let refused = api.ask("PUT", &format!("/v1/jobs/{longer}"), &[], &spec.to_string());
    let refused = refused.expect(422);
    assert!(refused.to_string().contains("63"), "{refused}");
    api.ask("GET", &format!("/v1/jobs/{longer}"), &[], "")
        .expect(404);
}

/// A09: what is a number comes back as the number; what is none, or makes no sense, is refused, and
/// the job stays as it was.
#[test]
fn a09_a_number_is_read_back_or_refused() {
    let place = Place::new();
    let (_node, api) = node(&place, "log");
    let with = |keep: Value| json!({ "run": { "command": ["true"] }, "history": { "keep_success": keep } });
    let kept = || api.get("/v1/jobs/a")["spec"]["history"]["keep_success"].clone();
    for good in [2, 1, 100_000] {
        put(&api, "a", &with(good.into()));
        assert_eq!(kept(), good);
    }
    for wrong in [
        json!(0),
        json!(-1),
        json!(100_001),
        json!(2_147_483_648_u64),
        json!(4_294_967_298_u64),
        json!(1e30),
        json!(2.5),
        json!("2"),
        json!([2]),
        json!(true),
    ] {
        let answer = api.ask("PUT", "/v1/jobs/a", &[], &with(wrong.clone()).to_string());
        let problem = answer.expect(422);
        assert_eq!(
            problem["findings"][0]["path"], "history.keep_success",
            "{problem}"
        );
        assert_eq!(kept(), 100_000, "{wrong}");
    }
}

/// A11: nobody was there for a while (seconds; the row says two hours). Each instant that passed is
/// named by a record: those that the policy drops by one SKIPPED / `misfire` record.
#[test]
fn a11_what_passed_while_nobody_was_there_is_on_record() {
    let place = Place::new();
    let (mut first, api) = node(&place, "log");
    let job = |misfire: &str| {
        json!({
            "schedule": { "every": "1s" },
            "run": { "command": ["true"] },
            "misfire": misfire,
            "catch_up": "2s",
            "history": { "keep_success": 100 },
        })
    };
    for policy in ["skip", "latest", "all"] {
        put(&api, policy, &job(policy));
    }
    wait_for("a run", || {
        (!api.runs("all", "&state=SUCCESS").is_empty()).then_some(())
    });
    first.signal(Signal::TERM);
    assert_eq!(first.wait().code(), Some(0));
    let gone = jiff::Timestamp::now();
    std::thread::sleep(std::time::Duration::from_secs(8));
    let back = jiff::Timestamp::now();
    let (_second, api) = node(&place, "log2");
    for (policy, at_least) in [("skip", 7), ("latest", 6), ("all", 0)] {
        wait_for("an instant after the outage", || {
            let runs = api.runs(policy, "&state=SUCCESS");
            let after = |run: &&Value| second(&run["scheduled_at"]) > back.as_second() + 1;
            runs.iter().find(after).map(|_| ())
        });
        each_second_once(&decided(&api.runs(policy, "")));
        let skipped = api.runs(policy, "&state=SKIPPED");
        let missed = skipped.iter().filter(|run| run["reason"] == "misfire");
        let missed: Vec<i64> = missed
            .flat_map(|run| {
                let last = second(&run["scheduled_at"]);
                let first = match &run["stands_from"] {
                    Value::Null => last,
                    from => second(from),
                };
                first..=last
            })
            .collect();
        let outage = gone.as_second() + 1..=back.as_second();
        let inside = missed.iter().filter(|at| outage.contains(at)).count();
        assert!(
            inside >= at_least,
            "{policy}: {inside} of {outage:?}, {missed:?}"
        );
        if policy == "all" {
            assert_eq!(skipped, [] as [Value; 0], "each one ran");
        }
    }
}

/// U24: two people put the same job at the same time, with different phases. What stands is one of
/// them, and nothing of the other one fires behind it.
#[test]
fn u24_two_puts_at_once_leave_one_schedule() {
    let place = Place::new();
    let (_node, api) = node(&place, "log");
    // Every three seconds, from another second on.
    let spec = |phase: u32| {
        json!({
            "schedule": { "every": "3s", "start": format!("2026-01-01T00:00:0{phase}Z") },
            "run": { "command": ["true"] },
            "history": { "keep_success": 100 },
        })
    };
    let jobs: Vec<String> = (0..8).map(|n| format!("job-{n}")).collect();
    for job in &jobs {
        std::thread::scope(|scope| {
            for phase in 0..3 {
                let (api, spec) = (&api, spec(phase));
                scope.spawn(move || put(api, job, &spec));
            }
        });
    }
    let last = jobs.last().unwrap();
    wait_for("a few instants", || {
        (api.runs(last, "&state=SUCCESS").len() >= 3).then_some(())
    });
    for job in &jobs {
        let shown = api.get(&format!("/v1/jobs/{job}"));
        let start = shown["spec"]["schedule"]["start"].as_str().unwrap();
        let phase: i64 = start["2026-01-01T00:00:0".len()..][..1].parse().unwrap();
        assert_eq!(second(&shown["next_at"]) % 3, phase % 3, "{shown}");
        let runs = api.runs(job, "");
        let since = shown["updated_at"].as_str();
        let behind = runs
            .iter()
            .filter(|run| run["scheduled_at"].as_str() > since);
        let behind: Vec<i64> = behind.map(|run| second(&run["scheduled_at"])).collect();
        assert!(!behind.is_empty(), "{runs:?}");
        assert!(behind.iter().all(|at| at % 3 == phase % 3), "{behind:?}");
        let each: BTreeSet<_> = behind.iter().collect();
        assert_eq!(each.len(), behind.len(), "{behind:?}");
    }
}

/// V04: while somebody leads, no job's next instant lies in the past. When nobody does, the instants
/// that nobody decides are counted, in the status and as a metric.
#[test]
fn v04_a_next_instant_in_the_past_does_not_pass_unnoticed() {
    let place = Place::new();
    let (_node, api) = node(&place, "log");
    for (id, schedule) in [
        ("each", json!({ "every": "1s" })),
        ("cron", json!({ "cron": "*/2 * * * * *" })),
        ("rest", json!({ "after_finish": "1s" })),
        ("rare", json!({ "cron": "0 0 29 2 *" })),
    ] {
        let spec = json!({ "schedule": schedule, "run": { "command": ["true"] } });
        put(&api, id, &spec);
    }
    for _ in 0..40 {
        let before = jiff::Timestamp::now();
        let jobs = api.get("/v1/jobs");
        for job in jobs["items"].as_array().unwrap() {
            // A chain has no next instant while its run is not finished.
            let Some(next) = job["next_at"].as_str() else {
                assert_eq!(job["spec"]["id"], "rest", "{job}");
                continue;
            };
            let next: jiff::Timestamp = next.parse().unwrap();
            let late = before.duration_since(next).as_millis();
            assert!(late <= 1_000, "{late} ms: {job}");
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let nodes = place.run(&["node", "ls", "-o", "name"]).ok();
    place.run(&["node", "drain", nodes.trim()]).ok();
    wait_for("a count of what is not decided", || {
        let status = api.get("/v1/status");
        (status["undecided_instants"].as_u64() > Some(0)).then_some(())
    });
    wait_for("the metric", || {
        let metrics = api.ask("GET", "/metrics", &[], "").body;
        let line = "scheduler_undecided_instants ";
        let count = metrics.lines().find_map(|text| text.strip_prefix(line));
        count.filter(|count| *count != "0").map(drop)
    });
}
