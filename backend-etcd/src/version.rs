//! Which releases of etcd may keep our state.

use std::fmt;

/// A release of etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

/// What is to be done about a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Nothing.
    Fine,
    /// Works, but lacks a fix that a person should know of.
    Outdated(Version),
    /// May lose acknowledged writes when it is killed.
    Corrupts,
}

impl Version {
    const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }

    /// Reads `3.5.9`, `3.6.0-rc.1` and the like.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let core = text.split(['-', '+']).next()?;
        let mut parts = core.split('.').map(|part| part.parse().ok());
        let version = Self::new(parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(version)
    }

    pub(crate) fn advice(self) -> Advice {
        // 3.5.0 to 3.5.2 can corrupt their data when they are killed under load.
        if (Self::new(3, 5, 0)..=Self::new(3, 5, 2)).contains(&self) {
            return Advice::Corrupts;
        }
        // Before these a member can be brought down by requests (CVE-2026-44283).
        let mended = match (self.major, self.minor) {
            (..3, _) | (3, ..=4) => Self::new(3, 4, 44),
            (3, 5) => Self::new(3, 5, 30),
            _ => Self::new(3, 6, 11),
        };
        if self < mended {
            Advice::Outdated(mended)
        } else {
            Advice::Fine
        }
    }
}

/// The release to upgrade to from `version`, where that one has a known fault.
#[must_use]
pub fn upgrade_of(version: &str) -> Option<String> {
    match Version::parse(version)?.advice() {
        Advice::Fine => None,
        Advice::Outdated(mended) => Some(mended.to_string()),
        Advice::Corrupts => Some("3.5.30".into()),
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(text: &str) -> Advice {
        Version::parse(text).unwrap().advice()
    }

    #[test]
    fn releases_that_corrupt_their_data_are_told_from_those_that_are_merely_old() {
        for corrupt in ["3.5.0", "3.5.1", "3.5.2", "3.5.0-rc.1"] {
            assert_eq!(advice(corrupt), Advice::Corrupts, "{corrupt}");
        }
        for (old, mended) in [
            ("3.3.27", "3.4.44"),
            ("3.4.23", "3.4.44"),
            ("3.4.43", "3.4.44"),
            ("3.5.3", "3.5.30"),
            ("3.5.29", "3.5.30"),
            ("3.6.10", "3.6.11"),
        ] {
            let mended = Version::parse(mended).unwrap();
            assert_eq!(advice(old), Advice::Outdated(mended), "{old}");
        }
        for fine in ["3.4.44", "3.5.30", "3.6.11", "3.7.0", "4.0.0"] {
            assert_eq!(advice(fine), Advice::Fine, "{fine}");
        }
    }

    #[test]
    fn the_release_to_upgrade_to_has_no_known_fault() {
        for old in ["3.3.27", "3.4.23", "3.5.1", "3.5.9", "3.6.0"] {
            let mended = upgrade_of(old).unwrap();
            assert_eq!(upgrade_of(&mended), None, "{old}");
        }
    }

    #[test]
    fn what_is_not_a_release_is_not_guessed() {
        for text in ["", "3", "3.5", "3.5.x", "three", "3.5.1.2"] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }
}
