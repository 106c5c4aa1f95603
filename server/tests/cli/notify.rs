//! News of runs, to a real receiver: signed, again after a refusal and after a crash, under one name.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::examples::{becomes, example, trigger};
use crate::receiver::{Request, read};
use crate::{Place, Running, wait_for};

const SECRET: &[u8] = b"the secret of the test";

fn id(request: &Request) -> &str {
    request.header("punctual-event-id")
}

/// Answers each request as told: a status, or nothing at all (`None`).
struct Receiver {
    port: u16,
    got: Arc<Mutex<Vec<Request>>>,
    answers: Arc<Mutex<Option<u16>>>,
}

impl Receiver {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let got: Arc<Mutex<Vec<Request>>> = Arc::default();
        let answers = Arc::new(Mutex::new(Some(500)));
        let (inbox, mood) = (Arc::clone(&got), Arc::clone(&answers));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (inbox, mood) = (Arc::clone(&inbox), Arc::clone(&mood));
                std::thread::spawn(move || serve(stream.unwrap(), &inbox, &mood));
            }
        });
        Self { port, got, answers }
    }

    fn answers(&self, with: Option<u16>) {
        *self.answers.lock().unwrap() = with;
    }

    fn got(&self, path: &str) -> Vec<Request> {
        let got = self.got.lock().unwrap();
        got.iter().filter(|r| r.path == path).cloned().collect()
    }
}

fn serve(mut stream: TcpStream, inbox: &Mutex<Vec<Request>>, mood: &Mutex<Option<u16>>) {
    let Some(request) = read(&mut stream) else {
        return;
    };
    inbox.lock().unwrap().push(request);
    let answer = *mood.lock().unwrap();
    match answer {
        Some(status) => {
            let _ = write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n");
        }
        None => std::thread::sleep(Duration::from_secs(60)),
    }
}

/// As a receiver would write it: HMAC-SHA-256 with a short key.
fn signature(timestamp: &str, body: &[u8]) -> String {
    let pad = |with: u8| {
        let mut block = [with; 64];
        for (byte, key) in block.iter_mut().zip(SECRET) {
            *byte ^= key;
        }
        block
    };
    let text = [timestamp.as_bytes(), b".", body].concat();
    let inner = Sha256::digest([&pad(0x36)[..], &text].concat());
    let outer = Sha256::digest([&pad(0x5c)[..], &inner[..]].concat());
    let hex: String = outer.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={hex}")
}

/// A node that may call these ports of this machine.
fn node(place: &Place, log: &str, ports: &[u16]) -> Running {
    node_with(place, log, ports, &[])
}

/// With these options besides.
fn node_with(place: &Place, log: &str, ports: &[u16], options: &[&str]) -> Running {
    // What an earlier life left behind names another port.
    let _ = fs::remove_file(place.path("data/client.json"));
    let mut arguments = vec![
        "serve",
        "--store",
        "sled:data",
        "--listen",
        "127.0.0.1:0",
        "--jobs",
        "jobs.yaml",
        "--notify-secret-file",
        "secret",
    ];
    let allow = ports.iter().map(|port| format!("http://127.0.0.1:{port}"));
    let allow: Vec<String> = allow.collect();
    for allow in &allow {
        arguments.extend(["--notify-allow", allow.as_str()]);
    }
    arguments.extend(options);
    let running = Running::start(place, log, &arguments);
    place.wait_for_jobs();
    running
}

#[test]
fn news_arrive_signed_and_once_more_after_trouble() {
    let place = Place::new();
    let receiver = Receiver::new();
    let port = receiver.port;
    // Another one never answers, and holds nobody up.
    let deaf = Receiver::new();
    deaf.answers(None);
    let good = place.path("good").display().to_string();
    place.write("secret", [SECRET, b"\n"].concat());
    place.write(
        "jobs.yaml",
        format!(
            r#"
jobs:
  - id: shaky
    run: {{ command: ["sh", "-c", "test -e {good}"] }}
    notify:
      - {{ webhook: "http://127.0.0.1:{port}/all", on: [failed, recovered] }}
      - {{ webhook: "http://127.0.0.1:{port}/good", on: [recovered] }}
      - {{ webhook: "http://127.0.0.1:{}/deaf", on: [failed] }}
  - id: nobody
    queue: none
    run: {{ command: ["true"] }}
    notify: [{{ webhook: "http://127.0.0.1:{port}/late", on: [late], late_after: 1s }}]
"#,
            deaf.port
        ),
    );
    let ports = [port, deaf.port];
    let mut first = node(&place, "log", &ports);
    place.run(&["job", "trigger", "shaky"]).ok();
    // Refused twice, then not answered while the node dies.
    wait_for("two tries", || {
        (receiver.got("/all").len() >= 2).then_some(())
    });
    wait_for("the try that hangs from the start", || {
        deaf.got("/deaf").pop()
    });
    receiver.answers(None);
    let tries = receiver.got("/all").len();
    wait_for("a try that hangs", || {
        (receiver.got("/all").len() > tries).then_some(())
    });
    first.signal(Signal::KILL);
    first.wait();
    receiver.answers(Some(204));
    let before = receiver.got("/all").len();
    let second = node(&place, "log2", &ports);
    let told = wait_for("the news after the crash", || {
        let got = receiver.got("/all");
        (got.len() > before).then_some(got)
    });
    for copy in &told {
        assert_eq!((id(copy), &copy.body), (id(&told[0]), &told[0].body));
        let signed = signature(copy.header("punctual-timestamp"), &copy.body);
        assert_eq!(copy.header("punctual-signature"), signed);
        assert_eq!(copy.header("content-type"), "application/json");
    }
    let news = told[0].json();
    assert_eq!(
        (&news["event"], &news["job_id"]),
        (&"failed".into(), &"shaky".into())
    );
    assert_eq!(news["id"], id(&told[0]));
    assert_eq!(news["run"]["state"], "FAILED", "{news}");
    assert_eq!(news["run"]["exit_code"], 1, "{news}");
    assert!(receiver.got("/good").is_empty(), "nothing has recovered");

    // Whoever waits in vain for a node is late.
    place.run(&["job", "trigger", "nobody"]).ok();
    let late = wait_for("the news of a late run", || receiver.got("/late").pop());
    assert_eq!(late.json()["event"], "late");
    assert_eq!(late.json()["run"]["state"], "PENDING");

    // Once taken it is told no more, although the other receiver is asked again and again; then the job
    // recovers, once.
    let doctor = place.run(&["doctor", "-o", "json"]);
    assert!(doctor.out.contains("2 jobs tell"), "{}", doctor.out);
    let tries = deaf.got("/deaf").len();
    wait_for("one more try that hangs", || {
        (deaf.got("/deaf").len() > tries).then_some(())
    });
    assert_eq!(receiver.got("/all").len(), before + 1, "told again");
    let ids = deaf.got("/deaf").into_iter().map(|r| id(&r).to_owned());
    let ids: BTreeSet<String> = ids.collect();
    assert_eq!(ids.into_iter().collect::<Vec<_>>(), [id(&told[0])]);
    let told = receiver.got("/all").len();
    place.write("good", "");
    let good = wait_for("the recovery", || {
        place.run(&["job", "trigger", "shaky"]).ok();
        std::thread::sleep(Duration::from_millis(500));
        receiver.got("/good").pop()
    });
    let all = wait_for("the other receiver", || {
        let got = receiver.got("/all");
        (got.len() > told).then(|| got[got.len() - 1].clone())
    });
    assert_eq!(good.json()["event"], "recovered");
    assert_eq!((id(&good), &good.body), (id(&all), &all.body));
    place.run(&["job", "trigger", "shaky"]).ok();
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(
        receiver.got("/good").len(),
        1,
        "a second success is no news"
    );
    assert_eq!(receiver.got("/late").len(), 1, "late is told once");

    // Logs say who does not answer, and neither secret: a path may be one, too.
    let logs = [first.log(), second.log()].concat();
    assert!(logs.contains("could not be told"), "{logs}");
    for secret in [std::str::from_utf8(SECRET).unwrap(), "/all", "/deaf"] {
        assert!(!logs.contains(secret), "{secret}: {logs}");
    }
}

/// The example of `docs/jobs.md`, as it stands there but for the addresses: each receiver's host is that
/// of a listener on this machine, and so without encryption. Its `true` is a program of this test. (Ten
/// minutes, after which its run would be late, are too long for a test.)
#[test]
fn the_example_of_who_is_told() {
    let place = Place::new();
    let (hooks, pager) = (Receiver::new(), Receiver::new());
    hooks.answers(Some(204));
    pager.answers(Some(204));
    let mut jobs = example("## Who is told");
    for (host, port) in [
        ("hooks.example.org", hooks.port),
        ("pager.example.org", pager.port),
    ] {
        let before = format!("\"https://{host}/");
        assert_eq!(jobs.matches(&before).count(), 1, "{jobs}");
        jobs = jobs.replace(&before, &format!("\"http://127.0.0.1:{port}/"));
    }
    place.write("jobs.yaml", jobs);
    place.write("secret", SECRET);
    fs::create_dir(place.path("bin")).unwrap();
    let program = |text: &str| {
        place.write("bin/true.new", format!("#!/bin/sh\n{text}\n"));
        let new = place.path("bin/true.new");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, place.path("bin/true")).unwrap();
    };
    let quick = [
        "--session-ttl",
        "2s",
        "--leader-ttl",
        "2s",
        "--lost-grace",
        "8s",
    ];
    let ports = [hooks.port, pager.port];
    let mut first = node_with(&place, "log", &ports, &quick);
    // Each is told once or more, under one id.
    let mut seen = BTreeSet::new();
    let mut news = || {
        let next = wait_for("the news", || {
            let mut got = hooks.got("/nightly").into_iter();
            got.find(|request| !seen.contains(id(request)))
        });
        seen.insert(id(&next).to_owned());
        let signed = signature(next.header("punctual-timestamp"), &next.body);
        assert_eq!(next.header("punctual-signature"), signed);
        next.json()
    };
    let told = |news: &Value, event: &str, run: &str| {
        assert_eq!(
            (&news["event"], &news["job_id"]),
            (&event.into(), &"nightly".into())
        );
        assert_eq!(news["run"]["run_id"], run, "{news}");
    };

    program("exit 3");
    let failed = trigger(&place, "nightly");
    becomes(&place, &failed, "FAILED");
    let failure = news();
    told(&failure, "failed", &failed);
    assert_eq!(failure["run"]["exit_code"], 3, "{failure}");

    program("exit 0");
    let good = trigger(&place, "nightly");
    becomes(&place, &good, "SUCCESS");
    told(&news(), "recovered", &good);
    assert!(pager.got("/lost").is_empty(), "nothing is lost");

    // Who asks for `lost` hears that; who does not, hears that it failed.
    program("exec sleep 60");
    let lost = trigger(&place, "nightly");
    becomes(&place, &lost, "RUNNING");
    first.signal(Signal::KILL);
    first.wait();
    let _second = node_with(&place, "log2", &ports, &quick);
    let shown = becomes(&place, &lost, "FAILED");
    assert_eq!(shown["reason"], "worker_lost", "{shown}");
    told(&news(), "failed", &lost);
    let paged = wait_for("the page", || pager.got("/lost").pop());
    told(&paged.json(), "lost", &lost);
}

/// Q06: a job file alone cannot make the server call anybody.
#[test]
fn a_receiver_that_nobody_allowed_is_refused() {
    let place = Place::new();
    place.write(
        "jobs.yaml",
        "jobs:\n  - id: a\n    run: { command: [\"true\"] }\n",
    );
    let receiver = Receiver::new();
    place.write("secret", SECRET);
    let _node = node(&place, "log", &[9]);
    for url in [
        format!("http://127.0.0.1:{}/x", receiver.port),
        "http://169.254.169.254/latest/meta-data".to_owned(),
        "https://example.org/".to_owned(),
    ] {
        let text = format!(
            "jobs:\n  - id: a\n    run: {{ command: [\"true\"] }}\n    \
             notify: [{{ webhook: \"{url}\", on: [failed] }}]\n"
        );
        place.write("other.yaml", text);
        place
            .run(&["apply", "-f", "other.yaml"])
            .fails(2, "--notify-allow");
    }
    place.write("wrong.yaml", "jobs:\n  - id: a\n    run: { command: [\"true\"] }\n    notify: [{ webhook: \"https://a.org/\", on: [faild] }]\n");
    let checked = place.run(&["check", "wrong.yaml"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(
        checked.out.contains("did you mean `failed`?"),
        "{checked:?}"
    );
    assert!(receiver.got("/x").is_empty());
}
