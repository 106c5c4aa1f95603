//! What the simulated code did, written to SQLite by the recipes, in the order in which it happened:
//! with retries, lost workers and processes that wake late.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use punctual::handler::FencingToken;
use punctual::job::run::RunState;
use punctual_tests::check::History;
use punctual_tests::sim::ledger::Effect;
use punctual_tests::sim::scenario;
use punctual_tests::sim::schedule::{Fault, Plan};
use punctual_tests::sim::world::{Observed, simulate};
use rusqlite::Connection;

use crate::sink;

/// What happened that the recipes are for.
#[derive(Debug, Default)]
struct Tally {
    /// Runs with an effect.
    applied: usize,
    /// Effects that would have been applied once more without the key.
    repeated: usize,
    /// Writes of attempts that had been succeeded.
    refused: usize,
}

/// Each execution writes at its beginning, and at its end if it came to it.
fn events(effects: &[Effect]) -> Vec<(u64, &Effect, bool)> {
    let mut events = Vec::new();
    for effect in effects {
        events.push((effect.start_ms, effect, false));
        if let Some(end_ms) = effect.end_ms.filter(|_| effect.completed) {
            events.push((end_ms, effect, true));
        }
    }
    events.sort_by_key(|(at_ms, ..)| *at_ms);
    events
}

fn said(effect: &Effect, done: bool) -> String {
    let what = if done { "done" } else { "begun" };
    format!("{} attempt {} {what}", effect.run, effect.attempt)
}

fn cell(database: &Connection, name: &str) -> (u64, String) {
    let query = "SELECT token, text FROM report WHERE name = ?1";
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get(1)?));
    let (token, text) = database.query_row(query, [name], row).unwrap();
    (u64::try_from(token).unwrap(), text)
}

/// The last attempt of each run that ended well.
fn successes(observed: &Observed) -> BTreeMap<String, u32> {
    let history = History::new(observed);
    let mut ended = BTreeMap::new();
    for (_, done, step) in history.steps() {
        if let Some(after) = step.after.as_ref().filter(|_| done)
            && after.record.state == RunState::Success
            && after.record.parts.is_none()
        {
            ended.insert(step.key.run.clone(), step.key.attempt);
        }
    }
    ended
}

fn replay(observed: &Observed, tally: &mut Tally) {
    let database = sink::open(Path::new(":memory:")).unwrap();
    // The largest token that each cell has seen.
    let mut largest: BTreeMap<&str, u64> = BTreeMap::new();
    let mut paid: BTreeMap<&str, u32> = BTreeMap::new();
    for (_, effect, done) in events(&observed.effects) {
        if done {
            let times = paid.entry(&effect.run).or_default();
            *times += 1;
            let first = sink::pay(&database, &effect.run, 1).unwrap();
            assert_eq!(first, *times == 1, "{effect:?}");
            tally.repeated += usize::from(!first);
        }
        // A cell of the run, and one that all runs of the job write.
        let text = said(effect, done);
        for name in [&effect.run, &effect.job] {
            let before = largest.get(name.as_str()).copied().unwrap_or(0);
            let token = FencingToken(effect.token);
            let taken = sink::write(&database, name, token, &text).unwrap();
            assert_eq!(taken, effect.token >= before, "{effect:?}");
            let now = cell(&database, name);
            assert!(now.0 >= before, "a cell went back: {effect:?}");
            assert_eq!(now.1 == text, taken, "{effect:?}");
            largest.insert(name, now.0);
            tally.refused += usize::from(!taken && *name == effect.run);
        }
    }
    tally.applied += paid.len();
    let rows = "SELECT count(*), coalesce(sum(cents), 0) FROM payment";
    let rows: (i64, i64) = database
        .query_row(rows, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    let runs = i64::try_from(paid.len()).unwrap();
    assert_eq!(rows, (runs, runs), "once a run");

    // The product's part: one id a fire, the same for its attempts, and an effect behind each success.
    let mut instants = BTreeSet::new();
    for effect in &observed.effects {
        instants.insert((&effect.run, &effect.job, effect.scheduled_ms));
    }
    let names: BTreeSet<&String> = instants.iter().map(|(run, ..)| *run).collect();
    assert_eq!(names.len(), instants.len(), "a run id stands for two fires");
    let by_plan = instants.iter().filter(|(run, ..)| !run.contains('~'));
    let fires: BTreeSet<_> = by_plan.clone().map(|(_, job, at)| (job, at)).collect();
    assert_eq!(fires.len(), by_plan.count(), "a fire has two run ids");
    for (run, attempt) in successes(observed) {
        assert!(paid.contains_key(run.as_str()), "{run} succeeded unpaid");
        let (_, text) = cell(&database, &run);
        assert_eq!(text, format!("{run} attempt {attempt} done"));
    }
}

fn campaign(name: &str, plans: impl Iterator<Item = Plan>) -> Tally {
    let mut tally = Tally::default();
    for plan in plans {
        replay(&simulate(&plan), &mut tally);
    }
    println!("{name}: {tally:?}");
    assert!(tally.applied > 100, "{tally:?}");
    tally
}

fn plans(name: &str, seeds: Range<u64>) -> impl Iterator<Item = Plan> {
    seeds.map(move |seed| scenario::plan(name, seed).expect("a scenario"))
}

/// Workers are cut off in the middle of a run, go on to its end, and others run it again.
#[test]
fn effects_of_lost_workers_are_applied_once() {
    let tally = campaign("lost workers", plans("cut-worker", 0..20));
    assert!(tally.repeated > 0, "nothing was repeated: {tally:?}");
}

/// Workers stand still in the middle of a run until others have begun it again, or have done it. Then
/// they go on where they were.
#[test]
fn effects_of_workers_that_wake_late_are_applied_once() {
    let still = plans("cut-worker", 0..20).map(|mut plan| {
        for (turn, node) in [1, 2, 0].into_iter().enumerate() {
            let at = 25_000 + 45_000 * u64::try_from(turn).unwrap() + 331 * plan.seed;
            let for_ms = 40_000;
            plan.faults.push((at, Fault::Pause { node, for_ms }));
        }
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    });
    let tally = campaign("late workers", still);
    assert!(tally.repeated > 0, "nothing was repeated: {tally:?}");
    assert!(tally.refused > 0, "nobody was late: {tally:?}");
}

/// Everything at once: crashes, processes that stand still, lost answers, retries, edits.
#[test]
fn effects_are_applied_once_whatever_happens() {
    campaign("everything", plans("default", 0..40));
}
