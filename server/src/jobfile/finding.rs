//! What is wrong with a job file, where, and what to write instead.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::tree::Pos;

/// One thing to mend. Shown as `FILE:LINE:COLUMN: JOB: KEY: MESSAGE`, the hint on its own line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The file as the user named it; `-` for standard input.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// From 1; 0 when there is no file.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub line: u32,
    /// From 1, in characters.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub column: u32,
    /// The job it is in, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The key inside the job: `retry.attempts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Finding {
    pub(crate) fn new(file: &str, pos: Pos, message: impl Into<String>) -> Self {
        Self {
            file: file.into(),
            line: pos.line,
            column: pos.column,
            job: None,
            path: None,
            message: message.into(),
            hint: None,
        }
    }

    /// A finding in something that came from no file.
    pub fn without_place(message: impl Into<String>) -> Self {
        Self::new("", Pos { line: 0, column: 0 }, message)
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        }
        for part in [&self.job, &self.path].into_iter().flatten() {
            write!(f, "{part}: ")?;
        }
        f.write_str(&self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "\n    hint: {hint}")?;
        }
        Ok(())
    }
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
