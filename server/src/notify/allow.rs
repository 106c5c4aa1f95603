//! Whom a node may call: a job file alone must not make it knock on doors inside the network.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use punctual::job::spec::{WebhookUrl, host_and_port};

/// One `--notify-allow`: `[http://]HOST[:PORT]`, `HOST` a name, an address, or `*.DOMAIN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// Without encryption.
    plain: bool,
    /// Any name below `host`.
    below: bool,
    host: String,
    port: u16,
}

/// What kind of place an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Public,
    /// Inside some network.
    Private,
    /// This machine, or what only this machine reaches: metadata services among them.
    Near,
    /// No single machine.
    Nowhere,
}

impl Pattern {
    /// Reads one.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (plain, rest) = match text.split_once("://") {
            None => (false, text),
            Some(("https", rest)) => (false, rest),
            Some(("http", rest)) => (true, rest),
            Some(_) => return Err("is neither https:// nor http://".into()),
        };
        let (below, rest) = match rest.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let (host, port) = host_and_port(rest)?;
        if below && host.parse::<IpAddr>().is_ok() {
            return Err("has an address behind `*.`".into());
        }
        Ok(Self {
            plain,
            below,
            host,
            port: port.unwrap_or(if plain { 80 } else { 443 }),
        })
    }

    fn covers(&self, url: &WebhookUrl) -> bool {
        let host = match url.host.strip_suffix(&self.host) {
            Some("") => !self.below,
            Some(rest) => self.below && rest.len() > 1 && rest.ends_with('.'),
            None => false,
        };
        host && self.port == url.port && self.plain != url.tls
    }

    /// Whether what the name stands for may be called. Whoever names a host means it, wherever in the
    /// network it is; nobody means this machine but by its own name.
    fn reaches(&self, ip: IpAddr) -> bool {
        let literal = self.host == "localhost" || self.host.parse::<IpAddr>().is_ok();
        match place(ip) {
            Place::Public => true,
            Place::Private => !self.below,
            Place::Near => literal && !self.below,
            Place::Nowhere => false,
        }
    }
}

fn place(ip: IpAddr) -> Place {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let [a, b, c, _] = ip.octets();
            if ip.is_multicast() || ip.is_broadcast() || a == 0 || a >= 240 {
                Place::Nowhere
            } else if ip.is_loopback() || ip.is_link_local() {
                Place::Near
            } else if ip.is_private()
                || (a == 100 && (64..128).contains(&b))
                || (a == 198 && (18..20).contains(&b))
                || ([a, b, c] == [192, 0, 0])
            {
                Place::Private
            } else {
                Place::Public
            }
        }
        IpAddr::V6(ip) => {
            if ip.is_multicast() || ip.is_unspecified() {
                Place::Nowhere
            } else if ip.is_loopback() || ip.is_unicast_link_local() || carries_ipv4(ip) {
                Place::Near
            } else if ip.is_unique_local() || ip.segments()[0] & 0xffc0 == 0xfec0 {
                Place::Private
            } else {
                Place::Public
            }
        }
    }
}

/// Addresses that a gateway turns into IPv4 ones: they may lead anywhere.
fn carries_ipv4(ip: Ipv6Addr) -> bool {
    let parts = ip.segments();
    parts[..6] == [0; 6]
        || parts[..2] == [0x64, 0xff9b]
        || parts[0] == 0x2002
        || parts[..2] == [0x2001, 0]
}

/// What a node may call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allowed {
    patterns: Vec<Pattern>,
    /// Never, whoever allows it: what controls the cluster.
    denied: Vec<SocketAddr>,
    /// The same by name: `HOST:PORT`.
    denied_names: Vec<String>,
}

impl Allowed {
    pub(crate) fn new(patterns: Vec<Pattern>, denied: &[String]) -> Self {
        Self {
            patterns,
            denied: denied.iter().filter_map(|at| at.parse().ok()).collect(),
            denied_names: denied.to_vec(),
        }
    }

    /// Whether the URL may be called, before its name is looked up.
    pub(crate) fn permits(&self, url: &str) -> Result<WebhookUrl, String> {
        let url = WebhookUrl::parse(url)?;
        let receiver = url.receiver();
        if self.denied_names.contains(&receiver) {
            return Err(format!("{receiver} belongs to the scheduler itself"));
        }
        if self.patterns.iter().any(|pattern| pattern.covers(&url)) {
            return Ok(url);
        }
        let plain = if url.tls { "" } else { "http://" };
        Err(format!(
            "this node may not call it: it has no --notify-allow {plain}{receiver}"
        ))
    }

    /// Whether all that its name stands for may be called.
    pub(crate) fn permits_all(&self, url: &WebhookUrl, found: &[SocketAddr]) -> Result<(), String> {
        for at in found {
            let same = |denied: &SocketAddr| {
                denied.port() == at.port() && denied.ip() == at.ip().to_canonical()
            };
            if self.denied.iter().any(same) {
                return Err(format!("{at} belongs to the scheduler itself"));
            }
            let mut patterns = self.patterns.iter().filter(|pattern| pattern.covers(url));
            if !patterns.any(|pattern| pattern.reaches(at.ip())) {
                return Err(format!(
                    "{} stands for {}, which is no public address and not what --notify-allow names",
                    url.host,
                    at.ip()
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(patterns: &[&str], denied: &[&str]) -> Allowed {
        let patterns = patterns.iter().map(|text| Pattern::parse(text).unwrap());
        let denied: Vec<String> = denied.iter().map(|at| (*at).to_owned()).collect();
        Allowed::new(patterns.collect(), &denied)
    }

    /// Q06: nothing is called that nobody allowed.
    #[test]
    fn only_what_is_allowed_is_called() {
        let some = allowed(
            &[
                "hooks.example.org",
                "*.chat.example",
                "http://10.0.0.7:9000",
                "localhost:8443",
            ],
            &[],
        );
        for url in [
            "https://hooks.example.org/x",
            "https://HOOKS.example.org:443/",
            "https://a.b.chat.example/",
            "http://10.0.0.7:9000/",
            "https://localhost:8443/",
        ] {
            assert!(some.permits(url).is_ok(), "{url}");
        }
        for url in [
            "http://hooks.example.org/",
            "http://hooks.example.org:443/",
            "https://hooks.example.org:8443/",
            "https://evil-hooks.example.org/",
            "https://hooks.example.org.evil.org/",
            "https://chat.example/",
            "https://evilchat.example/",
            "https://10.0.0.7:9000/",
            "http://10.0.0.7/",
            "https://169.254.169.254/",
        ] {
            let refused = some.permits(url).unwrap_err();
            assert!(refused.contains("--notify-allow"), "{url}: {refused}");
            assert!(allowed(&[], &[]).permits(url).is_err());
        }
        for wrong in ["ftp://a.org", "*.10.0.0.1", "a.org:0", "a.org/x", ""] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// A name may stand for anything: what it stands for is looked at, too.
    #[test]
    fn what_a_name_stands_for_is_checked_as_well() {
        let reaches = |pattern: &str, url: &str, ip: &str| {
            let some = allowed(&[pattern], &[]);
            let url = some.permits(url).unwrap();
            let at = SocketAddr::new(ip.parse().unwrap(), url.port);
            let public = SocketAddr::from(([93, 184, 216, 34], url.port));
            some.permits_all(&url, &[public, at]).is_ok()
                || pattern == ip && some.permits_all(&url, &[at]).is_ok()
        };
        let named = |ip| reaches("a.example", "https://a.example/", ip);
        let below = |ip| reaches("*.example", "https://a.example/", ip);
        for ip in ["93.184.216.34", "2606:2800:21f:cb07::1"] {
            assert!(named(ip) && below(ip), "{ip}");
        }
        for ip in [
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "fd00::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(named(ip) && !below(ip), "{ip}");
        }
        for ip in [
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "::1",
            "fe80::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:0:1::",
            "::127.0.0.1",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "240.0.0.1",
        ] {
            assert!(!named(ip) && !below(ip), "{ip}");
        }
        assert!(reaches("127.0.0.1", "https://127.0.0.1/", "127.0.0.1"));
        assert!(reaches("localhost", "https://localhost/", "127.0.0.1"));
        assert!(!reaches("localhost", "https://localhost/", "0.0.0.0"));
    }

    #[test]
    fn what_controls_the_cluster_is_never_called() {
        let some = allowed(
            &[
                "http://127.0.0.1:7717",
                "http://localhost:7717",
                "http://etcd:2379",
            ],
            &["127.0.0.1:7717", "etcd:2379"],
        );
        for url in ["http://127.0.0.1:7717/v1/jobs", "http://etcd:2379/"] {
            assert!(some.permits(url).unwrap_err().contains("itself"), "{url}");
        }
        let url = some.permits("http://localhost:7717/").unwrap();
        for found in ["127.0.0.1:7717", "[::ffff:127.0.0.1]:7717"] {
            let found = [found.parse().unwrap()];
            assert!(
                some.permits_all(&url, &found)
                    .unwrap_err()
                    .contains("itself")
            );
        }
    }
}
