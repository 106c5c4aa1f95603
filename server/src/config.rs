//! The options of `serve`: a flag goes before `PUNCTUAL_*`, that before the config file, that
//! before the default.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use punctual::duration::Millis;
use serde::Deserialize;

use crate::cli::failure::{Failure, Outcome};
use crate::etcd::{EtcdAt, Secret};
use punctual_server::outbound::Pattern;

/// Options of `serve`, as they stand on the command line, in the environment or in the file.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ServeArgs {
    /// Where the data is: sled:PATH, memory:, or for a cluster etcd://HOST:PORT,HOST:PORT/NAMESPACE
    /// (etcds:// with TLS) [default: sled:./punctual-data].
    #[arg(long, env = "PUNCTUAL_STORE", value_name = "STORE")]
    pub(crate) store: Option<String>,
    /// Address of the API [default: 127.0.0.1:7717].
    #[arg(long, env = "PUNCTUAL_LISTEN", value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    #[arg(skip)]
    pub(crate) data_dir: Option<PathBuf>,
    /// Name of this node [default: made once and kept in the data directory].
    #[arg(long, env = "PUNCTUAL_NODE_ID", value_name = "ID")]
    pub(crate) node_id: Option<String>,
    /// How many runs at once [default: 16].
    #[arg(long, env = "PUNCTUAL_SLOTS", value_name = "N")]
    pub(crate) slots: Option<u32>,
    /// Which queues to serve [default: default].
    #[arg(
        long,
        env = "PUNCTUAL_QUEUES",
        value_name = "A,B",
        value_delimiter = ','
    )]
    pub(crate) queues: Option<Vec<String>>,
    /// Job files or directories, applied at start and again on SIGHUP; repeatable.
    #[arg(
        long,
        env = "PUNCTUAL_JOBS",
        value_name = "FILE|DIR",
        value_delimiter = ','
    )]
    pub(crate) jobs: Option<Vec<PathBuf>>,
    /// Which commands this node runs: none, those that its own job files declare, or any
    /// [default: named].
    #[arg(
        long,
        env = "PUNCTUAL_COMMANDS",
        value_enum,
        value_name = "off|named|any"
    )]
    pub(crate) commands: Option<Commands>,
    /// A file with one more token that opens the API: the same on all nodes, it opens all of them.
    #[arg(long, env = "PUNCTUAL_ADMIN_TOKEN_FILE", value_name = "FILE")]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// Whom this node may call when a job says `notify`: [http://]HOST[:PORT], or *.DOMAIN;
    /// repeatable [default: nobody]. The same on all nodes.
    #[arg(
        long,
        env = "PUNCTUAL_NOTIFY_ALLOW",
        value_name = "HOST[:PORT]",
        value_delimiter = ','
    )]
    pub(crate) notify_allow: Option<Vec<String>>,
    /// A file with the secret that signs what is sent to them [default: it is not signed].
    #[arg(long, env = "PUNCTUAL_NOTIFY_SECRET_FILE", value_name = "FILE")]
    pub(crate) notify_secret_file: Option<PathBuf>,
    /// Whom a job with `run.http` may call besides public hosts by https, and who may get a secret:
    /// [http://]HOST[:PORT], or *.DOMAIN; repeatable [default: nobody]. The same on all nodes.
    #[arg(
        long,
        env = "PUNCTUAL_HTTP_ALLOW",
        value_name = "HOST[:PORT]",
        value_delimiter = ','
    )]
    pub(crate) http_allow: Option<Vec<String>>,
    /// How long a leader stays one without renewing [default: 5s].
    #[arg(long, env = "PUNCTUAL_LEADER_TTL", value_name = "DURATION")]
    pub(crate) leader_ttl: Option<Millis>,
    /// How long an instant may stay undecided before another node takes the lead; 0 waits for the
    /// leader's lease to end [default: 1s].
    #[arg(long, env = "PUNCTUAL_OVERDUE_TAKEOVER", value_name = "DURATION")]
    pub(crate) overdue_takeover: Option<Millis>,
    /// How long a node counts as alive without renewing [default: 10s].
    #[arg(long, env = "PUNCTUAL_SESSION_TTL", value_name = "DURATION")]
    pub(crate) session_ttl: Option<Millis>,
    /// How long after its session's end a node's runs are given up [default: 15s].
    #[arg(long, env = "PUNCTUAL_LOST_GRACE", value_name = "DURATION")]
    pub(crate) lost_grace: Option<Millis>,
    /// How long a graceful stop waits for runs; then it stops them [default: 30s].
    #[arg(long, env = "PUNCTUAL_DRAIN_TIMEOUT", value_name = "DURATION")]
    pub(crate) drain_timeout: Option<Millis>,
    /// What an acknowledged write of the embedded store survives: the death of the process, or a
    /// loss of power as well [default: flush].
    #[arg(
        long,
        env = "PUNCTUAL_DURABILITY",
        value_enum,
        value_name = "flush|fsync"
    )]
    pub(crate) durability: Option<DurabilityMode>,
    /// User of etcd.
    #[arg(
        long,
        env = "PUNCTUAL_ETCD_USER",
        value_name = "NAME",
        help_heading = "etcd"
    )]
    pub(crate) etcd_user: Option<String>,
    /// The user's password; others on this machine can read it here, not in a file.
    #[arg(
        long,
        env = "PUNCTUAL_ETCD_PASSWORD",
        value_name = "SECRET",
        hide_env_values = true,
        help_heading = "etcd"
    )]
    pub(crate) etcd_password: Option<Secret>,
    /// A file with the user's password.
    #[arg(
        long,
        env = "PUNCTUAL_ETCD_PASSWORD_FILE",
        value_name = "FILE",
        help_heading = "etcd"
    )]
    pub(crate) etcd_password_file: Option<PathBuf>,
    /// Who vouches for etcd's certificate, as PEM; turns TLS on [default: whom the system trusts].
    #[arg(
        long,
        env = "PUNCTUAL_ETCD_CA_FILE",
        value_name = "FILE",
        help_heading = "etcd"
    )]
    pub(crate) etcd_ca_file: Option<PathBuf>,
    /// Our certificate, where etcd asks for one, as PEM; turns TLS on.
    #[arg(
        long,
        env = "PUNCTUAL_ETCD_CERT_FILE",
        value_name = "FILE",
        help_heading = "etcd"
    )]
    pub(crate) etcd_cert_file: Option<PathBuf>,
    /// The key of our certificate, as PEM.
    #[arg(
        long,
        env = "PUNCTUAL_ETCD_KEY_FILE",
        value_name = "FILE",
        help_heading = "etcd"
    )]
    pub(crate) etcd_key_file: Option<PathBuf>,
    /// Talk to an etcd on another machine without encryption: whoever is on the way reads and
    /// changes everything.
    #[arg(long, env = "PUNCTUAL_ETCD_PLAINTEXT", num_args = 0, default_missing_value = "true", value_parser = clap::builder::BoolishValueParser::new(), help_heading = "etcd")]
    pub(crate) etcd_plaintext: Option<bool>,
    /// How to write the log [default: auto].
    #[arg(
        long,
        env = "PUNCTUAL_LOG_FORMAT",
        value_enum,
        value_name = "auto|text|json"
    )]
    pub(crate) log_format: Option<LogFormat>,
    /// A TOML file with these options as keys, `_` for `-`.
    #[arg(long, env = "PUNCTUAL_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    pub(crate) config: Option<PathBuf>,
    /// Listen on an address that others reach, without encryption. Forces --commands off.
    #[arg(long, env = "PUNCTUAL_INSECURE", num_args = 0, default_missing_value = "true", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) insecure: Option<bool>,
}

/// What an acknowledged write of the embedded store survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DurabilityMode {
    /// The death of the process at any moment.
    #[default]
    Flush,
    /// A loss of power as well.
    Fsync,
}

/// Which commands a node runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Commands {
    /// None.
    Off,
    /// Those that stand in the node's own job files.
    #[default]
    Named,
    /// Whatever a job says.
    Any,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The store that `--store` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreAt {
    /// An embedded database below this directory.
    Sled(PathBuf),
    /// In this process only.
    Memory,
    /// An etcd, shared with other nodes.
    Etcd(EtcdAt),
}

/// Everything `serve` needs to know, checked.
#[derive(Clone, Debug)]
pub(crate) struct ServeConfig {
    pub(crate) store: StoreAt,
    pub(crate) listen: SocketAddr,
    pub(crate) data_dir: PathBuf,
    pub(crate) commands: Commands,
    pub(crate) log_format: LogFormat,
    /// Whom it may tell of runs.
    pub(crate) notify_allow: Vec<Pattern>,
    /// Whom it may call besides the public.
    pub(crate) http_allow: Vec<Pattern>,
    /// The rest as given; what is not given is the engine's default.
    pub(crate) args: ServeArgs,
}

pub(crate) const DEFAULT_PORT: u16 = 7717;
pub(crate) const DEFAULT_DIR: &str = "./punctual-data";

impl ServeArgs {
    /// Takes from `other` what is not given here.
    fn or(self, other: Self) -> Self {
        Self {
            store: self.store.or(other.store),
            listen: self.listen.or(other.listen),
            data_dir: self.data_dir.or(other.data_dir),
            node_id: self.node_id.or(other.node_id),
            slots: self.slots.or(other.slots),
            queues: self.queues.or(other.queues),
            jobs: self.jobs.or(other.jobs),
            commands: self.commands.or(other.commands),
            admin_token_file: self.admin_token_file.or(other.admin_token_file),
            notify_allow: self.notify_allow.or(other.notify_allow),
            http_allow: self.http_allow.or(other.http_allow),
            notify_secret_file: self.notify_secret_file.or(other.notify_secret_file),
            leader_ttl: self.leader_ttl.or(other.leader_ttl),
            overdue_takeover: self.overdue_takeover.or(other.overdue_takeover),
            session_ttl: self.session_ttl.or(other.session_ttl),
            lost_grace: self.lost_grace.or(other.lost_grace),
            drain_timeout: self.drain_timeout.or(other.drain_timeout),
            durability: self.durability.or(other.durability),
            etcd_user: self.etcd_user.or(other.etcd_user),
            // The two are one option: the higher place decides.
            etcd_password_file: match self.etcd_password {
                None => self.etcd_password_file.clone().or(other.etcd_password_file),
                Some(_) => self.etcd_password_file.clone(),
            },
            etcd_password: match self.etcd_password_file {
                None => self.etcd_password.or(other.etcd_password),
                Some(_) => self.etcd_password,
            },
            etcd_ca_file: self.etcd_ca_file.or(other.etcd_ca_file),
            etcd_cert_file: self.etcd_cert_file.or(other.etcd_cert_file),
            etcd_key_file: self.etcd_key_file.or(other.etcd_key_file),
            etcd_plaintext: self.etcd_plaintext.or(other.etcd_plaintext),
            log_format: self.log_format.or(other.log_format),
            config: self.config,
            insecure: self.insecure.or(other.insecure),
        }
    }

    fn read_file(path: &Path) -> Outcome<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|e| Failure::usage(format!("--config {shown}: {e}")))?;
        toml::from_str(&text)
            .map_err(|e| Failure::usage(format!("--config {shown}: {}", e.to_string().trim_end())))
    }

    /// Checks the options, with those of the config file, and gives the rest their defaults.
    pub(crate) fn resolve(mut self, data_dir: Option<PathBuf>) -> Outcome<ServeConfig> {
        self.data_dir = data_dir;
        let mut args = match self.config.clone() {
            Some(path) => self.or(Self::read_file(&path)?),
            None => self,
        };
        // Whoever names a directory wants the data in it.
        let store = match (&args.store, &args.data_dir) {
            (None, Some(directory)) => StoreAt::Sled(directory.clone()),
            (store, _) => parse_store(store.as_deref())?,
        };
        let data_dir = args.data_dir.take().unwrap_or_else(|| match &store {
            StoreAt::Sled(path) => path.clone(),
            StoreAt::Memory | StoreAt::Etcd(_) => DEFAULT_DIR.into(),
        });
        let listen = parse_listen(args.listen.as_deref())?;
        let insecure = args.insecure.unwrap_or(false);
        if !listen.ip().is_loopback() && !insecure {
            return Err(Failure::usage(format!(
                "--listen {listen}: others could reach this address, and the API is not encrypted"
            ))
            .hint(format!(
                "listen on 127.0.0.1:{} and put a proxy with TLS or a tunnel in front of it,\n\
                 or say --insecure (then this node runs no commands)",
                listen.port()
            )));
        }
        let exposed = insecure && !listen.ip().is_loopback();
        let commands = match args.commands {
            Some(mode) if exposed && mode != Commands::Off => {
                return Err(Failure::usage(
                    "--insecure on an address that others reach goes only with --commands off",
                ));
            }
            None if exposed => Commands::Off,
            mode => mode.unwrap_or_default(),
        };
        if let StoreAt::Etcd(at) = &store {
            // Mistakes in the options are found before anything is tried.
            at.config(&args)?;
        }
        if args.slots == Some(0) {
            return Err(Failure::usage("--slots: at least 1"));
        }
        Ok(ServeConfig {
            notify_allow: patterns("--notify-allow", args.notify_allow.as_deref())?,
            http_allow: patterns("--http-allow", args.http_allow.as_deref())?,
            store,
            listen,
            data_dir,
            commands,
            log_format: args.log_format.unwrap_or_default(),
            args,
        })
    }
}

fn patterns(option: &str, given: Option<&[String]>) -> Outcome<Vec<Pattern>> {
    let read = |text: &String| {
        Pattern::parse(text).map_err(|why| {
            Failure::usage(format!("{option} {text}: {why}")).hint(
                "write HOST, HOST:PORT, *.DOMAIN, or http://HOST:PORT for one without encryption",
            )
        })
    };
    given.unwrap_or_default().iter().map(read).collect()
}

fn parse_store(text: Option<&str>) -> Outcome<StoreAt> {
    let Some(text) = text else {
        return Ok(StoreAt::Sled(DEFAULT_DIR.into()));
    };
    let fail = |message: &str| {
        Err(Failure::usage(format!("--store {text}: {message}"))
            .hint("the stores are sled:PATH, memory: and etcd://HOST:PORT,HOST:PORT/NAMESPACE"))
    };
    match text.split_once(':') {
        Some(("sled", "")) => fail("the path is missing"),
        Some(("sled", path)) => Ok(StoreAt::Sled(path.into())),
        Some(("memory", "")) => Ok(StoreAt::Memory),
        Some(("memory", _)) => fail("nothing stands behind memory:"),
        Some((scheme @ ("etcd" | "etcds"), rest)) => match EtcdAt::parse(scheme, rest) {
            Ok(at) => Ok(StoreAt::Etcd(at)),
            Err(why) => fail(&why),
        },
        Some((scheme, _)) => fail(&format!("there is no store named `{scheme}`")),
        None => fail("the kind of store is missing"),
    }
}

fn parse_listen(text: Option<&str>) -> Outcome<SocketAddr> {
    let Some(text) = text else {
        return Ok(SocketAddr::from(([127, 0, 0, 1], DEFAULT_PORT)));
    };
    let text_with_ip = match text.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => text.to_owned(),
    };
    text_with_ip.parse().map_err(|_| {
        Failure::usage(format!("--listen {text}: not an address"))
            .hint(format!("write IP:PORT, such as 127.0.0.1:{DEFAULT_PORT}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(args: ServeArgs) -> Result<ServeConfig, String> {
        args.resolve(None).map_err(|failure| failure.to_string())
    }

    #[test]
    fn the_data_directory_is_that_of_the_store() {
        let config = resolve(ServeArgs {
            store: Some("sled:/var/x".into()),
            ..ServeArgs::default()
        });
        assert_eq!(config.unwrap().data_dir, Path::new("/var/x"));
        let config = ServeArgs::default().resolve(Some("/var/y".into())).unwrap();
        assert_eq!(config.store, StoreAt::Sled("/var/y".into()));
        assert_eq!(config.data_dir, Path::new("/var/y"));
        let config = ServeArgs {
            store: Some("memory:".into()),
            ..ServeArgs::default()
        };
        let config = config.resolve(Some("/tmp/d".into())).unwrap();
        assert_eq!(
            (config.store, config.data_dir),
            (StoreAt::Memory, "/tmp/d".into())
        );
    }

    #[test]
    fn stores_that_are_not_there_are_refused() {
        for (text, expected) in [
            ("redis://x", "there is no store named `redis`"),
            ("/var/x", "the kind of store is missing"),
            ("sled:", "the path is missing"),
        ] {
            let error = resolve(ServeArgs {
                store: Some(text.into()),
                ..ServeArgs::default()
            })
            .unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    /// Q02: nothing is exposed by default, and what is exposed runs no commands.
    #[test]
    fn other_machines_reach_a_node_only_if_told_so() {
        let with = |listen: &str, insecure, commands| {
            resolve(ServeArgs {
                listen: Some(listen.into()),
                insecure,
                commands,
                ..ServeArgs::default()
            })
        };
        assert!(
            resolve(ServeArgs::default())
                .unwrap()
                .listen
                .ip()
                .is_loopback()
        );
        for listen in ["0.0.0.0:7717", "[::]:7717", "192.0.2.1:80"] {
            let error = with(listen, None, None).unwrap_err();
            assert!(error.contains("not encrypted"), "{error}");
            assert_eq!(
                with(listen, Some(true), None).unwrap().commands,
                Commands::Off
            );
            assert!(with(listen, Some(true), Some(Commands::Any)).is_err());
        }
        assert_eq!(
            with("[::1]:0", None, None).unwrap().commands,
            Commands::Named
        );
        assert!(
            with("localhost:7717", None, None)
                .unwrap()
                .listen
                .ip()
                .is_loopback()
        );
    }

    #[test]
    fn the_file_fills_in_what_the_command_line_leaves_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("punctual.toml");
        std::fs::write(&path, "slots = 3\nleader_ttl = \"4s\"\nqueues = [\"a\"]\n").unwrap();
        let args = ServeArgs {
            slots: Some(5),
            config: Some(path.clone()),
            ..ServeArgs::default()
        };
        let args = resolve(args.clone()).unwrap().args;
        assert_eq!(
            (args.slots, args.leader_ttl),
            (Some(5), Some(Millis::from_secs(4)))
        );
        std::fs::write(&path, "slotz = 3\n").unwrap();
        let args = ServeArgs {
            config: Some(path),
            ..ServeArgs::default()
        };
        let error = resolve(args).unwrap_err();
        assert!(
            error.contains("slotz") && error.contains("line 1"),
            "{error}"
        );
    }
}
