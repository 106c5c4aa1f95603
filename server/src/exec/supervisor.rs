//! The supervisor: a small process between the node and one command.
//!
//! It exists because a node can die, or be stopped, at any moment, and nobody but another process
//! can then end what it was running. It holds no secrets of the node, listens to nobody but its
//! node, and does one thing: start the command in a process group of its own, wait, and leave
//! nothing of it behind.
//!
//! All signals are sent, and all ended children waited for, by one thread. So a process id that
//! it signals cannot meanwhile have been given to somebody else.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus};

use super::processes::Process;
use super::progress::Pipe;
use super::wire::{Ended, Order, Spec, Status, Stopped, Stopper};
use super::{UNKILLABLE_MS, clock, command, limits, processes, progress};

/// How often to look for what is left while waiting for it to end by itself.
const ASKING: Duration = Duration::from_millis(100);
/// How often to look for what is left while killing it.
const KILLING: Duration = Duration::from_millis(20);
/// The longest wait while a deadline stands. The wait itself may not count the time in which the
/// machine slept; our clock does, so look at it again soon.
const DEADLINE_CHECK: Duration = Duration::from_millis(500);
/// How long to wait for the rest of what the command said of itself, once it has ended.
const LAST_WORD: Duration = Duration::from_secs(1);
/// The wait while nothing but an event can change anything.
const IDLE: Duration = Duration::from_secs(3_600);

/// What [`super::SUPERVISE`] runs: reads what to do from standard input, reports on standard
/// output. Call it at the very start of `main`, before any thread and any runtime.
#[must_use]
pub fn main() -> ExitCode {
    match supervise() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error is the command's output; with that closed there is nobody to tell.
            let _ = writeln!(io::stderr(), "punctual: supervisor: {error}");
            ExitCode::FAILURE
        }
    }
}

fn supervise() -> io::Result<()> {
    // First of all, for the sake of its number.
    let said = Pipe::open()?;
    detach()?;
    limits::restore(std::env::args().nth(2).as_deref());
    let mut control = BufReader::new(File::from(io::stdin().as_fd().try_clone_to_owned()?));
    let mut line = String::new();
    control.read_line(&mut line)?;
    if line.is_empty() {
        return Ok(()); // The node died before it said what to run.
    }
    let spec: Spec = serde_json::from_str(&line)?;
    drop(line);
    if spec.trust_until_ms.is_some_and(|t| t <= clock::now_ms()) {
        report(&Status::Distrusted);
        return Ok(());
    }
    let (main, said) = match start(&spec, said) {
        Ok(started) => started,
        Err(error) => {
            report(&Status::Failed(command::explain(&spec, &error)));
            return Ok(());
        }
    };
    report(&Status::Started(main));
    let heard = hand_on(said);
    let ended = Supervision::new(main, &spec).run(control, other_end_of_output());
    // All that could say more has ended, so the rest is there; nobody else is waited for.
    let _ = heard.recv_timeout(LAST_WORD);
    report(&Status::Ended(ended));
    Ok(())
}

/// Leaves everything that the supervisor shares with its node: the terminal, its Ctrl-C and its
/// hang-up. Commands must outlive those until the node has drained.
fn detach() -> io::Result<()> {
    let ignored = Arc::new(AtomicBool::new(false));
    for signal in [
        // Not a request: but whoever started the node may have left it ignored, and then ended
        // children vanish with their status.
        signal_hook::consts::SIGCHLD,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGHUP,
        signal_hook::consts::SIGQUIT,
        signal_hook::consts::SIGUSR1,
        signal_hook::consts::SIGUSR2,
    ] {
        // A handler that does nothing of note, rather than "ignore": the command would inherit
        // the latter, and be deaf to our own SIGTERM.
        signal_hook::flag::register(signal, Arc::clone(&ignored))?;
    }
    // The node started us at the head of a group of our own, so that a Ctrl-C does not reach us
    // in the moment before the lines above. But the head of a group cannot open a session. So go
    // back to the node's group for a moment, now that we can bear its signals. In a session of
    // its own the command has no terminal either: one that asks for a password fails, instead of
    // being stopped by the terminal for ever.
    if let Some(node) = rustix::process::getppid()
        && let Ok(group) = rustix::process::getpgid(Some(node))
    {
        let _ = rustix::process::setpgid(None, Some(group));
    }
    // Not possible when the node died meanwhile; then we stay in the group of our own.
    let _ = rustix::process::setsid();
    #[cfg(target_os = "linux")]
    {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        // Started through /proc/self/exe, it would be listed as `exe`.
        let _ = rustix::thread::set_name(c"punctual-exec");
    }
    Ok(())
}

/// Starts the command; its process id, and what it says of itself.
fn start(spec: &Spec, said: Pipe) -> io::Result<(i32, PipeReader)> {
    let (program, arguments) = spec.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let output = io::stderr().as_fd().try_clone_to_owned()?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .envs(&spec.env)
        .env(progress::DESCRIPTOR, said.number())
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .process_group(0);
    if let Some(cwd) = &spec.cwd {
        command.current_dir(cwd);
    }
    said.bequeath()?;
    let child = command.spawn()?;
    let main = i32::try_from(child.id()).map_err(io::Error::other)?;
    Ok((main, said.into_reader()))
}

/// Hands what the command says of itself on to the node; the channel ends after the last word. Goes on
/// reading when the node is gone: a full pipe would stop the command.
fn hand_on(said: PipeReader) -> Receiver<()> {
    let (last, heard) = mpsc::channel::<()>();
    thread::spawn(move || {
        let complain = |wrong: &str| {
            // In the command's output, where whoever wrote the command looks.
            let _ = writeln!(
                io::stderr(),
                "punctual: a line on the descriptor {} is not understood; it is ignored, as each \
                 further one will be: {wrong}",
                progress::DESCRIPTOR
            );
        };
        progress::listen(said, |said| report(&Status::Said(said)), complain);
        drop(last);
    });
    heard
}

/// The end of the output pipe from which the node reads. Held open, it lets a command speak while
/// it tidies up after the node has died; else its first word would end it by SIGPIPE.
fn other_end_of_output() -> Option<File> {
    // There is no other way to it on a pipe that is inherited, and no harm done where this one
    // does not exist.
    let pipe = File::open("/proc/self/fd/2").ok()?;
    pipe.metadata().ok()?.file_type().is_fifo().then_some(pipe)
}

/// A node that is gone does not read; then there is nobody to tell.
fn report(status: &Status) {
    if let Ok(mut line) = serde_json::to_vec(status) {
        line.push(b'\n');
        let mut stdout = io::stdout().lock();
        let _ = stdout.write_all(&line).and_then(|()| stdout.flush());
    }
}

enum Event {
    Order(Order),
    NodeGone,
    ChildEnded,
}

struct Supervision {
    main: i32,
    grace_ms: u64,
    trust_until_ms: Option<u64>,
    stop: Option<Stopped>,
    kill_at_ms: Option<u64>,
    killing_since_ms: Option<u64>,
    main_ended: Option<WaitStatus>,
    childless: bool,
    asked: BTreeSet<i32>,
}

impl Supervision {
    fn new(main: i32, spec: &Spec) -> Self {
        Self {
            main,
            grace_ms: spec.grace_ms,
            trust_until_ms: spec.trust_until_ms,
            stop: None,
            kill_at_ms: None,
            killing_since_ms: None,
            main_ended: None,
            childless: false,
            asked: BTreeSet::new(),
        }
    }

    /// Until nothing of the command is left, or nothing more can be done about it.
    fn run(mut self, control: BufReader<File>, mut output: Option<File>) -> Ended {
        let (sender, events) = mpsc::channel();
        let waited = watch_children(sender.clone());
        thread::spawn(move || listen(control, &sender));
        while !self.childless {
            self.enforce();
            if self.given_up() {
                break;
            }
            match events.recv_timeout(self.patience()) {
                Ok(Event::Order(order)) => self.obey(order),
                Ok(Event::NodeGone) => {
                    self.ask(Stopper::NodeGone);
                    if let Some(mut output) = output.take() {
                        // A full pipe would stop the command as surely as a closed one.
                        thread::spawn(move || io::copy(&mut output, &mut io::sink()));
                    }
                }
                Ok(Event::ChildEnded) => {
                    self.reap();
                    let _ = waited.send(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                // Both threads are gone: the node too, and all children.
                Err(RecvTimeoutError::Disconnected) => self.reap(),
            }
        }
        let survivors = if self.childless {
            0
        } else {
            processes::descendants().len()
        };
        Ended {
            exit: self.main_ended.and_then(WaitStatus::exit_status),
            signal: self.main_ended.and_then(WaitStatus::terminating_signal),
            stop: self.stop,
            survivors,
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Stop => self.ask(Stopper::Node),
            Order::Kill => {
                self.ask(Stopper::Node);
                self.kill_at_ms = Some(0);
            }
            Order::Trust(until) => {
                // Never back: lines come in order, but a session's window only ever grows.
                self.trust_until_ms = self.trust_until_ms.max(Some(until));
            }
        }
    }

    /// Asks the command to end. Only once, and not when it has ended by itself.
    fn ask(&mut self, by: Stopper) {
        // That it has ended may stand in the queue behind the order.
        self.reap();
        if self.stop.is_some() || self.main_ended.is_some() {
            return;
        }
        self.stop = Some(Stopped { by, forced: false });
        self.kill_at_ms = Some(clock::now_ms().saturating_add(self.grace_ms));
        // Look first: what a command starts when it is asked is there to tidy up, and must not be
        // asked too.
        let family = processes::descendants();
        processes::signal_group(self.main, Signal::TERM);
        // One that was stopped would sleep through the request.
        processes::signal_group(self.main, Signal::CONT);
        let (group, strays): (Vec<Process>, _) =
            family.into_iter().partition(|p| p.group == self.main);
        self.asked.extend(group.iter().map(|p| p.pid));
        self.ask_each(strays);
    }

    /// Asks those who were not asked yet.
    fn ask_each(&mut self, family: Vec<Process>) {
        for process in family {
            if self.asked.insert(process.pid) {
                processes::signal(process.pid, Signal::TERM);
                processes::signal(process.pid, Signal::CONT);
            }
        }
    }

    /// Does what the clock demands.
    fn enforce(&mut self) {
        let now = clock::now_ms();
        if self.trust_until_ms.is_some_and(|t| t <= now) {
            self.ask(Stopper::Fence);
        }
        if self.killing_since_ms.is_none() && self.kill_at_ms.is_some_and(|t| t <= now) {
            self.killing_since_ms = Some(now);
            if self.main_ended.is_none()
                && let Some(stop) = &mut self.stop
            {
                stop.forced = true;
            }
        }
        if self.killing_since_ms.is_some() {
            if self.main_ended.is_none() {
                processes::signal_group(self.main, Signal::KILL);
            }
            for process in processes::descendants() {
                processes::signal(process.pid, Signal::KILL);
            }
        } else if self.main_ended.is_some() {
            self.ask_each(processes::descendants());
        }
    }

    /// Waits for all children that have ended, so that none stays behind as a zombie while the
    /// command runs on.
    fn reap(&mut self) {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if pid.as_raw_nonzero().get() == self.main {
                        self.main_ended = Some(status);
                        // What it leaves behind gets the grace that is left of a stop, or a
                        // whole one.
                        let grace = clock::now_ms().saturating_add(self.grace_ms);
                        self.kill_at_ms.get_or_insert(grace);
                        if !cfg!(target_os = "linux") {
                            // Nothing can be found here but the group.
                            processes::signal_group(self.main, Signal::KILL);
                        }
                    }
                }
                Ok(None) => return,
                Err(Errno::INTR) => {}
                Err(_) => {
                    // No children: nothing of the command is left.
                    self.childless = true;
                    return;
                }
            }
        }
    }

    fn given_up(&self) -> bool {
        self.killing_since_ms
            .is_some_and(|since| clock::now_ms().saturating_sub(since) > UNKILLABLE_MS)
    }

    fn patience(&self) -> Duration {
        if self.killing_since_ms.is_some() {
            return KILLING;
        }
        if self.main_ended.is_some() {
            return ASKING;
        }
        let fence = self.trust_until_ms.filter(|_| self.stop.is_none());
        match self.kill_at_ms.into_iter().chain(fence).min() {
            Some(at) => {
                Duration::from_millis(at.saturating_sub(clock::now_ms())).min(DEADLINE_CHECK)
            }
            None => IDLE,
        }
    }
}

/// Tells of each child that has ended, and waits after each for the answer: the thread that owns
/// the process ids does the actual waiting for it.
fn watch_children(events: Sender<Event>) -> Sender<()> {
    let (waited, answers): (Sender<()>, Receiver<()>) = mpsc::channel();
    thread::spawn(move || {
        loop {
            match rustix::process::waitid(
                WaitId::All,
                WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
            ) {
                Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(_) => {
                    // No children. The other thread should know, but look it must if not: the
                    // system may have waited for them behind our back.
                    let _ = events.send(Event::ChildEnded);
                    return;
                }
            }
            if events.send(Event::ChildEnded).is_err() || answers.recv().is_err() {
                return;
            }
        }
    });
    waited
}

fn listen(control: BufReader<File>, events: &Sender<Event>) {
    // Like the end of the stream: an error means that there is no node to hear from.
    for line in control.lines().map_while(Result::ok) {
        if let Some(order) = Order::parse(&line)
            && events.send(Event::Order(order)).is_err()
        {
            return;
        }
    }
    let _ = events.send(Event::NodeGone);
}
