//! The checkers on a small right history, and on the same history with one thing wrong.

use punctual::backend::Event;
use punctual::duration::Millis;
use punctual::job::record::{CursorRecord, JobRecord, Paused, Position, RunRecord, decode, encode};
use punctual::job::run::RunState;
use punctual::job::spec::JobSpec;
use punctual::keys::Keys;
use serde_json::json;

use super::check;
use crate::sim::ablation::Ablations;
use crate::sim::schedule::{NodePlan, Op, Plan, Times};
use crate::sim::workload::HANDLER;
use crate::sim::world::{NAMESPACE, Observed, simulate};

/// One node, one job every ten seconds, nothing goes wrong.
fn right() -> Observed {
    let mut spec = JobSpec::handler("job", HANDLER).cron("*/10 * * * * *");
    spec.payload = json!({ "does": "ok", "ms": 100 });
    let observed = calm(spec);
    assert!(observed.effects.len() >= 6, "{:?}", observed.effects);
    observed
}

/// One node, this job, nothing goes wrong.
pub(super) fn calm(spec: JobSpec) -> Observed {
    calm_with(vec![spec])
}

/// The same with these jobs.
fn calm_with(jobs: Vec<JobSpec>) -> Observed {
    let put = |(at, spec): (u64, JobSpec)| (1_000 * at, 0, Op::Put(Box::new(spec)));
    let ops = (1..).zip(jobs).map(put).collect();
    let observed = simulate(&Plan {
        seed: 1,
        scenario: "calm".into(),
        epoch_ms: 1_772_323_200_000,
        nodes: vec![NodePlan {
            mono_base_ms: 0,
            drift_ppm: 0,
            offset_ms: 0,
            slots: 4,
            has_handler: true,
            start_ms: 0,
        }],
        relist_ms: 60_000,
        overdue_takeover_ms: 1_000,
        times: Times::default(),
        faults: vec![],
        ops,
        heal_ms: 60_000,
        end_ms: 90_000,
        ablation: Ablations::default(),
        naive: false,
    });
    assert_eq!(check(&observed), []);
    observed
}

pub(super) fn finds(observed: &Observed, invariant: &str) {
    let found = check(observed);
    assert!(
        found
            .iter()
            .any(|violation| violation.invariant == invariant),
        "{invariant}: {found:#?}"
    );
}

/// Places in the log of the puts under `run/` or `done/` in this state.
pub(super) fn puts(observed: &Observed, state: RunState) -> Vec<(usize, usize)> {
    let keys = Keys::new(NAMESPACE);
    let mut found = Vec::new();
    for (at, logged) in observed.log.iter().enumerate() {
        for (index, event) in logged.events.iter().enumerate() {
            if let Event::Put(entry) = event
                && keys.parse_attempt(&entry.key).is_some()
                && decode::<RunRecord>(&entry.value).is_ok_and(|r| r.state == state)
            {
                found.push((at, index));
            }
        }
    }
    found
}

fn rewrite(observed: &mut Observed, at: (usize, usize), change: impl Fn(&mut RunRecord)) {
    if let Event::Put(entry) = &mut observed.log[at.0].events[at.1] {
        let mut record: RunRecord = decode(&entry.value).unwrap();
        change(&mut record);
        entry.value = encode(&record);
    }
}

#[test]
fn a_fire_that_is_left_out_is_a_miss() {
    let mut observed = right();
    let (at, index) = puts(&observed, RunState::Pending)[2];
    let key = observed.log[at].events[index].key().to_vec();
    for logged in &mut observed.log {
        logged.events.retain(|event| event.key() != key);
    }
    finds(&observed, "no miss");
}

#[test]
fn a_fire_of_another_second_is_a_phantom_and_a_miss() {
    let mut observed = right();
    let at = puts(&observed, RunState::Pending)[2];
    rewrite(&mut observed, at, |record| record.scheduled_ms += 1_000);
    finds(&observed, "no phantom");
    finds(&observed, "no miss");
}

#[test]
fn a_decision_before_its_time_is_early() {
    let mut observed = right();
    let (at, _) = puts(&observed, RunState::Pending)[2];
    observed.log[at].at_ms -= 3_000;
    finds(&observed, "never early");
}

#[test]
fn two_decisions_for_one_instant_are_a_duplicate() {
    let mut observed = right();
    let fires = puts(&observed, RunState::Pending);
    let mut again = observed.log[fires[1].0].events[fires[1].1].clone();
    if let Event::Put(entry) = &mut again {
        entry.key = [&entry.key[..entry.key.len() - 5], b"x/0001"].concat();
    }
    observed.log[fires[2].0].events.push(again);
    finds(&observed, "no duplicate");
}

#[test]
fn an_attempt_that_comes_back_is_seen() {
    let mut observed = right();
    let fires = puts(&observed, RunState::Pending);
    let again = observed.log[fires[0].0].events[fires[0].1].clone();
    observed.log[fires[3].0].events.push(again);
    finds(&observed, "an attempt is created once");
}

#[test]
fn a_skipped_edge_is_illegal() {
    let mut observed = right();
    let at = puts(&observed, RunState::Locked)[0];
    rewrite(&mut observed, at, |record| record.state = RunState::Running);
    finds(&observed, "legal edges only");
}

#[test]
fn a_terminal_record_that_changes_is_seen() {
    let mut observed = right();
    let done = puts(&observed, RunState::Success);
    let again = observed.log[done[0].0].events[done[0].1].clone();
    observed.log[done[1].0].events.push(again);
    finds(&observed, "terminal records never change");
}

#[test]
fn a_cursor_that_goes_back_is_seen() {
    let mut observed = right();
    let keys = Keys::new(NAMESPACE);
    let last = observed
        .log
        .iter_mut()
        .flat_map(|logged| &mut logged.events)
        .rfind(|event| keys.cursors().contains(event.key()));
    if let Some(Event::Put(entry)) = last {
        let mut cursor: CursorRecord = decode(&entry.value).unwrap();
        cursor.position = Position::end_of(0);
        entry.value = encode(&cursor);
    }
    finds(&observed, "the cursor goes forward");
}

#[test]
fn a_cursor_moved_by_somebody_else_is_seen() {
    let mut observed = right();
    let (at, _) = puts(&observed, RunState::Pending)[1];
    observed.log[at].writer = Some(99);
    finds(&observed, "leaders write under their own term");
}

#[test]
fn a_second_start_is_seen() {
    let mut observed = right();
    let again = observed.effects[0].clone();
    observed.effects.push(again);
    finds(&observed, "at most one start an attempt");
    finds(&observed, "two executions of one run never overlap");
    finds(&observed, "tokens are unique");
}

#[test]
fn a_success_without_its_effect_is_seen() {
    let mut observed = right();
    observed.effects[0].completed = false;
    finds(&observed, "SUCCESS implies a completed effect");
}

#[test]
fn an_effect_before_running_is_seen() {
    let mut observed = right();
    observed.effects[0].start_ms = 0;
    finds(&observed, "RUNNING is durable before the code starts");
}

#[test]
fn a_claim_without_a_session_is_seen() {
    let mut observed = right();
    let keys = Keys::new(NAMESPACE);
    for logged in &mut observed.log {
        logged
            .events
            .retain(|event| !keys.nodes().contains(event.key()));
    }
    finds(&observed, "claims and starts only under a live session");
}

#[test]
fn a_run_of_a_job_that_is_gone_is_seen() {
    let mut observed = right();
    let at = puts(&observed, RunState::Pending)[1];
    rewrite(&mut observed, at, |record| record.job_uid = 999);
    finds(&observed, "nothing is created after a pause or delete");
}

#[test]
fn a_change_that_is_acknowledged_and_not_there_is_seen() {
    let mut observed = right();
    observed.asked[0].op = Op::Pause("job".into());
    finds(&observed, "acknowledged writes are durable");
}

#[test]
fn a_cluster_without_a_leader_is_seen() {
    let mut observed = right();
    let leader = Keys::new(NAMESPACE).leader();
    for logged in &mut observed.log {
        logged.events.retain(|event| event.key() != leader);
    }
    finds(&observed, "after healing, a living node leads");
}

#[test]
fn a_leadership_that_flaps_is_seen() {
    let mut observed = right();
    let leader = Keys::new(NAMESPACE).leader();
    let began = observed
        .log
        .iter()
        .position(|logged| logged.events.iter().any(|event| event.key() == leader))
        .unwrap();
    let place = observed.log[began]
        .events
        .iter()
        .position(|event| event.key() == leader)
        .unwrap();
    let put = observed.log[began].events[place].clone();
    let at = observed.log.len() - 1;
    for n in 0..22 {
        let mut logged = observed.log[at].clone();
        logged.revision.0 += n + 1;
        logged.at_ms += n * 1_000;
        logged.writer = observed.log[began].writer;
        logged.events = vec![if n % 2 == 0 {
            Event::Delete {
                key: leader.clone(),
                revision: logged.revision,
            }
        } else {
            put.clone()
        }];
        observed.log.push(logged);
    }
    finds(&observed, "leadership does not flap");
}

#[test]
fn a_change_that_nobody_asked_for_is_seen() {
    let mut observed = right();
    observed.asked.clear();
    finds(&observed, "a change applies at most once");
}

#[test]
fn a_policy_that_looks_past_its_window_is_seen() {
    let mut observed = right();
    let keys = Keys::new(NAMESPACE);
    for event in observed
        .log
        .iter_mut()
        .flat_map(|logged| &mut logged.events)
    {
        let Event::Put(entry) = event else { continue };
        if keys.parse_def(&entry.key).is_some() {
            let mut spec: JobSpec = decode(&entry.value).unwrap();
            spec.misfire = punctual::job::spec::Misfire::Skip;
            entry.value = encode(&spec);
        }
    }
    if let Op::Put(spec) = &mut observed.asked[0].op {
        spec.misfire = punctual::job::spec::Misfire::Skip;
    }
    assert_eq!(check(&observed), [], "nothing is missed in short windows");
    for event in observed
        .log
        .iter_mut()
        .flat_map(|logged| &mut logged.events)
    {
        let Event::Put(entry) = event else { continue };
        if keys.parse_cursor(&entry.key).is_some() {
            let mut cursor: CursorRecord = decode(&entry.value).unwrap();
            cursor.window.until_ms += 3_600_000;
            cursor.position = Position::end_of(cursor.window.until_ms);
            entry.value = encode(&cursor);
        }
    }
    finds(&observed, "policies decide by the window");
}

#[test]
fn a_window_that_is_opened_anew_is_seen() {
    let mut observed = right();
    let keys = Keys::new(NAMESPACE);
    let mut nth = 0;
    for event in observed
        .log
        .iter_mut()
        .flat_map(|logged| &mut logged.events)
    {
        let Event::Put(entry) = event else { continue };
        if keys.parse_cursor(&entry.key).is_some() {
            let mut cursor: CursorRecord = decode(&entry.value).unwrap();
            nth += 1;
            // All partitions are made at once; the next puts are the job's fires.
            if nth == 18 {
                cursor.position = Position::end_of(cursor.window.until_ms - 1);
                entry.value = encode(&cursor);
            }
        }
    }
    finds(&observed, "an open window is finished as it was opened");
}

/// A job that runs after another.
fn chained() -> Observed {
    let mut first = JobSpec::handler("job", HANDLER).cron("*/10 * * * * *");
    first.payload = json!({ "does": "ok", "ms": 100 });
    let mut second = JobSpec::handler("second", HANDLER);
    second.payload = first.payload.clone();
    second.after = vec!["job".into()];
    calm_with(vec![first, second])
}

/// Places in the log of the PENDING runs of the second job.
fn seconds(observed: &Observed) -> Vec<(usize, usize)> {
    let of_second = |(at, index): &(usize, usize)| {
        let key = observed.log[*at].events[*index].key();
        String::from_utf8_lossy(key).contains("second~c-")
    };
    let pending = puts(observed, RunState::Pending);
    pending.into_iter().filter(of_second).collect()
}

#[test]
fn a_success_that_nobody_follows_is_seen() {
    let mut observed = chained();
    let (at, index) = seconds(&observed)[2];
    let key = observed.log[at].events[index].key().to_vec();
    for logged in &mut observed.log {
        logged.events.retain(|event| event.key() != key);
    }
    finds(&observed, "each success is followed");
    // The same when the note is never worked off, or never made.
    let mut observed = chained();
    let keys = Keys::new(NAMESPACE);
    for logged in &mut observed.log {
        let todos = |event: &Event| keys.todos().contains(event.key());
        logged.events.retain(|event| !todos(event));
    }
    finds(&observed, "each success is followed");
}

#[test]
fn a_success_that_is_followed_twice_or_by_a_paused_job_is_seen() {
    let mut observed = chained();
    let found = seconds(&observed);
    let (at, index) = found[1];
    let mut again = observed.log[at].events[index].clone();
    if let Event::Put(entry) = &mut again {
        entry.key = [&entry.key[..entry.key.len() - 5], b"x/0001"].concat();
    }
    observed.log[found[2].0].events.push(again);
    finds(&observed, "each success is followed once");

    let mut observed = chained();
    let keys = Keys::new(NAMESPACE);
    for event in observed
        .log
        .iter_mut()
        .flat_map(|logged| &mut logged.events)
    {
        if let Event::Put(entry) = event
            && let Some((_, Some(id))) = keys.parse_job(&entry.key)
            && id == "second"
        {
            let mut job: JobRecord = decode(&entry.value).unwrap();
            job.paused = Some(Box::new(Paused {
                since_ms: 0,
                until_ms: None,
                by: None,
                reason: None,
            }));
            entry.value = encode(&job);
        }
    }
    finds(&observed, "a paused job is not run after another");
}

/// A job that runs again a while after its last run.
fn again() -> Observed {
    let mut spec = JobSpec::handler("again", HANDLER);
    spec.schedule.after_finish = Some(Millis::from_secs(5));
    spec.payload = json!({ "does": "ok", "ms": 100 });
    calm(spec)
}

#[test]
fn a_chain_that_breaks_hurries_or_forks_is_seen() {
    let keys = Keys::new(NAMESPACE);
    // Nothing of the chain behind its fourth run.
    let mut observed = again();
    let (at, _) = puts(&observed, RunState::Pending)[4];
    for logged in &mut observed.log[at..] {
        logged.events.retain(|event| {
            let of_chain = keys.parse_delay(event.key()).is_some();
            !of_chain && keys.parse_attempt(event.key()).is_none()
        });
    }
    finds(&observed, "a chain never breaks");

    let mut observed = again();
    let (at, _) = puts(&observed, RunState::Pending)[3];
    observed.log[at].at_ms -= 4_000;
    finds(&observed, "a chain waits after the end");

    let mut observed = again();
    let found = puts(&observed, RunState::Pending);
    let mut second = observed.log[found[2].0].events[found[2].1].clone();
    if let Event::Put(entry) = &mut second {
        entry.key = [&entry.key[..entry.key.len() - 5], b"x/0001"].concat();
    }
    observed.log[found[2].0 + 1].events.push(second);
    finds(&observed, "one run of a chain at a time");

    let mut observed = again();
    for event in observed
        .log
        .iter_mut()
        .flat_map(|logged| &mut logged.events)
    {
        if let Event::Put(entry) = event
            && keys
                .parse_job(&entry.key)
                .is_some_and(|(_, id)| id.is_some())
        {
            let mut job: JobRecord = decode(&entry.value).unwrap();
            job.paused = Some(Box::new(Paused {
                since_ms: 0,
                until_ms: None,
                by: None,
                reason: None,
            }));
            entry.value = encode(&job);
        }
    }
    finds(&observed, "a chain runs only while its job says so");
}
