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
    /// The checkpoint that it was given.
    pub given: Option<String>,
    /// The checkpoints that it was told are kept, and when.
    pub kept: Vec<(String, u64)>,
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

impl Open {
    /// The code was told that its checkpoint is kept.
    fn kept(&self, checkpoint: String) {
        let now = self.executor.now_ms();
        let mut effects = self.ledger.0.lock().unwrap();
        if let Some(effect) = effects.get_mut(self.index) {
            effect.kept.push((checkpoint, now));
        }
    }
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
            given: ctx
                .last_checkpoint()
                .map(|bytes| String::from_utf8_lossy(bytes).into_owned()),
            kept: Vec::new(),
        });
        Open {
            executor: self.executor.clone(),
            ledger: self.ledger.clone(),
            index: effects.len() - 1,
            completed: false,
        }
    }
}

/// Says how far it has come and keeps checkpoints, one every `every_ms` and as fast as they are taken,
/// until it may no more. A checkpoint is text: the attempt, and how many it has kept.
async fn save(executor: &Executor, ctx: &RunContext, every_ms: u64, kept: impl Fn(String)) {
    for number in 1_u32.. {
        let fraction = f64::from(number % 100) / 100.0;
        ctx.progress(fraction, &format!("{number} of attempt {}", ctx.attempt));
        let checkpoint = format!("{:04}.{number:06}", ctx.attempt);
        match ctx.checkpoint(checkpoint.as_bytes()).await {
            Ok(()) => kept(checkpoint),
            Err(_) => break,
        }
        executor.sleep_until(executor.now_ms() + every_ms).await;
    }
    std::future::pending::<()>().await;
}

#[async_trait]
impl Handler for Work {
    async fn run(&self, ctx: RunContext) -> Result<(), HandlerError> {
        let mut open = self.open(&ctx);
        let does = ctx.payload["does"].as_str().unwrap_or("ok").to_owned();
        let ms = ctx.payload["ms"].as_u64().unwrap_or(0);
        let work = async {
            if does == "hang" {
                std::future::pending::<()>().await;
            }
            if ms > 0 {
                self.executor.sleep_until(self.executor.now_ms() + ms).await;
            }
        };
        let work = async {
            match ctx.payload["saves"].as_u64() {
                None => work.await,
                Some(every_ms) => {
                    let kept = |checkpoint| open.kept(checkpoint);
                    let saves = save(&self.executor, &ctx, every_ms, kept);
                    punctual::env::race(work, saves).await;
                }
            }
        };
        match does.as_str() {
            // Heed nobody.
            "deaf" | "hang" => work.await,
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
