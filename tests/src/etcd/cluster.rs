//! A real etcd of several members, each of which can be killed, paused and started again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::member::Member;
use super::{HOW_TO_GET_IT, PATIENCE, find};
use crate::leash::Signal;

/// The members of one cluster.
#[derive(Debug)]
pub struct EtcdCluster {
    binary: PathBuf,
    members: Vec<Member>,
    options: Vec<String>,
    _place: TempDir,
}

impl EtcdCluster {
    /// A cluster of which nothing runs yet, so that others can be there before it.
    ///
    /// # Panics
    /// When there is no etcd.
    #[must_use]
    pub fn new(members: usize) -> Self {
        let place = tempfile::tempdir().unwrap();
        let members = (0..members)
            .map(|i| Member::new(place.path().join(format!("member-{i}"))))
            .collect();
        Self {
            binary: find().unwrap_or_else(|| panic!("{HOW_TO_GET_IT}")),
            members,
            options: Vec::new(),
            _place: place,
        }
    }

    /// A cluster that serves.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start(members: usize) -> Self {
        let mut cluster = Self::new(members);
        cluster.start_all();
        cluster
    }

    /// How many there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// Starts every member that does not run, and waits until all of them serve.
    ///
    /// # Panics
    /// When they do not.
    pub fn start_all(&mut self) {
        for i in 0..self.members.len() {
            if !self.members[i].runs() {
                self.start_one(i);
            }
        }
        for member in &self.members {
            member.wait().unwrap();
        }
    }

    /// Starts a member again on what it has on disk, without waiting for it.
    pub fn start_one(&mut self, i: usize) {
        let all: Vec<String> = self.members.iter().map(Member::introduction).collect();
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        self.members[i].start(&self.binary, &all.join(","), &options);
    }

    /// Kills a member; what it wrote stays.
    pub fn kill(&mut self, i: usize) {
        self.members[i].kill();
    }

    /// Kills all of them.
    pub fn kill_all(&mut self) {
        self.members.iter_mut().for_each(Member::kill);
    }

    /// The ports of those that run.
    #[must_use]
    pub fn live_ports(&self) -> Vec<u16> {
        let live = self.members.iter().filter(|member| member.runs());
        live.map(|member| member.client).collect()
    }

    /// Whether a member runs.
    #[must_use]
    pub fn runs(&self, i: usize) -> bool {
        self.members[i].runs()
    }

    /// Stops a member where it is, or lets it go on.
    ///
    /// # Panics
    /// When it does not run.
    pub fn pause(&self, i: usize, paused: bool) {
        self.members[i].signal(if paused { Signal::Stop } else { Signal::Cont });
    }

    /// Where clients of a member connect.
    #[must_use]
    pub fn port(&self, i: usize) -> u16 {
        self.members[i].client
    }

    /// Where clients connect.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        let url = |member: &Member| format!("http://127.0.0.1:{}", member.client);
        self.members.iter().map(url).collect()
    }

    /// The member that leads.
    ///
    /// # Panics
    /// When none does for half a minute.
    #[must_use]
    pub fn leader(&self) -> usize {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let leading = |member: &Member| {
                member.runs() && member.ids().is_some_and(|(own, leader)| own == leader)
            };
            if let Some(leader) = self.members.iter().position(leading) {
                return leader;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("no member leads: {}", self.members[0].log());
    }

    /// Hands the lead to another member; the one that leads then.
    ///
    /// # Errors
    /// When nobody takes it, because the other one has only just come back, for example.
    pub fn move_leader(&self) -> Result<usize, String> {
        let from = self.leader();
        let to = (from + 1) % self.members.len();
        let (target, _) = self.members[to].ids().ok_or("the other does not serve")?;
        let asked = json!({ "targetID": target });
        self.members[from].tell("/v3/maintenance/transfer-leadership", &asked)?;
        Ok(self.leader())
    }

    /// A request to the gateway of the first member that runs, and the JSON of its answer.
    ///
    /// # Errors
    /// When it is refused, or not answered.
    pub fn tell(&self, path: &str, body: &Value) -> Result<Value, String> {
        let member = self.members.iter().find(|member| member.runs());
        member.ok_or("nobody runs")?.tell(path, body)
    }
}
