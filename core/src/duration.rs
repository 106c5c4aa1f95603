//! Durations as people write them: `500ms`, `30s`, `5m`, `1h 30m`, `30d`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration in whole milliseconds, written as text in files and JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(u64);

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is not a duration: {reason}; write a number and a unit, such as 500ms, 30s, 5m, 1h30m or 30d"
)]
pub struct DurationError {
    text: String,
    reason: String,
}

impl Millis {
    /// A duration of so many milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms)
    }

    /// A duration of so many seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs * 1_000)
    }

    /// Its length in milliseconds.
    #[must_use]
    pub const fn ms(self) -> u64 {
        self.0
    }

    /// Its length in milliseconds, for arithmetic with instants. At most 1000 years, so it fits.
    #[must_use]
    pub const fn ms_i64(self) -> i64 {
        self.0.cast_signed()
    }
}

/// The longest duration that is accepted: 1000 years.
const MAX_MS: u64 = 1_000 * 366 * 86_400_000;

impl FromStr for Millis {
    type Err = DurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = |reason: String| DurationError {
            text: text.chars().take(64).collect(),
            reason,
        };
        let parsed = humantime::parse_duration(text.trim()).map_err(|e| fail(e.to_string()))?;
        let ms = u64::try_from(parsed.as_millis()).unwrap_or(u64::MAX);
        if !parsed.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(fail("finer than a millisecond".into()));
        }
        if ms > MAX_MS {
            return Err(fail("longer than 1000 years".into()));
        }
        Ok(Self(ms))
    }
}

impl From<Millis> for Duration {
    fn from(millis: Millis) -> Self {
        Self::from_millis(millis.0)
    }
}

impl fmt::Display for Millis {
    /// The shortest exact form, largest units first: `1h30m`, `90d`, `1s500ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 5] = [
            (86_400_000, "d"),
            (3_600_000, "h"),
            (60_000, "m"),
            (1_000, "s"),
            (1, "ms"),
        ];
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        for (length, unit) in UNITS {
            if rest >= length {
                write!(f, "{}{unit}", rest / length)?;
                rest %= length;
            }
        }
        Ok(())
    }
}

impl Serialize for Millis {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Millis {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_what_people_write() {
        for (text, ms, written) in [
            ("500ms", 500, "500ms"),
            ("90s", 90_000, "1m30s"),
            ("1h 30m", 5_400_000, "1h30m"),
            ("30d", 2_592_000_000, "30d"),
            ("0s", 0, "0s"),
        ] {
            let millis: Millis = text.parse().unwrap();
            assert_eq!((millis.ms(), millis.to_string().as_str()), (ms, written));
            assert_eq!(millis.to_string().parse::<Millis>().unwrap(), millis);
        }
    }

    #[test]
    fn refuses_what_is_no_duration() {
        for text in ["", "5", "5 parsecs", "-1s", "1us", "99999999y", "∞"] {
            assert!(text.parse::<Millis>().is_err(), "{text}");
        }
    }
}
