//! What several test binaries need.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(dead_code, reason = "not every binary needs all of it")]

use std::path::Path;
use std::sync::Arc;

use punctual::backend::{BackendExt as _, Entry, Revision, Span, Txn};
use punctual::backend::{CoordinationBackend as _, LeaseId, Write};
use punctual::env::TokioEnv;
use punctual_sled::{OpenError, Options, SledBackend};

/// A small random source with a printable seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

pub(crate) fn open(directory: &Path) -> Result<SledBackend, OpenError> {
    SledBackend::open(directory, TokioEnv::shared(), Options::default())
}

pub(crate) async fn commit(store: &SledBackend, txn: Txn) -> Revision {
    store.commit(&txn).await.unwrap().applied().unwrap()
}

pub(crate) async fn all(store: &SledBackend) -> (Vec<Entry>, Revision) {
    store.list(&Span::prefix("")).await.unwrap()
}

pub(crate) fn leased(key: &str, lease: LeaseId) -> Txn {
    Txn::new().op(Write::Put {
        key: key.into(),
        value: b"v".to_vec(),
        lease: Some(lease),
    })
}

pub(crate) fn runtime() -> Arc<tokio::runtime::Runtime> {
    Arc::new(
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap(),
    )
}
