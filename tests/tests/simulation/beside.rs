//! What guards the writes beside the cursor, taken away: the runs after a success, the next run after a
//! rest, the note that a run is late, and the attempt that follows another one.

use punctual_tests::check::check;
use punctual_tests::sim::ablation::{Ablation, Ablations};
use punctual_tests::sim::world::simulate;

use super::{caught, caught_among, plan};

/// Without these nothing breaks this, in seeds in which it breaks without one more.
fn covers(name: &str, ablation: Ablation, seeds: &[u64], invariant: &str) {
    for seed in seeds {
        let mut plan = plan(name, *seed);
        plan.ablation = ablation.into();
        let failed = check(&simulate(&plan));
        assert!(failed.iter().all(|v| v.invariant != invariant), "{seed}");
    }
}

#[test]
fn without_a_note_in_the_transaction_that_ends_a_run_nothing_comes_after_it() {
    let invariant = "each success is followed";
    caught("chains", Ablation::ChainNote, 2, &[invariant]);
}

#[test]
fn without_the_follower_as_read_a_paused_job_is_run_after_another() {
    let invariant = "a paused job is not run after another";
    caught("chains", Ablation::FollowJob, 10, &[invariant]);
}

#[test]
fn without_the_last_run_by_name_a_chain_is_made_again() {
    let invariants = ["an attempt is created once", "legal edges only"];
    caught_among("chains", Ablation::NextLast, 3..20, &invariants);
}

#[test]
fn without_the_job_as_read_a_chain_goes_on_while_it_is_held() {
    // Rare: one seed in thirty or so.
    let invariant = "a chain runs only while its job says so";
    caught_among("chains", Ablation::NextJob, 28..100, &[invariant]);
}

/// A copy of the request finds the note and the counter changed: either is enough. (What a leader's view
/// brings once more is stopped by the note alone, rarely.)
#[test]
fn without_note_and_counter_followers_are_decided_twice() {
    let invariant = "each success is followed once";
    let both = Ablations::from_iter([Ablation::FollowNote, Ablation::BesideSeq]);
    caught("chains", both, 1, &[invariant]);
    covers("chains", Ablation::FollowNote, &[0], invariant);
    covers("chains", Ablation::BesideSeq, &[0], invariant);
}

/// Somebody repeats the last run of a chain while the next one is made: that takes the counter, too.
#[test]
fn without_counter_and_proof_a_chain_has_two_runs() {
    let invariant = "one run of a chain at a time";
    let both = Ablations::from_iter([Ablation::BesideSeq, Ablation::NextOver]);
    caught_among("chains", both, 2..20, &[invariant]);
    covers("chains", Ablation::BesideSeq, &[2], invariant);
    covers("chains", Ablation::NextOver, &[2], invariant);
}

/// Whoever hears late that a run has started would call it late.
#[test]
fn without_the_run_as_read_what_is_not_late_is_called_so() {
    let invariant = "nobody is told what did not happen";
    caught_among("late-news", Ablation::LateRun, 15..60, &[invariant]);
}

/// A leader whose view is behind would note it again; and a note that is on its way while the next leader
/// writes and sends its own would replace that. (The term stops the latter, too.)
#[test]
fn without_absence_of_a_note_an_event_has_two_texts() {
    let invariant = "all copies of an event are the same";
    caught("late-news", Ablation::LateOnce, 60, &[invariant]);
    let both = Ablations::from_iter([Ablation::Term, Ablation::LateOnce]);
    caught_among("late-news", both, 23..60, &[invariant]);
    covers("late-news", Ablation::Term, &[23, 30, 31], invariant);
}

#[test]
fn without_its_conditions_a_retry_follows_what_is_called_off_or_gone() {
    let invariant = "no retry of a run that is to end";
    caught("checkpoints", Ablation::RetryWish, 60, &[invariant]);
    let invariant = "no retry of a job that is gone";
    caught("checkpoints", Ablation::RetryJob, 60, &[invariant]);
}
