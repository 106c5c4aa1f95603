//! The commands of this node: what its files declare, and what `--commands` allows. The files
//! may be read again while it runs.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use async_trait::async_trait;
use punctual::control::Control;
use punctual::handler::{CommandExecutor, CommandLine, Execution, RunContext};
use punctual::job::run::FailReason;
use punctual::job::spec::{CommandSpec, JobSpec};
use punctual_server::exec::{CommandPolicy, Declared, ExecutorConfig, ProcessExecutor};

use crate::cli::failure::{Failure, Outcome};
use crate::config::Commands;
use crate::metrics::Metrics;
use crate::times::now_ms;
use punctual_server::jobfile::{JobFile, read_all};

/// The most jobs that one line of the log names.
const MAX_NAMED: usize = 10;

/// Runs commands by the policy that the node's files make at the moment.
pub(crate) struct NodeCommands {
    mode: Commands,
    data_dir: PathBuf,
    /// The node's own files; nothing else declares commands.
    files: Vec<PathBuf>,
    current: RwLock<Current>,
    /// Where executions are counted.
    metrics: Option<Arc<Metrics>>,
    /// An older reading must not come after a newer one.
    reading: Mutex<()>,
}

/// What the files said when they were read last.
#[derive(Clone)]
struct Current {
    executor: Arc<ProcessExecutor>,
    jobs: Arc<BTreeSet<String>>,
}

/// The node's own job files, without a mistake.
pub(crate) fn read_files(files: &[PathBuf]) -> Outcome<JobFile> {
    let sources = read_all(files).map_err(|failures| {
        let lines: Vec<String> = failures.iter().map(ToString::to_string).collect();
        Failure::usage(lines.join("\n"))
    })?;
    let file = JobFile::parse(&sources, now_ms());
    if file.findings.is_empty() {
        return Ok(file);
    }
    let lines: Vec<String> = file.findings.iter().map(ToString::to_string).collect();
    Err(Failure::usage(format!("--jobs:\n{}", lines.join("\n"))))
}

impl NodeCommands {
    pub(crate) fn new(mode: Commands, data_dir: PathBuf, file: &JobFile) -> Self {
        let current = Current {
            executor: executor(mode, &data_dir, file),
            jobs: ids(file),
        };
        Self {
            mode,
            data_dir,
            files: Vec::new(),
            metrics: None,
            current: RwLock::new(current),
            reading: Mutex::new(()),
        }
    }

    /// Names the files that were read.
    pub(crate) fn with_files(mut self, files: Vec<PathBuf>) -> Self {
        self.files = files;
        self
    }

    /// Says where executions are counted.
    pub(crate) fn counted_by(mut self, metrics: Arc<Metrics>) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Reads the files again: what they declare, and which jobs do not stand in them any more.
    /// What runs already is not touched. Mistakes in them change nothing.
    pub(crate) fn read_again(&self) -> Outcome<(JobFile, Vec<String>)> {
        let _alone = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let file = read_files(&self.files)?;
        let gone = self.replace(&file);
        Ok((file, gone))
    }

    /// Whether reading the files again may allow more. Standard input was read once and for all.
    pub(crate) fn may_declare_more(&self) -> bool {
        let on_disk = |path: &PathBuf| path.as_os_str() != "-";
        self.mode == Commands::Named && !self.files.is_empty() && self.files.iter().all(on_disk)
    }

    /// Whether the job stood in the files when they were read last.
    pub(crate) fn has_job(&self, id: &str) -> bool {
        self.current().jobs.contains(id)
    }

    fn replace(&self, file: &JobFile) -> Vec<String> {
        let next = Current {
            executor: executor(self.mode, &self.data_dir, file),
            jobs: ids(file),
        };
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let gone = current.jobs.difference(&next.jobs).cloned().collect();
        *current = next;
        gone
    }

    fn current(&self) -> Current {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        current.clone()
    }

    /// Why the node would not run the job's command.
    pub(crate) fn refusal(&self, spec: &JobSpec) -> Option<String> {
        let line = CommandLine::new(spec.run.command.as_ref()?, spec.run.env.clone());
        self.allows(&line).err()
    }

    /// Jobs that went out of the files stay in the store, and their runs would wait for a node
    /// that declares their commands: the log names them.
    pub(crate) async fn warn_of_gone(&self, control: &Control, gone: Vec<String>) {
        let mut left = Vec::new();
        for id in gone {
            // One that is deleted needs nothing; nor is a warning worth a store that is away.
            if let Ok(job) = control.job(&id).await
                && self.refusal(&job.spec).is_some()
            {
                left.push(id);
            }
        }
        if let Some(first) = left.first() {
            let more = match left.len().saturating_sub(MAX_NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let named: Vec<&str> = left.iter().take(MAX_NAMED).map(String::as_str).collect();
            tracing::warn!(
                jobs = left.len(),
                "jobs that stand in no --jobs file of this node any more are still in the store, \
                 and this node will not run their commands: {}{more}. Delete them (`punctual job \
                 rm {first}`, or `punctual apply -f FILES --prune`) or put them back",
                named.join(", "),
            );
        }
    }
}

fn ids(file: &JobFile) -> Arc<BTreeSet<String>> {
    Arc::new(file.jobs.iter().map(|job| job.id.clone()).collect())
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
        let current = self.current().executor;
        current.allows(&resolve(current.policy(), command)?)
    }

    async fn execute(&self, ctx: RunContext, command: CommandLine) -> Execution {
        let current = self.current().executor;
        let (job, began) = (ctx.job_id.clone(), Instant::now());
        let ended = match resolve(current.policy(), &command) {
            Ok(command) => current.execute(ctx, command).await,
            Err(refusal) => Execution::failed(FailReason::Error, refusal),
        };
        if let Some(metrics) = &self.metrics {
            metrics.executed(&job, ended.failure.is_none(), began.elapsed());
        }
        ended
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
        let policy = node.current().executor;
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
