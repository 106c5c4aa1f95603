//! Misfires, deadlines and catch-up: what the policies make of each window, worked out anew from
//! the definitions and the window alone. (What operators do inside a window is left to the other
//! checkers.)

use std::collections::{BTreeMap, BTreeSet};

use punctual::bootstrap::DEFAULT_PARTITIONS;
use punctual::job::record::Window;
use punctual::job::run::SkipReason;
use punctual::job::spec::{JobSpec, Misfire};
use punctual::keys::partition_of;

use super::exactly_once::{Decided, decisions, immediate};
use super::history::{Change, History, Violation};
use super::lives::{JobLife, lives};
use super::oracle::{Occurrence, Verdict, occurrences};

/// Counting stops here.
const COUNT_LIMIT: u64 = 10_000;

/// What a policy makes of an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A run that stands for so many instants.
    Run(u64),
    /// Dropped, for this reason.
    Dropped(SkipReason),
}

/// A window that was finished.
struct Finished {
    window: Window,
    opened: u64,
    closed: u64,
}

/// Checks it.
#[must_use]
pub fn check(history: &History<'_>) -> Vec<Violation> {
    let windows = windows(history);
    let changed = changed(history);
    let mut decided = decisions(history);
    let mut violations = reopened(history);
    for ((id, uid), life) in lives(history) {
        let decided = decided.remove(&(id.clone(), uid)).unwrap_or_default();
        let seen = fates(history, &life, &decided);
        let changes = changed.get(&id).cloned().unwrap_or_default();
        let partition = partition_of(&id, DEFAULT_PARTITIONS);
        for finished in windows.get(&partition).map_or(&[][..], Vec::as_slice) {
            // The change that made the job is older than any window that it owes something in.
            if changes
                .range(finished.opened..=finished.closed)
                .next()
                .is_some()
            {
                continue;
            }
            let wanted = policy(finished.window, &stretches(history, &life, finished, &seen));
            for (at, fate) in wanted {
                if seen.get(&at).is_none_or(|(_, seen)| *seen != fate) {
                    violations.push(Violation::new(
                        "policies decide by the window",
                        format!(
                            "{id} at virtual {} ms: {fate:?} by {:?}, decided: {:?}",
                            history.virtual_ms(at),
                            finished.window,
                            seen.get(&at)
                        ),
                    ));
                }
            }
        }
    }
    violations
}

/// Whoever leads finishes a window as it was opened.
fn reopened(history: &History<'_>) -> Vec<Violation> {
    let changes = history.revisions.iter().flat_map(|revised| {
        let changes = revised.changes.iter();
        changes.map(move |change| (revised.revision, change))
    });
    let mut violations = Vec::new();
    for (revision, change) in changes {
        if let Change::Cursor {
            partition,
            before: Some(before),
            after: Some(after),
        } = change
            && before.record.is_open()
            && before.record.window != after.record.window
        {
            violations.push(Violation::new(
                "an open window is finished as it was opened",
                format!("partition {partition}, revision {revision}: {before:?} -> {after:?}"),
            ));
        }
    }
    violations
}

fn windows(history: &History<'_>) -> BTreeMap<u16, Vec<Finished>> {
    let mut opened: BTreeMap<u16, (Window, u64)> = BTreeMap::new();
    let mut all: BTreeMap<u16, Vec<Finished>> = BTreeMap::new();
    for revised in &history.revisions {
        for change in &revised.changes {
            let Change::Cursor {
                partition,
                before: Some(_),
                after: Some(after),
            } = change
            else {
                continue;
            };
            let (window, since) = opened
                .remove(partition)
                .filter(|(window, _)| *window == after.record.window)
                .unwrap_or((after.record.window, revised.revision));
            if after.record.is_open() {
                opened.insert(*partition, (window, since));
            } else {
                all.entry(*partition).or_default().push(Finished {
                    window,
                    opened: since,
                    closed: revised.revision,
                });
            }
        }
    }
    all
}

/// When each job was changed.
fn changed(history: &History<'_>) -> BTreeMap<String, BTreeSet<u64>> {
    let mut all: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for revised in &history.revisions {
        for change in &revised.changes {
            if let Change::Job { id, .. } = change {
                all.entry(id.clone()).or_default().insert(revised.revision);
            }
        }
    }
    all
}

/// What became of each instant, and at which revision.
fn fates(
    history: &History<'_>,
    life: &JobLife,
    decisions: &[Decided],
) -> BTreeMap<i64, (u64, Fate)> {
    let instants = |from_ms: i64, until_ms: i64| {
        life.periods
            .iter()
            .enumerate()
            .flat_map(move |(index, period)| {
                let end = life.periods.get(index + 1).map_or(i64::MAX, |p| p.from_ms);
                let spec = history.spec(&life.id, period.generation, period.revision);
                let (from, until) = (from_ms.max(period.from_ms), until_ms.min(end));
                let found = spec.and_then(|spec| occurrences(spec, life.created_ms, from, until));
                found
                    .unwrap_or_default()
                    .into_iter()
                    .map(|found| found.at_ms)
            })
    };
    let mut fates = BTreeMap::new();
    for decided in decisions.iter().filter(|d| !immediate(history, life, d)) {
        match decided.skipped {
            None | Some(SkipReason::Overlap) => {
                let fate = Fate::Run(decided.count);
                fates.insert(decided.at_ms, (decided.revision, fate));
            }
            Some(reason) => {
                let range = instants(decided.from_ms, decided.at_ms + 1);
                let fate = (decided.revision, Fate::Dropped(reason));
                fates.extend(range.map(|at| (at, fate)));
            }
        }
    }
    fates
}

/// A definition's part of a window.
struct Stretch<'a> {
    spec: &'a JobSpec,
    paused: bool,
    instants: Vec<Occurrence>,
}

fn stretches<'a>(
    history: &'a History<'_>,
    life: &JobLife,
    finished: &Finished,
    seen: &BTreeMap<i64, (u64, Fate)>,
) -> Vec<Stretch<'a>> {
    let Window { from_ms, until_ms } = finished.window;
    let mut all = Vec::new();
    for (index, period) in life.periods.iter().enumerate() {
        let next = life.periods.get(index + 1).map(|next| next.from_ms);
        // A job may be deleted before its hold would have ended.
        let [next, end] = [next, life.end_ms].map(|end| end.unwrap_or(i64::MAX));
        let end = next.min(end);
        let (from, until) = (period.from_ms.max(from_ms + 1), end.min(until_ms + 1));
        // A period that an operator made later is not of this window.
        if period.revision > finished.opened || from >= until {
            continue;
        }
        let Some(spec) = history.spec(&life.id, period.generation, period.revision) else {
            continue;
        };
        let mut instants = occurrences(spec, life.created_ms, from, until)
            .expect("the oracle reads what the simulation makes");
        // A pause or delete decided what the job owed until then, window or not.
        instants.retain(|instant| {
            seen.get(&instant.at_ms)
                .is_none_or(|(revision, _)| *revision >= finished.opened)
        });
        all.push(Stretch {
            spec,
            paused: period.paused,
            instants,
        });
    }
    all
}

/// The fate of each instant that the schedule itself fires, as the window decides it.
fn policy(window: Window, stretches: &[Stretch<'_>]) -> BTreeMap<i64, Fate> {
    let active = || stretches.iter().enumerate().filter(|(_, s)| !s.paused);
    let first = active().find_map(|(_, s)| s.instants.first());
    let gap_ms = first.map_or(0, |first| window.until_ms - first.at_ms);
    let fires = |instant: &&Occurrence| instant.verdict == Verdict::Fire;
    let missed = |s: &Stretch<'_>| gap_ms > s.spec.catch_up.ms_i64();
    // Of several definitions in one gap, the newest that fires at all fires its latest instant.
    let newest = active()
        .filter(|(_, s)| missed(s) && s.instants.iter().any(|i| fires(&i)))
        .map(|(index, _)| index)
        .next_back();
    let mut fates = BTreeMap::new();
    for (index, stretch) in stretches.iter().enumerate() {
        let spec = stretch.spec;
        let too_old = |at: i64| {
            let deadline = spec.start_deadline.as_ref();
            deadline.is_some_and(|deadline| at < window.until_ms - deadline.ms_i64())
        };
        let in_time: Vec<&Occurrence> = stretch
            .instants
            .iter()
            .filter(|i| !too_old(i.at_ms))
            .collect();
        let last = in_time.iter().rev().find(|i| fires(i)).map(|i| i.at_ms);
        for (place, instant) in stretch
            .instants
            .iter()
            .enumerate()
            .filter(|(_, i)| fires(i))
        {
            let at = instant.at_ms;
            let fate = if stretch.paused {
                Fate::Dropped(SkipReason::Paused)
            } else if too_old(at) {
                Fate::Dropped(SkipReason::Deadline)
            } else if !missed(stretch) || spec.misfire == Misfire::All {
                Fate::Run(1)
            } else if spec.misfire == Misfire::Latest && newest == Some(index) && last == Some(at) {
                let older = stretch.instants.len() - in_time.len();
                let dropped = u64::try_from(place - older).unwrap_or(0).min(COUNT_LIMIT);
                Fate::Run(dropped + 1)
            } else {
                Fate::Dropped(SkipReason::Misfire)
            };
            fates.insert(at, fate);
        }
    }
    fates
}

#[cfg(test)]
mod tests {
    use punctual::duration::Millis;

    use super::*;

    fn fates(spec: &JobSpec, until_ms: i64) -> Vec<(i64, Fate)> {
        let window = Window {
            from_ms: 0,
            until_ms,
        };
        let stretch = Stretch {
            spec,
            paused: false,
            instants: occurrences(spec, 0, 1, until_ms + 1).unwrap(),
        };
        policy(window, &[stretch])
            .into_iter()
            .map(|(at, fate)| (at / 1_000, fate))
            .collect()
    }

    #[test]
    fn each_policy_in_words() {
        let mut spec = JobSpec::handler("a", "h").cron("*/10 * * * * *");
        spec.catch_up = Millis::from_secs(20);
        let dropped = Fate::Dropped(SkipReason::Misfire);
        // The first instant is 20 s old: nothing is missed yet.
        let all = [(10, Fate::Run(1)), (20, Fate::Run(1)), (30, Fate::Run(1))];
        assert_eq!(fates(&spec, 30_000), all);
        let latest = [(10, dropped), (20, dropped), (30, Fate::Run(3))];
        assert_eq!(fates(&spec, 30_001), latest);
        spec.start_deadline = Some(Millis::from_secs(20));
        let late = Fate::Dropped(SkipReason::Deadline);
        let latest = [(10, late), (20, dropped), (30, Fate::Run(2))];
        assert_eq!(fates(&spec, 30_001), latest);
        spec.misfire = Misfire::All;
        let all = [(10, late), (20, Fate::Run(1)), (30, Fate::Run(1))];
        assert_eq!(fates(&spec, 30_001), all);
        spec.misfire = Misfire::Skip;
        let none = [(10, late), (20, dropped), (30, dropped)];
        assert_eq!(fates(&spec, 30_001), none);
    }
}
