//! `store`: the contents of an embedded store as lines of JSON, and back. The way out of a
//! damaged one.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use std::sync::Arc;

use punctual::bootstrap::{Restored, after_restore};
use punctual::env::TokioEnv;
use punctual::keys::Keys;
use punctual::node::NodeConfig;
use punctual::recipe::retry::Store;
use punctual_sled::{DumpError, Exported, SledBackend};

use super::args::{Common, StoreCommand};
use super::failure::{Exit, Failure, Outcome};
use crate::config::{ServeArgs, StoreAt};
use crate::output::{Output, say};

pub(super) fn store(common: &Common, output: &Output, command: StoreCommand) -> Outcome {
    match command {
        StoreCommand::Export { store, file } => export(output, &database(common, store)?, file),
        StoreCommand::Import { store, file } => import(output, &database(common, store)?, file),
    }
}

/// The directory of the database itself.
fn database(common: &Common, store: Option<String>) -> Outcome<PathBuf> {
    // Whoever names only the data directory means the store that lies in it.
    let store = match (store, &common.data_dir) {
        (None, Some(dir)) => Some(format!("sled:{}", dir.display())),
        (store, _) => store,
    };
    let args = ServeArgs {
        store,
        ..ServeArgs::default()
    };
    match args.resolve(None)?.store {
        StoreAt::Sled(path) => Ok(path.join("db")),
        StoreAt::Memory => Err(Failure::usage("--store memory: nothing of it is on disk")),
        StoreAt::Etcd(_) => Err(Failure::usage("--store: this is for the embedded store")
            .hint("the contents of an etcd are saved with `etcdctl snapshot save FILE`")),
    }
}

fn is_stream(file: Option<&Path>) -> bool {
    file.is_none_or(|path| path == Path::new("-"))
}

fn export(output: &Output, database: &Path, file: Option<PathBuf>) -> Outcome {
    let found = match &file {
        Some(path) if !is_stream(Some(path)) => export_to(database, path)?,
        _ => {
            let mut to = BufWriter::new(io::stdout().lock());
            let found = punctual_sled::export(database, &mut to).map_err(failure)?;
            to.flush()?;
            found
        }
    };
    output.note(&format!("{} entries exported", found.entries));
    if found.complete && found.missing == 0 {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Findings,
        format!(
            "this is not everything: {} entries are missing",
            found.missing
        ),
    )
    .hint("what was exported can be imported; look for what is gone in a backup"))
}

/// The file appears when it is complete: what fails leaves nothing that the next try trips over.
fn export_to(database: &Path, path: &Path) -> Outcome<Exported> {
    let fail = |error: &io::Error| Failure::usage(format!("{}: {error}", path.display()));
    if path.symlink_metadata().is_ok() {
        return Err(fail(&io::ErrorKind::AlreadyExists.into()));
    }
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    // It holds everything that the store holds: such a file is its owner's alone.
    let mut builder = tempfile::Builder::new();
    let made = builder.prefix(".punctual-export-").tempfile_in(directory);
    let file = made.map_err(|e| fail(&e))?;
    let mut to = BufWriter::new(file);
    let found = punctual_sled::export(database, &mut to).map_err(failure)?;
    let file = to.into_inner().map_err(|e| fail(e.error()))?;
    file.as_file().sync_all().map_err(|e| fail(&e))?;
    file.persist_noclobber(path).map_err(|e| fail(&e.error))?;
    Ok(found)
}

fn import(output: &Output, database: &Path, file: Option<PathBuf>) -> Outcome {
    let mut from: Box<dyn BufRead> = match &file {
        Some(path) if !is_stream(Some(path)) => {
            let opened = File::open(path);
            let opened = opened.map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
            Box::new(BufReader::new(opened))
        }
        _ => Box::new(io::stdin().lock()),
    };
    let had_parent = database.parent().is_none_or(Path::exists);
    let made = punctual_sled::import(database, &mut from).map_err(|error| {
        if matches!(error, DumpError::Line { .. } | DumpError::Io(_)) {
            // Only then the directory is what this import has made.
            discard(database, had_parent);
        }
        failure(error)
    })?;
    output.note(&format!(
        "{} entries imported; {} that belonged to a running node are left out",
        made.entries, made.leased
    ));
    if let Some(restored) = take_over(database)? {
        say(&notice(&restored));
    }
    Ok(())
}

/// Half an import is no store, and would only be in the way of the next try.
fn discard(database: &Path, had_parent: bool) {
    if let Err(error) = fs::remove_dir_all(database) {
        say(&format!(
            "punctual: remove {} before the next try: {error}",
            database.display()
        ));
    }
    if let (false, Some(parent)) = (had_parent, database.parent()) {
        // If there is something else in it, it stays.
        let _ = fs::remove_dir(parent);
    }
}

/// Begins a new epoch in a store that was restored: its revisions repeat, and fencing tokens must
/// not. `None` when the store holds no scheduler's data.
fn take_over(database: &Path) -> Outcome<Option<Restored>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let env = TokioEnv::shared();
        let options = punctual_sled::Options::default();
        let backend = SledBackend::open(database, Arc::clone(&env), options)
            .map_err(|error| Failure::usage(format!("cannot open what was imported: {error}")))?;
        let config = NodeConfig::default();
        let keys = Keys::new(&config.namespace);
        let store = Store::new(Arc::new(backend.clone()), env, config.store_timeout_ms);
        let restored = match store.get(&keys.meta()).await {
            Ok(None) => Ok(None),
            _ => after_restore(&store, &keys).await.map(Some),
        };
        backend.close();
        restored.map_err(|error| Failure::usage(format!("cannot begin a new epoch: {error}")))
    })
}

/// What must be known before a node runs on it.
fn notice(restored: &Restored) -> String {
    let decided = Some(restored.decided_until_ms).filter(|ms| *ms > 0);
    let time = decided.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    let (until, since) = match time {
        Some(time) => (format!(" ({time})"), format!("since {time}")),
        None => (String::new(), "since the export".into()),
    };
    let running = match restored.running.as_slice() {
        [] => String::new(),
        runs => format!(
            "\n  {} runs were RUNNING; whether they ended is unknown: {}",
            runs.len(),
            runs.iter()
                .take(10)
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    format!(
        "notice: this store goes on from the state that was exported{until}. Instants decided \
         after that are\n  decided again when a node starts, so what ran since then can run \
         twice: look at what ran\n  {since} before you start it{running}"
    )
}

fn failure(error: DumpError) -> Failure {
    match error {
        // A closed pipe among them.
        DumpError::Io(error) => error.into(),
        error => Failure::usage(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_in_which_nothing_was_decided_names_no_moment() {
        let restored = |decided_until_ms| Restored {
            epoch: 1,
            decided_until_ms,
            running: Vec::new(),
        };
        assert!(notice(&restored(0)).contains("since the export"));
        let decided = notice(&restored(1_790_000_000_000));
        assert!(decided.contains("since 2026-09-21T"), "{decided}");
    }
}
