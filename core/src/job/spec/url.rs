//! URLs that a node calls, read in one way only: what is checked is what is called.

/// The longest URL.
pub const MAX_URL_BYTES: usize = 1_024;

/// The parts of a URL that a node calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpUrl {
    /// Whether the way there is encrypted (`https`).
    pub tls: bool,
    /// Lower case; an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Path and query, from `/` on.
    pub path: String,
}

impl HttpUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// What is wrong with it, for people.
    pub fn parse(url: &str) -> Result<Self, String> {
        if url.len() > MAX_URL_BYTES {
            return Err(format!("is longer than {MAX_URL_BYTES} bytes"));
        }
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("has a space or a character that is not ASCII".into());
        }
        let (scheme, rest) = url.split_once("://").ok_or("is not a URL")?;
        let tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err("is neither https:// nor http://".into()),
        };
        if rest.contains('#') {
            return Err("has a fragment (`#`), which is never sent".into());
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return Err("has a user name or password, which job files show to all".into());
        }
        let (host, port) = host_and_port(authority)?;
        // No request can have one of these, so to take them here would be to fail later, each time.
        if let Some(found) = path.find(['"', '<', '>', '\\', '^', '`', '{', '|', '}']) {
            let found = path[found..].chars().next().unwrap_or_default();
            return Err(format!(
                "has a `{found}`; write it as %{:02X}",
                u32::from(found)
            ));
        }
        let path = match path.strip_prefix('?') {
            Some(query) => format!("/?{query}"),
            None if path.is_empty() => "/".to_owned(),
            None => path.to_owned(),
        };
        let port = port.unwrap_or(if tls { 443 } else { 80 });
        Ok(Self {
            tls,
            host,
            port,
            path,
        })
    }

    /// `HOST:PORT`: whoever has the same is the same receiver.
    #[must_use]
    pub fn receiver(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Reads `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.
///
/// # Errors
/// What is wrong with it, for people.
pub fn host_and_port(text: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("has a `[` without its `]`")?;
            host.parse::<std::net::Ipv6Addr>()
                .map_err(|_| "has no IPv6 address between `[` and `]`")?;
            match rest {
                "" => (host, None),
                rest => (
                    host,
                    Some(rest.strip_prefix(':').ok_or("has no port behind `]`")?),
                ),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if host.is_empty() {
        return Err("has no host".into());
    }
    if !text.starts_with('[') && !host.bytes().all(named) {
        return Err("has no host that can be looked up".into());
    }
    let port = match port {
        None => None,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            let number = port.parse::<u16>().ok().filter(|port| *port > 0);
            Some(number.ok_or("has no port from 1 to 65535")?)
        }
        Some(_) => return Err("has no port from 1 to 65535".into()),
    };
    Ok((host.trim_end_matches('.').to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_in_one_way_only() {
        let read = |url: &str| {
            HttpUrl::parse(url).map(|url| format!("{} {} {}", url.tls, url.receiver(), url.path))
        };
        for (url, parts) in [
            ("https://example.org/hook", "true example.org:443 /hook"),
            ("http://Example.ORG.:8080", "false example.org:8080 /"),
            ("https://example.org?a=1", "true example.org:443 /?a=1"),
            ("http://[::1]:9/x", "false [::1]:9 /x"),
        ] {
            assert_eq!(read(url).as_deref(), Ok(parts));
        }
        for (url, why) in [
            ("example.org/hook", "is not a URL"),
            ("ftp://example.org/", "is neither https:// nor http://"),
            ("HTTPS://example.org/", "is neither https:// nor http://"),
            (
                "https://user:pw@example.org/",
                "has a user name or password",
            ),
            (
                "https://allowed.org\\@evil.org/",
                "has a user name or password",
            ),
            ("https://allowed.org\\.evil.org/", "has no host that can"),
            ("https:///hook", "has no host"),
            ("https://example.org:0/", "has no port"),
            ("https://example.org:+1/", "has no port"),
            ("https://example.org:65536/", "has no port"),
            ("https://[::1/", "has a `[` without"),
            ("https://[fe80::1%25eth0]/", "has no IPv6 address"),
            ("https://example.org/#x", "has a fragment"),
            ("https://example.org/a b", "has a space"),
            ("https://ex\u{e4}mple.org/", "has a space or a character"),
            ("https://example.org/\r\nHost: x", "has a space"),
            ("https://example.org/<x>", "has a `<`; write it as %3C"),
            ("https://example.org/?q=`x`", "has a ``"),
        ] {
            let error = read(url).unwrap_err();
            assert!(error.starts_with(why), "{url}: {error}");
        }
        let long = format!("https://example.org/{}", "x".repeat(MAX_URL_BYTES));
        assert!(read(&long).unwrap_err().starts_with("is longer"));
    }
}
