//! Nodes and supervisors that die, hang or lose their session.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use punctual::cancel::{Canceller, StopCause};
use punctual::env::TokioEnv;
use punctual::handler::CommandExecutor;
use punctual::job::run::FailReason;
use punctual::recipe::session::Trust;
use punctual_server::exec::{CommandPolicy, Declared, ExecutorConfig, ProcessExecutor};
use rustix::process::Signal;

use crate::{Bench, command, context, failure, parent, send, supervisor, until};

/// What the test below runs when it is started by another test as a node of its own.
const NODE: &str = "PUNCTUAL_TEST_NODE";

/// A node in a process: started by other tests, which then kill or stop it. By itself it shows
/// that a fresh process can run a command at all.
#[tokio::test]
async fn node() {
    let told = std::env::var(NODE).unwrap_or_else(|_| "[\"0\",\"true\"]".to_owned());
    let told: Vec<String> = serde_json::from_str(&told).unwrap();
    let fence_ms: u64 = told[0].parse().unwrap();
    let fence = (fence_ms > 0).then(|| trust(fence_ms));
    let dir = tempfile::tempdir().unwrap();
    let mut config = ExecutorConfig::new(CommandPolicy::Any(Declared::default()), dir.path());
    config.supervisor = supervisor();
    let (_canceller, cancel) = Canceller::new();
    let argv: Vec<&str> = told[1..].iter().map(String::as_str).collect();
    let execution = ProcessExecutor::new(config)
        .execute(context("run", 500, cancel, fence), command(&argv, &[]))
        .await;
    assert_eq!(execution.failure, None);
}

fn trust(ms: u64) -> Trust {
    let env = TokioEnv::shared();
    let trust = Trust::none(env.clone());
    // A tenth is the margin that the window leaves.
    trust.extend(env.monotonic_ms(), ms * 10 / 9);
    trust
}

/// Starts a node that runs `script` and waits until the script has made the file `ready`.
async fn start_node(bench: &Bench, fence_ms: u64, script: &str) -> Child {
    let path = bench.dir.path().to_str().unwrap();
    let fence = fence_ms.to_string();
    let told = serde_json::json!([fence, "sh", "-c", script, bench.mark, path]);
    let node = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "faults::node"])
        .env(NODE, told.to_string())
        .env("DATABASE_PASSWORD", "s3cret")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("ready", || bench.file("ready").exists()).await;
    node
}

#[tokio::test]
async fn secrets_of_the_node_stay_with_it() {
    let bench = Bench::new();
    let script = "cat /proc/$$/environ /proc/$PPID/environ > $1/seen; touch $1/ready; \
                  while ! [ -e $1/go ]; do sleep 0.05; done";
    let mut node = start_node(&bench, 0, script).await;
    let given = std::fs::read_to_string(format!("/proc/{}/environ", node.id())).unwrap();
    assert!(given.contains("DATABASE_PASSWORD=s3cret"));
    std::fs::write(bench.file("go"), "").unwrap();
    let seen = std::fs::read_to_string(bench.file("seen")).unwrap();
    assert!(seen.contains("PUNCTUAL_JOB_ID=job"));
    assert!(!seen.contains("DATABASE_PASSWORD") && !seen.contains(NODE));
    assert!(node.wait().unwrap().success());
}

fn pid(child: &Child) -> i32 {
    i32::try_from(child.id()).unwrap()
}

/// Deaf itself, with a deaf child in a session of its own.
const DEAF: &str = "
    trap '' TERM
    (setsid sh -c 'touch $1/child; while :; do sleep 0.1; done' $0 $1 &)
    while ! [ -e $1/child ]; do sleep 0.05; done
    touch $1/ready
    while :; do sleep 0.1; done
";

#[tokio::test]
async fn a_node_that_is_killed_takes_its_commands_along() {
    let bench = Bench::new();
    let mut node = start_node(&bench, 0, DEAF).await;
    assert!(bench.alive().len() >= 2);
    node.kill().unwrap();
    node.wait().unwrap();
    until("everything is gone", || bench.alive().is_empty()).await;
}

#[tokio::test]
async fn a_command_of_a_killed_node_gets_its_grace() {
    let bench = Bench::new();
    // It says more than a pipe holds, in both ways, with nobody to read it.
    let script = r#"
        trap 'head -c 200000 /dev/zero &&
              yes "{\"progress\": 1}" | head -c 200000 >&3 && touch $1/asked; exit' TERM
        touch $1/ready
        while :; do sleep 0.05; done
    "#;
    let mut node = start_node(&bench, 0, script).await;
    node.kill().unwrap();
    node.wait().unwrap();
    until("everything is gone", || bench.alive().is_empty()).await;
    assert!(bench.file("asked").exists());
}

#[tokio::test]
async fn a_stopped_node_cannot_keep_a_fenced_command_alive() {
    let bench = Bench::new();
    let mut node = start_node(&bench, 3_000, DEAF).await;
    send(pid(&node), Signal::STOP);
    assert!(bench.alive().len() >= 2);
    until("everything is gone", || bench.alive().is_empty()).await;
    assert_eq!(
        crate::stat(pid(&node)).unwrap()[0],
        "T",
        "the node still sleeps"
    );
    node.kill().unwrap();
    node.wait().unwrap();
}

#[tokio::test]
async fn a_stopped_node_does_not_harm_a_command_without_fence() {
    let bench = Bench::new();
    let script = "touch $1/ready; sleep 1.5; touch $1/done";
    let mut node = start_node(&bench, 0, script).await;
    send(pid(&node), Signal::STOP);
    until("it ends by itself", || bench.file("done").exists()).await;
    send(pid(&node), Signal::CONT);
    assert!(node.wait().unwrap().success(), "the node hears of it late");
}

#[tokio::test]
async fn a_session_that_ends_stops_the_command() {
    let mut bench = Bench::new();
    let fence = trust(60_000);
    bench.fence = Some(fence.clone());
    let lose = async {
        until("start", || !bench.alive().is_empty()).await;
        fence.end();
    };
    let (execution, ()) = tokio::join!(bench.sleep(), lose);
    assert_eq!(failure(&execution).0, FailReason::Fenced);
    bench.assert_gone();
}

#[tokio::test]
async fn a_session_that_is_prolonged_does_not() {
    let mut bench = Bench::new();
    let env = TokioEnv::shared();
    let fence = Trust::none(env.clone());
    fence.extend(env.monotonic_ms(), 2_000);
    bench.fence = Some(fence.clone());
    let prolong = async {
        loop {
            tokio::time::sleep(Duration::from_millis(300)).await;
            fence.extend(env.monotonic_ms(), 2_000);
        }
    };
    let execution = tokio::select! {
        execution = bench.run(&["sleep", "4"]) => execution,
        () = prolong => unreachable!(),
    };
    assert_eq!(execution.failure, None);
}

#[tokio::test]
async fn a_session_that_has_ended_starts_nothing() {
    let mut bench = Bench::new();
    bench.fence = Some(Trust::none(TokioEnv::shared()));
    let execution = bench.script("touch $1/effect").await;
    assert_eq!(failure(&execution).0, FailReason::NotStarted);
    assert!(!bench.file("effect").exists());
}

#[tokio::test]
async fn with_a_killed_supervisor_the_outcome_is_unknown_and_nothing_is_left() {
    let bench = Bench::new();
    let kill = async {
        until("ready", || bench.file("ready").exists()).await;
        send(parent(bench.commands()[0]), Signal::KILL);
    };
    let (execution, ()) = tokio::join!(bench.script(DEAF), kill);
    let (reason, message) = failure(&execution);
    assert_eq!(reason, FailReason::WorkerLost);
    assert!(message.contains("supervisor died"), "{message}");
    bench.assert_gone();
}

#[tokio::test]
async fn an_emptied_environment_does_not_hide_what_a_killed_supervisor_leaves() {
    let bench = Bench::new();
    let script = "trap '' TERM; exec env -i /bin/sh -c \"$2\" $0 $1";
    let bare = "/bin/touch $1/ready; while :; do /bin/sleep 0.1; done";
    let path = bench.dir.path().to_str().unwrap();
    let kill = async {
        until("ready", || bench.file("ready").exists()).await;
        send(parent(bench.commands()[0]), Signal::KILL);
    };
    let argv = ["sh", "-c", script, &bench.mark, path, bare];
    let (execution, ()) = tokio::join!(bench.run(&argv), kill);
    assert_eq!(failure(&execution).0, FailReason::WorkerLost);
    bench.assert_gone();
}

#[tokio::test]
async fn a_supervisor_that_does_not_answer_does_not_save_the_command() {
    let mut bench = Bench::new();
    bench.grace_ms = 100;
    let stop = async {
        until("start", || bench.commands().len() == 1).await;
        send(parent(bench.commands()[0]), Signal::STOP);
        bench.canceller.stop(StopCause::Timeout);
    };
    let (execution, ()) = tokio::join!(bench.sleep(), stop);
    assert_eq!(failure(&execution).0, FailReason::Timeout);
    bench.assert_gone();
}

#[tokio::test]
async fn a_program_that_is_no_supervisor_is_an_error() {
    let bench = Bench::with(|config| config.supervisor = "/bin/true".into());
    assert!(
        failure(&bench.run(&["true"]).await)
            .1
            .contains("supervisor died")
    );
    let bench = Bench::with(|config| config.supervisor = "/no/such/file".into());
    let execution = bench.run(&["true"]).await;
    // What will not be otherwise the next time is an error: it must not be tried for ever.
    assert_eq!(failure(&execution).0, FailReason::Error);
    assert!(failure(&execution).1.contains("cannot start a supervisor"));
}

#[tokio::test]
async fn a_stranger_that_holds_the_output_open_does_not_hold_up_the_run() {
    let bench = Bench::new();
    let script = "echo hello; while ! [ -e $1/go ]; do sleep 0.05; done";
    let hold = async {
        until("start", || !bench.log("run").is_empty()).await;
        let fd = format!("/proc/{}/fd/1", bench.commands()[0]);
        let held = std::fs::OpenOptions::new().write(true).open(fd).unwrap();
        std::fs::write(bench.file("go"), "").unwrap();
        held
    };
    let (execution, held) = tokio::join!(bench.script(script), hold);
    assert_eq!(execution.exit_code, Some(0));
    assert_eq!(execution.output_tail.as_deref(), Some("hello\n"));
    drop(held);
}

/// Speaks to a supervisor without a node.
struct Bare {
    child: Child,
    status: BufReader<std::process::ChildStdout>,
}

impl Bare {
    /// `ignored` is what it inherits as ignored signals.
    fn start(bench: &Bench, ignored: &[&str], grace_ms: u64, script: &str) -> Self {
        let path = bench.dir.path().to_str().unwrap();
        let mut child = Command::new("env")
            .args(ignored.iter().map(|s| format!("--ignore-signal={s}")))
            .arg(supervisor())
            .arg("__supervise")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let spec = serde_json::json!({
            "argv": ["sh", "-c", script, bench.mark, path],
            "env": {"PATH": "/usr/bin:/bin"},
            "cwd": null, "grace_ms": grace_ms, "trust_until_ms": null,
        });
        writeln!(child.stdin.as_mut().unwrap(), "{spec}").unwrap();
        let status = BufReader::new(child.stdout.take().unwrap());
        Self { child, status }
    }

    /// What it has reported when it has ended.
    async fn last_word(mut self) -> serde_json::Value {
        let own = pid(&self.child);
        until("the supervisor ends", || {
            crate::stat(own).is_none_or(|s| s[0] == "Z")
        })
        .await;
        let lines = (&mut self.status).lines().map_while(Result::ok);
        serde_json::from_str(&lines.last().unwrap()).unwrap()
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn signals_for_the_node_do_not_end_a_supervisor() {
    let bench = Bench::new();
    let bare = Bare::start(&bench, &[], 5_000, "touch $1/ready; sleep 0.5; exit 6");
    until("ready", || bench.file("ready").exists()).await;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        send(pid(&bare.child), signal);
    }
    let ended = bare.last_word().await;
    assert_eq!(ended["ended"]["exit"], 6);
    assert_eq!(ended["ended"]["stop"], serde_json::Value::Null);
}

#[tokio::test]
async fn an_order_to_kill_does_not_wait_for_the_grace() {
    let bench = Bench::new();
    let mut bare = Bare::start(&bench, &[], 3_600_000, DEAF);
    until("ready", || bench.file("ready").exists()).await;
    writeln!(bare.child.stdin.as_mut().unwrap(), "kill").unwrap();
    let ended = bare.last_word().await;
    assert_eq!(ended["ended"]["signal"], 9);
    assert_eq!(ended["ended"]["stop"]["forced"], true);
    bench.assert_gone();
}

#[tokio::test]
async fn what_the_parent_of_the_node_ignored_the_command_hears() {
    let bench = Bench::new();
    let bare = Bare::start(
        &bench,
        &["TERM", "HUP", "CHLD"],
        5_000,
        "kill -TERM $$; exit 1",
    );
    let ended = bare.last_word().await;
    assert_eq!(ended["ended"]["signal"], 15, "{ended}");
}
