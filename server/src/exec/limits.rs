//! How many files the node may have open.
//!
//! Each running command takes several of the node's file descriptors, and so does each client. The
//! usual soft limit of 1,024 is there for old programs that cannot count further, which the node is
//! not. But its commands may be such programs: they get the limit that the node was started with.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// As many as a node can make use of.
const ENOUGH: u64 = 65_536;

/// The soft limit that the node was started with, if it has been raised.
static ORIGINAL: OnceLock<u64> = OnceLock::new();

/// Raises the soft limit of this process as far as it may; commands keep the one it had.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(ENOUGH, |hard| hard.min(ENOUGH));
    let Some(soft) = limit.current.filter(|soft| *soft < most) else {
        return;
    };
    let raised = Rlimit {
        current: Some(most),
        ..limit
    };
    // Before anything is started with it: a command must never see the raised limit.
    let _ = ORIGINAL.set(soft);
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "cannot raise the limit of open files above {soft}");
    }
}

/// What the supervisor is told, if anything.
pub(super) fn original() -> Option<String> {
    ORIGINAL.get().map(u64::to_string)
}

/// The supervisor's part, before it starts anything.
pub(super) fn restore(told: Option<&str>) {
    let Some(soft) = told.and_then(|told| told.parse().ok()) else {
        return;
    };
    let limit = getrlimit(Resource::Nofile);
    // Lowering is always allowed.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(soft),
            ..limit
        },
    );
}
