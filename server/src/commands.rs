//! The commands of this node: what its files declare, and what `--commands` allows. The files
//! may be read again while it runs.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use punctual::handler::{CommandExecutor, CommandLine, Execution, RunContext};
use punctual::job::run::FailReason;
use punctual::job::spec::CommandSpec;
use punctual_server::exec::{CommandPolicy, Declared, ExecutorConfig, ProcessExecutor};

use crate::config::Commands;
use punctual_server::jobfile::JobFile;

/// Runs commands by the policy that the node's files make at the moment.
pub(crate) struct NodeCommands {
    mode: Commands,
    data_dir: PathBuf,
    current: RwLock<Arc<ProcessExecutor>>,
}

impl NodeCommands {
    pub(crate) fn new(mode: Commands, data_dir: PathBuf, file: &JobFile) -> Self {
        let current = executor(mode, &data_dir, file);
        Self {
            mode,
            data_dir,
            current: RwLock::new(current),
        }
    }

    /// The files were read again. What runs already is not touched.
    pub(crate) fn replace(&self, file: &JobFile) {
        let next = executor(self.mode, &self.data_dir, file);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
    }

    fn current(&self) -> Arc<ProcessExecutor> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current)
    }
}

fn executor(mode: Commands, data_dir: &std::path::Path, file: &JobFile) -> Arc<ProcessExecutor> {
    let declared = || declared(file);
    let policy = match mode {
        Commands::Off => CommandPolicy::Off,
        Commands::Named => CommandPolicy::Named(declared()),
        Commands::Any => CommandPolicy::Any(declared()),
    };
    Arc::new(ProcessExecutor::new(ExecutorConfig::new(policy, data_dir)))
}

/// Everything that the files let run: `commands:`, and the commands of the jobs in them.
fn declared(file: &JobFile) -> Declared {
    let mut declared = Declared::default();
    for (name, argv) in &file.commands {
        let command = CommandLine {
            argv: argv.clone(),
            ..CommandLine::default()
        };
        declared.name(name, command);
    }
    for job in &file.jobs {
        let argv = match &job.run.command {
            Some(CommandSpec::Argv(argv)) => Some(argv),
            Some(CommandSpec::Named(name)) => file.commands.get(name),
            None => None,
        };
        if let Some(argv) = argv {
            declared.allow(CommandLine {
                argv: argv.clone(),
                env: job.run.env.clone(),
                name: None,
            });
        }
    }
    declared
}

/// What a name stands for on this node, with what the job adds. A program is itself, also when a
/// declared command has the same name.
fn resolve(policy: &CommandPolicy, command: &CommandLine) -> Result<CommandLine, String> {
    let Some(name) = &command.name else {
        return Ok(command.clone());
    };
    let mut resolved = policy.resolve(name)?.clone();
    resolved.env.extend(command.env.clone());
    Ok(resolved)
}

#[async_trait]
impl CommandExecutor for NodeCommands {
    fn allows(&self, command: &CommandLine) -> Result<(), String> {
        let current = self.current();
        current.allows(&resolve(current.policy(), command)?)
    }

    async fn execute(&self, ctx: RunContext, command: CommandLine) -> Execution {
        let current = self.current();
        match resolve(current.policy(), &command) {
            Ok(command) => current.execute(ctx, command).await,
            Err(refusal) => Execution::failed(FailReason::Error, refusal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_server::jobfile::{Format, Source};

    fn file(text: &str) -> JobFile {
        let source = Source {
            name: "j.yaml".into(),
            format: Format::Yaml,
            text: text.into(),
        };
        let file = JobFile::parse(&[source], 1_790_000_000_000);
        assert_eq!(file.findings, []);
        file
    }

    fn line(argv: &[&str], env: &[(&str, &str)]) -> CommandLine {
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        CommandLine {
            name: None,
            argv: argv.iter().map(|a| (*a).to_owned()).collect(),
            env: env.collect(),
        }
    }

    fn named(name: &str, env: &[(&str, &str)]) -> CommandLine {
        CommandLine {
            name: Some(name.into()),
            ..line(&[], env)
        }
    }

    #[test]
    fn a_program_is_not_taken_for_the_command_of_the_same_name() {
        let own = file("commands: { date: [/bin/echo, named] }");
        let node = NodeCommands::new(Commands::Any, ".".into(), &own);
        let policy = node.current();
        let run = |command| resolve(policy.policy(), &command).unwrap().argv;
        assert_eq!(run(line(&["date"], &[])), ["date"]);
        assert_eq!(run(named("date", &[])), ["/bin/echo", "named"]);
    }

    /// Q02: by default only what the node's own files say is run.
    #[test]
    fn a_node_runs_what_its_own_files_say() {
        let own = file(
            "commands: { report: [/bin/echo, all] }\njobs:\n  - id: a\n    run: { command: [/bin/date, -u], env: { LANG: C } }\n",
        );
        let node = NodeCommands::new(Commands::Named, ".".into(), &own);
        assert!(node.allows(&named("report", &[])).is_ok());
        assert!(node.allows(&line(&["/bin/echo", "all"], &[])).is_ok());
        assert!(
            node.allows(&line(&["/bin/date", "-u"], &[("LANG", "C")]))
                .is_ok()
        );
        for refused in [
            line(&["/bin/echo", "other"], &[]),
            line(&["/bin/date", "-u"], &[("LD_PRELOAD", "/tmp/x.so")]),
            named("report", &[("PATH", "/tmp")]),
            named("unknown", &[]),
            // A program that happens to be called like a declared command.
            line(&["report"], &[]),
        ] {
            assert!(node.allows(&refused).is_err(), "{refused:?}");
        }
        node.replace(&file("commands: { other: [/bin/true] }"));
        assert!(node.allows(&named("report", &[])).is_err());
        assert!(node.allows(&named("other", &[])).is_ok());
        let off = NodeCommands::new(Commands::Off, ".".into(), &own);
        assert!(off.allows(&named("report", &[])).is_err());
        let any = NodeCommands::new(Commands::Any, ".".into(), &own);
        assert!(
            any.allows(&line(&["/bin/echo", "other"], &[("A", "b")]))
                .is_ok()
        );
    }
}
