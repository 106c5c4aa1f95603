//! Ports for servers that are stopped and started again.
//!
//! What can go wrong: a port of the range that the system gives to outgoing connections is free
//! now and taken when the server comes back. Worse, a client that tries a dead port of that range
//! again and again is some day given that very port as its own, and talks to itself.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

/// Below the range of outgoing connections, as Linux comes.
const RANGE: std::ops::Range<u64> = 10_000..32_000;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port that nobody listens at, and that is given only once in this process.
///
/// # Panics
/// When a thousand are taken.
#[must_use]
pub fn free_port() -> u16 {
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..1_000 {
        // Seeded by the system, so that other processes look elsewhere.
        let random = std::hash::RandomState::new().build_hasher().finish();
        let port = RANGE.start + random % (RANGE.end - RANGE.start);
        let port = u16::try_from(port).expect("a port");
        if !given.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            given.insert(port);
            return port;
        }
    }
    panic!("no port is free");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice_nor_while_it_is_taken() {
        let ports: BTreeSet<u16> = (0..200).map(|_| free_port()).collect();
        assert_eq!(ports.len(), 200);
        let holders: Vec<TcpListener> = ports
            .iter()
            .map(|port| TcpListener::bind(("127.0.0.1", *port)).unwrap())
            .collect();
        assert!((0..200).all(|_| !ports.contains(&free_port())));
        drop(holders);
    }
}
