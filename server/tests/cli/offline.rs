//! What needs no server.

use std::io::Read;
use std::process::Stdio;

use crate::Place;

const GOOD: &str = "jobs:\n  - id: a\n    run: { command: [\"true\"] }\n";
const BAD: &str =
    "jobs:\n  - id: a\n    schedule:\n      cron: */5 * * * *\n    run: { comand: [x] }\n";

#[test]
fn check_names_every_place_on_standard_output() {
    let place = Place::new();
    place.write("good.yaml", GOOD);
    place.write("bad.yaml", BAD);
    let good = place.run(&["check", "good.yaml"]);
    assert_eq!(
        (good.code, good.out.as_str(), good.err.as_str()),
        (Some(0), "", "ok: 1 job\n")
    );
    let bad = place.run(&["check", "bad.yaml"]);
    assert_eq!(bad.code, Some(1));
    assert_eq!(
        bad.out,
        "bad.yaml:4:13: a text that starts with `*` needs quotes: YAML reads it as an alias
    hint: write \"*/5 * * * *\"
bad.yaml:5:12: a: run: unknown key `comand`
    hint: did you mean `command`?
"
    );
    assert_eq!(bad.err, "2 findings\n");
    let quiet = place.run(&["check", "bad.yaml", "-q"]);
    assert_eq!((quiet.code, quiet.err.as_str()), (Some(1), ""));
    let json = place.run(&["check", "bad.yaml", "-o", "json"]);
    let findings: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        (&findings[1]["line"], &findings[1]["column"]),
        (&5.into(), &12.into())
    );
    assert_eq!(json.code, Some(1));
}

#[test]
fn check_notes_what_may_not_be_meant() {
    let place = Place::new();
    let job = |id: &str, cron: &str| {
        format!(
            "  - id: {id}\n    schedule: {{ cron: \"{cron}\" }}\n    run: {{ command: [\"true\"] }}\n"
        )
    };
    let jobs = [
        job("beyond", "*/90 * * * *"),
        job("uneven", "*/7 * * * *"),
        job("either", "0 0 13 * 5"),
        job("even", "*/15 9 * * 1-5"),
        job("plain", "0 5 29 * *"),
    ];
    place.write("j.yaml", format!("jobs:\n{}", jobs.concat()));
    let noted = place.run(&["check", "j.yaml"]);
    assert_eq!((noted.code, noted.out.as_str()), (Some(0), ""));
    let lines: Vec<&str> = noted.err.lines().collect();
    assert_eq!(lines.len(), 4, "{noted:?}");
    assert!(lines[0].starts_with("note: beyond: schedule.cron: "));
    assert!(lines[1].starts_with("note: uneven: schedule.cron: "));
    assert!(lines[2].contains("either") && lines[2].contains("OR"));
    assert_eq!(lines[3], "ok: 5 jobs");
}

#[test]
fn a_crontab_is_no_job_file_and_a_command_no_field() {
    let place = Place::new();
    place.write(
        "crontab",
        "SHELL=/bin/sh\n*/5 * * * * /usr/bin/backup \"a b\"\n",
    );
    let found = place.run(&["check", "crontab"]);
    assert_eq!(found.err, "1 finding\n", "{found:?}");
    assert!(found.out.contains("crontab:2:1: this is a crontab"));
    assert!(found.out.contains("run: { command: ["), "{found:?}");
    for cron in [
        "0 5 * * * /usr/bin/backup",
        "0 5 * * * root backup",
        "0 5 * * * echo a b c d",
    ] {
        place.write(
            "j.yaml",
            format!("jobs:\n  - id: a\n    schedule: {{ cron: \"{cron}\" }}\n    run: {{}}\n"),
        );
        let found = place.run(&["check", "j.yaml"]);
        assert!(
            found
                .out
                .contains("a command goes into `run: { command: [...] }`"),
            "{found:?}"
        );
    }
}

#[test]
fn check_reads_files_directories_and_standard_input() {
    let place = Place::new();
    std::fs::create_dir(place.path("jobs")).unwrap();
    place.write("jobs/b.yml", GOOD);
    place.write(
        "jobs/a.toml",
        "[[jobs]]\nid = \"a\"\nrun.command = [\"true\"]\n",
    );
    place.write("jobs/notes.txt", "not a job file");
    let both = place.run(&["check", "jobs"]);
    assert_eq!(
        both.out,
        "jobs/b.yml:2:9: a: id: this id stands twice; the first is at jobs/a.toml:2:6
    hint: give each job its own id
"
    );
    let input = place.run_with_input(&["check", "-"], BAD);
    assert!(input.out.starts_with("-:4:13: "), "{input:?}");
    assert_eq!(place.run_with_input(&["check", "-"], GOOD).code, Some(0));
}

#[test]
fn what_cannot_be_read_is_a_wrong_use() {
    let place = Place::new();
    place.write("latin1.yaml", b"jobs: # \xe4\n");
    std::fs::create_dir(place.path("empty")).unwrap();
    place
        .run(&["check", "nofile.yaml"])
        .fails(2, "nofile.yaml: there is no such file");
    place
        .run(&["check", "latin1.yaml"])
        .fails(2, "latin1.yaml:1:9: not UTF-8 text (byte 0xe4)");
    place.run(&["check", "empty"]).fails(
        2,
        "empty: no *.yaml, *.yml, *.toml or *.json in this directory",
    );
    let file = std::fs::File::create(place.path("huge.yaml")).unwrap();
    file.set_len((64 << 20) + 1).unwrap();
    place
        .run(&["check", "huge.yaml"])
        .fails(2, "huge.yaml: more than 64 MiB of job files");
    // All of them, not only the first.
    let all = place.run(&["check", "nofile.yaml", "empty"]);
    assert!(
        all.err.contains("nofile.yaml") && all.err.contains("empty: no"),
        "{all:?}"
    );
}

#[test]
fn next_prints_times_and_points_at_mistakes() {
    let place = Place::new();
    let after = ["--after", "2025-12-31T16:00:00Z", "--tz", "Asia/Shanghai"];
    let run = |more: &[&str]| place.run(&[&["next"], &after[..], more].concat());
    assert_eq!(
        run(&["5 0 * * *", "--count", "2"]).ok(),
        "2026-01-01T00:05:00+08:00\n2026-01-02T00:05:00+08:00\n"
    );
    assert_eq!(
        run(&["5 0 * * *", "--count", "2", "-o", "json"]).json(),
        serde_json::json!(["2026-01-01T00:05:00+08:00", "2026-01-02T00:05:00+08:00"])
    );
    let never = run(&["0 0 30 2 *"]);
    assert_eq!((never.code, never.out.as_str()), (Some(0), ""));
    assert_eq!(never.err, "this expression never fires\n");
    assert!(run(&["0 0 0 1 1 ? 2020"]).err.contains("never fires again"));
    run(&["5 32 * * *"]).fails(2, "  5 32 * * *\n    ^\n");
    run(&["* * * * *", "--dialect", "latin"]).fails(2, "latin");
    place.run(&["next"]).fails(2, "EXPR");
    let batch = place.run_with_input(
        &["next", "--batch", "-"],
        "{\"expr\":\"0 * * * *\",\"after\":\"2026-01-01T00:00:00Z\",\"count\":1}\n{\"expr\":\"* * 32 * *\"}\n",
    );
    let lines: Vec<serde_json::Value> = batch
        .ok()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        lines[0],
        serde_json::json!({ "next": ["2026-01-01T01:00:00+00:00"] })
    );
    assert_eq!(lines[1]["at"], 5);
}

#[test]
fn explain_speaks_two_languages() {
    let place = Place::new();
    let text = place.run(&["explain", "0 9 * * MON"]).ok();
    assert!(text.contains("Monday") && text.contains("周一"), "{text}");
    let json = place.run(&["explain", "*/7 * * * *", "-o", "json"]).json();
    assert_eq!(json["lints"][0]["code"], "uneven_step");
    assert_eq!(json["next"].as_array().unwrap().len(), 5);
    place
        .run(&["explain", "61 * * * *"])
        .fails(2, "minute: `61`");
}

#[test]
fn wrong_use_is_exit_code_2() {
    let place = Place::new();
    place.run(&["version", "--nonsense"]).fails(2, "--nonsense");
    place.run(&["sevre"]).fails(2, "serve");
    place.run(&[]).fails(2, "Usage");
    place
        .run(&["run", "ls", "--state", "LOST"])
        .fails(2, "PENDING, LOCKED, RUNNING");
    place.run(&["version", "-o", "xml"]).fails(2, "jsonl");
    assert!(place.run(&["version"]).ok().starts_with("punctual "));
    assert_eq!(
        place.run(&["version", "-o", "json"]).json()["name"],
        "punctual"
    );
    assert!(place.run(&["--help"]).ok().contains("serve"));
}

#[test]
fn a_closed_pipe_is_no_error() {
    let place = Place::new();
    for format in ["table", "json", "jsonl", "yaml"] {
        let mut child = place
            .command(&["next", "* * * * * *", "--count", "10000", "-o", format])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut some = [0; 10];
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut some).unwrap();
        drop(out);
        let rest = child.wait_with_output().unwrap();
        assert_eq!(rest.status.code(), Some(0), "{format}");
        assert_eq!(String::from_utf8(rest.stderr).unwrap(), "", "{format}");
    }
}

#[test]
fn without_a_server_it_says_how_to_start_one() {
    let place = Place::new();
    place.write("jobs.yaml", GOOD);
    for command in [
        &["job", "ls"][..],
        &["run", "ls"],
        &["status"],
        &["apply", "-f", "jobs.yaml"],
        &["diff", "-f", "jobs.yaml"],
    ] {
        place
            .run(command)
            .fails(6, "start one with `punctual serve`");
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    place.write("token", "pt_x\n");
    let to = ["--server", &url, "--token-file", "token"];
    // Somebody who listens and says nothing.
    let silent = place.run(&[&["status", "--timeout", "300ms"], &to[..]].concat());
    silent.fails(7, "did not answer in 300ms");
    drop(listener);
    let nobody = place.run(&[&["status"], &to[..]].concat());
    nobody.fails(6, "start one with `punctual serve`");
    place
        .run(&["status", "--server", &url])
        .fails(6, "no server answers at");
    place
        .run(&["status", "--server", "https://x"])
        .fails(5, "no token for");
    // Mistakes in a file are found before anybody is asked.
    place.write("bad.yaml", BAD);
    place
        .run(&["apply", "-f", "bad.yaml"])
        .fails(2, "bad.yaml:4:13: ");
}

/// Q02: nothing that is not meant to be open can be opened by mistake.
#[test]
fn serve_refuses_what_cannot_be_meant() {
    let place = Place::new();
    place.write("bad.yaml", BAD);
    place.write("punctual.toml", "slotz = 4\n");
    for (arguments, says) in [
        (&["--listen", "0.0.0.0:0"][..], "the API is not encrypted"),
        (
            &["--listen", "0.0.0.0:0", "--insecure", "--commands", "any"],
            "goes only with --commands off",
        ),
        (&["--store", "etcd://127.0.0.1/x"], "is not HOST:PORT"),
        (&["--store", "redis:x"], "there is no store named `redis`"),
        (&["--listen", "nowhere"], "not an address"),
        (
            &["--jobs", "bad.yaml"],
            "bad.yaml:5:12: a: run: unknown key `comand`",
        ),
        (&["--jobs", "nofile.yaml"], "there is no such file"),
        (&["--config", "punctual.toml"], "slotz"),
        (&["--lost-grace", "1s"], "lost_grace"),
        (&["--slots", "0"], "at least 1"),
        (&["--leader-ttl", "5"], "not a duration"),
        (
            &["--node-id", "Not An Id", "--store", "memory:"],
            "is not a node id",
        ),
    ] {
        let ended = place.run(&[&["serve"], arguments].concat());
        ended.fails(2, says);
    }
}
