//! A node and its clients.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::{Place, Running, mode, wait_for};

const JOBS: &str = r#"
jobs:
  - id: tick
    schedule: { every: 1s }
    run: { command: ["sh", "-c", "echo fired; echo $PUNCTUAL_RUN_ID >> effects"] }
    history: { keep_success: 1000 }
  - id: fails
    run: { command: ["sh", "-c", "echo bad luck; exit 3"] }
  - id: hello
    run: { command: ["sh", "-c", "echo $PUNCTUAL_PAYLOAD"] }
    payload: { to: world }
  - id: daily
    schedule: { cron: "5 0 * * *", timezone: Asia/Shanghai }
    run: { command: ["true"] }
"#;

pub(crate) fn serve(place: &Place, log: &str) -> Running {
    let running = Running::start(
        place,
        log,
        &[
            "serve",
            "--store",
            "sled:data",
            "--listen",
            "127.0.0.1:0",
            "--jobs",
            "jobs.yaml",
        ],
    );
    place.wait_for_jobs();
    running
}

fn runs(place: &Place, arguments: &[&str]) -> Vec<Value> {
    let json = place
        .run(&[&["run", "ls", "-o", "json"], arguments].concat())
        .json();
    json.as_array().unwrap().clone()
}

#[test]
fn a_day_in_the_life_of_a_node() {
    let place = Place::new();
    place.write("jobs.yaml", JOBS);
    let mut node = serve(&place, "log");

    // The files it leaves are its owner's alone, and the token is shown once.
    for file in ["data/client.json", "data/tokens.json"] {
        assert_eq!(mode(&place.path(file)), 0o600, "{file}");
    }
    assert_eq!(mode(&place.path("data")), 0o700);
    let client: Value =
        serde_json::from_str(&fs::read_to_string(place.path("data/client.json")).unwrap()).unwrap();
    let token = client["token"].as_str().unwrap();
    assert_eq!(node.log().matches(token).count(), 1);
    let kept = fs::read_to_string(place.path("data/tokens.json")).unwrap();
    assert!(!kept.contains(token));

    // Tables for people: the next to fire first.
    let table = place.run(&["job", "ls"]).ok();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("NEXT"), "{table}");
    assert!(
        lines[1].contains("tick") && lines[2].contains("daily"),
        "{table}"
    );
    assert_eq!(
        place
            .run(&["job", "ls", "--no-headers"])
            .ok()
            .lines()
            .count(),
        4
    );
    let names = place.run(&["job", "ls", "-o", "name"]).ok();
    assert_eq!(
        names.lines().collect::<BTreeSet<_>>(),
        BTreeSet::from(["tick", "fails", "hello", "daily"])
    );
    assert!(
        place
            .run(&["job", "show", "daily"])
            .ok()
            .contains("5 0 * * * Asia/Shanghai")
    );
    let shown = place.run(&["job", "show", "tick"]).ok();
    for line in [
        "Overlap: allow",
        "Misfire: latest",
        "Catch up: 10m",
        "Retry: no, 1 attempt",
        "On lost: fail",
        "History: 1000 success, 50 failed, 50 skipped, for 30d",
    ] {
        assert!(shown.contains(line), "{shown}");
    }
    let yaml = place.run(&["job", "show", "daily", "-o", "yaml"]).ok();
    assert!(yaml.contains("timezone: Asia/Shanghai"), "{yaml}");

    // JSON for programs.
    wait_for("two fires", || {
        (runs(&place, &["--job", "tick", "--state", "success"]).len() >= 2).then_some(())
    });
    let tick = &runs(
        &place,
        &["--job", "tick", "--state", "SUCCESS", "--limit", "1"],
    )[0];
    assert_eq!(
        (&tick["output_tail"], &tick["exit_code"]),
        (&"fired\n".into(), &0.into())
    );

    // On demand, with the job's payload or another one.
    let done = place
        .run(&["job", "trigger", "hello", "--wait", "-o", "json"])
        .json();
    assert_eq!(
        (&done["state"], &done["output_tail"]),
        (&"SUCCESS".into(), &"{\"to\":\"world\"}\n".into())
    );
    let done = place.run(&[
        "job",
        "trigger",
        "hello",
        "--payload",
        "[1]",
        "--wait",
        "-o",
        "json",
    ]);
    assert_eq!(done.json()["output_tail"], "[1]\n");
    place
        .run(&["job", "trigger", "hello", "--payload", "{"])
        .fails(2, "--payload is not JSON");
    let failed = place.run(&["job", "trigger", "fails", "--wait"]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.out.contains("bad luck"), "{failed:?}");
    let keyed = |key: &str| {
        let arguments = [
            "job",
            "trigger",
            "hello",
            "--idempotency-key",
            key,
            "-o",
            "name",
        ];
        place.run(&arguments).ok()
    };
    assert_eq!(keyed("one"), keyed("one"));
    assert_ne!(keyed("one"), keyed("two"));

    // Everything has its exit code.
    place
        .run(&["job", "show", "nope"])
        .fails(3, "there is no job `nope`");
    place.run(&["run", "show", "nope"]).fails(3, "");
    place
        .run(&["job", "pause", "daily", "--reason", "holiday"])
        .ok();
    assert!(
        place
            .run(&["job", "show", "daily"])
            .ok()
            .contains("holiday")
    );
    place.run(&["job", "trigger", "daily"]).fails(4, "paused");
    assert_eq!(
        place
            .run(&["job", "pause", "daily", "--reason", "other"])
            .ok(),
        "job daily was paused already: holiday\n"
    );
    let all = |arguments: &[&str]| {
        let arguments = [&["job"], arguments].concat();
        place.run(&arguments).ok()
    };
    let jobs = place.run(&["job", "ls", "-o", "name"]).ok().lines().count();
    let others = format!("{jobs} jobs");
    assert!(all(&["pause", "--all", "--until", "2h"]).starts_with(&format!("{others} paused")));
    assert!(all(&["show", "tick"]).contains("with all jobs"));
    assert!(all(&["resume", "--all"]).starts_with(&format!("{others} resumed")));
    let daily = place.run(&["job", "show", "daily", "-o", "json"]).json();
    assert_eq!(daily["state"], "paused");
    assert_eq!(daily["paused"]["reason"], "holiday");
    place
        .run(&["job", "pause", "tick", "--until", "2020-01-01T00:00:00Z"])
        .fails(2, "this time has passed");
    place.run(&["job", "pause"]).fails(2, "<JOB>");
    place.run(&["job", "resume", "daily"]).ok();
    assert_eq!(
        place.run(&["job", "resume", "daily"]).ok(),
        "job daily is not paused\n"
    );
    let ended = tick["run_id"].as_str().unwrap();
    place.run(&["run", "cancel", ended]).fails(4, "");
    place.write("wrong", "pt_wrong\n");
    place
        .run(&["job", "ls", "--token-file", "wrong"])
        .fails(5, "the token is not valid");
    let status = place.run(&["status", "-o", "json"]).json();
    assert_eq!(
        (&status["jobs"], &status["undecided_instants"]),
        (&4.into(), &0.into())
    );

    // A second server keeps away from the directory.
    place
        .run(&["serve", "--store", "sled:data", "--listen", "127.0.0.1:0"])
        .fails(2, "another punctual server is using this directory");
    let port = client["url"].as_str().unwrap().rsplit(':').next().unwrap();
    let listen = format!("127.0.0.1:{port}");
    place
        .run(&["serve", "--store", "sled:other", "--listen", &listen])
        .fails(2, "is a server running already?");

    // It ends in good order, and comes back as it was.
    node.signal(Signal::TERM);
    assert_eq!(node.wait().code(), Some(0), "{}", node.log());
    place.run(&["job", "ls"]).fails(6, "punctual serve");
    place
        .run(&["job", "ls", "--data-dir", "data"])
        .fails(6, "punctual serve");
    let effects = fs::read_to_string(place.path("effects")).unwrap();
    let node = serve(&place, "log2");
    assert!(!node.log().contains("admin token"), "{}", node.log());
    let records = runs(&place, &["--job", "tick", "--state", "SUCCESS"]);
    let ids: BTreeSet<&str> = records
        .iter()
        .map(|r| r["run_id"].as_str().unwrap())
        .collect();
    assert!(effects.lines().all(|run| ids.contains(run)));
}

#[test]
fn applying_changes_what_differs_and_nothing_else() {
    let place = Place::new();
    place.write("jobs.yaml", JOBS);
    let _node = serve(&place, "log");
    place.run(&["diff", "-f", "jobs.yaml"]).ok();
    let changed =
        JOBS.replace("5 0 * * *", "6 0 * * *") + "  - id: new\n    run: { command: [\"true\"] }\n";
    place.write("changed.yaml", changed);
    let diff = place.run(&["diff", "-f", "changed.yaml"]);
    assert_eq!(diff.code, Some(1));
    assert_eq!(
        diff.out,
        "+ new\n~ daily\n    schedule.cron: 5 0 * * * -> 6 0 * * *\n"
    );
    let dry = place
        .run(&["apply", "-f", "changed.yaml", "--dry-run", "-o", "json"])
        .json();
    assert_eq!(
        (&dry["created"][0], &dry["updated"][0]),
        (&"new".into(), &"daily".into())
    );
    place.run(&["job", "show", "new"]).fails(3, "new");
    let applied = place.run(&["apply", "-f", "changed.yaml"]).ok();
    assert!(
        applied.ends_with("1 job created, 1 updated, 3 unchanged, 0 deleted\n"),
        "{applied}"
    );
    place.run(&["diff", "-f", "changed.yaml"]).ok();
    let less = place.run(&["diff", "-f", "jobs.yaml"]);
    assert!(less.err.contains("the server has new"), "{}", less.err);
    let pruned = place.run(&["apply", "-f", "jobs.yaml", "--prune"]).ok();
    assert!(pruned.contains("job new deleted\n"), "{pruned}");
    place.write("empty.yaml", "jobs: []\n");
    place
        .run(&["apply", "-f", "empty.yaml", "--prune"])
        .fails(2, "would delete every job");
    place.run(&["job", "rm", "daily", "--yes"]).ok();
    place
        .run(&["job", "rm", "daily", "--yes"])
        .fails(3, "daily");
}

/// Q02: whoever may define jobs decides when something runs; what runs is decided by the files
/// on the node's own disk.
#[test]
fn a_command_that_the_node_does_not_know_is_not_run() {
    let place = Place::new();
    place.write(
        "jobs.yaml",
        format!("commands: {{ greet: [echo, hi] }}\n{JOBS}"),
    );
    let node = serve(&place, "log");
    place.write(
        "foreign.yaml",
        "jobs:\n  - id: evil\n    run: { command: [\"touch\", \"evil\"] }\n  - id: greet\n    run: { command: greet }\n",
    );
    let applied = place.run(&["apply", "-f", "foreign.yaml"]);
    assert!(
        applied
            .err
            .contains("warning: evil: this node would not run it"),
        "{applied:?}"
    );
    assert!(!applied.err.contains("greet"), "{applied:?}");
    let greeted = place
        .run(&["job", "trigger", "greet", "--wait", "-o", "json"])
        .json();
    assert_eq!(greeted["output_tail"], "hi\n");
    place.run(&["job", "trigger", "evil"]).ok();
    // What was asked for later has run long ago.
    place.run(&["job", "trigger", "greet", "--wait"]).ok();
    assert!(!place.path("evil").exists());

    // The files change: SIGHUP reads them again, and mistakes in them change nothing.
    place.write("jobs.yaml", "jobs:\n  - id: evil\n    run: {}\n");
    node.signal(Signal::HUP);
    wait_for("the refusal", || {
        node.log()
            .contains("the job files stay as they were")
            .then_some(())
    });
    let found = |place: &Place| {
        let report: Value =
            serde_json::from_str(&place.run(&["doctor", "-o", "json"]).out).unwrap();
        let checks = report["checks"].as_array().unwrap().iter();
        let mut checks = checks.filter(|check| check["check"] == "job files");
        checks.next().unwrap().clone()
    };
    // Nobody has to read the log for it.
    let check = found(&place);
    assert_eq!(check["verdict"], "problem", "{check}");
    assert!(check["detail"].to_string().contains("evil"), "{check}");
    let status = place.run(&["status"]).ok();
    assert!(status.contains("are refused"), "{status}");
    // What only the cluster can refuse is no different.
    place.write(
        "jobs.yaml",
        "jobs:\n  - id: later\n    run: { command: [\"true\"] }\n    after: [nobody]\n",
    );
    node.signal(Signal::HUP);
    wait_for("the refusal by the cluster", || {
        let check = found(&place);
        let said = check["detail"].to_string().contains("nobody");
        (said && check["verdict"] == "problem").then_some(())
    });
    place.write(
        "jobs.yaml",
        "jobs:\n  - id: later\n    run: { command: [\"touch\", \"later\"] }\n",
    );
    node.signal(Signal::HUP);
    wait_for("the new job", || {
        (place.run(&["job", "show", "later"]).code == Some(0)).then_some(())
    });
    place.run(&["job", "trigger", "later", "--wait"]).ok();
    assert!(place.path("later").exists());
    wait_for("the mended files", || {
        (found(&place)["verdict"] == "ok").then_some(())
    });
    let status = place.run(&["status"]).ok();
    assert!(!status.contains("refused"), "{status}");
    // What went out of the files is still there, and nobody would run it.
    wait_for("the warning", || {
        let log = node.log();
        (log.contains("still in the store") && log.contains("tick")).then_some(())
    });
}

/// The first thing that people do: change the file that the node was started with, and apply it.
#[test]
fn the_nodes_own_file_may_be_edited_and_applied() {
    let place = Place::new();
    let write = |word: &str| {
        place.write(
            "jobs.yaml",
            format!("jobs:\n  - id: hello\n    run: {{ command: [echo, {word}] }}\n"),
        );
    };
    write("one");
    let node = serve(&place, "log");
    write("two");
    let applied = place.run(&["apply", "-f", "jobs.yaml"]);
    assert!(!applied.err.contains("warning"), "{applied:?}");
    let done = place
        .run(&["job", "trigger", "hello", "--wait", "-o", "json"])
        .json();
    assert_eq!(done["output_tail"], "two\n");
    // Another file declares nothing, and the warning says what would.
    place.write(
        "other.yaml",
        "jobs:\n  - id: hello\n    run: { command: [echo, three] }\n",
    );
    let applied = place.run(&["apply", "-f", "other.yaml"]);
    let kill = format!("kill -HUP {}", node.child.id());
    assert!(applied.err.contains(&kill), "{applied:?}");
    // A job of the node's own files comes back.
    let removed = place.run(&["job", "rm", "hello", "--yes"]);
    assert_eq!(removed.out, "job hello deleted\n", "{removed:?}");
    assert!(removed.err.contains("it comes back with"), "{removed:?}");
}

#[test]
fn waiting_ends_with_the_timeout_and_attempts_are_counted() {
    let place = Place::new();
    place.write(
        "jobs.yaml",
        "jobs:\n  - id: long\n    run: { command: [sleep, \"60\"] }\n  - id: twice\n    \
         run: { command: [\"false\"] }\n    retry: { attempts: 2, backoff: 100ms }\n",
    );
    let _node = serve(&place, "log");
    let started = Instant::now();
    let waited = place.run(&["job", "trigger", "long", "--wait", "--timeout", "1s"]);
    assert!(waited.err.contains("punctual run show"), "{waited:?}");
    waited.fails(7, "it goes on");
    assert!(started.elapsed() < Duration::from_secs(10));
    let failed = place.run(&["job", "trigger", "twice", "--wait"]);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    let listed = place.run(&["run", "ls"]);
    assert_eq!(listed.err, "2 runs, 3 attempts listed\n", "{listed:?}");
}

#[test]
fn a_second_signal_stops_at_once() {
    let place = Place::new();
    place.write(
        "jobs.yaml",
        "jobs:\n  - id: long\n    run: { command: [\"sleep\", \"60\"] }\n",
    );
    let mut node = serve(&place, "log");
    let run = place.run(&["job", "trigger", "long", "-o", "name"]).ok();
    wait_for("the run", || {
        let shown = place.run(&["run", "show", run.trim(), "-o", "json"]).json();
        (shown["state"] == "RUNNING").then_some(())
    });
    node.signal(Signal::INT);
    wait_for("the message", || {
        node.log().contains("stops at once").then_some(())
    });
    let started = Instant::now();
    node.signal(Signal::INT);
    assert_eq!(node.wait().code(), Some(130));
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn the_store_can_be_taken_out_and_put_back() {
    let place = Place::new();
    place.write("jobs.yaml", JOBS);
    let mut node = serve(&place, "log");
    place
        .run(&["store", "export", "--store", "sled:data"])
        .fails(2, "another punctual server is using this directory");
    // Something is decided, so that there is a moment to name.
    wait_for("a fire", || {
        (!runs(&place, &["--job", "tick"]).is_empty()).then_some(())
    });
    node.signal(Signal::TERM);
    node.wait();
    let dump = place.run(&["store", "export", "--store", "sled:data"]).ok();
    place
        .run(&["store", "export", "--store", "sled:data", "dump.jsonl"])
        .ok();
    assert_eq!(fs::read_to_string(place.path("dump.jsonl")).unwrap(), dump);
    assert_eq!(mode(&place.path("dump.jsonl")), 0o600);
    place
        .run(&["store", "import", "--store", "sled:data", "dump.jsonl"])
        .fails(2, "not empty");
    place
        .run(&["store", "export", "--store", "sled:none"])
        .fails(2, "no database here");
    // What fails leaves nothing that the next try trips over.
    place
        .run(&["store", "export", "--store", "sled:none", "second.jsonl"])
        .fails(2, "no database here");
    assert!(!place.path("second.jsonl").exists());
    place
        .run(&["store", "export", "--store", "sled:data", "dump.jsonl"])
        .fails(2, "exists");
    fs::rename(place.path("data"), place.path("old")).unwrap();
    let cut = dump.lines().take(20).collect::<Vec<_>>().join("\n");
    place.write("cut.jsonl", format!("{cut}\n{{\"key\":"));
    place
        .run(&["store", "import", "--store", "sled:data", "cut.jsonl"])
        .fails(2, "line 21");
    assert!(!place.path("data").exists());
    let imported = place.run(&["store", "import", "--store", "sled:data", "dump.jsonl"]);
    assert_eq!(imported.code, Some(0), "{imported:?}");
    assert!(
        imported
            .err
            .contains("can run twice: look at what ran\n  since 2"),
        "{imported:?}"
    );
    place.write("jobs.yaml", JOBS);
    let _node = serve(&place, "log2");
    assert_eq!(
        place.run(&["job", "ls", "-o", "name"]).ok().lines().count(),
        4
    );
    // Revisions repeat in a restored store, but whoever keeps the largest fencing token must not take
    // a new run for an old one.
    let shown = place
        .run(&["job", "trigger", "hello", "--wait", "-o", "json"])
        .ok();
    let run: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let token: u64 = run["fencing_token"].as_str().unwrap().parse().unwrap();
    assert!(token >= 1 << 56, "{run}");
}

#[test]
fn the_demo_shows_fires_within_seconds_and_cleans_up() {
    let place = Place::new();
    let temporary = place.path("tmp");
    fs::create_dir(&temporary).unwrap();
    let started = Instant::now();
    let mut child = place
        .command(&["demo"])
        .env("TMPDIR", &temporary)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let row = lines
        .find(|line| line.as_ref().unwrap().contains("tick"))
        .unwrap()
        .unwrap();
    assert!(row.contains("SUCCESS") && row.contains("it is "), "{row}");
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );
    let ids = place.run(&["job", "ls", "-o", "name"]).ok();
    assert_eq!(ids.lines().count(), 4, "{ids}");
    let made = fs::read_dir(&temporary).unwrap().next().unwrap().unwrap();
    for secret in [made.path(), made.path().join("spool")] {
        assert_eq!(mode(&secret), 0o700, "{}", secret.display());
    }
    let mut demo = Running {
        child,
        log: place.path("unused"),
    };
    demo.signal(Signal::INT);
    assert_eq!(demo.wait().code(), Some(0));
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}

#[test]
fn a_node_is_drained_and_let_go() {
    let place = Place::new();
    place.write("jobs.yaml", JOBS);
    let _node = serve(&place, "log");
    let nodes = place.run(&["node", "ls", "-o", "json"]).json();
    let id = nodes[0]["node"].as_str().unwrap().to_owned();
    assert_eq!(
        (&nodes[0]["drained"], &nodes[0]["leader"]),
        (&false.into(), &true.into())
    );

    let drained = place.run(&["node", "drain", &id, "--reason", "new disk", "-o", "json"]);
    assert_eq!(drained.code, Some(0), "{}", drained.err);
    assert!(drained.err.contains("no node is left"), "{}", drained.err);
    let drained = drained.json();
    assert_eq!(
        (&drained["changed"], &drained["reason"]),
        (&true.into(), &"new disk".into())
    );
    let again = place.run(&["node", "drain", &id]);
    assert!(again.out.contains("was drained already"), "{}", again.out);
    wait_for("the leader to resign", || {
        let status = place.run(&["status", "-o", "json"]).json();
        (status["leader"].is_null() && status["nodes"][0]["drained"] == true).then_some(())
    });
    let effects = || fs::read_to_string(place.path("effects")).unwrap_or_default();
    std::thread::sleep(Duration::from_millis(500));
    let before = effects();
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(effects(), before, "it takes no work");

    let free = place.run(&["node", "undrain", &id]);
    assert!(free.out.contains("takes work again"), "{}", free.out);
    wait_for("work", || (effects().len() > before.len()).then_some(()));
    let unknown = place.run(&["node", "drain", "nobody"]);
    assert_eq!(unknown.code, Some(3), "{}", unknown.err);
    assert!(unknown.err.contains("no node `nobody`"), "{}", unknown.err);
}
