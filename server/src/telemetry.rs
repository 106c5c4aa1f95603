//! The log: on standard error, as text for people or as JSON for collectors.

use std::io::{self, IsTerminal};

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::config::LogFormat;

/// Starts the log of this process.
pub(crate) fn start(format: LogFormat, level: Level) {
    let terminal = io::stderr().is_terminal();
    let json = match format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    // Other crates speak only when something is wrong.
    let filter = Targets::new()
        .with_default(Level::WARN.min(level))
        .with_target("punctual", level)
        .with_target("punctual_server", level)
        .with_target("punctual_etcd", level)
        .with_target("punctual_sled", level)
        .with_target("punctual_memory", level);
    let layer = fmt::layer().with_writer(io::stderr);
    let layer = if json {
        layer.json().flatten_event(true).with_filter(filter).boxed()
    } else {
        let ansi = terminal && std::env::var_os("NO_COLOR").is_none();
        layer.with_ansi(ansi).with_filter(filter).boxed()
    };
    // A second start in one process keeps the first log.
    let _ = tracing_subscriber::registry().with(layer).try_init();
}

/// How much is said: `-q` less, `-v` more.
pub(crate) fn level(quiet: bool, verbose: u8) -> Level {
    match (quiet, verbose) {
        (true, _) => Level::WARN,
        (false, 0) => Level::INFO,
        (false, 1) => Level::DEBUG,
        (false, _) => Level::TRACE,
    }
}
