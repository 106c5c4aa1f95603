//! Clocks that step, slip, and are believed or not.

use punctual::job::spec::Misfire;
use punctual_tests::sim::schedule::Fault;

use crate::stage::{DAY, HOUR, MINUTE, Seen, Story as _, cron, once, stage};

const HOURS: i64 = 3_600_000;

/// How long the longest time without a start of the job was, in milliseconds.
fn longest_silence_ms(seen: &Seen, job: &str) -> u64 {
    let runs = seen.runs(job);
    let starts = runs.windows(2).map(|two| two[1].start_ms - two[0].start_ms);
    starts.max().unwrap()
}

fn is_each_minute_once(seen: &Seen, job: &str, minutes: usize) {
    let fires = seen.fires_s(job);
    assert!(
        fires.windows(2).all(|two| two[1] == two[0] + 60),
        "{fires:?}"
    );
    assert!(fires.len() >= minutes, "{fires:?}");
    assert_eq!(seen.runs(job).len(), fires.len());
}

/// K01: the leader's clock steps back by two hours, for ten minutes. Nothing repeats, and the others
/// go on in time.
#[test]
fn k01_two_hours_back() {
    let mut plan = stage(3, "2026-03-01T04:58:30Z", 15 * MINUTE);
    plan.put(3_000, cron("often", "* * * * *"));
    plan.put(3_000, cron("fixed", "0 3,5 * * *"));
    plan.fault(
        60_000,
        Fault::Step {
            node: 0,
            ms: -2 * HOURS,
        },
    );
    plan.fault(11 * MINUTE, Fault::Step { node: 0, ms: 0 });
    let seen = plan.play();
    is_each_minute_once(&seen, "often", 15);
    assert_eq!(seen.fires_s("fixed"), [90]);
    assert!(
        seen.late_ms("fixed")[0] < 5_000,
        "{:?}",
        seen.late_ms("fixed")
    );
    assert!(seen.late_ms("often").iter().all(|late| *late < 5_000));
    assert!(longest_silence_ms(&seen, "often") < 65_000);
}

/// K02: the clock of the only node, which was 90 s behind, steps forward at every moment around an
/// instant: the instants that it jumps over are all decided, by the policy.
#[test]
fn k02_ninety_seconds_forward_between_two_readings() {
    for ms in [0, 1, 2, 3, 5, 8, 250, 499, 500, 501, 999] {
        let mut plan = stage(1, "2026-03-01T00:00:00Z", 6 * MINUTE);
        plan.put(3_000, cron("each", "*/15 * * * * *"));
        let mut skip = cron("skip", "*/15 * * * * *");
        skip.misfire = Misfire::Skip;
        skip.catch_up = punctual::duration::Millis::from_secs(10);
        plan.put(3_000, skip);
        let fault = Fault::BootWrong {
            node: 0,
            down_ms: 90_000,
            ms: -90_000,
            // The node sees an instant of its own clock just then.
            right_after_ms: 45_000 + ms,
        };
        plan.fault(14_998, fault);
        let seen = plan.play();
        let each = seen.fires_s("each");
        assert!(
            each.windows(2).all(|two| two[1] == two[0] + 15),
            "{ms}: {each:?}"
        );
        assert!(each.len() >= 24);
        let skipped: u64 = seen.skips("skip").iter().map(|skip| skip.1).sum();
        assert!(skipped >= 5, "{:?}", seen.skips("skip"));
        let all = u64::try_from(seen.fires("skip").len()).unwrap() + skipped;
        assert!(all >= 24, "none was left out in silence");
    }
}

/// K04: a time server says eight hours too much for half a minute, to the only node and to one of
/// three.
#[test]
fn k04_eight_hours_forward_and_back() {
    for nodes in [1, 3] {
        let mut plan = stage(nodes, "2026-03-01T00:00:30Z", 12 * MINUTE);
        plan.put(3_000, cron("often", "* * * * *"));
        plan.fault(
            2 * MINUTE,
            Fault::Step {
                node: 0,
                ms: 8 * HOURS,
            },
        );
        plan.fault(150_000, Fault::Step { node: 0, ms: 0 });
        let seen = plan.play();
        is_each_minute_once(&seen, "often", 12);
        // A clock that is alone is held for a minute after each step.
        let silence = if nodes == 1 { 160_000 } else { 65_000 };
        assert!(longest_silence_ms(&seen, "often") < silence);
        let late = seen.late_ms("often");
        assert!(late[6..].iter().all(|late| *late < 100), "{late:?}");
    }
}

/// K06: a second is told twice at midnight, or smeared over the quarter of an hour before.
#[test]
fn k06_a_leap_second() {
    for smeared in [false, true] {
        let mut plan = stage(3, "2016-12-31T23:45:00Z", 18 * MINUTE);
        plan.put(3_000, cron("every-second", "* * * * * *"));
        plan.put(3_000, cron("midnight", "0 0 * * *"));
        if smeared {
            for turn in 0..100 {
                plan.all(10_000 + turn * 8_900, |node| Fault::Creep { node, ms: -10 });
            }
        } else {
            plan.all(15 * MINUTE, |node| Fault::Step { node, ms: -1_000 });
        }
        let seen = plan.play();
        let fires = seen.fires_s("every-second");
        assert!(fires.windows(2).all(|two| two[1] == two[0] + 1));
        assert!(fires.len() > 1_070);
        assert_eq!(seen.runs("every-second").len(), fires.len());
        assert_eq!(seen.fires_s("midnight"), [900]);
        assert_eq!(seen.runs("midnight").len(), 1);
        assert!((0..1_100).contains(&seen.late_ms("midnight")[0]));
    }
}

/// K09: runs that are due in 25, 60 and 400 days; 2^31 ms are 24.8 days. (The nodes are awake for the
/// first minutes, in which none of them may start, and around each of the times.)
#[test]
fn k09_a_run_that_is_due_in_more_than_two_to_the_31_ms() {
    let mut plan = stage(2, "2026-03-01T00:00:00Z", 400 * DAY + 10 * MINUTE);
    plan.times.leader_ttl_ms = 10_000;
    let mut awake_until = 5 * MINUTE;
    for days in [25, 60, 400] {
        let at = plan.epoch_ms + (days * DAY).cast_signed();
        plan.put(3_000, once(format!("in-{days}-days"), at));
        let for_ms = days * DAY - 4 * MINUTE - awake_until;
        plan.all(awake_until, |node| Fault::Pause { node, for_ms });
        awake_until = days * DAY + 4 * MINUTE;
    }
    let seen = plan.play();
    for days in [25, 60, 400_u64] {
        let job = format!("in-{days}-days");
        let [run] = seen.runs(&job)[..] else {
            panic!("{job} ran {} times", seen.runs(&job).len());
        };
        let late = run.start_ms.checked_sub(days * DAY).expect("not early");
        assert!(late < 100, "{job}: {late} ms late");
    }
    assert_eq!(seen.observed.lives.len(), 2, "in one life of the nodes");
    assert!(HOUR < DAY);
}
