//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use punctual::duration::Millis;
use punctual::job::run::RunState;

use crate::config::ServeArgs;

/// A distributed job scheduler that never misses and never repeats a scheduled fire.
#[derive(Debug, Parser)]
#[command(
    name = "punctual",
    version,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a node: schedule, execute, serve the API.
    Serve(Box<ServeArgs>),
    /// Try it: a node with sample jobs on a temporary store, and what they do as it happens.
    Demo(DemoArgs),
    /// Check job files without a server.
    Check(FilesArgs),
    /// Make the jobs of the files the jobs of the server.
    Apply(ApplyArgs),
    /// Show what `apply` would change; exit code 1 if anything.
    Diff(DiffArgs),
    /// Look at jobs and change them.
    #[command(subcommand)]
    Job(JobCommand),
    /// Look at runs and cancel them.
    #[command(subcommand)]
    Run(RunCommand),
    /// Look at nodes, and take them out of work.
    #[command(subcommand)]
    Node(NodeCommand),
    /// The cluster at a glance.
    Status,
    /// Look for what is wrong, and say what to do; exit code 1 if anything is.
    Doctor,
    /// Say why a job fired at a time, or did not.
    Why {
        /// Its id.
        job: String,
        /// RFC 3339 [default: the last instant that has passed].
        #[arg(long, value_name = "TIME")]
        at: Option<String>,
    },
    /// Print the next fire times of a cron expression.
    Next(NextArgs),
    /// Say what a cron expression means, and what is odd about it.
    Explain(ExplainArgs),
    /// Turn the jobs of another scheduler into a job file.
    #[command(subcommand)]
    Import(ImportCommand),
    /// What only a person can decide: after a backup was restored, after a clock stepped.
    #[command(subcommand)]
    Admin(AdminCommand),
    /// Take the contents out of an embedded store that is not in use, or put them into a new one.
    #[command(subcommand)]
    Store(StoreCommand),
    /// Print name and version.
    Version,
}

/// Options of every command that talks to a server or prints.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The server's address; found by itself on the machine that it runs on.
    #[arg(
        long,
        global = true,
        env = "PUNCTUAL_SERVER",
        value_name = "URL",
        help_heading = "Client options"
    )]
    pub(crate) server: Option<String>,
    /// A file with the access token.
    #[arg(
        long,
        global = true,
        env = "PUNCTUAL_TOKEN_FILE",
        value_name = "FILE",
        help_heading = "Client options"
    )]
    pub(crate) token_file: Option<PathBuf>,
    /// The server's data directory [default: ./punctual-data, or the directory of the sled store].
    #[arg(
        long,
        global = true,
        env = "PUNCTUAL_DATA_DIR",
        value_name = "DIR",
        help_heading = "Client options"
    )]
    pub(crate) data_dir: Option<PathBuf>,
    /// How long to wait for an answer, and with `job trigger --wait` for the end of the run
    /// [default: 30s for an answer, as long as it takes for a run].
    #[arg(
        long,
        global = true,
        env = "PUNCTUAL_TIMEOUT",
        hide_env = true,
        value_name = "DURATION",
        help_heading = "Client options"
    )]
    pub(crate) timeout: Option<Millis>,
    /// How to print.
    #[arg(
        short,
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        help_heading = "Output options"
    )]
    pub(crate) output: Format,
    /// Leave out the headers of tables.
    #[arg(long, global = true, help_heading = "Output options")]
    pub(crate) no_headers: bool,
    /// How to show times in tables.
    #[arg(
        long,
        global = true,
        value_enum,
        env = "PUNCTUAL_TIME",
        default_value_t,
        hide_env = true,
        value_name = "HOW",
        help_heading = "Output options"
    )]
    pub(crate) time: TimeStyle,
    /// When to use colors.
    #[arg(
        long,
        global = true,
        value_enum,
        env = "PUNCTUAL_COLOR",
        default_value_t,
        hide_env = true,
        value_name = "WHEN",
        help_heading = "Output options"
    )]
    pub(crate) color: ColorChoice,
    /// Do not ask.
    #[arg(short, long, global = true, help_heading = "Output options")]
    pub(crate) yes: bool,
    /// Say nothing on standard error but errors.
    #[arg(short, long, global = true, help_heading = "Output options")]
    pub(crate) quiet: bool,
    /// Say more; twice for more still.
    #[arg(short, long, global = true, action = clap::ArgAction::Count, help_heading = "Output options")]
    pub(crate) verbose: u8,
}

impl Common {
    /// How long to wait for an answer.
    pub(crate) fn answer_timeout(&self) -> std::time::Duration {
        self.timeout.unwrap_or(Millis::from_secs(30)).into()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    /// A table with more columns.
    Wide,
    Json,
    /// One JSON value a line.
    Jsonl,
    Yaml,
    /// Only ids.
    Name,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimeStyle {
    /// "5min ago".
    Relative,
    /// In this machine's time zone.
    #[default]
    Local,
    Utc,
    /// RFC 3339.
    Iso,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorChoice {
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Debug, Args)]
pub(crate) struct FilesArgs {
    /// Job files, directories of them, or - for standard input.
    #[arg(required = true, value_name = "FILE|DIR|-")]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Where to listen [default: 127.0.0.1:7717, or a free port when that is taken].
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<std::net::SocketAddr>,
}

#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// A job file, a directory of them, or - for standard input; repeatable.
    #[arg(short, long = "file", required = true, value_name = "FILE|DIR|-")]
    pub(crate) files: Vec<PathBuf>,
    /// Delete the jobs that the files do not have.
    #[arg(long)]
    pub(crate) prune: bool,
    /// Check everything and say what would change, but change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// A job file, a directory of them, or - for standard input; repeatable.
    #[arg(short, long = "file", required = true, value_name = "FILE|DIR|-")]
    pub(crate) files: Vec<PathBuf>,
    /// Count the jobs that the files do not have as deleted.
    #[arg(long)]
    pub(crate) prune: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List the live nodes.
    Ls,
    /// Give a node no more work, and take the lead from it; what it runs goes on. Holds until
    /// `undrain`, also over restarts of the node.
    Drain {
        /// Its id.
        node: String,
        /// Why, for the others.
        #[arg(long)]
        reason: Option<String>,
    },
    /// Give a drained node work again.
    Undrain {
        /// Its id.
        node: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// List jobs, the next to fire first.
    Ls,
    /// Show a job.
    Show {
        /// Its id.
        job: String,
    },
    /// Hold a job: its instants are recorded as skipped until it is resumed.
    Pause(PauseArgs),
    /// Let a paused job fire again.
    Resume {
        /// Its id.
        #[arg(required_unless_present = "all", conflicts_with = "all")]
        job: Option<String>,
        /// End what `pause --all` began; jobs that were paused one by one stay so.
        #[arg(long)]
        all: bool,
    },
    /// Delete jobs; runs that are under way may finish.
    Rm {
        /// Their ids.
        #[arg(required = true)]
        jobs: Vec<String>,
    },
    /// Run a job now, beside its schedule.
    Trigger(TriggerArgs),
    /// Run past instants of a job's present definition.
    Backfill(BackfillArgs),
}

#[derive(Debug, Args)]
pub(crate) struct BackfillArgs {
    /// Its id.
    pub(crate) job: String,
    /// RFC 3339: the first instant.
    #[arg(long, value_name = "TIME")]
    pub(crate) from: String,
    /// RFC 3339: the first instant that is not meant.
    #[arg(long, value_name = "TIME")]
    pub(crate) to: String,
    /// Say what would be run and what is recorded of each instant, but run nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Refuse when the range holds more instants [default: 100, at most 1000].
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Run also the instants that have fired already.
    #[arg(long)]
    pub(crate) again: bool,
    /// The same key goes on with the same backfill and runs nothing twice [default: a random one].
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PauseArgs {
    /// Its id.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) job: Option<String>,
    /// Hold every job that there is now.
    #[arg(long)]
    pub(crate) all: bool,
    /// Why, for the others.
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// It fires again by itself from then on: a time (RFC 3339) or a duration such as 2h.
    #[arg(long, value_name = "TIME")]
    pub(crate) until: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TriggerArgs {
    /// Its id.
    pub(crate) job: String,
    /// JSON that the run gets instead of the job's payload.
    #[arg(long, value_name = "JSON")]
    pub(crate) payload: Option<String>,
    /// The same key never makes a second run [default: a random one].
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
    /// Wait for the end of the run; exit code 1 if it fails.
    #[arg(long)]
    pub(crate) wait: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RunCommand {
    /// List runs, the newest of a job first.
    Ls(RunLsArgs),
    /// Show a run with all its attempts.
    Show {
        /// Its id.
        run: String,
    },
    /// Stop a run, or keep it from starting.
    Cancel {
        /// Its id.
        run: String,
    },
    /// Repeat a run that failed, after the job's present definition. Of a run whose node vanished
    /// only with --yes, unless the job is idempotent.
    Retry {
        /// Its id.
        run: String,
        /// The same key never makes a second attempt [default: a random one].
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RunLsArgs {
    /// Only this job's.
    #[arg(long, value_name = "JOB")]
    pub(crate) job: Option<String>,
    /// Only in this state (PENDING, LOCKED, RUNNING, SUCCESS, FAILED, SKIPPED); repeatable.
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',', value_parser = parse_state)]
    pub(crate) states: Vec<RunState>,
    /// At most so many [default: all].
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AdminCommand {
    /// Begin a new epoch in a store on etcd that was restored from a backup, before a node starts
    /// on it.
    ///
    /// Takes the options of `serve` that say which store it is, from the command line, the
    /// environment and --config.
    #[command(mut_args(hide_all_but_the_store))]
    Recover(Box<RecoverArgs>),
    /// What is to be said about a node's clock.
    #[command(subcommand)]
    Clock(ClockCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClockCommand {
    /// Say that the clock of a node is right although it stepped by more than an hour.
    ///
    /// A node whose clock steps so far while it runs neither leads nor works until the clock is set
    /// right again, or somebody says that it is right now. Look at the clock of that machine first.
    Accept {
        /// The node; the one that is asked if not given.
        #[arg(long)]
        node: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImportCommand {
    /// A crontab, or the YAML of CronJobs of Kubernetes: the job file goes to standard output, what
    /// is different from before to standard error. Exit code 1 if anything was left out.
    Crontab(ImportArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The file, or - for standard input.
    #[arg(value_name = "FILE|-")]
    pub(crate) file: PathBuf,
    /// Its lines name a user, as in /etc/crontab [default: as it looks].
    #[arg(long)]
    pub(crate) system: bool,
    /// The zone that its times are meant in, where it does not say so itself [default: this
    /// machine's].
    #[arg(long, value_name = "ZONE")]
    pub(crate) tz: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    /// The store is a restored backup, and all nodes are stopped.
    #[arg(long, required = true)]
    pub(crate) after_restore: bool,
    #[command(flatten)]
    pub(crate) store: ServeArgs,
}

/// The other options of `serve` are taken, so that the same file and environment serve both, and
/// mean nothing here.
fn hide_all_but_the_store(arg: clap::Arg) -> clap::Arg {
    let id = arg.get_id().as_str();
    let shown =
        ["store", "config", "after_restore", "help"].contains(&id) || id.starts_with("etcd_");
    arg.hide(!shown)
}

#[derive(Debug, Args)]
pub(crate) struct NextArgs {
    /// The cron expression, in quotes.
    #[arg(required_unless_present = "batch", value_name = "EXPR")]
    pub(crate) expr: Option<String>,
    /// IANA time zone [default: UTC].
    #[arg(long, value_name = "ZONE")]
    pub(crate) tz: Option<String>,
    /// RFC 3339; fire times are later than this [default: now].
    #[arg(long, value_name = "TIME")]
    pub(crate) after: Option<String>,
    /// How many [default: 5].
    #[arg(long, short = 'n', value_name = "N")]
    pub(crate) count: Option<usize>,
    /// How to read the expression.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dialect: DialectArg,
    /// Answer questions, one JSON object a line, from a file or - for standard input.
    #[arg(long, value_name = "FILE|-", conflicts_with_all = ["expr", "tz", "after", "count", "dialect"])]
    pub(crate) batch: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The cron expression, in quotes.
    #[arg(value_name = "EXPR")]
    pub(crate) expr: String,
    /// IANA time zone [default: UTC].
    #[arg(long, value_name = "ZONE")]
    pub(crate) tz: Option<String>,
    /// RFC 3339; fire times are later than this [default: now].
    #[arg(long, value_name = "TIME")]
    pub(crate) after: Option<String>,
    /// How many fire times [default: 5].
    #[arg(long, short = 'n', value_name = "N")]
    pub(crate) count: Option<usize>,
    /// How to read the expression.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dialect: DialectArg,
    /// In which language.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) language: LanguageArg,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LanguageArg {
    /// English and Chinese.
    #[default]
    Both,
    /// English.
    En,
    /// Chinese.
    Zh,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Write everything that can be read as lines of JSON.
    Export {
        /// The store [default: sled:./punctual-data].
        #[arg(long, env = "PUNCTUAL_STORE", value_name = "sled:PATH")]
        store: Option<String>,
        /// Where to; must not exist [default: standard output].
        #[arg(value_name = "FILE|-")]
        file: Option<PathBuf>,
    },
    /// Make a store from the lines of an export.
    Import {
        /// The store; must not exist [default: sled:./punctual-data].
        #[arg(long, env = "PUNCTUAL_STORE", value_name = "sled:PATH")]
        store: Option<String>,
        /// Where from [default: standard input].
        #[arg(value_name = "FILE|-")]
        file: Option<PathBuf>,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DialectArg {
    #[default]
    Auto,
    Unix,
    Quartz,
}

/// A run's state as people write it.
pub(crate) fn parse_state(text: &str) -> Result<RunState, String> {
    let upper = text.trim().to_ascii_uppercase();
    let mut states = RunState::ALL.into_iter();
    states.find(|state| state.as_str() == upper).ok_or_else(|| {
        let all = RunState::ALL.map(RunState::as_str).join(", ");
        format!("the states are {all}")
    })
}
