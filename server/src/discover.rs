//! Finds the server: by what the user says, else by the files that a server leaves on its machine.

use std::path::{Path, PathBuf};

use crate::cli::args::Common;
use crate::cli::failure::{Exit, Failure, Outcome};
use crate::config::DEFAULT_DIR;
use crate::files::{ClientFile, read_json, state_dir};
use crate::probe::{Knock, knock, knock_at};

/// Where the server is and how to get in.
pub(crate) fn find(common: &Common) -> Outcome<ClientFile> {
    find_in(
        common,
        state_dir().as_deref(),
        Path::new(DEFAULT_DIR),
        std::env::var("PUNCTUAL_TOKEN").ok(),
    )
}

fn find_in(
    common: &Common,
    state_dir: Option<&Path>,
    here: &Path,
    token_variable: Option<String>,
) -> Outcome<ClientFile> {
    let token = match (&common.token_file, token_variable) {
        (Some(path), _) => Some(read_token(path)?),
        (None, Some(token)) if token.trim().is_empty() => {
            return Err(Failure::usage("PUNCTUAL_TOKEN is empty"));
        }
        (None, token) => token.map(|token| token.trim().to_owned()),
    };
    let mut found = match (&common.server, &common.data_dir) {
        (Some(url), data_dir) => {
            let files = match data_dir {
                Some(dir) => vec![dir.join("client.json")],
                None => {
                    let mut files = state_files(state_dir);
                    files.push(here.join("client.json"));
                    files
                }
            };
            by_url(url, token.clone(), &files)?
        }
        (None, Some(dir)) => by_data_dir(dir)?,
        (None, None) => by_state(state_dir, here)?,
    };
    if let Some(token) = token {
        found.token = token;
    }
    Ok(found)
}

fn read_token(path: &Path) -> Outcome<String> {
    let fail = |what: &str| Failure::usage(format!("--token-file {}: {what}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| fail(&e.to_string()))?;
    // A client file of the server serves as well.
    let token = match serde_json::from_str::<ClientFile>(&text) {
        Ok(client) => client.token,
        Err(_) => text.trim().to_owned(),
    };
    if token.is_empty() {
        return Err(fail("the file is empty"));
    }
    Ok(token)
}

fn by_url(url: &str, token: Option<String>, files: &[PathBuf]) -> Outcome<ClientFile> {
    let url = match url.contains("://") {
        true => url.trim_end_matches('/').to_owned(),
        false => format!("http://{}", url.trim_end_matches('/')),
    };
    let token = match token {
        Some(token) => Some(token),
        None => {
            let known = files
                .iter()
                .filter_map(|path| read_json(path).ok().flatten());
            known
                .into_iter()
                .find(|file: &ClientFile| file.url == url)
                .map(|file| file.token)
        }
    };
    match token {
        Some(token) => Ok(ClientFile { url, token }),
        // A wrong port is the likelier mistake.
        None if knock(&url) == Knock::Nobody => {
            Err(not_running(&format!("no server answers at {url}")))
        }
        None => Err(Failure::new(Exit::Denied, format!("no token for {url}")).hint(
            "give one with --token-file or PUNCTUAL_TOKEN; on the server's machine it stands in\n\
             client.json in its data directory",
        )),
    }
}

fn by_data_dir(dir: &Path) -> Outcome<ClientFile> {
    let path = dir.join("client.json");
    read_json(&path)?.ok_or_else(|| {
        Failure::new(
            Exit::Unreachable,
            format!(
                "no server has run with the data directory {}",
                dir.display()
            ),
        )
        .hint(format!(
            "start one with `punctual serve --store sled:{}`",
            dir.display()
        ))
    })
}

/// The server whose data directory lies in the current directory, and no other where there is one:
/// whoever stands there means that one. Else, among the servers that left a file here, the one that
/// answers. A server that was killed leaves its file behind.
fn by_state(state_dir: Option<&Path>, here: &Path) -> Outcome<ClientFile> {
    let (own, mut known) = candidates(state_dir, here);
    if known.len() > 1 {
        let asked = urls(&known).join(", ");
        known = answering(known);
        if let Some(own) = own.as_ref().filter(|own| !known.contains(own)) {
            let (here, url) = (here.display(), &own.url);
            let why = format!("the server of {here} does not answer at {url}");
            let mut hint = "start it again with `punctual serve`".to_owned();
            if !known.is_empty() {
                hint += &format!(", or name another one:\n{}", options(&known));
            }
            return Err(Failure::new(Exit::Unreachable, why).hint(hint));
        }
        if known.is_empty() {
            return Err(not_running(&format!("no server answers at {asked}")));
        }
    }
    match known.as_slice() {
        [] => Err(not_running("no server runs on this machine")),
        [only] => Ok(only.clone()),
        several => {
            if let Some(own) = own.filter(|own| several.contains(own)) {
                return Ok(own);
            }
            Err(
                Failure::usage("several servers run on this machine").hint(format!(
                    "say which one you mean, or --data-dir DIR:\n{}",
                    options(several)
                )),
            )
        }
    }
}

/// How each of them is named, a line each.
fn options(files: &[ClientFile]) -> String {
    let lines = files.iter().map(|file| format!("--server {}", file.url));
    lines.collect::<Vec<_>>().join("\n")
}

/// The client file of the data directory here, and all that are known, that one among them.
fn candidates(state_dir: Option<&Path>, here: &Path) -> (Option<ClientFile>, Vec<ClientFile>) {
    let own: Option<ClientFile> = read_json(&here.join("client.json")).ok().flatten();
    let files = state_files(state_dir);
    let files = files
        .iter()
        .filter_map(|path| read_json(path).ok().flatten());
    let mut known: Vec<ClientFile> = files.collect();
    known.extend(own.clone().filter(|own| !known.contains(own)));
    (own, known)
}

/// Those that live; if none does, those that may be too busy to answer.
fn answering(known: Vec<ClientFile>) -> Vec<ClientFile> {
    let knocks = knock_at(&urls(&known));
    let with = |wanted| {
        let pairs = known.iter().zip(&knocks);
        let found = pairs.filter(|(_, knock)| **knock == wanted);
        found.map(|(file, _)| file.clone()).collect::<Vec<_>>()
    };
    let alive = with(Knock::Alive);
    if alive.is_empty() {
        with(Knock::Unknown)
    } else {
        alive
    }
}

fn urls(files: &[ClientFile]) -> Vec<String> {
    files.iter().map(|file| file.url.clone()).collect()
}

/// Whether commands without options reach the server at `url`, from whatever directory.
pub(crate) fn is_the_only_one(url: &str) -> bool {
    let (own, known) = candidates(state_dir().as_deref(), Path::new(DEFAULT_DIR));
    if own.is_some_and(|own| own.url != url) {
        return false;
    }
    let others = known.into_iter().filter(|file| file.url != url).collect();
    answering(others).is_empty()
}

/// No server, and how to get one.
pub(crate) fn not_running(what: &str) -> Failure {
    Failure::new(Exit::Unreachable, what).hint(
        "start one with `punctual serve`, try `punctual demo`,\n\
         or name one with --server URL or --data-dir DIR",
    )
}

fn state_files(state_dir: Option<&Path>) -> Vec<PathBuf> {
    let entries = state_dir.and_then(|dir| std::fs::read_dir(dir).ok());
    let entries = entries.into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        })
        .collect();
    files.sort();
    files
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use clap::Parser as _;

    use super::*;
    use crate::cli::args::Cli;

    fn find(arguments: &[&str], state: &Path, token: Option<&str>) -> Result<ClientFile, Failure> {
        let all = ["punctual"].iter().chain(arguments).chain(&["status"]);
        let cli = Cli::try_parse_from(all).unwrap();
        let here = state.join("here");
        find_in(&cli.common, Some(state), &here, token.map(str::to_owned))
    }

    fn write(path: &Path, url: &str, token: &str) {
        let json = serde_json::json!({ "url": url, "token": token });
        std::fs::write(path, json.to_string()).unwrap();
    }

    /// Answers as a server does, as long as the test runs.
    fn server() -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut request = [0; 1_024];
                let _ = stream.read(&mut request);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nok\n");
            }
        });
        url
    }

    /// Where nobody listens.
    fn dead() -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    }

    #[test]
    fn the_server_that_answers_is_found_without_options() {
        let dir = tempfile::tempdir().unwrap();
        let failure = find(&[], dir.path(), None).unwrap_err();
        assert_eq!(failure.exit, Exit::Unreachable);
        assert!(failure.to_string().contains("punctual serve"));
        let (first, second) = (server(), server());
        write(&dir.path().join("1.json"), &first, "a");
        assert_eq!(find(&[], dir.path(), None).unwrap().token, "a");
        // Left behind by one that was killed.
        write(&dir.path().join("2.json"), &dead(), "b");
        assert_eq!(find(&[], dir.path(), None).unwrap().token, "a");
        write(&dir.path().join("3.json"), &second, "c");
        let failure = find(&[], dir.path(), None).unwrap_err().to_string();
        assert!(failure.contains(&format!("--server {second}")), "{failure}");
        let named = find(&["--server", &second], dir.path(), None).unwrap();
        assert_eq!(named.token, "c");
        // The one of this directory goes before the others.
        std::fs::create_dir(dir.path().join("here")).unwrap();
        write(&dir.path().join("here/client.json"), &second, "c");
        assert_eq!(find(&[], dir.path(), None).unwrap().token, "c");
    }

    /// Found by somebody whose server had been killed: his next commands went to another cluster.
    #[test]
    fn no_other_server_stands_in_for_the_dead_one_of_this_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (here, other) = (dead(), server());
        write(&dir.path().join("1.json"), &other, "a");
        std::fs::create_dir(dir.path().join("here")).unwrap();
        write(&dir.path().join("here/client.json"), &here, "b");
        let failure = find(&[], dir.path(), None).unwrap_err();
        assert_eq!(failure.exit, Exit::Unreachable);
        assert!(failure.message.contains(&here), "{failure}");
        let text = failure.to_string();
        assert!(text.contains(&format!("--server {other}")), "{text}");
        // Nor are the other dead ones of any interest.
        let second = dead();
        write(&dir.path().join("1.json"), &second, "a");
        let failure = find(&[], dir.path(), None).unwrap_err();
        assert!(failure.message.contains(&here), "{failure}");
        assert!(!failure.to_string().contains(&second), "{failure}");
    }

    #[test]
    fn when_all_were_killed_it_says_where_it_looked() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dead(), dead());
        write(&dir.path().join("1.json"), &first, "a");
        write(&dir.path().join("2.json"), &second, "b");
        let failure = find(&[], dir.path(), None).unwrap_err();
        assert_eq!(failure.exit, Exit::Unreachable);
        assert!(failure.message.contains(&first) && failure.message.contains(&second));
    }

    #[test]
    fn without_a_state_directory_the_data_directory_here_serves() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("client.json"), "http://127.0.0.1:9", "a");
        assert_eq!(by_state(None, dir.path()).unwrap().token, "a");
    }

    #[test]
    fn a_wrong_port_is_no_question_of_tokens() {
        let dir = tempfile::tempdir().unwrap();
        let failure = find(&["--server", &dead()], dir.path(), None).unwrap_err();
        assert_eq!(failure.exit, Exit::Unreachable, "{failure}");
        assert!(failure.to_string().contains("no server answers at"));
    }

    #[test]
    fn tokens_are_never_empty_and_never_guessed() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path();
        let failure = find(&["--server", &server()], state, None).unwrap_err();
        assert_eq!(failure.exit, Exit::Denied);
        assert!(find(&["--server", "http://h:1"], state, Some(" ")).is_err());
        let found = find(&["--server", "http://h:1"], state, Some("t")).unwrap();
        assert_eq!(found.token, "t");
        let file = state.join("token");
        std::fs::write(&file, " \n").unwrap();
        let arguments = ["--server", "h:1", "--token-file", file.to_str().unwrap()];
        assert!(find(&arguments, state, None).is_err());
        std::fs::write(&file, "secret\n").unwrap();
        assert_eq!(find(&arguments, state, Some("t")).unwrap().token, "secret");
    }
}
