//! How commands end, and what is kept of their output.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use punctual::handler::CommandExecutor;
use punctual::job::run::FailReason;
use punctual_server::exec::{CommandPolicy, Declared, log_path};

use crate::{Bench, command, failure, until, zombies};

#[tokio::test]
async fn exit_status_0_is_success() {
    let bench = Bench::new();
    let execution = bench.run(&["true"]).await;
    assert_eq!(execution.failure, None);
    assert_eq!(execution.exit_code, Some(0));
    assert_eq!(execution.output_tail, None);
    assert!(!bench.file("logs").exists(), "silence needs no file");
}

#[tokio::test]
async fn another_exit_status_is_kept() {
    let bench = Bench::new();
    let execution = bench.script("echo no luck; exit 3").await;
    assert_eq!(failure(&execution), (FailReason::Exit, "exit status 3"));
    assert_eq!(execution.exit_code, Some(3));
    assert_eq!(execution.output_tail.as_deref(), Some("no luck\n"));
}

#[tokio::test]
async fn a_signal_is_named() {
    let execution = Bench::new().script("kill -SEGV $$").await;
    let said = (FailReason::Exit, "killed by signal 11 (SIGSEGV)");
    assert_eq!(failure(&execution), said);
    assert_eq!(execution.exit_code, None);
    let execution = Bench::new().script("kill -KILL $$").await;
    assert_eq!(failure(&execution).1, "killed by signal 9 (SIGKILL)");
}

#[tokio::test]
async fn what_cannot_be_started_says_what_and_why() {
    let bench = Bench::new();
    let script = |name: &str, text: &str, mode| {
        let path = bench.file(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let plain = script("plain", "#!/bin/sh\n", 0o644);
    let lost = script("lost", "#!/no/such/interpreter -x\n", 0o755);
    let bare = script("bare", "echo never\n", 0o755);
    let directory = bench.dir.path().to_str().unwrap();
    for (program, why) in [
        ("no-such-program-anywhere", "in PATH"),
        ("/no/such/file", "no such file"),
        (&plain, "chmod +x"),
        (&lost, "/no/such/interpreter"),
        (&bare, "#!/bin/sh"),
        (directory, "is a directory"),
        ("", "empty"),
    ] {
        let execution = bench.run(&[program]).await;
        let (reason, message) = failure(&execution);
        assert_eq!(reason, FailReason::Error, "{program}");
        assert!(
            message.contains(why) && message.contains(program),
            "{message}"
        );
        assert_eq!(execution.exit_code, None);
    }
}

#[tokio::test]
async fn a_missing_working_directory_is_not_taken_for_a_missing_program() {
    let bench = Bench::with(|config| config.working_dir = Some("/no/such/directory".into()));
    let execution = bench.run(&["true"]).await;
    assert!(
        failure(&execution)
            .1
            .contains("/no/such/directory does not exist")
    );
}

#[tokio::test]
async fn too_large_an_environment_is_an_error_with_a_reason() {
    let bench = Bench::new();
    let value = "x".repeat(100 << 10);
    let names: Vec<String> = (0..60).map(|i| format!("V{i}")).collect();
    let env: Vec<(&str, &str)> = names.iter().map(|n| (&**n, &*value)).collect();
    let execution = bench.run_as("run", command(&["true"], &env)).await;
    let (reason, message) = failure(&execution);
    assert_eq!(reason, FailReason::Error);
    assert!(
        message.contains("larger than the system takes"),
        "{message}"
    );
}

#[tokio::test]
async fn what_the_policy_refuses_is_not_run() {
    let mut declared = Declared::default();
    declared.allow(command(&["true"], &[]));
    let bench = Bench::with(|config| config.policy = CommandPolicy::Named(declared));
    let touch = command(&["touch", bench.file("effect").to_str().unwrap()], &[]);
    assert!(bench.executor.allows(&touch).is_err());
    let execution = bench.run_as("run", touch).await;
    assert_eq!(failure(&execution).0, FailReason::Error);
    assert!(!bench.file("effect").exists());
    assert_eq!(bench.run(&["true"]).await.failure, None);
}

#[tokio::test]
async fn environment_is_exact() {
    let bench = Bench::new();
    let env = [
        ("LANG", "C"),
        ("PUNCTUAL_JOB_ID", "forged"),
        ("A", "two words"),
    ];
    let execution = bench.run_as("run@1", command(&["env"], &env)).await;
    let tail = execution.output_tail.unwrap();
    let mut left: BTreeSet<&str> = tail.lines().collect();
    for entry in [
        "A=two words",
        "LANG=C",
        "PUNCTUAL_ATTEMPT=1",
        "PUNCTUAL_JOB_ID=job",
        "PUNCTUAL_PAYLOAD={\"channel\":\"all\"}",
        "PUNCTUAL_PROGRESS_FD=3",
        "PUNCTUAL_RUN_ID=run@1",
        "PUNCTUAL_SCHEDULED_AT=2026-08-12T00:05:00.000Z",
    ] {
        assert!(left.remove(entry), "{entry} is missing from {tail}");
    }
    for prefix in ["PUNCTUAL_FENCING_TOKEN=", "PUNCTUAL_TRACEPARENT=00-0af7"] {
        let before = left.len();
        left.retain(|entry| !entry.starts_with(prefix));
        assert_eq!(left.len(), before - 1, "{prefix}");
    }
    left.retain(|entry| {
        let inherited = ["HOME", "PATH", "TZ", "USER"];
        !inherited
            .iter()
            .any(|n| std::env::var(n).is_ok_and(|v| *entry == format!("{n}={v}")))
    });
    assert_eq!(left, BTreeSet::new());
}

#[tokio::test]
async fn the_supervisor_shows_nothing_of_the_command() {
    let bench = Bench::new();
    let execution = bench
        .script("wc -c < /proc/$PPID/environ; tr '\\0' ' ' < /proc/$PPID/cmdline")
        .await;
    let shown = execution.output_tail.unwrap();
    let more = shown.strip_prefix("0\npunctual __supervise ").unwrap();
    // The node's own limit of files, once it has been raised.
    assert!(more.trim().bytes().all(|b| b.is_ascii_digit()), "{shown}");
}

#[tokio::test]
async fn arguments_arrive_as_they_are_and_no_shell_sees_them() {
    let bench = Bench::new();
    let argv = ["printf", "%s|", "$HOME", "*", "a b", "; exit 9", "", "日"];
    let execution = bench.run(&argv).await;
    assert_eq!(
        execution.output_tail.as_deref(),
        Some("$HOME|*|a b|; exit 9||日|")
    );
}

#[tokio::test]
async fn a_command_has_its_own_group_no_terminal_and_nothing_to_read() {
    let bench = Bench::new();
    let execution = bench
        .script("cat; read -r _ _ _ _ g _ tty _ < /proc/$$/stat; [ $g = $$ ] && echo $tty")
        .await;
    assert_eq!(execution.output_tail.as_deref(), Some("0\n"));
}

#[tokio::test]
async fn both_streams_are_kept_in_their_order() {
    let bench = Bench::new();
    let execution = bench.script("echo 1; echo 2 >&2; echo 3; printf 4").await;
    assert_eq!(execution.output_tail.as_deref(), Some("1\n2\n3\n4"));
    assert!(!execution.output_truncated);
    assert_eq!(bench.log("run"), b"1\n2\n3\n4");
    let path = log_path(bench.dir.path(), "job", "run", 1).unwrap();
    assert_eq!(
        fs::metadata(path).unwrap().permissions().mode() & 0o777,
        0o600
    );
}

#[tokio::test]
async fn fifty_megabytes_neither_block_nor_cost_the_status() {
    let bench = Bench::new();
    let execution = bench
        .script("yes 123456789 | head -c 52428800; echo end; exit 5")
        .await;
    assert_eq!(execution.exit_code, Some(5));
    assert!(execution.output_truncated);
    let tail = execution.output_tail.unwrap();
    assert_eq!(tail.len(), 2 << 10);
    assert!(tail.ends_with("123456789\nend\n"));
    let log = bench.log("run");
    assert_eq!(log.len(), 52_428_800 + 4);
    assert!(log.ends_with(tail.as_bytes()));
}

#[tokio::test]
async fn more_than_the_file_may_hold_is_read_and_dropped() {
    let bench = Bench::with(|config| config.log_bytes = 100_000);
    let execution = bench.script("yes | head -c 5000000; echo end").await;
    assert_eq!(execution.failure, None);
    assert!(execution.output_tail.unwrap().ends_with("y\nend\n"));
    let log = bench.log("run");
    assert!(log.len() < 100_200);
    assert!(String::from_utf8_lossy(&log).ends_with("is not kept]\n"));
}

#[tokio::test]
async fn binary_output_is_kept_as_it_is_and_shown_as_text() {
    let bench = Bench::new();
    let execution = bench
        .script("head -c 100000 /dev/urandom | tee $1/copy")
        .await;
    assert_eq!(execution.failure, None);
    assert_eq!(bench.log("run"), fs::read(bench.file("copy")).unwrap());
    let tail = execution.output_tail.unwrap();
    assert!(tail.len() <= 2 << 10 && tail.len() > 1 << 10);
    assert!(tail.chars().all(|c| !c.is_control() || "\n\t".contains(c)));
}

#[tokio::test]
async fn a_command_that_closes_its_output_is_still_waited_for() {
    let bench = Bench::new();
    let script = "echo before; exec >&- 2>&-; sleep 0.5; touch $1/done; exit 4";
    let execution = bench.script(script).await;
    assert_eq!(execution.exit_code, Some(4));
    assert!(bench.file("done").exists());
    assert_eq!(execution.output_tail.as_deref(), Some("before\n"));
}

#[tokio::test]
async fn fifty_commands_at_once_keep_their_own_ends_and_leave_no_zombie() {
    let bench = Bench::new();
    let runs = (0..50).map(|i| {
        let bench = &bench;
        let script = format!("echo {i}; sleep 0.3; exit {i}");
        async move {
            let command = command(&["sh", "-c", &script, &bench.mark], &[]);
            (i, bench.run_as(&format!("run-{i}"), command).await)
        }
    });
    for (i, execution) in futures_util::future::join_all(runs).await {
        assert_eq!(execution.exit_code, Some(i));
        assert_eq!(execution.output_tail, Some(format!("{i}\n")));
        assert_eq!(bench.log(&format!("run-{i}")), format!("{i}\n").as_bytes());
    }
    bench.assert_gone();
    // Other tests of this process start and end supervisors too; none may stay.
    let own = i32::try_from(std::process::id()).unwrap();
    let seen = zombies(own);
    until("zombies go", || {
        zombies(own).iter().all(|pid| !seen.contains(pid))
    })
    .await;
}

/// The node needs many files; an old program with `select` must not get more than it can count.
#[tokio::test]
async fn commands_keep_the_limit_of_files_that_the_node_was_started_with() {
    let soft = || rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let before = soft().unwrap();
    punctual_server::exec::raise_file_limit();
    assert!(soft().unwrap() >= before);
    let execution = Bench::new().script("ulimit -Sn").await;
    assert_eq!(execution.output_tail, Some(format!("{before}\n")));
}
