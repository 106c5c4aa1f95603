//! What a worker could claim: the most urgent first, the future apart.
//!
//! Runs of a job that allows only so many executions at once go in their order, one a request. While
//! no slot seems free, all of them are parked: until an execution of their job is seen to end, or
//! until it is time to ask the store, since what is seen here may be old.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::job::finish::Attempt;
use crate::keys::AttemptKey;

use super::share::{Peer, Peers, delay_ms};
use super::slots::Slots;

/// Higher priority first, then the older instant.
type Order = (Reverse<i8>, i64, AttemptKey);

#[derive(Debug)]
struct Waiting {
    attempt: Attempt,
    /// When it was first offered here.
    seen_ms: i64,
    /// When it may be taken here.
    ready_ms: i64,
    /// Place of this node among those that can take it.
    rank: usize,
}

/// PENDING runs that this node can run.
#[derive(Debug)]
pub struct Queue {
    node: String,
    me: Peer,
    peers: Peers,
    attempts: BTreeMap<AttemptKey, Waiting>,
    ready: BTreeSet<Order>,
    later: BTreeSet<(i64, AttemptKey)>,
    /// Declined here, and when to look at them again: a node may learn of a command meanwhile.
    avoided: BTreeMap<AttemptKey, i64>,
    slots: Slots,
    parked: BTreeMap<String, Parked>,
}

/// A job whose slots are all held, as far as is known here.
#[derive(Debug)]
struct Parked {
    runs: BTreeSet<AttemptKey>,
    /// When to look at the store.
    ask_ms: i64,
}

/// A run that may be claimed now, and the slot to ask for if it needs one.
#[derive(Debug)]
pub struct Taken {
    /// Which.
    pub attempt: Attempt,
    /// Below its limit, if it has one.
    pub slot: u32,
}

/// A run that was declined is looked at again after so long.
const AVOID_MS: i64 = 10_000;
/// While no slot of a job seems free, the store is asked so often.
const ASK_MS: i64 = 5_000;
/// Jobs to ask about at once, at most.
const ASKED_AT_ONCE: usize = 8;
/// Where there is more than the cluster can do, each node takes its own share first; a run that is
/// older by so much goes before it nevertheless.
const HEAD_START_MS: i64 = 5_000;

impl Queue {
    /// For the node of this id, which can take that.
    #[must_use]
    pub fn new(node: &str, me: Peer) -> Self {
        Self {
            node: node.to_owned(),
            me,
            peers: Peers::default(),
            attempts: BTreeMap::new(),
            ready: BTreeSet::new(),
            later: BTreeSet::new(),
            avoided: BTreeMap::new(),
            slots: Slots::default(),
            parked: BTreeMap::new(),
        }
    }

    /// What this node can take.
    #[must_use]
    pub fn me(&self) -> &Peer {
        &self.me
    }

    /// The live nodes are these; everything that waits is ranked anew.
    pub fn set_peers(&mut self, peers: Peers) {
        if peers == self.peers {
            return;
        }
        self.peers = peers;
        self.ready.clear();
        self.later.clear();
        self.parked.clear();
        for waiting in std::mem::take(&mut self.attempts).into_values() {
            self.insert(waiting.attempt, waiting.seen_ms);
        }
    }

    /// A PENDING attempt, new or changed.
    pub fn offer(&mut self, attempt: Attempt, now_ms: i64) {
        let known = self.attempts.get(&attempt.key);
        let seen_ms = known
            .filter(|known| known.attempt.modified == attempt.modified)
            .map_or(now_ms, |known| known.seen_ms);
        self.remove(&attempt.key);
        let record = &attempt.record;
        if record.is_for(&self.node) && self.me.takes(&record.queue, &record.needs) {
            self.insert(attempt, seen_ms);
        }
    }

    fn insert(&mut self, attempt: Attempt, seen_ms: i64) {
        let record = &attempt.record;
        // One node prefers all runs of a limited job: it sees its own claims at once, and keeps
        // their order.
        let shared = match record.concurrency {
            Some(_) => &record.job,
            None => &record.run,
        };
        let rank = match record.home() {
            // Nobody else may take it.
            Some(_) => 0,
            None => self
                .peers
                .rank(shared, &record.queue, &record.needs, &self.node),
        };
        let avoided = self.avoided.get(&attempt.key).copied();
        let mut ready_ms = record.not_before_ms.max(avoided.unwrap_or(i64::MIN));
        if rank > 0 {
            ready_ms = ready_ms.max(seen_ms).saturating_add(delay_ms(rank));
        }
        let key = attempt.key.clone();
        self.later.insert((ready_ms, key.clone()));
        let waiting = Waiting {
            attempt,
            seen_ms,
            ready_ms,
            rank,
        };
        self.attempts.insert(key, waiting);
    }

    /// It is PENDING no more.
    pub fn remove(&mut self, key: &AttemptKey) {
        if let Some(waiting) = self.attempts.remove(key) {
            self.later.remove(&(waiting.ready_ms, key.clone()));
            self.ready.remove(&order(&waiting));
            if let Some(parked) = self.parked.get_mut(&key.job) {
                parked.runs.remove(key);
                if parked.runs.is_empty() {
                    self.parked.remove(&key.job);
                }
            }
        }
    }

    /// The attempt executes, and holds this slot of its job.
    pub fn hold(&mut self, key: &AttemptKey, slot: u32) {
        self.slots.hold(key, slot);
    }

    /// The attempt holds no slot (any more).
    pub fn free(&mut self, key: &AttemptKey, now_ms: i64) {
        if self.slots.free(key) {
            self.unpark(&key.job, now_ms);
        }
    }

    /// The store refused the claim of this one, since these hold slots of its job; it waits on.
    pub fn refused(&mut self, attempt: Attempt, held: &[(AttemptKey, u32)], now_ms: i64) {
        for (key, slot) in held {
            self.slots.hold(key, *slot);
        }
        let limit = attempt.record.concurrency.unwrap_or(u32::MAX);
        let job = attempt.key.job.clone();
        let key = attempt.key.clone();
        self.offer(attempt, now_ms);
        if self.slots.pick(&job, limit).is_none() || held.is_empty() {
            self.park(&job, &key, now_ms);
        }
    }

    /// Jobs whose slots the store shall be asked about.
    pub fn to_ask(&mut self, now_ms: i64) -> Vec<(u16, String)> {
        let due = self.parked.iter_mut().filter(|(_, p)| p.ask_ms <= now_ms);
        due.take(ASKED_AT_ONCE)
            .filter_map(|(job, parked)| {
                parked.ask_ms = now_ms + ASK_MS;
                Some((parked.runs.first()?.partition, job.clone()))
            })
            .collect()
    }

    /// What the store holds of a job's slots.
    pub fn told(&mut self, job: &str, held: &[(AttemptKey, u32)], now_ms: i64) {
        self.slots.forget(job);
        for (key, slot) in held {
            self.slots.hold(key, *slot);
        }
        self.unpark(job, now_ms);
    }

    fn park(&mut self, job: &str, key: &AttemptKey, now_ms: i64) {
        if let Some(waiting) = self.attempts.get(key) {
            self.later.remove(&(waiting.ready_ms, key.clone()));
            self.ready.remove(&order(waiting));
            let parked = self.parked.entry(job.to_owned()).or_insert(Parked {
                runs: BTreeSet::new(),
                ask_ms: now_ms + ASK_MS,
            });
            parked.runs.insert(key.clone());
        }
    }

    /// A slot may be free: the first in rank takes it, the others leave it to that node for a while.
    fn unpark(&mut self, job: &str, now_ms: i64) {
        let Some(parked) = self.parked.remove(job) else {
            return;
        };
        for key in parked.runs {
            if let Some(waiting) = self.attempts.get_mut(&key) {
                waiting.ready_ms = now_ms.saturating_add(delay_ms(waiting.rank));
                self.later.insert((waiting.ready_ms, key));
            }
        }
    }

    /// It cannot run here, for the time being.
    pub fn avoid(&mut self, key: &AttemptKey, now_ms: i64) {
        self.remove(key);
        self.avoided.insert(key.clone(), now_ms + AVOID_MS);
    }

    /// Forgets everything, before a full listing is offered.
    pub fn clear(&mut self) {
        self.attempts.clear();
        self.ready.clear();
        self.later.clear();
        self.avoided.clear();
        self.slots.clear();
        self.parked.clear();
    }

    /// Takes up to `limit` of those that may start now. Of a limited job no more than one: its
    /// further claims would depend on the first, and no store takes such a request.
    pub fn take(&mut self, limit: usize, now_ms: i64) -> Vec<Taken> {
        while let Some((ready_ms, _)) = self.later.first()
            && *ready_ms <= now_ms
            && let Some((_, key)) = self.later.pop_first()
        {
            if let Some(waiting) = self.attempts.get(&key) {
                self.ready.insert(order(waiting));
            }
        }
        let mut taken = Vec::new();
        let mut jobs: BTreeSet<String> = BTreeSet::new();
        let mut left = Vec::new();
        while taken.len() < limit
            && let Some(next) = self.ready.pop_first()
        {
            let key = &next.2;
            let Some(waiting) = self.attempts.get(key) else {
                continue;
            };
            let mut slot = 0;
            if let Some(limit) = waiting.attempt.record.concurrency {
                if jobs.contains(&key.job) {
                    left.push(next);
                    continue;
                }
                // Behind one that waits for a slot, the others of its job wait in their order.
                let free = match self.parked.get(&key.job) {
                    Some(_) => None,
                    None => self.slots.pick(&key.job, limit),
                };
                let Some(free) = free else {
                    self.park(&key.job, key, now_ms);
                    continue;
                };
                jobs.insert(key.job.clone());
                slot = free;
            }
            taken.extend(self.attempts.remove(key).map(|waiting| Taken {
                attempt: waiting.attempt,
                slot,
            }));
        }
        self.ready.extend(left);
        taken
    }

    /// Milliseconds until the next one may start; `u64::MAX` if none waits for its time.
    #[must_use]
    pub fn wait_ms(&self, now_ms: i64) -> u64 {
        self.later.first().map_or(u64::MAX, |(ready_ms, _)| {
            u64::try_from(ready_ms.saturating_sub(now_ms)).unwrap_or(0)
        })
    }
}

fn order(waiting: &Waiting) -> Order {
    let head_start_ms = if waiting.rank > 0 { HEAD_START_MS } else { 0 };
    (
        Reverse(waiting.attempt.record.priority),
        waiting
            .attempt
            .record
            .scheduled_ms
            .saturating_add(head_start_ms),
        waiting.attempt.key.clone(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Revision;
    use crate::job::record::{NodeRecord, RunRecord};
    use crate::job::run::Owner;

    fn record(slots: u32) -> NodeRecord {
        NodeRecord {
            address: None,
            slots,
            queues: vec!["default".into()],
            handlers: vec![],
            commands: true,
            http: false,
            since_ms: 0,
            tzdb: String::new(),
        }
    }

    fn attempt(n: i64, priority: i8, not_before_ms: i64) -> Attempt {
        let run = format!("j@{n}");
        let json = serde_json::json!({
            "job": "j", "run": run, "attempt": 1, "kind": "scheduled", "scheduled_ms": n,
            "job_uid": 1, "generation": 1, "queue": "default", "needs": "command",
            "deadline_ms": 0, "state": "PENDING", "not_before_ms": not_before_ms,
            "created_ms": 0, "priority": priority,
        });
        let record: RunRecord = serde_json::from_value(json).unwrap();
        Attempt {
            key: AttemptKey {
                partition: 0,
                job: "j".into(),
                run,
                attempt: 1,
            },
            record,
            modified: Revision(5),
        }
    }

    fn peers(ids: &[&str]) -> Peers {
        let live = ids
            .iter()
            .map(|id| {
                let owner = Owner {
                    node: (*id).to_owned(),
                    incarnation: "1".into(),
                };
                (owner, record(4))
            })
            .collect();
        Peers::new(&live, &BTreeSet::new(), ("a", Peer::of(&record(4))))
    }

    fn queue(ids: &[&str]) -> Queue {
        let mut queue = Queue::new("a", Peer::of(&record(4)));
        queue.set_peers(peers(ids));
        queue
    }

    fn numbers(taken: &[Taken]) -> Vec<i64> {
        let numbers = taken.iter().map(|taken| taken.attempt.record.scheduled_ms);
        numbers.collect()
    }

    fn limited(n: i64, concurrency: u32) -> Attempt {
        let mut limited = attempt(n, 0, 0);
        limited.record.concurrency = Some(concurrency);
        limited
    }

    #[test]
    fn runs_of_a_limited_job_go_one_by_one_in_their_order() {
        let mut queue = queue(&[]);
        for n in [3, 1, 2] {
            queue.offer(limited(n, 2), 0);
        }
        let first = queue.take(9, 0);
        assert_eq!((numbers(&first), first[0].slot), (vec![1], 0));
        queue.hold(&first[0].attempt.key, first[0].slot);
        let second = queue.take(9, 0);
        assert_eq!((numbers(&second), second[0].slot), (vec![2], 1));
        queue.hold(&second[0].attempt.key, second[0].slot);
        assert_eq!(numbers(&queue.take(9, 0)), [0_i64; 0]);
        // One that is older than what is parked waits behind it all the same, and goes before it.
        queue.offer(limited(0, 2), 0);
        assert_eq!(numbers(&queue.take(9, 4_999)), [0_i64; 0]);
        queue.free(&first[0].attempt.key, 5_000);
        let third = queue.take(9, 5_000);
        assert_eq!((numbers(&third), third[0].slot), (vec![0], 0));
    }

    #[test]
    fn a_parked_job_is_asked_about_now_and_then() {
        let mut queue = queue(&[]);
        queue.offer(limited(1, 1), 0);
        queue.hold(&limited(7, 1).key, 0);
        assert_eq!(numbers(&queue.take(9, 0)), [0_i64; 0]);
        assert_eq!(queue.to_ask(4_999), []);
        assert_eq!(queue.to_ask(5_000), [(0, "j".to_owned())]);
        assert_eq!(queue.to_ask(5_000), [], "once");
        // Its slot is held still: by another one, of which nothing was heard here.
        queue.told("j", &[(limited(8, 1).key, 0)], 5_010);
        assert_eq!(numbers(&queue.take(9, 5_010)), [0_i64; 0]);
        queue.free(&limited(7, 1).key, 5_020);
        assert_eq!(numbers(&queue.take(9, 5_020)), [0_i64; 0], "old news");
        queue.told("j", &[], 10_010);
        assert_eq!(numbers(&queue.take(9, 10_010)), [1]);
        // The store says no for a reason that nobody sees here: it is not asked again at once.
        let again = limited(1, 1);
        queue.refused(again, &[], 10_020);
        assert_eq!(numbers(&queue.take(9, 10_020)), [0_i64; 0]);
        assert_eq!(queue.to_ask(15_020).len(), 1);
    }

    #[test]
    fn what_is_gone_is_parked_no_more() {
        let mut queue = queue(&[]);
        queue.offer(limited(1, 1), 0);
        queue.hold(&limited(7, 1).key, 0);
        assert_eq!(numbers(&queue.take(9, 0)), [0_i64; 0]);
        queue.remove(&limited(1, 1).key);
        assert_eq!(queue.to_ask(9_000), []);
        queue.free(&limited(7, 1).key, 9_000);
        assert_eq!(numbers(&queue.take(9, 9_000)), [0_i64; 0]);
    }

    #[test]
    fn one_node_prefers_all_runs_of_a_limited_job() {
        let mut queue = queue(&["b", "c"]);
        (0..30).for_each(|n| queue.offer(limited(n, 9), 100));
        let ranks: BTreeSet<usize> = queue.attempts.values().map(|w| w.rank).collect();
        assert_eq!(ranks.len(), 1);
    }

    #[test]
    fn alone_it_takes_the_urgent_then_the_old_and_nothing_early() {
        let mut queue = queue(&[]);
        for attempt in [
            attempt(3, 0, 0),
            attempt(1, 0, 0),
            attempt(2, 5, 0),
            attempt(4, 9, 1_000),
        ] {
            queue.offer(attempt, 100);
        }
        assert_eq!(queue.wait_ms(100), 0);
        assert_eq!(numbers(&queue.take(9, 100)), [2, 1, 3]);
        assert_eq!(queue.wait_ms(100), 900);
        assert_eq!(numbers(&queue.take(9, 999)), [0_i64; 0]);
        assert_eq!(numbers(&queue.take(9, 1_000)), [4]);
    }

    #[test]
    fn its_share_at_once_and_the_rest_after_a_delay_by_rank() {
        let mut queue = queue(&["b", "c"]);
        (0..90).for_each(|n| queue.offer(attempt(n, 0, 0), 100));
        let taken = |queue: &mut Queue, now_ms| queue.take(90, now_ms).len();
        let first = taken(&mut queue, 100);
        assert!((15..45).contains(&first), "{first}");
        assert_eq!(taken(&mut queue, 299), 0);
        let second = taken(&mut queue, 300);
        assert_eq!(taken(&mut queue, 499), 0);
        let third = taken(&mut queue, 500);
        assert_eq!(first + second + third, 90);
        assert!(second > 10 && third > 10, "{second} {third}");
    }

    #[test]
    fn when_the_others_go_their_share_is_taken_at_once() {
        let mut queue = queue(&["b", "c"]);
        (0..30).for_each(|n| queue.offer(attempt(n, 0, 0), 100));
        let mine = queue.take(30, 100).len();
        queue.set_peers(peers(&[]));
        assert_eq!(queue.take(30, 101).len(), 30 - mine);
    }

    #[test]
    fn with_more_than_it_can_do_its_share_goes_first_unless_another_is_much_older() {
        let mut queue = queue(&["b", "c"]);
        (0..30).for_each(|n| queue.offer(attempt(n, 0, 0), 100));
        queue.offer(attempt(-6_000, 0, 0), 100);
        queue.offer(attempt(900, 7, 0), 100);
        let ranks: BTreeMap<i64, usize> = queue
            .attempts
            .values()
            .map(|waiting| (waiting.attempt.record.scheduled_ms, waiting.rank))
            .collect();
        let order = numbers(&queue.take(32, 5_000));
        assert_eq!(order[..2], [900, -6_000], "priority, then age");
        let shares: Vec<bool> = order[2..].iter().map(|n| ranks[n] == 0).collect();
        assert!(shares.is_sorted_by(|a, b| a >= b), "{shares:?}");
    }

    #[test]
    fn an_offer_that_says_nothing_new_does_not_begin_the_delay_again() {
        let mut queue = queue(&["b", "c"]);
        (0..30).for_each(|n| queue.offer(attempt(n, 0, 0), 100));
        (0..30).for_each(|n| queue.offer(attempt(n, 0, 0), 400));
        assert_eq!(queue.take(30, 500).len(), 30);
    }

    #[test]
    fn what_was_declined_or_is_gone_is_not_taken() {
        let mut queue = queue(&[]);
        queue.offer(attempt(1, 0, 0), 0);
        queue.offer(attempt(2, 0, 0), 0);
        queue.remove(&attempt(2, 0, 0).key);
        queue.avoid(&attempt(1, 0, 0).key, 0);
        queue.offer(attempt(1, 0, 0), 10);
        assert_eq!(numbers(&queue.take(9, 9_999)), [0_i64; 0]);
        assert_eq!(numbers(&queue.take(9, 10_000)), [1]);
    }
}
