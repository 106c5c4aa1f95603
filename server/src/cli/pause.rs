//! `job pause` and `job resume`, of one job or all.

use punctual::control::{AllReport, JobObject};

use super::args::PauseArgs;
use super::check::count;
use super::failure::{Exit, Failure, Outcome};
use super::job::{changed, path};
use crate::client::Client;
use crate::output::Output;

pub(super) async fn pause(client: &mut Client, output: &Output, args: PauseArgs) -> Outcome {
    let body = serde_json::json!({
        "reason": args.reason,
        "until": args.until,
        "by": user(),
    });
    let Some(id) = args.job else {
        return all(client, output, "/v1/pause", &body, "paused").await;
    };
    let before: JobObject = client.get(&path(&id, "")).await?;
    let job: JobObject = client.post(&path(&id, "/pause"), &body, vec![]).await?;
    let until = job.paused.as_ref().and_then(|paused| paused.until.clone());
    let until = until.map(|until| format!(" until {}", output.clock.moment(Some(&until))));
    let until = until.unwrap_or_default();
    if before.paused.is_none() {
        return changed(output, &job, &format!("paused{until}"));
    }
    let stood = before.paused == job.paused;
    let reason = job.paused.as_ref().and_then(|paused| paused.reason.clone());
    let reason = reason.unwrap_or_else(|| "no reason given".into());
    let word = match stood {
        true => format!("was paused already{until}: {reason}"),
        false => format!("was paused already, and is now{until}: {reason}"),
    };
    changed(output, &job, &word)
}

pub(super) async fn resume(client: &mut Client, output: &Output, id: &str) -> Outcome {
    let before: JobObject = client.get(&path(id, "")).await?;
    if before.paused.is_none() {
        return changed(output, &before, "is not paused");
    }
    let job = client.post(&path(id, "/resume"), &(), vec![]).await?;
    changed(output, &job, "resumed")
}

pub(super) async fn resume_all(client: &mut Client, output: &Output) -> Outcome {
    all(
        client,
        output,
        "/v1/resume",
        &serde_json::json!({}),
        "resumed",
    )
    .await
}

/// Asks again until nothing remains: a server stops after a while, so that nobody waits in vain.
async fn all(
    client: &mut Client,
    output: &Output,
    address: &str,
    body: &serde_json::Value,
    word: &str,
) -> Outcome {
    let mut changed = 0;
    loop {
        let asked = client.post(address, body, vec![]).await;
        let mut report: AllReport = asked.map_err(|failure| match changed {
            0 => failure,
            _ => failure.hint(format!(
                "{} {word} before that; the same command goes on with the rest",
                count(changed, "job")
            )),
        })?;
        changed += report.changed;
        report.changed = changed;
        if report.remaining > 0 && report.interrupted.is_none() {
            output.note(&format!(
                "{} {word}, {} to go",
                count(changed, "job"),
                report.remaining
            ));
            continue;
        }
        for id in &report.left_out {
            output.note(&format!(
                "warning: {id} cannot be read by this version and was left as it is"
            ));
        }
        if let Some(why) = &report.interrupted {
            let message = format!(
                "{} {word}; at least {} remain: {why}",
                count(changed, "job"),
                report.remaining
            );
            return Err(Failure::new(Exit::Unreachable, message)
                .hint("the same command goes on with the rest"));
        }
        return output.object(&report, word, || match report.unchanged {
            0 => format!("{} {word}\n", count(changed, "job")),
            n => format!("{} {word}, {n} left as they were\n", count(changed, "job")),
        });
    }
}

/// Who asks, as this machine calls them.
fn user() -> Option<String> {
    let names = ["SUDO_USER", "USER", "LOGNAME"].into_iter();
    names
        .filter_map(|name| std::env::var(name).ok())
        .find(|name| !name.is_empty())
}
