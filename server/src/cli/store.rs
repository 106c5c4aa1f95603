//! `store`: the contents of an embedded store as lines of JSON, and back. The way out of a
//! damaged one.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use punctual_sled::DumpError;

use super::args::{Common, StoreCommand};
use super::failure::{Exit, Failure, Outcome};
use crate::config::{ServeArgs, StoreAt};
use crate::output::Output;

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
    }
}

fn is_stream(file: Option<&Path>) -> bool {
    file.is_none_or(|path| path == Path::new("-"))
}

fn export(output: &Output, database: &Path, file: Option<PathBuf>) -> Outcome {
    let to: Box<dyn Write> = match &file {
        Some(path) if !is_stream(Some(path)) => {
            // It holds everything that the store holds.
            let mut options = OpenOptions::new();
            let opened = options.write(true).create_new(true).mode(0o600).open(path);
            Box::new(opened.map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?)
        }
        _ => Box::new(io::stdout().lock()),
    };
    let mut to = BufWriter::new(to);
    let found = punctual_sled::export(database, &mut to).map_err(failure)?;
    to.flush()?;
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

fn import(output: &Output, database: &Path, file: Option<PathBuf>) -> Outcome {
    let made = match &file {
        Some(path) if !is_stream(Some(path)) => {
            let opened = File::open(path);
            let opened = opened.map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
            punctual_sled::import(database, &mut BufReader::new(opened))
        }
        _ => punctual_sled::import(database, &mut io::stdin().lock()),
    };
    let made = made.map_err(failure)?;
    output.note(&format!(
        "{} entries imported; {} that belonged to a running node are left out",
        made.entries, made.leased
    ));
    Ok(())
}

fn failure(error: DumpError) -> Failure {
    match error {
        // A closed pipe among them.
        DumpError::Io(error) => error.into(),
        error => Failure::usage(error.to_string()),
    }
}
