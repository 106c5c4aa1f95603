//! Several nodes on one etcd: a real one.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use punctual_tests::etcd::Etcd;
use rustix::process::Signal;
use serde_json::Value;

use crate::{Ended, Place, Running, wait_for};

const JOBS: &str = r#"
jobs:
  - id: tick
    schedule: { every: 1s }
    run: { command: ["sh", "-c", "echo $PUNCTUAL_RUN_ID >> effects"] }
    history: { keep_success: 1000 }
"#;

fn node(place: &Place, name: &str, store: &str, more: &[&str]) -> Running {
    let arguments = [
        "serve",
        "--store",
        store,
        "--data-dir",
        name,
        "--node-id",
        name,
        "--listen",
        "127.0.0.1:0",
    ];
    Running::start(place, &format!("{name}.log"), &[&arguments, more].concat())
}

fn ask(place: &Place, node: &str, arguments: &[&str]) -> Ended {
    place.run(&[arguments, &["--data-dir", node]].concat())
}

fn json(place: &Place, node: &str, arguments: &[&str]) -> Option<Value> {
    let ended = ask(place, node, &[arguments, &["-o", "json"]].concat());
    (ended.code == Some(0)).then(|| ended.json())
}

/// The one leader that a node sees, once it sees so many nodes.
fn leader(place: &Place, node: &str, nodes: usize) -> String {
    wait_for("a leader", || {
        let status = json(place, node, &["status"])?;
        let seen = status["nodes"].as_array()?;
        let leaders = seen.iter().filter(|node| node["leader"] == true).count();
        (seen.len() == nodes && leaders == 1)
            .then(|| status["leader"].as_str().map(str::to_owned))?
    })
}

fn ticks(place: &Place, node: &str) -> Vec<Value> {
    let runs = json(place, node, &["run", "ls", "--job", "tick"]);
    runs.map_or_else(Vec::new, |runs| runs.as_array().unwrap().clone())
}

fn succeeded(place: &Place, node: &str) -> usize {
    let done = |run: &&Value| run["state"] == "SUCCESS";
    ticks(place, node).iter().filter(done).count()
}

/// One run for every second between the first and the last, one effect for every run that
/// succeeded, and no other.
fn check_exactly_once(place: &Place, runs: &[Value]) {
    let mut at: Vec<String> = runs
        .iter()
        .map(|run| run["scheduled_at"].as_str().unwrap().to_owned())
        .collect();
    at.sort();
    let ms = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_millisecond();
    for pair in at.windows(2) {
        assert_eq!(ms(&pair[1]) - ms(&pair[0]), 1_000, "{pair:?}");
    }
    let effects = fs::read_to_string(place.path("effects")).unwrap();
    let ids: BTreeSet<&str> = effects.lines().collect();
    assert_eq!(ids.len(), effects.lines().count(), "an effect twice");
    for run in runs.iter().filter(|run| run["state"] == "SUCCESS") {
        assert!(ids.contains(run["run_id"].as_str().unwrap()), "{run}");
    }
}

#[test]
fn two_nodes_share_the_work_and_the_death_of_the_leader_loses_no_instant() {
    let etcd = Etcd::start();
    let place = Place::new();
    place.write("jobs.yaml", JOBS);
    let store = format!("etcd://127.0.0.1:{}/prod", etcd.port());
    let jobs = ["--jobs", "jobs.yaml"];
    let mut nodes = ["a", "b"].map(|name| (name, node(&place, name, &store, &jobs)));

    let leading = leader(&place, "a", 2);
    assert_eq!(leader(&place, "b", 2), leading);
    wait_for("fires that both nodes know of", || {
        (succeeded(&place, "a") >= 3 && succeeded(&place, "b") >= 3).then_some(())
    });
    let status = json(&place, "b", &["status"]).unwrap();
    assert!(status["store"].as_str().unwrap().starts_with("etcd 3."));

    // A directory belongs to one node.
    ask(
        &place,
        "a",
        &["serve", "--store", &store, "--listen", "127.0.0.1:0"],
    )
    .fails(2, "another punctual server is using this directory");

    let dead = nodes.iter().position(|(name, _)| *name == leading).unwrap();
    nodes[dead].1.signal(Signal::KILL);
    nodes[dead].1.wait();
    let (alive, running) = &mut nodes[1 - dead];
    let alive = *alive;
    wait_for("another leader", || {
        let status = json(&place, alive, &["status"])?;
        (status["leader"] == alive).then_some(())
    });
    let before = succeeded(&place, alive);
    wait_for("fires under the new leader", || {
        (succeeded(&place, alive) >= before + 3).then_some(())
    });
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(0), "{}", running.log());

    // What they left, as a third one sees it.
    let _third = node(&place, "c", &store, &[]);
    let runs = wait_for("the third node", || {
        let runs = ticks(&place, "c");
        (!runs.is_empty()).then_some(runs)
    });
    check_exactly_once(&place, &runs);
}

/// Passes connections on from a port to another.
fn forward(listener: TcpListener, to: u16) {
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.unwrap();
            let server = TcpStream::connect(("127.0.0.1", to)).unwrap();
            for (mut from, mut to) in [
                (client.try_clone().unwrap(), server.try_clone().unwrap()),
                (server, client),
            ] {
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
}

#[test]
fn a_node_that_starts_before_etcd_waits_and_says_so() {
    let place = Place::new();
    place.write("jobs.yaml", JOBS);
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    drop(holder);
    let store = format!("etcd://127.0.0.1:{port}");
    let mut running = node(&place, "a", &store, &["--jobs", "jobs.yaml"]);
    wait_for("the node to say that it waits", || {
        let log = running.log();
        (log.contains("waiting for it") && log.contains("onnection refused")).then_some(())
    });
    let url = wait_for("the API", || {
        let client = fs::read_to_string(place.path("a/client.json")).ok()?;
        let client: Value = serde_json::from_str(&client).ok()?;
        client["url"].as_str().map(str::to_owned)
    });
    ask(&place, "a", &["job", "ls"]).fails(6, "the store is not reachable");
    let get = |path: &str| {
        let mut stream = TcpStream::connect(url.trim_start_matches("http://")).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(get("/livez").starts_with("HTTP/1.1 200"));
    let ready = get("/readyz");
    assert!(ready.starts_with("HTTP/1.1 503"), "{ready}");
    assert!(ready.to_lowercase().contains("retry-after: "), "{ready}");

    let etcd = Etcd::start();
    forward(TcpListener::bind(("127.0.0.1", port)).unwrap(), etcd.port());
    wait_for("fires", || (succeeded(&place, "a") >= 2).then_some(()));
    assert!(get("/readyz").starts_with("HTTP/1.1 200"));
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(0), "{}", running.log());
}

#[test]
fn a_password_opens_the_store_and_a_wrong_one_ends_the_node() {
    let etcd = Etcd::start();
    let tell = |path: &str, body: &str| {
        let answer = etcd.ask("POST", path, "", body).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    };
    for user in ["root", "punctual"] {
        let user = format!(r#"{{"name":"{user}","password":"hunter2"}}"#);
        tell("/v3/auth/user/add", &user);
    }
    for role in ["root", "scheduler"] {
        tell("/v3/auth/role/add", &format!(r#"{{"name":"{role}"}}"#));
    }
    // `/prod/` up to `/prod0`, in base64: all keys of one namespace, and no others.
    tell(
        "/v3/auth/role/grant",
        r#"{"name":"scheduler","perm":{"permType":"READWRITE","key":"L3Byb2Qv","range_end":"L3Byb2Qw"}}"#,
    );
    for (user, role) in [("root", "root"), ("punctual", "scheduler")] {
        let grant = format!(r#"{{"user":"{user}","role":"{role}"}}"#);
        tell("/v3/auth/user/grant", &grant);
    }
    tell("/v3/auth/enable", "{}");

    let place = Place::new();
    place.write("jobs.yaml", JOBS);
    place.write("password", "hunter2\n");
    place.write("wrong", "hunter3\n");
    let at = |namespace: &str| format!("etcd://127.0.0.1:{}/{namespace}", etcd.port());
    let (prod, other) = (at("prod"), at("other"));
    let with = |store: &str, more: &[&str]| {
        let serve = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--data-dir",
            "x",
            "--store",
            store,
        ];
        place.run(&[&serve, more].concat())
    };
    let user = ["--etcd-user", "punctual", "--etcd-password-file"];
    with(&prod, &[]).fails(5, "it asks for a user");
    with(&prod, &[&user[..], &["wrong"]].concat()).fails(5, "wrong user or password");
    with(&other, &[&user[..], &["password"]].concat()).fails(5, "may not read our keys");

    let jobs = ["--jobs", "jobs.yaml"];
    let running = node(
        &place,
        "a",
        &prod,
        &[&user[..], &["password"], &jobs[..]].concat(),
    );
    wait_for("fires", || (succeeded(&place, "a") >= 1).then_some(()));
    assert!(!running.log().contains("hunter"), "{}", running.log());
}

#[test]
fn certificates_are_checked_on_both_sides() {
    let file = |name: &str| format!("{}/tests/cli/tls/{name}", env!("CARGO_MANIFEST_DIR"));
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    drop(holder);
    let _etcd = Etcd::start_with(&[
        "--listen-client-urls",
        &format!("{{client}},https://127.0.0.1:{port}"),
        "--client-cert-auth",
        "--trusted-ca-file",
        &file("ca.pem"),
        "--cert-file",
        &file("etcd.pem"),
        "--key-file",
        &file("etcd.key"),
    ]);
    let place = Place::new();
    place.write("jobs.yaml", JOBS);
    let (ca, cert, key) = (file("ca.pem"), file("client.pem"), file("client.key"));
    let store = format!("etcds://127.0.0.1:{port}/prod");
    let jobs = ["--jobs", "jobs.yaml"];
    let ours = ["--etcd-cert-file", &cert, "--etcd-key-file", &key];
    let trust = ["--etcd-ca-file", &ca];
    let all = [&jobs[..], &ours, &trust].concat();
    let _good = node(&place, "a", &store, &all);
    wait_for("fires", || (succeeded(&place, "a") >= 1).then_some(()));

    // One whose authority nobody here trusts, and a node that shows no certificate.
    let strangers = node(&place, "b", &store, &[&jobs[..], &ours].concat());
    let nameless = node(&place, "c", &store, &[&jobs[..], &trust].concat());
    wait_for("the refusals", || {
        let said = strangers.log().contains("UnknownIssuer");
        (said && nameless.log().contains("no endpoint answers")).then_some(())
    });
    for name in ["b", "c"] {
        ask(&place, name, &["job", "ls"]).fails(6, "the store is not reachable");
    }
}

#[test]
fn what_cannot_be_a_store_is_refused_at_once() {
    let place = Place::new();
    for (store, says) in [
        ("etcd://localhost", "not HOST:PORT"),
        ("etcd://127.0.0.1:1/No", "not a namespace"),
        ("etcd://u:p@127.0.0.1:1/x", "--etcd-user"),
        ("etcd://192.0.2.1:2379/x", "--etcd-plaintext"),
    ] {
        place.run(&["serve", "--store", store]).fails(2, says);
    }
    assert!(
        !place.path("punctual-data").exists(),
        "nothing is made for it"
    );
}
