//! Records as operators see them.

use crate::job::Job;
use crate::job::record::{Position, RunRecord};
use crate::plan::first_undecided;
use crate::schedule::ScheduleKind;
use crate::time::rfc3339_ms;

use super::types::{JobObject, JobState, PausedObject, RunObject};

/// `None` when the definition in force cannot be decoded. `chain_ms`: when a job that runs some time
/// after its last run is due.
pub(super) fn job_object(
    job: &Job,
    active_runs: usize,
    chain_ms: Option<i64>,
    now_ms: i64,
) -> Option<JobObject> {
    let definition = job.definition()?;
    let record = &job.record;
    let schedule = &definition.schedule;
    let paused = record.paused_at(now_ms);
    let chain_ms = chain_ms.filter(|_| definition.spec.enabled);
    let next_ms = match paused.map(|paused| paused.until_ms) {
        None => next_after(job, now_ms).or(chain_ms),
        Some(Some(until_ms)) => next_after(job, now_ms.max(until_ms.saturating_sub(1)))
            .or(chain_ms.map(|chain_ms| chain_ms.max(until_ms))),
        Some(None) => None,
    };
    let state = if paused.is_some() {
        JobState::Paused
    } else if !definition.spec.enabled {
        JobState::Disabled
    } else if schedule.kind() == ScheduleKind::OnDemand {
        JobState::OnDemand
    } else if next_ms.is_none() && schedule.is_on_the_time_line() {
        JobState::Exhausted
    } else {
        JobState::Active
    };
    let last_ms = schedule
        .previous(now_ms.saturating_add(1))
        .map(|o| o.at_ms)
        .filter(|at| *at >= record.created_ms);
    Some(JobObject {
        spec: (*definition.spec).clone(),
        generation: record.generation,
        revision: job.modified.0,
        state,
        paused: paused.map(|paused| PausedObject {
            since: rfc3339_ms(paused.since_ms),
            until: paused.until_ms.map(rfc3339_ms),
            by: paused.by.clone(),
            reason: paused.reason.clone(),
            all: Some(paused) == record.paused_all.as_deref(),
        }),
        created_at: rfc3339_ms(record.created_ms),
        updated_at: rfc3339_ms(record.updated_ms),
        next_at: next_ms.map(rfc3339_ms),
        last_at: last_ms.map(rfc3339_ms),
        active_runs: active_runs as u64,
    })
}

/// The job's first instant after `at_ms`, as far as its definitions are known.
pub(super) fn next_after(job: &Job, at_ms: i64) -> Option<i64> {
    first_undecided(job, &Position::end_of(at_ms))
}

pub(crate) fn run_object(record: &RunRecord, late_result: Option<String>) -> RunObject {
    let reason = record
        .failed
        .map(|reason| reason.as_str())
        .or(record.skipped.map(|reason| reason.as_str()));
    RunObject {
        run_id: record.run.clone(),
        job_id: record.job.clone(),
        kind: record.kind,
        scheduled_at: rfc3339_ms(record.scheduled_ms),
        state: record.state,
        reason: reason.map(str::to_owned),
        attempt: record.attempt,
        shard: record.shard.as_ref().map(|shard| shard.index),
        shards: match (&record.shard, &record.parts) {
            (Some(shard), _) => Some(shard.total),
            (None, Some(parts)) => Some(parts.total).filter(|total| *total > 0),
            (None, None) => None,
        },
        node: record.owner.as_ref().map(|owner| owner.node.clone()),
        fencing_token: record.token.map(|token| token.to_string()),
        created_at: rfc3339_ms(record.created_ms),
        locked_at: record.locked_ms.map(rfc3339_ms),
        started_at: record.started_ms.map(rfc3339_ms),
        ended_at: record.ended_ms.map(rfc3339_ms),
        not_before: (record.not_before_ms > record.scheduled_ms.max(record.created_ms))
            .then(|| rfc3339_ms(record.not_before_ms)),
        exit_code: record.exit_code,
        error: record.error.clone(),
        output_tail: record.output_tail.clone(),
        output_truncated: record.output_truncated,
        stands_for: record.stands_for,
        stands_from: record.stands_from_ms.map(rfc3339_ms),
        trace_id: record.trace_id(),
        late_result,
        triggered_by: record.cause.as_ref().map(|cause| cause.run.clone()),
        generation: record.generation,
    }
}
