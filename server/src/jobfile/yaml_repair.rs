//! Finds the text without quotes that made a file unreadable: `cron: */5 * * * *`, `cron: @daily`.

use super::tree::Pos;

/// A value that starts with a character which means something else in YAML.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unquoted {
    pub(super) pos: Pos,
    pub(super) first: char,
    pub(super) value: String,
    start: usize,
}

impl Unquoted {
    /// The text with this value in quotes.
    pub(super) fn mend(&self, text: &str) -> String {
        let end = self.start + self.value.len();
        let (head, value, tail) = (&text[..self.start], &text[self.start..end], &text[end..]);
        format!("{head}\"{value}\"{tail}")
    }
}

/// Looks at the line that was found broken and, because a parser may notice only later, at
/// `above` lines before it.
pub(super) fn find_unquoted(text: &str, line: u32, above: usize) -> Option<Unquoted> {
    let line = line as usize;
    let mut lines = Vec::new();
    let mut offset = 0;
    for (number, content) in text.split_inclusive('\n').enumerate().take(line) {
        if number + 1 + above >= line {
            lines.push((number + 1, offset, content.trim_end_matches(['\n', '\r'])));
        }
        offset += content.len();
    }
    lines
        .into_iter()
        .rev()
        .find_map(|(number, offset, content)| in_line(number, offset, content))
}

fn in_line(number: usize, offset: usize, line: &str) -> Option<Unquoted> {
    let mut before = ' ';
    let mut space = true;
    let mut flow = false;
    let mut quote = None;
    // `before` is the last character that is no space: a value starts after `:`, `-`, `,` or a
    // bracket.
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => continue,
            (None, '"' | '\'') if matches!(before, ' ' | ':' | '-' | ',' | '[' | '{') => {
                quote = Some(c);
            }
            (None, '#') if space => return None,
            (None, '[' | '{') => flow = true,
            (None, '*' | '@' | '%' | '`') if matches!(before, ':' | '-' | ',' | '[' | '{') => {
                let value = value_at(&line[at..], flow);
                if needs_quotes(c, value) {
                    return Some(Unquoted {
                        pos: Pos::new(number, line[..at].chars().count() + 1),
                        first: c,
                        value: value.to_owned(),
                        start: offset + at,
                    });
                }
            }
            _ => {}
        }
        space = c.is_whitespace();
        if !space {
            before = c;
        }
    }
    None
}

/// The value up to its end, as its author meant it.
fn value_at(rest: &str, flow: bool) -> &str {
    let comment = rest.find(" #").unwrap_or(rest.len());
    let mut value = &rest[..comment];
    if flow {
        let bracket = value.find(['}', ']']).unwrap_or(value.len());
        value = &value[..bracket];
        // `, key:` ends it, `1,2` does not.
        let next_key = value
            .match_indices(", ")
            .find(|(at, _)| value[*at..].contains(':'))
            .map_or(value.len(), |(at, _)| at);
        value = &value[..next_key];
    }
    value.trim_end()
}

/// `*name` alone is an alias as YAML means it; `* * * * *` and `*/5 ...` are not.
fn needs_quotes(first: char, value: &str) -> bool {
    if value.contains(['"', '\\']) {
        return false;
    }
    first != '*' || value == "*" || value.contains(' ') || value.starts_with("*/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_value_as_its_author_meant_it() {
        for (line, column, value) in [
            ("    cron: */5 * * * *", 11, "*/5 * * * *"),
            ("  - cron: * * * * *  # each minute", 11, "* * * * *"),
            ("- @daily", 3, "@daily"),
            (
                "schedule: { cron: */5 1,2 * * *, timezone: UTC }",
                19,
                "*/5 1,2 * * *",
            ),
            ("schedule: {cron: * * * * *}", 18, "* * * * *"),
        ] {
            let found = find_unquoted(line, 1, 0).unwrap();
            assert_eq!(
                (found.pos, found.value.as_str()),
                (Pos::new(1, column), value)
            );
            let mended = found.mend(line);
            assert!(mended.contains(&format!("\"{value}\"")), "{mended}");
        }
        for line in [
            "cron: \"*/5 * * * *\"",
            "run: *defaults",
            "cron: 5 * * * *",
            "# cron: * * * * *",
            "every: 5m  # not cron: * * * * *",
            "a: b",
        ] {
            assert_eq!(find_unquoted(line, 1, 0), None, "{line}");
        }
    }
}
