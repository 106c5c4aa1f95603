//! How to reach an etcd, and which etcd not to talk to.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::error::ConnectError;

/// etcd hangs up on a client that pings it more often than this.
pub(crate) const SHORTEST_KEEP_ALIVE: Duration = Duration::from_secs(5);

/// How to reach an etcd. There is no namespace here: every key that the scheduler uses carries
/// its own.
#[derive(Clone, Debug)]
pub struct EtcdConfig {
    /// Client URLs of the members of one cluster: `http://127.0.0.1:2379`. A bare `host:port` is
    /// taken as http.
    pub endpoints: Vec<String>,
    /// Who we are, when the etcd asks for it.
    pub credentials: Option<Credentials>,
    /// How to know the etcd behind an https endpoint, and how it knows us.
    #[cfg(feature = "tls")]
    pub tls: Tls,
    /// A key that connecting reads, so that an etcd without a majority, or one that does not let us
    /// in, is found before anything is built on it.
    pub probe: Option<Vec<u8>>,
    /// So long may a call take, connecting included, before it counts as failed.
    pub request_timeout: Duration,
    /// Ping a connection with open calls this often; never more than once in five seconds, since
    /// etcd hangs up on clients that do.
    pub keep_alive: Duration,
    /// A watch that hears nothing for this long asks for a sign of life; when none comes within
    /// the same time again, it ends in an error.
    pub watch_silence: Duration,
    /// Talk http with hosts other than this one. Everything, passwords included, can then be read
    /// and changed on the way.
    pub allow_plaintext: bool,
    /// Use even etcd 3.5.0 to 3.5.2, which can lose acknowledged writes when killed.
    pub allow_corrupting_version: bool,
}

/// A user of etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The name.
    pub user: String,
    /// The password.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .field("password", &"***")
            .finish()
    }
}

/// Certificates, as PEM.
#[cfg(feature = "tls")]
#[derive(Clone, Default)]
pub struct Tls {
    /// Who vouches for the etcd; without it those do whom the system trusts.
    pub authority: Option<Vec<u8>>,
    /// Our certificate and its key, when the etcd asks for them.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in the certificate of the etcd, where it is not the host's.
    pub domain: Option<String>,
}

#[cfg(feature = "tls")]
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("authority", &self.authority.is_some())
            .field("identity", &self.identity.as_ref().map(|_| "***"))
            .field("domain", &self.domain)
            .finish()
    }
}

#[cfg(feature = "tls")]
impl Tls {
    pub(crate) fn options(&self) -> etcd_client::TlsOptions {
        let mut options = etcd_client::TlsOptions::new();
        options = match &self.authority {
            Some(pem) => options.ca_certificate(etcd_client::Certificate::from_pem(pem)),
            None => options.with_native_roots(),
        };
        if let Some((certificate, key)) = &self.identity {
            options = options.identity(etcd_client::Identity::from_pem(certificate, key));
        }
        match &self.domain {
            Some(domain) => options.domain_name(domain),
            None => options,
        }
    }
}

impl EtcdConfig {
    /// The defaults, for these endpoints.
    #[must_use]
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            credentials: None,
            #[cfg(feature = "tls")]
            tls: Tls::default(),
            probe: None,
            request_timeout: Duration::from_secs(2),
            keep_alive: Duration::from_secs(6),
            watch_silence: Duration::from_secs(4),
            allow_plaintext: false,
            allow_corrupting_version: false,
        }
    }

    /// Whether it can work at all; connecting looks at the same.
    ///
    /// # Errors
    /// [`ConnectError::Config`] and [`ConnectError::Plaintext`].
    pub fn check(&self) -> Result<(), ConnectError> {
        self.checked_endpoints().map(|_| ())
    }

    /// The endpoints as whole URLs.
    pub(crate) fn checked_endpoints(&self) -> Result<Vec<String>, ConnectError> {
        if self.endpoints.is_empty() {
            return Err(ConnectError::Config("no endpoint is given".into()));
        }
        self.endpoints.iter().map(|e| self.endpoint(e)).collect()
    }

    fn endpoint(&self, given: &str) -> Result<String, ConnectError> {
        let bad = |why: &str| ConnectError::Config(format!("endpoint {given:?}: {why}"));
        let given_whole = if given.contains("://") {
            given.to_owned()
        } else {
            format!("http://{given}")
        };
        let uri: http::Uri = given_whole.parse().map_err(|_| bad("not a URL"))?;
        let host = uri.host().ok_or_else(|| bad("no host"))?;
        if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
            // It would end up in logs.
            return Err(ConnectError::Config(
                "an endpoint holds a password; give it apart from the address".into(),
            ));
        }
        match uri.scheme_str() {
            Some("https") if cfg!(feature = "tls") => {}
            Some("https") => return Err(bad("this build has no TLS (feature `tls`)")),
            Some("http") if self.allow_plaintext || is_loopback(host) => {}
            Some("http") => {
                return Err(ConnectError::Plaintext {
                    endpoint: given.to_owned(),
                });
            }
            _ => return Err(bad("neither http nor https")),
        }
        Ok(given_whole)
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(endpoint: &str) -> Result<Vec<String>, ConnectError> {
        EtcdConfig::new([endpoint]).checked_endpoints()
    }

    #[test]
    fn plaintext_stays_on_this_host_unless_told() {
        for local in ["http://127.0.0.1:1", "localhost:1", "http://[::1]:1"] {
            assert!(checked(local).is_ok(), "{local}");
        }
        for remote in ["http://10.0.0.1:1", "etcd-1:2379", "http://[::2]:1"] {
            let refused = checked(remote).unwrap_err();
            assert!(
                matches!(refused, ConnectError::Plaintext { .. }),
                "{remote}"
            );
            let mut told = EtcdConfig::new([remote]);
            told.allow_plaintext = true;
            assert!(told.checked_endpoints().is_ok(), "{remote}");
        }
    }

    #[test]
    fn what_cannot_be_an_endpoint_is_said_before_anything_is_tried() {
        for bad in ["", "ftp://127.0.0.1", "http://", "http://a:b@127.0.0.1:1"] {
            let refused = checked(bad).unwrap_err();
            assert!(matches!(refused, ConnectError::Config(_)), "{bad}");
        }
        let none = EtcdConfig::new(Vec::<String>::new()).checked_endpoints();
        assert!(matches!(none, Err(ConnectError::Config(_))));
    }

    #[test]
    fn a_password_is_not_shown() {
        let mut config = EtcdConfig::new(["localhost:1"]);
        config.credentials = Some(Credentials {
            user: "punctual".into(),
            password: "hunter2".into(),
        });
        let shown = format!("{config:?}");
        assert!(shown.contains("punctual") && !shown.contains("hunter2"));
        let inside = checked("http://u:hunter2@127.0.0.1:1").unwrap_err();
        assert!(!inside.to_string().contains("hunter2"));
    }
}
