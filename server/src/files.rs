//! The files of a node beside its database: tokens, the client file, the node's name.
//!
//! What can go wrong here: a token that others can read, or that is empty and lets everybody in.
//! So the server keeps only hashes, the one file with a token is its owner's alone, and a file
//! that cannot be read is an error and never "no tokens".

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::cli::failure::{Exit, Failure, Outcome};

/// What a client needs: where, and the key to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientFile {
    pub(crate) url: String,
    pub(crate) token: String,
}

/// The hash of a token.
pub(crate) type TokenHash = [u8; 32];

/// Characters of the shortest token that a person may give.
const MIN_TOKEN: usize = 32;

/// What to do about a file of tokens that is broken.
const RESTORE: &str = "restore the file, or delete it: then the old tokens are void and a new one \
                       is made";

#[derive(Debug, Default, Serialize, Deserialize)]
struct TokenFile {
    tokens: Vec<TokenEntry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct TokenEntry {
    name: String,
    sha256: String,
    created_at: String,
}

/// The data directory of a node.
#[derive(Clone, Debug)]
pub(crate) struct DataDir(PathBuf);

impl DataDir {
    /// Makes the directory if it is not there, for its owner alone.
    pub(crate) fn open(path: &Path) -> Outcome<Self> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(path).map_err(|e| {
            Failure::usage(format!(
                "cannot make the data directory {}: {e}",
                path.display()
            ))
        })?;
        Ok(Self(path.to_owned()))
    }

    /// Keeps others away for as long as the answer lives, and this process.
    pub(crate) fn lock(&self) -> Outcome<DirLock> {
        let path = self.0.join("lock");
        let fail = |error: &dyn std::fmt::Display| {
            Failure::usage(format!("cannot lock {}: {error}", path.display()))
        };
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|e| fail(&e))?;
        match file.try_lock() {
            Ok(()) => Ok(DirLock { _file: file }),
            Err(fs::TryLockError::WouldBlock) => Err(Failure::usage(format!(
                "{}: another punctual server is using this directory",
                self.0.display()
            ))
            .hint("stop it, or choose another directory with --data-dir")),
            Err(fs::TryLockError::Error(error)) => Err(fail(&error)),
        }
    }

    /// Where the database lies.
    pub(crate) fn database(&self) -> PathBuf {
        self.0.join("db")
    }

    /// Where results wait that the store has not taken.
    pub(crate) fn spool(&self) -> PathBuf {
        self.0.join("spool")
    }

    pub(crate) fn client_file(&self) -> PathBuf {
        self.0.join("client.json")
    }

    fn token_file(&self) -> PathBuf {
        self.0.join("tokens.json")
    }

    /// The node's name: made once, so that a restarted node is the same node.
    pub(crate) fn node_id(&self) -> Outcome<String> {
        let path = self.0.join("node-id");
        match fs::read_to_string(&path) {
            Ok(text) if punctual::job::spec::is_valid_id(text.trim()) => Ok(text.trim().to_owned()),
            Ok(_) => Err(Failure::usage(format!("{}: not a node id", path.display()))
                .hint("delete the file, or say --node-id")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let id = format!("{}-{}", host_name(), hex(&random::<2>()?));
                write_private(&path, format!("{id}\n").as_bytes())?;
                Ok(id)
            }
            Err(error) => Err(unreadable(&path, &error)),
        }
    }

    /// The tokens that open the API, and the one that local clients use. `true` when it was made
    /// just now.
    pub(crate) fn tokens(&self) -> Outcome<(Vec<TokenHash>, String, bool)> {
        let file: Outcome<Option<TokenFile>> = read_json(&self.token_file());
        let file = file.map_err(|failure| failure.hint(RESTORE));
        let mut file = file?.unwrap_or_default();
        let mut hashes = file.hashes(&self.token_file())?;
        // It is written anew at each start: a broken one is as good as none.
        let client: Option<ClientFile> = read_json(&self.client_file()).unwrap_or_default();
        if let Some(client) = client
            && hashes.contains(&hash(&client.token))
        {
            return Ok((hashes, client.token, false));
        }
        // The first start, or the client file is lost: whoever may write here may come in.
        let token = format!("pt_{}", hex(&random::<32>()?));
        file.tokens.push(TokenEntry {
            name: "admin".into(),
            sha256: hex(&hash(&token)),
            created_at: jiff::Timestamp::now().to_string(),
        });
        write_private(&self.token_file(), &json(&file)?)?;
        hashes.push(hash(&token));
        Ok((hashes, token, true))
    }

    /// Tells local clients where the server is: here, and in the user's state directory.
    pub(crate) fn announce(&self, client: &ClientFile, port: u16) -> Outcome<Option<PathBuf>> {
        write_private(&self.client_file(), &json(client)?)?;
        let Some(path) = state_file(port) else {
            return Ok(None);
        };
        let Some(parent) = path.parent() else {
            return Ok(None);
        };
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        // A home that cannot be written to only makes `--data-dir` necessary.
        if builder.create(parent).is_err() || write_private(&path, &json(client)?).is_err() {
            return Ok(None);
        }
        Ok(Some(path))
    }
}

/// A locked data directory.
#[derive(Debug)]
pub(crate) struct DirLock {
    _file: fs::File,
}

impl TokenFile {
    fn hashes(&self, path: &Path) -> Outcome<Vec<TokenHash>> {
        let hashes = self.tokens.iter().map(|token| unhex(&token.sha256));
        hashes.collect::<Option<_>>().ok_or_else(|| {
            Failure::usage(format!("{}: not a hash in it", path.display())).hint(RESTORE)
        })
    }
}

/// The hash of the token in a file that a person has made.
pub(crate) fn token_of_file(path: &Path) -> Outcome<TokenHash> {
    let fail = |why: &str| {
        Failure::usage(format!("--admin-token-file {}: {why}", path.display())).hint(
            "a token is random and nothing else stands in the file:\n\
             head -c 32 /dev/urandom | base64 > FILE",
        )
    };
    let text = fs::read_to_string(path).map_err(|e| fail(&e.to_string()))?;
    let token = text.trim();
    if token.len() < MIN_TOKEN {
        return Err(fail("a token this short can be guessed"));
    }
    if token.contains(|c: char| !c.is_ascii_graphic()) {
        return Err(fail("not one token"));
    }
    Ok(hash(token))
}

/// SHA-256 of a token. Tokens are random, 256 bits long: a slow hash would add nothing.
pub(crate) fn hash(token: &str) -> TokenHash {
    Sha256::digest(token.as_bytes()).into()
}

/// The client file of the server on `port`, in the user's state directory.
pub(crate) fn state_file(port: u16) -> Option<PathBuf> {
    Some(state_dir()?.join(format!("{port}.json")))
}

/// `$XDG_STATE_HOME/punctual`, or `~/.local/state/punctual`.
pub(crate) fn state_dir() -> Option<PathBuf> {
    let absolute = |name| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let base = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
    Some(base?.join("punctual"))
}

/// Reads a JSON file; `None` if there is none.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Outcome<Option<T>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(unreadable(path, &error)),
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::usage(format!("cannot read {}: {error}", path.display()))
}

fn json<T: Serialize>(value: &T) -> Outcome<Vec<u8>> {
    serde_json::to_vec_pretty(value).map_err(|e| Failure::new(Exit::Bug, e.to_string()))
}

/// Replaces a file in one step, readable for its owner only.
fn write_private(path: &Path, bytes: &[u8]) -> Outcome {
    let temporary = path.with_extension(format!("tmp-{}", hex(&random::<4>()?)));
    let write = || -> io::Result<()> {
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Failure::usage(format!("cannot write {}: {error}", path.display()))
    })
}

/// Bytes from the system's random source.
pub(crate) fn random<const N: usize>() -> Outcome<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| Failure::new(Exit::Bug, format!("no random numbers: {e}")))?;
    Ok(bytes)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<TokenHash> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(bytes)
}

/// The machine's name, as far as it makes a node id.
fn host_name() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let short = name.trim().split('.').next().unwrap_or_default();
    let lower = short.to_ascii_lowercase();
    let plain = lower
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-');
    let plain: String = plain.take(40).collect();
    let plain = plain.trim_matches('-');
    if plain.is_empty() {
        "node".into()
    } else {
        plain.into()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_token_is_made_once_and_only_its_hash_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(&dir.path().join("data")).unwrap();
        let (hashes, token, new) = data.tokens().unwrap();
        assert!(new && token.len() == 3 + 64);
        assert_eq!(hashes, [hash(&token)]);
        let kept = fs::read_to_string(data.token_file()).unwrap();
        assert!(!kept.contains(&token[3..]));
        let client = ClientFile {
            url: "http://127.0.0.1:1".into(),
            token: token.clone(),
        };
        write_private(&data.client_file(), &json(&client).unwrap()).unwrap();
        assert_eq!(data.tokens().unwrap(), (hashes, token.clone(), false));
        for file in [data.client_file(), data.token_file()] {
            let mode = fs::metadata(file).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        // The client file is lost or cut short: a new token, and the old one stays valid.
        fs::write(data.client_file(), "{\"url\":").unwrap();
        let (hashes, other, new) = data.tokens().unwrap();
        assert!(new && other != token && hashes == [hash(&token), hash(&other)]);
    }

    #[test]
    fn a_broken_token_file_lets_nobody_in() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        for broken in [
            "",
            "{\"tokens\":[{\"name\":\"a\",\"sha256\":\"\",\"created_at\":\"\"}]}",
        ] {
            fs::write(data.token_file(), broken).unwrap();
            let hint = data.tokens().unwrap_err().hint;
            assert!(
                hint.is_some_and(|hint| hint.contains("delete it")),
                "{broken}"
            );
        }
    }

    #[test]
    fn a_token_that_is_given_is_long_and_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        assert!(token_of_file(&file).is_err());
        let good = "k".repeat(MIN_TOKEN);
        for bad in [
            "",
            "\n",
            &good[1..],
            &format!("{good} {good}"),
            &format!("{good}\n{good}\n"),
        ] {
            fs::write(&file, bad).unwrap();
            let hint = token_of_file(&file).unwrap_err().hint;
            assert!(hint.is_some_and(|hint| hint.contains("urandom")), "{bad:?}");
        }
        fs::write(&file, format!("{good}\n")).unwrap();
        assert_eq!(token_of_file(&file).unwrap(), hash(&good));
    }

    #[test]
    fn a_data_directory_has_one_user() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let first = data.lock().unwrap();
        assert!(
            data.lock()
                .unwrap_err()
                .message
                .contains("is using this directory")
        );
        drop(first);
        assert!(data.lock().is_ok());
    }

    #[test]
    fn a_node_keeps_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path()).unwrap();
        let id = data.node_id().unwrap();
        assert!(punctual::job::spec::is_valid_id(&id), "{id}");
        assert_eq!(data.node_id().unwrap(), id);
    }
}
