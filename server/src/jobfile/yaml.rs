//! YAML into a tree with places.
//!
//! The parser's events are read directly, because only they carry the place of every key and
//! value. What can go wrong beyond syntax: an alias bomb (expansion is counted before it happens),
//! a map that holds itself, a cron expression without quotes, which YAML reads as an alias.

use std::borrow::Cow;
use std::collections::HashMap;
use std::rc::Rc;

use granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, Span, Tag};
use serde_json::Number;

use super::finding::Finding;
use super::tree::{Data, Entry, MapBuilder, Node, Pos, Text, shorten};
use super::yaml_repair::{Unquoted, find_unquoted};

/// How many nodes aliases may add. Ten lines of YAML can ask for a billion.
const MAX_ALIAS_NODES: usize = 1_000_000;
/// How many bytes of text aliases may add beyond what the file has itself: a long text repeated
/// fills memory with few nodes.
const MAX_ALIAS_BYTES: usize = 8 << 20;
/// How deep lists and maps may nest, in any format.
pub(super) const MAX_DEPTH: usize = 64;
/// Bytes that may be read again because an unquoted text was mended in memory.
const MAX_REREAD: usize = 128 << 20;

/// Reads a document. The tree is missing when the text is no YAML.
pub(super) fn parse(file: &str, source: &str) -> (Option<Rc<Node>>, Vec<Finding>) {
    let mut text = Cow::Borrowed(source);
    let mut findings = Vec::new();
    let mut reread = 0;
    loop {
        let mut reader = Reader::new(file, &text);
        let outcome = reader.read();
        let (mut found, unresolved) = (reader.findings, reader.unresolved);
        let unquoted = match &outcome {
            Err(error) => find_unquoted(&text, error.line, 2),
            Ok(_) => unresolved
                .iter()
                .find_map(|line| find_unquoted(&text, *line, 0)),
        };
        reread += text.len();
        // One such mistake at a time: it is reported, mended in memory, and the text is read
        // again, so that what follows it is checked too.
        if let Some(unquoted) = unquoted.filter(|_| reread <= MAX_REREAD) {
            findings.push(unquoted_finding(file, &unquoted));
            text = Cow::Owned(unquoted.mend(&text));
            continue;
        }
        findings.append(&mut found);
        return match outcome {
            Ok(tree) => (tree, findings),
            Err(error) => {
                findings.push(*error);
                (None, findings)
            }
        };
    }
}

fn unquoted_finding(file: &str, unquoted: &Unquoted) -> Finding {
    let message = match unquoted.first {
        '*' => "a text that starts with `*` needs quotes: YAML reads it as an alias",
        _ => "a text that starts with this character needs quotes in YAML",
    };
    Finding::new(file, unquoted.pos, message)
        .hint(format!("write \"{}\"", shorten(&unquoted.value, 200)))
}

enum Frame {
    List {
        pos: Pos,
        anchor: usize,
        items: Vec<Rc<Node>>,
    },
    Map {
        pos: Pos,
        anchor: usize,
        map: MapBuilder,
        key: Option<(String, Pos)>,
        merged: Vec<Entry>,
    },
}

struct Reader<'a> {
    file: &'a str,
    source: &'a str,
    findings: Vec<Finding>,
    /// Lines with an alias that has no anchor.
    unresolved: Vec<u32>,
    frames: Vec<Frame>,
    anchors: HashMap<usize, Rc<Node>>,
    alias_nodes: usize,
    alias_bytes: usize,
    root: Option<Rc<Node>>,
    documents: usize,
}

impl<'a> Reader<'a> {
    fn new(file: &'a str, source: &'a str) -> Self {
        Self {
            file,
            source,
            findings: Vec::new(),
            unresolved: Vec::new(),
            frames: Vec::new(),
            anchors: HashMap::new(),
            alias_nodes: 0,
            alias_bytes: 0,
            root: None,
            documents: 0,
        }
    }

    fn read(&mut self) -> Result<Option<Rc<Node>>, Box<Finding>> {
        let mut options = Options::default();
        options.emit_unresolved_aliases = true;
        options.flow_nesting_limit = MAX_DEPTH;
        options.block_nesting_limit = MAX_DEPTH;
        let mut parser = Parser::new_from_str_with_options(self.source, options);
        while let Some(next) = parser.next_event() {
            let (event, span) = next.map_err(|e| Box::new(self.scan_error(&e)))?;
            self.event(event, &span)?;
        }
        Ok(self.root.take())
    }

    fn scan_error(&self, error: &granit_parser::ScanError) -> Finding {
        let marker = error.marker();
        let pos = Pos::new(marker.line(), marker.col() + 1);
        if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
            return Finding::new(self.file, pos, too_deep());
        }
        let finding = Finding::new(self.file, pos, format!("not valid YAML: {}", error.info()));
        let line = self.source.lines().nth(marker.line().saturating_sub(1));
        match line {
            Some(line) if line.trim_start_matches(' ').starts_with('\t') => {
                finding.hint("indent with spaces, YAML does not allow tabs there")
            }
            _ => finding.hint("look at indentation, quotes and brackets here and just above"),
        }
    }

    fn event(&mut self, event: Event<'_>, span: &Span) -> Result<(), Box<Finding>> {
        let pos = Pos::new(span.start.line(), span.start.col() + 1);
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    let finding =
                        Finding::new(self.file, pos, "a second YAML document starts here");
                    let hint = "one document a file: put all jobs under one `jobs:`";
                    return Err(finding.hint(hint).into());
                }
            }
            Event::Scalar(text, style, anchor, tag) => {
                let data = self.scalar(&text, style, tag.as_deref(), span, pos);
                self.complete(anchor, Node::new(pos, data));
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.check_tag(tag.as_deref(), pos);
                self.open(Frame::List {
                    pos,
                    anchor,
                    items: Vec::new(),
                })?;
            }
            Event::MappingStart(_, anchor, tag) => {
                self.check_tag(tag.as_deref(), pos);
                self.open(Frame::Map {
                    pos,
                    anchor,
                    map: MapBuilder::default(),
                    key: None,
                    merged: Vec::new(),
                })?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(id) => self.alias(id, pos)?,
            Event::UnresolvedAlias(name) => {
                let name = shorten(&name, 40);
                let message = format!("no anchor `&{name}` stands before this alias");
                self.unresolved.push(pos.line);
                self.findings.push(
                    Finding::new(self.file, pos, message)
                        .hint("a text that starts with `*` needs quotes"),
                );
                self.complete(0, Node::new(pos, Data::Null));
            }
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self, frame: Frame) -> Result<(), Box<Finding>> {
        if self.frames.len() >= MAX_DEPTH {
            let (Frame::List { pos, .. } | Frame::Map { pos, .. }) = frame;
            return Err(Finding::new(self.file, pos, too_deep()).into());
        }
        self.frames.push(frame);
        Ok(())
    }

    fn close(&mut self) {
        match self.frames.pop() {
            Some(Frame::List { pos, anchor, items }) => {
                self.complete(anchor, Node::new(pos, Data::List(items)));
            }
            Some(Frame::Map {
                pos,
                anchor,
                mut map,
                merged,
                ..
            }) => {
                // What the map says itself goes before what it merges in.
                for entry in merged {
                    let _ = map.push(entry);
                }
                self.complete(anchor, Node::new(pos, Data::Map(map.finish())));
            }
            None => {}
        }
    }

    fn alias(&mut self, id: usize, pos: Pos) -> Result<(), Box<Finding>> {
        let Some(target) = self.anchors.get(&id).cloned() else {
            let message = "this alias stands inside what it repeats";
            return Err(Finding::new(self.file, pos, message).into());
        };
        self.alias_nodes = self.alias_nodes.saturating_add(target.weight);
        self.alias_bytes = self.alias_bytes.saturating_add(target.bytes);
        let max_bytes = MAX_ALIAS_BYTES.saturating_add(self.source.len());
        let too_much = if self.alias_nodes > MAX_ALIAS_NODES {
            Some(format!("{MAX_ALIAS_NODES} values"))
        } else {
            (self.alias_bytes > max_bytes).then(|| format!("{} MiB of text", max_bytes >> 20))
        };
        if let Some(too_much) = too_much {
            let message = format!("aliases expand to more than {too_much}");
            let finding = Finding::new(self.file, pos, message);
            return Err(finding
                .hint("write the values out where they are used")
                .into());
        }
        self.attach(target, pos);
        Ok(())
    }

    fn complete(&mut self, anchor: usize, node: Node) {
        let node = Rc::new(node);
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        let pos = node.pos;
        self.attach(node, pos);
    }

    /// Puts a finished node where it belongs; `pos` is where it is mentioned.
    fn attach(&mut self, node: Rc<Node>, pos: Pos) {
        match self.frames.last_mut() {
            None => self.root = Some(node),
            Some(Frame::List { items, .. }) => items.push(node),
            Some(Frame::Map {
                map, key, merged, ..
            }) => match key.take() {
                None => {
                    let text = key_text(&node);
                    if text.is_none() {
                        let message = format!("{} cannot be a key", node.describe());
                        self.findings.push(Finding::new(self.file, pos, message));
                    }
                    *key = Some((text.unwrap_or_default(), pos));
                }
                Some((key, at)) if key == "<<" => {
                    let finding = merge(merged, &node).err();
                    self.findings
                        .extend(finding.map(|message| Finding::new(self.file, at, message)));
                }
                Some((key, at)) => {
                    let entry = Entry {
                        key,
                        pos: at,
                        value: node,
                    };
                    let shown = shorten(&entry.key, 40);
                    if let Err(first) = map.push(entry) {
                        self.findings
                            .push(duplicate_key(self.file, at, &shown, first));
                    }
                }
            },
        }
    }

    fn check_tag(&mut self, tag: Option<&Tag>, pos: Pos) {
        if let Some(tag) = tag.filter(|tag| !tag.is_yaml_core_schema()) {
            let message = format!(
                "the tag `{}` means nothing here",
                shorten(&tag.original(), 40)
            );
            self.findings.push(Finding::new(self.file, pos, message));
        }
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        span: &Span,
        pos: Pos,
    ) -> Data {
        self.check_tag(tag, pos);
        let is_text = tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
        if style == ScalarStyle::Plain
            && !is_text
            && let Some(data) = plain_scalar(text)
        {
            return data;
        }
        Data::Text(Text {
            inner: self.inner_column(text, span, pos),
            text: text.to_owned(),
        })
    }

    /// The column of the text's first character, if the file shows the text as it is.
    fn inner_column(&self, text: &str, span: &Span, pos: Pos) -> Option<u32> {
        let range = span.start.byte_offset()?..span.end.byte_offset()?;
        let shown = self.source.get(range)?;
        if shown == text {
            return Some(pos.column);
        }
        let quoted = shown.get(1..shown.len().checked_sub(1)?)?;
        (quoted == text).then_some(pos.column + 1)
    }
}

pub(super) fn too_deep() -> String {
    format!("nested deeper than {MAX_DEPTH} levels")
}

pub(super) fn duplicate_key(file: &str, pos: Pos, key: &str, first: Pos) -> Finding {
    Finding::new(
        file,
        pos,
        format!(
            "the key `{key}` stands twice; the first is at line {}, column {}",
            first.line, first.column
        ),
    )
    .hint("keep one of them")
}

fn key_text(node: &Node) -> Option<String> {
    match &node.data {
        Data::Text(text) => Some(text.text.clone()),
        Data::Number(number) => Some(number.to_string()),
        Data::Bool(value) => Some(value.to_string()),
        Data::Null => Some("null".into()),
        Data::List(_) | Data::Map(_) => None,
    }
}

/// `<<: *defaults`: takes over the entries of a map, or of several, the first one winning.
fn merge(into: &mut Vec<Entry>, node: &Node) -> Result<(), String> {
    match &node.data {
        Data::Map(entries) => into.extend(entries.iter().cloned()),
        Data::List(items) if items.iter().all(|i| matches!(i.data, Data::Map(_))) => {
            for item in items {
                merge(into, item)?;
            }
        }
        _ => {
            return Err(format!(
                "`<<` merges groups of keys, not {}",
                node.describe()
            ));
        }
    }
    Ok(())
}

/// The core schema of YAML 1.2: what a plain scalar means that is no text.
fn plain_scalar(text: &str) -> Option<Data> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Some(Data::Null),
        "true" | "True" | "TRUE" => return Some(Data::Bool(true)),
        "false" | "False" | "FALSE" => return Some(Data::Bool(false)),
        _ => {}
    }
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let radix = |prefix: &str, radix| {
        let rest = text.strip_prefix(prefix)?;
        let plain = rest.chars().all(|c| c.is_digit(radix));
        u64::from_str_radix(rest, radix).ok().filter(|_| plain)
    };
    if let Some(value) = radix("0x", 16).or_else(|| radix("0o", 8)) {
        return Some(Data::Number(value.into()));
    }
    if digits.bytes().all(|b| b.is_ascii_digit()) {
        let unsigned = text.parse::<u64>().map(Number::from);
        let integer = unsigned.or_else(|_| text.parse::<i64>().map(Number::from));
        if let Ok(number) = integer {
            return Some(Data::Number(number));
        }
    }
    let is_float = text
        .bytes()
        .all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'));
    let value = text.parse::<f64>().ok().filter(|_| is_float)?;
    Number::from_f64(value).map(Data::Number)
}
