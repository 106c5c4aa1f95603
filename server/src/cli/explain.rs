//! `explain`: what a cron expression means, in words, and what is odd about it.

use punctual::schedule::explain::{Explanation, Language, explain as ask};
use punctual::schedule::query::instant;
use punctual::schedule::{Calendars, ScheduleError, ScheduleSpec};

use super::args::{ExplainArgs, LanguageArg};
use super::failure::Outcome;
use super::next::{dialect, schedule_failure};
use crate::output::Output;
use crate::table::pairs;
use crate::times::now_ms;

/// How many fire times are shown if nobody says.
const DEFAULT_COUNT: usize = 5;

pub(super) fn explain(output: &Output, args: &ExplainArgs) -> Outcome {
    let spec = ScheduleSpec {
        cron: Some(args.expr.clone()),
        timezone: args.tz.clone(),
        dialect: dialect(args.dialect),
        ..ScheduleSpec::default()
    };
    let fail = |error| schedule_failure(&args.expr, error);
    let after_ms = match &args.after {
        Some(text) => instant("after", text).map_err(fail)?,
        None => now_ms(),
    };
    let count = args.count.unwrap_or(DEFAULT_COUNT);
    let read = |language| -> Result<Explanation, ScheduleError> {
        ask(&spec, after_ms, &Calendars::default(), count, language)
    };
    let english = read(Language::English).map_err(fail)?;
    let chinese = read(Language::Chinese).map_err(fail)?;
    let (first, second) = match args.language {
        LanguageArg::Both => (english, Some(chinese)),
        LanguageArg::En => (english, None),
        LanguageArg::Zh => (chinese, None),
    };
    let mut object = serde_json::to_value(&first).unwrap_or_default();
    if let (Some(map), Some(second)) = (object.as_object_mut(), &second) {
        map.insert("words_zh".into(), second.words.clone().into());
    }
    output.object(&object, &args.expr, || text(&first, second.as_ref()))
}

fn text(explanation: &Explanation, other: Option<&Explanation>) -> String {
    let mut lines = vec![("Meaning", explanation.words.clone())];
    if let Some(other) = other {
        lines.push(("In Chinese", other.words.clone()));
    }
    for (name, words) in [
        ("Days", &explanation.day_rule_words),
        ("Clock changes", &explanation.clock_rule_words),
    ] {
        if let Some(words) = words {
            lines.push((name, words.clone()));
        }
    }
    let next = explanation.next.iter().map(|fire| match fire.skipped {
        Some(why) => format!("{} (skipped: {why})", fire.at),
        None => fire.at.clone(),
    });
    lines.push(("Next", next.collect::<Vec<_>>().join("\n")));
    let odd = explanation.lints.iter().map(|lint| lint.message.clone());
    let odd: Vec<String> = odd.collect();
    if !odd.is_empty() {
        lines.push(("Note", odd.join("\n")));
    }
    pairs(&lines)
}
