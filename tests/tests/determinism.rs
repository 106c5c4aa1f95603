//! The same seed gives the same history, byte for byte, on any thread; another seed gives another
//! one. (`cargo xtask test` asks the same of 500 seeds, in the step `simulation`.)
#![allow(
    clippy::expect_used,
    reason = "a failed check panics, that is its answer"
)]

use std::collections::BTreeSet;

use punctual_tests::sim::campaign::{Campaign, Options};
use punctual_tests::sim::scenario;
use punctual_tests::sim::world::simulate;

fn campaign(threads: usize, start: u64) -> Campaign {
    let options = Options {
        seeds: 3,
        start,
        threads,
        replay: 3,
        ..Options::default()
    };
    Campaign::run(&options, |line| panic!("{line}"))
}

#[test]
fn the_same_seed_gives_the_same_history_on_any_thread() {
    let (alone, together) = (campaign(1, 0), campaign(3, 0));
    for done in [&alone, &together] {
        assert!(!done.failed());
        assert_eq!((done.seeds, done.replayed), (3, 3));
    }
    assert_eq!(alone.fingerprint, together.fingerprint);
    // What is counted along the way must not depend on it either.
    assert_eq!(alone.polls, together.polls);
    assert_eq!(alone.fires, together.fires);
    assert_ne!(alone.fingerprint, campaign(2, 1).fingerprint);
}

#[test]
fn different_seeds_give_different_histories() {
    let fingerprints: BTreeSet<u64> = (0..4)
        .map(|seed| simulate(&scenario::plan("default", seed).expect("a scenario")).fingerprint)
        .collect();
    assert_eq!(fingerprints.len(), 4);
}
