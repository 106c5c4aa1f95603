//! Finds and reads the files that a user names: a file, a directory of files, or `-`.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::tree::LineIndex;

/// The largest file, and the most that is read together.
pub const MAX_BYTES: u64 = 64 << 20;

/// How a text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// YAML 1.2.
    Yaml,
    /// TOML 1.
    Toml,
    /// JSON.
    Json,
}

impl Format {
    const EXTENSIONS: [(&'static str, Self); 4] = [
        ("yaml", Self::Yaml),
        ("yml", Self::Yaml),
        ("toml", Self::Toml),
        ("json", Self::Json),
    ];

    /// By the file's name.
    pub fn of_path(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        let known = Self::EXTENSIONS.iter();
        let mut found = known.filter(|(name, _)| *name == extension);
        found.next().map(|(_, format)| *format)
    }

    /// By the text itself, where there is no name to go by.
    pub fn guess(text: &str) -> Self {
        let mut lines = text.lines().map(str::trim);
        let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
        match first {
            Some(line) if line.starts_with('{') => Self::Json,
            Some(line) if line == "[" || line.starts_with("[{") => Self::Json,
            Some(line) if line.starts_with('[') && line.ends_with(']') => Self::Toml,
            Some(line) if line.contains(" = ") && !line.contains(": ") => Self::Toml,
            _ => Self::Yaml,
        }
    }
}

/// A text to read jobs from.
#[derive(Clone, Debug)]
pub struct Source {
    /// As the user named it.
    pub name: String,
    /// How it is written.
    pub format: Format,
    /// All of it.
    pub text: String,
}

/// Input that cannot be read at all, as opposed to input with mistakes in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(pub String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads everything that is named: files, directories, `-` for standard input.
///
/// # Errors
/// All of the failures, not only the first.
pub fn read_all(names: &[PathBuf]) -> Result<Vec<Source>, Vec<Unreadable>> {
    let mut sources = Vec::new();
    let mut failures = Vec::new();
    let mut left = MAX_BYTES;
    for name in names {
        let read = expand(name).and_then(|files| {
            for file in files {
                let source = read(&file, left)?;
                left -= source.text.len() as u64;
                sources.push(source);
            }
            Ok(())
        });
        failures.extend(read.err());
    }
    if failures.is_empty() {
        Ok(sources)
    } else {
        Err(failures)
    }
}

/// A directory stands for the job files right in it, in the order of their names.
fn expand(name: &Path) -> Result<Vec<PathBuf>, Unreadable> {
    if !name.is_dir() {
        return Ok(vec![name.to_owned()]);
    }
    let fail = |error: io::Error| Unreadable(format!("{}: {error}", name.display()));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(name).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if Format::of_path(&path).is_some() && !path.is_dir() {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(Unreadable(format!(
            "{}: no *.yaml, *.yml, *.toml or *.json in this directory",
            name.display()
        )));
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path, limit: u64) -> Result<Source, Unreadable> {
    let is_stdin = path == Path::new("-");
    let name = if is_stdin {
        "-".to_owned()
    } else {
        path.display().to_string()
    };
    let bytes = if is_stdin {
        read_limited(io::stdin().lock(), limit)
    } else {
        File::open(path).and_then(|file| read_limited(file, limit))
    };
    let bytes = bytes.map_err(|e| Unreadable(format!("{name}: {}", explain(&e))))?;
    let Some(bytes) = bytes else {
        let limit = MAX_BYTES >> 20;
        return Err(Unreadable(format!(
            "{name}: more than {limit} MiB of job files; apply them in several parts"
        )));
    };
    let text = decode(&name, bytes)?;
    let format = Format::of_path(path).unwrap_or_else(|| Format::guess(&text));
    Ok(Source { name, format, text })
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "there is no such file".into(),
        io::ErrorKind::PermissionDenied => "you may not read this file".into(),
        _ => error.to_string(),
    }
}

/// Everything, or `None` when there is more than `limit`.
fn read_limited(from: impl Read, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    from.take(limit + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= limit).then_some(bytes))
}

/// UTF-8, with or without a byte order mark.
///
/// # Errors
/// Names the place of the first byte that is not.
pub fn decode(name: &str, bytes: Vec<u8>) -> Result<String, Unreadable> {
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let bytes = error.as_bytes();
        let valid = String::from_utf8_lossy(&bytes[..at]);
        let pos = LineIndex::new(&valid).pos(valid.len());
        let byte = bytes.get(at).copied().unwrap_or(0);
        Unreadable(format!(
            "{name}:{}:{}: not UTF-8 text (byte 0x{byte:02x}); save the file as UTF-8",
            pos.line, pos.column
        ))
    })?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_guessed_from_the_text() {
        for (text, format) in [
            ("jobs:\n  - id: a\n", Format::Yaml),
            ("# a comment\n\n{ \"jobs\": [] }", Format::Json),
            ("[[jobs]]\nid = \"a\"\n", Format::Toml),
            ("title = \"x\"\n", Format::Toml),
            ("- id: a\n", Format::Yaml),
            ("", Format::Yaml),
        ] {
            assert_eq!(Format::guess(text), format, "{text}");
        }
    }

    #[test]
    fn what_is_not_utf8_is_named_with_its_place() {
        let error = decode("j.yaml", b"a: 1\nb: \xff".to_vec()).unwrap_err();
        assert_eq!(
            error.0,
            "j.yaml:2:4: not UTF-8 text (byte 0xff); save the file as UTF-8"
        );
        assert_eq!(decode("j", b"\xef\xbb\xbfjobs:".to_vec()).unwrap(), "jobs:");
    }

    #[test]
    fn more_than_the_limit_is_refused_before_it_fills_memory() {
        assert_eq!(read_limited(io::repeat(b' '), 10).unwrap(), None);
        assert_eq!(
            read_limited(&b"1234567890"[..], 10).unwrap().unwrap().len(),
            10
        );
    }
}
