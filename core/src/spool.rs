//! The node's own memory for results that the store has not taken yet.

use std::io;

use async_trait::async_trait;

/// A few small files on the node. What was put and not removed is there after any crash.
#[async_trait]
pub trait Spool: Send + Sync + 'static {
    /// Keeps `bytes` under `name` (letters, digits and `-._~@`), in place of what was there; durable
    /// when it returns.
    async fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()>;

    /// Forgets `name`, if it is there.
    async fn remove(&self, name: &str) -> io::Result<()>;

    /// Everything that is kept, in the order of the names.
    async fn all(&self) -> io::Result<Vec<(String, Vec<u8>)>>;
}
