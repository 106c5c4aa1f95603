//! Why a job fired at an instant, or did not: from what is recorded, in words, with the evidence.

use std::collections::BTreeSet;

use crate::backend::Revision;
use crate::job::Job;
use crate::job::record::{GoneRecord, LeaderRecord, NodeRecord, Paused, RunRecord, decode};
use crate::job::run::{RunState, SkipReason};
use crate::job::spec::Overlap;
use crate::plan::first_undecided;
use crate::schedule::Schedule;
use crate::time::rfc3339_ms;
use crate::worker::share::Peer;

use super::change::{Current, Heads};
use super::objects::{next_after, run_object};
use super::types::{ControlError, RunKind, Verdict, WhyObject};
use super::{Control, read};

/// Instants ahead that are told.
const NEXT: usize = 3;

/// What an answer is made of.
struct Known {
    heads: Heads,
    current: Current,
    records: Vec<RunRecord>,
    now_ms: i64,
}

/// An answer in the making.
struct Answer {
    verdict: Verdict,
    summary: String,
    evidence: Vec<String>,
    run: Option<RunRecord>,
}

impl Answer {
    fn new(verdict: Verdict, summary: impl Into<String>) -> Self {
        Self {
            verdict,
            summary: summary.into(),
            evidence: Vec::new(),
            run: None,
        }
    }

    fn with(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }
}

impl Control {
    /// What became of a job's instant at `at_ms`; if none is named, of its last one that has passed,
    /// or of the last run that was made otherwise.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] for a job of which nothing is known; [`ControlError::Store`].
    pub async fn why(&self, id: &str, at_ms: Option<i64>) -> Result<WhyObject, ControlError> {
        let partition = self.partition(id).await?;
        let known = self.known(partition, id).await?;
        let Some(job) = &known.current.job else {
            return self.why_gone(id, &known, at_ms).await;
        };
        let last_ms = job
            .definition()
            .and_then(|d| d.schedule.previous(known.now_ms.saturating_add(1)))
            .map(|o| o.at_ms)
            .filter(|at_ms| *at_ms >= job.record.created_ms);
        // What was asked for by hand, or follows another run, is no instant of the schedule.
        let newest_ms = known.records.iter().map(|r| r.scheduled_ms).max();
        let at_ms = at_ms.or(last_ms.max(newest_ms)).unwrap_or(known.now_ms);
        let answer = match recorded(&known, at_ms) {
            Some(answer) => match &answer.run {
                Some(run) if run.state == RunState::Pending => self.waiting(&known, answer).await?,
                _ => answer,
            },
            None => self.unrecorded(&known, job, at_ms).await?,
        };
        let mut next = Vec::new();
        let mut from_ms = match job.record.paused_at(known.now_ms).map(|p| p.until_ms) {
            None => Some(known.now_ms),
            Some(until_ms) => until_ms.map(|until_ms| until_ms - 1),
        };
        while next.len() < NEXT
            && let Some(found) = from_ms.and_then(|from_ms| next_after(job, from_ms))
        {
            next.push(rfc3339_ms(found));
            from_ms = Some(found);
        }
        Ok(object(id, at_ms, answer, next))
    }

    async fn known(&self, partition: u16, id: &str) -> Result<Known, ControlError> {
        // The cursor first: what it has passed is then in the records, or pruned.
        let heads = read::heads(&self.store, &self.keys, partition).await?;
        let current = read::current(&self.store, &self.keys, partition, id).await?;
        let mut records = Vec::new();
        for span in [
            self.keys.runs_of(partition, id),
            self.keys.done_of(partition, id),
        ] {
            let (entries, _) = self.store.list(&span, None).await?;
            let found = entries.iter().filter_map(|e| decode(&e.value).ok());
            // What became of an instant is said by its run, not by the parts of that.
            records.extend(found.filter(|record: &RunRecord| record.shard.is_none()));
        }
        Ok(Known {
            heads,
            current,
            records,
            now_ms: self.now_ms(),
        })
    }

    async fn why_gone(
        &self,
        id: &str,
        known: &Known,
        at_ms: Option<i64>,
    ) -> Result<WhyObject, ControlError> {
        if known.current.modified.is_some() {
            let why =
                "its record cannot be read by this version, so it does not fire: apply it again";
            let at_ms = at_ms.unwrap_or(known.now_ms);
            return Ok(object(
                id,
                at_ms,
                Answer::new(Verdict::Unreadable, why),
                vec![],
            ));
        }
        let gone: Option<&(GoneRecord, Revision)> = known.current.gone.as_ref();
        if gone.is_none() && known.records.is_empty() {
            return Err(ControlError::NotFound(format!("there is no job `{id}`")));
        }
        let at_ms = at_ms.unwrap_or(known.now_ms);
        let deleted = gone.map(|(gone, _)| format!(" at {}", rfc3339_ms(gone.deleted_ms)));
        let deleted = format!("the job was deleted{}", deleted.unwrap_or_default());
        let answer = match recorded(known, at_ms) {
            Some(answer) => answer.with(deleted),
            None => Answer::new(Verdict::Deleted, deleted),
        };
        Ok(object(id, at_ms, answer, vec![]))
    }

    /// There is no record: what else is known.
    async fn unrecorded(
        &self,
        known: &Known,
        job: &Job,
        at_ms: i64,
    ) -> Result<Answer, ControlError> {
        let record = &job.record;
        let Some(definition) = job.definition() else {
            return Ok(Answer::new(
                Verdict::Unreadable,
                "its definition cannot be read by this version, so it does not fire: apply it again",
            ));
        };
        let spec = &definition.spec;
        let created = rfc3339_ms(record.created_ms);
        if at_ms < record.created_ms {
            return Ok(Answer::new(
                Verdict::NotCreated,
                format!("the job was made later, at {created}"),
            ));
        }
        if !spec.enabled {
            return Ok(Answer::new(
                Verdict::Disabled,
                "the job is disabled (`enabled: false` in its definition): it has no instants",
            ));
        }
        let held = record.paused_at(at_ms).filter(|p| p.since_ms <= at_ms);
        let reasons = Schedule::mismatch(&spec.schedule, record.created_ms, at_ms)
            .map_err(|error| ControlError::Conflict(error.to_string()))?;
        let edited_ms = record.segments.first().map_or(i64::MIN, |s| s.from_ms);
        let of_an_older = (at_ms < edited_ms).then(|| {
            format!(
                "the job was changed at {}; which definition was in force before is not kept, so this \
                 is said of the present one",
                rfc3339_ms(record.updated_ms)
            )
        });
        if let Some((first, more)) = reasons.split_first() {
            let mut answer = Answer::new(
                Verdict::NoMatch,
                format!("the schedule has no instant at this time: {first}"),
            );
            answer.evidence.extend(more.iter().cloned());
            answer.evidence.push(format!("schedule: {}", words(spec)));
            answer.evidence.extend(of_an_older);
            return Ok(answer);
        }
        if at_ms > known.now_ms {
            return Ok(match held {
                Some(paused) => Answer::new(
                    Verdict::Paused,
                    format!("it lies ahead and will be skipped: {}", held_words(paused)),
                ),
                None => Answer::new(Verdict::Future, "it lies ahead, and will fire then"),
            });
        }
        let undecided_ms = first_undecided(job, &known.heads.cursor.position);
        if undecided_ms.is_some_and(|undecided_ms| undecided_ms <= at_ms) {
            return self.undecided(known, at_ms, held).await;
        }
        let oldest = known.records.iter().map(|r| r.scheduled_ms).min();
        let kept = &spec.history;
        let mut answer = Answer::new(
            Verdict::NotKept,
            "it is decided, but its record is not kept any more",
        )
        .with(format!(
            "history: {} successes, {} failures, {} skips, for {}",
            kept.keep_success, kept.keep_failed, kept.keep_skipped, kept.keep_for
        ))
        .with(match oldest {
            Some(oldest) => format!("the oldest record is of {}", rfc3339_ms(oldest)),
            None => "there is no record of the job at all".into(),
        });
        answer.evidence.extend(of_an_older);
        Ok(answer)
    }

    async fn undecided(
        &self,
        known: &Known,
        at_ms: i64,
        held: Option<&Paused>,
    ) -> Result<Answer, ControlError> {
        let behind = known.now_ms.saturating_sub(at_ms);
        let mut answer = Answer::new(
            Verdict::Undecided,
            format!("the leader has not come to it yet, {behind} ms after its time"),
        )
        .with(format!(
            "its partition is decided up to {}",
            rfc3339_ms(known.heads.cursor.position.at_ms)
        ));
        if let Some(paused) = held {
            answer = answer.with(format!("it will be skipped: {}", held_words(paused)));
        }
        let leader = self.store.get(&self.keys.leader()).await?;
        let leader = leader.and_then(|entry| decode::<LeaderRecord>(&entry.value).ok());
        Ok(answer.with(match leader {
            Some(leader) => format!(
                "{} leads since {}",
                leader.owner.node,
                rfc3339_ms(leader.since_ms)
            ),
            None => "no node leads at the moment".into(),
        }))
    }

    /// What a run that nobody has claimed waits for.
    async fn waiting(&self, known: &Known, answer: Answer) -> Result<Answer, ControlError> {
        let Some(run) = answer.run.clone() else {
            return Ok(answer);
        };
        if run.not_before_ms > known.now_ms {
            let until = rfc3339_ms(run.not_before_ms);
            return Ok(answer.with(match run.attempt {
                1 => format!("it waits until {until}: the jitter of its job"),
                _ => format!("it waits until {until}: the backoff before its next attempt"),
            }));
        }
        if run.parts.as_ref().is_some_and(|parts| !parts.wants_nodes()) {
            return Ok(answer.with("the leader is about to make its parts"));
        }
        let executing: Vec<&str> = known
            .records
            .iter()
            .filter(|other| other.parts.is_none())
            .filter(|other| matches!(other.state, RunState::Locked | RunState::Running))
            .map(|other| other.run.as_str())
            .collect();
        if let Some(limit) = run.concurrency
            && executing.len() >= usize::try_from(limit).unwrap_or(usize::MAX)
        {
            let others = executing.join(", ");
            return Ok(answer.with(format!(
                "it waits for {others}: at most {limit} of the job's runs execute at once"
            )));
        }
        let (entries, _) = self.store.list(&self.keys.nodes(), None).await?;
        let drained = self.drained().await?;
        let mut seen = BTreeSet::new();
        let (mut serves, mut has, mut takes) = (0, 0, 0);
        for entry in &entries {
            let (Some((node, _)), Ok(record)) = (
                self.keys.parse_node(&entry.key),
                decode::<NodeRecord>(&entry.value),
            ) else {
                continue;
            };
            let peer = Peer::of(&record);
            serves += usize::from(peer.queues.contains(&run.queue));
            has += usize::from(peer.takes(&run.queue, &run.needs));
            takes += usize::from(peer.takes(&run.queue, &run.needs) && !drained.contains(&node));
            seen.insert(node);
        }
        let queue = &run.queue;
        let needs = match run.needs.strip_prefix("handler:") {
            Some(handler) => format!("has the handler `{handler}`"),
            None => "runs commands".into(),
        };
        Ok(answer.with(if seen.is_empty() {
            "no node is there to run it".into()
        } else if serves == 0 {
            format!("none of {} nodes serves its queue `{queue}`", seen.len())
        } else if has == 0 {
            format!("no node that serves its queue `{queue}` {needs}")
        } else if takes == 0 {
            "every node that could run it is drained".into()
        } else {
            format!(
                "{takes} of {} nodes may run it: it waits for a free slot there, or they do not have \
                 its command (then their logs say so)",
                seen.len()
            )
        }))
    }
}

fn object(id: &str, at_ms: i64, answer: Answer, next: Vec<String>) -> WhyObject {
    WhyObject {
        job_id: id.to_owned(),
        at: rfc3339_ms(at_ms),
        verdict: answer.verdict,
        summary: answer.summary,
        evidence: answer.evidence,
        run: answer.run.map(|run| run_object(&run, None)),
        next,
    }
}

/// What the records say of an instant.
fn recorded(known: &Known, at_ms: i64) -> Option<Answer> {
    let records = || known.records.iter();
    let at_once = |record: &&RunRecord| record.skipped.is_none() && record.scheduled_ms == at_ms;
    // What the schedule fired comes before what people asked for.
    let by_schedule = records()
        .filter(at_once)
        .filter(|r| matches!(r.kind, RunKind::Scheduled | RunKind::Retry) && !r.run.contains("~b-"))
        .max_by_key(|record| record.attempt);
    let others: BTreeSet<&str> = records().filter(at_once).map(|r| r.run.as_str()).collect();
    if let Some(run) = by_schedule {
        let mut answer = fired(known, run);
        let others = others.into_iter().filter(|other| *other != run.run);
        answer
            .evidence
            .extend(others.map(|other| format!("also run at this instant: {other}")));
        return Some(answer);
    }
    let covers = |record: &&RunRecord| {
        let from_ms = record.stands_from_ms.unwrap_or(record.scheduled_ms);
        (from_ms..=record.scheduled_ms).contains(&at_ms) && is_instant(known, at_ms)
    };
    let skip = records().filter(|r| r.skipped.is_some()).find(covers);
    let stands = records()
        .filter(|r| r.skipped.is_none() && r.stands_for > 1)
        .find(covers);
    let mut answer = match (skip, stands) {
        (Some(skip), stands) => {
            let mut answer = skipped(known, skip);
            answer.evidence.extend(stands.map(|stands| {
                format!(
                    "{} ({}) ran for it and {} others",
                    stands.run,
                    stands.state,
                    stands.stands_for.saturating_sub(1)
                )
            }));
            answer
        }
        (None, Some(stands)) => Answer::new(
            Verdict::Skipped,
            format!(
                "{} stands for it: the latest instant of a gap ran for all",
                stands.run
            ),
        ),
        (None, None) => {
            let asked = records().filter(at_once).max_by_key(|r| r.attempt)?;
            return Some(fired(known, asked));
        }
    };
    let also = others
        .into_iter()
        .map(|run| format!("run by request: {run}"));
    answer.evidence.extend(also);
    Some(answer)
}

/// Whether the present definition has the instant; so do we believe of an older one.
fn is_instant(known: &Known, at_ms: i64) -> bool {
    let job = known.current.job.as_ref();
    job.and_then(Job::definition).is_none_or(|definition| {
        let next = definition.schedule.next(at_ms.saturating_sub(1));
        next.is_some_and(|o| o.at_ms == at_ms)
    })
}

fn fired(known: &Known, run: &RunRecord) -> Answer {
    let late_ms = run.created_ms.saturating_sub(run.scheduled_ms);
    let state = match (run.state, run.failed) {
        (RunState::Pending, _) => "waits to be run".to_owned(),
        (RunState::Locked, _) => "is about to be run".to_owned(),
        (RunState::Running, _) => "is running".to_owned(),
        (state, Some(reason)) => format!("ended as {state} ({reason})"),
        (state, None) => format!("ended as {state}"),
    };
    let how = match run.kind {
        RunKind::Manual => "it was triggered by hand",
        RunKind::Backfill => "it was run for the past, by request",
        RunKind::Chained => "it followed another job's success",
        RunKind::Scheduled | RunKind::Retry | RunKind::Shard => "it fired",
    };
    let mut answer = Answer::new(Verdict::Fired, format!("{how}: {} {state}", run.run));
    answer.evidence.push(match (run.attempt, run.kind) {
        (1, RunKind::Scheduled) => format!("decided {late_ms} ms after its instant"),
        (1, _) => format!("made at {}", rfc3339_ms(run.created_ms)),
        (attempt, _) => format!("this is attempt {attempt}"),
    });
    if let Some(cause) = &run.cause {
        answer
            .evidence
            .push(format!("after the success of {}", cause.run));
    }
    if let Some(owner) = &run.owner {
        answer.evidence.push(format!("node: {}", owner.node));
    }
    if let Some(started_ms) = run.started_ms {
        let waited = started_ms.saturating_sub(run.created_ms.max(run.not_before_ms));
        answer.evidence.push(format!(
            "started at {}, after {waited} ms",
            rfc3339_ms(started_ms)
        ));
    }
    if let Some(error) = &run.error {
        answer.evidence.push(format!("error: {error}"));
    }
    if run.stands_for > 1 {
        answer.evidence.push(format!(
            "it stands for {} instants of a gap",
            run.stands_for
        ));
    }
    let job = known.current.job.as_ref();
    if job.is_some_and(|job| run.job_uid != 0 && job.uid.0 != run.job_uid) {
        answer
            .evidence
            .push("it is of an earlier job of that id, which was deleted".into());
    }
    answer.run = Some(run.clone());
    answer
}

fn skipped(known: &Known, skip: &RunRecord) -> Answer {
    let reason = skip.skipped.unwrap_or(SkipReason::Misfire);
    let job = known.current.job.as_ref();
    let paused = job.and_then(|job| {
        let record = &job.record;
        [record.paused.as_ref(), record.paused_all.as_ref()]
            .into_iter()
            .flatten()
            .find(|p| p.since_ms <= skip.created_ms && p.holds(skip.scheduled_ms))
    });
    let why = match (reason, paused) {
        (SkipReason::Overlap, _) => {
            match job.and_then(|job| Some(job.definition()?.spec.overlap)) {
                Some(Overlap::Queue) => "its queue was full: as many runs as `queue_limit` and \
                `concurrency` allow were not finished"
                    .to_owned(),
                _ => "another run of the job was not finished, and the job says `overlap: skip`"
                    .into(),
            }
        }
        (SkipReason::Misfire, _) => {
            "nobody led at its time, for longer than `catch_up`, and `misfire` drops it".into()
        }
        (SkipReason::Paused, Some(paused)) => held_words(paused),
        (SkipReason::Paused, None) => "the job was paused then".into(),
        (SkipReason::Excluded, _) => "the schedule excludes that date".into(),
        (SkipReason::Deadline, _) => {
            "it was older than the job's `start_deadline` when it was decided".into()
        }
        (SkipReason::DstGap, _) => {
            "the clock was set forward over that time, and the job says `dst.gap: skip`".into()
        }
        (SkipReason::Deleted, _) => "the job was deleted before it was decided".into(),
    };
    let range = match skip.stands_from_ms {
        Some(from_ms) => format!(
            "record {}: {} instants from {} to {}",
            skip.run,
            skip.stands_for,
            rfc3339_ms(from_ms),
            rfc3339_ms(skip.scheduled_ms)
        ),
        None => format!("record {}", skip.run),
    };
    Answer {
        run: Some(skip.clone()),
        ..Answer::new(
            Verdict::Skipped,
            format!("it was skipped ({}): {why}", reason.as_str()),
        )
        .with(range)
        .with(format!("decided at {}", rfc3339_ms(skip.created_ms)))
    }
}

fn held_words(paused: &Paused) -> String {
    let by = paused.by.as_deref().map(|by| format!(" by {by}"));
    let reason = paused
        .reason
        .as_deref()
        .map(|reason| format!(" ({reason})"));
    let until = match paused.until_ms {
        Some(until_ms) => format!("until {}", rfc3339_ms(until_ms)),
        None => "until it is resumed".into(),
    };
    format!(
        "the job was paused{} at {} {until}{}",
        by.unwrap_or_default(),
        rfc3339_ms(paused.since_ms),
        reason.unwrap_or_default()
    )
}

/// The schedule in a line.
fn words(spec: &crate::job::spec::JobSpec) -> String {
    let schedule = &spec.schedule;
    let zone = schedule.timezone.as_deref().unwrap_or("UTC");
    if let Some(delay) = &schedule.after_finish {
        return format!("{delay} after the end of the last run");
    }
    match (&schedule.cron, &schedule.every, &schedule.at) {
        (Some(cron), ..) => format!("`{cron}` in {zone}"),
        (_, Some(every), _) => format!("every {every}"),
        (.., Some(at)) => format!("at {at}"),
        _ => "none".into(),
    }
}
