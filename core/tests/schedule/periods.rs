//! Rows M.. of the behaviour table that a schedule alone decides: periods, bounds and jitter.

use punctual::schedule::{Calendars, Schedule, ScheduleSpec};

use crate::helpers::{compile, ms, spec};

#[test]
fn m06_m14_m24_a_period_keeps_its_anchor() {
    let anchor = ms("2026-01-01T10:20:30.700Z");
    for (period, seconds) in [("60s", 60), ("6h", 21_600), ("7d", 604_800)] {
        let spec = ScheduleSpec {
            every: Some(period.parse().unwrap()),
            ..ScheduleSpec::default()
        };
        let schedule = Schedule::compile(&spec, anchor, &Calendars::default()).unwrap();
        let first = ms("2026-01-01T10:20:30Z") + seconds * 1_000;
        // Wherever a restart falls, the fires are the anchor and multiples of the period.
        assert_eq!(schedule.next_fire(anchor), Some(first));
        assert_eq!(schedule.next_fire(i64::MIN), Some(first));
        assert_eq!(schedule.previous(first), None);
        for restart in 1..200 {
            let now = anchor + restart * seconds * 333;
            let next = schedule.next_fire(now).unwrap();
            assert!(next > now && next - now <= seconds * 1_000);
            assert_eq!((next - first) % (seconds * 1_000), 0, "{period} {restart}");
            let previous = schedule.previous(next).map(|it| it.at_ms);
            let expected = (next > first).then_some(next - seconds * 1_000);
            assert_eq!(previous, expected);
        }
    }
}

#[test]
fn m21_jitter_of_the_last_occurrence_stays_in_its_bound() {
    let bounded = |jitter: Option<&str>| ScheduleSpec {
        end: Some("2026-01-02T12:00:00Z".into()),
        jitter: jitter.map(|text| text.parse().unwrap()),
        ..spec("0 0 * * *", "UTC")
    };
    let only = ms("2026-01-02T00:00:00Z");
    let after = ms("2026-01-01T00:00:00Z");
    for jitter in [None, Some("30s"), Some("50d")] {
        let schedule = compile(&bounded(jitter));
        let instants: Vec<_> = schedule.after(after).map(|it| it.at_ms).collect();
        assert_eq!(instants, [only], "jitter does not move the instant");
    }
    assert_eq!(compile(&bounded(None)).jitter_ms("job", only), 0);
    let schedule = compile(&bounded(Some("30s")));
    let delays: Vec<_> = (0..1_000)
        .map(|n| schedule.jitter_ms(&format!("job-{n}"), only))
        .collect();
    assert!(delays.iter().all(|delay| *delay <= 30_000));
    // A hash, not a constant: spread over the whole of it, the same each time.
    assert!(delays.iter().any(|delay| *delay < 3_000));
    assert!(delays.iter().any(|delay| *delay > 27_000));
    assert_eq!(delays[7], schedule.jitter_ms("job-7", only));
}
