//! Who stops when, and whose writes count.

use punctual::duration::Millis;
use punctual::job::spec::OnLost;
use punctual_tests::sim::faults::{Cut, Trouble};
use punctual_tests::sim::schedule::Fault;

use crate::stage::{Story as _, cron, does, stage};

/// U16: the leader stands still for 15 s, longer than its lease of 10 s. Another one wins; the old one
/// decides nothing when it wakes, and its session is another one's before it leads again.
#[test]
fn u16_a_leader_that_slept_too_long_has_stopped() {
    let mut plan = stage(2, "2026-03-01T00:00:00Z", 80_000);
    plan.times.leader_ttl_ms = 10_000;
    plan.overdue_takeover_ms = 0;
    plan.put(3_000, cron("often", "* * * * * *"));
    plan.fault(30_000, Fault::PauseLeader { for_ms: 15_000 });
    let seen = plan.play();
    let leads: Vec<usize> = seen.leads.iter().map(|lead| lead.1).collect();
    assert_eq!(leads, [0, 1]);
    let old = seen.leads[0].2;
    let taken = seen.leads[1].0;
    assert!((35_000..42_000).contains(&taken), "{taken}");
    let last = seen.decided.iter().filter(|(_, proc)| *proc == old);
    let last = last.map(|(at, _)| *at).max().unwrap();
    assert!(last <= 30_010, "{last}");
    let fires = seen.fires_s("often");
    assert!(fires.windows(2).all(|two| two[1] == two[0] + 1));
    assert_eq!(seen.runs("often").len(), fires.len());
}

/// What refuses a write whose token is smaller than one that it has seen.
#[derive(Default)]
struct Sink {
    highest: u64,
    taken: Vec<&'static str>,
}

impl Sink {
    fn write(&mut self, token: u64, what: &'static str) -> bool {
        let taken = token >= self.highest;
        if taken {
            self.highest = token;
            self.taken.push(what);
        }
        taken
    }
}

/// U34: a worker is cut from the store in the middle of a run of a minute. It stops the run by the end
/// of its session; the next attempt starts after that, with a larger token, and what the first one
/// still has under way is refused.
#[test]
fn u34_who_lost_the_session_stops_before_somebody_else_starts() {
    let mut plan = stage(3, "2026-03-01T00:00:00Z", 150_000);
    let mut long = does(cron("long", "20 0 0 * * *"), "ok", 60_000);
    long.timeout = Millis::from_secs(120);
    long.on_lost = OnLost::Retry;
    long.idempotent = true;
    plan.put(3_000, long);
    let dry = plan.play();
    let node = dry.node(dry.runs("long")[0].proc);
    plan.trouble(node, 30_000, 100_000, Trouble::Cut(Cut::Both));
    let seen = plan.play();
    let [first, second] = seen.runs("long")[..] else {
        panic!("{:?}", seen.runs("long"));
    };
    let stopped = first.end_ms.unwrap();
    assert!((30_000..=40_000).contains(&stopped), "{stopped}");
    assert!(!first.completed && second.completed);
    assert!(second.start_ms > stopped);
    assert!(second.token > first.token);
    assert_ne!(seen.node(second.proc), node);
    let mut sink = Sink::default();
    assert!(sink.write(first.token, "begun"));
    assert!(sink.write(second.token, "begun again"));
    assert!(!sink.write(first.token, "what was under way"));
    assert!(sink.write(second.token, "done"));
    assert_eq!(sink.taken, ["begun", "begun again", "done"]);
}
