//! Finding and ending processes.
//!
//! A process group holds only those who stay in it: one `setsid` and a process has left. But on
//! Linux a supervisor is the *subreaper* of everything below it, so whoever loses its parent
//! becomes the supervisor's child and can still be found by walking down from it.

use std::collections::BTreeSet;
use std::fs;

use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};

/// One line of the system's table of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its id.
    pub(crate) pid: i32,
    /// Who started it, or adopted it.
    pub(crate) parent: i32,
    /// Its process group.
    pub(crate) group: i32,
    /// Its session.
    pub(crate) session: i32,
    /// Whether it can still do something; one that has ended but was not waited for cannot.
    pub(crate) alive: bool,
}

/// Everything below this process that is still alive. Empty on systems without `/proc`.
pub(crate) fn descendants() -> Vec<Process> {
    below(getpid().as_raw_nonzero().get(), &table())
}

fn below(root: i32, table: &[Process]) -> Vec<Process> {
    let mut family = BTreeSet::from([root]);
    // The table is not sorted by descent, so go over it until nobody is added.
    loop {
        let before = family.len();
        for process in table {
            if family.contains(&process.parent) {
                family.insert(process.pid);
            }
        }
        if family.len() == before {
            break;
        }
    }
    table
        .iter()
        .filter(|p| p.alive && p.pid != root && family.contains(&p.pid))
        .copied()
        .collect()
}

fn table() -> Vec<Process> {
    ids()
        .filter_map(|pid| {
            // It may have ended since the directory was read.
            parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
        })
        .collect()
}

fn ids() -> impl Iterator<Item = i32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Reads `/proc/PID/stat`. The second field is the program's name in parentheses and may itself
/// hold spaces and parentheses; nothing after it does.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<i32>().ok();
    // A process whose first thread has ended looks dead until the last one has.
    let ended = matches!(*fields.first()?, "Z" | "X" | "x") && number(17)? <= 1;
    Some(Process {
        pid,
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        alive: !ended,
    })
}

/// Sends a signal to one process. That it has ended already is not worth a word.
pub(crate) fn signal(pid: i32, signal: Signal) {
    // 0 and below would mean whole groups, the caller's own among them.
    if let Some(pid) = (pid > 1).then(|| Pid::from_raw(pid)).flatten() {
        let _ = kill_process(pid, signal);
    }
}

/// Sends a signal to a whole group at once.
pub(crate) fn signal_group(group: i32, signal: Signal) {
    if let Some(group) = (group > 1).then(|| Pid::from_raw(group)).flatten() {
        let _ = kill_process_group(group, signal);
    }
}

/// All living processes of a session except the one that opened it, and all in whose environment
/// each of the entries (`NAME=value`) stands: a command and what it started, as long as it has
/// not both left the session and emptied its environment. For the node, when the supervisor that
/// knew them is gone. The session's id must not have been given to somebody else.
pub(crate) fn remains(session: Option<i32>, entries: &[String]) -> Vec<Process> {
    let marked = |pid: i32| {
        fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| {
            entries
                .iter()
                .all(|entry| environ.split(|&b| b == 0).any(|e| e == entry.as_bytes()))
        })
    };
    table()
        .into_iter()
        .filter(|p| p.alive && Some(p.pid) != session)
        .filter(|p| Some(p.session) == session || marked(p.pid))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32, alive: bool) -> Process {
        Process {
            pid,
            parent,
            group: pid,
            session: 1,
            alive,
        }
    }

    #[test]
    fn stat_is_read_whatever_the_program_is_called() {
        let line = "4242 (a) R 1 (b)) S 17 4242 17 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 5";
        let expected = Process {
            pid: 4242,
            parent: 17,
            group: 4242,
            session: 17,
            alive: true,
        };
        assert_eq!(parse(4242, line), Some(expected));
    }

    #[test]
    fn a_zombie_is_dead_only_when_its_last_thread_is() {
        let stat = |threads| format!("7 (x) Z 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 5");
        assert!(!parse(7, &stat(1)).unwrap().alive);
        assert!(parse(7, &stat(2)).unwrap().alive);
        assert_eq!(parse(7, "7 (x)"), None);
        assert_eq!(parse(7, ""), None);
    }

    #[test]
    fn descent_does_not_depend_on_the_order_of_the_table() {
        let table = [
            process(40, 30, true),
            process(30, 20, false),
            process(20, 10, true),
            process(10, 1, true),
            process(50, 1, true),
        ];
        let found: Vec<i32> = below(10, &table).iter().map(|p| p.pid).collect();
        assert_eq!(found, [40, 20]);
    }

    #[test]
    fn this_process_is_in_the_table() {
        let own = getpid().as_raw_nonzero().get();
        assert!(table().iter().any(|p| p.pid == own && p.alive));
    }
}
