//! The texts in Chinese (simplified).

use super::super::ast::{FieldKind, Item, Numbering};
use super::super::spec::{Gap, Overlap, ScheduleSpec};
use super::lint::{Fact, GapEffect};
use super::words::CronWords;
use super::{ClockRule, DayRule, Texts};

pub(super) struct Chinese;

const WEEKDAYS: [&str; 7] = ["周日", "周一", "周二", "周三", "周四", "周五", "周六"];

impl Texts for Chinese {
    fn cron(&self, words: &CronWords) -> String {
        let mut parts = Vec::new();
        if !words.years.is_empty() {
            parts.push(list(&words.years, "年"));
        }
        if !words.months.is_empty() {
            parts.push(list(&words.months, "月"));
        }
        // Without months the day is one of every month.
        let month = match (words.months.is_empty(), words.days.first()) {
            (false, _) => "",
            (true, Some(Item::Value(_) | Item::Range(..) | Item::RangeStep(..))) => "每月 ",
            (true, _) => "每月",
        };
        match words.day_rule {
            DayRule::EveryDay if words.interval => {}
            DayRule::EveryDay => parts.push("每天".into()),
            DayRule::DayOfMonth => parts.push(format!("{month}{}", days(&words.days))),
            DayRule::Weekday => parts.push(weekdays(&words.weekdays)),
            DayRule::Either => parts.push(format!(
                "{month}{}，以及{}",
                days(&words.days),
                weekdays(&words.weekdays)
            )),
            DayRule::Both => parts.push(format!(
                "{month}{}，且须为{}",
                days(&words.days),
                weekdays(&words.weekdays)
            )),
        }
        if !words.times.is_empty() {
            parts.push(words.times.join("、"));
        }
        for (unit, length, items) in [
            ("点", "小时", &words.hours),
            ("分", "分钟", &words.minutes),
            ("秒", "秒", &words.seconds),
        ] {
            if !items.is_empty() {
                parts.push(clock(unit, length, items));
            }
        }
        parts.join("，")
    }

    fn every(&self, period: &str, anchor: &str) -> String {
        format!("每隔 {period}，从 {anchor} 起算")
    }

    fn once(&self, at: &str) -> String {
        format!("仅一次：{at}")
    }

    fn after_finish(&self, pause: &str) -> String {
        format!("上次运行结束后 {pause}")
    }

    fn on_demand(&self) -> String {
        "没有计划，仅手动触发".into()
    }

    fn day_rule(&self, rule: DayRule) -> String {
        match rule {
            DayRule::EveryDay => "日期字段没有限制",
            DayRule::DayOfMonth => "由日期决定",
            DayRule::Weekday => "由星期决定",
            DayRule::Either => {
                "或（OR）：日期和星期都有限制，满足其一即触发；在星期前写 + 表示须同时满足"
            }
            DayRule::Both => "与（AND）：日期和星期须同时满足",
        }
        .into()
    }

    fn clock_rule(&self, rule: ClockRule, spec: &ScheduleSpec) -> String {
        let ClockRule::FixedTime = rule else {
            return "间隔型：按真实时间推进，时钟拨快时跳过的时段不触发，时钟拨慢时重复的时段两遍都触发"
                .into();
        };
        let gap = match spec.dst.gap {
            Gap::Fire => "在跳过的时段之后立即触发一次",
            Gap::Skip => "跳过并留下记录",
        };
        let overlap = match spec.dst.overlap {
            Overlap::Once => "只在第一遍触发",
            Overlap::Twice => "两遍都触发",
        };
        format!("固定时刻：时钟拨快而不存在的时刻，{gap}；时钟拨慢而重复的时刻，{overlap}")
    }

    fn lint(&self, fact: &Fact) -> String {
        match fact {
            Fact::Never(Some((day, month))) => {
                format!("永远不会触发：{month} 月 {day} 日不存在")
            }
            Fact::Never(None) => "永远不会触发：没有任何日期符合".into(),
            Fact::Ended(Some(last)) => format!("不会再触发；最后一次是 {last}"),
            Fact::Ended(None) => "不会再触发，也从未触发过".into(),
            Fact::UnevenStep(FieldKind::Day, step, _) => format!(
                "每 {step} 天的步长在每月 1 日重新开始，跨月时间隔不同；要均匀请用 `every: {step}d`"
            ),
            Fact::UnevenStep(kind, step, rest) => format!(
                "步长 {step} 不能整除一{}：每{}的最后一步只有 {rest}",
                cycle(*kind),
                cycle(*kind)
            ),
            Fact::StepBeyond(kind, step) => {
                format!("步长 {step} 超出字段范围：每{}只触发一次", cycle(*kind))
            }
            Fact::ShortMonths(days) => {
                let days: Vec<_> = days.iter().map(u32::to_string).collect();
                format!(
                    "没有 {} 日的月份不触发；L 表示每月最后一天",
                    days.join("、")
                )
            }
            Fact::WeekdayNumber { here, other, there } => {
                let other = match other {
                    Numbering::Unix => "unix",
                    Numbering::Quartz => "quartz",
                };
                let there = there.as_deref().unwrap_or("无效");
                format!("星期数字在这里是 {here}，在 {other} 方言中是 {there}；请写 {here}")
            }
            Fact::BothDays(true) => "日期和星期都有限制：满足其一即可（OR）".into(),
            Fact::BothDays(false) => "日期和星期都有限制：须同时满足（AND）".into(),
            Fact::Gap {
                lost,
                until,
                zone,
                effect,
            } => {
                let effect = match effect {
                    GapEffect::Moved => format!("改在 {until} 触发"),
                    GapEffect::Skipped => "跳过并留下记录".to_owned(),
                    GapEffect::Nothing => format!("{until} 之前不触发"),
                };
                format!("{lost} 在 {zone} 不存在：{effect}")
            }
            Fact::Overlap { time, zone, twice } => {
                let effect = if *twice {
                    "两遍都触发"
                } else {
                    "只在第一遍触发"
                };
                format!("{time} 在 {zone} 出现两次：{effect}")
            }
        }
    }
}

fn clock(unit: &str, length: &str, items: &[Item]) -> String {
    match *items {
        [Item::All | Item::AllStep(1)] => format!("每{length}"),
        [Item::AllStep(step)] => format!("每 {step} {length}"),
        [Item::FromStep(from, step)] => format!("从第 {from} {unit}起每 {step} {length}"),
        [Item::RangeStep(from, to, step)] => {
            format!("第 {from} 至 {to} {unit}每 {step} {length}")
        }
        _ => format!("第 {}", list(items, unit)),
    }
}

/// Numbers with their unit: `1、15 日`, `9 至 17 点`.
fn list(items: &[Item], unit: &str) -> String {
    let texts: Vec<_> = items
        .iter()
        .map(|item| match *item {
            Item::All | Item::Any => format!("每{unit}"),
            Item::Value(value) => format!("{value} {unit}"),
            Item::Range(from, to) => format!("{from} 至 {to} {unit}"),
            Item::AllStep(step) => format!("每隔 {step} {unit}"),
            Item::FromStep(from, step) => format!("从 {from} {unit}起每隔 {step} {unit}"),
            Item::RangeStep(from, to, step) => {
                format!("{from} 至 {to} {unit}之间每隔 {step} {unit}")
            }
            Item::Last(_)
            | Item::Nearest(_)
            | Item::LastNearest(_)
            | Item::Nth(..)
            | Item::LastWeekday(_) => special(*item),
        })
        .collect();
    texts.join("、")
}

fn days(items: &[Item]) -> String {
    list(items, "日")
}

fn weekdays(items: &[Item]) -> String {
    let name = |day: u32| WEEKDAYS[day as usize];
    let texts: Vec<_> = items
        .iter()
        .map(|item| match *item {
            Item::Value(day) => name(day).to_owned(),
            Item::Range(from, to) => format!("{}至{}", name(from), name(to)),
            other => special(other),
        })
        .collect();
    texts.join("、")
}

fn special(item: Item) -> String {
    match item {
        Item::Last(0) => "最后一天".into(),
        Item::Last(days) => format!("最后一天之前 {days} 天"),
        Item::Nearest(day) => format!("离 {day} 日最近的工作日（周一至周五）"),
        Item::LastNearest(0) => "最后一个工作日（周一至周五）".into(),
        Item::LastNearest(days) => {
            format!("离最后一天之前 {days} 天最近的工作日（周一至周五）")
        }
        Item::Nth(day, nth) => format!("当月第 {nth} 个{}", WEEKDAYS[day as usize]),
        Item::LastWeekday(day) => format!("当月最后一个{}", WEEKDAYS[day as usize]),
        _ => String::new(),
    }
}

fn cycle(kind: FieldKind) -> &'static str {
    match kind {
        FieldKind::Second => "分钟",
        FieldKind::Minute => "小时",
        FieldKind::Hour => "天",
        FieldKind::Day => "月",
        FieldKind::Month => "年",
        FieldKind::Weekday => "周",
        FieldKind::Year => "年份字段",
    }
}
