//! Random sequences of requests against a backend and against the model: all answers, all watches
//! and the final state must be equal.
//!
//! `MODEL_TIMES=20 cargo test -p punctual-tests --test model` looks twenty times as long. A failure
//! is shrunk and printed as the steps that lead to it.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and says what it met"
)]

mod counts;
mod run;
mod steps;

use counts::Counts;
use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};
use punctual::model::Retention;
use run::{Memory, Sled, run};
use steps::{Step, sequence};

fn config(cases: u32) -> ProptestConfig {
    let times = std::env::var("MODEL_TIMES").map_or(1, |times| times.parse().unwrap());
    ProptestConfig {
        cases: cases * times,
        // Tests write nothing into the work tree; the shrunk steps are printed.
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..ProptestConfig::default()
    }
}

/// A store that flushes waits for the disk more than it works, so several sequences run at once.
const AT_ONCE: u32 = 4;

/// Runs sequences and makes sure afterwards that they met what they are meant to meet.
fn explore(
    cases: u32,
    steps: impl Fn() -> BoxedStrategy<Vec<Step>> + Sync,
    case: impl Fn(&[Step], Retention, &mut Counts) -> TestCaseResult + Sync,
) {
    let share = || share(cases / AT_ONCE, steps(), &case);
    let counts = std::thread::scope(|scope| {
        let shares: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(share)).collect();
        let counts = shares.into_iter().map(|share| share.join());
        counts.collect::<Result<Vec<_>, _>>()
    });
    match counts {
        Ok(counts) => counts.into_iter().sum::<Counts>().check(),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn share(
    cases: u32,
    steps: BoxedStrategy<Vec<Step>>,
    case: impl Fn(&[Step], Retention, &mut Counts) -> TestCaseResult,
) -> Counts {
    let retention = prop_oneof![
        Just(Retention::default()),
        (1..6usize).prop_map(|revisions| Retention {
            revisions,
            ..Retention::default()
        }),
        (1..40usize).prop_map(|bytes| Retention {
            bytes,
            ..Retention::default()
        }),
    ];
    let counts = std::cell::RefCell::new(Counts::default());
    let mut runner = TestRunner::new(config(cases));
    runner
        .run(&(steps, retention), |(steps, retention)| {
            case(&steps, retention, &mut counts.borrow_mut())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
    counts.into_inner()
}

#[test]
fn memory_answers_as_the_model_does() {
    let steps = || sequence(40, false).boxed();
    explore(10_000, steps, |steps, retention, counts| {
        run(&mut Memory::new(retention), retention, steps, counts)
    });
}

#[test]
fn sled_answers_as_the_model_does() {
    let steps = || sequence(30, false).boxed();
    explore(5_000, steps, |steps, retention, counts| {
        run(
            &mut Sled::new(retention, u64::MAX),
            retention,
            steps,
            counts,
        )
    });
}

#[test]
fn sled_answers_as_the_model_does_over_restarts() {
    let steps = || sequence(30, true).boxed();
    explore(5_000, steps, |steps, retention, counts| {
        run(
            &mut Sled::new(retention, u64::MAX),
            retention,
            steps,
            counts,
        )
    });
}

#[test]
fn sled_answers_as_the_model_does_while_it_is_rewritten() {
    let steps = || sequence(60, true).boxed();
    explore(400, steps, |steps, retention, counts| {
        run(&mut Sled::new(retention, 0), retention, steps, counts)
    });
}
