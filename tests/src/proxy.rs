//! A TCP proxy between a store and its users, for what networks do: lose what is sent, deliver it
//! late, break connections. It also counts the calls that its users make, whatever becomes of them.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So long a server keeps a connection whose client has gone: a server that sees the end of a
/// connection gives up what it has just read from it, and then a late request would be a lost one.
const LINGER: Duration = Duration::from_millis(500);

/// Passes everything on until told otherwise. Dropping it breaks all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    to: SocketAddr,
    weather: Mutex<Weather>,
    links: Mutex<Vec<Arc<Link>>>,
    calls: AtomicUsize,
    over: AtomicBool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Weather {
    cut_requests: bool,
    cut_replies: bool,
    delay: Duration,
}

/// A client's connection and the server's.
#[derive(Debug)]
struct Link {
    client: TcpStream,
    server: TcpStream,
    /// Bytes were lost: nothing that comes after them makes sense any more.
    holed: AtomicBool,
}

impl Proxy {
    /// Listens on a free port of this host and passes on to another one.
    ///
    /// # Panics
    /// When there is no free port.
    #[must_use]
    pub fn start(to: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            to: ([127, 0, 0, 1], to).into(),
            weather: Mutex::default(),
            links: Mutex::default(),
            calls: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.over.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(client) = client {
                    // A server that does not listen is for the client to notice.
                    let _ = accepting.link(client);
                }
            }
        });
        Self { address, shared }
    }

    /// Where clients connect.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on what clients send is lost.
    pub fn cut_requests(&self) {
        self.shared.change(|weather| weather.cut_requests = true);
    }

    /// From now on what the server answers is lost.
    pub fn cut_replies(&self) {
        self.shared.change(|weather| weather.cut_replies = true);
    }

    /// From now on what clients send arrives so much later, even after they have gone.
    pub fn delay(&self, by: Duration) {
        self.shared.change(|weather| weather.delay = by);
    }

    /// Passes everything on again. Connections that lost something are closed; what is on its way
    /// late still arrives, late.
    pub fn heal(&self) {
        self.shared.change(|weather| *weather = Weather::default());
        self.shared
            .close(|link| link.holed.load(Ordering::SeqCst), false);
    }

    /// Closes all connections on the side of the clients. What they have sent still arrives.
    pub fn kill_connections(&self) {
        self.shared.close(|_| true, false);
    }

    /// How many calls clients have begun: streams of HTTP/2, each counted as it comes here, also
    /// when it is lost afterwards.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.shared.calls.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        self.shared.close(|_| true, true);
        // Wakes the listener; nobody is there if it fails.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Weather)) {
        change(&mut self.weather.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn weather(&self) -> Weather {
        *self.weather.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, which: impl Fn(&Link) -> bool, both: bool) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|link| {
            let closed = which(link);
            if closed {
                // It may be closed already.
                let _ = link.client.shutdown(Shutdown::Both);
            }
            if closed && both {
                let _ = link.server.shutdown(Shutdown::Both);
            }
            !closed
        });
    }

    fn link(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        let server = TcpStream::connect(self.to)?;
        // Small messages must not wait for each other's acknowledgement.
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let link = Arc::new(Link {
            client,
            server,
            holed: AtomicBool::new(false),
        });
        self.links
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::clone(&link));
        let (sender, late) = channel();
        let (requests, replies) = ((Arc::clone(self), Arc::clone(&link)), Arc::clone(self));
        let deliver = Arc::clone(&link);
        std::thread::spawn(move || requests.0.read_requests(&requests.1, &sender));
        std::thread::spawn(move || deliver_requests(&deliver, &late));
        std::thread::spawn(move || replies.pass_replies(&link));
        Ok(())
    }

    fn read_requests(&self, link: &Link, on: &Sender<(Instant, Vec<u8>)>) {
        let mut buffer = vec![0; 64 << 10];
        let mut frames = Frames::default();
        let mut holed = false;
        while let Ok(count @ 1..) = (&link.client).read(&mut buffer) {
            let bytes = &buffer[..count];
            self.calls
                .fetch_add(frames.headers(bytes), Ordering::SeqCst);
            let weather = self.weather();
            if weather.cut_requests || holed {
                holed = true;
                link.holed.store(true, Ordering::SeqCst);
            } else if on
                .send((Instant::now() + weather.delay, bytes.to_vec()))
                .is_err()
            {
                break;
            }
        }
        let _ = link.client.shutdown(Shutdown::Both);
    }

    fn pass_replies(&self, link: &Link) {
        let mut buffer = vec![0; 64 << 10];
        let mut holed = false;
        while let Ok(count @ 1..) = (&link.server).read(&mut buffer) {
            if self.weather().cut_replies || holed {
                holed = true;
                link.holed.store(true, Ordering::SeqCst);
            } else {
                // The client may have gone; the server must not notice that here.
                let _ = (&link.client).write_all(&buffer[..count]);
            }
        }
        let _ = link.client.shutdown(Shutdown::Both);
    }
}

fn deliver_requests(link: &Link, late: &Receiver<(Instant, Vec<u8>)>) {
    for (due, bytes) in late {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if (&link.server).write_all(&bytes).is_err() {
            break;
        }
    }
    std::thread::sleep(LINGER);
    let _ = link.server.shutdown(Shutdown::Both);
}

/// Finds the frames of HTTP/2 in a stream of bytes that comes in pieces.
#[derive(Debug, Default)]
struct Frames {
    /// Bytes of the connection's preface that have passed.
    preface: usize,
    head: Vec<u8>,
    /// Bytes of the current frame that are still to come.
    rest: usize,
}

impl Frames {
    const PREFACE: usize = 24;
    const HEAD: usize = 9;
    const HEADERS: u8 = 1;

    /// How many frames that begin a call have begun in these bytes.
    fn headers(&mut self, mut bytes: &[u8]) -> usize {
        let mut found = 0;
        while let Some((&first, others)) = bytes.split_first() {
            if self.preface < Self::PREFACE {
                self.preface += 1;
                bytes = others;
            } else if self.rest > 0 {
                let skip = self.rest.min(bytes.len());
                self.rest -= skip;
                bytes = &bytes[skip..];
            } else {
                self.head.push(first);
                bytes = others;
                if let [a, b, c, kind, ..] = self.head[..]
                    && self.head.len() == Self::HEAD
                {
                    self.rest = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                    found += usize::from(kind == Self::HEADERS);
                    self.head.clear();
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that says back what it hears.
    fn echo() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                std::thread::spawn(move || {
                    let mut buffer = [0; 64];
                    while let Ok(count @ 1..) = (&client).read(&mut buffer) {
                        if (&client).write_all(&buffer[..count]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        port
    }

    fn connect(proxy: &Proxy) -> TcpStream {
        let client = TcpStream::connect(proxy.address).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        client
    }

    /// What comes back for `word`: `None` when nothing does within the time.
    fn said_back(client: &TcpStream, word: &[u8], within: Duration) -> Option<Vec<u8>> {
        let mut client = client;
        client.set_read_timeout(Some(within)).unwrap();
        client.write_all(word).unwrap();
        let mut answer = vec![0; word.len()];
        client.read_exact(&mut answer).ok().map(|()| answer)
    }

    const LONG: Duration = Duration::from_secs(5);
    const SHORT: Duration = Duration::from_millis(100);

    #[test]
    fn what_is_cut_is_lost_and_healing_closes_what_lost_it() {
        let proxy = Proxy::start(echo());
        for cut in [Proxy::cut_requests, Proxy::cut_replies] {
            let (holed, whole) = (connect(&proxy), connect(&proxy));
            assert_eq!(said_back(&holed, b"one", LONG), Some(b"one".into()));
            assert_eq!(said_back(&whole, b"one", LONG), Some(b"one".into()));
            cut(&proxy);
            assert_eq!(said_back(&holed, b"two", SHORT), None);
            proxy.heal();
            assert_eq!((&holed).read(&mut [0; 8]).unwrap(), 0, "closed");
            assert_eq!(said_back(&whole, b"two", LONG), Some(b"two".into()));
        }
    }

    #[test]
    fn what_is_delayed_comes_late() {
        let proxy = Proxy::start(echo());
        let client = connect(&proxy);
        proxy.delay(SHORT * 2);
        let start = Instant::now();
        assert_eq!(said_back(&client, b"one", LONG), Some(b"one".into()));
        assert!(start.elapsed() >= SHORT * 2);
        proxy.kill_connections();
        assert!(matches!((&client).read(&mut [0; 8]), Ok(0) | Err(_)));
    }

    #[test]
    fn calls_are_counted_however_their_bytes_are_cut() {
        let frame = |kind: u8, payload: usize| {
            let length = u8::try_from(payload).unwrap();
            let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 1];
            frame.resize(frame.len() + payload, Frames::HEADERS);
            frame
        };
        let mut bytes = vec![1; Frames::PREFACE];
        for kind in [4, Frames::HEADERS, 0, 8, Frames::HEADERS, 3] {
            bytes.extend(frame(kind, usize::from(kind) * 20));
        }
        for size in 1..bytes.len() {
            let mut frames = Frames::default();
            let found: usize = bytes.chunks(size).map(|some| frames.headers(some)).sum();
            assert_eq!(found, 2, "in pieces of {size}");
        }
    }
}
