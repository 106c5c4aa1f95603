//! What is written beside the cursor: the runs after a success, the next run of a chain, the note that a
//! run is late, and the attempt that follows another one.

use punctual::backend::{Requirement, Txn, Write};

use super::{Ablation, changes_a_job, kind, writes};

/// Which of them a transaction is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Followers of a success are decided.
    Follow,
    /// The next run of a chain is made.
    Next,
    /// A run is noted to be late.
    Late,
}

fn what(txn: &Txn) -> Option<What> {
    let is = |write: &Write, what: &str| kind(write.key()).0 == what;
    let puts = |what| {
        writes(txn).any(|write| matches!(write, Write::Put { key, .. } if kind(key).0 == what))
    };
    let mut all = writes(txn).peekable();
    let only_notes = all.peek().is_some() && all.all(|write| is(write, "note"));
    if writes(txn).any(|write| is(write, "todo")) {
        Some(What::Follow)
    } else if puts("delay") && !changes_a_job(txn) {
        Some(What::Next)
    } else {
        (only_notes && puts("note")).then_some(What::Late)
    }
}

/// Takes out what this ablation takes away from such a transaction.
pub(super) fn strip(ablation: Ablation, txn: &Txn, require: &mut Vec<Requirement>) {
    let Some(what) = what(txn) else { return };
    require.retain(|requirement| {
        let (key, stated) = match requirement {
            Requirement::Modified(key, _) => (key, "modified"),
            Requirement::Absent(key) => (key, "absent"),
            Requirement::Empty(span) => (&span.start, "empty"),
            Requirement::Created(..) => return true,
        };
        !matches!(
            (ablation, what, kind(key).0.as_str(), stated),
            (Ablation::FollowNote, What::Follow, "todo", "modified")
                | (Ablation::FollowJob, What::Follow, "job", "modified")
                | (Ablation::NextLast, What::Next, "delay", "modified")
                | (Ablation::NextJob, What::Next, "job", "modified")
                | (Ablation::NextOver, What::Next, "run", "empty")
                | (
                    Ablation::BesideSeq,
                    What::Follow | What::Next,
                    "seq",
                    "modified"
                )
                | (Ablation::LateRun, What::Late, "run", "modified")
                | (Ablation::LateOnce, What::Late, "note", "absent")
        )
    });
}

/// The same for a choice; `then` is written when its requirements hold. Of a retry they are the job, and
/// that nobody has cancelled the run.
pub(super) fn chosen(
    ablation: Ablation,
    mut require: Vec<Requirement>,
    then: &[Write],
) -> Vec<Requirement> {
    if then.iter().any(|write| kind(write.key()).0 == "run") {
        require.retain(|requirement| match (ablation, requirement) {
            (Ablation::RetryWish, Requirement::Absent(key)) => kind(key).0 != "cancel",
            (Ablation::RetryJob, Requirement::Created(key, _)) => kind(key).0 != "job",
            _ => true,
        });
    }
    require
}
