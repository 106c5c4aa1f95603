//! Who is told what: `notify` in a job's definition.

use serde::{Deserialize, Serialize};

use crate::duration::Millis;

use super::{HttpUrl, JobSpec, SpecError};

/// So many receivers of one job.
pub const MAX_NOTIFY: usize = 4;
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

/// Who a webhook's URL leads to: [`HttpUrl::receiver`], and of one that cannot be read, nothing.
#[must_use]
pub fn receiver_of(url: &str) -> String {
    HttpUrl::parse(url).map_or_else(|_| "?".to_owned(), |url| url.receiver())
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
            if let Err(why) = HttpUrl::parse(&notify.webhook) {
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
