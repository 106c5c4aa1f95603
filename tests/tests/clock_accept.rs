//! A clock that steps by hours while its node runs, and a person who says that it is right.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use punctual::backend::CoordinationBackend;
use punctual::cancel::{Canceller, StopCause};
use punctual::control::{Control, ControlError, NodeObject};
use punctual::env::{BoxFuture, Env, SharedEnv, TaskHandle, TokioEnv};
use punctual::handler::Executors;
use punctual::node::{Node, NodeConfig};
use punctual_memory::MemoryBackend;

const HOURS_MS: i64 = 3 * 3_600_000;

/// The world, but for a wall clock that a test moves.
struct Moved {
    world: SharedEnv,
    ahead_ms: AtomicI64,
}

impl Env for Moved {
    fn monotonic_ms(&self) -> u64 {
        self.world.monotonic_ms()
    }
    fn wall_ms(&self) -> i64 {
        self.world.wall_ms() + self.ahead_ms.load(Ordering::SeqCst)
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.world.sleep(duration)
    }
    fn random_u64(&self) -> u64 {
        self.world.random_u64()
    }
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) -> TaskHandle {
        self.world.spawn(name, task)
    }
}

struct Member {
    env: Arc<Moved>,
    control: Control,
    stop: Canceller,
}

impl Member {
    fn start(store: &Arc<MemoryBackend>, name: &str) -> Self {
        let env = Arc::new(Moved {
            world: TokioEnv::shared(),
            ahead_ms: AtomicI64::new(0),
        });
        let config = NodeConfig {
            node_id: name.into(),
            ..NodeConfig::default()
        };
        let namespace = config.namespace.clone();
        let backend: Arc<dyn CoordinationBackend> = store.clone();
        let shared: SharedEnv = env.clone();
        let node = Node::new(
            backend.clone(),
            shared.clone(),
            Executors::default(),
            config,
        );
        let node = node.unwrap();
        let control = Control::with_clock(backend, shared, &namespace, node.clock());
        let (stop, shutdown) = Canceller::new();
        tokio::spawn(node.run(shutdown));
        Self { env, control, stop }
    }

    fn step(&self, ahead_ms: i64) {
        self.env.ahead_ms.store(ahead_ms, Ordering::SeqCst);
    }

    /// Why a node's clock is held, as this one reads it.
    async fn held(&self, name: &str) -> Option<String> {
        let nodes = self.control.live_nodes().await.unwrap_or_default();
        let node = nodes
            .into_iter()
            .find(|node: &NodeObject| node.node == name);
        node.and_then(|node| node.clock_held)
    }

    async fn wait_until_held(&self, name: &str, held: bool) -> String {
        for _ in 0..600 {
            let now = self.held(name).await;
            if now.is_some() == held {
                return now.unwrap_or_default();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{name} is not held: {held}");
    }
}

async fn members(names: &[&str]) -> Vec<Member> {
    let store = Arc::new(MemoryBackend::new(TokioEnv::shared()));
    let all: Vec<Member> = names
        .iter()
        .map(|name| Member::start(&store, name))
        .collect();
    for _ in 0..600 {
        if all[0].control.live_nodes().await.unwrap_or_default().len() == names.len() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Until they have told each other the time.
    tokio::time::sleep(Duration::from_secs(2)).await;
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_is_told_through_another_that_its_clock_is_right() {
    let members = members(&["a", "b"]).await;
    let [a, b] = &members[..] else {
        panic!("two nodes")
    };
    let already = b.control.accept_clock_of("a").await.unwrap();
    assert!(!already.accepted, "nothing is held yet");
    a.step(HOURS_MS);
    b.step(HOURS_MS);
    let why = b.wait_until_held("a", true).await;
    assert!(why.contains("punctual admin clock accept"), "{why}");
    // b is held itself, and tells a all the same.
    let told = b.control.accept_clock_of("a").await.unwrap();
    assert!(told.accepted);
    assert_eq!(b.held("a").await, None);
    assert!(b.held("b").await.is_some(), "one node only");
    let own = b.control.accept_clock("b").unwrap();
    assert!(own.accepted);
    assert!(!b.control.accept_clock("b").unwrap().accepted, "said twice");
    b.wait_until_held("b", false).await;
    let nobody = b.control.accept_clock_of("c").await;
    assert!(matches!(nobody, Err(ControlError::NotFound(_))));
    members
        .iter()
        .for_each(|member| member.stop.stop(StopCause::Cancelled));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_against_which_most_others_are_does_not_accept() {
    let members = members(&["a", "b", "c"]).await;
    members[0].step(HOURS_MS);
    members[1].wait_until_held("a", true).await;
    let told = members[1].control.accept_clock_of("a").await;
    assert!(matches!(told, Err(ControlError::Conflict(_))), "{told:?}");
    assert!(members[1].held("a").await.is_some());
    // Set right, it needs no word.
    members[0].step(0);
    members[1].wait_until_held("a", false).await;
    members
        .iter()
        .for_each(|member| member.stop.stop(StopCause::Cancelled));
}
