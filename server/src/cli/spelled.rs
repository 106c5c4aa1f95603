//! Every command line of ours that stands in the documentation or in the files for containers is
//! one that this program takes, and the files for containers say what they must.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use serde_json::Value;

use super::args::{Cli, Command};
use crate::config::{ServeConfig, StoreAt};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap()
}

/// The words of a command as a shell would take them, up to a pipe, a redirection or a comment.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '|' | '>' | '<' | '&' | ';') => break,
            (None, '#') if word.is_none() => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The command lines of a page: in its blocks, and between backticks in its text.
fn commands(page: &str) -> Vec<Vec<String>> {
    let whole = page.replace("\\\n", " ");
    let blocks = whole.split("```").skip(1).step_by(2).flat_map(str::lines);
    let text: String = whole.split("```").step_by(2).collect();
    let spans = text.split('`').skip(1).step_by(2).map(str::to_owned);
    let lines = blocks.map(str::to_owned).chain(spans);
    let ours = lines.map(|line| words(line.trim_start_matches("$ ")));
    ours.filter(|words| words.len() > 1 && words[0] == "punctual")
        .collect()
}

#[track_caller]
fn parse(at: &str, words: &[String]) -> Cli {
    match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => panic!("{at}: {}\n{error}", words.join(" ")),
    }
}

/// The node that a `serve` makes, whose files need not be here.
fn resolve(at: &str, cli: Cli) -> Option<ServeConfig> {
    let Command::Serve(args) = cli.command else {
        return None;
    };
    match args.resolve(cli.common.data_dir) {
        Ok(config) => Some(config),
        Err(failure) => panic!("{at}: {failure}"),
    }
}

#[test]
fn the_commands_of_the_documentation_are_commands() {
    let mut pages = vec!["README.md".to_owned()];
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            pages.push(format!("docs/{name}"));
        }
    }
    let mut seen = 0;
    for page in pages {
        for words in commands(&read(&page)) {
            let _ = parse(&page, &words);
            seen += 1;
        }
    }
    assert!(seen >= 25, "only {seen} commands: is the form another one?");
}

fn strings(value: &Value) -> Vec<String> {
    let words = value.as_array().unwrap().iter();
    words
        .map(|word| word.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn the_cluster_of_the_compose_file_is_one_that_we_would_start() {
    let text = read("docker-compose.yml");
    let compose: Value = serde_saphyr::from_str(&text).unwrap();
    let services = compose["services"].as_object().unwrap();
    let named = |prefix: &str| {
        let of = services.iter().filter(|(name, _)| name.starts_with(prefix));
        of.map(|(name, service)| (name.clone(), service, strings(&service["command"])))
            .collect::<Vec<_>>()
    };
    let etcds = named("etcd-");
    let nodes = named("punctual-");
    assert_eq!((etcds.len(), nodes.len()), (3, 3));
    let mut members = Vec::new();
    for (name, etcd, command) in &etcds {
        assert!(etcd["healthcheck"]["test"].is_array(), "{name}");
        let flag = |flag: &str| {
            let mut found = command.iter().filter_map(|word| word.strip_prefix(flag));
            found.next().unwrap_or_else(|| panic!("{name}: {flag}"))
        };
        assert!(flag("--quota-backend-bytes=").parse::<u64>().unwrap() > 1 << 30);
        assert_eq!(flag("--auto-compaction-mode="), "periodic");
        assert_ne!(flag("--auto-compaction-retention="), "0");
        members.push(flag("--advertise-client-urls=").replace("http://", ""));
    }
    let store = format!("etcd://{}/punctual", members.join(","));
    let mut listens = Vec::new();
    for (name, _, command) in &nodes {
        let words = [&["punctual".to_owned()], command.as_slice()].concat();
        let config = resolve(name, parse(name, &words)).unwrap();
        assert!(matches!(config.store, StoreAt::Etcd(_)), "{name}");
        assert_eq!(config.args.store.as_ref(), Some(&store), "{name}");
        assert!(config.args.admin_token_file.is_some(), "{name}");
        listens.push(config.listen.to_string());
    }
    let collected = read("deploy/prometheus.yml");
    for address in listens.iter().chain(&members) {
        assert!(collected.contains(&format!("\"{address}\"")), "{address}");
    }
    listens.sort();
    listens.dedup();
    assert_eq!(listens.len(), 3, "a port each");
    // What is mounted is here.
    for line in text.lines().filter(|line| line.contains(":ro")) {
        let file = line
            .trim_start_matches([' ', '-'])
            .split(':')
            .next()
            .unwrap();
        assert!(root().join(file).exists(), "{file}");
    }
}

/// An alert on a metric that nobody writes never fires.
#[test]
fn the_alerts_look_at_metrics_that_we_have_and_each_says_what_to_do() {
    let alerts: Value = serde_saphyr::from_str(&read("deploy/alerts.yml")).unwrap();
    let (metrics, runbook) = (
        read("server/src/metrics/mod.rs"),
        read("docs/operations.md"),
    );
    let mut metrics_seen = 0;
    let rules = alerts["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() >= 5);
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        assert!(runbook.contains(&format!("`{name}`")), "{name}");
        let words = rule["expr"].as_str().unwrap();
        let words = words.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for word in words.filter(|word| word.starts_with("scheduler_")) {
            // What comes behind a registered name: its type, and before that its unit.
            let typed = ["_total", "_bucket", "_count", "_sum"];
            let bare = typed.iter().find_map(|end| word.strip_suffix(end));
            let bare = bare.unwrap_or(word);
            let unitless = bare.strip_suffix("_seconds").unwrap_or(bare);
            let registered = |name: &str| metrics.contains(&format!("\"{name}\""));
            assert!(registered(bare) || registered(unitless), "{name}: {word}");
            metrics_seen += 1;
        }
    }
    assert!(metrics_seen >= 4);
}

#[test]
fn the_image_starts_what_we_have_and_not_as_root() {
    let text = read("Dockerfile");
    let argument = |name: &str| {
        let line = text.lines().rev().find_map(|line| {
            let line = line.trim().strip_prefix(name)?;
            line.starts_with(' ').then_some(line.trim())
        });
        line.unwrap_or_else(|| panic!("no {name}"))
    };
    let list = |name: &str| serde_json::from_str::<Vec<String>>(argument(name)).unwrap();
    let start = [list("ENTRYPOINT"), list("CMD")].concat();
    assert!(resolve("Dockerfile", parse("Dockerfile", &start)).is_some());
    let check = text.split("HEALTHCHECK").nth(1).unwrap();
    let check = check.split("CMD").nth(1).unwrap().lines().next().unwrap();
    let _ = parse(
        "Dockerfile",
        &serde_json::from_str::<Vec<String>>(check).unwrap(),
    );
    let user = argument("USER").split(':').next().unwrap();
    assert!(user.parse::<u32>().is_ok_and(|id| id > 0), "{user}");
    let toolchain = read("rust-toolchain.toml");
    let version = toolchain.split('"').nth(1).unwrap();
    assert!(
        text.contains(&format!("FROM rust:{version}-")),
        "another compiler"
    );
    for name in ["target", ".git"] {
        assert!(read(".dockerignore").lines().any(|line| line == name));
    }
}
