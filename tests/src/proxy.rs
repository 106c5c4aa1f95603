//! A wire between a node and a store that can be cut: one way or both, with or without the other
//! end hearing of it.
//!
//! It knows nothing of what passes, but for the calls that clients begin, which it counts. Bytes that
//! are held arrive later, as those of a network that comes back; bytes that are lost make their
//! connection useless, so it is ended when the wire is whole again.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use crate::frames::Frames;
use crate::sim::rng::Rng;

/// So long a server keeps the connection of a client that has gone, if something came late on it: a
/// server that sees the end of a connection gives up what it has just read from it, and then a late
/// request would be a lost one.
const LINGER: Duration = Duration::from_millis(500);

/// What one direction does with bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// Passes them on.
    #[default]
    Open,
    /// Keeps them, and passes them on later. Nobody hears of it: no end, no reset.
    Held,
    /// Loses them.
    Lost,
    /// Passes them on after a random time up to this.
    Slow(Duration),
    /// Passes requests on so much later, though their sender may have given up or gone by then.
    Late(Duration),
}

/// The two directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// Towards the store.
    pub requests: Way,
    /// Back.
    pub answers: Way,
}

impl Wire {
    /// A black hole: nothing passes, and nobody is told.
    pub const HELD: Self = Self {
        requests: Way::Held,
        answers: Way::Held,
    };
    /// Requests arrive and are handled; what comes back is lost.
    pub const ANSWERS_LOST: Self = Self {
        requests: Way::Open,
        answers: Way::Lost,
    };
    /// Requests arrive and are handled; what comes back comes later.
    pub const ANSWERS_HELD: Self = Self {
        requests: Way::Open,
        answers: Way::Held,
    };
    /// Nothing new arrives at the store; what it says is heard.
    pub const REQUESTS_HELD: Self = Self {
        requests: Way::Held,
        answers: Way::Open,
    };
    /// Nothing arrives at the store, ever; what it says is heard.
    pub const REQUESTS_LOST: Self = Self {
        requests: Way::Lost,
        answers: Way::Open,
    };

    /// What is asked arrives so much later, even if who asked has gone by then.
    #[must_use]
    pub fn requests_late(by: Duration) -> Self {
        Self {
            requests: Way::Late(by),
            answers: Way::Open,
        }
    }
}

/// A port of this host that stands for another one.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    to: u16,
    wire: Mutex<Wire>,
    changed: Condvar,
    over: AtomicBool,
    connections: Mutex<Vec<Arc<Connection>>>,
    calls: AtomicUsize,
    rng: Mutex<Rng>,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// Bytes of it are lost.
    spoiled: AtomicBool,
    /// Bytes of it come late, and are waited for when the client has gone.
    late: AtomicBool,
}

impl Connection {
    fn end(&self) {
        // Ended already, if it fails.
        let _ = self.client.shutdown(Shutdown::Both);
        if !self.late.load(Ordering::SeqCst) {
            let _ = self.server.shutdown(Shutdown::Both);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// A wire to a port of this host. The seed decides how slow a slow one is.
    ///
    /// # Panics
    /// When no port is free.
    #[must_use]
    pub fn start(to: u16, seed: u64) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            to,
            wire: Mutex::default(),
            changed: Condvar::new(),
            over: AtomicBool::new(false),
            connections: Mutex::default(),
            calls: AtomicUsize::new(0),
            rng: Mutex::new(Rng::new(seed)),
        });
        let accepting = Arc::clone(&shared);
        spawn(move || {
            for client in listener.incoming() {
                if accepting.over.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(client) = client {
                    accepting.connect(client);
                }
            }
        });
        Self { port, shared }
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where clients connect, as a URL.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// How many calls clients have begun: streams of HTTP/2, each counted as it comes here, also
    /// when it is lost afterwards.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.shared.calls.load(Ordering::SeqCst)
    }

    /// From now on. Connections that lost something end when nothing is lost any more.
    pub fn set(&self, wire: Wire) {
        *lock(&self.shared.wire) = wire;
        if wire.requests != Way::Lost && wire.answers != Way::Lost {
            self.end(|connection| connection.spoiled.load(Ordering::SeqCst));
        }
        self.shared.changed.notify_all();
    }

    /// Ends every connection, as a router that forgets them. What is on its way late still arrives.
    pub fn kill_connections(&self) {
        self.end(|_| true);
    }

    fn end(&self, which: impl Fn(&Connection) -> bool) {
        lock(&self.shared.connections).retain(|connection| {
            let ends = which(connection);
            if ends {
                connection.end();
            }
            !ends
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.kill_connections();
        self.shared.changed.notify_all();
        // Wakes the one who accepts; gone already, if it fails.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn connect(self: &Arc<Self>, client: TcpStream) {
        // Nobody at home: dropping the client says so.
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.to)) else {
            return;
        };
        // Small messages must not wait for each other's acknowledgement; slower, if it fails.
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let connection = Arc::new(Connection {
            client,
            server,
            spoiled: AtomicBool::new(false),
            late: AtomicBool::new(false),
        });
        lock(&self.connections).push(Arc::clone(&connection));
        let (on, requests) = channel();
        let (reading, answering) = (Arc::clone(self), Arc::clone(self));
        let (read, delivered) = (Arc::clone(&connection), Arc::clone(&connection));
        spawn(move || reading.read_requests(&read, &on));
        spawn(move || deliver_requests(&delivered, &requests));
        spawn(move || answering.pass_answers(&connection));
    }

    /// What becomes of bytes that have come: when they may go on, `None` for those that are lost.
    fn fate(&self, connection: &Connection, way: fn(&Wire) -> Way) -> Option<Instant> {
        match self.wait_while_held(way) {
            Way::Lost => {
                connection.spoiled.store(true, Ordering::SeqCst);
                return None;
            }
            Way::Slow(most) => {
                let most_us = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
                let us = lock(&self.rng).range(0, most_us);
                sleep(Duration::from_micros(us));
            }
            Way::Late(by) => {
                connection.late.store(true, Ordering::SeqCst);
                return Some(Instant::now() + by);
            }
            Way::Open | Way::Held => {}
        }
        Some(Instant::now())
    }

    fn read_requests(&self, connection: &Connection, on: &Sender<(Instant, Vec<u8>)>) {
        let mut buffer = [0; 16 << 10];
        let mut frames = Frames::default();
        let mut whole = true;
        loop {
            // The end of a stream is held back like its bytes.
            let count = (&connection.client).read(&mut buffer).unwrap_or(0);
            let bytes = &buffer[..count];
            self.calls.fetch_add(frames.calls(bytes), Ordering::SeqCst);
            let fate = self.fate(connection, |wire| wire.requests);
            // Nothing that follows a hole makes sense.
            whole &= fate.is_some();
            if count == 0 {
                return;
            }
            if let Some(due) = fate.filter(|_| whole)
                && on.send((due, bytes.to_vec())).is_err()
            {
                return;
            }
        }
    }

    fn pass_answers(&self, connection: &Connection) {
        let mut buffer = [0; 16 << 10];
        let mut whole = true;
        loop {
            let count = (&connection.server).read(&mut buffer).unwrap_or(0);
            whole &= self.fate(connection, |wire| wire.answers).is_some();
            if count == 0 {
                break;
            }
            // A client that has gone does not hear what comes of its late requests.
            let failed = whole && (&connection.client).write_all(&buffer[..count]).is_err();
            if failed && !connection.late.load(Ordering::SeqCst) {
                break;
            }
        }
        // Ended already, if it fails.
        let _ = connection.server.shutdown(Shutdown::Both);
        let _ = connection.client.shutdown(Shutdown::Both);
    }

    fn wait_while_held(&self, way: fn(&Wire) -> Way) -> Way {
        let mut wire = lock(&self.wire);
        while way(&wire) == Way::Held && !self.over.load(Ordering::SeqCst) {
            wire = self
                .changed
                .wait(wire)
                .unwrap_or_else(PoisonError::into_inner);
        }
        way(&wire)
    }
}

fn deliver_requests(connection: &Connection, requests: &Receiver<(Instant, Vec<u8>)>) {
    for (due, bytes) in requests {
        sleep(due.saturating_duration_since(Instant::now()));
        if (&connection.server).write_all(&bytes).is_err() {
            break;
        }
    }
    if connection.late.load(Ordering::SeqCst) {
        sleep(LINGER);
    }
    // Ended already, if it fails.
    let _ = connection.server.shutdown(Shutdown::Both);
    let _ = connection.client.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says back what it hears.
    fn echo() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        spawn(move || {
            for client in listener.incoming() {
                let mut from = client.unwrap();
                let mut to = from.try_clone().unwrap();
                spawn(move || std::io::copy(&mut from, &mut to));
            }
        });
        port
    }

    fn client(proxy: &Proxy) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream
    }

    fn hears(stream: &mut TcpStream, text: &str) {
        let mut heard = vec![0; text.len()];
        stream.read_exact(&mut heard).unwrap();
        assert_eq!(heard, text.as_bytes());
    }

    fn hears_nothing(stream: &mut TcpStream) {
        stream
            .set_read_timeout(Some(Duration::from_millis(200)))
            .unwrap();
        let error = stream.read(&mut [0; 8]).unwrap_err();
        let waits = matches!(
            error.kind(),
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
        );
        assert!(waits, "{error}");
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
    }

    #[test]
    fn what_is_held_arrives_later_and_in_order() {
        for held in [Wire::HELD, Wire::ANSWERS_HELD, Wire::REQUESTS_HELD] {
            let proxy = Proxy::start(echo(), 1);
            let mut stream = client(&proxy);
            stream.write_all(b"one").unwrap();
            hears(&mut stream, "one");
            proxy.set(held);
            stream.write_all(b"two").unwrap();
            stream.write_all(b"three").unwrap();
            hears_nothing(&mut stream);
            // Who connects meanwhile is not refused.
            let mut other = client(&proxy);
            other.write_all(b"x").unwrap();
            hears_nothing(&mut other);
            proxy.set(Wire::default());
            hears(&mut stream, "twothree");
            hears(&mut other, "x");
        }
    }

    #[test]
    fn what_is_lost_is_never_heard_and_ends_the_connection() {
        let proxy = Proxy::start(echo(), 1);
        let mut stream = client(&proxy);
        let mut other = client(&proxy);
        other.write_all(b"x").unwrap();
        hears(&mut other, "x");
        proxy.set(Wire::ANSWERS_LOST);
        stream.write_all(b"lost").unwrap();
        hears_nothing(&mut stream);
        proxy.set(Wire::default());
        assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)));
        // Another connection lost nothing, and lives.
        other.write_all(b"y").unwrap();
        hears(&mut other, "y");
    }

    #[test]
    fn connections_can_be_killed_and_made_again() {
        let proxy = Proxy::start(echo(), 1);
        let mut stream = client(&proxy);
        stream.write_all(b"one").unwrap();
        hears(&mut stream, "one");
        proxy.kill_connections();
        assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)));
        let mut again = client(&proxy);
        again.write_all(b"two").unwrap();
        hears(&mut again, "two");
        // A port that nobody listens at.
        let nobody = Proxy::start(1, 1);
        assert!(matches!(client(&nobody).read(&mut [0; 8]), Ok(0) | Err(_)));
    }

    #[test]
    fn a_slow_wire_keeps_the_order() {
        let proxy = Proxy::start(echo(), 7);
        let slow = Way::Slow(Duration::from_millis(30));
        proxy.set(Wire {
            requests: slow,
            answers: slow,
        });
        let mut stream = client(&proxy);
        for word in ["a", "b", "c", "d"] {
            stream.write_all(word.as_bytes()).unwrap();
        }
        hears(&mut stream, "abcd");
    }

    #[test]
    fn what_is_late_arrives_though_its_sender_has_gone() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap().port(), 1);
        let mut stream = client(&proxy);
        let (mut server, _) = listener.accept().unwrap();
        let late = Duration::from_millis(300);
        proxy.set(Wire::requests_late(late));
        let start = Instant::now();
        stream.write_all(b"one").unwrap();
        server
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        assert!(server.read(&mut [0; 8]).is_err(), "nothing yet");
        proxy.kill_connections();
        assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)));
        server
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        hears(&mut server, "one");
        assert!(start.elapsed() >= late);
        server.write_all(b"to nobody").unwrap();
        assert_eq!(server.read(&mut [0; 8]).unwrap(), 0, "ended in the end");
        assert!(start.elapsed() >= late + LINGER);
    }
}
