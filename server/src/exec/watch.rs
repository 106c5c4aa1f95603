//! The node's side of a supervisor: hands on what the node decides, and waits for the end.

use std::io;
use std::time::Duration;

use punctual::cancel::StopCause;
use punctual::handler::{Execution, RunContext};
use rustix::process::Signal;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::{Instant, sleep_until, timeout};

use super::progress::{self, Latest};
use super::wire::{Order, Spec, Status};
use super::{UNKILLABLE_MS, clock, command, processes, verdict};

/// How often to look whether the session's trust has been prolonged or has ended.
const FENCE_CHECK: Duration = Duration::from_millis(500);
/// How long a supervisor may take to read an order, beyond which it counts as wedged.
const ORDER: Duration = Duration::from_secs(1);
/// The same for the spec, which is larger and comes while the supervisor is being loaded.
const SPEC: Duration = Duration::from_secs(30);
/// What a supervisor may take beyond all that it has to wait for.
const MARGIN: Duration = Duration::from_secs(5);

pub(super) struct Watch<'a> {
    ctx: &'a RunContext,
    supervisor: Child,
    control: Option<ChildStdin>,
    status: Option<Lines<BufReader<ChildStdout>>>,
    group: Option<i32>,
    stop: Option<StopCause>,
    told_trust_ms: u64,
    latest: Latest,
}

impl<'a> Watch<'a> {
    pub(super) fn new(ctx: &'a RunContext, mut supervisor: Child, latest: Latest) -> Self {
        Self {
            ctx,
            control: supervisor.stdin.take(),
            status: supervisor.stdout.take().map(|s| BufReader::new(s).lines()),
            supervisor,
            group: None,
            stop: None,
            told_trust_ms: 0,
            latest,
        }
    }

    /// Has the command run and waits until nothing of it is left.
    pub(super) async fn run(mut self, mut spec: Spec) -> Execution {
        spec.trust_until_ms = self.trust_until_ms();
        // With no supervisor to read it, the status shows that.
        let _ = self.send_spec(&spec).await;
        drop(spec);
        let status = self.wait_for_status().await;
        match &status {
            Some(status) => {
                self.dismiss().await;
                if let Status::Ended(ended) = status
                    && ended.survivors > 0
                {
                    tracing::error!(
                        job = self.ctx.job_id,
                        run = self.ctx.run_id,
                        processes = ended.survivors,
                        "a command has ended, but some of its processes could not be killed"
                    );
                }
                verdict::of(status, self.stop)
            }
            None => self.take_over().await,
        }
    }

    async fn send_spec(&mut self, spec: &Spec) -> io::Result<()> {
        let mut line = serde_json::to_vec(spec)?;
        line.push(b'\n');
        self.send(&line, SPEC).await
    }

    async fn send(&mut self, line: &[u8], limit: Duration) -> io::Result<()> {
        let Some(control) = &mut self.control else {
            return Ok(());
        };
        timeout(limit, control.write_all(line)).await?
    }

    async fn order(&mut self, order: Order) {
        // One that is not read is missed by the clocks on both sides.
        let _ = self.send(format!("{order}\n").as_bytes(), ORDER).await;
    }

    /// When the session's trust ends, on the clock that the supervisor reads too.
    fn trust_until_ms(&self) -> Option<u64> {
        let fence = self.ctx.fence.as_ref()?;
        // In this order: if we are stopped in between, the answer is too early, not too late.
        let now = clock::now_ms();
        Some(now.saturating_add(fence.remaining_ms()))
    }

    /// The supervisor's last word; `None` if it died or does not answer.
    async fn wait_for_status(&mut self) -> Option<Status> {
        let cancel = self.ctx.cancel.clone();
        let mut check = Instant::now();
        let mut wedged_at = None;
        loop {
            let status = self.status.as_mut()?;
            tokio::select! {
                line = status.next_line() => {
                    match serde_json::from_str(&line.ok()??).ok()? {
                        Status::Started(group) => self.group = Some(group),
                        Status::Said(said) => progress::hear(self.ctx, &self.latest, said),
                        last => return Some(last),
                    }
                }
                cause = cancel.cancelled(), if self.stop.is_none() => {
                    wedged_at = Some(self.tell_to_stop(cause).await);
                }
                () = sleep_until(check), if self.ctx.fence.is_some() && self.stop.is_none() => {
                    check = Instant::now() + FENCE_CHECK;
                    if self.ctx.fence.as_ref().is_some_and(|fence| fence.holds()) {
                        self.prolong().await;
                    } else {
                        // The supervisor will have seen it by its own clock; this is for one
                        // that cannot.
                        wedged_at = Some(self.tell_to_stop(StopCause::Fenced).await);
                    }
                }
                () = sleep_until(wedged_at.unwrap_or(check)), if wedged_at.is_some() => {
                    return None;
                }
            }
        }
    }

    /// Returns by when the supervisor must have answered.
    async fn tell_to_stop(&mut self, cause: StopCause) -> Instant {
        self.stop = Some(cause);
        let patience = Duration::from_millis(self.ctx.kill_grace_ms.saturating_add(UNKILLABLE_MS));
        let wedged_at = Instant::now() + patience + MARGIN;
        self.order(Order::Stop).await;
        wedged_at
    }

    async fn prolong(&mut self) {
        if let Some(until) = self.trust_until_ms()
            // The two clocks of this node drift by a millisecond; that is not worth a line.
            && until > self.told_trust_ms.saturating_add(50)
        {
            self.told_trust_ms = until;
            self.order(Order::Trust(until)).await;
        }
    }

    /// After its last word a supervisor ends. If not, it is ended.
    async fn dismiss(&mut self) {
        self.control = None;
        if timeout(MARGIN, self.supervisor.wait()).await.is_err() {
            let _ = self.supervisor.start_kill();
        }
    }

    /// The supervisor is dead or wedged: what is left of the command is ours to end.
    async fn take_over(&mut self) -> Execution {
        // Not waited for yet: until then nobody else gets its id, which is that of its session.
        let _ = self.supervisor.start_kill();
        let session = self.supervisor.id().and_then(|id| i32::try_from(id).ok());
        self.control = None;
        let group = self.group;
        let marks = command::marks(self.ctx);
        let killed = tokio::task::spawn_blocking(move || kill_remains(session, group, &marks));
        let left = killed.await.unwrap_or(0);
        // Killed, it ends, unless it hangs where nothing can be killed.
        let _ = timeout(MARGIN, self.supervisor.wait()).await;
        verdict::of_dead_supervisor(self.group.is_some(), self.stop, left)
    }
}

/// Kills everything that is left of a command whose supervisor is gone; returns how many would
/// not die.
///
/// The group's id may belong to somebody else by now, if its last member has ended. So the whole
/// group is signalled only while one that is known to be of the command is in it.
fn kill_remains(session: Option<i32>, group: Option<i32>, marks: &[String]) -> usize {
    let until = clock::now_ms() + UNKILLABLE_MS;
    loop {
        let left = processes::remains(session, marks);
        if left.is_empty() || clock::now_ms() > until {
            return left.len();
        }
        if let Some(group) = group
            && left.iter().any(|process| process.group == group)
        {
            processes::signal_group(group, Signal::KILL);
        }
        for process in &left {
            processes::signal(process.pid, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
