//! Why a directory could not be opened, and what a person can do about it.

use std::io;
use std::path::{Path, PathBuf};

/// The store was not opened; what lies in the directory was left as it was found.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process (or another store in this one) holds the directory.
    #[error(
        "{}: another punctual server is using this directory; \
         stop it or choose another directory", directory.display()
    )]
    InUse {
        /// The directory.
        directory: PathBuf,
    },
    /// A file does not hold what was written to it.
    #[error(
        "{}: damaged: {detail}. Way out: export what is still readable, \
         and import it into a fresh directory", file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The directory was written by a newer release.
    #[error(
        "{}: written by a newer punctual (records of version {found}, this one knows up to \
         {known}); upgrade this server, or export with the newer one", directory.display()
    )]
    Newer {
        /// The directory.
        directory: PathBuf,
        /// The version found.
        found: u8,
        /// The newest version that this release reads.
        known: u8,
    },
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// What was to be opened.
        path: PathBuf,
        /// Why it was not.
        source: io::Error,
    },
}

impl OpenError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }

    /// The same damage, found in a copy of this file.
    pub(crate) fn at(self, file: &Path) -> Self {
        match self {
            Self::Damaged { detail, .. } => Self::damaged(file, detail),
            other => other,
        }
    }

    pub(crate) fn damaged(file: &Path, detail: impl Into<String>) -> Self {
        Self::Damaged {
            file: file.to_path_buf(),
            detail: detail.into(),
        }
    }
}
