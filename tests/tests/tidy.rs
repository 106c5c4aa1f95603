//! What the architecture page says is nowhere, is nowhere.
#![allow(clippy::expect_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn tracked(pattern: &str) -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args(["ls-files", pattern])
        .current_dir(root())
        .output()
        .expect("git lists the files");
    let text = String::from_utf8(listed.stdout).expect("file names are text");
    let files: Vec<PathBuf> = text.lines().map(|line| root().join(line)).collect();
    assert!(
        !files.is_empty(),
        "no {pattern} at all: is this a checkout?"
    );
    files.into_iter().filter(|file| file.exists()).collect()
}

#[test]
fn files_stay_small() {
    const MOST_LINES: usize = 600;
    let large: Vec<_> = tracked("*.rs")
        .into_iter()
        .filter_map(|file| {
            let lines = fs::read_to_string(&file).ok()?.lines().count();
            (lines > MOST_LINES).then_some((lines, file))
        })
        .collect();
    assert!(large.is_empty(), "split these: {large:?}");
}

#[test]
fn dependencies_point_one_way() {
    let rules = [
        (
            "core",
            vec![
                "punctual-memory",
                "punctual-sled",
                "punctual-etcd",
                "punctual-server",
            ],
        ),
        (
            "backend-memory",
            vec!["punctual-sled", "punctual-etcd", "punctual-server"],
        ),
        (
            "backend-sled",
            vec!["punctual-memory", "punctual-etcd", "punctual-server"],
        ),
        (
            "backend-etcd",
            vec!["punctual-memory", "punctual-sled", "punctual-server"],
        ),
        ("server", vec!["punctual-tests", "punctual-bench"]),
    ];
    for (package, forbidden) in rules {
        let manifest = fs::read_to_string(root().join(package).join("Cargo.toml"))
            .expect("the package has a manifest");
        let dependencies = manifest
            .split("[dependencies]")
            .nth(1)
            .expect("the package has dependencies")
            .split("[dev-dependencies]")
            .next()
            .unwrap_or_default();
        for name in forbidden {
            let line = format!("\n{name}");
            assert!(!dependencies.contains(&line), "{package} depends on {name}");
        }
    }
}

#[test]
fn only_one_file_spells_a_key() {
    let kinds = [
        "\"job/",
        "\"run/",
        "\"done/",
        "\"cursor/",
        "\"def/",
        "\"cancel/",
    ];
    for file in tracked("core/src/*.rs") {
        let name = file.to_string_lossy();
        // The stores below know no kinds of keys, but their tests need some.
        if name.ends_with("keys.rs") || name.ends_with("tests.rs") || name.contains("/model/") {
            continue;
        }
        let text = fs::read_to_string(&file).expect("a source file is text");
        for kind in kinds {
            assert!(!text.contains(kind), "{} spells {kind}", file.display());
        }
    }
}

#[test]
fn nothing_is_left_open() {
    let words = ["todo!(", "unimplemented!(", "#[ignore", "FIXME", "dbg!("];
    for file in tracked("*.rs") {
        if file.ends_with("tidy.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        for word in words {
            assert!(!text.contains(word), "{} has {word}", file.display());
        }
    }
}

/// The rows of the catalogue of what went wrong with others that are about misfires, clocks, overlap,
/// retries, persistence and the API. (The catalogue is not part of this repository.)
const ROWS: &str = "\
    M01 M02 M04 M06 M07 M09 M11 M12 M14 M16 M17 M19 M21 M22 M24 K01 K02 K04 K06 K07 K09 \
    O01 O02 O04 O06 O07 R01 R02 R04 R06 R07 R09 R11 R12 R14 \
    P01 P02 P04 P06 P07 P09 P11 P12 P14 A01 A02 A04 A06 A07 A09 A11 A12 A14";

/// The functions of a file.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    text.split("fn ").skip(1).filter_map(|rest| {
        let name = rest.split(['(', '<']).next()?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        (!name.is_empty() && name.chars().all(is_name)).then_some(name)
    })
}

/// Whether a test is where its path says, and the row is named there: `behaviour::misfire::m01_x` is a
/// function `m01_x` in a file whose path has `behaviour` and `misfire` in it.
fn exists(row: &str, test: &str, sources: &[(String, String)]) -> bool {
    let Some((place, name)) = test.rsplit_once("::") else {
        return false;
    };
    let parts: Vec<&str> = place.split(['/', ':']).filter(|p| !p.is_empty()).collect();
    let in_name = format!("fn {}_", row.to_lowercase());
    sources.iter().any(|(path, text)| {
        let path: Vec<&str> = path.split(['/', '.']).collect();
        parts.iter().all(|part| path.contains(part))
            && functions(text).any(|function| function == name)
            && (text.contains(row) || text.contains(&in_name))
    })
}

#[test]
fn each_row_of_the_catalogue_has_a_test_that_exists() {
    let base = root();
    let sources: Vec<(String, String)> = tracked("*.rs")
        .into_iter()
        .filter(|file| !file.ends_with("tidy.rs"))
        .map(|file| {
            let path = file.strip_prefix(&base).unwrap_or(&file);
            let text = fs::read_to_string(&file).expect("a source file is text");
            (path.to_string_lossy().into_owned(), text)
        })
        .collect();
    let mut shown: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for page in ["docs/failure-modes.md", "docs/simulation.md"] {
        let text = fs::read_to_string(base.join(page)).expect("the page is there");
        for line in text.lines() {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, row, .., tests, _] = cells[..] else {
                continue;
            };
            let is_row = row.len() == 3
                && row.starts_with(|c: char| c.is_ascii_uppercase())
                && row[1..].bytes().all(|b| b.is_ascii_digit());
            if is_row {
                let quoted = tests.split('`').skip(1).step_by(2);
                let named = quoted.filter(|text| text.contains("::"));
                let of_row = shown.entry(row.to_owned()).or_default();
                of_row.extend(named.map(str::to_owned));
            }
        }
    }
    for row in ROWS.split_whitespace() {
        assert!(shown.contains_key(row), "no table has row {row}");
    }
    for (row, tests) in &shown {
        assert!(!tests.is_empty(), "{row} names no test");
        for test in tests {
            assert!(
                exists(row, test, &sources),
                "{row}: there is no test `{test}`"
            );
        }
    }
    let there = "behaviour::misfire::m01_twelve_hours_without_a_node";
    assert!(exists("M01", there, &sources));
    for (row, test) in [
        ("M03", there),
        ("M01", "behaviour::misfire::m01_nothing"),
        ("M01", "behaviour::retry::m01_twelve_hours_without_a_node"),
    ] {
        assert!(!exists(row, test, &sources), "{row} {test}");
    }
}
