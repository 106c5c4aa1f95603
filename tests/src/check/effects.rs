//! What the executed code itself saw: at most one start an attempt, a completed effect behind each
//! success, tokens that grow, no two executions of one run at once.

use std::collections::BTreeMap;

use punctual::job::run::{FailReason, RunState};
use punctual::keys::AttemptKey;

use super::history::{History, Violation, token};
use crate::sim::ledger::Effect;

/// Checks it.
#[must_use]
pub fn check(history: &History<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut by_attempt: ByAttempt<'_> = BTreeMap::new();
    let mut by_run: BTreeMap<&str, Vec<&Effect>> = BTreeMap::new();
    for effect in &history.observed.effects {
        by_attempt
            .entry((effect.run.clone(), effect.attempt))
            .or_default()
            .push(effect);
        by_run.entry(&effect.run).or_default().push(effect);
    }
    for ((run, attempt), starts) in by_attempt.iter().filter(|(_, starts)| starts.len() > 1) {
        let times: Vec<u64> = starts.iter().map(|e| e.start_ms).collect();
        violations.push(Violation::new(
            "at most one start an attempt",
            format!("{run} attempt {attempt} at {times:?} ms"),
        ));
    }
    let running = running(history);
    for effect in &history.observed.effects {
        let known = running.get(&(effect.run.clone(), effect.attempt));
        if !known.is_some_and(|known| {
            known
                .iter()
                // The token holds the revision of RUNNING: who knows it came later.
                .any(|(token, at)| {
                    *token == effect.token && (history.observed.by_watch || *at <= effect.start_ms)
                })
        }) {
            violations.push(Violation::new(
                "RUNNING is durable before the code starts",
                format!("{effect:?}; RUNNING: {known:?}"),
            ));
        }
        let early = history.virtual_ms(effect.scheduled_ms) - effect.start_ms.cast_signed();
        if early > history.observed.plan.skew_ms() && !effect.run.contains("~m-") {
            violations.push(Violation::new(
                "never early",
                format!("{} started {early} ms before its instant", effect.run),
            ));
        }
    }
    violations.extend(ends(history, &by_attempt));
    violations.extend(unique_tokens(&history.observed.effects));
    for (run, effects) in by_run {
        violations.extend(growing_tokens(run, &effects));
        violations.extend(together(history, run, &effects));
    }
    violations
}

/// Executions by run and attempt.
type ByAttempt<'a> = BTreeMap<(String, u32), Vec<&'a Effect>>;

/// Token and time of each RUNNING record.
fn running(history: &History<'_>) -> BTreeMap<(String, u32), Vec<(u64, u64)>> {
    let mut all: BTreeMap<(String, u32), Vec<(u64, u64)>> = BTreeMap::new();
    for (revised, done, step) in history.steps() {
        if let Some(after) = step.after.as_ref().filter(|_| !done)
            && after.record.state == RunState::Running
        {
            all.entry((step.key.run.clone(), step.key.attempt))
                .or_default()
                .push((token(after), revised.at_ms));
        }
    }
    all
}

fn ends(history: &History<'_>, by_attempt: &ByAttempt<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (revised, done, step) in history.steps() {
        let Some(after) = step.after.as_ref().filter(|_| done) else {
            continue;
        };
        let AttemptKey { run, attempt, .. } = &step.key;
        let effects = by_attempt.get(&(run.clone(), *attempt));
        if after.record.failed == Some(FailReason::NotStarted) && effects.is_some() {
            violations.push(Violation::new(
                "not_started means that nothing ran",
                format!("{run} attempt {attempt}: {effects:?}"),
            ));
        }
        // What a run in parts does its parts do.
        if after.record.state == RunState::Success && after.record.parts.is_none() {
            let completed = effects.is_some_and(|effects| {
                effects
                    .iter()
                    .any(|e| e.completed && e.end_ms.is_some_and(|end| end <= revised.at_ms))
            });
            if !completed {
                violations.push(Violation::new(
                    "SUCCESS implies a completed effect",
                    format!("{run} attempt {attempt}: {effects:?}"),
                ));
            }
        }
        if let (Some(effects), Some(token)) = (effects, after.record.token)
            && effects.iter().any(|e| e.token != token)
        {
            violations.push(Violation::new(
                "the record names the token of its execution",
                format!("{run} attempt {attempt}: {token}, {effects:?}"),
            ));
        }
    }
    violations
}

/// Without repetition over the whole namespace.
fn unique_tokens(effects: &[Effect]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut all: BTreeMap<u64, &Effect> = BTreeMap::new();
    for effect in effects {
        if let Some(other) = all.insert(effect.token, effect) {
            violations.push(Violation::new(
                "tokens are unique",
                format!("{effect:?} and {other:?}"),
            ));
        }
    }
    violations
}

/// A later attempt of a run has a larger token.
fn growing_tokens(run: &str, effects: &[&Effect]) -> Vec<Violation> {
    let mut in_order = effects.to_vec();
    in_order.sort_by_key(|e| e.attempt);
    in_order
        .windows(2)
        .filter(|pair| pair[0].attempt < pair[1].attempt && pair[0].token >= pair[1].token)
        .map(|pair| {
            Violation::new(
                "tokens grow from attempt to attempt",
                format!("{run}: {:?}, then {:?}", pair[0], pair[1]),
            )
        })
        .collect()
}

/// Whether its process stood still while the code ran, or shortly before.
pub(super) fn stood_still(history: &History<'_>, effect: &Effect) -> bool {
    let end_ms = effect.end_ms.unwrap_or(u64::MAX);
    history.observed.lives.get(&effect.proc).is_none_or(|life| {
        life.paused
            .iter()
            .any(|(from, until)| *from <= end_ms && *until + 20_000 >= effect.start_ms)
    })
}

/// Two executions of one run at once. A process that stood still, or that stood still shortly
/// before, cannot stop its code in time; that is what fencing tokens are for.
fn together(history: &History<'_>, run: &str, effects: &[&Effect]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let end = |e: &Effect| e.end_ms.unwrap_or(u64::MAX);
    let stood_still = |e: &Effect| stood_still(history, e);
    for (index, a) in effects.iter().enumerate() {
        for b in &effects[index + 1..] {
            let overlap = a.start_ms < end(b) && b.start_ms < end(a);
            if overlap && !stood_still(a) && !stood_still(b) {
                violations.push(Violation::new(
                    "two executions of one run never overlap",
                    format!("{run}: {a:?} and {b:?}"),
                ));
            }
        }
    }
    violations
}
