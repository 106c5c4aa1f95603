//! A node's disk, as far as results are kept on it: it outlives the node's process.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;

use async_trait::async_trait;
use punctual::spool::Spool;

/// Results of one node.
#[derive(Debug, Default)]
pub struct MemorySpool(Mutex<BTreeMap<String, Vec<u8>>>);

impl MemorySpool {
    /// The names of what is kept.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }
}

#[async_trait]
impl Spool for MemorySpool {
    async fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        self.0.lock().unwrap().insert(name.to_owned(), bytes);
        Ok(())
    }

    async fn remove(&self, name: &str) -> io::Result<()> {
        self.0.lock().unwrap().remove(name);
        Ok(())
    }

    async fn all(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let kept = self.0.lock().unwrap();
        Ok(kept.iter().map(|(k, v)| (k.clone(), v.clone())).collect())
    }
}
