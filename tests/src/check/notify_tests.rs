//! The checker of who is told, on right histories and on the same with one thing wrong.

use punctual::duration::Millis;
use punctual::job::record::{RunRecord, decode, encode};
use punctual::job::run::{FailReason, RunState};
use punctual::job::spec::{JobSpec, NotifyEvent, NotifySpec};
use punctual::keys::part_id;
use serde_json::json;

use super::tests::{calm, finds, puts};
use super::{History, check, notify};
use crate::sim::told::Told;
use crate::sim::workload::HANDLER;
use crate::sim::world::Observed;

use NotifyEvent::{Failed, Late, Lost, Recovered};

const ASKED: &str = "https://all.example.org/";

/// A job every ten seconds that tells two receivers, and what they took.
fn observed(does: &str, change: impl Fn(&mut JobSpec)) -> Observed {
    let mut spec = JobSpec::handler("job", HANDLER).cron("*/10 * * * * *");
    spec.payload = json!({ "does": does, "ms": 100 });
    spec.retry.attempts = Some(1);
    spec.notify = vec![
        NotifySpec {
            webhook: ASKED.into(),
            on: NotifyEvent::ALL.to_vec(),
            late_after: Some(Millis::from_secs(2)),
        },
        NotifySpec {
            webhook: "https://lost.example.org/".into(),
            on: vec![Lost],
            late_after: None,
        },
    ];
    change(&mut spec);
    calm(spec)
}

/// The first message of this kind.
fn first(observed: &Observed, event: NotifyEvent) -> Told {
    let mut all = observed.told.iter().filter(|told| told.event == event);
    all.next().cloned().expect("a message")
}

/// Rewrites every copy of this message.
fn rewrite(observed: &mut Observed, of: &Told, change: impl Fn(&mut Told)) {
    let copies = observed.told.iter_mut().filter(|told| told.id == of.id);
    copies.for_each(change);
}

fn forget(observed: &mut Observed, of: &Told) {
    observed.told.retain(|told| told.id != of.id);
}

/// Rewrites the first record that ended like this.
fn rewrite_end(observed: &mut Observed, state: RunState, change: impl Fn(&mut RunRecord)) {
    let at = puts(observed, state)[0];
    let event = &mut observed.log[at.0].events[at.1];
    if let punctual::backend::Event::Put(entry) = event {
        let mut record: RunRecord = decode(&entry.value).unwrap();
        change(&mut record);
        entry.value = encode(&record);
    }
}

#[test]
fn a_message_that_never_came_is_missed_and_another_copy_is_not() {
    let mut quiet = observed("fail", |_| {});
    let told = first(&quiet, Failed);
    quiet.told.push(told.clone());
    assert_eq!(check(&quiet), [], "once or more");
    forget(&mut quiet, &told);
    finds(&quiet, "whoever asked is told");
}

#[test]
fn a_message_of_what_did_not_happen_is_seen() {
    let missing = "nobody is told what did not happen";
    let told = |observed: &mut Observed, change: &dyn Fn(&mut Told)| {
        let of = first(observed, Failed);
        rewrite(observed, &of, change);
    };
    let changes: [&dyn Fn(&mut Told); 4] = [
        &|told| told.run = "job@20260301T000007Z".into(),
        &|told| told.attempt += 1,
        &|told| told.event = Lost,
        &|told| told.webhook = "https://lost.example.org/".into(),
    ];
    for change in changes {
        let mut wrong = observed("fail", |_| {});
        told(&mut wrong, change);
        finds(&wrong, missing);
    }
    // An attempt that is followed by another one is no news.
    let mut early = observed("fail", |spec| spec.retry.attempts = Some(2));
    told(&mut early, &|told| told.attempt = 1);
    finds(&early, missing);
    // A success has to have followed something bad.
    let mut good = observed("ok", |_| {});
    assert_eq!(good.told, []);
    let run = first(&observed("fail", |_| {}), Failed);
    good.told.push(Told {
        event: Recovered,
        ..run
    });
    finds(&good, missing);
}

#[test]
fn a_message_before_its_time_is_seen() {
    let mut early = observed("fail", |_| {});
    let told = first(&early, Failed);
    rewrite(&mut early, &told, |told| told.at_ms = 0);
    finds(&early, "nobody is told before it happened");
}

#[test]
fn a_message_with_the_name_or_the_place_of_another_is_seen() {
    let mut renamed = observed("fail", |_| {});
    let told = first(&renamed, Failed);
    let last = renamed.told.last().cloned().unwrap();
    assert_ne!(told.run, last.run);
    rewrite(&mut renamed, &last, |other| other.id.clone_from(&told.id));
    finds(&renamed, "each event has a name of its own");

    let mut other_text = observed("fail", |_| {});
    other_text.told.push(Told {
        body: told.body ^ 1,
        ..told
    });
    finds(&other_text, "all copies of an event are the same");
}

#[test]
fn a_lost_run_is_told_as_lost_and_as_failed_only_to_those_who_know_no_other() {
    let mut lost = observed("fail", |_| {});
    rewrite_end(&mut lost, RunState::Failed, |record| {
        record.failed = Some(FailReason::WorkerLost);
    });
    finds(&lost, "whoever asked is told");
    finds(&lost, "nobody is told what did not happen");
    let told = first(&lost, Failed);
    rewrite(&mut lost, &told, |told| told.event = Lost);
    let found = notify::check(&History::new(&lost));
    let other: Vec<_> = found.iter().map(|violation| violation.invariant).collect();
    assert_eq!(other, ["whoever asked is told"], "the second receiver");
}

#[test]
fn a_recovery_that_is_not_told_is_missed() {
    let mut quiet = observed("fail", |_| {});
    assert!(quiet.told.iter().all(|told| told.event == Failed));
    // The second run is said to have gone well.
    let at = puts(&quiet, RunState::Failed)[1];
    if let punctual::backend::Event::Put(entry) = &mut quiet.log[at.0].events[at.1] {
        let mut record: RunRecord = decode(&entry.value).unwrap();
        record.state = RunState::Success;
        record.failed = None;
        entry.value = encode(&record);
    }
    let found = notify::check(&History::new(&quiet));
    let recovered = |text: &str| text.contains("Recovered");
    assert!(
        found
            .iter()
            .any(|v| v.invariant == "whoever asked is told" && recovered(&v.what)),
        "{found:#?}"
    );
}

#[test]
fn a_late_run_that_is_not_told_is_missed() {
    let waits = |spec: &mut JobSpec| {
        spec.payload = json!({ "does": "ok", "ms": 14_000 });
        spec.concurrency = Some(1);
    };
    let mut quiet = observed("ok", waits);
    let told = first(&quiet, Late);
    forget(&mut quiet, &told);
    finds(&quiet, "whoever asked is told");

    // One that has started in time is not late.
    let mut wrong = observed("ok", |_| {});
    let mut in_time = told;
    in_time.run = first(&observed("fail", |_| {}), Failed).run;
    wrong.told.push(in_time);
    finds(&wrong, "nobody is told what did not happen");
}

#[test]
fn of_a_run_in_parts_the_whole_is_told_and_no_part() {
    let mut parts = observed("fail", |spec| spec.fan_out = Some(2));
    let told = first(&parts, Failed);
    parts.told.push(Told {
        id: format!("{}.part", told.id),
        run: part_id(&told.run, 0),
        ..told.clone()
    });
    finds(&parts, "nobody is told what did not happen");
    let mut quiet = observed("fail", |spec| spec.fan_out = Some(2));
    forget(&mut quiet, &told);
    finds(&quiet, "whoever asked is told");

    // All of them wait behind others.
    let mut late = observed("ok", |spec| {
        spec.fan_out = Some(2);
        spec.payload = json!({ "does": "ok", "ms": 9_000 });
        spec.concurrency = Some(1);
    });
    let told = first(&late, Late);
    forget(&mut late, &told);
    finds(&late, "whoever asked is told");
}
