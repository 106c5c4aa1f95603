//! From trees to checked jobs.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use serde_json::Value;

use punctual::job::spec::JobSpec;
use punctual::schedule::{Calendars, Schedule, ScheduleSpec};

use super::JobFile;
use super::finding::Finding;
use super::places::{is_related, place, without};
use super::schema::{JOB, Wrong, read_group};
use super::tree::{Data, Entry, Node, Pos, shorten};
use super::words::{names, nearest};

const TOP_KEYS: [&str; 3] = ["jobs", "commands", "calendars"];
/// The largest definition, as JSON. The store takes only so much in one request, and would not say
/// whose definition it was.
const MAX_DEFINITION: usize = 256 << 10;
/// Stands in for a missing id while the rest of the job is checked.
const NO_ID: &str = "no-id";

/// A place in one of the files.
#[derive(Clone, Copy)]
struct At {
    file: usize,
    pos: Pos,
}

/// Collects what several files say, then checks it together: a job may exclude the days of a
/// calendar that another file declares.
pub(super) struct Checker {
    now_ms: i64,
    files: Vec<String>,
    jobs: Vec<(usize, Rc<Node>)>,
    calendars: Calendars,
    commands: BTreeMap<String, Vec<String>>,
    declared: HashMap<(&'static str, String), At>,
    ids: HashMap<String, At>,
    findings: Vec<(usize, Finding)>,
    specs: Vec<JobSpec>,
    default_id: String,
}

impl Checker {
    pub(super) fn new(now_ms: i64) -> Self {
        Self {
            now_ms,
            files: Vec::new(),
            jobs: Vec::new(),
            calendars: Calendars::default(),
            commands: BTreeMap::new(),
            declared: HashMap::new(),
            ids: HashMap::new(),
            findings: Vec::new(),
            specs: Vec::new(),
            default_id: String::new(),
        }
    }

    /// Takes a job file.
    pub(super) fn add_file(&mut self, name: &str, tree: Option<&Node>, found: Vec<Finding>) {
        let syntax_ok = found.is_empty();
        let file = self.start_file(name, found);
        let Some(tree) = tree else {
            if syntax_ok {
                let finding = Finding::new(name, Pos::START, "the file is empty");
                self.findings
                    .push((file, finding.hint("write `jobs:` and a list of jobs")));
            }
            return;
        };
        let entries = match &tree.data {
            Data::Map(entries) => entries,
            Data::Null => {
                self.report(
                    file,
                    tree.pos,
                    "the file is empty",
                    "write `jobs:` and a list of jobs",
                );
                return;
            }
            Data::List(_) => {
                self.report(
                    file,
                    tree.pos,
                    "a job file is a group of keys, not a list",
                    "write `jobs:` above the list",
                );
                return;
            }
            _ => {
                let message = format!("a job file is a group of keys, not {}", tree.describe());
                self.report(file, tree.pos, &message, "write `jobs:` and a list of jobs");
                return;
            }
        };
        if tree.get("jobs").is_none() && (tree.get("id").is_some() || tree.get("run").is_some()) {
            self.report(
                file,
                tree.pos,
                "a job stands here, but jobs stand in a list under `jobs:`",
                "write `jobs:` above it, put `- ` before its first key and indent the rest",
            );
            return;
        }
        for entry in entries {
            match entry.key.as_str() {
                "jobs" => self.take_jobs(file, &entry.value),
                "commands" => self.take_lists(file, "command", &entry.value),
                "calendars" => self.take_lists(file, "calendar", &entry.value),
                _ => self.unknown_top_key(file, entry),
            }
        }
    }

    /// Takes a job that stands alone, whose id is known from elsewhere.
    pub(super) fn add_job(
        &mut self,
        name: &str,
        tree: Option<&Node>,
        found: Vec<Finding>,
        id: &str,
    ) {
        let file = self.start_file(name, found);
        id.clone_into(&mut self.default_id);
        if let Some(tree) = tree {
            self.take_job(file, tree);
        }
    }

    fn start_file(&mut self, name: &str, found: Vec<Finding>) -> usize {
        let file = self.files.len();
        self.files.push(name.to_owned());
        self.findings
            .extend(found.into_iter().map(|finding| (file, finding)));
        file
    }

    fn report(&mut self, file: usize, pos: Pos, message: &str, hint: &str) {
        let finding = Finding::new(&self.files[file], pos, message);
        let finding = match hint {
            "" => finding,
            hint => finding.hint(hint),
        };
        self.findings.push((file, finding));
    }

    fn unknown_top_key(&mut self, file: usize, entry: &Entry) {
        let message = format!("unknown key `{}`", shorten(&entry.key, 40));
        let hint = match nearest(&entry.key, TOP_KEYS.into_iter()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("the keys of a job file are {}", names(TOP_KEYS.into_iter())),
        };
        self.report(file, entry.pos, &message, &hint);
    }

    fn take_jobs(&mut self, file: usize, node: &Node) {
        let Data::List(items) = &node.data else {
            let message = format!("`jobs` must be a list, not {}", node.describe());
            let hint = "put `- ` before the first key of each job";
            self.report(file, node.pos, &message, hint);
            return;
        };
        self.jobs
            .extend(items.iter().map(|item| (file, Rc::clone(item))));
    }

    /// `commands:` and `calendars:`: lists of texts by name.
    fn take_lists(&mut self, file: usize, what: &'static str, node: &Node) {
        let entries = match &node.data {
            Data::Map(entries) => entries.as_slice(),
            Data::Null => &[],
            _ => {
                let message = format!("`{what}s` must be a group of keys, not {}", node.describe());
                self.report(file, node.pos, &message, "write NAME: [..] below it");
                return;
            }
        };
        for entry in entries {
            let known = self.declared.insert(
                (what, entry.key.clone()),
                At {
                    file,
                    pos: entry.pos,
                },
            );
            if let Some(first) = known {
                let message = format!(
                    "the {what} `{}` is declared twice; the first is at {}",
                    shorten(&entry.key, 40),
                    self.show(first)
                );
                self.report(file, entry.pos, &message, "keep one of them");
                continue;
            }
            let texts = self.take_texts(file, what, entry);
            match what {
                "calendar" => self.take_calendar(file, entry, texts),
                _ => self.take_command(file, entry, texts),
            }
        }
    }

    fn take_texts(&mut self, file: usize, what: &str, entry: &Entry) -> Vec<String> {
        let Data::List(items) = &entry.value.data else {
            let message = format!("a {what} is a list, not {}", entry.value.describe());
            self.report(file, entry.value.pos, &message, "write [first, second]");
            return Vec::new();
        };
        let mut texts = Vec::new();
        for item in items {
            match &item.data {
                Data::Text(text) => texts.push(text.text.clone()),
                _ => {
                    let message = format!("must be a text, not {}", item.describe());
                    self.report(file, item.pos, &message, "put it in quotes");
                }
            }
        }
        texts
    }

    fn take_command(&mut self, file: usize, entry: &Entry, argv: Vec<String>) {
        if argv.first().is_none_or(String::is_empty) {
            if matches!(&entry.value.data, Data::List(items) if items.is_empty()) {
                let message = format!("the command `{}` is empty", shorten(&entry.key, 40));
                let hint = "write program and arguments: [\"/usr/bin/report\", \"--all\"]";
                self.report(file, entry.value.pos, &message, hint);
            }
            return;
        }
        self.commands.insert(entry.key.clone(), argv);
    }

    fn take_calendar(&mut self, file: usize, entry: &Entry, days: Vec<String>) {
        if entry.key.starts_with(|c: char| c.is_ascii_digit()) {
            let message = format!(
                "the calendar's name `{}` looks like a date",
                shorten(&entry.key, 40)
            );
            self.report(file, entry.pos, &message, "start it with a letter");
            return;
        }
        let mut valid = Vec::new();
        for day in days {
            let alone = ScheduleSpec {
                exclude: vec![day.clone()],
                ..ScheduleSpec::default()
            };
            let checked = Schedule::compile(&alone, self.now_ms, &Calendars::default());
            if let Err(error) = checked {
                let place = match &entry.value.data {
                    Data::List(items) => items
                        .iter()
                        .find(|item| matches!(&item.data, Data::Text(text) if text.text == *day)),
                    _ => None,
                };
                let pos = place.map_or(entry.value.pos, |item| item.pos);
                let hint = "write 2026-12-25 or 2026-12-24..2027-01-02";
                let message = error
                    .message
                    .replace("is neither a date nor a calendar", "is no date");
                self.report(file, pos, &message, hint);
            } else {
                valid.push(day);
            }
        }
        self.calendars.0.insert(entry.key.clone(), valid);
    }

    fn show(&self, at: At) -> String {
        format!("{}:{}:{}", self.files[at.file], at.pos.line, at.pos.column)
    }

    /// Checks the jobs, now that all files are known.
    pub(super) fn finish(mut self) -> JobFile {
        for (file, node) in std::mem::take(&mut self.jobs) {
            self.take_job(file, &node);
        }
        self.findings
            .sort_by_key(|(file, finding)| (*file, finding.line, finding.column));
        // What is wrong with the text itself says enough about the value there.
        self.findings
            .dedup_by(|(file, finding), (same_file, first)| {
                let at = |f: &Finding| (f.line, f.column);
                file == same_file && at(finding) == at(first) && first.job.is_none()
            });
        JobFile {
            jobs: self.specs,
            commands: self.commands,
            findings: self.findings.into_iter().map(|(_, f)| f).collect(),
        }
    }

    fn take_job(&mut self, file: usize, node: &Node) {
        if !matches!(node.data, Data::Map(_)) {
            let message = format!("a job is a group of keys, not {}", node.describe());
            self.report(file, node.pos, &message, "start it with `- id: NAME`");
            return;
        }
        let mut wrong = Vec::new();
        let mut map = read_group(node, JOB, "", &mut wrong);
        if !map.contains_key("id") {
            if !self.default_id.is_empty() {
                map.insert("id".into(), Value::String(self.default_id.clone()));
            } else if node
                .get("id")
                .is_none_or(|id| matches!(id.data, Data::Null))
            {
                wrong.push(Wrong {
                    pos: node.pos,
                    path: "id".into(),
                    message: "a job needs an `id`".into(),
                    hint: Some("write id: NAME, with a name of its own for each job".into()),
                });
            }
        }
        let id = map.get("id").and_then(Value::as_str).map(str::to_owned);
        map.entry("id")
            .or_insert_with(|| Value::String(NO_ID.into()));
        map.entry("run")
            .or_insert_with(|| Value::Object(serde_json::Map::new()));
        let spec = match serde_json::from_value::<JobSpec>(Value::Object(map)) {
            Ok(spec) => Some(spec),
            Err(error) => {
                wrong.push(Wrong {
                    pos: node.pos,
                    path: String::new(),
                    message: error.to_string(),
                    hint: None,
                });
                None
            }
        };
        if let Some(spec) = &spec {
            self.check_spec(spec, node, &mut wrong);
        }
        self.check_duplicate(file, node, id.as_deref(), &mut wrong);
        let spec = spec.map(|spec| self.with_dates(spec));
        if wrong.is_empty() {
            wrong.extend(spec.as_ref().and_then(|spec| too_large(spec, node)));
        }
        let ok = wrong.is_empty();
        for one in wrong {
            let mut finding = Finding::new(&self.files[file], one.pos, one.message);
            finding.job = id.as_deref().map(|id| shorten(id, 63));
            finding.path = Some(one.path).filter(|path| !path.is_empty());
            finding.hint = one.hint;
            self.findings.push((file, finding));
        }
        self.specs.extend(spec.filter(|_| ok));
    }

    fn check_spec(&self, spec: &JobSpec, node: &Node, wrong: &mut Vec<Wrong>) {
        let mut rest = spec.clone();
        // A schedule is refused at its first mistake: that part is taken out and the rest is
        // checked again.
        while let Err(errors) = rest.check(&self.calendars, self.now_ms) {
            let before = wrong.len();
            let mut again = false;
            for error in errors {
                let found = place(error, node);
                // What follows from a mistake that is reported already is not reported again.
                if !wrong
                    .iter()
                    .any(|known| is_related(&known.path, &found.path))
                {
                    again |= without(&mut rest.schedule, &found.path);
                    wrong.push(found);
                }
            }
            if !again || wrong.len() == before {
                return;
            }
        }
    }

    fn check_duplicate(
        &mut self,
        file: usize,
        node: &Node,
        id: Option<&str>,
        wrong: &mut Vec<Wrong>,
    ) {
        let Some(id) = id else { return };
        let pos = node.locate("id").pos;
        if let Some(first) = self.ids.get(id) {
            wrong.push(Wrong {
                pos,
                path: "id".into(),
                message: format!(
                    "this id stands twice; the first is at {}",
                    self.show(*first)
                ),
                hint: Some("give each job its own id".into()),
            });
        } else {
            self.ids.insert(id.to_owned(), At { file, pos });
        }
    }

    /// The same job with the days of calendars in place of their names.
    fn with_dates(&self, mut spec: JobSpec) -> JobSpec {
        let exclude = std::mem::take(&mut spec.schedule.exclude);
        for text in exclude {
            match self.calendars.0.get(text.trim()) {
                Some(days) => spec.schedule.exclude.extend(days.iter().cloned()),
                None => spec.schedule.exclude.push(text),
            }
        }
        spec
    }
}

fn too_large(spec: &JobSpec, node: &Node) -> Option<Wrong> {
    let bytes = serde_json::to_vec(spec).map_or(0, |json| json.len());
    (bytes > MAX_DEFINITION).then(|| Wrong {
        pos: node.pos,
        path: String::new(),
        message: format!(
            "the definition is {} KiB long as JSON; at most {} KiB are taken",
            bytes.div_ceil(1 << 10),
            MAX_DEFINITION >> 10
        ),
        hint: Some("put the data into a file and name that".into()),
    })
}
