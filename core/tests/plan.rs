//! What becomes of each instant: tables by hand, and properties against a plain reading of the
//! rules that shares no code with the planner.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use punctual::backend::Revision;
use punctual::duration::Millis;
use punctual::job::record::{CursorRecord, JobRecord, Position, Segment, Window};
use punctual::job::run::SkipReason;
use punctual::job::spec::{JobSpec, Misfire};
use punctual::job::{Definition, Job};
use punctual::plan::{Decision, DueIndex, Plan, decisions, first_undecided, owed, plan};
use punctual::schedule::{Calendars, Schedule};

const MINUTE: i64 = 60_000;

fn definition(spec: JobSpec) -> Arc<Definition> {
    let schedule = Schedule::compile(&spec.schedule, 0, &Calendars::default()).unwrap();
    Arc::new(Definition {
        spec: Arc::new(spec),
        schedule,
    })
}

fn job_of(id: &str, segments: Vec<Segment>, specs: Vec<JobSpec>) -> Job {
    let definitions = (1..).zip(specs.into_iter().map(definition)).collect();
    Job {
        id: id.into(),
        uid: Revision(1),
        modified: Revision(1),
        record: JobRecord {
            version: 1,
            generation: segments.last().unwrap().generation,
            created_ms: 0,
            updated_ms: 0,
            segments,
            paused: None,
            paused_all: None,
            at_seen_ms: Vec::new(),
        },
        definitions,
    }
}

fn segment(from_ms: i64, generation: u64) -> Segment {
    Segment {
        from_ms,
        generation,
        paused: false,
    }
}

/// Every minute, since the beginning of time.
fn minutely(change: impl FnOnce(&mut JobSpec)) -> Job {
    let mut spec = JobSpec::handler("m", "h").cron("* * * * *");
    change(&mut spec);
    job_of("m", vec![segment(0, 1)], vec![spec])
}

fn window(from_ms: i64, until_ms: i64) -> (Window, Position) {
    (Window { from_ms, until_ms }, Position::end_of(from_ms))
}

/// `R5` is a run at minute 5, `R5x3` one that stands for 3, `S1-5x5 misfire` a skipped range.
fn show(decisions: &[Decision]) -> Vec<String> {
    decisions
        .iter()
        .map(|decision| match decision {
            Decision::Run {
                at_ms,
                stands_for: 1,
                ..
            } => format!("R{}", at_ms / MINUTE),
            Decision::Run {
                at_ms, stands_for, ..
            } => format!("R{}x{stands_for}", at_ms / MINUTE),
            Decision::Skip {
                from_ms,
                at_ms,
                count,
                reason,
                ..
            } => {
                format!(
                    "S{}-{}x{count} {}",
                    from_ms / MINUTE,
                    at_ms / MINUTE,
                    reason.as_str()
                )
            }
        })
        .collect()
}

fn decided(job: &Job, from_min: i64, until_min: i64) -> Vec<String> {
    let (window, position) = window(from_min * MINUTE, until_min * MINUTE);
    show(&decisions(job, window, &position, 1_000))
}

#[test]
fn a_gap_within_catch_up_loses_nothing() {
    let job = minutely(|_| {});
    assert_eq!(decided(&job, 0, 3), ["R1", "R2", "R3"]);
    // 10 minutes from the first undecided instant (minute 1) to the end of the window.
    assert_eq!(decided(&job, 0, 11).len(), 11);
}

#[test]
fn m01_a_longer_gap_follows_the_misfire_policy() {
    let of = |misfire| minutely(|spec| spec.misfire = misfire);
    assert_eq!(
        decided(&of(Misfire::Latest), 0, 720),
        ["S1-719x719 misfire", "R720x720"]
    );
    assert_eq!(decided(&of(Misfire::Skip), 0, 720), ["S1-720x720 misfire"]);
    assert_eq!(decided(&of(Misfire::All), 0, 720).len(), 720);
}

#[test]
fn the_gap_of_a_job_counts_from_its_own_first_undecided_instant() {
    // The partition was idle for a day, but this job had nothing to decide before 23:59.
    let mut spec = JobSpec::handler("m", "h").cron("59 23 * * *");
    spec.misfire = Misfire::Skip;
    let job = job_of("m", vec![segment(0, 1)], vec![spec]);
    assert_eq!(decided(&job, 0, 24 * 60), ["R1439"]);
}

#[test]
fn a_deadline_drops_what_is_older() {
    let job = minutely(|spec| spec.start_deadline = Some(Millis::from_secs(120)));
    assert_eq!(decided(&job, 0, 5), ["S1-2x2 deadline", "R3", "R4", "R5"]);
}

#[test]
fn a_range_is_counted_to_ten_thousand_whatever_its_length() {
    let job = minutely(|spec| spec.misfire = Misfire::Skip);
    assert_eq!(decided(&job, 0, 525_600), ["S1-525600x10000 misfire"]);
}

#[test]
fn instants_belong_to_the_definition_in_force() {
    let mut paused = segment(3 * MINUTE, 1);
    paused.paused = true;
    let job = job_of(
        "m",
        vec![segment(0, 1), paused, segment(6 * MINUTE, 2)],
        vec![
            JobSpec::handler("m", "h").cron("* * * * *"),
            JobSpec::handler("m", "h").cron("*/2 * * * *"),
        ],
    );
    assert_eq!(
        decided(&job, 0, 9),
        ["R1", "R2", "S3-5x3 paused", "R6", "R8"]
    );
}

#[test]
fn after_a_long_gap_with_an_edit_inside_only_the_newest_definition_fires() {
    let spec = || JobSpec::handler("m", "h").cron("* * * * *");
    let job = job_of(
        "m",
        vec![segment(0, 1), segment(30 * MINUTE, 2)],
        vec![spec(), spec()],
    );
    assert_eq!(
        decided(&job, 0, 60),
        ["S1-29x29 misfire", "S30-59x30 misfire", "R60x31"]
    );
}

#[test]
fn a_disabled_or_unreadable_definition_has_no_instants() {
    let job = minutely(|spec| spec.enabled = false);
    assert_eq!(decided(&job, 0, 9), Vec::<String>::new());
    let job = job_of("m", vec![segment(0, 7)], vec![]);
    assert_eq!(decided(&job, 0, 9), Vec::<String>::new());
    assert_eq!(first_undecided(&job, &Position::end_of(0)), None);
}

#[test]
fn what_is_owed_counts_the_open_window_and_what_came_after() {
    let job = minutely(|_| {});
    let cursor = CursorRecord {
        position: Position {
            at_ms: 2 * MINUTE,
            job: "m".into(),
        },
        window: Window {
            from_ms: 0,
            until_ms: 4 * MINUTE,
        },
    };
    assert_eq!(
        owed(&job, &cursor, 6 * MINUTE + 1),
        Some((3 * MINUTE, 6 * MINUTE, 4))
    );
    assert_eq!(
        owed(&job, &cursor, 6 * MINUTE),
        Some((3 * MINUTE, 5 * MINUTE, 3))
    );
    let closed = CursorRecord::starting_at(5 * MINUTE);
    assert_eq!(owed(&job, &closed, 5 * MINUTE + 1), None);
}

/// Runs the planner to the end of a window in batches of these sizes.
fn drain(jobs: &BTreeMap<Arc<str>, Job>, from: i64, until: i64, batches: &[usize]) -> Vec<String> {
    let mut cursor = CursorRecord::starting_at(from);
    let mut out = Vec::new();
    let mut sizes = batches.iter().cycle();
    loop {
        // A new leader each time: the index is made from nothing but position and jobs.
        let mut due = DueIndex::default();
        for (id, job) in jobs {
            due.set(id, first_undecided(job, &cursor.position));
        }
        let Some(Plan {
            decisions,
            cursor: next,
            ..
        }) = plan(jobs, &due, &cursor, until, *sizes.next().unwrap())
        else {
            return out;
        };
        assert!(
            next.position > cursor.position,
            "the cursor strictly increases"
        );
        assert!(next.position.at_ms <= until, "and never passes the clock");
        out.extend(
            decisions
                .iter()
                .map(|(id, d)| format!("{id}:{}", show(std::slice::from_ref(d))[0])),
        );
        cursor = next;
    }
}

fn any_job(id: &'static str) -> impl Strategy<Value = Job> {
    (
        prop::sample::select(vec![
            "* * * * *",
            "*/3 * * * *",
            "7 * * * *",
            "*/20 * * * * *",
        ]),
        prop::sample::select(vec![Misfire::Latest, Misfire::All, Misfire::Skip]),
        prop::option::of(30_u64..1_000),
        0_u64..40,
        prop::option::of((1_i64..60, any::<bool>())),
    )
        .prop_map(move |(cron, misfire, deadline, catch_up, cut)| {
            let mut spec = JobSpec::handler(id, "h").cron(cron);
            spec.misfire = misfire;
            spec.catch_up = Millis::from_secs(catch_up * 60);
            spec.start_deadline = deadline.map(Millis::from_secs);
            let mut segments = vec![segment(0, 1)];
            if let Some((minute, paused)) = cut {
                segments.push(Segment {
                    from_ms: minute * MINUTE + 1,
                    generation: 1,
                    paused,
                });
            }
            job_of(id, segments, vec![spec])
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// However the batches are cut and however often the leader changes in between, a window ends
    /// in the same decisions in the same order, and every instant is decided once.
    #[test]
    fn decisions_do_not_depend_on_where_batches_are_cut(
        a in any_job("a"), b in any_job("b"), c in any_job("c"),
        from in 0_i64..10, length in 1_i64..50,
        batches in prop::collection::vec(1_usize..9, 1..5),
    ) {
        let jobs: BTreeMap<Arc<str>, Job> =
            [a, b, c].into_iter().map(|job| (job.id.clone(), job)).collect();
        let (from, until) = (from * MINUTE, (from + length) * MINUTE);
        let whole = drain(&jobs, from, until, &[10_000]);
        prop_assert_eq!(&whole, &drain(&jobs, from, until, &batches));
    }

    /// Each instant of the schedule is covered by exactly one decision.
    #[test]
    fn every_instant_is_decided_exactly_once(job in any_job("a"), from in 0_i64..10, length in 1_i64..90) {
        let (from, until) = (from * MINUTE, (from + length) * MINUTE);
        let (window, position) = window(from, until);
        let all = decisions(&job, window, &position, 100_000);
        let schedule = &job.definitions.get(1).unwrap().schedule;
        let covers = |decision: &Decision, at: i64| match decision {
            Decision::Run { at_ms, .. } => *at_ms == at,
            Decision::Skip { from_ms, at_ms, .. } => (*from_ms..=*at_ms).contains(&at),
        };
        let mut instants = 0;
        for second in from / 1_000 + 1..=until / 1_000 {
            let at = second * 1_000;
            let expected = usize::from(matches(schedule, at));
            instants += expected;
            let n = all.iter().filter(|d| covers(d, at)).count();
            if expected == 1 {
                prop_assert_eq!(n, 1, "at {} in {:?}", at, &all);
            }
        }
        let counted: u64 = all
            .iter()
            .map(|d| match d {
                Decision::Run { .. } => 1,
                Decision::Skip { count, .. } => *count,
            })
            .sum();
        prop_assert_eq!(counted, instants as u64);
        let paused: Vec<_> = all
            .iter()
            .filter(|d| matches!(d, Decision::Skip { reason: SkipReason::Paused, .. }))
            .collect();
        prop_assert!(paused.len() <= 1);
    }
}

/// The four expressions above, read by hand.
fn matches(schedule: &Schedule, at_ms: i64) -> bool {
    let (second, minute) = (at_ms / 1_000 % 60, at_ms / MINUTE % 60);
    let probe = |a: i64, b: i64| schedule.next(a * 1_000).map(|o| o.at_ms) == Some(b * 1_000);
    // Told apart by their first instants after the epoch.
    if probe(0, 20) {
        second % 20 == 0
    } else if probe(0, 180) {
        second == 0 && minute % 3 == 0
    } else if probe(0, 420) {
        second == 0 && minute == 7
    } else {
        second == 0
    }
}
