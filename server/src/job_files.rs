//! How the node's job files stand, for whoever asks: `--jobs`, read at the start and on SIGHUP.

use std::sync::{Arc, Mutex, PoisonError};

/// What became of them when they were read last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// There are none, or no job is in them.
    #[default]
    Empty,
    /// They are being applied; the store or the node may not be ready yet.
    Applying,
    /// So many jobs of theirs are in force.
    Applied(usize),
    /// They were refused, and the cluster goes on with what it had.
    Refused(String),
}

/// Shared by who applies them and who tells.
#[derive(Clone, Debug, Default)]
pub(crate) struct JobFiles(Arc<Mutex<Standing>>);

impl JobFiles {
    pub(crate) fn set(&self, standing: Standing) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = standing;
    }

    pub(crate) fn standing(&self) -> Standing {
        let standing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        standing.clone()
    }

    /// Why they are not in force, if they were refused.
    pub(crate) fn refused(&self) -> Option<String> {
        match self.standing() {
            Standing::Refused(why) => Some(why),
            Standing::Empty | Standing::Applying | Standing::Applied(_) => None,
        }
    }
}
