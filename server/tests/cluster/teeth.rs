//! What a real cluster left behind, spoiled on purpose: the checkers must say so.

use punctual::backend::Event;
use punctual::keys::Keys;
use punctual_tests::check::Violation;
use punctual_tests::cluster::{Cluster, jobs};
use punctual_tests::sim::world::{NAMESPACE, Observed};

use crate::{Story, binary};

fn finds(violations: &[Violation], invariant: &str) {
    let found = violations.iter().any(|v| v.invariant == invariant);
    assert!(found, "{invariant}: {violations:#?}");
}

/// Takes the first event under `run/` out of the log that creates something.
fn forget_a_run(observed: &mut Observed) {
    let runs = Keys::new(NAMESPACE).runs();
    let forgotten = observed.log.iter_mut().find_map(|logged| {
        let place = logged.events.iter().position(|event| {
            matches!(event, Event::Put(entry)
                if runs.contains(&entry.key) && entry.created == entry.modified)
        })?;
        let Event::Put(entry) = logged.events.remove(place) else {
            return None;
        };
        Some(entry.key)
    });
    let key = forgotten.expect("a run was made");
    for logged in &mut observed.log {
        logged.events.retain(|event| event.key() != key);
    }
}

#[test]
fn what_is_spoiled_is_found() {
    let story = Story::begin("nothing happens, and then the witnesses lie");
    let mut cluster = Cluster::start(binary(), 1, jobs::few(), 5);
    cluster.wait_for_fires(5);
    let (mut observed, report) = story.end(cluster);
    assert!(report.fires >= 5, "{report}");
    let spoil = |observed: &mut Observed, how: &dyn Fn(&mut Observed)| {
        let log = observed.log.clone();
        let effects = observed.effects.clone();
        how(observed);
        let found = Cluster::judge(observed);
        (observed.log, observed.effects) = (log, effects);
        found
    };

    let missed = spoil(&mut observed, &forget_a_run);
    finds(&missed, "no miss");

    let twice = spoil(&mut observed, &|observed| {
        let again = observed.effects[0].clone();
        observed.effects.push(again);
    });
    finds(&twice, "at most one start an attempt");
    finds(&twice, "tokens are unique");

    let gone = spoil(&mut observed, &|observed| {
        let job = |effect: &&punctual_tests::sim::ledger::Effect| effect.job == "tick";
        let run = observed.effects.iter().find(job).unwrap().run.clone();
        observed.effects.retain(|effect| effect.run != run);
    });
    finds(&gone, "SUCCESS implies a completed effect");

    let unborn = spoil(&mut observed, &|observed| {
        observed.effects[0].token += 1;
    });
    finds(&unborn, "RUNNING is durable before the code starts");

    let leader = Keys::new(NAMESPACE).leader();
    let leaderless = spoil(&mut observed, &|observed| {
        for logged in &mut observed.log {
            logged.events.retain(|event| event.key() != leader);
        }
    });
    finds(&leaderless, "leaders write under their own term");

    let sessionless = spoil(&mut observed, &|observed| {
        let nodes = Keys::new(NAMESPACE).nodes();
        for logged in &mut observed.log {
            logged.events.retain(|event| !nodes.contains(event.key()));
        }
    });
    finds(&sessionless, "claims and starts only under a live session");
}
