//! Which node should take a run: rendezvous hashing over the live nodes.
//!
//! Every worker ranks the nodes that can take a run by a hash of (run, node), weighted by their
//! slots, and comes to the same order without asking. The first takes it at once; the others after
//! a delay by rank, so that a node that is full, slow or dead holds nobody up. Where two nodes know
//! different peers they may both try: the record decides, as always.
//!
//! When a node goes, only its runs move; one that joins takes its share from everybody.

use std::collections::{BTreeMap, BTreeSet};

use crate::job::record::NodeRecord;
use crate::job::run::Owner;
use crate::keys::fnv1a;

/// A node of rank k waits k times so long.
const RANK_DELAY_MS: i64 = 200;
/// But no longer than this.
const MAX_DELAY_MS: i64 = 1_000;

/// How long a node of this rank leaves a run to those before it.
#[must_use]
pub fn delay_ms(rank: usize) -> i64 {
    i64::try_from(rank)
        .unwrap_or(i64::MAX)
        .saturating_mul(RANK_DELAY_MS)
        .min(MAX_DELAY_MS)
}

/// What a node can take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// How many runs at once.
    pub slots: u32,
    /// Its queues.
    pub queues: BTreeSet<String>,
    /// What it has: `command`, `http`, `handler:NAME`.
    pub needs: BTreeSet<String>,
}

impl Peer {
    /// As a node's record says.
    #[must_use]
    pub fn of(record: &NodeRecord) -> Self {
        Self {
            slots: record.slots,
            queues: record.queues.iter().cloned().collect(),
            needs: record.needs().collect(),
        }
    }

    /// Whether it takes such runs.
    #[must_use]
    pub fn takes(&self, queue: &str, needs: &str) -> bool {
        self.slots > 0 && self.queues.contains(queue) && self.needs.contains(needs)
    }
}

/// The nodes among which runs are shared, by id. Lives of one node count as one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers(BTreeMap<String, Peer>);

impl Peers {
    /// The live nodes that claim; `me` is among them whether its session is seen yet or not.
    #[must_use]
    pub fn new(
        live: &BTreeMap<Owner, NodeRecord>,
        drained: &BTreeSet<String>,
        me: (&str, Peer),
    ) -> Self {
        let mut peers: BTreeMap<String, Peer> = live
            .iter()
            .filter(|(owner, _)| !drained.contains(&owner.node))
            .map(|(owner, record)| (owner.node.clone(), Peer::of(record)))
            .collect();
        peers.insert(me.0.to_owned(), me.1);
        Self(peers)
    }

    /// Which place `node` has among those that can take the run: 0 is the first.
    #[must_use]
    pub fn rank(&self, run: &str, queue: &str, needs: &str, node: &str) -> usize {
        let mine = self.0.get(node).map(|peer| score(run, node, peer.slots));
        self.0
            .iter()
            .filter(|(other, peer)| *other != node && peer.takes(queue, needs))
            .map(|(other, peer)| (score(run, other, peer.slots), other.as_str()))
            .filter(|(theirs, other)| {
                mine.is_none_or(|mine| {
                    theirs
                        .total_cmp(&mine)
                        .then_with(|| (*other).cmp(node))
                        .is_gt()
                })
            })
            .count()
    }
}

/// Weighted rendezvous hashing: the largest of these is a node's with a probability in proportion
/// to its slots.
fn score(run: &str, node: &str, slots: u32) -> f64 {
    let hash = mix(fnv1a(run.as_bytes()) ^ mix(fnv1a(node.as_bytes())));
    // 53 bits, so that the quotient lies strictly between 0 and 1.
    let even = ((hash >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    f64::from(slots.max(1)) / -even.ln()
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): FNV alone leaves ids that differ in their
/// last letter close together.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(slots: u32, queues: &[&str]) -> Peer {
        Peer {
            slots,
            queues: queues.iter().map(ToString::to_string).collect(),
            needs: BTreeSet::from(["command".into()]),
        }
    }

    fn peers(list: &[(&str, u32)]) -> Peers {
        let one = |(id, slots): &(&str, u32)| ((*id).to_owned(), peer(*slots, &["default"]));
        Peers(list.iter().map(one).collect())
    }

    fn first<'a>(peers: &'a Peers, run: &str) -> Vec<&'a str> {
        peers
            .0
            .keys()
            .filter(|node| peers.rank(run, "default", "command", node) == 0)
            .map(String::as_str)
            .collect()
    }

    fn runs() -> impl Iterator<Item = String> {
        (0..3_000).map(|n| {
            format!("job-{}@2026081{}T00{:02}00Z", n % 50, n % 10, n % 60) + &n.to_string()
        })
    }

    #[test]
    fn every_run_has_one_first_and_the_ranks_are_an_order() {
        let peers = peers(&[("n0", 16), ("n1", 16), ("n2", 16), ("n3", 4), ("n10", 1)]);
        for run in runs() {
            let mut ranks: Vec<usize> = peers
                .0
                .keys()
                .map(|node| peers.rank(&run, "default", "command", node))
                .collect();
            ranks.sort_unstable();
            assert_eq!(ranks, [0, 1, 2, 3, 4], "{run}");
        }
    }

    #[test]
    fn a_node_that_goes_moves_only_its_own_runs() {
        let before = peers(&[("n0", 16), ("n1", 16), ("n2", 16), ("n3", 8)]);
        let mut after = before.clone();
        after.0.remove("n2");
        for run in runs() {
            let (was, is) = (first(&before, &run), first(&after, &run));
            assert!(was == ["n2"] || was == is, "{run}: {was:?} {is:?}");
        }
    }

    #[test]
    fn shares_follow_slots() {
        let all = peers(&[("n0", 10), ("n1", 10), ("n2", 20)]);
        let mut counts: BTreeMap<&str, i32> = BTreeMap::new();
        for run in runs() {
            *counts.entry(first(&all, &run)[0]).or_default() += 1;
        }
        for (node, share) in [("n0", 750), ("n1", 750), ("n2", 1_500)] {
            assert!((counts[node] - share).abs() < 120, "{counts:?}");
        }
    }

    #[test]
    fn only_those_count_that_can_take_it() {
        let mut all = peers(&[("n0", 10), ("n1", 10), ("n2", 0)]);
        all.0.insert("n3".into(), peer(10, &["gpu"]));
        for run in runs() {
            assert_eq!(all.rank(&run, "gpu", "command", "n3"), 0);
            assert!(all.rank(&run, "default", "command", "n0") <= 1);
            // Nobody else has it, as far as is known here.
            assert_eq!(all.rank(&run, "default", "handler:x", "n0"), 0);
        }
    }

    #[test]
    fn lives_of_a_node_are_one_and_the_drained_are_none() {
        let record = NodeRecord {
            address: None,
            slots: 3,
            queues: vec!["default".into()],
            handlers: vec!["a".into()],
            commands: false,
            http: false,
            since_ms: 0,
            tzdb: String::new(),
        };
        let owner = |node: &str, incarnation: &str| Owner {
            node: node.into(),
            incarnation: incarnation.into(),
        };
        let live = BTreeMap::from([
            (owner("a", "1"), record.clone()),
            (owner("a", "2"), record.clone()),
            (owner("b", "1"), record.clone()),
        ]);
        let me = || ("c", Peer::of(&record));
        let all = Peers::new(&live, &BTreeSet::new(), me());
        assert_eq!(all.0.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(all.0["a"].takes("default", "handler:a"));
        assert!(!all.0["a"].takes("default", "command"));
        let without = Peers::new(&live, &BTreeSet::from(["a".into()]), me());
        assert_eq!(without.0.keys().collect::<Vec<_>>(), ["b", "c"]);
    }

    #[test]
    fn nobody_waits_longer_than_a_second() {
        let delays: Vec<i64> = [0, 1, 2, 5, 6, 500].map(delay_ms).into();
        assert_eq!(delays, [0, 200, 400, 1_000, 1_000, 1_000]);
    }
}
