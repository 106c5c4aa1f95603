//! The same seed gives the same history, byte for byte; another seed gives another one.
#![allow(
    clippy::expect_used,
    reason = "a failed check panics, that is its answer"
)]

use std::collections::BTreeSet;

use punctual_tests::sim::scenario;
use punctual_tests::sim::world::simulate;

#[test]
fn the_same_seed_gives_the_same_history() {
    let mut fingerprints = BTreeSet::new();
    for seed in 0..8 {
        let plan = scenario::plan("default", seed).expect("a scenario");
        let (first, second) = (simulate(&plan), simulate(&plan));
        assert_eq!(first.fingerprint, second.fingerprint, "seed {seed}");
        assert_eq!(first.log.len(), second.log.len(), "seed {seed}");
        fingerprints.insert(first.fingerprint);
    }
    assert_eq!(
        fingerprints.len(),
        8,
        "different seeds, different histories"
    );
}
