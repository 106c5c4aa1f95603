//! What a job file says, with the place of every key and value, whatever format it is in.
//!
//! Serde would stop at the first mistake and forget where the rest stood. A job file's author
//! wants every finding at once, each with its line and column.

use std::collections::HashMap;
use std::rc::Rc;

use serde_json::{Map, Number, Value};

/// A place in a file: line and column, both from 1, the column in characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pos {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl Pos {
    pub(crate) const START: Self = Self { line: 1, column: 1 };

    pub(crate) fn new(line: usize, column: usize) -> Self {
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            line: narrow(line),
            column: narrow(column),
        }
    }
}

/// A value and where it stands.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) pos: Pos,
    pub(crate) data: Data,
    /// Nodes in it, itself included, as often as aliases repeat them.
    pub(crate) weight: usize,
    /// Bytes of the texts and keys in it, as often as aliases repeat them.
    pub(crate) bytes: usize,
}

/// A value.
#[derive(Debug)]
pub(crate) enum Data {
    Null,
    Bool(bool),
    Number(Number),
    Text(Text),
    List(Vec<Rc<Node>>),
    Map(Vec<Entry>),
}

/// A text.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) text: String,
    /// Column of its first character, if each of its characters is one character of that line.
    pub(crate) inner: Option<u32>,
}

/// A key with its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) pos: Pos,
    pub(crate) value: Rc<Node>,
}

impl Node {
    pub(crate) fn new(pos: Pos, data: Data) -> Self {
        let inside = match &data {
            Data::List(items) => items.iter().map(|node| node.weight).sum(),
            Data::Map(entries) => entries.iter().map(|entry| entry.value.weight).sum(),
            _ => 0_usize,
        };
        let bytes = match &data {
            Data::Text(text) => text.text.len(),
            Data::List(items) => items.iter().map(|node| node.bytes).sum(),
            Data::Map(entries) => entries.iter().map(|e| e.key.len() + e.value.bytes).sum(),
            _ => 0,
        };
        Self {
            pos,
            data,
            weight: inside.saturating_add(1),
            bytes,
        }
    }

    /// For messages: "a list", "the number 5".
    pub(crate) fn describe(&self) -> String {
        match &self.data {
            Data::Null => "nothing".into(),
            Data::Bool(value) => format!("the truth value {value}"),
            Data::Number(number) => format!("the number {number}"),
            Data::Text(text) if text.text.is_empty() => "an empty text".into(),
            Data::Text(text) => format!("the text `{}`", shorten(&text.text, 40)),
            Data::List(_) => "a list".into(),
            Data::Map(_) => "a group of keys".into(),
        }
    }

    /// The value of a key of a map.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        match &self.data {
            Data::Map(entries) => entries
                .iter()
                .find(|entry| entry.key == key)
                .map(|entry| &*entry.value),
            _ => None,
        }
    }

    /// The value without its places.
    pub(crate) fn to_json(&self) -> Value {
        match &self.data {
            Data::Null => Value::Null,
            Data::Bool(value) => Value::Bool(*value),
            Data::Number(number) => Value::Number(number.clone()),
            Data::Text(text) => Value::String(text.text.clone()),
            Data::List(items) => items.iter().map(|item| item.to_json()).collect(),
            Data::Map(entries) => {
                let pairs = entries.iter().map(|e| (e.key.clone(), e.value.to_json()));
                Value::Object(pairs.collect::<Map<_, _>>())
            }
        }
    }

    /// Where `path` (`retry.attempts`, `after[1]`, keys may hold dots) stands; of a path that leads
    /// nowhere, the place of the deepest part that is there.
    pub(crate) fn locate(&self, path: &str) -> &Node {
        let path = path.strip_prefix('.').unwrap_or(path);
        match &self.data {
            Data::Map(entries) => {
                let next = entries.iter().find_map(|entry| {
                    let rest = path.strip_prefix(entry.key.as_str())?;
                    (rest.is_empty() || rest.starts_with(['.', '['])).then_some((entry, rest))
                });
                next.map_or(self, |(entry, rest)| entry.value.locate(rest))
            }
            Data::List(items) => {
                let next = path
                    .strip_prefix('[')
                    .and_then(|rest| rest.split_once(']'))
                    .and_then(|(index, rest)| {
                        Some((items.get(index.parse::<usize>().ok()?)?, rest))
                    });
                next.map_or(self, |(item, rest)| item.locate(rest))
            }
            _ => self,
        }
    }

    /// Where character `at` (from 1) of this text stands.
    pub(crate) fn character(&self, at: Option<usize>) -> Pos {
        match (&self.data, at) {
            (
                Data::Text(Text {
                    inner: Some(first), ..
                }),
                Some(at),
            ) => Pos {
                line: self.pos.line,
                column: first.saturating_add(u32::try_from(at.saturating_sub(1)).unwrap_or(0)),
            },
            _ => self.pos,
        }
    }
}

/// At most `limit` characters of a text, safe to print on one line.
#[must_use]
pub fn shorten(text: &str, limit: usize) -> String {
    let mut shown: String = text
        .chars()
        .take(limit)
        .flat_map(|c| {
            let escape = c.is_control() || is_reordering(c);
            let plain = (!escape).then_some(c);
            let escaped = escape.then(|| c.escape_unicode());
            plain.into_iter().chain(escaped.into_iter().flatten())
        })
        .collect();
    if text.chars().nth(limit).is_some() {
        shown.push_str("...");
    }
    shown
}

/// Characters that make a terminal show a text in another order than it is stored.
fn is_reordering(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Turns byte offsets of a text into places.
#[derive(Debug)]
pub(crate) struct LineIndex<'a> {
    text: &'a str,
    /// Known places, ascending: the start of each line, and some inside long lines. A file of
    /// JSON is often one line of many megabytes.
    known: Vec<(usize, Pos)>,
}

impl<'a> LineIndex<'a> {
    /// Bytes between known places of a line.
    const STRIDE: usize = 1_024;

    pub(crate) fn new(text: &'a str) -> Self {
        let mut known = vec![(0, Pos::START)];
        let (mut pos, mut next) = (Pos::START, Self::STRIDE);
        for (offset, c) in text.char_indices() {
            if offset >= next {
                known.push((offset, pos));
                next = offset + Self::STRIDE;
            }
            pos.column = pos.column.saturating_add(1);
            if c == '\n' {
                pos = Pos {
                    line: pos.line.saturating_add(1),
                    column: 1,
                };
                known.push((offset + 1, pos));
                next = offset + 1 + Self::STRIDE;
            }
        }
        Self { text, known }
    }

    pub(crate) fn pos(&self, offset: usize) -> Pos {
        let index = self.known.partition_point(|(start, _)| *start <= offset);
        let (start, pos) = match index.checked_sub(1) {
            Some(index) => self.known[index],
            None => (0, Pos::START),
        };
        let between = self.text.get(start..offset).unwrap_or("").chars().count();
        Pos {
            line: pos.line,
            column: pos
                .column
                .saturating_add(u32::try_from(between).unwrap_or(u32::MAX)),
        }
    }
}

/// The entries of a map that is being read.
#[derive(Debug, Default)]
pub(crate) struct MapBuilder {
    entries: Vec<Entry>,
    seen: HashMap<String, Pos>,
}

impl MapBuilder {
    /// Appends an entry. Of a key that stands already, the place where it does is the answer.
    pub(crate) fn push(&mut self, entry: Entry) -> Result<(), Pos> {
        if let Some(first) = self.seen.get(&entry.key) {
            return Err(*first);
        }
        self.seen.insert(entry.key.clone(), entry.pos);
        self.entries.push(entry);
        Ok(())
    }

    pub(crate) fn finish(self) -> Vec<Entry> {
        self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(line: usize, column: usize, text: &str) -> Rc<Node> {
        Rc::new(Node::new(
            Pos::new(line, column),
            Data::Text(Text {
                text: text.into(),
                inner: Some(u32::try_from(column).unwrap() + 1),
            }),
        ))
    }

    fn map(pos: Pos, entries: Vec<(&str, Rc<Node>)>) -> Rc<Node> {
        let entries = entries.into_iter().map(|(key, value)| Entry {
            key: key.into(),
            pos: value.pos,
            value,
        });
        Rc::new(Node::new(pos, Data::Map(entries.collect())))
    }

    #[test]
    fn paths_lead_to_places() {
        let schedule = map(Pos::new(2, 3), vec![("cron", text(2, 9, "* * *"))]);
        let after = Rc::new(Node::new(
            Pos::new(4, 3),
            Data::List(vec![text(4, 4, "a"), text(4, 9, "b")]),
        ));
        let labels = map(Pos::new(5, 3), vec![("a.b", text(5, 8, "c"))]);
        let job = map(
            Pos::START,
            vec![("schedule", schedule), ("after", after), ("labels", labels)],
        );
        let at = |path: &str, at| job.locate(path).character(at);
        assert_eq!(at("schedule.cron", None), Pos::new(2, 9));
        assert_eq!(at("schedule.cron", Some(3)), Pos::new(2, 12));
        assert_eq!(at("schedule.minute", None), Pos::new(2, 3));
        assert_eq!(at("after[1]", None), Pos::new(4, 9));
        assert_eq!(at("labels.a.b", None), Pos::new(5, 8));
        assert_eq!(at("nothing", None), Pos::START);
    }

    #[test]
    fn offsets_count_characters() {
        let index = LineIndex::new("a: ü\nb: 日本 x\n");
        assert_eq!(index.pos(0), Pos::new(1, 1));
        assert_eq!(index.pos(6), Pos::new(2, 1));
        assert_eq!(index.pos(16), Pos::new(2, 7));
        let long = format!("a\n{}", "ü".repeat(100_000));
        let index = LineIndex::new(&long);
        for column in [1, 511, 512, 513, 1_500, 99_999] {
            assert_eq!(index.pos(2 + 2 * (column - 1)), Pos::new(2, column));
        }
    }

    #[test]
    fn texts_in_messages_cannot_steer_the_terminal() {
        assert_eq!(
            shorten("a\u{1b}[2Jb\u{202e}c", 20),
            "a\\u{1b}[2Jb\\u{202e}c"
        );
        assert_eq!(shorten("abcdef", 3), "abc...");
    }
}
