//! A real etcd for a test: its own process, ports and directory, and its end with the test.

mod cluster;
mod election;
mod member;
mod pool;

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::leash::Signal;
use member::Member;

pub use cluster::EtcdCluster;
pub use election::first_write;
pub use pool::Pool;

/// So long may an etcd take to elect itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// Said when there is no etcd: a store that is not tested must not look like one that passed.
pub const HOW_TO_GET_IT: &str = "etcd is not installed: run `cargo xtask etcd-install`, or \
    `apt-get install etcd-server`, or put an etcd of 3.4 or later on the PATH";

/// A running etcd of one member. Dropping it kills it.
#[derive(Debug)]
pub struct Etcd {
    member: Member,
    _place: TempDir,
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
            let place = tempfile::tempdir().unwrap();
            let mut member = Member::new(place.path().to_owned());
            member.start(&binary, &member.introduction(), options);
            match member.wait() {
                Ok(()) => {
                    return Self {
                        member,
                        _place: place,
                    };
                }
                Err(why) => failures.push(why),
            }
        }
        panic!("no etcd starts: {}", failures.join("\n"));
    }

    /// One HTTP request to etcd's gateway; its whole answer.
    ///
    /// # Errors
    /// When there is none.
    pub fn ask(&self, method: &str, path: &str, token: &str, body: &str) -> Result<String, String> {
        self.member.ask(method, path, token, body)
    }

    /// Where clients connect.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.member.client)
    }

    /// Where clients connect, as an address.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.member.client
    }

    /// Its process.
    ///
    /// # Panics
    /// When it is gone.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.member.pid()
    }

    /// Stops the process where it is, or lets it go on.
    ///
    /// # Panics
    /// When it is gone.
    pub fn pause(&self, paused: bool) {
        self.member
            .signal(if paused { Signal::Stop } else { Signal::Cont });
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
