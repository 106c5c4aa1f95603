//! Prints answers: data on standard output, everything else on standard error. A reader that
//! closes the pipe early is no error.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::cli::args::{ColorChoice, Common, Format};
use crate::cli::failure::{Exit, Failure, Outcome};
use crate::table::Table;
use crate::times::Clock;

/// How the user wants answers.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) format: Format,
    pub(crate) clock: Clock,
    headers: bool,
    quiet: bool,
    pub(crate) verbose: u8,
    color: bool,
}

/// A kind of object that can be listed.
pub(crate) struct View<'a, T> {
    /// Titles of the columns, and whether only `-o wide` has them.
    pub(crate) columns: &'a [(&'static str, bool)],
    /// The cells of an object, one a column.
    pub(crate) row: &'a dyn Fn(&T) -> Vec<String>,
    /// Its id.
    pub(crate) name: &'a dyn Fn(&T) -> String,
}

impl Output {
    pub(crate) fn new(common: &Common) -> Self {
        let color = match common.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => {
                io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
            }
        };
        Self {
            format: common.output,
            clock: Clock::new(common.time),
            headers: !common.no_headers,
            quiet: common.quiet,
            verbose: common.verbose,
            color,
        }
    }

    /// Whether the format is for programs.
    pub(crate) fn is_data(&self) -> bool {
        !matches!(self.format, Format::Table | Format::Wide)
    }

    /// Says something to the person at the terminal.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            say(text);
        }
    }

    /// Writes a line of data.
    pub(crate) fn line(&self, text: &str) -> Outcome {
        writeln!(io::stdout().lock(), "{text}")?;
        Ok(())
    }

    /// Writes a whole listing.
    pub(crate) fn list<T: Serialize>(&self, items: &[T], view: &View<'_, T>) -> Outcome {
        match self.format {
            Format::Json => self.json(&items),
            Format::Yaml => self.yaml(&items),
            Format::Jsonl => {
                let mut out = io::BufWriter::new(io::stdout().lock());
                for item in items {
                    serde_json::to_writer(&mut out, item).map_err(io::Error::from)?;
                    out.write_all(b"\n")?;
                }
                out.flush()?;
                Ok(())
            }
            Format::Name => {
                let mut out = io::BufWriter::new(io::stdout().lock());
                for item in items {
                    writeln!(out, "{}", (view.name)(item))?;
                }
                out.flush()?;
                Ok(())
            }
            Format::Table | Format::Wide => {
                let shown: Vec<bool> = view
                    .columns
                    .iter()
                    .map(|(_, wide)| !wide || self.format == Format::Wide)
                    .collect();
                let keep = |cells: Vec<String>| -> Vec<String> {
                    let pairs = cells.into_iter().zip(&shown);
                    pairs
                        .filter(|(_, shown)| **shown)
                        .map(|(cell, _)| cell)
                        .collect()
                };
                let titles = view.columns.iter().map(|(title, _)| (*title).to_owned());
                let mut table = Table::new(keep(titles.collect()));
                for item in items {
                    table.push(keep((view.row)(item)));
                }
                let text = table.render(self.headers, self.color);
                io::stdout().lock().write_all(text.as_bytes())?;
                Ok(())
            }
        }
    }

    /// Writes one object: `text` for people, itself for programs.
    pub(crate) fn object<T: Serialize>(
        &self,
        item: &T,
        name: &str,
        text: impl FnOnce() -> String,
    ) -> Outcome {
        match self.format {
            Format::Json => self.json(item),
            Format::Jsonl => {
                let line = serde_json::to_string(item).map_err(io::Error::from)?;
                self.line(&line)
            }
            Format::Yaml => self.yaml(item),
            Format::Name => self.line(name),
            Format::Table | Format::Wide => {
                io::stdout().lock().write_all(text().as_bytes())?;
                Ok(())
            }
        }
    }

    fn json<T: Serialize>(&self, item: &T) -> Outcome {
        let mut out = io::BufWriter::new(io::stdout().lock());
        serde_json::to_writer_pretty(&mut out, item).map_err(io::Error::from)?;
        out.write_all(b"\n")?;
        out.flush()?;
        Ok(())
    }

    fn yaml<T: Serialize>(&self, item: &T) -> Outcome {
        let text = serde_saphyr::to_string(item)
            .map_err(|e| Failure::new(Exit::Bug, format!("cannot write YAML: {e}")))?;
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        if !text.ends_with('\n') {
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}

/// Writes a line to standard error; if nobody listens there, nobody misses it.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
