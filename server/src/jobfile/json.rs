//! JSON into a tree with places: every value is borrowed from the text, so its address tells
//! where it stands.

use std::fmt;
use std::rc::Rc;

use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::finding::Finding;
use super::tree::{Data, Entry, LineIndex, MapBuilder, Node, Pos, Text};
use super::yaml::{MAX_DEPTH, duplicate_key, too_deep};

pub(super) fn parse(file: &str, source: &str) -> (Option<Rc<Node>>, Vec<Finding>) {
    // Checks the syntax once, so that the walk meets only well-formed values.
    if let Err(error) = serde_json::from_str::<IgnoredAny>(source) {
        let pos = Pos::new(error.line(), error.column().max(1));
        let text = error.to_string();
        let what = text.split(" at line ").next().unwrap_or_default();
        return (
            None,
            vec![Finding::new(file, pos, format!("not valid JSON: {what}"))],
        );
    }
    let lines = LineIndex::new(source);
    // The walk recurses, and reads the text of a value once for each level that it lies in.
    if let Some(offset) = first_too_deep(source) {
        let finding = Finding::new(file, lines.pos(offset), too_deep());
        return (None, vec![finding]);
    }
    let mut walk = Walk {
        file,
        source,
        lines,
        findings: Vec::new(),
    };
    let tree = walk.node(source.trim());
    (Some(Rc::new(tree)), walk.findings)
}

/// Where well-formed JSON opens a list or a map beyond the deepest level allowed.
fn first_too_deep(source: &str) -> Option<usize> {
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for (offset, byte) in source.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'[' | b'{' if depth == MAX_DEPTH => return Some(offset),
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

struct Walk<'a> {
    file: &'a str,
    source: &'a str,
    lines: LineIndex<'a>,
    findings: Vec<Finding>,
}

impl<'a> Walk<'a> {
    fn pos(&self, part: &'a str) -> Pos {
        let offset = (part.as_ptr() as usize).saturating_sub(self.source.as_ptr() as usize);
        self.lines.pos(offset)
    }

    fn node(&mut self, raw: &'a str) -> Node {
        let pos = self.pos(raw);
        let data = match raw.as_bytes().first() {
            Some(b'{') => self.map(raw),
            Some(b'[') => self.list(raw),
            _ => match serde_json::from_str(raw) {
                Ok(serde_json::Value::Bool(value)) => Data::Bool(value),
                Ok(serde_json::Value::Number(number)) => Data::Number(number),
                Ok(serde_json::Value::String(text)) => Data::Text(Text {
                    inner: (text.len() + 2 == raw.len()).then_some(pos.column + 1),
                    text,
                }),
                _ => Data::Null,
            },
        };
        Node::new(pos, data)
    }

    fn list(&mut self, raw: &'a str) -> Data {
        let items = serde_json::Deserializer::from_str(raw).deserialize_seq(Items);
        let items = items.unwrap_or_default().into_iter();
        Data::List(items.map(|item| Rc::new(self.node(item.get()))).collect())
    }

    fn map(&mut self, raw: &'a str) -> Data {
        let pairs = serde_json::Deserializer::from_str(raw).deserialize_map(Pairs);
        let mut map = MapBuilder::default();
        for (raw_key, value) in pairs.unwrap_or_default() {
            let key: String = serde_json::from_str(raw_key.get()).unwrap_or_default();
            let pos = self.pos(raw_key.get());
            let entry = Entry {
                key,
                pos,
                value: Rc::new(self.node(value.get())),
            };
            let shown = super::tree::shorten(&entry.key, 40);
            if let Err(first) = map.push(entry) {
                self.findings
                    .push(duplicate_key(self.file, pos, &shown, first));
            }
        }
        Data::Map(map.finish())
    }
}

struct Items;

impl<'de> Visitor<'de> for Items {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(items)
    }
}

struct Pairs;

impl<'de> Visitor<'de> for Pairs {
    type Value = Vec<(&'de RawValue, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(pairs)
    }
}
