//! Random sequences of requests against a backend and against the model: all answers, all watches
//! and the final state must be equal.
//!
//! `MODEL_CASES=100000 PROPTEST_RNG_SEED=7 cargo test -p punctual-tests --test model` looks longer,
//! and again at the same place. A failure is shrunk and printed as the steps that lead to it.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and says what it met"
)]

mod run;
mod steps;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseResult, TestRunner};
use punctual::model::Retention;
use run::{Counts, Memory, Sled, run};
use steps::{Step, sequence};

fn config(cases: u32) -> ProptestConfig {
    let cases = std::env::var("MODEL_CASES").map_or(cases, |cases| cases.parse().unwrap());
    ProptestConfig {
        cases,
        // Tests write nothing into the work tree; the shrunk steps are printed.
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..ProptestConfig::default()
    }
}

/// Runs sequences and makes sure afterwards that they met what they are meant to meet.
fn explore(
    cases: u32,
    steps: impl Strategy<Value = Vec<Step>>,
    case: impl Fn(&[Step], Retention, &mut Counts) -> TestCaseResult,
) {
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
    counts.into_inner().check();
}

#[test]
fn memory_answers_as_the_model_does() {
    explore(10_000, sequence(40, false), |steps, retention, counts| {
        run(&mut Memory::new(retention), retention, steps, counts)
    });
}

#[test]
fn sled_answers_as_the_model_does() {
    explore(5_000, sequence(30, false), |steps, retention, counts| {
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
    explore(5_000, sequence(30, true), |steps, retention, counts| {
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
    explore(600, sequence(60, true), |steps, retention, counts| {
        run(&mut Sled::new(retention, 0), retention, steps, counts)
    });
}
