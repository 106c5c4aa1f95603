//! The definitions of the runs that are taken here, each read once.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backend::{BackendResult, Entry, Key};
use crate::job::Definition;
use crate::job::finish::Attempt;
use crate::keys::{AttemptKey, Keys};
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
    /// What these runs follow, in their order. What is not known yet is read in one request: of
    /// many jobs that are due for the first time, the last one must not wait for as many ways to the
    /// store, and each reading is dear to etcd, which copies for it whatever it has not yet written out.
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
        let of = |attempt: &&Attempt| {
            let AttemptKey { partition, job, .. } = &attempt.key;
            keys.def(*partition, job, attempt.record.generation)
        };
        let wanted: Vec<Key> = unknown.values().map(of).collect();
        let read = store.get_each(&wanted).await;
        let mut absent: BTreeMap<Id, Found> = BTreeMap::new();
        for (index, (id, attempt)) in unknown.into_iter().enumerate() {
            let entry = read.as_ref().map(|entries| entries.get(index));
            match entry {
                Ok(entry) => match entry
                    .and_then(Option::as_ref)
                    .and_then(|e| read_of(attempt, e))
                {
                    Some(definition) => {
                        self.0.insert(id, Arc::new(definition));
                    }
                    None => {
                        absent.insert(id, Ok(None));
                    }
                },
                Err(error) => {
                    absent.insert(id, Err(error.clone()));
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

/// `None` when it cannot be decoded.
fn read_of(attempt: &Attempt, entry: &Entry) -> Option<Definition> {
    // Only the policies are used here, so the anchor of `every` does not matter.
    match Definition::decode(&entry.value, attempt.record.created_ms) {
        Ok(definition) => Some(definition),
        Err(error) => {
            tracing::error!(run = attempt.record.run, %error, "its definition cannot be read");
            None
        }
    }
}
