//! Where things lie in the directory, and which database in it is the store.
//!
//! ```text
//! punctual.lock       held while the store is open
//! punctual.witness    how many writes were acknowledged
//! current             the name of the generation that is the store
//! gen-0000000003/     a sled database
//! ```
//! A rewrite makes the next generation beside the present one and then renames a new `current`
//! over the old: one step, which a crash leaves done or not done. Generations that `current` does
//! not name are leftovers.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::OpenError;

/// Ours, apart from sled's own lock: it says "in use" without a guess at error texts.
const LOCK: &str = "punctual.lock";
const CURRENT: &str = "current";
const CURRENT_NEW: &str = "current.new";
const PREFIX: &str = "gen-";
/// sled's main file in a generation.
pub(crate) const DATA: &str = "db";
/// sled lets go of its file from background threads, a moment after the last handle is dropped.
const RELEASE_WAIT: Duration = Duration::from_secs(5);

/// Makes the directory if need be and locks it.
pub(crate) fn take(directory: &Path) -> Result<File, OpenError> {
    fs::create_dir_all(directory).map_err(OpenError::io(directory))?;
    let path = directory.join(LOCK);
    let lock = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path)
        .map_err(OpenError::io(&path))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(OpenError::InUse {
            directory: directory.to_path_buf(),
        }),
        Err(TryLockError::Error(error)) => Err(OpenError::io(&path)(error)),
    }
}

/// The path of a generation.
pub(crate) fn generation(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{PREFIX}{number:010}"))
}

/// The generation that is the store; `None` when there is no store yet.
pub(crate) fn current(directory: &Path) -> Result<Option<u64>, OpenError> {
    let path = directory.join(CURRENT);
    let name = match fs::read(&path) {
        Ok(name) => String::from_utf8_lossy(&name).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(OpenError::io(&path)(error)),
    };
    match number(name.trim_end()) {
        Some(number) if generation(directory, number).is_dir() => Ok(Some(number)),
        _ => Err(OpenError::damaged(
            &path,
            format!("it names {:?}, which is not there", name.trim_end()),
        )),
    }
}

/// All generations in the directory, the newest last.
pub(crate) fn generations(directory: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for item in fs::read_dir(directory)? {
        numbers.extend(number(&item?.file_name().to_string_lossy()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Makes a generation the store, durably: what it holds must be on disk already.
pub(crate) fn point_to(directory: &Path, number: u64) -> io::Result<()> {
    let new = directory.join(CURRENT_NEW);
    let mut file = File::create(&new)?;
    writeln!(file, "{PREFIX}{number:010}")?;
    file.sync_all()?;
    fs::rename(&new, directory.join(CURRENT))?;
    sync_directory(directory)
}

/// Removes what crashes in a rewrite or an export left behind.
pub(crate) fn sweep(directory: &Path, keep: u64) -> io::Result<()> {
    let keep = generation(directory, keep);
    for item in fs::read_dir(directory)? {
        let item = item?;
        let ours = item.file_name().to_string_lossy().starts_with(PREFIX);
        if ours && item.path() != keep {
            fs::remove_dir_all(item.path())?;
        }
    }
    Ok(())
}

/// A copy of a generation beside it, removed with its value.
pub(crate) struct Copy(PathBuf);

impl Copy {
    pub(crate) fn of(generation: &Path) -> io::Result<Self> {
        let copy = Self(generation.with_extension("copy"));
        if copy.0.exists() {
            fs::remove_dir_all(&copy.0)?; // Of an earlier process; we hold the lock.
        }
        copy_files(generation, &copy.0)?;
        Ok(copy)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "left for the next start");
        }
    }
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for item in fs::read_dir(from)? {
        let item = item?;
        if item.file_type()?.is_dir() {
            copy_files(&item.path(), &to.join(item.file_name()))?;
        } else {
            fs::copy(item.path(), to.join(item.file_name()))?;
        }
    }
    Ok(())
}

/// Waits until nobody holds sled's own lock on a generation.
pub(crate) fn wait_for_release(generation: &Path) -> bool {
    let step = Duration::from_millis(2);
    let mut waited = Duration::ZERO;
    loop {
        let Ok(file) = File::open(generation.join(DATA)) else {
            return true;
        };
        if !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            return true;
        }
        if waited >= RELEASE_WAIT {
            return false;
        }
        std::thread::sleep(step);
        waited += step;
    }
}

/// fsync of everything in a generation that is not in `synced` yet. sled's flush hands the pages
/// to the disk, but neither the length of the file nor the disk's own cache.
pub(crate) fn sync_generation(generation: &Path, synced: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    let blobs = generation.join("blobs");
    // Blobs are written once and never changed; a name seen before needs nothing.
    let mut present: BTreeSet<PathBuf> = fs::read_dir(&blobs)?
        .map(|blob| Ok(blob?.path()))
        .collect::<io::Result<_>>()?;
    let mut fresh = false;
    for blob in present.difference(synced) {
        fresh = true;
        match File::open(blob) {
            Ok(file) => file.sync_all()?,
            // sled removes blobs that no page names any more, whenever it likes.
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    if fresh {
        sync_directory(&blobs)?;
    }
    present.insert(blobs);
    if synced.is_empty() {
        // The first time: the names themselves.
        sync_directory(generation)?;
    }
    *synced = present;
    File::open(generation.join(DATA))?.sync_all()
}

/// Makes the names in a directory durable.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    if cfg!(unix) {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

/// Bytes of all files below a directory.
pub(crate) fn bytes_in(directory: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for item in fs::read_dir(directory)? {
        let item = item?;
        let size = match item.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_in(&item.path()),
            Ok(metadata) => Ok(metadata.len()),
            Err(error) => Err(error),
        };
        bytes += match size {
            Ok(size) => size,
            // sled removes old files whenever it likes, and a rewrite whole generations.
            Err(gone) if gone.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
    }
    Ok(bytes)
}

fn number(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    (digits.len() == 10).then(|| digits.parse().ok())?
}
