//! Rows of the catalogue of what went wrong with others (`E`: on a real etcd) that concern the
//! store and single writes. Those that concern whole processes are in `server/tests/cluster`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test says what it saw, and fails when it cannot go on"
)]

mod lead;
mod load;
mod watches;
mod writes;

use punctual::backend::{BackendExt as _, CoordinationBackend as _, Entry, Revision, Txn};
use punctual_etcd::{EtcdBackend, EtcdConfig};

/// With the settings of a node.
async fn connect(endpoints: &[String]) -> EtcdBackend {
    let mut config = EtcdConfig::new(endpoints);
    // Whatever etcd is on the PATH: nothing here is to be kept.
    config.allow_corrupting_version = true;
    EtcdBackend::connect(config).await.unwrap()
}

async fn put(store: &EtcdBackend, key: &str, value: &str) -> Revision {
    let outcome = store.commit(&Txn::new().put(key, value)).await.unwrap();
    outcome.applied().expect("it requires nothing")
}

async fn standing(store: &EtcdBackend, key: &str) -> Option<Entry> {
    store.get(key.as_bytes()).await.unwrap()
}
