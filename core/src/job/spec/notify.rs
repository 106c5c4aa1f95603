//! Who is told what: `notify` in a job's definition.

use serde::{Deserialize, Serialize};

use crate::duration::Millis;

use super::{JobSpec, SpecError};

/// So many receivers of one job.
pub const MAX_NOTIFY: usize = 4;
/// The longest URL.
pub const MAX_URL_BYTES: usize = 1_024;
/// How late a run may start, when nothing is said.
const LATE_AFTER: Millis = Millis::from_secs(300);

/// A receiver, and what it wants to hear.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotifySpec {
    /// Where to: the event is posted there as JSON.
    pub webhook: String,
    /// Which events.
    pub on: Vec<NotifyEvent>,
    /// A run that has not started so long after it was due is late. Default 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late_after: Option<Millis>,
}

/// What can be told of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NotifyEvent {
    /// It ended FAILED, no retry follows, and nobody had asked for that end.
    Failed,
    /// It had not started `late_after` after it was due.
    Late,
    /// It succeeded, and the last end of the job that was not asked for was a bad one.
    Recovered,
    /// It ended FAILED because its worker vanished, and no retry follows.
    Lost,
}

impl NotifyEvent {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Failed, Self::Late, Self::Recovered, Self::Lost];

    /// As in the job file.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Late => "late",
            Self::Recovered => "recovered",
            Self::Lost => "lost",
        }
    }

    /// From a job file's word.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|event| event.as_str() == text)
    }
}

/// The parts of a webhook's URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookUrl {
    /// Whether the way there is encrypted (`https`).
    pub tls: bool,
    /// Lower case; an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Path and query, from `/` on.
    pub path: String,
}

impl WebhookUrl {
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

/// Who a webhook's URL leads to: [`WebhookUrl::receiver`], and of one that cannot be read, nothing.
#[must_use]
pub fn receiver_of(url: &str) -> String {
    WebhookUrl::parse(url).map_or_else(|_| "?".to_owned(), |url| url.receiver())
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

impl JobSpec {
    /// When a run that is due at `due_ms` is late; none: nobody wants to know.
    #[must_use]
    pub fn late_at_ms(&self, due_ms: i64) -> Option<i64> {
        let mut late = self
            .notify
            .iter()
            .filter(|notify| notify.on.contains(&NotifyEvent::Late));
        let after = late.next()?.late_after.unwrap_or(LATE_AFTER);
        Some(due_ms.saturating_add(after.ms_i64()))
    }

    /// Whether somebody wants to hear of this.
    #[must_use]
    pub fn tells(&self, event: NotifyEvent) -> bool {
        self.notify.iter().any(|notify| notify.on.contains(&event))
    }

    pub(super) fn check_notify(&self, errors: &mut Vec<SpecError>) {
        if self.notify.len() > MAX_NOTIFY {
            errors.push(
                SpecError::new("notify", format!("more than {MAX_NOTIFY} receivers"))
                    .hint("let one receiver pass the events on"),
            );
        }
        let mut late_after = None;
        for (index, notify) in self.notify.iter().enumerate() {
            let path = format!("notify[{index}]");
            if let Err(why) = WebhookUrl::parse(&notify.webhook) {
                // (The URL itself is not shown: it may have a secret in it, and this may go to a log.)
                errors.push(
                    SpecError::new(format!("{path}.webhook"), format!("it {why}"))
                        .hint("for example  https://example.org/hook"),
                );
            } else if self.notify[..index]
                .iter()
                .any(|other| other.webhook == notify.webhook)
            {
                errors.push(
                    SpecError::new(format!("{path}.webhook"), "this receiver is named twice")
                        .hint("name all its events in one `on`"),
                );
            }
            if notify.on.is_empty() {
                errors.push(
                    SpecError::new(format!("{path}.on"), "names no event")
                        .hint("failed, late, recovered, lost"),
                );
            }
            if (1..notify.on.len()).any(|n| notify.on[..n].contains(&notify.on[n])) {
                let message = "names an event twice";
                errors.push(SpecError::new(format!("{path}.on"), message));
            }
            let late_path = format!("{path}.late_after");
            match (notify.on.contains(&NotifyEvent::Late), notify.late_after) {
                (false, Some(_)) => errors.push(
                    SpecError::new(late_path, "means nothing without `late`")
                        .hint("add `late` to `on`, or leave it out"),
                ),
                (true, Some(after)) if after.ms() < 1_000 => {
                    errors.push(SpecError::new(late_path, "must be at least 1s"));
                }
                (true, after) => {
                    let after = after.unwrap_or(LATE_AFTER);
                    if *late_after.get_or_insert(after) != after {
                        errors.push(
                            SpecError::new(late_path, "differs from that of another receiver")
                                .hint("a job has one `late_after` for all its receivers"),
                        );
                    }
                }
                (false, None) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Calendars;

    #[test]
    fn urls_are_read_in_one_way_only() {
        let read = |url: &str| {
            WebhookUrl::parse(url).map(|url| format!("{} {} {}", url.tls, url.receiver(), url.path))
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
        ] {
            let error = read(url).unwrap_err();
            assert!(error.starts_with(why), "{url}: {error}");
        }
        let long = format!("https://example.org/{}", "x".repeat(MAX_URL_BYTES));
        assert!(read(&long).unwrap_err().starts_with("is longer"));
    }

    #[test]
    fn what_cannot_be_told_is_refused() {
        use NotifyEvent::{Failed, Late, Lost, Recovered};
        let to = |webhook: &str, on: &[NotifyEvent], late_after: Option<u64>| NotifySpec {
            webhook: webhook.into(),
            on: on.to_vec(),
            late_after: late_after.map(Millis::from_ms),
        };
        let findings = |notify: Vec<NotifySpec>| {
            let mut spec = JobSpec::handler("a", "h");
            spec.notify = notify;
            let found = spec.check(&Calendars::default(), 0).err();
            let paths = found.into_iter().flatten().map(|finding| finding.path);
            paths.collect::<Vec<_>>().join(" ")
        };
        let all = to(
            "https://a.org",
            &[Failed, Late, Recovered, Lost],
            Some(1_000),
        );
        assert_eq!(findings(vec![all.clone()]), "");
        assert_eq!(findings(vec![to("https://a.org", &[Late], None)]), "");
        assert_eq!(
            findings(vec![all.clone(), all.clone()]),
            "notify[1].webhook"
        );
        for (wrong, path) in [
            (to("ftp://a.org", &[Failed], None), "notify[0].webhook"),
            (to("https://a.org", &[], None), "notify[0].on"),
            (to("https://a.org", &[Lost, Lost], None), "notify[0].on"),
            (
                to("https://a.org", &[Late], Some(999)),
                "notify[0].late_after",
            ),
            (
                to("https://a.org", &[Lost], Some(9_000)),
                "notify[0].late_after",
            ),
        ] {
            assert_eq!(findings(vec![wrong]), path);
        }
        let other = to("https://b.org", &[Late], None);
        assert_eq!(findings(vec![all, other]), "notify[1].late_after");
        let five = (0..5).map(|n| to(&format!("https://{n}.org"), &[Lost], None));
        assert_eq!(findings(five.collect()), "notify");
    }

    #[test]
    fn late_is_asked_for_or_not() {
        let mut spec = JobSpec::handler("a", "h");
        assert_eq!(spec.late_at_ms(7), None);
        spec.notify = serde_json::from_value(serde_json::json!([
            { "webhook": "https://a.org", "on": ["failed"] },
            { "webhook": "https://b.org", "on": ["late"] },
        ]))
        .unwrap();
        assert_eq!(spec.late_at_ms(7), Some(300_007));
        for event in NotifyEvent::ALL {
            assert_eq!(NotifyEvent::parse(event.as_str()), Some(event));
            assert_eq!(serde_json::json!(event), event.as_str());
        }
    }
}
