//! `why`: what became of an instant, and from what that is known.

use punctual::control::WhyObject;

use super::args::Common;
use super::connect;
use super::failure::Outcome;
use super::job::path;
use crate::client::with_query;
use crate::output::Output;
use crate::table::pairs;

pub(super) async fn why(common: &Common, output: &Output, job: &str, at: Option<&str>) -> Outcome {
    let mut client = connect(common)?;
    let path = path(job, "/why");
    let path = match at {
        Some(at) => with_query(&path, &[("at", at)]),
        None => path,
    };
    let why: WhyObject = client.get(&path).await?;
    output.object(&why, &why.summary, || describe(output, &why))
}

fn describe(output: &Output, why: &WhyObject) -> String {
    let clock = &output.clock;
    let both = |time: &str| {
        format!(
            "{} ({})",
            clock.moment(Some(time)),
            clock.distance(Some(time))
        )
    };
    let next: Vec<String> = why.next.iter().map(|time| both(time)).collect();
    let next = match next.is_empty() {
        true => "-".into(),
        false => next.join("\n"),
    };
    pairs(&[
        ("Job", why.job_id.clone()),
        ("Instant", both(&why.at)),
        ("Answer", why.summary.clone()),
        ("Evidence", why.evidence.join("\n")),
        ("Next", next),
    ])
}
