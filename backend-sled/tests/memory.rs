//! P07: what a store needs in memory is bounded by what is live in it, and documented: key and value
//! of every entry, about 300 bytes beside them, and up to 64 MiB that opening itself takes. Retention
//! bounds what is live.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails"
)]

use std::path::Path;
use std::process::Command;

use punctual::backend::{CoordinationBackend as _, Txn};
use punctual::env::TokioEnv;
use punctual_sled::{Options, SledBackend};

const ENTRIES: usize = 40_000;
const VALUE_BYTES: usize = 450;
const CHILD: &str = "PUNCTUAL_TEST_OPEN";

fn open(directory: &Path) -> SledBackend {
    SledBackend::open(directory, TokioEnv::shared(), Options::default()).unwrap()
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    let kib: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

#[tokio::test]
async fn p07_memory_after_opening_is_bounded_by_what_is_live() {
    if let Some(directory) = std::env::var_os(CHILD) {
        let before = resident_bytes();
        let store = open(Path::new(&directory));
        println!("grown {}", resident_bytes() - before);
        store.close();
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("db");
    let store = open(&directory);
    for batch in 0..ENTRIES / 100 {
        let txn = (0..100).fold(Txn::new(), |txn, i| {
            txn.put(format!("key/{batch:06}/{i:02}"), vec![b'x'; VALUE_BYTES])
        });
        assert!(store.commit(&txn).await.unwrap().applied().is_some());
    }
    store.close();
    // A process of its own: its memory is that of opening, and of nothing else.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--nocapture", "p07_memory_after_opening"])
        .env(CHILD, &directory)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let grown: usize = text
        .lines()
        .find_map(|line| line.split("grown ").nth(1)?.trim().parse().ok())
        .unwrap_or_else(|| panic!("{text}"));
    let documented = ENTRIES * (13 + VALUE_BYTES + 300) + (64 << 20);
    println!("{grown} bytes for {ENTRIES} entries, documented {documented}");
    assert!(grown < documented, "{grown} bytes, documented {documented}");
}
