//! An answer that comes later: 202, and where to ask.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{HeaderMap, LOCATION, RETRY_AFTER};
use punctual::job::spec::HttpUrl;

/// How long to wait when the receiver does not say.
const WAIT: Duration = Duration::from_secs(2);
const MIN_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Where to ask, if the answer says so. Only where the call itself went: what is sent along is meant for
/// nobody else.
pub(super) fn place(called: &str, headers: &HeaderMap) -> Result<Option<String>, String> {
    let Some(location) = headers.get(LOCATION) else {
        return Ok(None);
    };
    let called = HttpUrl::parse(called)?;
    let origin = format!(
        "{}://{}",
        if called.tls { "https" } else { "http" },
        called.receiver()
    );
    let location = location.to_str().map_err(|_| "is not text")?;
    let url = if location.starts_with('/') && !location.starts_with("//") {
        format!("{origin}{location}")
    } else {
        location.to_owned()
    };
    let there = HttpUrl::parse(&url)?;
    if (there.tls, there.receiver()) != (called.tls, called.receiver()) {
        return Err("leads to another place than was called".into());
    }
    Ok(Some(url))
}

/// How long to wait until it is asked.
pub(super) fn wait(headers: &HeaderMap) -> Duration {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| {
        let text = value.to_str().ok()?.trim();
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // One that is too long for a number is too long to wait, too.
        is_number.then(|| text.parse().unwrap_or(u64::MAX))
    });
    seconds
        .map_or(WAIT, Duration::from_secs)
        .clamp(MIN_WAIT, MAX_WAIT)
}

/// Whether what answers cannot say anything of the work at the moment.
pub(super) fn is_passing(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_where_it_was_called_and_nowhere_else() {
        let at = |location: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(LOCATION, location.parse().unwrap());
            place("http://a.org:8080/tasks?x=1", &headers)
        };
        assert_eq!(place("http://a.org/", &HeaderMap::new()), Ok(None));
        let same = Ok(Some("http://a.org:8080/tasks/7".to_owned()));
        assert_eq!(at("/tasks/7"), same);
        assert_eq!(at("http://a.org:8080/tasks/7"), same);
        assert!(at("http://A.ORG:8080/tasks/7").is_ok());
        for other in [
            "https://a.org:8080/tasks/7",
            "http://a.org/tasks/7",
            "http://b.org:8080/tasks/7",
            "//b.org:8080/tasks/7",
            "http://a.org:8080@b.org/",
            "tasks/7",
            "",
            "file:///etc/passwd",
        ] {
            assert!(at(other).is_err(), "{other}");
        }
    }

    #[test]
    fn it_waits_as_long_as_it_is_told_within_bounds() {
        for (value, seconds) in [
            ("5", 5),
            (" 7 ", 7),
            ("0", 1),
            ("61", 60),
            ("99999999999999999999999", 60),
            ("-1", 2),
            ("soon", 2),
            ("", 2),
            ("Wed, 21 Oct 2026 07:28:00 GMT", 2),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, value.parse().unwrap());
            assert_eq!(wait(&headers).as_secs(), seconds, "{value}");
        }
        assert_eq!(wait(&HeaderMap::new()).as_secs(), 2);
    }
}
