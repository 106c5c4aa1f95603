//! A real etcd for a test: its own process, ports and directory, and its end with the test.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// So long may an etcd take to elect itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// Said when there is no etcd: a store that is not tested must not look like one that passed.
pub const HOW_TO_GET_IT: &str = "etcd is not installed: run `cargo xtask etcd-install`, or \
    `apt-get install etcd-server`, or put an etcd of 3.4 or later on the PATH";

/// A shell holds etcd on a leash: it kills it when the pipe to this process closes, however this
/// process ends.
const LEASH: &str = r#"log=$1; shift
"$@" </dev/null >"$log" 2>&1 &
echo $!
exec >/dev/null
read -r _
kill -9 $!
wait
"#;

/// A running etcd of one member. Dropping it kills it.
#[derive(Debug)]
pub struct Etcd {
    client: u16,
    pid: u32,
    shell: Child,
    leash: Option<ChildStdin>,
    place: TempDir,
}

impl Etcd {
    /// Starts an etcd and waits until it serves.
    ///
    /// # Panics
    /// When there is none, or none that starts.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with more options of etcd's; `{client}` in them stands for the URL that it serves
    /// clients at.
    ///
    /// # Panics
    /// As [`Etcd::start`].
    #[must_use]
    pub fn start_with(options: &[&str]) -> Self {
        let binary = find().unwrap_or_else(|| panic!("{HOW_TO_GET_IT}"));
        let mut failures = Vec::new();
        // A port that was free may be taken by the time that etcd asks for it.
        for _ in 0..5 {
            match Self::try_start(&binary, options) {
                Ok(etcd) => return etcd,
                Err(why) => failures.push(why),
            }
        }
        panic!("no etcd starts: {}", failures.join("\n"));
    }

    fn try_start(binary: &Path, options: &[&str]) -> Result<Self, String> {
        let [client, peer] = free_ports();
        let place = tempfile::tempdir().unwrap();
        // Its name tells it from any other that might listen there.
        let name = format!("t{}-{client}-{peer}", std::process::id());
        let (client_url, peer_url) = (
            format!("http://127.0.0.1:{client}"),
            format!("http://127.0.0.1:{peer}"),
        );
        let mut shell = Command::new("sh")
            .args(["-c", LEASH, "sh"])
            .arg(place.path().join("log"))
            .arg(binary)
            .args(["--name", &name, "--logger", "zap", "--data-dir"])
            .arg(place.path().join("data"))
            .args(["--listen-client-urls", &client_url])
            .args(["--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url])
            .args(["--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("{name}={peer_url}")])
            .args(["--initial-cluster-token", &name])
            .args(options.iter().map(|o| o.replace("{client}", &client_url)))
            // Debian's 3.4 asks for this word on anything but amd64.
            .env("ETCD_UNSUPPORTED_ARCH", "arm64")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let leash = shell.stdin.take();
        let mut pid = String::new();
        BufReader::new(shell.stdout.take().unwrap())
            .read_line(&mut pid)
            .unwrap();
        let etcd = Self {
            client,
            pid: pid.trim().parse().unwrap(),
            shell,
            leash,
            place,
        };
        etcd.wait(&name)?;
        Ok(etcd)
    }

    fn wait(&self, name: &str) -> Result<(), String> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let healthy = self.ask("GET", "/health", "", "");
            if healthy.is_ok_and(|answer| answer.contains("\"health\":\"true\"")) {
                let members = self.ask("POST", "/v3/cluster/member/list", "", "{}")?;
                return if members.contains(name) {
                    Ok(())
                } else {
                    Err(format!("another etcd listens at {}", self.client))
                };
            }
            if !Path::new(&format!("/proc/{}", self.pid)).exists() && cfg!(target_os = "linux") {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Err(format!("etcd did not come up:\n{}", self.log()))
    }

    /// One HTTP request to etcd's gateway; its whole answer.
    ///
    /// # Errors
    /// When there is none.
    pub fn ask(&self, method: &str, path: &str, token: &str, body: &str) -> Result<String, String> {
        let authorization = match token {
            "" => String::new(),
            token => format!("Authorization: {token}\r\n"),
        };
        let talk = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.client))?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            write!(
                stream,
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
                 {authorization}Content-Length: {}\r\n\r\n{body}",
                body.len()
            )?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        talk().map_err(|error| error.to_string())
    }

    fn log(&self) -> String {
        let mut log = String::new();
        if let Ok(mut file) = File::open(self.place.path().join("log")) {
            // What cannot be read is missing in a message, no more.
            let _ = file.read_to_string(&mut log);
        }
        log
    }

    /// Where clients connect.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.client)
    }

    /// Where clients connect, as an address.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.client
    }

    /// Stops the process where it is, or lets it go on.
    ///
    /// # Panics
    /// When it is gone.
    pub fn pause(&self, paused: bool) {
        let signal = if paused { "-STOP" } else { "-CONT" };
        let status = Command::new("kill")
            .args([signal, &self.pid.to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        drop(self.leash.take());
        // Gone already, if it fails.
        let _ = self.shell.wait();
    }
}

/// `PUNCTUAL_ETCD` names one other than the system's.
fn find() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("PUNCTUAL_ETCD") {
        return Some(PathBuf::from(named)).filter(|named| named.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/bin".into(), "/usr/local/bin".into()])
        .map(|directory| directory.join("etcd"))
        .find(|candidate| candidate.is_file())
}

fn free_ports() -> [u16; 2] {
    // Held together, so that they differ.
    let holders = [(); 2].map(|()| TcpListener::bind(("127.0.0.1", 0)).unwrap());
    holders.map(|holder| holder.local_addr().unwrap().port())
}

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
