//! Explanations of a table of schedules, as of 2026-01-01T00:00:00Z.

use super::super::spec::{DstRules, Gap, Overlap};
use super::*;

const NOW_MS: i64 = 1_767_225_600_000;

fn cron(text: &str, zone: &str) -> ScheduleSpec {
    ScheduleSpec {
        cron: Some(text.into()),
        timezone: Some(zone.into()),
        ..ScheduleSpec::default()
    }
}

fn explained(spec: &ScheduleSpec) -> Explanation {
    explain(spec, NOW_MS, &Calendars::default(), 3, Language::English).unwrap()
}

fn codes(spec: &ScheduleSpec) -> Vec<LintCode> {
    explained(spec).lints.iter().map(|lint| lint.code).collect()
}

#[test]
fn says_in_words_what_an_expression_means() {
    for (text, english, chinese) in [
        ("* * * * *", "Every minute", "每分钟"),
        ("*/10 * * * * *", "Every 10 seconds", "每 10 秒"),
        ("@daily", "At 00:00, every day", "每天，00:00"),
        ("@weekly", "At 00:00, on Sunday", "周日，00:00"),
        ("30 * * * *", "At minute 30, every hour", "每小时，第 30 分"),
        ("*/90 * * * *", "At minute 0, every hour", "每小时，第 0 分"),
        (
            "0 9-17 * * MON-FRI",
            "At minute 0, in hours 9 to 17, on Monday to Friday",
            "周一至周五，第 9 至 17 点，第 0 分",
        ),
        (
            "*/20 59 1-3 * * *",
            "Every 20 seconds, in minute 59, in hours 1 to 3",
            "第 1 至 3 点，第 59 分，每 20 秒",
        ),
        (
            "0 8/3 * * *",
            "At minute 0, every 3 hours from hour 8 on",
            "从第 8 点起每 3 小时，第 0 分",
        ),
        (
            "5-55/10 * * * *",
            "Every 10 minutes from minute 5 to 55, every hour",
            "每小时，第 5 至 55 分每 10 分钟",
        ),
        (
            "30 15,45 9,17 * * *",
            "At 09:15:30, 09:45:30, 17:15:30 and 17:45:30, every day",
            "每天，09:15:30、09:45:30、17:15:30、17:45:30",
        ),
        (
            "0 0 12 L * ?",
            "At 12:00, on the last day of the month",
            "每月最后一天，12:00",
        ),
        (
            "0 0 9 L-3W * ?",
            "At 09:00, on the weekday (Monday to Friday) nearest to 3 days before the last day of the month",
            "每月离最后一天之前 3 天最近的工作日（周一至周五），09:00",
        ),
        (
            "0 9 15W,LW * *",
            "At 09:00, on the weekday (Monday to Friday) nearest to day 15 of the month and the last weekday (Monday to Friday) of the month",
            "每月离 15 日最近的工作日（周一至周五）、最后一个工作日（周一至周五），09:00",
        ),
        (
            "0 15 10 ? * 6#3",
            "At 10:15, on the 3rd Friday of the month",
            "当月第 3 个周五，10:15",
        ),
        (
            "0 9 * * FRIL",
            "At 09:00, on the last Friday of the month",
            "当月最后一个周五，09:00",
        ),
        (
            "0 0 13 * 5",
            "At 00:00, on day 13 of the month, and also on Friday",
            "每月 13 日，以及周五，00:00",
        ),
        (
            "0 0 13 * +5",
            "At 00:00, on day 13 of the month, but only if it is Friday",
            "每月 13 日，且须为周五，00:00",
        ),
        (
            "0 9 13 * */5",
            "At 09:00, on day 13 of the month, but only if it is Sunday or Friday",
            "每月 13 日，且须为周日、周五，09:00",
        ),
        (
            "0 0 1 */5 *",
            "At 00:00, on day 1 of the month, in January, June and November",
            "1 月、6 月、11 月，1 日，00:00",
        ),
        (
            "0 0 1 1 1 ? 2027/3",
            "At 01:00, on day 1 of the month, in January, in every 3rd year from 2027 on",
            "从 2027 年起每隔 3 年，1 月，1 日，01:00",
        ),
        (
            "0 0 0 * FEB ? 2028",
            "At 00:00, every day in February, in 2028",
            "2028 年，2 月，每天，00:00",
        ),
    ] {
        let spec = cron(text, "UTC");
        let words = |language| {
            explain(&spec, NOW_MS, &Calendars::default(), 0, language)
                .unwrap()
                .words
        };
        assert_eq!(words(Language::English), english, "{text}");
        assert_eq!(words(Language::Chinese), chinese, "{text}");
    }
}

#[test]
fn says_in_words_what_other_schedules_mean() {
    let words = |spec: ScheduleSpec| explained(&spec).words;
    assert_eq!(
        words(ScheduleSpec {
            every: Some("6h".parse().unwrap()),
            timezone: Some("Asia/Shanghai".into()),
            ..ScheduleSpec::default()
        }),
        "Every 6h, counted from 2026-01-01T08:00:00+08:00"
    );
    assert_eq!(
        words(ScheduleSpec {
            at: Some("2026-05-01T09:00:00".into()),
            timezone: Some("Asia/Tokyo".into()),
            ..ScheduleSpec::default()
        }),
        "Once, at 2026-05-01T09:00:00+09:00"
    );
    assert_eq!(
        words(ScheduleSpec {
            after_finish: Some("10m".parse().unwrap()),
            ..ScheduleSpec::default()
        }),
        "10m after the end of the last run"
    );
    assert_eq!(
        words(ScheduleSpec::default()),
        "On demand only: it has no schedule"
    );
}

#[test]
fn lists_instants_in_both_directions_with_offsets() {
    let spec = ScheduleSpec {
        dst: DstRules {
            gap: Gap::Skip,
            overlap: Overlap::Once,
        },
        exclude: vec!["2026-03-09".into()],
        ..cron("30 2 * * *", "America/New_York")
    };
    let before_the_gap = 1_772_866_800_000; // 2026-03-07T07:00:00Z
    let explained = explain(
        &spec,
        before_the_gap,
        &Calendars::default(),
        3,
        Language::English,
    )
    .unwrap();
    let shown = |fires: &[Fire]| {
        fires
            .iter()
            .map(|fire| format!("{} {}", fire.at, fire.skipped.unwrap_or("fires")))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        shown(&explained.next),
        [
            "2026-03-07T02:30:00-05:00 fires",
            "2026-03-08T03:00:00-04:00 dst_gap",
            "2026-03-09T02:30:00-04:00 excluded",
        ]
    );
    assert_eq!(
        shown(&explained.previous),
        [
            "2026-03-06T02:30:00-05:00 fires",
            "2026-03-05T02:30:00-05:00 fires",
            "2026-03-04T02:30:00-05:00 fires",
        ]
    );
    assert_eq!(explained.timezone, "America/New_York");
    assert_eq!(explained.dialect, Some(Dialect::Unix));
    assert_eq!(explained.clock_rule, Some(ClockRule::FixedTime));
}

#[test]
fn names_the_rule_of_the_day_fields() {
    for (text, rule) in [
        ("0 0 * * *", DayRule::EveryDay),
        ("0 0 1 * *", DayRule::DayOfMonth),
        ("0 0 * * MON", DayRule::Weekday),
        ("0 0 1-31 * 4", DayRule::Either),
        ("0 0 1-31 * +4", DayRule::Both),
        ("0 0 */2 * MON", DayRule::Both),
        ("0 0 0 1 * ?", DayRule::DayOfMonth),
    ] {
        assert_eq!(explained(&cron(text, "UTC")).day_rule, Some(rule), "{text}");
    }
    let either = explained(&cron("0 0 1-31 * THU", "UTC")).day_rule_words;
    assert!(either.unwrap().starts_with("OR"));
    let both = explained(&cron("0 0 1-31 * +THU", "UTC")).day_rule_words;
    assert!(both.unwrap().starts_with("AND"));
}

#[test]
fn finds_what_is_odd() {
    use LintCode::*;
    for (text, zone, expected) in [
        ("* * * * *", "America/New_York", &[][..]),
        ("30 9 * * MON-FRI", "America/New_York", &[]),
        ("*/15 */6 1-31 * *", "UTC", &[]),
        ("0 0 30 2 *", "UTC", &[NeverFires]),
        ("0 0 0 1 1 ? 2020", "UTC", &[Ended]),
        ("*/7 * * * *", "UTC", &[UnevenStep]),
        ("0 */5 * * *", "UTC", &[UnevenStep]),
        ("0 0 */2 * *", "UTC", &[UnevenStep]),
        ("0 0 1 */5 *", "UTC", &[UnevenStep]),
        ("*/90 * * * *", "UTC", &[StepBeyondField]),
        ("30/40 * * * *", "UTC", &[StepBeyondField]),
        ("0 0 31 * *", "UTC", &[ShortMonths]),
        ("0 0 29-31 * *", "UTC", &[ShortMonths]),
        ("0 0 28-31 * *", "UTC", &[]),
        ("0 0 * * 5", "UTC", &[WeekdayNumber]),
        ("0 0 * * FRI#2", "UTC", &[]),
        ("0 0 13 * FRI", "UTC", &[BothDayFields]),
        ("30 2 * * *", "America/New_York", &[GapAhead]),
        ("30 1 * * *", "America/New_York", &[OverlapAhead]),
        ("0 2 * * *", "Europe/Berlin", &[GapAhead, OverlapAhead]),
        ("* 2 * * *", "Europe/Berlin", &[GapAhead, OverlapAhead]),
        ("0 2 * * *", "Asia/Shanghai", &[]),
    ] {
        assert_eq!(codes(&cron(text, zone)), expected, "{text} {zone}");
    }
}

#[test]
fn says_what_odd_things_come_to() {
    let message = |text: &str, zone: &str| {
        let lints = explained(&cron(text, zone)).lints;
        lints
            .into_iter()
            .map(|lint| lint.message)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        message("0 0 30 2 *", "UTC"),
        ["it never fires: 30 February never comes"]
    );
    assert_eq!(
        message("0 0 * * 5", "UTC"),
        ["the weekday number means FRI here and THU in the dialect quartz; write FRI"]
    );
    assert_eq!(
        message("30 2 * * *", "America/New_York"),
        [
            "2026-03-08 02:30 does not exist in America/New_York: it fires at 2026-03-08T03:00:00-04:00 instead"
        ]
    );
    assert_eq!(
        message("*/90 * * * *", "UTC"),
        ["the step of 90 is longer than its field: it fires once in each hour"]
    );
    assert_eq!(
        message("0 0 0 1 1 ? 2020", "UTC"),
        ["it fires no more; its last instant was 2020-01-01T00:00:00+00:00"]
    );
    let past = ScheduleSpec {
        at: Some("2020-01-01T00:00:00Z".into()),
        ..ScheduleSpec::default()
    };
    assert_eq!(codes(&past), [LintCode::Ended]);
}
