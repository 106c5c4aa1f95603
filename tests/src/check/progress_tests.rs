//! The checker of progress, on a right history and on the same with one thing wrong.

use punctual::backend::{Entry, Event};
use punctual::duration::Millis;
use punctual::job::progress::ProgressRecord;
use punctual::job::record::{decode, encode};
use punctual::job::spec::JobSpec;
use punctual::keys::Keys;
use serde_json::json;

use super::tests::{calm, finds};
use crate::sim::workload::HANDLER;
use crate::sim::world::{NAMESPACE, Observed};

/// Each run succeeds in its third attempt, and keeps three checkpoints an attempt.
fn right() -> Observed {
    let mut spec = JobSpec::handler("job", HANDLER).cron("*/20 * * * * *");
    spec.payload = json!({ "does": "flaky", "ms": 2_500, "saves": 100 });
    spec.retry.attempts = Some(3);
    spec.retry.backoff = Millis::from_ms(200);
    let observed = calm(spec);
    let kept: Vec<usize> = observed.effects.iter().map(|e| e.kept.len()).collect();
    assert_eq!(kept[..3], [3, 3, 3]);
    let given = |n: usize| observed.effects[n].given.as_deref();
    assert_eq!(
        (given(0), given(1), given(2)),
        (None, Some("0001.000003"), Some("0002.000003"))
    );
    observed
}

/// The writes of progress, in their order.
fn puts(observed: &mut Observed) -> Vec<(u64, &mut Entry)> {
    let keys = Keys::new(NAMESPACE);
    let mut found = Vec::new();
    for logged in &mut observed.log {
        for event in &mut logged.events {
            if let Event::Put(entry) = event
                && keys.parse_progress(&entry.key).is_some()
            {
                found.push((logged.at_ms, entry));
            }
        }
    }
    found
}

fn rewrite(observed: &mut Observed, index: usize, change: impl Fn(&mut ProgressRecord)) {
    let entry = puts(observed).swap_remove(index).1;
    let mut record: ProgressRecord = decode(&entry.value).unwrap();
    change(&mut record);
    entry.value = encode(&record);
}

#[test]
fn a_write_of_another_attempt_than_the_one_that_runs_is_seen() {
    let invariant = "only an attempt that is RUNNING writes its run's progress";
    let mut observed = right();
    rewrite(&mut observed, 4, |record| record.attempt = 1);
    finds(&observed, invariant);
    let mut observed = right();
    rewrite(&mut observed, 4, |record| record.token += 1);
    finds(&observed, invariant);
    // Just behind the end of its attempt.
    let mut observed = right();
    let (_, late) = puts(&mut observed).swap_remove(2);
    let late = Event::Put(late.clone());
    let key = late.key().to_vec();
    let end = observed.log.iter().position(|logged| {
        logged.events.iter().any(|event| {
            matches!(event, Event::Put(entry)
                if String::from_utf8_lossy(&entry.key).contains("/done/"))
        })
    });
    observed.log[end.unwrap() + 1].events.push(late);
    assert!(key.len() > 10);
    finds(&observed, invariant);
}

#[test]
fn a_checkpoint_that_comes_from_nowhere_or_is_forgotten_is_seen() {
    let invariant = "an attempt is given what stood when it began";
    let mut observed = right();
    observed.effects[1].given = Some("0001.000009".into());
    finds(&observed, invariant);
    let mut observed = right();
    observed.effects[1].given = None;
    finds(&observed, invariant);
    let invariant = "each later attempt is given the last kept checkpoint, or a later one";
    finds(&observed, invariant);
    // Two attempts later it counts as well.
    let mut observed = right();
    observed.effects[1].kept.clear();
    observed.effects[2].given = Some("0001.000002".into());
    finds(&observed, invariant);
}

#[test]
fn a_checkpoint_that_is_said_to_be_kept_too_soon_is_seen() {
    let invariant = "a checkpoint that is said to be kept stands";
    let mut observed = right();
    observed.effects[0].kept[1].1 -= 900;
    finds(&observed, invariant);
    let mut observed = right();
    observed.effects[2]
        .kept
        .push(("0003.000008".into(), 80_000));
    finds(&observed, invariant);
}

#[test]
fn a_checkpoint_that_goes_back_is_seen() {
    let mut observed = right();
    rewrite(&mut observed, 4, |record| {
        let checkpoint = record.checkpoint.as_mut().unwrap();
        checkpoint.bytes = b"0001.000001".to_vec();
    });
    finds(&observed, "checkpoints of a run only go forward");
}

#[test]
fn progress_that_outlives_its_run_is_seen() {
    let keys = Keys::new(NAMESPACE);
    let mut observed = right();
    for logged in &mut observed.log {
        logged.events.retain(|event| {
            !matches!(event, Event::Delete { key, .. } if keys.parse_progress(key).is_some())
        });
    }
    finds(&observed, "no progress without an unfinished run");
}

#[test]
fn writes_that_come_too_fast_are_seen() {
    let mut observed = right();
    let second = puts(&mut observed)[1].0;
    for logged in &mut observed.log {
        if logged.at_ms == second {
            logged.at_ms -= 100;
        }
    }
    finds(
        &observed,
        "a run's progress is written once a second at most",
    );
}
