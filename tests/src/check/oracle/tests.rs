use punctual::duration::Millis;
use punctual::job::spec::JobSpec;
use punctual::schedule::{Dialect, DstRules};

use super::*;

const MARCH: i64 = 1_772_323_200_000;
const HOUR: i64 = 3_600_000;

fn cron(text: &str) -> JobSpec {
    JobSpec::handler("a", "h").cron(text)
}

fn zoned(text: &str, zone: &str, dst: DstRules) -> JobSpec {
    let mut spec = cron(text);
    spec.schedule.timezone = Some(zone.into());
    spec.schedule.dst = dst;
    spec
}

fn count(spec: &JobSpec) -> usize {
    instants(spec, 0, MARCH, MARCH + HOUR).unwrap().len()
}

#[test]
fn reads_what_the_simulation_makes() {
    let count = |text: &str| count(&cron(text));
    assert_eq!(count("* * * * * *"), 3_600);
    assert_eq!(count("*/7 * * * * *"), 9 * 60);
    assert_eq!(count("3,40 * * * * *"), 120);
    assert_eq!(count("5-9 * * * * *"), 300);
    assert_eq!(count("5 */2 * * * *"), 30);
    assert_eq!(count("* * * * *"), 60);
    assert_eq!(count("0 0 1 3 *"), 1);
    assert_eq!(count("0 0 2 3 *"), 0);
    // 2026-03-01 is a Sunday.
    assert_eq!(count("0 0 * * 0"), 1);
    assert_eq!(count("0 0 2 * SUN"), 1, "either day is enough");
    assert_eq!(count("0 0 2 * MON"), 0);
}

#[test]
fn reads_quartz() {
    let quartz = |text: &str| {
        let mut spec = cron(text);
        spec.schedule.dialect = Dialect::Quartz;
        count(&spec)
    };
    assert_eq!(quartz("0 0 0 ? * 1"), 1, "1 is Sunday");
    assert_eq!(quartz("0 0 0 ? * 2"), 0);
    assert_eq!(quartz("0 * * * * ? 2026"), 60);
    assert_eq!(quartz("0 * * * * ? 2027"), 0);
    assert_eq!(count(&cron("0/20 * * ? MAR SUN-MON")), 180, "auto");
}

#[test]
fn reads_instants_and_periods() {
    assert_eq!(rfc3339("2026-03-01T00:00:00.000Z"), Some(MARCH / 1_000));
    assert_eq!(rfc3339("2024-02-29T23:59:59Z"), Some(1_709_251_199));
    let spec = JobSpec::handler("a", "h").every(Millis::from_secs(10));
    assert_eq!(
        instants(&spec, MARCH + 700, MARCH, MARCH + 25_000).unwrap(),
        [MARCH + 10_000, MARCH + 20_000]
    );
}

#[test]
fn leaves_out_excluded_dates() {
    let mut spec = cron("0 */12 * * *");
    spec.schedule.exclude = vec!["2026-03-02".into(), "2026-03-04..2026-03-05".into()];
    let found = occurrences(&spec, 0, MARCH, MARCH + 6 * 24 * HOUR).unwrap();
    let fires: Vec<i64> = found
        .iter()
        .filter(|found| found.verdict == Verdict::Fire)
        .map(|found| (found.at_ms - MARCH) / (12 * HOUR))
        .collect();
    assert_eq!(found.len(), 12);
    assert_eq!(fires, [0, 1, 4, 5, 10, 11]);
}

/// Instants are stated by hand: the clock of Berlin goes from 02:00 to 03:00 at 2026-03-29T01:00Z
/// and from 03:00 to 02:00 at 2026-10-25T01:00Z.
#[test]
fn the_clock_of_berlin() {
    let at = |text: &str| rfc3339(text).unwrap() * 1_000;
    let (spring, autumn) = (at("2026-03-29T01:00:00Z"), at("2026-10-25T01:00:00Z"));
    let found = |text: &str, dst: DstRules, change: i64| -> Vec<(i64, Verdict)> {
        let spec = zoned(text, "Europe/Berlin", dst);
        let found = occurrences(&spec, 0, change - 2 * HOUR, change + 3 * HOUR).unwrap();
        let minutes = |found: Occurrence| ((found.at_ms - change) / 60_000, found.verdict);
        found.into_iter().map(minutes).collect()
    };
    let fire = |minutes: &[i64]| -> Vec<(i64, Verdict)> {
        minutes.iter().map(|m| (*m, Verdict::Fire)).collect()
    };
    let default = DstRules::default();
    let skip = DstRules {
        gap: Gap::Skip,
        ..default
    };
    let twice = DstRules {
        overlap: Overlap::Twice,
        ..default
    };
    assert_eq!(found("30 2 * * *", default, spring), fire(&[0]));
    assert_eq!(
        found("10,30 2,3 * * *", default, spring),
        fire(&[0, 10, 30])
    );
    assert_eq!(found("30 2 * * *", skip, spring), [(0, Verdict::DstGap)]);
    assert_eq!(found("0 2,3 * * *", skip, spring), fire(&[0]));
    assert_eq!(found("*/30 2 * * *", default, spring), []);
    assert_eq!(found("30 2 * * *", default, autumn), fire(&[-30]));
    assert_eq!(found("30 2 * * *", twice, autumn), fire(&[-30, 30]));
    assert_eq!(
        found("*/30 2 * * *", default, autumn),
        fire(&[-60, -30, 0, 30])
    );
    assert_eq!(found("30 3 * * *", default, autumn), fire(&[90]));
}
