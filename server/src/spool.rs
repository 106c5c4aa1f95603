//! The spool of results as files in the data directory.
//!
//! What can go wrong: power goes while a file is written. So a file is written under another name,
//! synced, renamed, and the directory synced: a name that is there is whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use punctual::spool::Spool;

use crate::cli::failure::{Failure, Outcome};

const SUFFIX: &str = ".json";

/// A directory of results.
#[derive(Clone, Debug)]
pub(crate) struct DirSpool(PathBuf);

impl DirSpool {
    /// Makes the directory if it is not there.
    pub(crate) fn open(path: PathBuf) -> Outcome<Self> {
        fs::DirBuilder::new()
            .recursive(true)
            // What commands have printed lies in it.
            .mode(0o700)
            .create(&path)
            .map_err(|e| Failure::usage(format!("cannot make {}: {e}", path.display())))?;
        Ok(Self(path))
    }

    fn file(&self, name: &str) -> io::Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~@".contains(c);
        if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("`{name}` is no name in the spool"),
            ));
        }
        Ok(self.0.join(format!("{name}{SUFFIX}")))
    }
}

#[async_trait]
impl Spool for DirSpool {
    async fn put(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        let (directory, file) = (self.0.clone(), self.file(name)?);
        blocking(move || {
            let whole = file.with_extension("json.new");
            let mut new = File::create(&whole)?;
            new.write_all(&bytes)?;
            new.sync_all()?;
            fs::rename(&whole, &file)?;
            sync(&directory)
        })
        .await
    }

    async fn remove(&self, name: &str) -> io::Result<()> {
        let file = self.file(name)?;
        blocking(move || match fs::remove_file(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        })
        .await
    }

    async fn all(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let directory = self.0.clone();
        blocking(move || {
            let mut all = Vec::new();
            for entry in fs::read_dir(&directory)? {
                let name = entry?.file_name();
                if let Some(name) = name.to_str().and_then(|name| name.strip_suffix(SUFFIX)) {
                    // One that cannot be read must not hide the others.
                    match fs::read(directory.join(format!("{name}{SUFFIX}"))) {
                        Ok(bytes) => all.push((name.to_owned(), bytes)),
                        Err(error) => tracing::error!(name, %error, "cannot read this result"),
                    }
                }
            }
            all.sort();
            Ok(all)
        })
        .await
    }
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_put_is_there_until_it_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let spool = DirSpool::open(place.path().join("spool")).unwrap();
        spool
            .put("b@20260101T000000Z.1", b"two".to_vec())
            .await
            .unwrap();
        spool.put("a~m-1.1", b"one".to_vec()).await.unwrap();
        spool.put("a~m-1.1", b"ONE".to_vec()).await.unwrap();
        // Torn by a crash: never seen.
        fs::write(place.path().join("spool/c.1.json.new"), "to").unwrap();
        // No file at all: it must not hide the others.
        fs::create_dir(place.path().join("spool/d.json")).unwrap();

        let again = DirSpool::open(place.path().join("spool")).unwrap();
        let all = again.all().await.unwrap();
        let expected = [("a~m-1.1", "ONE"), ("b@20260101T000000Z.1", "two")];
        let expected = expected.map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
        assert_eq!(all, expected);

        again.remove("a~m-1.1").await.unwrap();
        again.remove("a~m-1.1").await.unwrap();
        assert_eq!(again.all().await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_name_never_leads_out_of_the_directory() {
        let place = tempfile::tempdir().unwrap();
        let spool = DirSpool::open(place.path().to_owned()).unwrap();
        for name in ["", ".", "..", "../x", "a/b", "a b", "\0"] {
            assert!(spool.put(name, vec![]).await.is_err(), "{name:?}");
        }
    }
}
