//! Crontabs, of a user and of the system, as cron (Vixie's, cronie's) reads them.

use std::collections::BTreeMap;

use punctual::duration::Millis;
use punctual::job::spec::{CommandSpec, JobSpec, RunSpec};
use punctual::schedule::{Dialect, ScheduleSpec};

use super::{Options, Reading};

/// Who owns lines of `/etc/crontab`, when the file's name says nothing.
const USERS: [&str; 10] = [
    "root", "daemon", "nobody", "www-data", "postgres", "mysql", "mail", "news", "backup", "man",
];
/// Programs that run others: they name no job.
const WRAPPERS: [&str; 16] = [
    "cd", "test", "[", "sudo", "nice", "ionice", "env", "exec", "sh", "bash", "flock", "timeout",
    "time", "command", "if", "umask",
];
/// Cron stops nothing; we always have a limit.
const TIMEOUT: Millis = Millis::from_secs(24 * 3_600);

/// What stands above a line and counts for it.
#[derive(Clone, Default)]
struct Setting {
    shell: Option<String>,
    zone: Option<String>,
    jitter: Option<Millis>,
    env: BTreeMap<String, String>,
}

pub(super) fn read(name: &str, text: &str, options: &Options) -> Reading {
    let system = options
        .system
        .unwrap_or_else(|| is_of_the_system(name, text));
    let mut reading = Reading::default();
    let mut setting = Setting::default();
    let mut comment: Option<String> = None;
    for (index, raw) in text.lines().enumerate() {
        let number = index + 1;
        let line = raw.trim();
        if line.is_empty() {
            comment = None;
        } else if let Some(text) = line.strip_prefix('#') {
            let text = text.trim_start_matches('#').trim();
            comment = (!text.is_empty()).then(|| text.to_owned());
        } else if let Some((name, value)) = variable(line) {
            set(&mut reading, &mut setting, number, name, value);
            comment = None;
        } else {
            job(
                &mut reading,
                &setting,
                number,
                line,
                system,
                comment.take(),
                options,
            );
        }
    }
    about_all(&mut reading, system, options);
    reading
}

/// What is different for every line.
fn about_all(reading: &mut Reading, system: bool, options: &Options) {
    if reading.jobs_with_lines.is_empty() {
        return;
    }
    let zone = options.timezone.as_deref().unwrap_or("UTC");
    reading.note(
        0,
        format!(
            "time zone: cron fires in the zone of its machine, here each job names its own; lines \
         without CRON_TZ got {zone} (another one: --tz)"
        ),
    );
    reading.note(
        0,
        format!(
            "time limit: cron has none, here every run has one; `timeout: {TIMEOUT}` was written"
        ),
    );
    reading.note(
        0,
        "missed times: cron drops what falls into a stop of the machine; here times of the last ten \
         minutes are made up for, and of a longer stop the latest one (`misfire: skip` drops them)",
    );
    reading.note(
        0,
        "overlap: as in cron, a run begins although the one before is not finished; `overlap: skip` \
         leaves it out",
    );
    reading.note(
        0,
        "output: cron mails it, here it is kept with the run (`punctual run show`); HOME and PATH are \
         the node's, unless the file sets them",
    );
    if system {
        reading.note(
            0,
            "users: cron runs each line as its user, here a node runs everything as its own",
        );
    }
}

/// `NAME=value`, `NAME = "value"`.
fn variable(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once('=')?;
    let name = name.trim().trim_matches(['"', '\'']);
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty()
        || !name.chars().all(is_name)
        || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return None;
    }
    let value = value.trim();
    let quoted = |quote| {
        value
            .strip_prefix(quote)
            .and_then(|v| v.strip_suffix(quote))
    };
    Some((name, quoted('"').or_else(|| quoted('\'')).unwrap_or(value)))
}

fn set(reading: &mut Reading, setting: &mut Setting, line: usize, name: &str, value: &str) {
    match name {
        "SHELL" => setting.shell = Some(value.to_owned()).filter(|shell| !shell.is_empty()),
        "CRON_TZ" => {
            setting.zone = Some(value.to_owned()).filter(|zone| !zone.is_empty());
            reading.note(
                line,
                format!("CRON_TZ became `timezone: {value}` of the jobs below it"),
            );
        }
        "MAILTO" | "MAILFROM" | "CONTENT_TYPE" | "CONTENT_TRANSFER_ENCODING" => {
            reading.note(
                line,
                format!("{name}: nothing is mailed; the output is kept with the run"),
            );
        }
        "LOGNAME" | "USER" => {
            reading.note(
                line,
                format!("{name} is the node's own user and was left out"),
            );
        }
        "RANDOM_DELAY" => match value.parse::<u64>() {
            Ok(minutes) => {
                setting.jitter = Some(Millis::from_secs(minutes * 60)).filter(|j| j.ms() > 0);
                reading.note(line, format!("RANDOM_DELAY became `jitter: {minutes}m`"));
            }
            Err(_) => reading.refuse(
                line,
                format!("RANDOM_DELAY={value} is no number of minutes"),
            ),
        },
        _ => {
            if name == "TZ" {
                reading.note(
                    line,
                    "TZ is handed to the commands, as cron does; it does not move the times, only \
                     CRON_TZ does",
                );
            }
            setting.env.insert(name.to_owned(), value.to_owned());
        }
    }
}

fn job(
    reading: &mut Reading,
    setting: &Setting,
    number: usize,
    line: &str,
    system: bool,
    comment: Option<String>,
    options: &Options,
) {
    // SUSE: this line is not logged.
    let line = line.strip_prefix('-').unwrap_or(line);
    let Some((time, rest)) = split(line) else {
        return reading.refuse(number, "this is neither a job nor a variable");
    };
    let (user, command) = match system {
        true => match rest.split_once([' ', '\t']) {
            Some((user, command)) => (Some(user), command.trim_start()),
            None => return reading.refuse(number, "a user and a command must follow the time"),
        },
        false => (None, rest),
    };
    let cron = match time.as_str() {
        "@reboot" => {
            return reading.refuse(
                number,
                "@reboot has no time: a cluster does not boot. Start it with the machine (a unit of \
                 systemd), or run it by hand with `punctual job trigger`",
            );
        }
        "@every_minute" => "* * * * *".to_owned(),
        _ if time.contains('~') => {
            return reading.refuse(
                number,
                format!(
                    "`{time}`: cron draws a time at random within `~`. Write the first time, and \
                     `jitter` for the spread"
                ),
            );
        }
        _ => time,
    };
    let (command, input) = percent(command);
    let shell = setting.shell.as_deref().unwrap_or("/bin/sh");
    let script = match input {
        None => command.clone(),
        Some(lines) => {
            reading.note(
                number,
                "`%` begins the standard input of the command; ours is empty, so it is piped in",
            );
            format!("printf '%s\\n' {} | ( {command} )", lines.join(" "))
        }
    };
    let id = reading.id(&name_of(&command));
    if let Some(user) = user.filter(|user| *user != "root" || system) {
        reading.note(
            number,
            format!("{id}: cron runs it as {user}, a node as its own user"),
        );
    }
    let mut spec = JobSpec::handler(id, "");
    spec.name = comment;
    spec.schedule = ScheduleSpec {
        cron: Some(cron),
        dialect: Dialect::Unix,
        timezone: setting.zone.clone().or_else(|| options.timezone.clone()),
        jitter: setting.jitter,
        ..ScheduleSpec::default()
    };
    spec.run = RunSpec {
        command: Some(CommandSpec::Argv(vec![shell.into(), "-c".into(), script])),
        env: setting.env.clone(),
        ..RunSpec::default()
    };
    spec.timeout = TIMEOUT;
    let fields: Vec<&str> = spec
        .schedule
        .cron
        .iter()
        .flat_map(|c| c.split(' '))
        .collect();
    if let [_, _, day, _, weekday] = fields[..]
        && !day.starts_with('*')
        && !weekday.starts_with('*')
    {
        reading.note(
            number,
            format!(
                "{}: fires when the day of the month `{day}` or the day of the week `{weekday}` \
                 matches, as in cron",
                spec.id
            ),
        );
    }
    reading.jobs_with_lines.push((number, spec));
}

/// The time and what follows it.
fn split(line: &str) -> Option<(String, &str)> {
    let fields = if line.starts_with('@') { 1 } else { 5 };
    let mut rest = line;
    let mut time = Vec::new();
    for _ in 0..fields {
        let (field, after) = rest.split_once([' ', '\t'])?;
        time.push(field);
        rest = after.trim_start();
    }
    (!rest.is_empty()).then(|| (time.join(" "), rest))
}

/// The command up to the first `%`, and the lines behind it, quoted for a shell; `\%` is a percent
/// sign.
fn percent(text: &str) -> (String, Option<Vec<String>>) {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.peek() == Some(&'%') => {
                chars.next();
                parts
                    .iter_mut()
                    .next_back()
                    .into_iter()
                    .for_each(|p| p.push('%'));
            }
            '%' => parts.push(String::new()),
            c => parts
                .iter_mut()
                .next_back()
                .into_iter()
                .for_each(|p| p.push(c)),
        }
    }
    let command = parts.remove(0).trim_end().to_owned();
    let quoted = |line: &String| format!("'{}'", line.replace('\'', "'\\''"));
    let lines: Vec<String> = parts.iter().map(quoted).collect();
    (command, (!lines.is_empty()).then_some(lines))
}

/// The word of a command that says most about it.
fn name_of(command: &str) -> String {
    let words = command.split(|c: char| c.is_whitespace() || "();|&<>\"'".contains(c));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let base = |word: &str| {
        let file = word
            .rsplit('/')
            .find(|part| !part.is_empty())
            .unwrap_or(word);
        let stem = file.split_once('.').map_or(file, |(stem, _)| stem);
        if stem.is_empty() { file } else { stem }.to_owned()
    };
    // `cd /srv` goes somewhere, and `-x` belongs to a wrapper.
    let mut after_cd = false;
    for word in &words {
        let stem = base(word);
        let skip = after_cd
            || word.starts_with('-')
            || word.contains('=')
            || WRAPPERS.contains(&stem.as_str())
            || word.starts_with("/etc/default")
            || !stem.chars().any(|c| c.is_ascii_alphabetic());
        after_cd = stem == "cd";
        if !skip {
            return stem;
        }
    }
    words.first().map(|word| base(word)).unwrap_or_default()
}

/// `/etc/crontab` and `/etc/cron.d` have a user in every line, and so has what looks like them.
fn is_of_the_system(name: &str, text: &str) -> bool {
    if name == "/etc/crontab" || name.starts_with("/etc/cron.d/") {
        return true;
    }
    let jobs = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#') && variable(line).is_none());
    let mut users = jobs.filter_map(|line| split(line)?.1.split_whitespace().next());
    let mut any = false;
    users.all(|user| {
        any = true;
        USERS.contains(&user)
    }) && any
}
