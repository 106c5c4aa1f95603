//! The keys of a job, as a table: what may stand where, so that every wrong key and value of a
//! file is found in one pass, each with its place.

use serde_json::{Map, Value};

use punctual::duration::Millis;

use super::tree::{Data, Entry, Node, Pos, shorten};
use super::words::{join_names, names, nearest};

/// What a key holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Text,
    Flag,
    Duration,
    /// A whole number, not negative.
    Count,
    /// A whole number.
    Integer,
    Number,
    OneOf(&'static [&'static str]),
    TextList,
    TextMap,
    /// A list of these words.
    Words(&'static [&'static str]),
    /// A list of texts, or the name of a declared command.
    Command,
    Anything,
    /// A list of groups.
    Groups(&'static [Field]),
    Group(&'static [Field]),
}

/// A key and what it holds.
pub(super) type Field = (&'static str, Kind);

pub(super) const JOB: &[Field] = &[
    ("id", Kind::Text),
    ("name", Kind::Text),
    ("schedule", Kind::Group(SCHEDULE)),
    ("run", Kind::Group(RUN)),
    ("payload", Kind::Anything),
    ("timeout", Kind::Duration),
    (
        "overlap",
        Kind::OneOf(&["allow", "skip", "queue", "replace"]),
    ),
    ("queue_limit", Kind::Count),
    ("misfire", Kind::OneOf(&["latest", "all", "skip"])),
    ("catch_up", Kind::Duration),
    ("start_deadline", Kind::Duration),
    ("retry", Kind::Group(RETRY)),
    ("on_lost", Kind::OneOf(&["fail", "retry"])),
    ("idempotent", Kind::Flag),
    ("queue", Kind::Text),
    ("priority", Kind::Integer),
    ("concurrency", Kind::Count),
    ("fan_out", Kind::Count),
    ("broadcast", Kind::Flag),
    ("after", Kind::TextList),
    ("history", Kind::Group(HISTORY)),
    ("notify", Kind::Groups(NOTIFY)),
    ("labels", Kind::TextMap),
    ("enabled", Kind::Flag),
    ("unclaimed_after", Kind::Duration),
    ("self_fence", Kind::Flag),
];

pub(super) const SCHEDULE: &[Field] = &[
    ("cron", Kind::Text),
    ("every", Kind::Duration),
    ("after_finish", Kind::Duration),
    ("at", Kind::Text),
    ("timezone", Kind::Text),
    ("dialect", Kind::OneOf(&["auto", "unix", "quartz"])),
    ("dst", Kind::Group(DST)),
    ("start", Kind::Text),
    ("end", Kind::Text),
    ("exclude", Kind::TextList),
    ("jitter", Kind::Duration),
];

pub(super) const DST: &[Field] = &[
    ("gap", Kind::OneOf(&["fire", "skip"])),
    ("overlap", Kind::OneOf(&["once", "twice"])),
];

pub(super) const RUN: &[Field] = &[
    ("command", Kind::Command),
    ("env", Kind::TextMap),
    ("http", Kind::Group(HTTP)),
    ("handler", Kind::Text),
];

pub(super) const HTTP: &[Field] = &[
    ("url", Kind::Text),
    (
        "method",
        Kind::OneOf(&["POST", "GET", "PUT", "PATCH", "DELETE", "HEAD"]),
    ),
    ("headers", Kind::TextMap),
    ("body", Kind::Anything),
];

pub(super) const RETRY: &[Field] = &[
    ("attempts", Kind::Count),
    ("backoff", Kind::Duration),
    ("factor", Kind::Number),
    ("max_backoff", Kind::Duration),
];

pub(super) const HISTORY: &[Field] = &[
    ("keep_success", Kind::Count),
    ("keep_failed", Kind::Count),
    ("keep_skipped", Kind::Count),
    ("keep_for", Kind::Duration),
];

pub(super) const NOTIFY: &[Field] = &[
    ("webhook", Kind::Text),
    ("on", Kind::Words(&["failed", "late", "recovered", "lost"])),
    ("late_after", Kind::Duration),
];

/// A mistake at a key of a job.
#[derive(Debug)]
pub(super) struct Wrong {
    pub(super) pos: Pos,
    pub(super) path: String,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

/// Reads a group of keys. What is wrong is reported and left out of the answer.
pub(super) fn read_group(
    node: &Node,
    fields: &[Field],
    path: &str,
    wrong: &mut Vec<Wrong>,
) -> Map<String, Value> {
    let mut out = Map::new();
    let entries = match &node.data {
        Data::Map(entries) => entries.as_slice(),
        // `schedule:` with nothing below it says nothing.
        Data::Null => &[],
        _ => {
            let names = names(fields.iter().map(|(name, _)| *name));
            wrong.push(Wrong {
                pos: node.pos,
                path: path.to_owned(),
                message: format!("must be a group of keys, not {}", node.describe()),
                hint: Some(format!("its keys are {names}")),
            });
            return out;
        }
    };
    for entry in entries {
        let Some((name, kind)) = fields.iter().find(|(name, _)| *name == entry.key) else {
            wrong.push(unknown_key(entry, fields, path));
            continue;
        };
        let path = join(path, name);
        let before = wrong.len();
        if let Some(value) = read_value(&entry.value, *kind, &path, wrong)
            && (before == wrong.len() || matches!(kind, Kind::Group(_)))
        {
            out.insert((*name).to_owned(), value);
        }
    }
    out
}

fn read_value(node: &Node, kind: Kind, path: &str, wrong: &mut Vec<Wrong>) -> Option<Value> {
    let mut fail = |message: String, hint: Option<String>| {
        wrong.push(Wrong {
            pos: node.pos,
            path: path.to_owned(),
            message,
            hint,
        });
        None
    };
    let must_be = |what: &str| format!("must be {what}, not {}", node.describe());
    match (kind, &node.data) {
        (Kind::Group(fields), _) => Some(Value::Object(read_group(node, fields, path, wrong))),
        (Kind::Anything, _) => Some(node.to_json()),
        // A key with nothing behind it says nothing.
        (_, Data::Null) => None,
        (Kind::Text, Data::Text(_)) | (Kind::Flag, Data::Bool(_)) => Some(node.to_json()),
        (Kind::Text, _) => fail(must_be("a text"), quoting_hint(node)),
        (Kind::Flag, _) => fail(must_be("true or false"), None),
        (Kind::Duration, Data::Text(text)) => match text.text.parse::<Millis>() {
            Ok(_) => Some(node.to_json()),
            Err(error) => {
                let error = error.to_string();
                let (message, hint) = error.split_once("; ").unwrap_or((&error, ""));
                // The hint names the units better.
                let message = message.split(", supported units").next().unwrap_or(message);
                fail(message.to_owned(), (!hint.is_empty()).then(|| hint.into()))
            }
        },
        (Kind::Duration, Data::Number(number)) => fail(
            must_be("a duration"),
            Some(format!("add the unit: {number}s or {number}m")),
        ),
        (Kind::Duration, _) => fail(
            must_be("a duration"),
            Some("a number and a unit, such as 500ms, 30s, 5m, 1h30m or 30d".into()),
        ),
        (Kind::Count, Data::Number(number))
            if number.as_u64().is_some_and(|n| u32::try_from(n).is_ok()) =>
        {
            Some(node.to_json())
        }
        (Kind::Count, _) => fail(must_be("a whole number from 0 to 4294967295"), None),
        (Kind::Integer, Data::Number(number))
            if number.as_i64().is_some_and(|n| i8::try_from(n).is_ok()) =>
        {
            Some(node.to_json())
        }
        (Kind::Integer, _) => fail(must_be("a whole number from -10 to 10"), None),
        (Kind::Number, Data::Number(_)) => Some(node.to_json()),
        (Kind::Number, _) => fail(must_be("a number"), None),
        (Kind::OneOf(allowed), Data::Text(text)) if allowed.contains(&text.text.as_str()) => {
            Some(node.to_json())
        }
        (Kind::OneOf(allowed), data) => {
            let near = match data {
                Data::Text(text) => nearest(&text.text, allowed.iter().copied()),
                _ => None,
            };
            fail(
                must_be(&join_names(allowed.iter().copied(), "or")),
                near.map(|near| format!("did you mean `{near}`?")),
            )
        }
        (Kind::TextList, _) => read_text_list(node, path, wrong),
        (Kind::TextMap, _) => read_text_map(node, path, wrong),
        (Kind::Groups(fields), Data::List(items)) => {
            let groups = items.iter().enumerate().map(|(index, item)| {
                let path = format!("{path}[{index}]");
                let before = wrong.len();
                let group = read_group(item, fields, &path, wrong);
                let missing = ["webhook", "on"]
                    .into_iter()
                    .find(|name| before == wrong.len() && !group.contains_key(*name));
                if let Some(name) = missing {
                    wrong.push(Wrong {
                        pos: item.pos,
                        path,
                        message: format!("`{name}` is missing"),
                        hint: Some(
                            "{ webhook: \"https://example.org/hook\", on: [failed] }".into(),
                        ),
                    });
                }
                Value::Object(group)
            });
            Some(Value::Array(groups.collect()))
        }
        (Kind::Groups(_), _) => fail(must_be("a list of groups of keys"), None),
        (Kind::Words(allowed), Data::List(items)) => {
            let words: Vec<Option<Value>> = items
                .iter()
                .enumerate()
                .map(|(index, item)| {
                    let path = format!("{path}[{index}]");
                    read_value(item, Kind::OneOf(allowed), &path, wrong)
                })
                .collect();
            words
                .into_iter()
                .collect::<Option<Vec<Value>>>()
                .map(Value::Array)
        }
        (Kind::Words(allowed), _) => {
            let words = join_names(allowed.iter().copied(), "or");
            fail(must_be(&format!("a list of {words}")), None)
        }
        (Kind::Command, Data::Text(_)) => Some(node.to_json()),
        (Kind::Command, Data::List(_)) => read_text_list(node, path, wrong),
        (Kind::Command, _) => fail(
            must_be("a list of program and arguments, or the name of a declared command"),
            None,
        ),
    }
}

fn read_text_list(node: &Node, path: &str, wrong: &mut Vec<Wrong>) -> Option<Value> {
    let Data::List(items) = &node.data else {
        wrong.push(Wrong {
            pos: node.pos,
            path: path.to_owned(),
            message: format!("must be a list of texts, not {}", node.describe()),
            hint: Some(match &node.data {
                Data::Text(text) => format!("write [{}]", shorten(&text.text, 40)),
                _ => "write [first, second]".into(),
            }),
        });
        return None;
    };
    let mut out = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        if matches!(item.data, Data::Text(_)) {
            out.push(item.to_json());
        } else {
            wrong.push(Wrong {
                pos: item.pos,
                path: format!("{path}[{index}]"),
                message: format!("must be a text, not {}", item.describe()),
                hint: quoting_hint(item),
            });
        }
    }
    Some(Value::Array(out))
}

fn read_text_map(node: &Node, path: &str, wrong: &mut Vec<Wrong>) -> Option<Value> {
    let Data::Map(entries) = &node.data else {
        wrong.push(Wrong {
            pos: node.pos,
            path: path.to_owned(),
            message: format!("must be a group of keys, not {}", node.describe()),
            hint: Some("write { KEY: value }".into()),
        });
        return None;
    };
    let mut out = Map::new();
    for entry in entries {
        if matches!(entry.value.data, Data::Text(_)) {
            out.insert(entry.key.clone(), entry.value.to_json());
        } else {
            wrong.push(Wrong {
                pos: entry.value.pos,
                path: join(path, &shorten(&entry.key, 40)),
                message: format!("must be a text, not {}", entry.value.describe()),
                hint: quoting_hint(&entry.value),
            });
        }
    }
    Some(Value::Object(out))
}

fn quoting_hint(node: &Node) -> Option<String> {
    match &node.data {
        Data::Number(number) => Some(format!("put it in quotes: \"{number}\"")),
        Data::Bool(value) => Some(format!("put it in quotes: \"{value}\"")),
        _ => None,
    }
}

fn unknown_key(entry: &Entry, fields: &[Field], path: &str) -> Wrong {
    let known = || fields.iter().map(|(name, _)| *name);
    let elsewhere = || {
        [
            ("schedule", SCHEDULE),
            ("run", RUN),
            ("run.http", HTTP),
            ("retry", RETRY),
            ("history", HISTORY),
        ]
        .into_iter()
        .filter(|(group, _)| *group != path)
        .find(|(_, fields)| fields.iter().any(|(name, _)| *name == entry.key))
    };
    let hint = if let Some(near) = nearest(&entry.key, known()) {
        format!("did you mean `{near}`?")
    } else if let Some((group, _)) = elsewhere() {
        format!("`{}` belongs under `{group}:`", entry.key)
    } else if JOB.iter().any(|(name, _)| *name == entry.key) {
        format!("`{}` belongs to the job, one level further out", entry.key)
    } else {
        format!("the keys here are {}", names(known()))
    };
    Wrong {
        pos: entry.pos,
        path: path.to_owned(),
        message: format!("unknown key `{}`", shorten(&entry.key, 40)),
        hint: Some(hint),
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use punctual::job::spec::JobSpec;

    /// The keys that serde names when it meets one that it does not know.
    fn keys_of_serde(json: serde_json::Value) -> Vec<String> {
        let error = serde_json::from_value::<JobSpec>(json)
            .unwrap_err()
            .to_string();
        let (_, list) = error.split_once("expected ").unwrap();
        list.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn the_table_has_exactly_the_keys_of_a_job() {
        for (group, fields) in [
            (None, JOB),
            (Some("schedule"), SCHEDULE),
            (Some("run"), RUN),
            (Some("retry"), RETRY),
            (Some("history"), HISTORY),
        ] {
            let wrong = serde_json::json!({ "?": 1 });
            let json = match group {
                None => wrong,
                Some(group) => serde_json::json!({ group: wrong }),
            };
            let ours: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
            assert_eq!(keys_of_serde(json), ours, "{group:?}");
        }
        let json = serde_json::json!({ "schedule": { "dst": { "?": 1 } } });
        assert_eq!(keys_of_serde(json), ["gap", "overlap"]);
        let json = serde_json::json!({ "run": { "http": { "?": 1 } } });
        let ours: Vec<&str> = HTTP.iter().map(|(name, _)| *name).collect();
        assert_eq!(keys_of_serde(json), ours);
        let json = serde_json::json!({ "notify": [{ "?": 1 }] });
        let ours: Vec<&str> = NOTIFY.iter().map(|(name, _)| *name).collect();
        assert_eq!(keys_of_serde(json), ours);
    }

    /// The keys of the table, with those of its groups.
    fn all_keys(fields: &[Field], path: &str, out: &mut Vec<String>) {
        for (name, kind) in fields {
            let path = join(path, name);
            if let Kind::Group(fields) | Kind::Groups(fields) = kind {
                all_keys(fields, &path, out);
            }
            out.push(path);
        }
    }

    /// The keys that are written in a job.
    fn written(node: &Node, fields: &[Field], path: &str, out: &mut BTreeSet<String>) {
        let Data::Map(entries) = &node.data else {
            return;
        };
        for entry in entries {
            let path = join(path, &entry.key);
            let field = fields.iter().find(|(name, _)| *name == entry.key);
            match (field, &entry.value.data) {
                (Some((_, Kind::Group(fields))), _) => written(&entry.value, fields, &path, out),
                (Some((_, Kind::Groups(fields))), Data::List(groups)) => {
                    let all = groups.iter();
                    all.for_each(|group| written(group, fields, &path, out));
                }
                _ => {}
            }
            out.insert(path);
        }
    }

    /// Each key stands in an example of `docs/jobs.md`; `tests/cli/examples.rs` and its neighbours run
    /// these.
    #[test]
    fn every_key_has_an_example() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/jobs.md");
        let page = std::fs::read_to_string(page).unwrap();
        let mut shown = BTreeSet::new();
        let mut top = BTreeSet::new();
        for block in page.split("```yaml\n").skip(1) {
            let block = block.split("```").next().unwrap();
            let (tree, findings) = crate::jobfile::yaml::parse("jobs.md", block);
            assert!(findings.is_empty(), "{findings:?}");
            let tree = tree.unwrap();
            let Data::Map(entries) = &tree.data else {
                panic!("{block}");
            };
            top.extend(entries.iter().map(|entry| entry.key.clone()));
            let Data::List(jobs) = &tree.get("jobs").unwrap().data else {
                panic!("{block}");
            };
            for job in jobs {
                written(job, JOB, "", &mut shown);
            }
        }
        let mut keys = Vec::new();
        all_keys(JOB, "", &mut keys);
        assert!(keys.len() > 40, "{keys:?}");
        keys.retain(|key| !shown.contains(key));
        assert!(keys.is_empty(), "no example has {keys:?}");
        let all = BTreeSet::from(["jobs", "commands", "calendars"].map(str::to_owned));
        assert_eq!(top, all);
    }
}
