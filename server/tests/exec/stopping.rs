//! Stopping commands, whole.

use std::time::{Duration, Instant};

use punctual::cancel::{Canceller, StopCause};
use punctual::handler::CommandExecutor;
use punctual::job::run::FailReason;
use rustix::process::Signal;

use crate::{Bench, children, command, context, failure, parent, send, until};

#[tokio::test]
async fn a_cancelled_command_is_asked_to_end() {
    let bench = Bench::new();
    let stop = async {
        until("start", || !bench.alive().is_empty()).await;
        bench.canceller.stop(StopCause::Cancelled);
    };
    let (execution, ()) = tokio::join!(bench.sleep(), stop);
    let (reason, message) = failure(&execution);
    assert_eq!(reason, FailReason::Cancelled);
    assert!(message.contains("ended after SIGTERM"), "{message}");
    bench.assert_gone();
}

#[tokio::test]
async fn a_command_may_tidy_up_when_asked() {
    let bench = Bench::new();
    let script = "trap 'echo bye; exit 7' TERM; touch $1/ready; while :; do sleep 0.1; done";
    let stop = async {
        until("ready", || bench.file("ready").exists()).await;
        bench.canceller.stop(StopCause::Timeout);
    };
    let (execution, ()) = tokio::join!(bench.script(script), stop);
    assert_eq!(failure(&execution).0, FailReason::Timeout);
    assert_eq!(execution.exit_code, Some(7));
    assert!(execution.output_tail.unwrap().ends_with("bye\n"));
}

#[tokio::test]
async fn one_that_ignores_the_request_is_killed_after_its_grace() {
    let mut bench = Bench::new();
    bench.grace_ms = 700;
    let script = "trap '' TERM; touch $1/ready; while :; do sleep 0.1; done";
    let stop = async {
        until("ready", || bench.file("ready").exists()).await;
        bench.canceller.stop(StopCause::Timeout);
        Instant::now()
    };
    let (execution, asked) = tokio::join!(bench.script(script), stop);
    assert!(asked.elapsed() >= Duration::from_millis(700), "no grace");
    let (reason, message) = failure(&execution);
    assert_eq!(reason, FailReason::Timeout);
    assert!(
        message.contains("killed by signal 9 (SIGKILL)"),
        "{message}"
    );
    assert_eq!(execution.exit_code, None);
    bench.assert_gone();
}

#[tokio::test]
async fn a_command_that_is_stopped_hears_the_request() {
    let bench = Bench::new();
    let stop = async {
        until("start", || bench.commands().len() == 1).await;
        send(bench.commands()[0], Signal::STOP);
        bench.canceller.stop(StopCause::Cancelled);
    };
    let (execution, ()) = tokio::join!(bench.sleep(), stop);
    assert!(failure(&execution).1.contains("ended after SIGTERM"));
}

/// One in the group, one that left it and lost its parent, one that did so twice and is deaf.
const FAMILY: &str = "
    sleep $0 &
    setsid sh -c '(setsid sleep $0 &)' $0 &
    (setsid setsid sh -c 'trap \"\" TERM; touch $1/deaf; while :; do sleep 0.1; done' $0 $1 &)
    while ! [ -e $1/deaf ]; do sleep 0.05; done
    touch $1/ready
";

#[tokio::test]
async fn what_a_command_leaves_behind_ends_with_it() {
    let mut bench = Bench::new();
    bench.grace_ms = 500;
    let execution = bench
        .script(&format!("{FAMILY} sleep 0.3; echo done"))
        .await;
    assert_eq!(execution.failure, None);
    assert_eq!(execution.exit_code, Some(0));
    assert_eq!(execution.output_tail.as_deref(), Some("done\n"));
    assert!(bench.file("ready").exists());
    bench.assert_gone();
}

#[tokio::test]
async fn a_whole_family_is_stopped() {
    let mut bench = Bench::new();
    bench.grace_ms = 500;
    let stop = async {
        until("ready", || bench.file("ready").exists()).await;
        until("family", || bench.alive().len() >= 4).await;
        bench.canceller.stop(StopCause::Cancelled);
    };
    let script = format!("{FAMILY} wait; sleep $0");
    let (execution, ()) = tokio::join!(bench.script(&script), stop);
    assert_eq!(failure(&execution).0, FailReason::Cancelled);
    bench.assert_gone();
}

#[tokio::test]
async fn orphans_that_end_do_not_stay_as_zombies() {
    let bench = Bench::new();
    let script = "for i in 1 2 3 4 5 6 7 8; do (sleep 0.1 &); done; touch $1/ready; \
                  while ! [ -e $1/go ]; do sleep 0.1; done";
    let look = async {
        until("ready", || bench.file("ready").exists()).await;
        let command = bench.commands()[0];
        // The shell has waited for those in between, so all eight are the supervisor's by now.
        let supervisor = parent(command);
        until("all reaped", || children(supervisor) == [command]).await;
        std::fs::write(bench.file("go"), "").unwrap();
    };
    let (execution, ()) = tokio::join!(bench.script(script), look);
    assert_eq!(execution.failure, None);
}

#[tokio::test]
async fn a_run_that_was_told_to_stop_before_is_not_started() {
    let bench = Bench::new();
    bench.canceller.stop(StopCause::Cancelled);
    let execution = bench.script("touch $1/effect").await;
    assert_eq!(failure(&execution).0, FailReason::Cancelled);
    assert!(!bench.file("effect").exists());
}

#[tokio::test]
async fn stopping_one_of_five_stops_one() {
    let bench = Bench::new();
    let pairs: Vec<_> = (0..5).map(|_| Canceller::new()).collect();
    let runs = pairs.iter().enumerate().map(|(i, (_, token))| {
        let ctx = context(&format!("run-{i}"), 10_000, token.clone(), None);
        let go = bench.file("go");
        let script = "while ! [ -e $1 ]; do sleep 0.1; done";
        let argv = ["sh", "-c", script, &bench.mark, go.to_str().unwrap()];
        bench.executor.execute(ctx, command(&argv, &[]))
    });
    let stop = async {
        let commands = || bench.commands().len();
        until("all run", || commands() == 5).await;
        pairs[2].0.stop(StopCause::Cancelled);
        until("one ends", || commands() == 4).await;
        std::fs::write(bench.file("go"), "").unwrap();
    };
    let (ended, ()) = tokio::join!(futures_util::future::join_all(runs), stop);
    let failed: Vec<bool> = ended.iter().map(|e| e.failure.is_some()).collect();
    assert_eq!(failed, [false, false, true, false, false]);
    assert_eq!(failure(&ended[2]).0, FailReason::Cancelled);
}

#[tokio::test]
async fn a_node_that_no_longer_waits_stops_the_command() {
    let mut bench = Bench::new();
    bench.grace_ms = 500;
    {
        let run = bench.script("trap '' TERM; touch $1/ready; while :; do sleep 0.1; done");
        let ready = until("ready", || bench.file("ready").exists());
        tokio::select! {
            _ = run => panic!("it ended by itself"),
            () = ready => {}
        }
    }
    until("the command is gone", || bench.alive().is_empty()).await;
}
