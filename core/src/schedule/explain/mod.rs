//! A schedule in words: what it means, when it fires, and what is odd about it.
//!
//! Facts are found here and in `lint`, in no language; `english` and `chinese` hold all
//! texts. A further language is one more file that implements `Texts`.

mod chinese;
mod english;
mod lint;
#[cfg(test)]
mod tests;
mod words;

use serde::{Deserialize, Serialize};

use self::lint::Fact;
use self::words::CronWords;
use super::compiled::Schedule;
use super::cron::Cron;
use super::error::ScheduleError;
use super::occurrence::{Occurrence, ScheduleKind, Verdict};
use super::spec::{Calendars, Dialect, ScheduleSpec};
use super::zone::tzdb_version;

/// A language of explanations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Language {
    /// English.
    #[default]
    #[serde(rename = "en")]
    English,
    /// Chinese, simplified.
    #[serde(rename = "zh")]
    Chinese,
}

/// What a schedule means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The schedule as a sentence; weekdays by name, never by number.
    pub words: String,
    /// The dialect of the expression after `auto` was decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dialect: Option<Dialect>,
    /// How day of month and weekday go together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day_rule: Option<DayRule>,
    /// The same in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day_rule_words: Option<String>,
    /// How it goes through a change of the clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_rule: Option<ClockRule>,
    /// The same in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_rule_words: Option<String>,
    /// IANA name of the zone.
    pub timezone: String,
    /// Version of the time zone database.
    pub tzdb: String,
    /// The next instants, ascending.
    pub next: Vec<Fire>,
    /// The previous instants, the latest first.
    pub previous: Vec<Fire>,
    /// What is odd about it.
    pub lints: Vec<Lint>,
}

/// How the two day fields decide whether a day matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DayRule {
    /// Neither field restricts the day.
    EveryDay,
    /// The day of the month decides.
    DayOfMonth,
    /// The weekday decides.
    Weekday,
    /// Either is enough (Unix, both restricted).
    Either,
    /// Both must match (one begins with `*`, or the weekday with `+`).
    Both,
}

/// How an expression goes through a change of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClockRule {
    /// It follows the real time.
    Interval,
    /// It follows the clock on the wall.
    FixedTime,
}

/// An instant of the schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fire {
    /// RFC 3339 with the zone's offset.
    pub at: String,
    /// Unix milliseconds.
    pub at_ms: i64,
    /// Why it is skipped: `excluded` or `dst_gap`. It fires when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<&'static str>,
}

/// Something odd about a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lint {
    /// What kind of oddity it is.
    pub code: LintCode,
    /// What it is, in words.
    pub message: String,
}

/// Kinds of oddities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LintCode {
    /// It never fires.
    NeverFires,
    /// It has no fire left.
    Ended,
    /// A step that does not divide its cycle: the last one is shorter.
    UnevenStep,
    /// A step longer than its field: one fire a cycle.
    StepBeyondField,
    /// Day 29, 30 or 31, which short months do not have.
    ShortMonths,
    /// A weekday number, which means another day in the other dialect.
    WeekdayNumber,
    /// Day of month and weekday are both restricted.
    BothDayFields,
    /// The next change of the clock leaves out one of its times.
    GapAhead,
    /// The next change of the clock repeats one of its times.
    OverlapAhead,
}

/// All texts of a language.
trait Texts {
    /// An expression as a sentence.
    fn cron(&self, words: &CronWords) -> String;
    /// `every`: a period such as `6h`, and the anchor.
    fn every(&self, period: &str, anchor: &str) -> String;
    /// `at`: an instant.
    fn once(&self, at: &str) -> String;
    /// `after_finish`: a pause such as `10m`.
    fn after_finish(&self, pause: &str) -> String;
    /// No schedule.
    fn on_demand(&self) -> String;
    /// How the day fields go together.
    fn day_rule(&self, rule: DayRule) -> String;
    /// How it goes through a change of the clock.
    fn clock_rule(&self, rule: ClockRule, spec: &ScheduleSpec) -> String;
    /// Something odd.
    fn lint(&self, fact: &Fact) -> String;
}

fn texts(language: Language) -> &'static dyn Texts {
    match language {
        Language::English => &english::English,
        Language::Chinese => &chinese::Chinese,
    }
}

/// Most instants that are listed in each direction.
const MAX_COUNT: usize = 1_000;

/// Explains a schedule as of `now_ms` (Unix milliseconds; also the anchor of an `every` without
/// `start`), with up to `count` instants in each direction.
///
/// # Errors
/// As [`Schedule::compile`]. A schedule that never fires is explained.
pub fn explain(
    spec: &ScheduleSpec,
    now_ms: i64,
    calendars: &Calendars,
    count: usize,
    language: Language,
) -> Result<Explanation, ScheduleError> {
    let schedule = Schedule::compile(spec, now_ms, calendars)?;
    let texts = texts(language);
    let zone = schedule.zone().clone();
    let list = |instants: &mut dyn Iterator<Item = Occurrence>| {
        instants
            .take(count.min(MAX_COUNT))
            .map(|occurrence| fire(&schedule, occurrence))
            .collect()
    };
    let mut explanation = Explanation {
        words: String::new(),
        dialect: None,
        day_rule: None,
        day_rule_words: None,
        clock_rule: None,
        clock_rule_words: None,
        timezone: zone.name().to_owned(),
        tzdb: tzdb_version().to_owned(),
        next: list(&mut schedule.after(now_ms)),
        previous: list(&mut schedule.before(now_ms)),
        lints: Vec::new(),
    };
    let mut facts = Vec::new();
    explanation.words = match schedule.kind() {
        ScheduleKind::OnDemand => texts.on_demand(),
        ScheduleKind::AfterFinish(pause) => texts.after_finish(&pause.to_string()),
        ScheduleKind::At(at_ms) => texts.once(&zone.rfc3339(at_ms / 1_000)),
        ScheduleKind::Every => {
            let period = spec.every.unwrap_or_default();
            let anchor = schedule.anchor().unwrap_or_default();
            texts.every(&period.to_string(), &zone.rfc3339(anchor))
        }
        ScheduleKind::Cron => {
            let text = spec.cron.as_deref().unwrap_or_default();
            let (ast, cron) = Cron::read(text, spec.dialect, Some((now_ms, &zone)))?;
            let words = CronWords::new(&ast, &cron);
            let clock_rule = if cron.is_interval() {
                ClockRule::Interval
            } else {
                ClockRule::FixedTime
            };
            explanation.dialect = Some(ast.numbering.dialect());
            explanation.day_rule = Some(words.day_rule);
            explanation.day_rule_words = Some(texts.day_rule(words.day_rule));
            explanation.clock_rule = Some(clock_rule);
            explanation.clock_rule_words = Some(texts.clock_rule(clock_rule, spec));
            facts = lint::facts(&ast, &cron, &schedule, now_ms);
            texts.cron(&words)
        }
    };
    if facts.is_empty() && lint::has_ended(&schedule, now_ms) {
        facts.push(lint::ended(&schedule, now_ms));
    }
    explanation.lints = facts
        .iter()
        .map(|fact| Lint {
            code: fact.code(),
            message: texts.lint(fact),
        })
        .collect();
    Ok(explanation)
}

fn fire(schedule: &Schedule, occurrence: Occurrence) -> Fire {
    Fire {
        at: schedule.zone().rfc3339(occurrence.at_ms.div_euclid(1_000)),
        at_ms: occurrence.at_ms,
        skipped: match occurrence.verdict {
            Verdict::Fire => None,
            Verdict::Skip(skip) => Some(skip.reason()),
        },
    }
}
