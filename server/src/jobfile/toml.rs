//! TOML into a tree with places.

use std::rc::Rc;

use serde_json::Number;
use toml::de::{DeTable, DeValue};

use super::finding::Finding;
use super::tree::{Data, Entry, LineIndex, MapBuilder, Node, Text};
use super::yaml::{MAX_DEPTH, too_deep};

pub(super) fn parse(file: &str, source: &str) -> (Option<Rc<Node>>, Vec<Finding>) {
    let lines = LineIndex::new(source);
    if let Some(offset) = first_too_deep(source) {
        let finding = Finding::new(file, lines.pos(offset), too_deep());
        return (None, vec![finding]);
    }
    let (table, errors) = DeTable::parse_recoverable(source);
    if !errors.is_empty() {
        let findings = errors.iter().map(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            let message = format!("not valid TOML: {}", error.message());
            Finding::new(file, lines.pos(offset), message)
        });
        return (None, findings.collect());
    }
    let start = table.span().start;
    let tree = map(&lines, start, table.get_ref());
    (Some(Rc::new(tree)), Vec::new())
}

/// Where brackets and the dots of keys first nest beyond the deepest level allowed.
///
/// The parser limits each of the two and not both together: eighty brackets with eighty dots before
/// each of them exhaust the stack. What is no TOML is the parser's to refuse.
fn first_too_deep(source: &str) -> Option<usize> {
    let bytes = source.as_bytes();
    let (mut depth, mut dots, mut open) = (0_usize, 0_usize, Vec::new());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'#' => {
                at += bytes[at..].iter().take_while(|b| **b != b'\n').count();
                continue;
            }
            b'"' | b'\'' => {
                at = after_text(bytes, at);
                continue;
            }
            b'[' | b'{' => {
                open.push(std::mem::take(&mut dots));
                depth += 1;
            }
            b'.' => {
                dots += 1;
                depth += 1;
            }
            b']' | b'}' => {
                if let Some(before) = open.pop() {
                    depth -= dots + 1;
                    dots = before;
                }
            }
            // The next key, or the next value, starts anew.
            b',' | b'\n' => depth -= std::mem::take(&mut dots),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// Where the text ends whose first quote stands at `start`.
fn after_text(bytes: &[u8], start: usize) -> usize {
    let quote = bytes[start];
    let triple = [quote; 3];
    let is_long = bytes[start..].starts_with(&triple);
    let mut at = start + if is_long { 3 } else { 1 };
    while let Some(&byte) = bytes.get(at) {
        if byte == b'\\' && quote == b'"' {
            at += 1;
        } else if is_long && bytes[at..].starts_with(&triple) {
            // Up to two quotes may stand inside, right before the end.
            let quotes = bytes[at..].iter().take_while(|b| **b == quote).count();
            return at + quotes.min(5);
        } else if !is_long && (byte == quote || byte == b'\n') {
            return at + usize::from(byte == quote);
        }
        at += 1;
    }
    bytes.len()
}

fn map(lines: &LineIndex<'_>, start: usize, table: &DeTable<'_>) -> Node {
    let mut builder = MapBuilder::default();
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    for (key, value) in entries {
        // The parser has refused duplicates already.
        let _ = builder.push(Entry {
            key: key.get_ref().clone().into_owned(),
            pos: lines.pos(key.span().start),
            value: Rc::new(node(lines, value.span(), value.get_ref())),
        });
    }
    Node::new(lines.pos(start), Data::Map(builder.finish()))
}

fn node(lines: &LineIndex<'_>, span: std::ops::Range<usize>, value: &DeValue<'_>) -> Node {
    let pos = lines.pos(span.start);
    let text = |text: &str| {
        Data::Text(Text {
            inner: (text.len() + 2 == span.len()).then_some(pos.column + 1),
            text: text.to_owned(),
        })
    };
    let data = match value {
        DeValue::Table(table) => return map(lines, span.start, table),
        DeValue::Array(items) => {
            let items = items.iter();
            let items = items.map(|item| Rc::new(node(lines, item.span(), item.get_ref())));
            Data::List(items.collect())
        }
        DeValue::Boolean(value) => Data::Bool(*value),
        DeValue::String(value) => text(value),
        DeValue::Datetime(value) => text(&value.to_string()),
        DeValue::Integer(value) => {
            let parsed = i64::from_str_radix(value.as_str(), value.radix());
            parsed.map_or_else(|_| text(value.as_str()), |n| Data::Number(n.into()))
        }
        DeValue::Float(value) => {
            let parsed = value.as_str().parse().ok().and_then(Number::from_f64);
            parsed.map_or_else(|| text(value.as_str()), Data::Number)
        }
    };
    Node::new(pos, data)
}
