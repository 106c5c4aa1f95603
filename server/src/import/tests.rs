//! What is written is read again by our own parser, and fires when the other scheduler did.

use punctual::job::spec::CommandSpec;
use punctual::schedule::Schedule;
use serde_json::json;

use super::*;
use crate::jobfile::{Format, JobFile, Source};

/// 2026-01-01T00:00:00Z.
const NOW_MS: i64 = 1_767_225_600_000;

#[track_caller]
fn read(name: &str, text: &str) -> Imported {
    let options = Options {
        system: None,
        timezone: Some("Europe/Berlin".into()),
    };
    let imported = import(name, text, &options, NOW_MS);
    // Whatever is written, `check` takes it and reads the same.
    let yaml = serde_saphyr::to_string(&json!({ "jobs": imported.jobs })).unwrap();
    let source = Source {
        name: "out.yaml".into(),
        format: Format::Yaml,
        text: yaml.clone(),
    };
    let file = JobFile::parse(&[source], NOW_MS);
    assert_eq!(file.findings, [], "{yaml}");
    assert_eq!(file.jobs, imported.jobs);
    imported
}

fn argv(job: &JobSpec) -> Vec<&str> {
    match &job.run.command {
        Some(CommandSpec::Argv(argv)) => argv.iter().map(String::as_str).collect(),
        other => panic!("{other:?}"),
    }
}

fn next(job: &JobSpec, count: usize) -> Vec<String> {
    let schedule = Schedule::compile(&job.schedule, NOW_MS, &Calendars::default()).unwrap();
    let fires = schedule.after(NOW_MS).take(count);
    fires
        .map(|o| schedule.zone().rfc3339(o.at_ms / 1_000))
        .collect()
}

#[track_caller]
fn says(imported: &Imported, line: usize, text: &str) {
    let notes = &imported.notes;
    let found = notes
        .iter()
        .any(|n| n.line == line && n.text.contains(text));
    assert!(found, "line {line}: {text}: {notes:#?}");
}

const USER: &str = r#"# m h dom mon dow command
SHELL=/bin/bash
PATH="/usr/local/bin:/usr/bin:/bin"
MAILTO=ops@example.org

# Nightly backup
30 2 * * * /usr/local/bin/backup.sh --all
*/15 9-17 * * 1-5	cd /srv/app && ./poll
0 0 1,15 * 5 /usr/local/bin/backup.sh --full
CRON_TZ=America/New_York
0 9 * * MON-FRI mail -s "it is \%H" me%Hello,%it's time.
@daily /usr/bin/clean
@reboot /usr/bin/start
-5 4 * * sun /usr/bin/rotate
0 4 * * 7 /usr/bin/rotate
5~20 4 * * * /usr/bin/random
61 * * * * /usr/bin/never
nonsense
"#;

#[test]
fn a_users_crontab_keeps_its_times_and_says_what_is_different() {
    let imported = read("tab", USER);
    let ids: Vec<&str> = imported.jobs.iter().map(|job| job.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "backup", "poll", "backup-2", "mail", "clean", "rotate", "rotate-2"
        ]
    );
    let [backup, poll, full, mail, clean, rotate, sunday] = &imported.jobs[..] else {
        panic!("{ids:?}");
    };
    assert_eq!(backup.name.as_deref(), Some("Nightly backup"));
    assert_eq!(
        argv(backup),
        ["/bin/bash", "-c", "/usr/local/bin/backup.sh --all"]
    );
    assert_eq!(backup.run.env["PATH"], "/usr/local/bin:/usr/bin:/bin");
    assert_eq!(next(backup, 1), ["2026-01-01T02:30:00+01:00"]);
    assert_eq!(argv(poll)[2], "cd /srv/app && ./poll");
    assert_eq!(
        next(poll, 2),
        ["2026-01-01T09:00:00+01:00", "2026-01-01T09:15:00+01:00"]
    );
    // The 1st, the 15th, and every Friday.
    assert_eq!(
        next(full, 3),
        [
            "2026-01-02T00:00:00+01:00",
            "2026-01-09T00:00:00+01:00",
            "2026-01-15T00:00:00+01:00"
        ]
    );
    says(&imported, 9, "or the day of the week `5`");
    assert_eq!(next(mail, 1), ["2026-01-01T09:00:00-05:00"]);
    assert_eq!(
        argv(mail)[2],
        "printf '%s\\n' 'Hello,' 'it'\\''s time.' | ( mail -s \"it is %H\" me )"
    );
    says(&imported, 11, "standard input");
    assert_eq!(next(clean, 1), ["2026-01-01T00:00:00-05:00"]);
    // Sunday has two numbers and a name.
    assert_eq!(next(rotate, 1), ["2026-01-04T04:05:00-05:00"]);
    assert_eq!(next(sunday, 1), ["2026-01-04T04:00:00-05:00"]);
    for (line, text) in [
        (4, "nothing is mailed"),
        (10, "timezone: America/New_York"),
        (13, "@reboot has no time"),
        (16, "at random"),
        (17, "out of range"),
        (18, "neither a job nor a variable"),
        (0, "Europe/Berlin"),
        (0, "time limit"),
        (0, "overlap"),
    ] {
        says(&imported, line, text);
    }
    let refused = imported.notes.iter().filter(|note| note.refused).count();
    assert_eq!(refused, 4);
}

#[test]
fn the_systems_crontab_has_users_whether_its_name_says_so_or_its_lines() {
    let text = "17 *\t* * *\troot\tcd / && run-parts --report /etc/cron.hourly\n\
                0 3 * * *  www-data  /usr/bin/php /srv/jobs/report.php\n";
    for name in ["/etc/crontab", "/etc/cron.d/app", "-"] {
        let imported = read(name, text);
        let [hourly, report] = &imported.jobs[..] else {
            panic!("{name}: {:?}", imported.notes);
        };
        assert_eq!(
            argv(hourly)[2],
            "cd / && run-parts --report /etc/cron.hourly"
        );
        assert_eq!(
            (hourly.id.as_str(), report.id.as_str()),
            ("run-parts", "php")
        );
        says(&imported, 2, "cron runs it as www-data");
        says(&imported, 0, "a node runs everything as its own");
    }
    // A user's own line may begin with such a word as well, but not all of them do.
    let imported = read("-", "0 3 * * * mail -s x me\n0 4 * * * /bin/true\n");
    assert_eq!(argv(&imported.jobs[0])[2], "mail -s x me");
}

/// Cron's reading and ours, of everything that stands in crontabs.
#[test]
fn each_expression_fires_as_cron_does() {
    for (cron, fires) in [
        ("0 0 * * 0", "2026-01-04T00:00:00+01:00"),
        ("0 0 * * 7", "2026-01-04T00:00:00+01:00"),
        ("@weekly", "2026-01-04T00:00:00+01:00"),
        ("@monthly", "2026-02-01T00:00:00+01:00"),
        ("@hourly", "2026-01-01T02:00:00+01:00"),
        ("@midnight", "2026-01-02T00:00:00+01:00"),
        ("0 0 */10 * *", "2026-01-11T00:00:00+01:00"),
        ("0 0 13 * fri", "2026-01-02T00:00:00+01:00"),
        ("*/20 * * jan *", "2026-01-01T01:20:00+01:00"),
    ] {
        let imported = read("tab", &format!("{cron} /bin/true\n"));
        assert_eq!(next(&imported.jobs[0], 1), [fires], "{cron}");
    }
}

#[test]
fn a_cronjob_of_kubernetes_keeps_its_policies() {
    let text = r"
apiVersion: batch/v1
kind: CronJob
metadata:
  name: report
  labels: { team: billing }
spec:
  schedule: '5 0 * * *'
  timeZone: Asia/Shanghai
  concurrencyPolicy: Forbid
  startingDeadlineSeconds: 300
  successfulJobsHistoryLimit: 3
  failedJobsHistoryLimit: 1
  suspend: true
  jobTemplate:
    spec:
      backoffLimit: 2
      activeDeadlineSeconds: 600
      template:
        spec:
          restartPolicy: Never
          containers:
            - name: report
              image: example.org/report:7
              command: [/usr/local/bin/report]
              args: [--channel, all]
              env:
                - { name: LANG, value: C }
                - name: KEY
                  valueFrom: { secretKeyRef: { name: k, key: v } }
---
kind: CronJob
metadata: { name: entry }
spec:
  schedule: '@hourly'
  jobTemplate: { spec: { template: { spec: { containers: [{ image: x }] } } } }
---
kind: ConfigMap
metadata: { name: other }
";
    let imported = read("cronjobs.yaml", text);
    let [job] = &imported.jobs[..] else {
        panic!("{:?}", imported.notes);
    };
    assert_eq!(argv(job), ["/usr/local/bin/report", "--channel", "all"]);
    assert_eq!(
        next(
            &JobSpec {
                enabled: true,
                ..job.clone()
            },
            1
        ),
        ["2026-01-02T00:05:00+08:00"]
    );
    assert_eq!(
        json!({
            "overlap": job.overlap, "deadline": job.start_deadline, "timeout": job.timeout,
            "attempts": job.retry.attempts, "success": job.history.keep_success,
            "failed": job.history.keep_failed, "enabled": job.enabled,
            "env": job.run.env, "labels": job.labels,
        }),
        json!({
            "overlap": "skip", "deadline": "5m", "timeout": "10m", "attempts": 3, "success": 3,
            "failed": 1, "enabled": false, "env": { "LANG": "C" }, "labels": { "team": "billing" },
        })
    );
    for text in [
        "KEY comes from elsewhere",
        "the image is not used",
        "suspended",
    ] {
        says(&imported, 1, text);
    }
    says(&imported, 32, "what the image x begins with");
    says(&imported, 38, "only CronJobs");
}

#[test]
fn ids_are_words_and_no_two_are_the_same() {
    let mut reading = Reading::default();
    for (wanted, id) in [
        ("Back Up!", "back-up"),
        ("back-up", "back-up-2"),
        ("../..", "job"),
        ("日本", "job-2"),
        ("_x", "x"),
    ] {
        assert_eq!(reading.id(wanted), id);
    }
    let long = reading.id(&"x".repeat(200));
    assert!(punctual::job::spec::is_valid_id(&long), "{long}");
}
