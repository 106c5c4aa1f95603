//! Stand-in until the engine is merged.
#![allow(missing_docs)]
use std::sync::Arc;

use crate::backend::{BackendError, CoordinationBackend};
use crate::cancel::CancelToken;
use crate::env::SharedEnv;
use crate::handler::Executors;

#[derive(Clone, Debug, Default)]
pub struct NodeConfig {
    pub node_id: String,
    pub namespace: String,
    pub address: Option<String>,
    pub slots: u32,
    pub queues: Vec<String>,
    pub leader_ttl_ms: u64,
    pub session_ttl_ms: u64,
    pub lost_grace_ms: u64,
    pub kill_grace_ms: u64,
    pub drain_timeout_ms: u64,
    pub store_timeout_ms: u64,
    pub overdue_takeover_ms: u64,
    pub max_skew_ms: u64,
    pub relist_ms: u64,
}

pub struct Node;

impl Node {
    pub fn new(
        _: Arc<dyn CoordinationBackend>,
        _: SharedEnv,
        _: Executors,
        _: NodeConfig,
    ) -> Result<Node, String> {
        Ok(Node)
    }
    pub async fn run(self, shutdown: CancelToken) -> Result<(), BackendError> {
        shutdown.cancelled().await;
        Ok(())
    }
}
