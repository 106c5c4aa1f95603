//! From how a command ended to what is recorded of the run.

use punctual::cancel::StopCause;
use punctual::handler::Execution;
use punctual::job::run::FailReason;
use rustix::process::Signal;

use super::wire::{Ended, Status, Stopper};

/// What a supervisor's last word means. `cause` is why the node told it to stop, if it did: a
/// command that ended before the order arrived has not been stopped.
pub(super) fn of(status: &Status, cause: Option<StopCause>) -> Execution {
    match status {
        Status::Failed(message) => Execution::failed(FailReason::Error, message),
        // The state machine knows this case: no attempt was spent on it.
        Status::Distrusted => Execution::failed(
            FailReason::NotStarted,
            "the node's session ran out before the command was started",
        ),
        Status::Started(_) | Status::Said(_) => supervisor_died(false),
        Status::Ended(ended) => of_ended(ended, cause),
    }
}

fn of_ended(ended: &Ended, cause: Option<StopCause>) -> Execution {
    let how = match (ended.exit, ended.signal) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by {}", signal_name(signal)),
        (None, None) if ended.survivors > 0 => "it could not be killed".to_owned(),
        (None, None) => "its exit status was lost".to_owned(),
    };
    let left = survivors(ended.survivors);
    let mut execution = match ended.stop {
        Some(stop) => {
            let cause = match stop.by {
                Stopper::Fence => StopCause::Fenced,
                // An order to stop has a cause. A node that is gone reads no verdict, and one
                // that gave up its control pipe has lost its hold on the run: the same in effect.
                Stopper::Node | Stopper::NodeGone => cause.unwrap_or(StopCause::Cancelled),
            };
            let means = if stop.forced {
                "it did not end in its grace after SIGTERM, so it was killed"
            } else {
                "it ended after SIGTERM"
            };
            Execution::stopped(cause, format!("{}: {means} ({how}){left}", why(cause)))
        }
        None if ended.exit == Some(0) => Execution::success(),
        None => Execution::failed(FailReason::Exit, format!("{how}{left}")),
    };
    execution.exit_code = ended.exit;
    execution
}

fn why(cause: StopCause) -> &'static str {
    match cause {
        StopCause::Cancelled => "cancelled",
        StopCause::Timeout => "longer than its timeout",
        StopCause::Fenced => "the node's session ran out, or the time that a stopping node waits",
    }
}

/// There is no status to be had: the supervisor died, or did not answer and was killed.
pub(super) fn of_dead_supervisor(
    started: bool,
    cause: Option<StopCause>,
    left: usize,
) -> Execution {
    match cause {
        Some(cause) => Execution::stopped(
            cause,
            format!(
                "{}: the supervisor of the command did not answer, so the node killed both{}",
                why(cause),
                survivors(left)
            ),
        ),
        None => {
            let mut execution = supervisor_died(started);
            if let Some(failure) = &mut execution.failure {
                failure.message.push_str(&survivors(left));
            }
            execution
        }
    }
}

/// The outcome is unknown, as when a whole node is lost: the job's `on_lost` decides whether it may
/// be run again, and an attempt too many is no ordinary failure.
fn supervisor_died(started: bool) -> Execution {
    Execution::failed(
        FailReason::WorkerLost,
        if started {
            "supervisor died: the command was killed with it, and how far it came is not known"
        } else {
            "supervisor died before it told whether the command was started"
        },
    )
}

fn survivors(count: usize) -> String {
    if count == 0 {
        String::new()
    } else {
        format!("; {count} of its processes could not be killed and may still run")
    }
}

/// As people know it: `signal 9 (SIGKILL)`. The numbers differ between architectures.
fn signal_name(number: i32) -> String {
    const NAMES: [(Signal, &str); 19] = [
        (Signal::ABORT, "SIGABRT"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::HUP, "SIGHUP"),
        (Signal::ILL, "SIGILL"),
        (Signal::INT, "SIGINT"),
        (Signal::KILL, "SIGKILL"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::PROF, "SIGPROF"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::SYS, "SIGSYS"),
        (Signal::TERM, "SIGTERM"),
        (Signal::TRAP, "SIGTRAP"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::XCPU, "SIGXCPU"),
        (Signal::XFSZ, "SIGXFSZ"),
    ];
    NAMES
        .iter()
        .find(|(signal, _)| signal.as_raw() == number)
        .map_or_else(
            || format!("signal {number}"),
            |(_, name)| format!("signal {number} ({name})"),
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::wire::Stopped;

    fn ended(exit: Option<i32>, signal: Option<i32>) -> Ended {
        Ended {
            exit,
            signal,
            ..Ended::default()
        }
    }

    fn said(execution: &Execution) -> (FailReason, &str) {
        let failure = execution.failure.as_ref().unwrap();
        (failure.reason, &failure.message)
    }

    #[test]
    fn an_end_by_itself() {
        let well = of(&Status::Ended(ended(Some(0), None)), None);
        assert_eq!((well.failure, well.exit_code), (None, Some(0)));
        let badly = of(&Status::Ended(ended(Some(3), None)), None);
        assert_eq!(said(&badly), (FailReason::Exit, "exit status 3"));
        assert_eq!(badly.exit_code, Some(3));
        let killed = of(&Status::Ended(ended(None, Some(9))), None);
        assert_eq!(
            said(&killed),
            (FailReason::Exit, "killed by signal 9 (SIGKILL)")
        );
        assert_eq!(killed.exit_code, None);
        let unnamed = of(&Status::Ended(ended(None, Some(40))), None);
        assert_eq!(said(&unnamed).1, "killed by signal 40");
    }

    #[test]
    fn an_end_before_the_order_arrived_is_no_stop() {
        let raced = of(
            &Status::Ended(ended(Some(0), None)),
            Some(StopCause::Cancelled),
        );
        assert_eq!(raced.failure, None);
    }

    #[test]
    fn a_stop_says_why_and_whether_asking_was_enough() {
        let stop = |by, forced, cause| {
            let mut ended = ended(None, Some(if forced { 9 } else { 15 }));
            ended.stop = Some(Stopped { by, forced });
            of(&Status::Ended(ended), cause)
        };
        let asked = stop(Stopper::Node, false, Some(StopCause::Timeout));
        assert_eq!(
            said(&asked),
            (
                FailReason::Timeout,
                "longer than its timeout: it ended after SIGTERM (killed by signal 15 (SIGTERM))"
            )
        );
        let forced = stop(Stopper::Node, true, Some(StopCause::Cancelled));
        assert_eq!(said(&forced).0, FailReason::Cancelled);
        assert!(said(&forced).1.contains("was killed (killed by signal 9"));
        // Whatever else the node wanted meanwhile: the fence was first.
        let fenced = stop(Stopper::Fence, false, Some(StopCause::Cancelled));
        assert_eq!(said(&fenced).0, FailReason::Fenced);
    }

    #[test]
    fn what_could_not_be_killed_is_told() {
        let mut stuck = ended(None, None);
        stuck.survivors = 2;
        stuck.stop = Some(Stopped {
            by: Stopper::Node,
            forced: true,
        });
        let verdict = of(&Status::Ended(stuck), Some(StopCause::Timeout));
        assert!(said(&verdict).1.contains("2 of its processes"));
    }

    #[test]
    fn with_its_supervisor_a_run_is_lost_unless_it_was_to_stop() {
        let died = of_dead_supervisor(true, None, 0);
        assert_eq!(said(&died).0, FailReason::WorkerLost);
        assert!(said(&died).1.starts_with("supervisor died"));
        let stopped = of_dead_supervisor(true, Some(StopCause::Timeout), 1);
        assert_eq!(said(&stopped).0, FailReason::Timeout);
    }
}
