//! What becomes of each instant: a pure function of (segments, window, position).
//!
//! What can go wrong: a policy that looks at the moment of a commit, or at where a batch was cut,
//! decides differently after a failover. So everything here follows from data that the store
//! holds: the job's segments, and the window that was fixed with its first decision. Whoever plans
//! the rest of a window comes to the same decisions.
//!
//! A partition's schedule is one stream of (instant, job). A decision stands at the instant it
//! decides; one that decides a range stands at the range's last instant.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;

use crate::job::record::{CursorRecord, Position, Segment, Window};
use crate::job::run::SkipReason;
use crate::job::spec::Misfire;
use crate::job::{Definition, Job};
use crate::schedule::{ScheduleSkip, Verdict};

/// Counting the instants of a range stops here.
pub const COUNT_LIMIT: u64 = 10_000;

/// What becomes of one instant, or of a range of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It runs.
    Run {
        /// The instant, in Unix milliseconds.
        at_ms: i64,
        /// How many instants this run stands for.
        stands_for: u64,
        /// The first of them.
        from_ms: i64,
        /// The definition in force.
        generation: u64,
    },
    /// It does not.
    Skip {
        /// The first instant.
        from_ms: i64,
        /// The last instant.
        at_ms: i64,
        /// How many, counted to [`COUNT_LIMIT`].
        count: u64,
        /// Why.
        reason: SkipReason,
        /// The definition in force.
        generation: u64,
    },
}

impl Decision {
    /// Where in the stream the decision stands.
    #[must_use]
    pub fn at_ms(&self) -> i64 {
        match self {
            Self::Run { at_ms, .. } | Self::Skip { at_ms, .. } => *at_ms,
        }
    }
}

/// A stretch `lo < instant <= hi` of one segment.
struct Stretch<'a> {
    segment: Segment,
    definition: &'a Definition,
    lo: i64,
    hi: i64,
}

impl Stretch<'_> {
    fn first(&self) -> Option<i64> {
        self.definition
            .schedule
            .next(self.lo)
            .map(|o| o.at_ms)
            .filter(|at| *at <= self.hi)
    }

    /// One record for every instant up to `hi`.
    fn range(&self, hi: i64, reason: SkipReason) -> Option<Decision> {
        let (from_ms, at_ms, count) = count(self.definition, self.lo, hi)?;
        Some(Decision::Skip {
            from_ms,
            at_ms,
            count,
            reason,
            generation: self.segment.generation,
        })
    }

    /// The last instant that the schedule itself does not skip.
    fn last_fire(&self) -> Option<i64> {
        self.definition
            .schedule
            .before(self.hi.saturating_add(1))
            .take(usize::try_from(COUNT_LIMIT).unwrap_or(usize::MAX))
            .take_while(|o| o.at_ms > self.lo)
            .find(|o| o.verdict == Verdict::Fire)
            .map(|o| o.at_ms)
    }
}

/// First, last and number (to [`COUNT_LIMIT`]) of the instants in `lo < instant <= hi`.
fn count(definition: &Definition, lo: i64, hi: i64) -> Option<(i64, i64, u64)> {
    let schedule = &definition.schedule;
    let first = schedule.next(lo)?.at_ms;
    if first > hi {
        return None;
    }
    let last = schedule.previous(hi.saturating_add(1))?.at_ms;
    let mut count = 1;
    let mut at = first;
    while count < COUNT_LIMIT {
        match schedule.next(at) {
            Some(o) if o.at_ms <= hi && o.at_ms > at => at = o.at_ms,
            _ => break,
        }
        count += 1;
    }
    Some((first, last, count))
}

/// The stretches of a job in `lo < instant <= hi`, oldest first. A segment whose definition is
/// unreadable or disabled has no instants.
fn stretches(job: &Job, lo: i64, hi: i64) -> Vec<Stretch<'_>> {
    let segments = &job.record.segments;
    let mut result = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let end = segments
            .get(index + 1)
            .map_or(i64::MAX, |next| next.from_ms - 1);
        let stretch_lo = lo.max(segment.from_ms - 1);
        let stretch_hi = hi.min(end);
        let Some(definition) = job.definitions.get(segment.generation) else {
            continue;
        };
        if stretch_lo < stretch_hi && definition.spec.enabled {
            result.push(Stretch {
                segment: *segment,
                definition,
                lo: stretch_lo,
                hi: stretch_hi,
            });
        }
    }
    result
}

/// The last instant that is decided for this job when the partition stands at `position`.
fn decided_until(job: &str, position: &Position) -> i64 {
    if job <= position.job.as_str() {
        position.at_ms
    } else {
        position.at_ms - 1
    }
}

/// The job's first instant that is not decided. A lower bound for where its next decision stands.
#[must_use]
pub fn first_undecided(job: &Job, position: &Position) -> Option<i64> {
    // Segments are few and their schedules lazy: nothing is allocated for an idle job.
    let lo = decided_until(&job.id, position);
    let segments = &job.record.segments;
    segments.iter().enumerate().find_map(|(index, segment)| {
        let end = segments
            .get(index + 1)
            .map_or(i64::MAX, |next| next.from_ms - 1);
        let definition = job.definitions.get(segment.generation)?;
        if !definition.spec.enabled || lo >= end {
            return None;
        }
        definition
            .schedule
            .next(lo.max(segment.from_ms - 1))
            .map(|o| o.at_ms)
            .filter(|at| *at <= end)
    })
}

/// The job's decisions in `window` behind `position`, in stream order, at most `limit`.
#[must_use]
pub fn decisions(job: &Job, window: Window, position: &Position, limit: usize) -> Vec<Decision> {
    let after = decided_until(&job.id, position);
    let stretches = stretches(job, window.from_ms, window.until_ms);
    let active = || stretches.iter().filter(|s| !s.segment.paused);
    let gap_ms = active()
        .find_map(Stretch::first)
        .map_or(0, |first| window.until_ms.saturating_sub(first));
    // After a long gap with an edit inside, only the newest definition fires its latest instant.
    let newest = active()
        .filter(|s| gap_ms > s.definition.spec.catch_up.ms_i64())
        .filter(|s| s.last_fire().is_some())
        .map(|s| s.segment.from_ms)
        .max();

    let mut out = Vec::new();
    for stretch in stretches {
        if out.len() >= limit {
            break;
        }
        let is_newest = newest == Some(stretch.segment.from_ms);
        decide(stretch, window, gap_ms, is_newest, after, limit, &mut out);
    }
    out.truncate(limit);
    out
}

fn decide(
    mut stretch: Stretch<'_>,
    window: Window,
    gap_ms: i64,
    is_newest: bool,
    after: i64,
    limit: usize,
    out: &mut Vec<Decision>,
) {
    let spec = &stretch.definition.spec;
    let mut push = |decision: Option<Decision>| {
        out.extend(decision.filter(|d| d.at_ms() > after));
    };
    if stretch.segment.paused {
        push(stretch.range(stretch.hi, SkipReason::Paused));
        return;
    }
    if let Some(deadline) = spec.start_deadline {
        let hi = stretch.hi.min(
            window
                .until_ms
                .saturating_sub(deadline.ms_i64())
                .saturating_sub(1),
        );
        if stretch.lo < hi {
            push(stretch.range(hi, SkipReason::Deadline));
            stretch.lo = hi;
        }
    }
    if gap_ms > spec.catch_up.ms_i64() {
        match spec.misfire {
            Misfire::All => {}
            Misfire::Skip => {
                push(stretch.range(stretch.hi, SkipReason::Misfire));
                return;
            }
            Misfire::Latest => {
                let Some(last) = stretch.last_fire().filter(|_| is_newest) else {
                    push(stretch.range(stretch.hi, SkipReason::Misfire));
                    return;
                };
                let dropped = stretch.range(last - 1, SkipReason::Misfire);
                let (from_ms, stands_for) = match &dropped {
                    Some(Decision::Skip { from_ms, count, .. }) => (*from_ms, count + 1),
                    _ => (last, 1),
                };
                push(dropped);
                push(Some(Decision::Run {
                    at_ms: last,
                    stands_for,
                    from_ms,
                    generation: stretch.segment.generation,
                }));
                stretch.lo = last;
            }
        }
    }
    stretch.lo = stretch.lo.max(after);
    let generation = stretch.segment.generation;
    let mut last = stretch.lo;
    for occurrence in stretch.definition.schedule.after(stretch.lo) {
        // Whatever calculates, the scheduler guards against an instant that does not move on.
        if out.len() >= limit || occurrence.at_ms > stretch.hi || occurrence.at_ms <= last {
            break;
        }
        last = occurrence.at_ms;
        out.push(match occurrence.verdict {
            Verdict::Fire => Decision::Run {
                at_ms: last,
                stands_for: 1,
                from_ms: last,
                generation,
            },
            Verdict::Skip(why) => Decision::Skip {
                from_ms: last,
                at_ms: last,
                count: 1,
                reason: match why {
                    ScheduleSkip::Excluded => SkipReason::Excluded,
                    ScheduleSkip::DstGap => SkipReason::DstGap,
                },
                generation,
            },
        });
    }
}

/// What a pause or delete at `until_ms` (exclusive) takes away: first, last and number of the
/// instants that the job still owes.
#[must_use]
pub fn owed(job: &Job, cursor: &CursorRecord, until_ms: i64) -> Option<(i64, i64, u64)> {
    let mut total: Option<(i64, i64, u64)> = None;
    let mut add = |from: i64, at: i64, count: u64| {
        let (first, last, sum) = total.unwrap_or((from, at, 0));
        total = Some((
            first.min(from),
            last.max(at),
            sum.saturating_add(count).min(COUNT_LIMIT),
        ));
    };
    if cursor.is_open() {
        let limit = usize::try_from(COUNT_LIMIT).unwrap_or(usize::MAX);
        for decision in decisions(job, cursor.window, &cursor.position, limit) {
            match decision {
                Decision::Run { at_ms, .. } => add(at_ms, at_ms, 1),
                Decision::Skip {
                    from_ms,
                    at_ms,
                    count,
                    ..
                } => add(from_ms, at_ms, count),
            }
        }
    }
    let lo = decided_until(&job.id, &cursor.position).max(cursor.window.until_ms);
    for stretch in stretches(job, lo, until_ms - 1) {
        if let Some((first, last, n)) = count(stretch.definition, stretch.lo, stretch.hi) {
            add(first, last, n);
        }
    }
    total
}

/// The jobs of a partition in the order of their next decisions.
#[derive(Clone, Debug, Default)]
pub struct DueIndex {
    order: BTreeSet<(i64, Arc<str>)>,
    at: BTreeMap<Arc<str>, i64>,
}

impl FromIterator<(Arc<str>, i64)> for DueIndex {
    /// Built at once, an index takes about half the memory of one that grows.
    fn from_iter<T: IntoIterator<Item = (Arc<str>, i64)>>(all: T) -> Self {
        let at: BTreeMap<Arc<str>, i64> = all.into_iter().collect();
        let order = at.iter().map(|(job, at)| (*at, job.clone())).collect();
        Self { order, at }
    }
}

impl DueIndex {
    /// Sets or clears the lower bound of a job's next decision.
    pub fn set(&mut self, job: &Arc<str>, at_ms: Option<i64>) {
        if let Some(old) = self.at.remove(job) {
            self.order.remove(&(old, job.clone()));
        }
        if let Some(at) = at_ms {
            self.at.insert(job.clone(), at);
            self.order.insert((at, job.clone()));
        }
    }

    /// When something may be due next.
    #[must_use]
    pub fn next_ms(&self) -> Option<i64> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.order.clear();
        self.at.clear();
    }

    /// The jobs that may be due by then.
    #[must_use]
    pub fn until(&self, until_ms: i64) -> Vec<Arc<str>> {
        self.bounds(until_ms).map(|(_, job)| job.clone()).collect()
    }

    fn bounds(&self, until_ms: i64) -> impl Iterator<Item = &(i64, Arc<str>)> {
        self.order.iter().take_while(move |(at, _)| *at <= until_ms)
    }
}

/// A batch of a partition's decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// In stream order.
    pub decisions: Vec<(Arc<str>, Decision)>,
    /// Where the partition stands afterwards.
    pub cursor: CursorRecord,
    /// Every job that was looked at: its place in the index may have changed.
    pub touched: BTreeSet<Arc<str>>,
}

impl Plan {
    /// Keeps only the first `count` decisions (at least one): the rest is planned again.
    pub fn truncate(&mut self, count: usize) {
        if count >= self.decisions.len() {
            return;
        }
        self.decisions.truncate(count.max(1));
        if let Some((job, decision)) = self.decisions.last() {
            self.cursor.position = Position {
                at_ms: decision.at_ms(),
                job: job.to_string(),
            };
        }
    }
}

/// The next batch of a partition at the time `now_ms` of the fire clock, at most `limit`
/// decisions; `None` when nothing is due. Costs O(batch), whatever the number of jobs.
#[must_use]
pub fn plan(
    jobs: &BTreeMap<Arc<str>, Job>,
    due: &DueIndex,
    cursor: &CursorRecord,
    now_ms: i64,
    limit: usize,
) -> Option<Plan> {
    let window = if cursor.is_open() {
        cursor.window
    } else {
        Window {
            from_ms: cursor.position.at_ms,
            until_ms: now_ms,
        }
    };
    let mut due = due.bounds(window.until_ms).peekable();
    if !cursor.is_open() && due.peek().is_none() {
        return None;
    }

    // Merge: the index gives lower bounds in order, `open` the exact places of what was opened.
    let mut open: BinaryHeap<Reverse<(i64, Arc<str>, usize)>> = BinaryHeap::new();
    let mut opened: Vec<Vec<Decision>> = Vec::new();
    let mut touched = BTreeSet::new();
    let mut out = Vec::new();
    loop {
        let next = open.peek().map(|Reverse((at, job, _))| (*at, job.clone()));
        if let Some(bound) = due.next_if(|bound| next.as_ref().is_none_or(|n| *bound <= n)) {
            let id = &bound.1;
            touched.insert(id.clone());
            let Some(job) = jobs.get(id) else { continue };
            let mut list = decisions(job, window, &cursor.position, limit + 1);
            list.reverse();
            if let Some(first) = list.last() {
                open.push(Reverse((first.at_ms(), id.clone(), opened.len())));
                opened.push(list);
            }
            continue;
        }
        if out.len() == limit {
            break;
        }
        let Some(Reverse((_, id, slot))) = open.pop() else {
            break;
        };
        if let Some(decision) = opened[slot].pop() {
            out.push((id.clone(), decision));
        }
        if let Some(following) = opened[slot].last() {
            open.push(Reverse((following.at_ms(), id, slot)));
        }
    }
    let position = match out.last() {
        Some((job, decision)) if !open.is_empty() => Position {
            at_ms: decision.at_ms(),
            job: job.to_string(),
        },
        _ => Position::end_of(window.until_ms),
    };
    Some(Plan {
        decisions: out,
        cursor: CursorRecord { position, window },
        touched,
    })
}
