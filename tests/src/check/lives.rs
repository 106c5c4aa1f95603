//! The lives of jobs: which definition was in force for which instants.

use std::collections::BTreeMap;

use super::history::{Change, History};

/// From `from_ms` until the next period of the same life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Period {
    /// First instant.
    pub from_ms: i64,
    /// The definition.
    pub generation: u64,
    /// Whether an operator held the job.
    pub paused: bool,
    /// The revision of the change.
    pub revision: u64,
}

/// A job from its making to its deletion.
#[derive(Clone, Debug)]
pub struct JobLife {
    /// Its id.
    pub id: String,
    /// The revision that made it.
    pub uid: u64,
    /// When, by the clock of whoever made it.
    pub created_ms: i64,
    /// What was in force when.
    pub periods: Vec<Period>,
    /// First instant that is not the job's any more.
    pub end_ms: Option<i64>,
}

/// All lives, by id and uid.
#[must_use]
pub fn lives(history: &History<'_>) -> BTreeMap<(String, u64), JobLife> {
    let mut lives: BTreeMap<(String, u64), JobLife> = BTreeMap::new();
    let mut until: BTreeMap<u16, i64> = BTreeMap::new();
    for revised in &history.revisions {
        for change in &revised.changes {
            match change {
                Change::Job {
                    id,
                    after: Some(after),
                    ..
                } => {
                    let life =
                        lives
                            .entry((id.clone(), after.created))
                            .or_insert_with(|| JobLife {
                                id: id.clone(),
                                uid: after.created,
                                created_ms: after.record.created_ms,
                                periods: Vec::new(),
                                end_ms: None,
                            });
                    // What lies before the first segment stands as it was; a segment that was there
                    // before is of the change that made it.
                    let segments = &after.record.segments;
                    let first_ms = segments.first().map_or(i64::MAX, |first| first.from_ms);
                    let tail = life.periods.partition_point(|p| p.from_ms < first_ms);
                    let old = life.periods.split_off(tail);
                    life.periods.extend(segments.iter().map(|segment| {
                        let period = Period {
                            from_ms: segment.from_ms,
                            generation: segment.generation,
                            paused: segment.paused,
                            revision: revised.revision,
                        };
                        let same = |old: &&Period| {
                            Period {
                                revision: revised.revision,
                                ..(*old).clone()
                            } == period
                        };
                        old.iter().find(same).cloned().unwrap_or(period)
                    }));
                }
                Change::Job {
                    id,
                    before: Some(before),
                    after: None,
                } => {
                    let deleted_ms = revised.changes.iter().find_map(|change| match change {
                        Change::Gone {
                            id: gone,
                            deleted_ms,
                        } if gone == id => *deleted_ms,
                        _ => None,
                    });
                    let partition =
                        punctual::keys::partition_of(id, punctual::bootstrap::DEFAULT_PARTITIONS);
                    if let Some(life) = lives.get_mut(&(id.clone(), before.created)) {
                        let made = before.record.made_segments().last();
                        let last = made.map_or(i64::MIN, |made| made.from_ms);
                        let window = until.get(&partition).copied().unwrap_or(i64::MIN);
                        life.end_ms =
                            Some(deleted_ms.unwrap_or(i64::MIN).max(last).max(window + 1));
                    }
                }
                _ => {}
            }
        }
        // Cursors move after the jobs of the same revision were read.
        for change in &revised.changes {
            if let Change::Cursor {
                partition,
                after: Some(after),
                ..
            } = change
            {
                until.insert(*partition, after.record.window.until_ms);
            }
        }
    }
    lives
}
