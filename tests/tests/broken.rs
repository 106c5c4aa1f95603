//! A store that breaks (a full disk, say) ends the node, so that whoever supervises the process
//! starts it anew; it must not go on as a process that does nothing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

use std::sync::Arc;
use std::time::Duration;

use punctual::backend::BackendError;
use punctual::cancel::Canceller;
use punctual::env::TokioEnv;
use punctual::handler::Executors;
use punctual::node::{Node, NodeConfig};
use punctual_memory::MemoryBackend;
use punctual_tests::unsteady::{Mood, Unsteady};

#[tokio::test]
async fn a_broken_store_ends_the_node() {
    let env = TokioEnv::shared();
    let backend = Arc::new(Unsteady::new(MemoryBackend::new(env.clone())));
    let config = NodeConfig::default();
    let node = Node::new(backend.clone(), env, Executors::default(), config).unwrap();
    // Kept: nobody asks the node to stop.
    let (_stop, stopping) = Canceller::new();
    let life = tokio::spawn(node.run(stopping));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!life.is_finished());
    backend.set(Mood::Broken);
    let end = tokio::time::timeout(Duration::from_secs(30), life).await;
    assert_eq!(
        end.expect("it ends").unwrap(),
        Err(BackendError::Broken("no space left".into()))
    );
}
