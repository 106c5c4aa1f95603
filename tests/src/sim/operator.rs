//! Operators: what they asked for, and what they were told.

use std::sync::{Arc, Mutex};

use punctual::control::{AllReport, BackfillWish, Control, ControlError, PauseWish, RunFilter};
use punctual::job::run::RunState;
use punctual::keys::part_of;
use punctual_memory::MemoryBackend;

use super::executor::Executor;
use super::schedule::Op;

/// What an operator was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It was done; for triggers, this run.
    Done(Option<String>),
    /// It was not done, for a reason that lies in the request or in what stands.
    Refused(String),
    /// Perhaps it was done.
    Perhaps(String),
}

/// One operation.
#[derive(Clone, Debug)]
pub struct Asked {
    /// What.
    pub op: Op,
    /// When.
    pub start_ms: u64,
    /// The store's revision then.
    pub start_revision: u64,
    /// The answer: when, the store's revision then, what.
    pub answer: Option<(u64, u64, Told)>,
}

/// All operations, in the order of their starts.
#[derive(Clone, Default)]
pub struct Desk(Arc<Mutex<Vec<Asked>>>);

impl Desk {
    /// Takes what is in it, at the end.
    #[must_use]
    pub fn take(&self) -> Vec<Asked> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Does one operation, and writes down the answer.
    pub async fn ask(
        self,
        executor: Executor,
        store: MemoryBackend,
        control: Arc<Control>,
        op: Op,
        epoch_ms: i64,
    ) {
        let now_ms = epoch_ms + executor.now_ms().cast_signed();
        let revision = || store.revision().map_or(0, |revision| revision.0);
        let index = {
            let mut asked = self.0.lock().unwrap();
            asked.push(Asked {
                op: op.clone(),
                start_ms: executor.now_ms(),
                start_revision: revision(),
                answer: None,
            });
            asked.len() - 1
        };
        let answer = match perform(&control, op, now_ms).await {
            Ok(run) => Told::Done(run),
            Err(ControlError::Store(error)) => Told::Perhaps(error.to_string()),
            Err(half @ ControlError::HalfWay { .. }) => Told::Perhaps(half.to_string()),
            Err(ControlError::Busy(why)) => Told::Refused(why),
            Err(error) => Told::Refused(error.to_string()),
        };
        self.0.lock().unwrap()[index].answer = Some((executor.now_ms(), revision(), answer));
    }
}

/// What was begun and not brought to its end is no answer that anybody may rely on.
fn done(report: AllReport) -> Result<Option<String>, ControlError> {
    match report.remaining {
        0 => Ok(None),
        remaining => Err(ControlError::Busy(format!("{remaining} remain"))),
    }
}

async fn perform(control: &Control, op: Op, now_ms: i64) -> Result<Option<String>, ControlError> {
    match op {
        Op::Put(spec) => control.put_job(*spec, None).await.map(|_| None),
        Op::Apply(specs) => control.apply(specs, false, &|_, _| {}).await.map(|_| None),
        Op::Pause(id) => control
            .pause_job(&id, PauseWish::default())
            .await
            .map(|_| None),
        Op::PauseUntil(id, until_ms) => {
            let until_ms = Some(until_ms);
            let wish = PauseWish {
                until_ms,
                ..PauseWish::default()
            };
            control.pause_job(&id, wish).await.map(|_| None)
        }
        Op::PauseAll(until_ms) => {
            let wish = PauseWish {
                until_ms,
                ..PauseWish::default()
            };
            control.pause_all(wish).await.and_then(done)
        }
        Op::ResumeAll => control.resume_all().await.and_then(done),
        Op::Resume(id) => control.resume_job(&id).await.map(|_| None),
        Op::Delete(id) => control.delete_job(&id, None).await.map(|()| None),
        Op::Trigger(id, key) => control
            .trigger(&id, None, &key)
            .await
            .map(|run| Some(run.run_id)),
        Op::Drain(node, true) => control.drain_node(&node, None).await.map(|_| None),
        Op::Drain(node, false) => control.undrain_node(&node).await.map(|_| None),
        Op::Retry(id, key) => {
            let filter = RunFilter {
                job: Some(id),
                states: vec![RunState::Failed],
            };
            let page = control.runs(&filter, None, 1).await?;
            match page.items.first() {
                Some(run) => control
                    .retry_run(&run.run_id, false, &key)
                    .await
                    .map(|run| Some(format!("{}/{}", run.run_id, run.attempt))),
                None => Ok(None),
            }
        }
        Op::Backfill(id, [from_ms, until_ms], key, again) => {
            let wish = BackfillWish {
                from_ms: now_ms - from_ms.cast_signed(),
                to_ms: now_ms - until_ms.cast_signed(),
                limit: Some(60),
                again,
            };
            control.backfill(&id, &wish, &key).await.map(|_| None)
        }
        Op::Cancel(id) => {
            let filter = RunFilter {
                job: Some(id),
                ..RunFilter::default()
            };
            let page = control.runs(&filter, None, 50).await?;
            let open = page.items.iter().find(|run| !run.state.is_terminal());
            match open {
                Some(run) => {
                    // Of a run in parts, all of it as often as one of them.
                    let run = match part_of(&run.run_id) {
                        Some((whole, index)) if index % 2 == 0 => whole,
                        _ => &run.run_id,
                    };
                    let cancelled = control.cancel_run(run).await;
                    cancelled.map(|run| Some(run.run_id))
                }
                None => Ok(None),
            }
        }
    }
}
