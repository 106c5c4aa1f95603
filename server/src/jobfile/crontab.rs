//! Lines of a crontab where a job file or a cron expression belongs: said once, instead of a
//! mistake for every word in them.

use serde_json::Value;

use super::finding::Finding;
use super::tree::{Pos, shorten};

/// What to write when a line of a crontab stands under `cron:`.
pub(super) const COMMAND_HINT: &str =
    "a command goes into `run: { command: [...] }`, only the time fields go here";

/// Time fields of a crontab's line.
const FIELDS: usize = 5;

/// Whether the text of `cron:` goes on with a command.
pub(super) fn has_command(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    let fields = match words.first() {
        Some(first) if first.starts_with('@') => 1,
        _ => FIELDS,
    };
    let Some(rest) = words.get(fields..).filter(|rest| !rest.is_empty()) else {
        return false;
    };
    let is_path = |word: &&str| word.starts_with(['/', '~']) || word.starts_with("./");
    fields == 1 || words.len() > 7 || rest[0] == "root" || rest.iter().any(is_path)
}

/// The finding for a whole crontab; `None` if the text is something else.
pub(super) fn finding(file: &str, text: &str) -> Option<Finding> {
    let mut first = None;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || is_variable(line) {
            continue;
        }
        let (time, command) = split(line)?;
        first = first.or(Some((number, time, command)));
    }
    let (number, time, command) = first?;
    let line = u32::try_from(number + 1).unwrap_or(u32::MAX);
    // JSON's quotes are YAML's too.
    let quoted = |text: &str| Value::from(shorten(text, 200)).to_string();
    let hint = format!(
        "write its lines as jobs, this one as `jobs: [{{ id: NAME, schedule: {{ cron: {} }}, \
         run: {{ command: [\"/bin/sh\", \"-c\", {}] }} }}]`",
        quoted(&time),
        quoted(command)
    );
    Some(
        Finding::new(
            file,
            Pos { line, column: 1 },
            "this is a crontab, not a job file",
        )
        .hint(hint),
    )
}

/// `NAME=value`.
fn is_variable(line: &str) -> bool {
    line.split_once('=').is_some_and(|(name, _)| {
        let name = name.trim();
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}

/// Time and command of a line, if it is one.
fn split(line: &str) -> Option<(String, &str)> {
    let fields = if line.starts_with('@') { 1 } else { FIELDS };
    let mut rest = line;
    let mut time = Vec::new();
    for _ in 0..fields {
        let (field, after) = rest.split_once([' ', '\t'])?;
        time.push(field);
        rest = after.trim_start();
    }
    let is_time = |field: &&str| {
        let mut chars = field.chars();
        chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '*' | '/' | ',' | '-' | '?' | '#'))
    };
    let begins = |c: char| c.is_ascii_digit() || c == '*';
    let plausible = match fields {
        1 => time[0].len() > 1 && time[0][1..].bytes().all(|b| b.is_ascii_lowercase()),
        // Minute, hour and day are never words.
        _ => time.iter().all(is_time) && time[..3].iter().all(|field| field.starts_with(begins)),
    };
    // Files of the system name a user first.
    let command = rest.strip_prefix("root").map_or(rest, |after| {
        if after.starts_with([' ', '\t']) {
            after.trim_start()
        } else {
            rest
        }
    });
    (plausible && !command.is_empty()).then(|| (time.join(" "), command))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_behind_the_time_are_seen() {
        for text in [
            "0 5 * * * /usr/bin/backup",
            "0 5 * * * root /usr/bin/backup --all",
            "*/5 * * * * cd /tmp && ./run --all",
            "@daily /usr/bin/backup",
        ] {
            assert!(has_command(text), "{text}");
        }
        for text in [
            "0 5 * * *",
            "0 0 5 ? * MON 2030",
            "*/5 * * * * *",
            "@daily",
            "",
        ] {
            assert!(!has_command(text), "{text}");
        }
    }

    #[test]
    fn a_crontab_is_told_from_a_job_file() {
        let crontab = "# m h dom mon dow command\nSHELL=/bin/sh\n\n17 *\t* * *\troot    cd / && run-parts /etc/cron.hourly\n@reboot /usr/bin/x\n";
        let shown = finding("tab", crontab).unwrap().to_string();
        assert!(shown.starts_with("tab:4:1: this is a crontab"), "{shown}");
        assert!(shown.contains("cron: \"17 * * * *\""), "{shown}");
        assert!(
            shown.contains("\"cd / && run-parts /etc/cron.hourly\""),
            "{shown}"
        );
        for text in [
            "jobs:\n  - id: a\n",
            "",
            "A=b\n",
            "title = \"x\"\n[[jobs]]\nid = \"a\"\n",
            "this is just some text that nobody reads\n",
        ] {
            assert_eq!(finding("f", text), None, "{text}");
        }
    }
}
