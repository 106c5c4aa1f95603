//! `next`: fire times of an expression, one question or many.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use punctual::schedule::explain::{Language, LintCode, explain};
use punctual::schedule::query::{self, NextQuery};
use punctual::schedule::{Calendars, Dialect, ScheduleError, ScheduleSpec};

use super::args::{DialectArg, Format, NextArgs};
use super::failure::{Failure, Outcome};
use crate::output::Output;
use crate::times::now_ms;

/// The longest question of a batch.
const MAX_LINE: u64 = 64 << 10;

pub(super) fn next(output: &Output, args: NextArgs) -> Outcome {
    if let Some(path) = &args.batch {
        return batch(path);
    }
    let question = NextQuery {
        expr: args.expr.unwrap_or_default(),
        dialect: dialect(args.dialect),
        tz: args.tz,
        after: args.after,
        count: args.count,
    };
    let fires = query::fires(&question, now_ms())
        .map_err(|error| schedule_failure(&question.expr, error))?;
    if fires.is_empty() && !output.is_data() {
        output.note(if never_fires(&question) {
            "this expression never fires"
        } else {
            "this expression never fires again"
        });
    }
    match output.format {
        Format::Table | Format::Wide | Format::Name => {
            let mut out = BufWriter::new(io::stdout().lock());
            for fire in &fires {
                writeln!(out, "{fire}")?;
            }
            out.flush()?;
            Ok(())
        }
        _ => output.list(
            &fires,
            &crate::output::View {
                columns: &[],
                row: &|_: &String| Vec::new(),
                name: &String::clone,
            },
        ),
    }
}

/// Whether there is no fire at all, neither before nor after.
fn never_fires(question: &NextQuery) -> bool {
    let spec = ScheduleSpec {
        cron: Some(question.expr.clone()),
        timezone: question.tz.clone(),
        dialect: question.dialect,
        ..ScheduleSpec::default()
    };
    let calendars = Calendars::default();
    let explained = explain(&spec, now_ms(), &calendars, 0, Language::English);
    explained.is_ok_and(|explained| {
        let mut lints = explained.lints.iter();
        lints.any(|lint| lint.code == LintCode::NeverFires)
    })
}

pub(super) fn dialect(given: DialectArg) -> Dialect {
    match given {
        DialectArg::Auto => Dialect::Auto,
        DialectArg::Unix => Dialect::Unix,
        DialectArg::Quartz => Dialect::Quartz,
    }
}

/// What is wrong with an expression, with a pointer to the place.
pub(super) fn schedule_failure(expression: &str, error: ScheduleError) -> Failure {
    let mut message = format!("{}: {}", error.field, error.message);
    if let Some(at) = error.at {
        let pointer = format!("{}^", " ".repeat(at.saturating_sub(1)));
        message = format!("{message}\n  {}\n  {pointer}", one_line(expression));
    }
    let failure = Failure::usage(message);
    match error.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

/// As it stands, so that the pointer below it points, unless it would break the line.
fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(500)
        .collect()
}

fn batch(path: &Path) -> Outcome {
    let input: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        let file = File::open(path)
            .map_err(|e| Failure::usage(format!("--batch {}: {e}", path.display())))?;
        Box::new(BufReader::new(file))
    };
    answer_lines(input, &mut BufWriter::new(io::stdout().lock()), now_ms())
}

/// One answer a line, in order; a line that makes no sense has an answer too.
fn answer_lines(mut input: impl BufRead, out: &mut impl Write, now_ms: i64) -> Outcome {
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = io::Read::take(&mut input, MAX_LINE);
        let read = limited
            .read_until(b'\n', &mut line)
            .map_err(|e| Failure::usage(format!("--batch: {e}")))?;
        if read == 0 {
            break;
        }
        if read as u64 == MAX_LINE && line.last() != Some(&b'\n') {
            return Err(Failure::usage(format!(
                "--batch: a line of more than {MAX_LINE} bytes"
            )));
        }
        let text = String::from_utf8_lossy(&line);
        if text.trim().is_empty() {
            continue;
        }
        let answer = query::answer_line(text.trim_end_matches(['\n', '\r']), now_ms);
        serde_json::to_writer(&mut *out, &answer).map_err(io::Error::from)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_answer_in_order() {
        let input = b"{\"expr\":\"0 * * * *\",\"count\":1}\n\n{\"expr\":\"0 * 32 * *\"}\r\n\xff\n{\"expr\":\"0 0 * * *\",\"count\":1}";
        let mut out = Vec::new();
        answer_lines(&input[..], &mut out, 0).unwrap();
        let out = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 4, "{out}");
        assert_eq!(lines[0], r#"{"next":["1970-01-01T01:00:00+00:00"]}"#);
        assert!(lines[1].starts_with(r#"{"error":"#) && lines[1].ends_with(r#""at":5}"#));
        assert!(lines[2].starts_with(r#"{"error":"#));
        assert_eq!(lines[3], r#"{"next":["1970-01-02T00:00:00+00:00"]}"#);
        let endless = vec![b'x'; 1 << 20];
        assert!(answer_lines(&endless[..], &mut io::sink(), 0).is_err());
    }
}
