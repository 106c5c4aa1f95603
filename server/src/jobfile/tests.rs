use std::fmt::Write as _;

use super::*;

const NOW_MS: i64 = 1_790_000_000_000;

fn parse_all(files: &[(&str, &str)]) -> JobFile {
    let sources = files.iter().map(|(name, text)| Source {
        name: (*name).into(),
        format: Format::of_path(std::path::Path::new(name)).unwrap(),
        text: (*text).into(),
    });
    JobFile::parse(&sources.collect::<Vec<_>>(), NOW_MS)
}

fn parse(name: &str, text: &str) -> JobFile {
    parse_all(&[(name, text)])
}

/// All findings as a user sees them.
fn shown(file: &JobFile) -> String {
    let mut out = String::new();
    for finding in &file.findings {
        writeln!(out, "{finding}").unwrap();
    }
    out
}

#[track_caller]
fn expect(name: &str, text: &str, findings: &str) {
    let file = parse(name, text);
    let expected: String = findings
        .trim_matches('\n')
        .lines()
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(shown(&file), expected, "\nof:\n{text}");
}

#[test]
fn unquoted_stars_are_named_and_the_rest_is_checked_all_the_same() {
    expect(
        "j.yaml",
        r#"jobs:
  - id: a
    schedule:
      cron: */5 * * * *
    run: { command: ["/bin/true"] }
    timout: 5m
  - id: b
    schedule: { cron: * * * * *, timezone: UTC }
    run: { command: ["/bin/true"] }
  - id: c
    schedule:
      - cron: * * * * *   # each minute
    run: { command: ["/bin/true"] }
  - id: d
    schedule:
      cron: @daily
    run: { command: ["/bin/true"] }
"#,
        r#"
j.yaml:4:13: a text that starts with `*` needs quotes: YAML reads it as an alias
    hint: write "*/5 * * * *"
j.yaml:6:5: a: unknown key `timout`
    hint: did you mean `timeout`?
j.yaml:8:23: a text that starts with `*` needs quotes: YAML reads it as an alias
    hint: write "* * * * *"
j.yaml:12:7: c: schedule: must be a group of keys, not a list
    hint: its keys are `cron`, `every`, `after_finish`, `at`, `timezone`, `dialect`, `dst`, `start`, `end`, `exclude` and `jitter`
j.yaml:12:15: a text that starts with `*` needs quotes: YAML reads it as an alias
    hint: write "* * * * *"
j.yaml:16:13: a text that starts with this character needs quotes in YAML
    hint: write "@daily"
"#,
    );
}

#[test]
fn every_wrong_key_and_value_of_a_job_is_found() {
    expect(
        "jobs/a.yaml",
        r#"jobs:
  - id: A!
    run: { comand: ["/bin/true"], env: { N: 5 } }
    schedule: { crn: "* * * * *" }
  - run: {}
  - id: 7
  - nope
  - id: a
    run: { command: [x] }
    cron: "* * * * *"
    overlap: forbid
    misfire: Latest
    on_lost: retry
    priority: 11
    timeout: 90
    retry: { backoff: 5 parsecs, attempts: -1, factor: fast }
    queue: Big One
"#,
        r#"
jobs/a.yaml:2:9: A!: id: `A!` is not a job id
    hint: 1 to 63 characters: lower case letters, digits, `.`, `_`, `-`; the first is a letter or digit
jobs/a.yaml:3:12: A!: run: unknown key `comand`
    hint: did you mean `command`?
jobs/a.yaml:3:45: A!: run.env.N: must be a text, not the number 5
    hint: put it in quotes: "5"
jobs/a.yaml:4:17: A!: schedule: unknown key `crn`
    hint: did you mean `cron`?
jobs/a.yaml:5:5: id: a job needs an `id`
    hint: write id: NAME, with a name of its own for each job
jobs/a.yaml:5:10: run: needs exactly one of `command`, `http`, `handler`
    hint: for example  run: { command: ["/usr/bin/true"] }
jobs/a.yaml:6:5: run: needs exactly one of `command`, `http`, `handler`
    hint: for example  run: { command: ["/usr/bin/true"] }
jobs/a.yaml:6:9: id: must be a text, not the number 7
    hint: put it in quotes: "7"
jobs/a.yaml:7:5: a job is a group of keys, not the text `nope`
    hint: start it with `- id: NAME`
jobs/a.yaml:10:5: a: unknown key `cron`
    hint: `cron` belongs under `schedule:`
jobs/a.yaml:11:14: a: overlap: must be `allow`, `skip`, `queue` or `replace`, not the text `forbid`
jobs/a.yaml:12:14: a: misfire: must be `latest`, `all` or `skip`, not the text `Latest`
    hint: did you mean `latest`?
jobs/a.yaml:13:14: a: on_lost: `retry` may run the job twice when a worker vanishes
    hint: say `idempotent: true` if that does no harm, else use `on_lost: fail`
jobs/a.yaml:14:15: a: priority: must be -10 to 10
jobs/a.yaml:15:14: a: timeout: must be a duration, not the number 90
    hint: add the unit: 90s or 90m
jobs/a.yaml:16:23: a: retry.backoff: `5 parsecs` is not a duration: unknown time unit "parsecs"
    hint: write a number and a unit, such as 500ms, 30s, 5m, 1h30m or 30d
jobs/a.yaml:16:44: a: retry.attempts: must be a whole number from 0 to 4294967295, not the number -1
jobs/a.yaml:16:56: a: retry.factor: must be a number, not the text `fast`
jobs/a.yaml:17:12: a: queue: `Big One` is not a queue name
    hint: the same characters as a job id
"#,
    );
}

#[test]
fn schedules_are_checked_part_by_part_down_to_the_character() {
    let file = parse(
        "j.yaml",
        r#"jobs:
  - id: a
    run: { command: [x] }
    schedule:
      cron: "5 61 * * *"
      timezone: Asia/Shangai
      exclude: [2026-01-01, 2026-02-30, nocal]
  - id: b
    run: { command: [x] }
    schedule: { cron: 0 0 30 2 * }
  - id: c
    run: { command: [x] }
    schedule: { every: 1500ms }
"#,
    );
    let places: Vec<_> = file
        .findings
        .iter()
        .map(|f| (f.line, f.column, f.path.as_deref().unwrap()))
        .collect();
    assert_eq!(
        places,
        [
            (5, 16, "schedule.cron"),
            (6, 17, "schedule.timezone"),
            (7, 29, "schedule.exclude[1]"),
            (7, 41, "schedule.exclude[2]"),
            (10, 23, "schedule.cron"),
            (13, 24, "schedule.every"),
        ],
        "{}",
        shown(&file)
    );
    assert!(
        file.findings[1]
            .hint
            .as_ref()
            .unwrap()
            .contains("Asia/Shanghai")
    );
    assert!(file.findings[4].message.contains("never fires"));
}

#[test]
fn duplicates_name_both_places() {
    let file = parse_all(&[
        (
            "a.yaml",
            "jobs:\n  - id: one\n    run: { command: [x] }\n    id: two\n",
        ),
        (
            "b.yaml",
            "commands: { c: [x] }\njobs:\n  - id: one\n    run: { command: [x] }\n",
        ),
        ("c.yaml", "commands: { c: [x] }\n"),
    ]);
    assert_eq!(
        shown(&file),
        "a.yaml:4:5: the key `id` stands twice; the first is at line 2, column 5
    hint: keep one of them
b.yaml:3:9: one: id: this id stands twice; the first is at a.yaml:2:9
    hint: give each job its own id
c.yaml:1:13: the command `c` is declared twice; the first is at b.yaml:1:13
    hint: keep one of them
"
    );
}

#[test]
fn files_of_the_wrong_shape() {
    for (text, finding) in [
        ("", "j.yaml:1:1: the file is empty\n    hint: write `jobs:` and a list of jobs"),
        ("# nothing\n", "j.yaml:1:1: the file is empty\n    hint: write `jobs:` and a list of jobs"),
        (
            "- id: a\n",
            "j.yaml:1:1: a job file is a group of keys, not a list\n    hint: write `jobs:` above the list",
        ),
        (
            "id: a\nrun: {}\n",
            "j.yaml:1:1: a job stands here, but jobs stand in a list under `jobs:`\n    hint: write `jobs:` above it, put `- ` before its first key and indent the rest",
        ),
        (
            "jobs: 5\njob: []\n",
            "j.yaml:1:7: `jobs` must be a list, not the number 5\n    hint: put `- ` before the first key of each job
j.yaml:2:1: unknown key `job`\n    hint: did you mean `jobs`?",
        ),
        (
            "jobs: []\n---\njobs: []\n",
            "j.yaml:2:1: a second YAML document starts here\n    hint: one document a file: put all jobs under one `jobs:`",
        ),
        (
            "jobs:\n\t- id: a\n",
            "j.yaml:2:2: not valid YAML: tabs disallowed within this context (block indentation)\n    hint: indent with spaces, YAML does not allow tabs there",
        ),
        (
            "jobs: &x\n  - *x\n",
            "j.yaml:2:5: this alias stands inside what it repeats",
        ),
        (
            "jobs:\n  - id: a\n    run: *none\n",
            "j.yaml:3:10: no anchor `&none` stands before this alias\n    hint: a text that starts with `*` needs quotes",
        ),
    ] {
        expect("j.yaml", text, finding);
    }
}

#[test]
fn an_alias_bomb_is_refused_before_it_expands() {
    let mut text = String::from("l0: &l0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..12 {
        let below = vec![format!("*l{}", level - 1); 10].join(",");
        writeln!(text, "l{level}: &l{level} [{below}]").unwrap();
    }
    expect(
        "j.yaml",
        &text,
        "j.yaml:6:38: aliases expand to more than 1000000 values\n    hint: write the values out where they are used",
    );
    // Few values, but long ones.
    let aliases = vec!["*a"; 5_000].join(",");
    let long = format!("a: &a {}\nb: [{aliases}]\n", "x".repeat(1 << 20));
    let found = shown(&parse("j.yaml", &long));
    assert!(
        found.starts_with("j.yaml:2:32: aliases expand to more than 9 MiB of text"),
        "{found}"
    );
    let deep = format!("jobs: {}", "[".repeat(10_000));
    let file = parse("j.yaml", &deep);
    assert!(
        file.findings[0].message.contains("nested deeper than 64"),
        "{}",
        shown(&file)
    );
}

/// A body of a few kilobytes must not exhaust the stack, nor one of megabytes the processor.
#[test]
fn json_that_nests_without_end_is_refused_at_once() {
    for levels in [65, 5_000, 3_000_000] {
        let list = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        expect("j.json", &list, "j.json:1:65: nested deeper than 64 levels");
    }
    let maps = format!("{}1{}", "{\"a\":".repeat(5_000), "}".repeat(5_000));
    expect(
        "j.json",
        &maps,
        "j.json:1:321: nested deeper than 64 levels",
    );
    let in_text = format!("{{\"jobs\": [\"\\\"{}\"]}}", "[".repeat(100));
    let found = shown(&parse("j.json", &in_text));
    assert!(!found.contains("deeper"), "{found}");
}

#[test]
fn toml_that_nests_without_end_is_refused_at_once() {
    let key = vec!["a"; 70].join(".");
    let inline = format!("{}1{}", format!("{key} = {{ ").repeat(70), " }".repeat(70));
    let text = inline.replacen("{ 1", "{ a = 1", 1);
    let found = shown(&parse("j.toml", &text));
    assert!(found.contains("deeper than 64"), "{found}");
    // Nothing of this nests.
    let flat = "x = 1.5 # [[[ ...\n".repeat(100) + &"'''[[''''' = \"[{\\\"[\"\n".repeat(100);
    let found = shown(&parse("j.toml", &flat));
    assert!(!found.contains("deeper"), "{found}");
    let hidden = format!("a = ['''x'''', {inline}]");
    let found = shown(&parse("j.toml", &hidden));
    assert!(found.contains("deeper than 64"), "{found}");
}

#[test]
fn toml_and_json_have_places_too() {
    expect(
        "j.toml",
        "[[jobs]]\nid = \"a\"\ntimeout = 5\nrun = { command = [\"x\"] }\nschedule.timezone = \"Mars\"\nschedule.cron = \"* * 32 * *\"\n",
        "j.toml:3:11: a: timeout: must be a duration, not the number 5
    hint: add the unit: 5s or 5m
j.toml:5:21: a: schedule.timezone: `Mars` is no time zone of the database
    hint: write an IANA name, such as Asia/Shanghai, Europe/Berlin or UTC
j.toml:6:22: a: schedule.cron: day of month: `32` is out of range 1-31
    hint: write a number 1-31",
    );
    expect(
        "j.toml",
        "[[jobs]]\nid = \"a\"\nid = \"b\"\n",
        "j.toml:3:1: not valid TOML: duplicate key",
    );
    expect(
        "j.json",
        "{\n \"jobs\": [\n  {\"id\": \"ä\", \"run\": {\"command\": [\"x\"]}, \"schedule\": {\"cron\": \"* * 32 * *\"}, \"id\": 5}\n ]\n}",
        "j.json:3:10: ä: id: `ä` is not a job id
    hint: 1 to 63 characters: lower case letters, digits, `.`, `_`, `-`; the first is a letter or digit
j.json:3:68: ä: schedule.cron: day of month: `32` is out of range 1-31
    hint: write a number 1-31
j.json:3:78: the key `id` stands twice; the first is at line 3, column 4
    hint: keep one of them",
    );
    expect(
        "j.json",
        "{\n \"jobs\": [\n  {\"id\": \"a\",}\n ]\n}",
        "j.json:3:14: not valid JSON: key must be a string",
    );
}

#[test]
fn calendars_are_checked_and_written_out_into_the_jobs() {
    let file = parse_all(&[
        (
            "a.yaml",
            "jobs:\n  - id: a\n    run: { command: report }\n    schedule: { every: 5m, exclude: [hol, 2026-05-01] }\n",
        ),
        (
            "b.yaml",
            "calendars:\n  hol: [2026-12-25, 2026-12-31..2027-01-01]\ncommands:\n  report: [/bin/report, --all]\n",
        ),
    ]);
    assert_eq!(shown(&file), "");
    assert_eq!(
        file.jobs[0].schedule.exclude,
        ["2026-12-25", "2026-12-31..2027-01-01", "2026-05-01"]
    );
    assert_eq!(file.commands["report"], ["/bin/report", "--all"]);
    expect(
        "j.yaml",
        "calendars: { hol: [2026-13-01, yes], 1st: [] }\ncommands: { r: [], s: x }\n",
        r#"
j.yaml:1:20: `2026-13-01` is no date
    hint: write 2026-12-25 or 2026-12-24..2027-01-02
j.yaml:1:32: `yes` is no date
    hint: write 2026-12-25 or 2026-12-24..2027-01-02
j.yaml:1:38: the calendar's name `1st` looks like a date
    hint: start it with a letter
j.yaml:2:16: the command `r` is empty
    hint: write program and arguments: ["/usr/bin/report", "--all"]
j.yaml:2:23: a command is a list, not the text `x`
    hint: write [first, second]
"#,
    );
}

#[test]
fn the_same_job_in_three_formats() {
    let yaml = parse(
        "j.yaml",
        "x: &run { command: [\"/bin/true\"], env: { A: \"1\" } }\n"
            .replace(
                "x:",
                "commands: {}\ncalendars: {}\njobs:\n - id: base\n   labels: &l { a: b }\n   run:",
            )
            .as_str(),
    );
    assert_eq!(shown(&yaml), "");
    let json = parse(
        "j.json",
        r#"{"jobs": [{"id": "base", "labels": {"a": "b"}, "run": {"command": ["/bin/true"], "env": {"A": "1"}}}]}"#,
    );
    let toml = parse(
        "j.toml",
        "[[jobs]]\nid = \"base\"\nlabels.a = \"b\"\nrun.command = [\"/bin/true\"]\nrun.env.A = \"1\"\n",
    );
    assert_eq!(yaml.jobs.len(), 1);
    assert_eq!(yaml.jobs, json.jobs);
    assert_eq!(yaml.jobs, toml.jobs);
}

#[test]
fn aliases_and_merge_keys_save_repetition() {
    let file = parse(
        "j.yaml",
        "jobs:\n  - &base\n    id: a\n    timeout: 5m\n    run: &run { command: [x] }\n  - <<: *base\n    id: b\n    run: *run\n",
    );
    assert_eq!(shown(&file), "");
    assert_eq!(file.jobs[1].timeout, file.jobs[0].timeout);
    assert_eq!(
        (file.jobs[1].id.as_str(), &file.jobs[1].run),
        ("b", &file.jobs[0].run)
    );
}

#[test]
fn a_single_job_takes_its_id_from_elsewhere() {
    let source = |text: &str| Source {
        name: "body".into(),
        format: Format::Json,
        text: text.into(),
    };
    let job = JobFile::parse_job(&source(r#"{"run": {"handler": "h"}}"#), "j", NOW_MS).unwrap();
    assert_eq!(job.id, "j");
    let findings = JobFile::parse_job(&source(r#"{"run": {}, "x": 1}"#), "j", NOW_MS).unwrap_err();
    assert_eq!(findings.len(), 2);
    assert!(JobFile::parse_job(&source("[]"), "j", NOW_MS).is_err());
}

#[test]
fn a_definition_larger_than_a_store_takes_is_refused_by_name() {
    let long = "x".repeat(256 << 10);
    let text = format!("jobs:\n  - id: a\n    run: {{ command: [x, {long}] }}\n");
    expect(
        "j.yaml",
        &text,
        "j.yaml:2:5: a: the definition is 257 KiB long as JSON; at most 256 KiB are taken\n    hint: put the data into a file and name that",
    );
}

/// Whatever the text: an answer, never a panic, and each finding stands in the file.
#[test]
fn any_text_has_an_answer() {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    const PIECES: &[&str] = &[
        "jobs",
        "id",
        "run",
        "schedule",
        "cron",
        "every",
        "payload",
        "calendars",
        "commands",
        "<<",
        ":",
        ": ",
        "- ",
        "  ",
        "\n",
        "\n  ",
        "\n    ",
        "*",
        "*/5 * * * *",
        "&a",
        "*a",
        "@daily",
        "\"",
        "'",
        "[",
        "]",
        "{",
        "}",
        ",",
        "#",
        "|",
        ">",
        "!!str",
        "---",
        "...",
        "=",
        "[[jobs]]",
        "5m",
        "90",
        "-1",
        "1e400",
        "0x",
        "null",
        "ü日",
        "\u{feff}",
        "\t",
        "\r\n",
        "\\u12",
        "\0",
        "2026-01-01",
        "2026-02-30..2026-01-01",
        "Asia/Shanghai",
        "0 0 31 2 *",
    ];
    let text = prop::collection::vec(prop::sample::select(PIECES), 0..40);
    let mut runner = TestRunner::new(Config::with_cases(3_000));
    runner
        .run(&text, |pieces| {
            let text = pieces.concat();
            let lines = text.split('\n').count();
            for name in ["j.yaml", "j.toml", "j.json"] {
                let file = parse(name, &text);
                for finding in &file.findings {
                    prop_assert!(finding.line >= 1 && finding.column >= 1);
                    prop_assert!(finding.line as usize <= lines + 1, "{finding} of {lines}");
                    let texts = [
                        Some(&finding.message),
                        finding.hint.as_ref(),
                        finding.job.as_ref(),
                    ];
                    for text in texts.into_iter().flatten() {
                        prop_assert!(!text.contains(char::is_control), "{text:?}");
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}
