//! `node`: who is there, and who shall take no work.

use punctual::control::{DrainObject, NodeObject};

use super::args::{Common, NodeCommand};
use super::connect;
use super::failure::Outcome;
use crate::client::escape;
use crate::output::{Output, View, say};
use crate::table::Table;

pub(super) async fn node(common: &Common, output: &Output, command: NodeCommand) -> Outcome {
    let mut client = connect(common)?;
    match command {
        NodeCommand::Ls => {
            let nodes: Vec<NodeObject> = client.get("/v1/nodes").await?;
            let view = View {
                columns: &TITLES.map(|title| (title, false)),
                row: &|node: &NodeObject| row(output, node),
                name: &|node| node.node.clone(),
            };
            output.list(&nodes, &view)
        }
        NodeCommand::Drain { node, reason } => {
            let body = serde_json::json!({ "reason": reason });
            let path = format!("/v1/nodes/{}/drain", escape(&node));
            let drain: DrainObject = client.post(&path, &body, vec![]).await?;
            let word = if drain.changed {
                "drained: it takes no more work and does not lead; what it runs goes on"
            } else {
                "was drained already"
            };
            told(output, &drain, word)
        }
        NodeCommand::Undrain { node } => {
            let path = format!("/v1/nodes/{}/undrain", escape(&node));
            let drain: DrainObject = client.post(&path, &(), vec![]).await?;
            let word = if drain.changed {
                "takes work again"
            } else {
                "was not drained"
            };
            told(output, &drain, word)
        }
    }
}

fn told(output: &Output, drain: &DrainObject, word: &str) -> Outcome {
    if drain.others == 0 {
        say("punctual: no node is left to take work: nothing fires until one is undrained");
    }
    output.object(drain, &drain.node, || format!("{} {word}\n", drain.node))
}

const TITLES: [&str; 8] = [
    "NODE", "LEADS", "DRAINED", "SLOTS", "QUEUES", "HANDLERS", "SINCE", "ADDRESS",
];

fn row(output: &Output, node: &NodeObject) -> Vec<String> {
    let yes = |is: bool| if is { "yes" } else { "" }.to_owned();
    vec![
        node.node.clone(),
        yes(node.leader),
        yes(node.drained),
        node.slots.to_string(),
        node.queues.join(","),
        node.handlers.join(","),
        output.clock.show(Some(&node.since)),
        node.address.clone().unwrap_or_default(),
    ]
}

/// The nodes as a table.
pub(super) fn table(output: &Output, nodes: &[NodeObject]) -> String {
    let mut table = Table::new(TITLES.map(str::to_owned).into());
    for node in nodes {
        table.push(row(output, node));
    }
    table.render(true, false)
}
