//! TOML into a tree with places.

use std::rc::Rc;

use serde_json::Number;
use toml::de::{DeTable, DeValue};

use super::finding::Finding;
use super::tree::{Data, Entry, LineIndex, MapBuilder, Node, Text};

pub(super) fn parse(file: &str, source: &str) -> (Option<Rc<Node>>, Vec<Finding>) {
    let lines = LineIndex::new(source);
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
