//! Whom a node may call: a job file alone must not make it knock on doors inside the network.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use punctual::job::spec::{HttpUrl, host_and_port};

/// One `--notify-allow` or `--http-allow`: `[http://]HOST[:PORT]`, `HOST` a name, an address, or `*.DOMAIN`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
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
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(text: &str) -> Result<Self, String> {
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

    fn covers(&self, url: &HttpUrl) -> bool {
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

/// Metadata services of clouds that have no link-local address: Azure, Alibaba, Oracle.
const METADATA: [[u8; 4]; 3] = [[168, 63, 129, 16], [100, 100, 100, 200], [192, 0, 0, 192]];
/// That of Amazon, `fd00:ec2::254`.
const METADATA_V6: [u16; 8] = [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254];

fn place(ip: IpAddr) -> Place {
    match ip.to_canonical() {
        IpAddr::V4(ip) => {
            let [a, b, c, _] = ip.octets();
            if ip.is_multicast() || ip.is_broadcast() || a == 0 || a >= 240 {
                Place::Nowhere
            } else if ip.is_loopback() || ip.is_link_local() || METADATA.contains(&ip.octets()) {
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
            } else if ip.is_loopback()
                || ip.is_unicast_link_local()
                || carries_ipv4(ip)
                || ip.segments() == METADATA_V6
            {
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
        || parts[..6] == [0, 0, 0, 0, 0xffff, 0]
        || (parts[4] & 0xfdff, parts[5]) == (0, 0x5efe)
}

/// What a node may call.
#[derive(Clone, Debug)]
pub struct Allowed {
    /// The option that names them, for people.
    option: &'static str,
    patterns: Vec<Pattern>,
    /// Whether any public address may be called, encrypted, that no pattern names.
    public: bool,
    control_plane: ControlPlane,
}

/// What controls the cluster: never called, whoever allows it.
#[derive(Clone, Debug, Default)]
pub struct ControlPlane {
    /// `HOST:PORT` of the store's members, and of this node's API.
    places: Vec<String>,
    /// Their ports, which are not called on whichever address of this machine.
    ports: Vec<u16>,
}

impl ControlPlane {
    /// These places, and on this machine their ports and this one.
    #[must_use]
    pub fn new(places: Vec<String>, own_port: u16) -> Self {
        let port = |place: &String| place.rsplit_once(':')?.1.parse().ok();
        let ports = places.iter().filter_map(port).chain([own_port]).collect();
        Self { places, ports }
    }

    /// What is written as a name: it must be looked up to know where it is.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let named = |at: &&String| at.parse::<SocketAddr>().is_err();
        self.places.iter().filter(named).map(String::as_str)
    }

    fn has(&self, at: SocketAddr) -> bool {
        let mut addresses = self.places.iter().filter_map(|text| text.parse().ok());
        addresses.any(|denied| is_same(denied, at)) || self.is_own(at, None)
    }

    /// Whether a connection from `local` to `at` has come back to this node's API, or to a store that is
    /// on this machine.
    pub(super) fn is_own(&self, at: SocketAddr, local: Option<SocketAddr>) -> bool {
        let (ip, local) = (
            at.ip().to_canonical(),
            local.map(|at| at.ip().to_canonical()),
        );
        self.ports.contains(&at.port()) && (ip.is_loopback() || Some(ip) == local)
    }
}

/// Whether two addresses are one, in whichever way they are written.
pub(super) fn is_same(a: SocketAddr, b: SocketAddr) -> bool {
    a.port() == b.port() && a.ip().to_canonical() == b.ip().to_canonical()
}

impl Allowed {
    /// Only what these name. `option` is where they stand.
    #[must_use]
    pub fn named(
        option: &'static str,
        patterns: Vec<Pattern>,
        control_plane: ControlPlane,
    ) -> Self {
        Self {
            option,
            patterns,
            public: false,
            control_plane,
        }
    }

    /// What these name, and encrypted whatever has a public address.
    #[must_use]
    pub fn and_public(self) -> Self {
        Self {
            public: true,
            ..self
        }
    }

    /// What is never called.
    pub(super) fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// Whether somebody named the place, so that it may also get what is secret.
    #[must_use]
    pub fn names(&self, url: &HttpUrl) -> bool {
        self.patterns.iter().any(|pattern| pattern.covers(url))
    }

    /// How to name it.
    #[must_use]
    pub fn advice(&self, url: &HttpUrl) -> String {
        let plain = if url.tls { "" } else { "http://" };
        format!("{} {plain}{}", self.option, url.receiver())
    }

    /// Whether the URL may be called, before its name is looked up.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn permits(&self, url: &str) -> Result<HttpUrl, String> {
        let url = HttpUrl::parse(url)?;
        let receiver = url.receiver();
        if self.control_plane.places.contains(&receiver) {
            return Err(belongs_to_us(&receiver));
        }
        if self.names(&url) {
            return Ok(url);
        }
        let without = self.advice(&url);
        if !self.public {
            return Err(format!("this node may not call it: it has no {without}"));
        }
        if !url.tls {
            return Err(format!(
                "this node calls without encryption only whom {} names: it has no {without}",
                self.option
            ));
        }
        // One that is written as an address needs no look.
        if let Ok(ip) = url.host.parse() {
            self.permits_all(&url, &[SocketAddr::new(ip, url.port)])?;
        }
        Ok(url)
    }

    /// Whether all that its name stands for may be called.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn permits_all(&self, url: &HttpUrl, found: &[SocketAddr]) -> Result<(), String> {
        for at in found {
            if self.control_plane.has(*at) {
                return Err(belongs_to_us(&at.to_string()));
            }
            let public = self.public && url.tls && place(at.ip()) == Place::Public;
            let mut patterns = self.patterns.iter().filter(|pattern| pattern.covers(url));
            if !public && !patterns.any(|pattern| pattern.reaches(at.ip())) {
                return Err(format!(
                    "{} stands for {}, which is no public address and not what {} names",
                    url.host,
                    at.ip(),
                    self.option
                ));
            }
        }
        Ok(())
    }
}

/// Why a place is never called.
pub(super) fn belongs_to_us(at: &str) -> String {
    format!("{at} belongs to the scheduler itself")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(patterns: &[&str], denied: &[&str]) -> Allowed {
        let patterns = patterns.iter().map(|text| Pattern::parse(text).unwrap());
        let places = denied.iter().map(|at| (*at).to_owned()).collect();
        let ours = ControlPlane::new(places, 7717);
        Allowed::named("--notify-allow", patterns.collect(), ours)
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
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "fd00:ec2::254",
            "::ffff:0:7f00:1",
            "2001:db8::5efe:7f00:1",
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

    #[test]
    fn this_nodes_api_is_not_called_by_another_name_of_this_machine() {
        let ours = ControlPlane::new(vec!["etcd:2379".into(), "10.0.0.1:2379".into()], 7717);
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        for local in ["10.0.0.5:40000", "127.0.0.1:40000"] {
            for own in ["10.0.0.5:7717", "127.0.0.2:7717", "[::1]:7717"] {
                let same = own.starts_with("10.") == local.starts_with("10.");
                let is_own = ours.is_own(at(own), Some(at(local)));
                assert_eq!(is_own, same || !own.starts_with("10."), "{own} {local}");
            }
        }
        assert!(!ours.is_own(at("10.0.0.6:7717"), Some(at("10.0.0.5:40000"))));
        assert!(!ours.is_own(at("10.0.0.5:7718"), Some(at("10.0.0.5:40000"))));
        assert_eq!(ours.names().collect::<Vec<_>>(), ["etcd:2379"]);
    }

    /// Q06: what nobody named is called encrypted and in public only.
    #[test]
    fn whoever_may_call_the_public_calls_nothing_else() {
        let some = |patterns: &[&str]| allowed(patterns, &["1.2.3.4:2379"]).and_public();
        let none = some(&[]);
        for url in [
            "https://a.org/",
            "https://93.184.216.34/",
            "https://[2606:2800::1]:8/",
        ] {
            assert!(none.permits(url).is_ok(), "{url}");
        }
        for url in [
            "http://a.org/",
            "http://93.184.216.34/",
            "https://127.0.0.1/",
            "https://10.0.0.7/",
            "https://169.254.169.254/",
            "https://[::ffff:10.0.0.7]/",
            "https://[::1]/",
            "https://224.0.0.1/",
            "https://0.0.0.0/",
            "https://1.2.3.4:2379/",
        ] {
            assert!(none.permits(url).is_err(), "{url}");
        }
        let url = none.permits("https://a.org/").unwrap();
        let stands_for = |some: &Allowed, ips: &[&str]| {
            let found = ips
                .iter()
                .map(|ip| SocketAddr::new(ip.parse().unwrap(), 443));
            some.permits_all(&url, &found.collect::<Vec<_>>()).is_ok()
        };
        assert!(stands_for(&none, &["93.184.216.34"]));
        for ip in [
            "10.0.0.7",
            "127.0.0.1",
            "169.254.169.254",
            "::ffff:127.0.0.1",
            "fd00::1",
        ] {
            assert!(!stands_for(&none, &[ip]), "{ip}");
            assert!(!stands_for(&none, &["93.184.216.34", ip]), "{ip}");
        }
        // A name that somebody wrote down may be inside the network.
        assert!(stands_for(
            &some(&["a.org"]),
            &["93.184.216.34", "10.0.0.7"]
        ));
        assert!(!stands_for(&some(&["a.org"]), &["127.0.0.1"]));
        assert!(stands_for(&some(&["*.org"]), &["93.184.216.34"]));
        assert!(!stands_for(&some(&["*.org"]), &["10.0.0.7"]));
        // Only what is named may have what is secret.
        assert!(!none.names(&url) && some(&["a.org"]).names(&url));
    }
}
