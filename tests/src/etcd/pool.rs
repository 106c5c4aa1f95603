//! Etcds for many tests, so that each has some for itself without starting them.

use std::sync::{Condvar, Mutex, PoisonError};

use super::Etcd;

/// Etcds for many tests, so that each has some for itself without starting them. What the last
/// user left in them is for the next one to clear.
#[derive(Debug)]
pub struct Pool {
    most: usize,
    state: Mutex<State>,
    given_back: Condvar,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Etcd>,
    lent: usize,
}

impl Pool {
    /// A pool of up to so many, started as they are needed.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self {
            most,
            state: Mutex::default(),
            given_back: Condvar::new(),
        }
    }

    /// Takes `N` of them at once (one after the other, two users could wait for each other), and
    /// blocks until there are as many.
    ///
    /// # Panics
    /// As [`Etcd::start`], and when asked for more than there are.
    pub fn take<const N: usize>(&self) -> [Etcd; N] {
        assert!(N <= self.most);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while self.most - state.lent < N {
            state = self
                .given_back
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.lent += N;
        let mut ready: Vec<Etcd> = (0..N).filter_map(|_| state.idle.pop()).collect();
        drop(state);
        // Should one not start, the others who wait must hear of it too.
        let counted = Counted {
            pool: self,
            count: N,
        };
        let taken = std::array::from_fn(|_| ready.pop().unwrap_or_else(Etcd::start));
        std::mem::forget(counted);
        taken
    }

    /// Gives one back.
    pub fn give_back(&self, etcd: Etcd) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.idle.push(etcd);
        drop(state);
        self.release(1);
    }

    fn release(&self, count: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.lent -= count;
        self.given_back.notify_all();
    }
}

/// Takes back what was counted as lent, when the lending fails.
struct Counted<'a> {
    pool: &'a Pool,
    count: usize,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.pool.release(self.count);
    }
}
