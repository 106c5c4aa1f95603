//! Many jobs at once, long histories, and whether counts are right.

use std::collections::BTreeMap;

use punctual::duration::Millis;
use punctual::job::run::{RunState, SkipReason};
use punctual::job::spec::JobSpec;
use punctual::keys::Keys;
use punctual_tests::check::history::History;
use punctual_tests::sim::faults::{Rates, Trouble};
use punctual_tests::sim::schedule::{Fault, Op};
use punctual_tests::sim::world::NAMESPACE;

use crate::stage::{MINUTE, Seen, Story as _, cron, does, every, once, stage, unix_ms};

fn percentile(mut values: Vec<i64>, percent: usize) -> i64 {
    values.sort_unstable();
    values[(values.len() * percent / 100).min(values.len() - 1)]
}

/// A12: every ten seconds is every ten seconds.
#[test]
fn a12_sixty_runs_in_ten_minutes() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 11 * MINUTE);
    plan.put(3_000, cron("a", "*/10 * * * * *"));
    let seen = plan.play();
    let in_time = seen
        .runs("a")
        .into_iter()
        .filter(|run| run.start_ms < 605_000);
    assert_eq!(in_time.count(), 60);
    assert!(percentile(seen.started_late_ms("a"), 99) <= 1_000);
}

/// Z01, scaled to half a minute: a thousand jobs, each every five seconds, on three nodes.
#[test]
fn z01_a_thousand_jobs_every_five_seconds() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 35_000);
    plan.end_ms = plan.heal_ms + 1_000;
    let jobs: Vec<JobSpec> = (0..1_000)
        .map(|n| cron(format!("job-{n}"), "*/5 * * * * *"))
        .collect();
    plan.put_all(3_000, jobs);
    for node in &mut plan.nodes {
        node.slots = 400;
    }
    let seen = plan.play();
    let expected = [10, 15, 20, 25, 30, 35];
    let (mut runs, mut late) = (0, Vec::new());
    for n in 0..1_000 {
        let job = format!("job-{n}");
        let fires = seen.fires_s(&job);
        assert!(fires.ends_with(&expected), "{job}: {fires:?}");
        assert_eq!(seen.runs(&job).len(), fires.len());
        runs += fires.len();
        late.extend(seen.started_late_ms(&job));
    }
    assert!(runs >= 5_000);
    let (half, most) = (percentile(late.clone(), 50), percentile(late, 99));
    assert!(half < 600 && most < 1_500, "{half} {most}");
}

/// How many records stood at the end of each minute.
fn standing(seen: &Seen) -> Vec<usize> {
    let keys = Keys::new(NAMESPACE);
    let mut minutes = vec![0];
    let (mut standing, mut minute) = (BTreeMap::new(), 0);
    for logged in &seen.observed.log {
        while logged.at_ms >= (minute + 1) * MINUTE {
            minute += 1;
            minutes.push(standing.len());
        }
        for event in &logged.events {
            match event {
                punctual::backend::Event::Put(entry) => {
                    standing.insert(entry.key.clone(), ());
                }
                punctual::backend::Event::Delete { key, .. } => {
                    standing.remove(key);
                }
            }
        }
    }
    assert!(standing.contains_key(keys.leader().as_slice()));
    minutes
}

/// Z04, scaled: 2000 runs in two thirds of an hour and five kept of each job: the number of keys in the
/// store reaches a plateau. (The memory of a process is measured by the soak of a real cluster.)
#[test]
fn z04_history_is_bounded() {
    let mut plan = stage(2, "2026-03-01T00:00:00Z", 42 * MINUTE);
    let jobs = (0..8).map(|n| {
        let mut job = every(format!("job-{n}"), 10);
        job.history.keep_success = 5;
        job
    });
    plan.put_all(3_000, jobs.collect());
    let seen = plan.play();
    assert!(seen.observed.effects.len() >= 2_000);
    let minutes = standing(&seen);
    let peak = |from: usize, until: usize| *minutes[from..until].iter().max().unwrap();
    // The leader sweeps every ten minutes.
    let (warm, last) = (peak(2, 31), peak(31, 42));
    assert!(last <= warm, "{minutes:?}");
    // Sixty runs of each job between two sweeps, five kept, and what stands anyway.
    assert!(last < 8 * (60 + 5) + 70, "{minutes:?}");
}

/// A store that is away for a moment while many jobs are pruned: they stay due.
#[test]
fn a_moment_without_a_store_leaves_no_job_unpruned() {
    let mut plan = stage(1, "2026-03-01T00:00:00Z", 6 * MINUTE);
    let jobs = (0..100).map(|n| {
        let mut job = every(format!("job-{n:02}"), 2);
        job.history.keep_success = 5;
        job.history.keep_failed = 5;
        job.history.keep_skipped = 5;
        job
    });
    plan.put_all(3_000, jobs.collect());
    let refused = Rates {
        refuse: 1_000,
        ..Rates::default()
    };
    plan.trouble(0, 67_500, 69_000, Trouble::Lossy(refused));
    let minutes = standing(&plan.play());
    // Five records of each job, up to about twice eight more, and what stands anyway.
    let last = *minutes.last().unwrap();
    assert!(last < 100 * (5 + 16) + 400, "{minutes:?}");
}

/// Z06: five thousand jobs are made at once and due at once. The leader does not wait between its
/// batches, and neither holds up a job of every second.
#[test]
fn z06_a_burst_is_decided_without_a_pause() {
    let mut plan = stage(1, "2026-03-01T00:00:00Z", 25_000);
    plan.end_ms = plan.heal_ms + 8_000;
    plan.nodes[0].slots = 5_000;
    let due = unix_ms("2026-03-01T00:00:20Z");
    let jobs: Vec<JobSpec> = (0..5_000).map(|n| once(format!("job-{n}"), due)).collect();
    plan.put(3_000, cron("often", "* * * * * *"));
    plan.put_all(10_100, jobs);
    let seen = plan.play();
    let burst = seen.created.iter().filter(|run| run.record.job != "often");
    let mut times: Vec<u64> = burst.map(|run| run.at_ms).collect();
    times.sort_unstable();
    assert_eq!(times.len(), 5_000);
    assert!(times[0] < 20_050, "{}", times[0]);
    // A way to the store and back takes 8 ms at most.
    let longest = times.windows(2).map(|two| two[1] - two[0]).max().unwrap();
    assert!(longest <= 20, "{longest} ms between two batches");
    let took = times.last().unwrap() - times[0];
    assert!(took < 1_000, "{took} ms for all");
    let ran = seen
        .observed
        .effects
        .iter()
        .filter(|run| run.job != "often");
    let starts: Vec<u64> = ran.map(|run| run.start_ms).collect();
    assert_eq!(starts.len(), 5_000);
    let last = starts.into_iter().max().unwrap();
    assert!(last < 24_000, "{last}");
    let late = seen.late_ms("often").into_iter().max().unwrap();
    // Fifty changes of a hundred jobs each are taken in, one after another.
    assert!(late < 500, "{late} ms");
}

/// Z07: a thousand jobs that must start within ten seconds, on a store that takes 20 ms a write.
#[test]
fn z07_a_deadline_is_not_missed_by_our_own_delay() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 50_000);
    plan.end_ms = plan.heal_ms + 1_000;
    let due = unix_ms("2026-03-01T00:00:20Z");
    let jobs = (0..1_000).map(|n| {
        let mut job = once(format!("job-{n}"), due);
        job.start_deadline = Some(Millis::from_secs(10));
        job
    });
    plan.put_all(3_000, jobs.collect());
    for node in 0..3 {
        plan.trouble(node, 10_000, 50_000, Trouble::SlowWrites(20));
    }
    let seen = plan.play();
    assert_eq!(seen.observed.effects.len(), 1_000);
    let skipped = seen
        .ended
        .iter()
        .filter(|end| end.record.skipped == Some(SkipReason::Deadline));
    assert_eq!(skipped.count(), 0);
    let latest = seen
        .observed
        .effects
        .iter()
        .map(|run| run.start_ms)
        .max()
        .unwrap();
    assert!(latest < 30_000, "{latest}");
}

/// V02: runs come and go by hand, by the schedule, by cancels and by pruning, on a bad day: what stands
/// at each revision is what creations and ends come to, in each state.
#[test]
fn v02_counts_come_to_what_stands() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 12 * MINUTE);
    for n in 0..6 {
        let mut job = does(cron(format!("job-{n}"), "*/3 * * * * *"), "ok", 2_000);
        job.history.keep_success = 3;
        job.history.keep_failed = 3;
        plan.put(3_000 + n, job);
    }
    for turn in 0..600 {
        let job = format!("job-{}", turn % 6);
        let op = if turn % 2 == 0 {
            Op::Trigger(job, format!("k{turn}"))
        } else {
            Op::Cancel(job)
        };
        plan.ops.push((
            10_000 + turn * 1_137,
            usize::try_from(turn % 3).unwrap(),
            op,
        ));
    }
    plan.fault(5 * MINUTE, Fault::CrashLeader { down_ms: 10_000 });
    let seen = plan.play();
    let history = History::new(&seen.observed);
    let mut counts: BTreeMap<RunState, i64> = BTreeMap::new();
    let mut steps = 0;
    for (_, _, step) in history.steps() {
        for (held, by) in [(&step.before, -1), (&step.after, 1)] {
            if let Some(held) = held {
                let count = counts.entry(held.record.state).or_default();
                *count += by;
                steps += 1;
            }
        }
    }
    assert!(counts.values().all(|count| *count >= 0), "{counts:?}");
    assert!(steps >= 10_000, "{steps}");
    let keys = Keys::new(NAMESPACE);
    let mut recount: BTreeMap<RunState, i64> = BTreeMap::new();
    for (key, (value, _)) in &history.last {
        if (keys.runs().contains(key) || keys.all_done().contains(key))
            && let Ok(record) =
                punctual::job::record::decode::<punctual::job::record::RunRecord>(value)
        {
            *recount.entry(record.state).or_default() += 1;
        }
    }
    counts.retain(|_, count| *count > 0);
    assert_eq!(counts, recount);
}
