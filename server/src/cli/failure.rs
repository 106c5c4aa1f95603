//! How a command ends when it does not end well: a message that says what to do, and an exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// Exit codes; scripts depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    /// Findings, differences, or a run that failed.
    Findings = 1,
    /// Wrong use or invalid input.
    Usage = 2,
    NotFound = 3,
    Conflict = 4,
    /// Not allowed.
    Denied = 5,
    /// The server or its store is not reachable.
    Unreachable = 6,
    TimedOut = 7,
    /// A bug of this program.
    Bug = 70,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a command ended early.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// Shown on standard error; empty: everything has been said.
    pub(crate) message: String,
    /// What to do about it.
    pub(crate) hint: Option<String>,
}

/// What a command returns.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
            hint: None,
        }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Ends with a code; what there is to say has been said.
    pub(crate) fn silent(exit: Exit) -> Self {
        Self::new(exit, "")
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "\n  {}", hint.replace('\n', "\n  "))?;
        }
        Ok(())
    }
}

/// Writing to a stream failed. A reader that has seen enough (`| head`) is no error.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::silent(Exit::Done)
        } else {
            Self::new(Exit::Bug, format!("cannot write the answer: {error}"))
        }
    }
}
