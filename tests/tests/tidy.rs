//! What the architecture page says is nowhere, is nowhere.
#![allow(clippy::expect_used, reason = "a test that cannot go on fails")]

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
