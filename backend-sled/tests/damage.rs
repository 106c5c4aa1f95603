//! Flipped, zeroed and cut files: the store opens whole or says what is wrong. It never panics,
//! never serves less or other than was written, and what is readable can be taken out.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and says what it met"
)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use punctual::backend::{Entry, Revision, Txn};
use punctual_sled::{DumpError, OpenError, export, import};
use support::{Random, all, commit, open, runtime};

/// A database with churn behind it, so that its log holds old and new versions of things.
async fn build(directory: &Path) -> (Vec<Entry>, Revision) {
    let store = open(directory).unwrap();
    for number in 0..400u64 {
        let mut txn = Txn::new();
        for part in 0..5u64 {
            let key = format!("job/{:02}/{part}", number % 60);
            txn = txn.put(key, vec![number as u8; 40 + (number as usize * 7) % 900]);
        }
        if number > 60 && number % 3 == 0 {
            txn = txn.delete(format!("once/{:04}", number - 30));
        }
        commit(&store, txn.put(format!("once/{number:04}"), "x")).await;
    }
    let whole = all(&store).await;
    store.close();
    whole
}

const GENERATION: &str = "gen-0000000001";

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = [directory.to_path_buf(), directory.join(GENERATION)]
        .iter()
        .flat_map(|place| fs::read_dir(place).unwrap())
        .map(|item| item.unwrap().path())
        .filter(|path| path.is_file() && !path.ends_with("punctual.lock"))
        .collect();
    files.sort();
    files
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to.join(GENERATION).join("blobs")).unwrap();
    for file in files(from) {
        fs::copy(&file, to.join(file.strip_prefix(from).unwrap())).unwrap();
    }
}

/// Spoils a file in one of several ways; says how.
fn spoil(file: &Path, random: &mut Random) -> String {
    let mut bytes = fs::read(file).unwrap();
    let length = bytes.len() as u64;
    let at = random.below(length.max(1)) as usize;
    let (how, size) = match random.below(4) {
        0 => ("flip a bit", 1),
        1 => ("flip bytes", 16),
        2 => ("zero a page", 4096),
        _ => ("cut", 0),
    };
    if size == 0 {
        bytes.truncate(at);
    }
    let end = bytes.len().min(at + size);
    for (offset, byte) in bytes.iter_mut().take(end).skip(at).enumerate() {
        *byte = match size {
            1 => *byte ^ 1 << random.below(8),
            16 => *byte ^ (random.next() >> (offset % 8)) as u8,
            _ => 0,
        };
    }
    fs::write(file, bytes).unwrap();
    format!("{how} at {at} of {length} in {}", file.display())
}

/// P04: bytes of the store are spoiled at random.
#[test]
fn spoiled_files_open_whole_or_not_at_all() {
    let place = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let whole_directory = place.path().join("whole");
    let whole = runtime.block_on(build(&whole_directory));
    let mut refused = BTreeMap::new();
    let mut opened = 0;
    let mut complete = 0;
    for seed in 0..80 {
        let mut random = Random(seed);
        let directory = place.path().join(format!("case-{seed}"));
        copy(&whole_directory, &directory);
        let names = files(&directory);
        // Most of the damage to the database itself.
        let file = match random.below(3) {
            0 => names[random.below(names.len() as u64) as usize].clone(),
            _ => directory.join(GENERATION).join("db"),
        };
        let how = spoil(&file, &mut random);
        match open(&directory) {
            Ok(store) => {
                let found = runtime.block_on(all(&store));
                store.close();
                assert!(found == whole, "seed {seed}, {how}: served something else");
                opened += 1;
            }
            Err(OpenError::Damaged { file, detail }) => {
                *refused.entry(detail.clone()).or_insert(0) += 1;
                assert!(file.starts_with(&directory), "seed {seed}, {how}");
                let (right, claimed) = salvages(&directory, &whole.0, &runtime);
                // A file that was cut lost what was cut off. Whatever else happened to it, all but
                // the records that were hit must come out.
                let cut = how.starts_with("cut") && file.ends_with("db");
                assert!(
                    cut || right * 100 >= whole.0.len() * 95,
                    "seed {seed}, {how}: {right} of {} saved",
                    whole.0.len()
                );
                complete += usize::from(claimed);
            }
            Err(other) => panic!("seed {seed}, {how}: {other}"),
        }
        fs::remove_dir_all(&directory).unwrap();
    }
    let count: usize = refused.values().sum();
    println!(
        "{opened} opened whole, {count} refused; of these {complete} salvaged to the last \
         record: {refused:#?}"
    );
    assert!(count > 20 && opened > 10 && complete > 10);
}

/// Takes out what is readable into a fresh store. How many entries came out as they were, and
/// whether that claims to be all.
fn salvages(directory: &Path, whole: &[Entry], runtime: &tokio::runtime::Runtime) -> (usize, bool) {
    let mut lines = Vec::new();
    let exported = match export(directory, &mut lines) {
        Ok(exported) => exported,
        Err(DumpError::Open(OpenError::Damaged { .. })) => return (0, false),
        Err(other) => panic!("{other}"),
    };
    let fresh = directory.with_extension("fresh");
    let imported = import(&fresh, &mut lines.as_slice()).unwrap();
    assert_eq!(imported.entries, exported.entries);
    let store = open(&fresh).unwrap();
    let (found, _) = runtime.block_on(all(&store));
    store.close();
    fs::remove_dir_all(&fresh).unwrap();
    if exported.complete {
        assert!(found == whole, "complete, and something else");
    }
    let right = found.iter().filter(|entry| whole.contains(entry)).count();
    (right, exported.complete)
}
