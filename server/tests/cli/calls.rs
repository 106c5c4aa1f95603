//! Jobs that call a URL: a real receiver, asked by a real node.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::examples::{becomes, example, trigger};
use crate::http::Api;
use crate::receiver::{Request, read};
use crate::{Place, Running, wait_for};

const SECRET: &str = "the-secret-of-the-test";

/// The whole text of an answer; none: no answer, for as long as the caller waits.
type Answers = dyn Fn(&Request, usize) -> Option<String> + Send + Sync;

struct Receiver {
    port: u16,
    got: Arc<Mutex<Vec<Request>>>,
    /// The requests that were not answered, and whose sender has gone.
    given_up: Arc<Mutex<usize>>,
}

impl Receiver {
    /// Answers by what was asked, and how many requests with this path came before.
    fn new(answers: impl Fn(&Request, usize) -> Option<String> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let got: Arc<Mutex<Vec<Request>>> = Arc::default();
        let given_up: Arc<Mutex<usize>> = Arc::default();
        let answers: Arc<Answers> = Arc::new(answers);
        let (inbox, gone) = (Arc::clone(&got), Arc::clone(&given_up));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (inbox, gone) = (Arc::clone(&inbox), Arc::clone(&gone));
                let answers = Arc::clone(&answers);
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    let Some(request) = read(&mut stream) else {
                        return;
                    };
                    let before = {
                        let mut inbox = inbox.lock().unwrap();
                        let same = |other: &&Request| other.path == request.path;
                        let before = inbox.iter().filter(same).count();
                        inbox.push(request.clone());
                        before
                    };
                    match answers(&request, before) {
                        Some(answer) => {
                            let _ = stream.write_all(answer.as_bytes());
                        }
                        None => {
                            let _ = stream.read(&mut [0; 16]);
                            *gone.lock().unwrap() += 1;
                        }
                    }
                });
            }
        });
        Self {
            port,
            got,
            given_up,
        }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn got(&self, path: &str) -> Vec<Request> {
        let got = self.got.lock().unwrap();
        got.iter().filter(|r| r.path == path).cloned().collect()
    }

    fn is_given_up(&self) {
        wait_for("the end of the connection", || {
            (*self.given_up.lock().unwrap() > 0).then_some(())
        });
    }
}

fn answer(status: u16, headers: &str, body: &str) -> Option<String> {
    let length = body.len();
    Some(format!(
        "HTTP/1.1 {status} x\r\n{headers}content-length: {length}\r\n\r\n{body}"
    ))
}

/// A node that may call these, with a secret.
fn node(place: &Place, jobs: &str, allow: &[String]) -> Running {
    place.write("jobs.yaml", jobs);
    place.write("token", format!("{SECRET}\n"));
    let mut arguments = vec![
        "serve",
        "-v",
        "--store",
        "sled:data",
        "--listen",
        "127.0.0.1:0",
        "--jobs",
        "jobs.yaml",
    ];
    for allow in allow {
        arguments.extend(["--http-allow", allow.as_str()]);
    }
    let file = place.path("token").display().to_string();
    let variables = [("PUNCTUAL_SECRET_REPORT_TOKEN_FILE", file.as_str())];
    let running = Running::start_with(place, "log", &arguments, &variables);
    place.wait_for_jobs();
    running
}

/// No file below has the text in it, be it a database or a log.
fn assert_nowhere(directory: &Path, text: &str) {
    let mut files = 0;
    let mut rest = vec![directory.to_owned()];
    while let Some(path) = rest.pop() {
        if path.is_dir() {
            rest.extend(
                fs::read_dir(path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else {
            let bytes = fs::read(&path).unwrap();
            let found = bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes());
            assert!(!found, "{} has {text}", path.display());
            files += 1;
        }
    }
    assert!(files > 3, "only {files} files");
}

/// The example of `docs/jobs.md`, with its three hosts played by one receiver. Of the secret nothing is
/// left behind, although the receiver repeats it.
#[test]
fn the_example_of_calls() {
    let place = Place::new();
    let receiver = Receiver::new(|asked, before| match asked.path.as_str() {
        "/daily" if before == 0 => answer(503, "", asked.header("authorization")),
        "/daily" => answer(
            200,
            "",
            &format!("sent with {}\n", asked.header("authorization")),
        ),
        "/imports" => answer(202, "location: /imports/7\r\nretry-after: 1\r\n", ""),
        "/imports/7" if before == 0 => answer(202, "retry-after: 1\r\n", "half of it"),
        "/imports/7" => answer(200, "", "12 orders\n"),
        _ => answer(204, "", ""),
    });
    let mut jobs = example("## Calling a URL").replace("backoff: 10s", "backoff: 100ms");
    for host in ["reports", "cache", "orders"] {
        let named = format!("https://{host}.example.org");
        assert!(jobs.contains(&named), "{named}");
        jobs = jobs.replace(&named, &receiver.url());
    }
    let node = node(&place, &jobs, &[receiver.url()]);
    let run = trigger(&place, "send-report");
    let shown = becomes(&place, &run, "SUCCESS");
    assert_eq!(shown["attempt"], 2, "{shown}");
    assert_eq!(shown["output_tail"], "sent with Bearer ***\n");
    let got = receiver.got("/daily");
    let all = |name: &str| -> Vec<String> {
        got.iter()
            .map(|asked| asked.header(name).to_owned())
            .collect()
    };
    assert_eq!(all("idempotency-key"), [run.clone(), run.clone()]);
    assert_eq!(all("punctual-attempt"), ["1", "2"]);
    assert_eq!(
        all("authorization"),
        [format!("Bearer {SECRET}"), format!("Bearer {SECRET}")]
    );
    assert_eq!(all("x-team"), ["billing", "billing"]);
    let tokens: Vec<u64> = all("punctual-fencing-token")
        .iter()
        .map(|t| t.parse().unwrap())
        .collect();
    assert!(tokens[0] < tokens[1], "{tokens:?}");
    assert_eq!(shown["fencing_token"], tokens[1].to_string());
    let trace = shown["trace_id"].as_str().unwrap();
    for (asked, parent) in got.iter().zip(all("traceparent")) {
        assert_eq!(asked.method, "POST");
        assert_eq!(asked.json(), serde_json::json!({ "channel": "all" }));
        assert!(parent.starts_with(&format!("00-{trace}-")), "{parent}");
    }
    assert!(all("traceparent")[0] != all("traceparent")[1]);
    let attempts = Api::of(&place).get(&format!("/v1/runs/{run}"))["attempts"].clone();
    assert_eq!(attempts[0]["reason"], "error", "{attempts}");
    assert_eq!(attempts[0]["error"], "HTTP 503 Service Unavailable");
    assert_eq!(attempts[0]["output_tail"], "Bearer ***");

    becomes(&place, &trigger(&place, "refresh-cache"), "SUCCESS");
    let asked = receiver.got("/pages?older=1h").pop().unwrap();
    assert_eq!((asked.method.as_str(), asked.body.len()), ("DELETE", 0));

    let later = becomes(&place, &trigger(&place, "import-orders"), "SUCCESS");
    assert_eq!(later["output_tail"], "12 orders\n");
    let posted = receiver.got("/imports").pop().unwrap();
    assert_eq!(posted.json(), serde_json::json!({ "source": "shop" }));
    let asked = receiver.got("/imports/7");
    assert_eq!(asked.len(), 2);
    assert!(
        asked
            .iter()
            .all(|asked| asked.method == "GET" && asked.body.is_empty())
    );

    // The secret is in what was sent, and in the file that it is read from, and nowhere else.
    let metrics = Api::of(&place).ask("GET", "/metrics", &[], "").body;
    assert!(
        metrics.contains("job_id=\"send-report\",status=\"success\""),
        "{metrics}"
    );
    let shown = place.run(&["run", "show", &run]).ok();
    let job = place.run(&["job", "show", "send-report"]).ok();
    let listed = place.run(&["job", "ls"]).ok();
    for text in [&node.log(), &metrics, &shown, &job, &listed] {
        assert!(!text.contains(SECRET), "{text}");
    }
    drop(node);
    assert_nowhere(&place.path("data"), SECRET);
}

#[test]
fn a_call_ends_when_its_time_is_up_or_somebody_wants_so() {
    let place = Place::new();
    let receiver = Receiver::new(|asked, _| match asked.path.as_str() {
        "/later" => answer(202, "location: /later/1\r\nretry-after: 1\r\n", ""),
        "/later/1" => answer(202, "retry-after: 1\r\n", ""),
        _ => None,
    });
    let url = receiver.url();
    let jobs = format!(
        "jobs:\n  - id: slow\n    run: {{ http: {{ url: \"{url}/slow\" }} }}\n    timeout: 1s\n  \
         - id: stuck\n    run: {{ http: {{ url: \"{url}/stuck\" }} }}\n  \
         - id: later\n    run: {{ http: {{ url: \"{url}/later\" }} }}\n"
    );
    let _node = node(&place, &jobs, &[url]);
    let slow = becomes(&place, &trigger(&place, "slow"), "FAILED");
    assert_eq!(slow["reason"], "timeout", "{slow}");
    assert_eq!(receiver.got("/slow").len(), 1);
    receiver.is_given_up();
    for (job, path) in [("stuck", "/stuck"), ("later", "/later/1")] {
        let run = trigger(&place, job);
        wait_for("the call", || receiver.got(path).pop());
        let told = Instant::now();
        place.run(&["run", "cancel", &run]).ok();
        let ended = becomes(&place, &run, "FAILED");
        assert_eq!(ended["reason"], "cancelled", "{ended}");
        assert!(told.elapsed() < Duration::from_secs(5), "at once");
        let asked = receiver.got(path).len();
        std::thread::sleep(Duration::from_millis(1_500));
        assert_eq!(receiver.got(path).len(), asked, "nothing more is sent");
    }
}

/// Q06: a job alone cannot make the node call inside the network, nor the scheduler itself.
#[test]
fn a_node_calls_only_whom_it_may() {
    let place = Place::new();
    let receiver = Receiver::new(|_, _| answer(302, "location: /secret\r\n", ""));
    let own = {
        // The port must be known before the node is told whom it may call.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let port = receiver.port;
    let mut jobs = "jobs:\n".to_owned();
    let cases = [
        (
            "own",
            format!("http://127.0.0.1:{own}/v1/jobs"),
            "belongs to the scheduler itself",
        ),
        (
            "own-name",
            format!("http://localhost:{own}/v1/jobs"),
            "belongs to the scheduler itself",
        ),
        (
            "near",
            format!("http://127.0.0.1:{port}/x"),
            "has no --http-allow http://127.0.0.1:",
        ),
        (
            "named",
            format!("https://localhost:{port}/x"),
            "which is no public address",
        ),
        (
            "below",
            format!("http://x.localhost:{port}/x"),
            "has no --http-allow",
        ),
        (
            "meta",
            "http://169.254.169.254/latest/meta-data".to_owned(),
            "has no --http-allow",
        ),
        (
            "private",
            "https://10.0.0.1/".to_owned(),
            "which is no public address",
        ),
        ("moved", format!("http://127.0.0.2:{port}/x"), ""),
    ];
    for (id, url, _) in &cases {
        jobs.push_str(&format!(
            "  - id: {id}\n    run: {{ http: {{ url: \"{url}\", method: GET }} }}\n"
        ));
    }
    place.write("jobs.yaml", &jobs);
    place.run(&["check", "jobs.yaml"]).ok();
    let listen = format!("127.0.0.1:{own}");
    let allow = format!("http://127.0.0.1:{own},http://localhost:{own},http://127.0.0.2:{port}");
    let arguments = [
        "serve",
        "--store",
        "sled:data",
        "--listen",
        &listen,
        "--jobs",
        "jobs.yaml",
        "--http-allow",
        &allow,
    ];
    let _node = Running::start(&place, "log", &arguments);
    place.wait_for_jobs();
    for (id, _, says) in &cases[..7] {
        let ended = becomes(&place, &trigger(&place, id), "FAILED");
        let error = ended["error"].as_str().unwrap();
        assert!(
            error.starts_with("not called: ") && error.contains(says),
            "{id}: {error}"
        );
        assert_eq!(ended["reason"], "error");
    }
    assert!(receiver.got.lock().unwrap().is_empty());
    // The one that may be called, whose answer leads elsewhere. (Listening on one address of the machine
    // is not listening on another one.)
    let ended = becomes(&place, &trigger(&place, "moved"), "FAILED");
    assert!(
        ended["error"]
            .as_str()
            .unwrap()
            .starts_with("not called, nothing was sent"),
        "{ended}"
    );

    // Whoever applies it is told, and so is whoever asks the doctor.
    let applied = place.run(&["apply", "-f", "jobs.yaml"]);
    assert_eq!(applied.code, Some(0), "{applied:?}");
    assert!(
        applied.err.contains("near: this node would not run it"),
        "{applied:?}"
    );
    let doctor: Value = serde_json::from_str(&place.run(&["doctor", "-o", "json"]).out).unwrap();
    let doctor = doctor.to_string();
    assert!(
        [
            "below: ",
            "meta: ",
            "near: ",
            "own: ",
            "own-name: ",
            "private: "
        ]
        .iter()
        .all(|job| doctor.contains(job))
            && doctor.contains("--http-allow"),
        "{doctor}"
    );
    let nodes = Api::of(&place).get("/v1/nodes").to_string();
    assert!(nodes.contains("\"http\":true"), "{nodes}");
}

#[test]
fn a_redirect_is_not_followed_and_a_secret_that_is_not_there_is_named() {
    let place = Place::new();
    let receiver = Receiver::new(|_, _| answer(302, "location: /secret\r\n", ""));
    let url = receiver.url();
    let jobs = format!(
        "jobs:\n  - id: moved\n    run: {{ http: {{ url: \"{url}/x\" }} }}\n  \
         - id: poor\n    run: {{ http: {{ url: \"{url}/x\", headers: {{ X-A: \"${{secret:OTHER}}\" }} }} }}\n  \
         - id: stranger\n    run: {{ http: {{ url: \"https://example.org/\", headers: {{ X-A: \"${{secret:REPORT_TOKEN}}\" }} }} }}\n"
    );
    let node = node(&place, &jobs, &[url]);
    for (job, says) in [
        ("moved", "HTTP 302 Found: redirects are not followed"),
        (
            "poor",
            "start it with PUNCTUAL_SECRET_OTHER, or with PUNCTUAL_SECRET_OTHER_FILE",
        ),
        ("stranger", "has no --http-allow example.org:443"),
    ] {
        let ended = becomes(&place, &trigger(&place, job), "FAILED");
        assert!(ended["error"].as_str().unwrap().contains(says), "{ended}");
    }
    assert_eq!(receiver.got("/x").len(), 1);
    assert!(receiver.got("/secret").is_empty());
    assert!(!node.log().contains(SECRET));
}

/// Every mistake has its place, and none needs a server.
#[test]
fn a_call_that_cannot_be_made_is_found_offline() {
    let place = Place::new();
    place.write(
        "jobs.yaml",
        "jobs:
  - id: a
    run:
      http:
        url: https://u:p@a.org/
        method: post
        headers:
          Host: b.org
          Authorization: Bearer abc
  - id: b
    run: { http: {} }
  - id: c
    run: { http: { url: \"https://a.org\" }, command: [\"true\"] }
  - id: d
    run: { http: { uri: \"https://a.org\" } }
",
    );
    let checked = place.run(&["check", "jobs.yaml"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    for says in [
        "jobs.yaml:5:14: ",
        "jobs.yaml:6:17: ",
        "did you mean `POST`?",
        "jobs.yaml:8:17: ",
        "jobs.yaml:9:26: ",
        "Bearer ${secret:NAME}",
        "did you mean `url`?",
        "it is not a URL",
        "needs exactly one of",
    ] {
        assert!(checked.out.contains(says), "{says}\n{}", checked.out);
    }
    assert!(!checked.out.contains("abc"), "{}", checked.out);
}
