//! The definitions of the runs that are taken here, each read once.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::backend::BackendResult;
use crate::job::Definition;
use crate::job::finish::Attempt;
use crate::keys::Keys;
use crate::recipe::retry::Store;

/// So many are kept.
const MAX_DEFINITIONS: usize = 10_000;

/// Job, uid, generation.
type Id = (String, u64, u64);

/// What was read so far.
#[derive(Default)]
pub(super) struct Definitions(BTreeMap<Id, Arc<Definition>>);

/// What a run follows; `None` when it is gone or cannot be decoded.
pub(super) type Found = BackendResult<Option<Arc<Definition>>>;

impl Definitions {
    /// What these runs follow, in their order. What is not known yet is read all at once: of many
    /// jobs that are due for the first time, the last one must not wait for as many ways to the store.
    pub(super) async fn of(
        &mut self,
        store: &Store,
        keys: &Keys,
        attempts: &[Attempt],
    ) -> Vec<Found> {
        if self.0.len() + attempts.len() > MAX_DEFINITIONS {
            self.0.clear();
        }
        let mut unknown: BTreeMap<Id, &Attempt> = BTreeMap::new();
        for attempt in attempts {
            let id = id(attempt);
            if !self.0.contains_key(&id) {
                unknown.insert(id, attempt);
            }
        }
        let reads = unknown.values().map(|attempt| read(store, keys, attempt));
        let read = join_all(reads).await;
        let mut absent: BTreeMap<Id, Found> = BTreeMap::new();
        for (id, read) in unknown.into_keys().zip(read) {
            match read {
                Ok(Some(definition)) => {
                    self.0.insert(id, Arc::new(definition));
                }
                Ok(None) => {
                    absent.insert(id, Ok(None));
                }
                Err(error) => {
                    absent.insert(id, Err(error));
                }
            }
        }
        let found = attempts.iter().map(|attempt| {
            let id = id(attempt);
            match absent.get(&id) {
                Some(absent) => absent.clone(),
                None => Ok(self.0.get(&id).cloned()),
            }
        });
        found.collect()
    }
}

fn id(attempt: &Attempt) -> Id {
    let record = &attempt.record;
    (record.job.clone(), record.job_uid, record.generation)
}

/// `None` when it is gone or cannot be decoded.
async fn read(store: &Store, keys: &Keys, attempt: &Attempt) -> BackendResult<Option<Definition>> {
    let record = &attempt.record;
    let key = keys.def(attempt.key.partition, &attempt.key.job, record.generation);
    let Some(entry) = store.get(&key).await? else {
        return Ok(None);
    };
    // Only the policies are used here, so the anchor of `every` does not matter.
    match Definition::decode(&entry.value, record.created_ms) {
        Ok(definition) => Ok(Some(definition)),
        Err(error) => {
            tracing::error!(run = record.run, %error, "its definition cannot be read");
            Ok(None)
        }
    }
}
