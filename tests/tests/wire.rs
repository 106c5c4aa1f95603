//! Nothing below the recipes repeats a call: whatever the network does to it, each primitive
//! is one call, counted where it leaves the client, and is made once at most.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test that cannot go on fails, and says what it counted"
)]

use std::time::Duration;

use punctual::backend::{
    BackendError, BackendResult, CoordinationBackend as _, LeaseId, PageLimit, Revision, Span, Txn,
    Write,
};
use punctual_etcd::{EtcdBackend, EtcdConfig};
use punctual_tests::etcd::Etcd;
use punctual_tests::proxy::{Proxy, Wire};
use tokio::time::sleep;

/// So long a call may take.
const CALL: Duration = Duration::from_millis(800);

/// What is asked of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Primitive {
    Range,
    Commit,
    CommitBatch,
    Grant,
    KeepAlive,
    Revoke,
    Compact,
    Watch,
}

use Primitive::{Commit, CommitBatch, Compact, Grant, KeepAlive, Range, Revoke, Watch};

/// What the network does meanwhile.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    LostReply,
    LostRequest,
    Late,
    /// The connection breaks before the answer.
    Break,
    /// It broke while nothing was asked.
    BrokenBefore,
}

use Trouble::{Break, BrokenBefore, Late, LostReply, LostRequest};

/// A store with two ways to it, as with two members: a failed call must not be repeated on the
/// other way either. Only the first is in use, so a call on the second would have to connect.
struct World {
    ways: [Proxy; 2],
    store: EtcdBackend,
}

async fn connect(endpoints: Vec<String>, request_timeout: Duration) -> EtcdBackend {
    let mut config = EtcdConfig::new(endpoints);
    config.request_timeout = request_timeout;
    // Whatever etcd is on the PATH: nothing here is to be kept.
    config.allow_corrupting_version = true;
    EtcdBackend::connect(config).await.unwrap()
}

impl World {
    async fn new(etcd: &Etcd) -> Self {
        let ways = [(); 2].map(|()| Proxy::start(etcd.port(), 1));
        let store = connect(ways.iter().map(Proxy::endpoint).collect(), CALL).await;
        assert_eq!(ways[1].calls(), 0, "the second way is not used yet");
        Self { ways, store }
    }

    /// Calls that were begun on both ways.
    fn calls(&self) -> usize {
        self.ways.iter().map(Proxy::calls).sum()
    }

    fn trouble(&self, trouble: Trouble) {
        for way in &self.ways {
            match trouble {
                LostReply | Break => way.set(Wire::ANSWERS_LOST),
                LostRequest => way.set(Wire::REQUESTS_LOST),
                Late => way.set(Wire::requests_late(CALL * 3 / 2)),
                BrokenBefore => way.kill_connections(),
            }
        }
    }

    async fn ask(&self, primitive: Primitive, lease: LeaseId) -> BackendResult<()> {
        let store = &self.store;
        // Without a guard, so that a second copy would make a second revision.
        let txn = Txn::new().put("k", "v");
        match primitive {
            Range => {
                let all = Span::prefix("");
                let page = store.range(&all, PageLimit::default(), None).await;
                page.map(drop)
            }
            Commit => store.commit(&txn).await.map(drop),
            CommitBatch => store.commit_batch(&[], &[txn]).await.map(drop),
            Grant => store.grant(600_000).await.map(drop),
            KeepAlive => store.keep_alive(lease).await.map(drop),
            Revoke => store.revoke(lease).await,
            Compact => store.compact(Revision(2)).await,
            Watch => {
                let to_come = Revision(1 << 40);
                store.watch(&Span::prefix(""), to_come).await.map(drop)
            }
        }
    }
}

/// The store's revision, and how many leases it has.
async fn stands(etcd: &Etcd, direct: &EtcdBackend) -> (u64, usize) {
    let all = Span::prefix("");
    let page = direct.range(&all, PageLimit::default(), None).await;
    let leases = etcd.ask("POST", "/v3/lease/leases", "", "{}").unwrap();
    (page.unwrap().revision.0, leases.matches("\"ID\"").count())
}

/// How many calls a primitive begins in trouble, what it answers, and how it moves the revision and
/// the number of leases.
async fn count(
    etcd: &Etcd,
    direct: &EtcdBackend,
    primitive: Primitive,
    trouble: Option<Trouble>,
) -> (usize, BackendResult<()>, (u64, isize)) {
    let world = World::new(etcd).await;
    let lease = direct.grant(600_000).await.unwrap().id;
    // Its end makes a revision.
    let leased = Write::Put {
        key: b"leased".to_vec(),
        value: Vec::new(),
        lease: Some(lease),
    };
    assert!(direct.commit(&Txn::new().op(leased)).await.is_ok());
    let before = stands(etcd, direct).await;
    let calls = world.calls();
    if let Some(trouble) = trouble {
        world.trouble(trouble);
    }
    let breaking = async {
        if matches!(trouble, Some(Break)) {
            sleep(CALL / 4).await;
            world.ways.iter().for_each(Proxy::kill_connections);
        }
    };
    let (answer, ()) = tokio::join!(world.ask(primitive, lease), breaking);
    // Whoever repeats it does so by now, and what is late has come.
    sleep(CALL * 5 / 2).await;
    let calls = world.calls() - calls;
    let after = stands(etcd, direct).await;
    let moved = after.1.cast_signed() - before.1.cast_signed();
    (calls, answer, (after.0 - before.0, moved))
}

/// What the primitive does to the store when it is made once.
fn once(primitive: Primitive) -> (u64, isize) {
    match primitive {
        Commit | CommitBatch => (1, 0),
        Grant => (0, 1),
        Revoke => (1, -1),
        Range | KeepAlive | Compact | Watch => (0, 0),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_primitive_is_sent_twice_whatever_the_network_does() {
    let all = [
        Commit,
        CommitBatch,
        Grant,
        KeepAlive,
        Revoke,
        Compact,
        Range,
        Watch,
    ];
    // They wait more than they work, and count revisions: each has an etcd of its own.
    let primitives = all.map(|primitive| {
        tokio::spawn(async move { is_sent_once(&Etcd::start(), primitive).await })
    });
    for primitive in primitives {
        primitive.await.unwrap();
    }
}

/// The test above can fail: a call that is repeated is counted, and so is one on another way.
#[tokio::test]
async fn a_call_that_is_repeated_is_counted() {
    let etcd = Etcd::start();
    let world = World::new(&etcd).await;
    let calls = world.calls();
    world.ways[0].set(Wire::ANSWERS_LOST);
    let lost = world.ask(Commit, LeaseId(1)).await;
    assert!(matches!(lost, Err(BackendError::Unknown(_))), "{lost:?}");
    assert_eq!(world.calls() - calls, 1);
    // By a caller who does not know better, on the way that is well.
    assert_eq!(world.ask(Commit, LeaseId(1)).await, Ok(()));
    assert!(world.calls() - calls > 1);
    assert!(world.ways[1].calls() > 0);
    let (revision, _) = stands(&etcd, &world.store).await;
    assert_eq!(revision, 3, "it was made twice");
}

async fn is_sent_once(etcd: &Etcd, primitive: Primitive) {
    let direct = connect(vec![etcd.endpoint()], CALL * 10).await;
    let (calls, answer, moved) = count(etcd, &direct, primitive, None).await;
    assert_eq!((calls, &answer), (1, &Ok(())), "{primitive:?}");
    assert_eq!(moved, once(primitive), "{primitive:?}");
    for trouble in [LostReply, LostRequest, Late, Break, BrokenBefore] {
        let (calls, answer, moved) = count(etcd, &direct, primitive, Some(trouble)).await;
        let told = format!("{primitive:?} with {trouble:?}: {calls} calls, {moved:?}, {answer:?}");
        println!("{told}");
        let certain = match &answer {
            Ok(()) => Some(once(primitive)),
            Err(BackendError::Unavailable(_)) => Some((0, 0)),
            Err(BackendError::Unknown(_)) => None,
            Err(_) => panic!("{told}"),
        };
        match trouble {
            // The break may be found before the call is sent, or when it has been.
            BrokenBefore => {
                assert!(calls <= 1, "{told}");
                assert!(moved == (0, 0) || moved == once(primitive), "{told}");
            }
            LostReply | LostRequest | Late | Break => {
                assert_eq!(calls, 1, "{told}");
                let is_read = matches!(primitive, Range | Watch);
                assert_eq!(certain.is_some(), is_read, "{told}");
                let made = match trouble {
                    LostRequest => (0, 0),
                    _ => once(primitive),
                };
                assert_eq!(moved, made, "{told}");
            }
        }
        if let Some(certain) = certain {
            assert_eq!(moved, certain, "{told}");
        }
    }
}
