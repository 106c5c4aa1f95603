//! What the operating system tells the process to do.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::failure::{Exit, Failure, Outcome};

/// The signals that a server listens to.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

/// What a signal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// End in good order; the number of the signal.
    Stop(i32),
    /// Read the files again.
    Reload,
}

impl Signals {
    pub(crate) fn listen() -> Outcome<Self> {
        let on =
            |kind| signal(kind).map_err(|e| Failure::new(Exit::Bug, format!("no signals: {e}")));
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
        })
    }

    /// Waits for the next one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.interrupt.recv() => Told::Stop(2),
            _ = self.terminate.recv() => Told::Stop(15),
            _ = self.hangup.recv() => Told::Reload,
        }
    }
}

/// Ends the process at once, with the code that shells expect. Supervisors see it go and kill
/// what it ran; the store is used to it.
pub(crate) fn die(signal: i32) -> ! {
    std::process::exit(128 + signal)
}
