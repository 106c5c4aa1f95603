//! Which commands a node consents to run.

use std::collections::BTreeMap;

use punctual::handler::CommandLine;

/// Which commands a node consents to run: the value of `--commands`.
///
/// This is the node's own line of defence. Whoever may write to the store or the API decides
/// *when* something runs; under [`CommandPolicy::Named`] only the files on the node's own disk
/// decide *what*.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandPolicy {
    /// None.
    Off,
    /// Those declared in the node's own files.
    Named(Declared),
    /// Whatever a job says. Declared names resolve here too.
    Any(Declared),
}

/// The commands declared in a node's own files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    names: BTreeMap<String, CommandLine>,
    environments: BTreeMap<Vec<String>, Vec<BTreeMap<String, String>>>,
}

impl Declared {
    /// Declares a command under a name, as `commands:` does. A later one of the same name
    /// replaces what the name stands for; both may be run.
    pub fn name(&mut self, name: impl Into<String>, command: CommandLine) {
        self.allow(command.clone());
        self.names.insert(name.into(), command);
    }

    /// Declares a command without a name, as a job in the node's own files does.
    pub fn allow(&mut self, command: CommandLine) {
        let environments = self.environments.entry(command.argv).or_default();
        if !environments.contains(&command.env) {
            environments.push(command.env);
        }
    }

    /// Whether the command was declared. Its environment counts: a variable such as `PATH` or
    /// `LD_PRELOAD` turns a declared program into any other, so what the job adds must have been
    /// declared with the same argv. It may add less.
    fn contains(&self, command: &CommandLine) -> Result<(), String> {
        let program = program(command);
        let Some(environments) = self.environments.get(&command.argv) else {
            return Err(format!(
                "this node runs only commands that stood in its --jobs files when it read them, \
                 and `{program}` with these arguments did not: add it there (in a job or under \
                 `commands:`) and {}",
                read_again()
            ));
        };
        let subset = |declared: &BTreeMap<String, String>| {
            command
                .env
                .iter()
                .all(|(name, value)| declared.get(name) == Some(value))
        };
        if environments.iter().any(subset) {
            return Ok(());
        }
        let names: Vec<&str> = command.env.keys().map(String::as_str).collect();
        Err(format!(
            "`{program}` stood in this node's --jobs files when it read them, but not with this \
             environment ({}): add it there with the same `env` and {}",
            names.join(", "),
            read_again()
        ))
    }
}

impl CommandPolicy {
    /// Whether the node runs the command.
    ///
    /// # Errors
    /// The reason why not, and what to do.
    pub fn allows(&self, command: &CommandLine) -> Result<(), String> {
        match self {
            Self::Off => Err(
                "this node runs no commands (--commands off): start a node with --commands named, \
                 or put the job into a queue that such a node serves"
                    .to_owned(),
            ),
            Self::Named(declared) => declared.contains(command),
            Self::Any(_) => Ok(()),
        }
    }

    /// What a declared name stands for on this node.
    ///
    /// # Errors
    /// The reason why there is nothing, and what to do.
    pub fn resolve(&self, name: &str) -> Result<&CommandLine, String> {
        let declared = match self {
            Self::Off => return Err("this node runs no commands (--commands off)".to_owned()),
            Self::Named(declared) | Self::Any(declared) => declared,
        };
        declared.names.get(name).ok_or_else(|| {
            let known: Vec<&str> = declared.names.keys().map(String::as_str).collect();
            let known = if known.is_empty() {
                "none is".to_owned()
            } else {
                format!("declared are {}", known.join(", "))
            };
            format!(
                "no command named `{name}` is declared in this node's own files ({known}): add it \
                 under `commands:`"
            )
        })
    }
}

/// What makes a node take what its files say now.
fn read_again() -> String {
    format!(
        "send the node SIGHUP (`kill -HUP {}`, it reads them again and applies them), or start it \
         with --commands any",
        std::process::id()
    )
}

fn program(command: &CommandLine) -> &str {
    command.argv.first().map_or("", String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(argv: &[&str], env: &[(&str, &str)]) -> CommandLine {
        CommandLine {
            name: None,
            argv: argv.iter().map(|&a| a.to_owned()).collect(),
            env: env
                .iter()
                .map(|&(n, v)| (n.to_owned(), v.to_owned()))
                .collect(),
        }
    }

    fn declared() -> Declared {
        let mut declared = Declared::default();
        declared.name("report", command(&["report", "--all"], &[("LANG", "C")]));
        declared.allow(command(&["true"], &[]));
        declared
    }

    #[test]
    fn off_runs_nothing() {
        let refusal = CommandPolicy::Off.allows(&command(&["true"], &[]));
        assert!(refusal.is_err_and(|why| why.contains("--commands named")));
        assert!(CommandPolicy::Off.resolve("report").is_err());
    }

    #[test]
    fn any_runs_everything() {
        let policy = CommandPolicy::Any(declared());
        assert_eq!(policy.allows(&command(&["rm", "-rf", "/"], &[])), Ok(()));
        assert!(policy.resolve("report").is_ok());
    }

    #[test]
    fn named_runs_the_declared_argv_only() {
        let policy = CommandPolicy::Named(declared());
        assert_eq!(policy.allows(&command(&["true"], &[])), Ok(()));
        assert_eq!(policy.allows(&command(&["report", "--all"], &[])), Ok(()));
        for other in [&["report"][..], &["report", "--all", "x"], &["sh"], &[]] {
            let refusal = policy.allows(&command(other, &[]));
            assert!(refusal.is_err_and(|why| why.contains("commands:")));
        }
    }

    #[test]
    fn named_does_not_let_a_job_smuggle_a_program_in_through_the_environment() {
        let policy = CommandPolicy::Named(declared());
        let argv = &["report", "--all"];
        assert_eq!(policy.allows(&command(argv, &[("LANG", "C")])), Ok(()));
        for env in [
            &[("LD_PRELOAD", "/tmp/evil.so")][..],
            &[("LANG", "C"), ("PATH", "/tmp")],
            &[("LANG", "de")],
        ] {
            let refusal = policy.allows(&command(argv, env));
            assert!(refusal.is_err_and(|why| why.contains("environment")));
        }
    }

    #[test]
    fn a_name_resolves_to_what_was_declared_last() {
        let mut declared = declared();
        declared.name("report", command(&["report2"], &[]));
        let policy = CommandPolicy::Named(declared);
        assert_eq!(policy.resolve("report"), Ok(&command(&["report2"], &[])));
        let unknown = policy.resolve("backup").unwrap_err();
        assert!(unknown.contains("backup") && unknown.contains("report"));
    }
}
