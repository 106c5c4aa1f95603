//! Which part of a file a finding of the engine is about.

use punctual::job::spec::SpecError;
use punctual::schedule::ScheduleSpec;

use super::crontab;
use super::schema::{SCHEDULE, Wrong};
use super::tree::{Data, Node};

/// Whether one of two keys is in the other.
pub(super) fn is_related(a: &str, b: &str) -> bool {
    let inside = |outer: &str, inner: &str| {
        inner
            .strip_prefix(outer)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    inside(a, b) || inside(b, a)
}

/// Takes a part out of a schedule whose other parts still mean something.
pub(super) fn without(schedule: &mut ScheduleSpec, path: &str) -> bool {
    match path.strip_prefix("schedule.") {
        Some("timezone") => schedule.timezone.take().is_some(),
        Some("start") => schedule.start.take().is_some(),
        Some("end") => schedule.end.take().is_some(),
        Some(path) => {
            let index = path.strip_prefix("exclude[");
            let index = index.and_then(|rest| rest.strip_suffix(']')?.parse::<usize>().ok());
            match index.and_then(|index| schedule.exclude.get_mut(index)) {
                // A day on which nothing that is checked here depends; places stay the same.
                Some(text) => {
                    "0001-01-01".clone_into(text);
                    true
                }
                None => false,
            }
        }
        None => false,
    }
}

/// Gives a mistake that was found in the definition its place in the file.
pub(super) fn place(error: SpecError, node: &Node) -> Wrong {
    let mut path = error.path;
    let schedule = node.get("schedule");
    let has = |key: &&str| schedule.is_some_and(|schedule| schedule.get(key).is_some());
    if path == "schedule"
        && let Some(key) = ["cron", "every", "at"].iter().find(|key| has(key))
    {
        path = format!("schedule.{key}");
    }
    if let Some(field) = path.strip_prefix("schedule.") {
        let known = SCHEDULE.iter().any(|(key, _)| *key == field);
        // Errors inside an expression name its field: `day of month`.
        if has(&"cron") && !known {
            path = "schedule.cron".into();
        } else if field == "exclude" {
            path = excluded_text(schedule, &error.message).unwrap_or(path);
        }
    }
    let hint = match path.as_str() {
        "schedule.cron" if cron_text(schedule).is_some_and(crontab::has_command) => {
            Some(crontab::COMMAND_HINT.into())
        }
        _ => error.hint,
    };
    Wrong {
        pos: node.locate(&path).character(error.at),
        path,
        message: error.message,
        hint,
    }
}

fn cron_text(schedule: Option<&Node>) -> Option<&str> {
    match &schedule?.get("cron")?.data {
        Data::Text(text) => Some(&text.text),
        _ => None,
    }
}

/// Which of the excluded days a message is about.
fn excluded_text(schedule: Option<&Node>, message: &str) -> Option<String> {
    let Data::List(items) = &schedule?.get("exclude")?.data else {
        return None;
    };
    let index = items.iter().position(|item| {
        matches!(&item.data, Data::Text(text) if message.contains(&format!("`{}`", text.text)))
    })?;
    Some(format!("schedule.exclude[{index}]"))
}
