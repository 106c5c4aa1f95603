//! Writes that are under way although their senders have given up, and who has looked meanwhile.

use std::sync::{Arc, Mutex};

use punctual::backend::{Op, Page, Span, Txn, Write};

/// A request that takes so long is late: its sender has given up.
pub const LATE_MS: u64 = 2_000;

/// Shared by all wires.
#[derive(Clone, Default)]
pub struct LateWrites(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: u64,
    under_way: Vec<Late>,
}

struct Late {
    number: u64,
    keys: Vec<Vec<u8>>,
    /// Somebody has read since that a key is absent.
    absent: bool,
}

/// The keys that a transaction may make.
pub fn puts(txn: &Txn) -> Vec<Vec<u8>> {
    let writes = txn.ops.iter().flat_map(|op| match op {
        Op::Write(write) => std::slice::from_ref(write),
        Op::Choose { then, .. } => then,
    });
    let keys = writes.filter_map(|write| match write {
        Write::Put { key, .. } => Some(key.clone()),
        Write::Delete { .. } => None,
    });
    keys.collect()
}

impl LateWrites {
    /// A late write that would put these keys has left; its number.
    #[must_use]
    pub fn leaves(&self, keys: Vec<Vec<u8>>) -> u64 {
        let mut state = self.0.lock().unwrap();
        state.next += 1;
        let number = state.next;
        state.under_way.push(Late {
            number,
            keys,
            absent: false,
        });
        number
    }

    /// It has arrived; whether one of its keys was read as absent meanwhile.
    #[must_use]
    pub fn arrives(&self, number: u64) -> bool {
        let mut state = self.0.lock().unwrap();
        let place = state
            .under_way
            .iter()
            .position(|late| late.number == number);
        place.is_some_and(|place| state.under_way.swap_remove(place).absent)
    }

    /// Somebody was told what stands in a span.
    pub fn read(&self, span: &Span, page: &Page) {
        let mut state = self.0.lock().unwrap();
        for late in &mut state.under_way {
            late.absent |= late.keys.iter().any(|key| {
                span.contains(key)
                    && !page.entries.iter().any(|entry| entry.key == *key)
                    && (!page.more || page.entries.last().is_some_and(|last| last.key > *key))
            });
        }
    }
}
