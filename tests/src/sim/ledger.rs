//! What was really done, written down by the executed code itself.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use punctual::handler::{Handler, HandlerError, RunContext};

use super::executor::{Executor, Proc};

/// One execution of the user's code.
#[derive(Clone, Debug, Hash)]
pub struct Effect {
    /// Who.
    pub proc: Proc,
    /// The job.
    pub job: String,
    /// The run.
    pub run: String,
    /// The attempt.
    pub attempt: u32,
    /// The fencing token.
    pub token: u64,
    /// The instant it was told.
    pub scheduled_ms: i64,
    /// When the first instruction ran.
    pub start_ms: u64,
    /// When the last one ran, or the code was dropped.
    pub end_ms: Option<u64>,
    /// Whether it came to its end.
    pub completed: bool,
}

/// All executions, in the order of their starts.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Vec<Effect>>>);

impl Ledger {
    /// Takes what is in it; what ends later is not noted any more.
    #[must_use]
    pub fn take(&self) -> Vec<Effect> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// The simulated user's code: behaves as the payload says.
pub struct Work {
    /// Time.
    pub executor: Executor,
    /// Where it runs.
    pub proc: Proc,
    /// Where it writes.
    pub ledger: Ledger,
}

/// Notes the end of an execution, also when it is dropped in the middle.
struct Open {
    executor: Executor,
    ledger: Ledger,
    index: usize,
    completed: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        let now = self.executor.now_ms();
        let mut effects = self.ledger.0.lock().unwrap();
        if let Some(effect) = effects.get_mut(self.index) {
            effect.end_ms = Some(now);
            effect.completed = self.completed;
        }
    }
}

impl Work {
    fn open(&self, ctx: &RunContext) -> Open {
        let mut effects = self.ledger.0.lock().unwrap();
        effects.push(Effect {
            proc: self.proc,
            job: ctx.job_id.clone(),
            run: ctx.run_id.clone(),
            attempt: ctx.attempt,
            token: ctx.fencing_token.0,
            scheduled_ms: ctx.scheduled_at_ms,
            start_ms: self.executor.now_ms(),
            end_ms: None,
            completed: false,
        });
        Open {
            executor: self.executor.clone(),
            ledger: self.ledger.clone(),
            index: effects.len() - 1,
            completed: false,
        }
    }
}

#[async_trait]
impl Handler for Work {
    async fn run(&self, ctx: RunContext) -> Result<(), HandlerError> {
        let mut open = self.open(&ctx);
        let does = ctx.payload["does"].as_str().unwrap_or("ok").to_owned();
        let ms = ctx.payload["ms"].as_u64().unwrap_or(0);
        let work = async {
            if ms > 0 {
                self.executor.sleep_until(self.executor.now_ms() + ms).await;
            }
        };
        match does.as_str() {
            // Heeds nobody.
            "deaf" => work.await,
            "hang" => std::future::pending().await,
            _ => {
                if let futures_util::future::Either::Right(_) =
                    punctual::env::race(work, ctx.cancel.cancelled()).await
                {
                    return Err(HandlerError("told to stop".into()));
                }
            }
        }
        match does.as_str() {
            "fail" => return Err(HandlerError("as told".into())),
            "flaky" if ctx.attempt < 3 => return Err(HandlerError("not yet".into())),
            // Not `panic!`: the panic hook would fill the terminal.
            "panic" => std::panic::resume_unwind(Box::new("as told")),
            _ => {}
        }
        open.completed = true;
        Ok(())
    }
}
