//! What a live node says of itself.

use serde::{Deserialize, Serialize};

/// A live node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Where its API listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// How many runs it takes at once.
    pub slots: u32,
    /// The queues it serves.
    pub queues: Vec<String>,
    /// The handlers it has.
    pub handlers: Vec<String>,
    /// Whether it runs commands.
    pub commands: bool,
    /// Whether it calls URLs. (Nodes of a version that cannot do not say.)
    #[serde(default)]
    pub http: bool,
    /// Since when, in Unix milliseconds.
    pub since_ms: i64,
    /// The time zone database it reckons with.
    pub tzdb: String,
}

impl NodeRecord {
    /// Whether the node has what a run needs: see [`super::spec::JobSpec::needs`].
    #[must_use]
    pub fn has(&self, needs: &str) -> bool {
        match needs {
            "command" => self.commands,
            "http" => self.http,
            _ => needs
                .strip_prefix("handler:")
                .is_some_and(|name| self.handlers.iter().any(|handler| handler == name)),
        }
    }

    /// All that it has, in the words in which runs say what they need.
    pub fn needs(&self) -> impl Iterator<Item = String> {
        let handlers = self.handlers.iter().map(|name| format!("handler:{name}"));
        let commands = self.commands.then(|| "command".to_owned());
        handlers
            .chain(commands)
            .chain(self.http.then(|| "http".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_what_it_says_and_an_older_one_calls_no_urls() {
        let old = r#"{"slots": 1, "queues": [], "handlers": ["a"], "commands": true, "since_ms": 0, "tzdb": ""}"#;
        let mut node: NodeRecord = serde_json::from_str(old).unwrap();
        let all = ["command", "handler:a", "handler:b", "http", "other", ""];
        let has = |node: &NodeRecord| all.map(|needs| node.has(needs));
        assert_eq!(has(&node), [true, true, false, false, false, false]);
        node.http = true;
        assert_eq!(has(&node), [true, true, false, true, false, false]);
        assert!(node.needs().all(|needs| node.has(&needs)));
        assert_eq!(node.needs().count(), 3);
    }
}
