//! Code that panics, or never comes back.

use punctual::duration::Millis;
use punctual::job::run::{FailReason, RunState};

use crate::stage::{MINUTE, Story as _, cron, does, stage};

/// S02: a handler panics: its run fails, says so, and the next instant fires.
#[test]
fn s02_a_panic_is_the_runs_own() {
    let mut plan = stage(1, "2026-03-01T00:00:00Z", MINUTE);
    plan.put(3_000, does(cron("a", "*/10 * * * * *"), "panic", 10));
    let seen = plan.play();
    assert!(seen.runs("a").len() >= 9);
    assert_eq!(seen.runs("a").len(), seen.fires("a").len());
    for end in seen.ends("a") {
        assert_eq!(end.state, RunState::Failed);
        assert_eq!(end.failed, Some(FailReason::Panic));
        assert!(end.error.as_deref().unwrap().contains("as told"), "{end:?}");
    }
    assert_eq!(seen.observed.lives.len(), 1);
}

/// S06: a call that never returns: everything else is decided and started in time, and its run ends at
/// its time limit.
#[test]
fn s06_a_call_that_never_returns_holds_nobody_up() {
    for what in ["hang", "deaf"] {
        let mut plan = stage(1, "2026-03-01T00:00:00Z", 2 * MINUTE);
        let mut stuck = does(cron("stuck", "*/20 * * * * *"), what, 1_000_000);
        stuck.timeout = Millis::from_secs(15);
        plan.put(3_000, stuck);
        plan.put(3_000, cron("often", "* * * * * *"));
        let seen = plan.play();
        let often = seen.fires_s("often");
        assert!(often.len() > 110);
        assert!(often.windows(2).all(|two| two[1] == two[0] + 1));
        assert!(
            seen.started_late_ms("often")
                .iter()
                .all(|late| *late < 2_000)
        );
        let mut ends = seen.ends("stuck").peekable();
        assert!(ends.peek().is_some());
        for end in ends {
            assert_eq!(end.failed, Some(FailReason::Timeout), "{what}");
            let lasted = end.ended_ms.unwrap() - end.started_ms.unwrap();
            assert!((15_000..21_000).contains(&lasted), "{what}: {lasted} ms");
        }
    }
}
