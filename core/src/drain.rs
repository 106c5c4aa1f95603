//! Which nodes operators have drained: those that claim nothing and do not lead, while what they run
//! goes on.
//!
//! The wish stands in the store under the node's name, so it survives a restart of the node. A node
//! that does not know yet whether it is drained neither claims nor stands for election.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::sync::watch;

use crate::backend::{Entry, Event};
use crate::job::record::{DrainRecord, decode};
use crate::keys::Keys;
use crate::recipe::view::{View, ViewEvent};

/// The drained nodes, by id; `None` until they are known.
pub type Drained = watch::Receiver<Option<Arc<BTreeSet<String>>>>;

/// Follows the wishes for ever, and tells of each change.
pub async fn follow(
    mut view: View,
    keys: Keys,
    tell: watch::Sender<Option<Arc<BTreeSet<String>>>>,
) {
    let mut drained = BTreeSet::new();
    loop {
        match view.next().await {
            ViewEvent::Listed(entries, _) => {
                drained.clear();
                entries
                    .iter()
                    .for_each(|entry| put(&keys, &mut drained, entry));
            }
            ViewEvent::Changed(changes) => {
                for event in &changes.events {
                    if let Event::Put(entry) = event {
                        put(&keys, &mut drained, entry);
                    }
                }
            }
        }
        let now = Some(Arc::new(drained.clone()));
        tell.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
    }
}

fn put(keys: &Keys, drained: &mut BTreeSet<String>, entry: &Entry) {
    let Some(node) = keys.parse_drain(&entry.key) else {
        return;
    };
    match decode::<DrainRecord>(&entry.value) {
        Ok(record) if record.drained => drained.insert(node),
        Ok(_) => drained.remove(&node),
        Err(error) => {
            // The safe side: who is drained by mistake is missed soon, and asks.
            tracing::error!(node, %error, "cannot read whether this node is drained: taken for drained; drain or undrain it anew");
            drained.insert(node)
        }
    };
}

/// Whether the node is known not to be drained.
#[must_use]
pub fn is_free(drained: &Drained, node: &str) -> bool {
    drained
        .borrow()
        .as_ref()
        .is_some_and(|drained| !drained.contains(node))
}

/// Completes when the node is drained.
pub async fn until_drained(drained: &Drained, node: &str) {
    let mut drained = drained.clone();
    let wanted = drained.wait_for(|known| known.as_ref().is_some_and(|d| d.contains(node)));
    if wanted.await.is_err() {
        std::future::pending::<()>().await;
    }
}
