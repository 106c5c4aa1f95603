//! Finds the server: by what the user says, else by the files that a server leaves on its machine.

use std::path::{Path, PathBuf};

use crate::cli::args::Common;
use crate::cli::failure::{Exit, Failure, Outcome};
use crate::config::DEFAULT_PORT;
use crate::files::{ClientFile, read_json, state_dir};

/// Where the server is and how to get in.
pub(crate) fn find(common: &Common) -> Outcome<ClientFile> {
    find_in(
        common,
        state_dir().as_deref(),
        std::env::var("PUNCTUAL_TOKEN").ok(),
    )
}

fn find_in(
    common: &Common,
    state_dir: Option<&Path>,
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
        (Some(url), data_dir) => by_url(url, token.clone(), data_dir.as_deref(), state_dir)?,
        (None, Some(dir)) => by_data_dir(dir)?,
        (None, None) => by_state(state_dir)?,
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

fn by_url(
    url: &str,
    token: Option<String>,
    data_dir: Option<&Path>,
    state_dir: Option<&Path>,
) -> Outcome<ClientFile> {
    let url = match url.contains("://") {
        true => url.trim_end_matches('/').to_owned(),
        false => format!("http://{}", url.trim_end_matches('/')),
    };
    let token = match token {
        Some(token) => Some(token),
        None => {
            let files = data_dir.map(|dir| vec![dir.join("client.json")]);
            let files = files.unwrap_or_else(|| state_files(state_dir));
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

fn by_state(state_dir: Option<&Path>) -> Outcome<ClientFile> {
    let files = state_files(state_dir);
    let default = format!("{DEFAULT_PORT}.json");
    let path = match files.as_slice() {
        [] => return Err(not_running("no server runs on this machine")),
        [only] => only,
        several => match several.iter().find(|path| path.ends_with(&default)) {
            Some(path) => path,
            None => {
                let known = several
                    .iter()
                    .filter_map(|path| read_json(path).ok().flatten());
                let urls: Vec<String> = known.map(|file: ClientFile| file.url).collect();
                return Err(Failure::usage("several servers have run on this machine")
                    .hint(format!("choose with --server: {}", urls.join(", "))));
            }
        },
    };
    read_json(path)?.ok_or_else(|| not_running("no server runs on this machine"))
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
    use clap::Parser as _;

    use super::*;
    use crate::cli::args::Cli;

    fn find(arguments: &[&str], state: &Path, token: Option<&str>) -> Result<ClientFile, Failure> {
        let all = ["punctual"].iter().chain(arguments).chain(&["status"]);
        let cli = Cli::try_parse_from(all).unwrap();
        find_in(&cli.common, Some(state), token.map(str::to_owned))
    }

    fn write(path: &Path, url: &str, token: &str) {
        let json = serde_json::json!({ "url": url, "token": token });
        std::fs::write(path, json.to_string()).unwrap();
    }

    #[test]
    fn a_lone_server_is_found_without_options() {
        let dir = tempfile::tempdir().unwrap();
        let failure = find(&[], dir.path(), None).unwrap_err();
        assert_eq!(failure.exit, Exit::Unreachable);
        assert!(failure.to_string().contains("punctual serve"));
        write(&dir.path().join("9000.json"), "http://127.0.0.1:9000", "a");
        assert_eq!(find(&[], dir.path(), None).unwrap().token, "a");
        write(&dir.path().join("9001.json"), "http://127.0.0.1:9001", "b");
        let failure = find(&[], dir.path(), None).unwrap_err();
        assert!(failure.to_string().contains("http://127.0.0.1:9001"));
        write(&dir.path().join("7717.json"), "http://127.0.0.1:7717", "c");
        assert_eq!(find(&[], dir.path(), None).unwrap().token, "c");
        let named = find(&["--server", "127.0.0.1:9001"], dir.path(), None).unwrap();
        assert_eq!(named.token, "b");
    }

    #[test]
    fn tokens_are_never_empty_and_never_guessed() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path();
        let failure = find(&["--server", "http://h:1"], state, None).unwrap_err();
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
