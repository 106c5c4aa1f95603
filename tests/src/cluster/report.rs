//! What a real cluster did, in numbers.

use std::collections::BTreeMap;
use std::fmt;

use punctual::control::RunKind;
use punctual::job::run::RunState;

use crate::check::History;
use crate::check::history::Change;
use crate::sim::ledger::Effect;
use crate::sim::world::Observed;

/// The numbers of one life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Scheduled runs that were made.
    pub fires: u64,
    /// Attempts by how they ended.
    pub ends: BTreeMap<String, u64>,
    /// Executions that the commands wrote down.
    pub executions: u64,
    /// Terms of leaders.
    pub terms: u64,
    /// How long after its instant a run was decided.
    pub decided: Lateness,
    /// How long after its instant a first attempt's command began.
    pub started: Lateness,
    /// The life of the run whose command began last after its instant.
    pub slowest: Vec<String>,
}

/// Times of many, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Half of them took no longer.
    pub p50_ms: i64,
    /// 99 of 100.
    pub p99_ms: i64,
    /// All of them.
    pub max_ms: i64,
}

impl Lateness {
    pub(super) fn of(mut all: Vec<i64>) -> Self {
        all.sort_unstable();
        let at = |per_cent: usize| {
            let place = (all.len() * per_cent).div_ceil(100).saturating_sub(1);
            all.get(place).copied().unwrap_or(0)
        };
        Self {
            p50_ms: at(50),
            p99_ms: at(99),
            max_ms: at(100),
        }
    }
}

impl fmt::Display for Lateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            p50_ms,
            p99_ms,
            max_ms,
        } = self;
        write!(f, "p50 {p50_ms} ms, p99 {p99_ms} ms, max {max_ms} ms")
    }
}

impl Report {
    /// Counts.
    #[must_use]
    pub fn of(observed: &Observed) -> Self {
        let history = History::new(observed);
        let mut report = Self {
            executions: observed.effects.len() as u64,
            ..Self::default()
        };
        let mut decided = Vec::new();
        for (_, done, step) in history.steps() {
            let (None, Some(after)) = (&step.before, &step.after) else {
                continue;
            };
            let record = &after.record;
            if done {
                let how = match (record.state, record.failed, record.skipped) {
                    (RunState::Skipped, _, Some(why)) => format!("skipped: {why:?}"),
                    (_, Some(why), _) => format!("failed: {why}"),
                    _ => "success".to_owned(),
                };
                *report.ends.entry(how).or_default() += 1;
            } else if record.kind == RunKind::Scheduled && record.attempt == 1 {
                report.fires += 1;
                decided.push(record.created_ms - record.scheduled_ms);
            }
        }
        let terms = history.revisions.iter().flat_map(|r| &r.changes);
        let term = |change: &Change| match change {
            Change::Leader { after } => after.as_ref().map(|stood| stood.created),
            _ => None,
        };
        let terms: std::collections::BTreeSet<u64> = terms.filter_map(term).collect();
        report.terms = terms.len() as u64;
        report.decided = Lateness::of(decided);
        let late = |e: &Effect| observed.plan.epoch_ms + e.start_ms.cast_signed() - e.scheduled_ms;
        let first = || observed.effects.iter().filter(|effect| effect.attempt == 1);
        report.started = Lateness::of(first().map(late).collect());
        if let Some(slowest) = first().max_by_key(|effect| late(effect)) {
            report.slowest = life(&history, slowest);
        }
        report
    }
}

/// What became of the attempt that was executed then, step by step.
fn life(history: &History<'_>, effect: &Effect) -> Vec<String> {
    let since_ms = |unix_ms: i64| unix_ms - effect.scheduled_ms;
    let ours = history.steps().filter(|(_, _, step)| {
        step.key.run == effect.run && step.key.attempt == effect.attempt && step.after.is_some()
    });
    let mut all = vec![format!("{} attempt {}", effect.run, effect.attempt)];
    all.extend(ours.map(|(revised, _, step)| {
        let (state, owner) = step.after.as_ref().map_or(("gone".into(), None), |after| {
            (after.record.state.to_string(), after.record.owner.as_ref())
        });
        let owner = owner.map_or(String::new(), |owner| format!(" by {owner}"));
        format!("+{} ms {state}{owner}", since_ms(revised.unix_ms))
    }));
    all
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "fires: {}, executions: {}", self.fires, self.executions)?;
        for (how, count) in &self.ends {
            writeln!(f, "  attempts {how}: {count}")?;
        }
        writeln!(f, "terms of leaders: {}", self.terms)?;
        writeln!(f, "decided after the instant: {}", self.decided)?;
        write!(f, "command began after the instant: {}", self.started)?;
        for line in &self.slowest {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let late = Lateness::of((1..=200).rev().collect());
        assert_eq!((late.p50_ms, late.p99_ms, late.max_ms), (100, 198, 200));
        assert_eq!(Lateness::of(vec![7]).p50_ms, 7);
        assert_eq!(Lateness::of(vec![]).max_ms, 0);
    }
}
