//! Times for people: in their zone, or as a distance from now.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use punctual::duration::Millis;

use crate::cli::args::TimeStyle;

/// Shows times as the user wants them.
#[derive(Debug)]
pub(crate) struct Clock {
    style: TimeStyle,
    zone: TimeZone,
    now_ms: i64,
}

impl Clock {
    pub(crate) fn new(style: TimeStyle) -> Self {
        let zone = match style {
            TimeStyle::Utc | TimeStyle::Iso => TimeZone::UTC,
            TimeStyle::Local | TimeStyle::Relative => TimeZone::system(),
        };
        Self {
            style,
            zone,
            now_ms: now_ms(),
        }
    }

    /// A time in the chosen style; `-` if there is none.
    pub(crate) fn show(&self, time: Option<&str>) -> String {
        match self.style {
            TimeStyle::Relative => self.distance(time),
            TimeStyle::Iso => time.unwrap_or("-").to_owned(),
            TimeStyle::Local | TimeStyle::Utc => self.moment(time),
        }
    }

    /// A time as date and time, in whatever style comes nearest to that.
    pub(crate) fn moment(&self, time: Option<&str>) -> String {
        let Some(time) = time else { return "-".into() };
        match (self.style, time.parse::<Timestamp>()) {
            (TimeStyle::Iso, _) | (_, Err(_)) => time.to_owned(),
            (_, Ok(stamp)) => stamp
                .to_zoned_datetime(self.zone.clone())
                .strftime("%a %Y-%m-%d %H:%M:%S %Z")
                .to_string(),
        }
    }

    /// The distance of a time from now: `5min 3s`, with `ago` when it is past.
    pub(crate) fn distance(&self, time: Option<&str>) -> String {
        match time.and_then(ms_of) {
            Some(ms) if ms >= self.now_ms => span(ms - self.now_ms),
            Some(ms) => format!("{} ago", span(self.now_ms - ms)),
            None => "-".into(),
        }
    }
}

/// Unix milliseconds of an RFC 3339 time.
pub(crate) fn ms_of(time: &str) -> Option<i64> {
    time.parse::<Timestamp>().ok().map(|t| t.as_millisecond())
}

/// A time that somebody names: RFC 3339, or a duration from `now_ms` on.
pub(crate) fn ahead(text: &str, now_ms: i64) -> Result<i64, String> {
    if let Some(ms) = ms_of(text) {
        return Ok(ms);
    }
    match text.parse::<Millis>() {
        Ok(length) => Ok(now_ms.saturating_add(length.ms_i64())),
        Err(_) => Err(format!(
            "`{}` is neither a time such as 2026-12-24T18:00:00Z nor a duration such as 2h",
            punctual_server::jobfile::shorten(text, 60)
        )),
    }
}

/// The wall clock. Only for display and for anchors of checks: the engine has its own.
pub(crate) fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

/// A duration in its two largest units, with the words of `systemctl list-timers`.
pub(crate) fn span(ms: i64) -> String {
    const UNITS: [(i64, &str); 6] = [
        (365 * 86_400_000, "y"),
        (30 * 86_400_000, "month"),
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "min"),
        (1_000, "s"),
    ];
    let first = UNITS.iter().position(|(length, _)| ms >= *length);
    let Some(first) = first else {
        return format!("{ms}ms");
    };
    let mut rest = ms;
    let mut parts = Vec::new();
    for (length, unit) in UNITS.iter().skip(first).take(2) {
        if rest >= *length {
            parts.push(format!("{}{unit}", rest / length));
            rest %= length;
        }
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_two_units() {
        for (ms, text) in [
            (0, "0ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (61_000, "1min 1s"),
            (3_600_000, "1h"),
            (90_061_000, "1d 1h"),
            (400 * 86_400_000, "1y 1month"),
        ] {
            assert_eq!(span(ms), text);
        }
    }

    #[test]
    fn times_ahead_are_moments_or_durations() {
        assert_eq!(ahead("1970-01-01T00:00:01Z", 7), Ok(1_000));
        assert_eq!(ahead("1970-01-01T01:00:00+01:00", 7), Ok(0));
        assert_eq!(ahead("1h30m", 7), Ok(5_400_007));
        for wrong in ["", "tomorrow", "2026-12-24", "2026-12-24T18:00:00", "-5m"] {
            assert!(ahead(wrong, 0).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_in_each_style() {
        let mut clock = Clock::new(TimeStyle::Utc);
        clock.now_ms = ms_of("2026-01-01T00:00:10.000Z").unwrap();
        let time = Some("2026-01-01T00:00:05.000Z");
        assert_eq!(clock.show(time), "Thu 2026-01-01 00:00:05 UTC");
        assert_eq!(clock.distance(time), "5s ago");
        assert_eq!(clock.show(None), "-");
        clock.style = TimeStyle::Iso;
        assert_eq!(clock.show(time), "2026-01-01T00:00:05.000Z");
        clock.style = TimeStyle::Relative;
        assert_eq!(clock.show(Some("2026-01-01T00:01:15.000Z")), "1min 5s");
    }
}
