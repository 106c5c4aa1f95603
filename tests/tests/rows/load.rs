//! Many jobs at once, and long histories.

use std::time::{Duration, Instant};

use punctual::backend::Event;
use punctual::control::RunKind;
use punctual::job::spec::JobSpec;
use punctual::keys::Keys;
use punctual::schedule::ScheduleSpec;
use punctual_tests::check::History;
use punctual_tests::cluster::inside::{HANDLER, Inside};
use punctual_tests::cluster::report::Report;
use punctual_tests::cluster::{Cluster, unix_ms};
use punctual_tests::meddler::Meddling;
use punctual_tests::sim::world::NAMESPACE;

/// Z02: 2000 jobs made at once, all of them due at one second.
#[test]
fn z02_two_thousand_jobs_due_at_once() {
    let cluster = Inside::start(2, Meddling::None);
    let due_ms = (unix_ms() / 1_000 + 30) * 1_000;
    let jobs: Vec<JobSpec> = (0..2_000)
        .map(|n| {
            let mut job = JobSpec::handler(format!("job-{n}"), HANDLER);
            job.schedule = ScheduleSpec {
                at: Some(punctual::time::rfc3339_ms(due_ms)),
                ..ScheduleSpec::default()
            };
            job
        })
        .collect();
    let start = Instant::now();
    cluster.apply(&jobs);
    println!("2000 jobs in {:?}", start.elapsed());
    assert!(unix_ms() < due_ms, "too late to be due at once");
    cluster.wait_until("2000 executions", |cluster| cluster.executed() >= 2_000);
    let took_ms = unix_ms() - due_ms;
    let observed = cluster.settle(&[]);
    assert!(cluster.all_live());
    let violations = Cluster::judge(&observed);
    let report = Report::of(&observed);
    println!("all executed after {took_ms} ms\n{report}");
    assert!(violations.is_empty(), "{violations:#?}");
    assert_eq!((report.fires, report.executions), (2_000, 2_000));
}

/// P11: a hundred runs of each of four jobs that keep five. What stays is bounded, and what goes
/// goes in small requests.
#[test]
fn p11_history_stays_within_its_bound() {
    const KEEP: u32 = 5;
    // A job is pruned when it has grown by eight records.
    const SLACK: usize = 8;
    let cluster = Inside::start(1, Meddling::None);
    let jobs: Vec<JobSpec> = (0..4)
        .map(|n| {
            let mut job = JobSpec::handler(format!("job-{n}"), HANDLER);
            job.history.keep_success = KEEP;
            job
        })
        .collect();
    cluster.apply(&jobs);
    cluster.block_on(async {
        for n in 0..100 {
            for job in &jobs {
                let key = format!("key-{n}");
                cluster.control.trigger(&job.id, None, &key).await.unwrap();
            }
        }
    });
    cluster.wait_until("400 executions", |cluster| cluster.executed() >= 400);
    let keys = Keys::new(NAMESPACE);
    let done = keys.all_done();
    cluster.wait_until("the pruning of what is too much", |cluster| {
        let standing = cluster.tap.standing();
        let stays = standing.keys().filter(|key| done.contains(key)).count();
        stays <= jobs.len() * (KEEP as usize + SLACK)
    });
    std::thread::sleep(Duration::from_millis(500));
    let observed = cluster.settle(&jobs);
    assert_eq!(Cluster::judge(&observed), []);
    let history = History::new(&observed);
    let manual = history.steps().filter(|(_, done, step)| {
        *done
            && step.before.is_none()
            && step
                .after
                .as_ref()
                .is_some_and(|after| after.record.kind == RunKind::Manual)
    });
    assert_eq!(manual.count(), 400, "all of them ended");
    let most = observed.log.iter().map(|logged| {
        let gone = |event: &&Event| matches!(event, Event::Delete { .. });
        logged.events.iter().filter(gone).count()
    });
    let most = most.max().unwrap();
    println!("at most {most} deletes in a request");
    assert!((1..=128).contains(&most));
}
