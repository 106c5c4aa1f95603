//! Which etcd is meant, and what it takes to get in.
//!
//! What can go wrong here: a password that ends up in a log, in an error or in the list of
//! processes. So it never stands in the URL, its type does not show it, and it may come from a file.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use punctual::job::spec::is_valid_id;
use punctual::keys::Keys;
use punctual::node::NodeConfig;
use punctual_etcd::{Credentials, EtcdConfig};
use serde::Deserialize;

use crate::cli::failure::{Failure, Outcome};
use crate::config::ServeArgs;

/// Something that is not shown.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Secret(String);

impl FromStr for Secret {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The etcd of `--store etcd://HOST:PORT,HOST:PORT/NAMESPACE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EtcdAt {
    /// `HOST:PORT` of each member.
    members: Vec<String>,
    pub(crate) namespace: String,
    tls: bool,
}

impl EtcdAt {
    /// `HOST:PORT` of each member.
    pub(crate) fn members(&self) -> &[String] {
        &self.members
    }

    /// Reads what follows the colon.
    pub(crate) fn parse(scheme: &str, rest: &str) -> Result<Self, String> {
        let rest = rest
            .strip_prefix("//")
            .ok_or_else(|| format!("write {scheme}://HOST:PORT"))?;
        let (members, namespace) = match rest.split_once('/') {
            Some((members, namespace)) => (members, Some(namespace)),
            None => (rest, None),
        };
        if members.contains('@') {
            return Err(
                "a password does not belong here: it would be seen; see --etcd-user".into(),
            );
        }
        let namespace = match namespace {
            None | Some("") => NodeConfig::default().namespace,
            Some(name) if is_valid_id(name) => name.to_owned(),
            Some(name) => {
                return Err(format!(
                    "`{name}` is not a namespace: 1 to 63 of lower case letters, digits, `.`, `_`, \
                     `-`"
                ));
            }
        };
        let members: Vec<String> = members.split(',').map(str::to_owned).collect();
        for member in &members {
            check_member(member)?;
        }
        Ok(Self {
            members,
            namespace,
            tls: scheme == "etcds",
        })
    }

    /// How to get in.
    pub(crate) fn config(&self, args: &ServeArgs) -> Outcome<EtcdConfig> {
        let tls = self.tls
            || args.etcd_ca_file.is_some()
            || args.etcd_cert_file.is_some()
            || args.etcd_key_file.is_some();
        let scheme = if tls { "https" } else { "http" };
        let urls = self.members.iter().map(|at| format!("{scheme}://{at}"));
        let mut config = EtcdConfig::new(urls);
        config.allow_plaintext = args.etcd_plaintext.unwrap_or(false);
        config.credentials = credentials(args)?;
        config.probe = Some(Keys::new(&self.namespace).meta());
        if let Some(path) = &args.etcd_ca_file {
            config.tls.authority = Some(read("--etcd-ca-file", path)?);
        }
        config.tls.identity = match (&args.etcd_cert_file, &args.etcd_key_file) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((
                read("--etcd-cert-file", cert)?,
                read("--etcd-key-file", key)?,
            )),
            (Some(_), None) => {
                return Err(Failure::usage(
                    "--etcd-cert-file: its key is missing (--etcd-key-file)",
                ));
            }
            (None, Some(_)) => {
                return Err(Failure::usage(
                    "--etcd-key-file: its certificate is missing (--etcd-cert-file)",
                ));
            }
        };
        if let Err(error) = config.check() {
            return Err(crate::store::refused(&error));
        }
        Ok(config)
    }
}

fn check_member(member: &str) -> Result<(), String> {
    if member.is_empty() {
        return Err("a HOST:PORT is missing".into());
    }
    match member.rsplit_once(':') {
        Some((host, port))
            if !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0) =>
        {
            Ok(())
        }
        _ => Err(format!("`{member}` is not HOST:PORT")),
    }
}

fn credentials(args: &ServeArgs) -> Outcome<Option<Credentials>> {
    let password = match (&args.etcd_password, &args.etcd_password_file) {
        (Some(_), Some(_)) => {
            return Err(Failure::usage(
                "--etcd-password and --etcd-password-file: one of them is enough",
            ));
        }
        (Some(Secret(password)), None) => Some(password.clone()),
        (None, Some(path)) => {
            let bytes = read("--etcd-password-file", path)?;
            let text = String::from_utf8(bytes).map_err(|_| {
                Failure::usage(format!("--etcd-password-file {}: not text", path.display()))
            })?;
            // Editors and `echo` end a file with a newline.
            Some(text.trim_end_matches(['\n', '\r']).to_owned())
        }
        (None, None) => None,
    };
    match (&args.etcd_user, password) {
        (None, None) => Ok(None),
        (Some(user), Some(password)) if !user.is_empty() && !password.is_empty() => {
            Ok(Some(Credentials {
                user: user.clone(),
                password,
            }))
        }
        (Some(_), Some(_)) => Err(Failure::usage(
            "--etcd-user: the name or the password is empty",
        )),
        (Some(_), None) => Err(Failure::usage(
            "--etcd-user: the password is missing (--etcd-password-file, PUNCTUAL_ETCD_PASSWORD)",
        )),
        (None, Some(_)) => Err(Failure::usage(
            "--etcd-password: the user is missing (--etcd-user)",
        )),
    }
}

fn read(option: &str, path: &Path) -> Outcome<Vec<u8>> {
    let bytes = std::fs::read(path)
        .map_err(|e| Failure::usage(format!("{option} {}: {e}", path.display())))?;
    if bytes.is_empty() {
        return Err(Failure::usage(format!(
            "{option} {}: it is empty",
            path.display()
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(args: ServeArgs) -> Result<crate::config::ServeConfig, String> {
        args.resolve(None).map_err(|failure| failure.to_string())
    }

    fn store(text: &str) -> ServeArgs {
        ServeArgs {
            store: Some(text.into()),
            ..ServeArgs::default()
        }
    }

    #[test]
    fn a_cluster_is_named_by_its_members_and_a_namespace() {
        let at = EtcdAt::parse("etcd", "//a:1,[::1]:2/prod").unwrap();
        assert_eq!(
            (at.members, at.namespace.as_str(), at.tls),
            (vec!["a:1".into(), "[::1]:2".into()], "prod", false)
        );
        let at = EtcdAt::parse("etcds", "//a:1").unwrap();
        assert_eq!((at.namespace.as_str(), at.tls), ("punctual", true));
    }

    #[test]
    fn what_is_no_address_is_said_before_anything_is_tried() {
        for (text, expected) in [
            ("etcd:127.0.0.1:1", "write etcd://HOST:PORT"),
            ("etcd://", "HOST:PORT is missing"),
            ("etcd://a:1,,b:2", "HOST:PORT is missing"),
            ("etcd://127.0.0.1", "`127.0.0.1` is not HOST:PORT"),
            ("etcd://127.0.0.1:99999", "not HOST:PORT"),
            ("etcd://127.0.0.1:1/a/b", "`a/b` is not a namespace"),
            ("etcd://127.0.0.1:1/Prod", "`Prod` is not a namespace"),
            ("etcd://u:hunter2@127.0.0.1:1/x", "--etcd-user"),
            ("etcd://10.0.0.1:1/x", "--etcd-plaintext"),
        ] {
            let error = resolve(store(text)).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let told = ServeArgs {
            etcd_plaintext: Some(true),
            ..store("etcd://10.0.0.1:1/x")
        };
        assert!(resolve(told).is_ok());
        assert!(resolve(store("etcds://10.0.0.1:1/x")).is_ok());
    }

    #[test]
    fn half_a_secret_is_refused_and_a_whole_one_is_not_shown() {
        let local = || store("etcd://127.0.0.1:1/x");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        std::fs::write(&file, "hunter2\n").unwrap();
        let args = ServeArgs {
            etcd_user: Some("punctual".into()),
            etcd_password_file: Some(file.clone()),
            ..local()
        };
        let given = credentials(&args).unwrap().unwrap();
        assert_eq!(
            (given.user.as_str(), given.password.as_str()),
            ("punctual", "hunter2")
        );
        let shown = ServeArgs {
            etcd_user: Some("punctual".into()),
            etcd_password: Some(Secret("hunter2".into())),
            ..local()
        };
        assert!(!format!("{shown:?}").contains("hunter2"));
        std::fs::write(&file, "\n").unwrap();
        let path = Some(file);
        for half in [
            args,
            ServeArgs {
                etcd_user: Some("a".into()),
                ..local()
            },
            ServeArgs {
                etcd_password: Some(Secret("a".into())),
                ..local()
            },
            ServeArgs {
                etcd_user: Some("a".into()),
                etcd_password: Some(Secret("a".into())),
                etcd_password_file: path.clone(),
                ..local()
            },
            ServeArgs {
                etcd_cert_file: path.clone(),
                ..local()
            },
            ServeArgs {
                etcd_key_file: path,
                ..local()
            },
            ServeArgs {
                etcd_ca_file: Some("/nowhere".into()),
                ..local()
            },
        ] {
            assert!(resolve(half.clone()).is_err(), "{half:?}");
        }
    }

    #[test]
    fn the_password_of_the_higher_place_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (config, file) = (dir.path().join("c.toml"), dir.path().join("password"));
        std::fs::write(&file, "of-the-file").unwrap();
        std::fs::write(&config, "etcd_user = \"u\"\netcd_password = \"low\"\n").unwrap();
        let args = ServeArgs {
            etcd_password_file: Some(file),
            config: Some(config),
            ..store("etcd://127.0.0.1:1/x")
        };
        let resolved = resolve(args).unwrap();
        let given = credentials(&resolved.args).unwrap().unwrap();
        assert_eq!(given.password, "of-the-file");
    }
}
