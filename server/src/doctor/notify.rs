//! Whether people are told what they asked to hear.

use punctual::control::{ControlError, JobObject, Untold};
use punctual::job::spec::JobSpec;

use super::Check;
use crate::notify::Webhooks;
use crate::times::span;

/// News that is so old is held up by something.
const HELD_UP_MS: i64 = 60_000;

/// Nothing where nobody asked for news.
pub(super) fn check(
    jobs: &[JobObject],
    webhooks: &Webhooks,
    untold: Result<Untold, ControlError>,
    now_ms: i64,
) -> Option<Check> {
    let specs: Vec<JobSpec> = jobs.iter().map(|job| job.spec.clone()).collect();
    let refused: Vec<String> = webhooks
        .refused(&specs)
        .into_iter()
        .map(|(job, finding)| format!("{job}: {}", finding.message))
        .collect();
    if let Some(first) = refused.first() {
        let more = match refused.len() {
            1 => String::new(),
            several => format!(" (and {} more)", several - 1),
        };
        return Some(Check::problem(
            "notify",
            format!("{first}{more}; while this node leads, it is told nothing"),
            "start all nodes with the same --notify-allow, or take the receiver out of the job",
        ));
    }
    let asked = specs.iter().filter(|spec| !spec.notify.is_empty()).count();
    let untold = match untold {
        Ok(untold) => untold,
        Err(error) => {
            return Some(Check::problem(
                "notify",
                error.to_string(),
                "see the check of the store",
            ));
        }
    };
    match untold.oldest_ms {
        Some(oldest_ms) if now_ms - oldest_ms > HELD_UP_MS => Some(Check::problem(
            "notify",
            format!(
                "{} messages are not taken by {}, the oldest for {}",
                untold.count,
                untold.receivers.join(", "),
                span(now_ms - oldest_ms)
            ),
            "the leader's log says what the receivers answer; after a day a message is given up",
        )),
        _ if asked == 0 => None,
        _ => Some(Check::ok(
            "notify",
            format!("{asked} jobs tell what happens to them"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::doctor::Verdict;
    use crate::metrics::Metrics;
    use punctual_server::outbound::{Allowed, Client, ControlPlane, Pattern};

    fn job(webhook: Option<&str>) -> JobObject {
        let notify: Vec<_> = webhook
            .into_iter()
            .map(|url| serde_json::json!({ "webhook": url, "on": ["failed"] }))
            .collect();
        serde_json::from_value(serde_json::json!({
            "spec": { "id": "a", "run": { "handler": "h" }, "notify": notify }, "generation": 1,
            "revision": 1, "state": "on_demand", "paused": null,
            "created_at": "2026-01-01T00:00:00.000Z", "updated_at": "2026-01-01T00:00:00.000Z",
            "next_at": null, "last_at": null, "active_runs": 0,
        }))
        .unwrap()
    }

    #[test]
    fn what_keeps_people_from_being_told_is_named() {
        let named = vec![Pattern::parse("a.org").unwrap()];
        let allowed = Allowed::named("--notify-allow", named, ControlPlane::default());
        let webhooks = Webhooks::new(Client::new(allowed), None, Arc::new(Metrics::new()));
        let told = |webhook, oldest_ms: Option<i64>| {
            let untold = Untold {
                count: u64::from(oldest_ms.is_some()),
                oldest_ms,
                receivers: vec!["a.org:443".into()],
            };
            check(&[job(webhook)], &webhooks, Ok(untold), 100_000)
        };
        let verdict = |found: Option<Check>| found.map(|found| (found.verdict, found.detail));
        assert_eq!(verdict(told(None, None)), None);
        let allowed = Some("https://a.org/");
        for fresh in [None, Some(40_000)] {
            assert_eq!(verdict(told(allowed, fresh)).unwrap().0, Verdict::Ok);
        }
        let held_up = verdict(told(allowed, Some(39_999))).unwrap();
        assert_eq!(held_up.0, Verdict::Problem);
        assert!(held_up.1.contains("a.org:443"), "{}", held_up.1);
        let refused = verdict(told(Some("https://b.org/"), None)).unwrap();
        assert_eq!(refused.0, Verdict::Problem);
        assert!(
            refused.1.contains("--notify-allow b.org:443"),
            "{}",
            refused.1
        );
    }
}
