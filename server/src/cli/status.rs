//! `status`: the cluster at a glance.

use punctual::control::StatusObject;

use super::args::Common;
use super::failure::Outcome;
use super::{connect, node};
use crate::api::NodeStatus;
use crate::output::Output;
use crate::table::pairs;
use crate::times::span;

pub(super) async fn status(common: &Common, output: &Output) -> Outcome {
    let mut client = connect(common)?;
    let status: NodeStatus = client.get("/v1/status").await?;
    let name = status.cluster.leader.clone().unwrap_or_default();
    output.object(&status, &name, || {
        let mut text = describe(output, &status.cluster);
        if let Some(why) = &status.job_files_refused {
            text.push_str(&format!(
                "\nThe job files of the node that answers are refused: {why}\nWhat was in force \
                 before stays; `punctual doctor` says what to do.\n"
            ));
        }
        text
    })
}

fn describe(output: &Output, status: &StatusObject) -> String {
    let due = match status.undecided_instants {
        0 => "0".into(),
        // The count ends there.
        10_000.. => format!("10000 or more, the oldest {} late", lag(status)),
        some => format!("{some}, the oldest {} late", lag(status)),
    };
    let leader = match (&status.leader, status.term) {
        (Some(leader), Some(term)) => format!("{leader} (term {term})"),
        (Some(leader), None) => leader.clone(),
        (None, _) => "none".into(),
    };
    let mut text = pairs(&[
        ("Store", status.store.clone()),
        ("Cluster", status.cluster_id.clone()),
        ("Leader", leader),
        ("Jobs", status.jobs.to_string()),
        ("Runs pending", status.pending.to_string()),
        ("Runs locked", status.locked.to_string()),
        ("Runs running", status.running.to_string()),
        ("Undecided instants", due),
    ]);
    text.push('\n');
    text.push_str(&node::table(output, &status.nodes));
    for damaged in &status.damaged_partitions {
        text.push_str(&format!(
            "\nPartition {} does not fire: {}\nPut the record back (docs/operations.md, \"A record that cannot be read\").\n",
            damaged.partition, damaged.what
        ));
    }
    for node in &status.nodes {
        if let Some(held) = &node.clock_held {
            text.push_str(&format!(
                "\n{} does not lead and takes no runs: {held}\n",
                node.node
            ));
        }
    }
    text
}

fn lag(status: &StatusObject) -> String {
    span(i64::try_from(status.cursor_lag_ms).unwrap_or(i64::MAX))
}
