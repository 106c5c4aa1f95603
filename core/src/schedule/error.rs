//! What is wrong with a schedule, where, and what to write instead.

use std::fmt;

/// A schedule that is refused.
///
/// Shown as `FIELD: MESSAGE (character N); HINT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleError {
    /// The key of the job file (`timezone`, `every`, ..) or, for a cron expression, the field of
    /// it (`minute`, `day of month`, ..; `cron` for the text as a whole).
    pub field: &'static str,
    /// 1-based position, in characters of that key's text, of the first character at fault.
    pub at: Option<usize>,
    /// How many characters are at fault; 0 when there is no position.
    pub len: usize,
    /// What is wrong, in words.
    pub message: String,
    /// What to write instead.
    pub hint: Option<String>,
}

impl ScheduleError {
    /// An error without a position.
    pub(crate) fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self {
            field,
            at: None,
            len: 0,
            message: message.into(),
            hint: None,
        }
    }

    /// The same error at `start` (0-based), `len` characters long.
    #[must_use]
    pub(crate) fn at(mut self, start: usize, len: usize) -> Self {
        self.at = Some(start + 1);
        self.len = len.max(1);
        self
    }

    /// The same error with advice.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)?;
        if let Some(at) = self.at {
            write!(f, " (character {at})")?;
        }
        if let Some(hint) = &self.hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ScheduleError {}

/// At most 40 characters of a text, safe to put into a message.
pub(crate) fn quote(text: &str) -> String {
    let shown: String = text.chars().take(40).flat_map(char::escape_debug).collect();
    let dots = if text.chars().nth(40).is_some() {
        "..."
    } else {
        ""
    };
    format!("`{shown}{dots}`")
}
