//! Tables for people.

use comfy_table::presets::NOTHING;

/// Rows under titles, in columns as wide as they need to be.
#[derive(Debug)]
pub(crate) struct Table {
    titles: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(titles: Vec<String>) -> Self {
        Self {
            titles,
            rows: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    pub(crate) fn render(self, headers: bool, color: bool) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(NOTHING);
        if headers {
            table.add_row(self.titles);
        }
        for row in self.rows {
            // Output of jobs and names of users must not steer the terminal.
            table.add_row(
                row.iter()
                    .map(|cell| punctual_server::jobfile::shorten(cell, 200)),
            );
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        let mut text = String::new();
        for (number, line) in table.lines().enumerate() {
            let line = line.trim_end();
            if headers && number == 0 && color {
                text.push_str(&format!("\u{1b}[1m{line}\u{1b}[0m"));
            } else {
                text.push_str(line);
            }
            text.push('\n');
        }
        text
    }
}

/// Names and values below each other, as `systemctl show` has them.
pub(crate) fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in pairs {
        let mut lines = value.lines();
        let first = lines.next().unwrap_or("-");
        text.push_str(&format!(
            "{name:>width$}: {}\n",
            punctual_server::jobfile::shorten(first, 2_000)
        ));
        for line in lines {
            let line = punctual_server::jobfile::shorten(line, 2_000);
            text.push_str(&format!("{:>width$}  {line}\n", ""));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_texts_stay_on_their_line() {
        let mut table = Table::new(vec!["JOB".into(), "STATE".into()]);
        table.push(vec!["日本".into(), "a\nb".into()]);
        table.push(vec!["longer-name".into(), "ok".into()]);
        assert_eq!(
            table.render(true, false),
            "JOB          STATE\n日本         a\\u{a}b\nlonger-name  ok\n"
        );
    }

    #[test]
    fn pairs_line_up_too() {
        assert_eq!(
            pairs(&[("id", "a".into()), ("output", "x\ny".into())]),
            "    id: a\noutput: x\n        y\n"
        );
    }
}
