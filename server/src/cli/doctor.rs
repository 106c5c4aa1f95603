//! `doctor`: is everything well, and if not, what to do.

use super::args::Common;
use super::connect;
use super::failure::{Exit, Failure, Outcome};
use crate::doctor::{Check, Report, Verdict, between};
use crate::output::Output;
use crate::table::Table;
use crate::times::now_ms;

pub(super) async fn doctor(common: &Common, output: &Output) -> Outcome {
    let mut client = connect(common)?;
    let before = now_ms();
    let mut report: Report = client.get("/v1/doctor").await?;
    let after = now_ms();
    let clocks = between(before, report.took_ms, report.now_ms, after);
    report.checks.push(clocks);
    let problems = report.checks.iter().filter(is_problem).count();
    output.object(&report, &report.node, || describe(&report))?;
    match problems {
        0 => Ok(()),
        1 => Err(Failure::new(Exit::Findings, "1 problem")),
        more => Err(Failure::new(Exit::Findings, format!("{more} problems"))),
    }
}

fn is_problem(check: &&Check) -> bool {
    check.verdict == Verdict::Problem
}

fn describe(report: &Report) -> String {
    let mut table = Table::new(["CHECK", "", "FOUND"].map(str::to_owned).into());
    for check in &report.checks {
        let verdict = match check.verdict {
            Verdict::Ok => "ok",
            Verdict::Notice => "notice",
            Verdict::Problem => "PROBLEM",
        };
        table.push(vec![
            check.check.clone(),
            verdict.into(),
            check.detail.clone(),
        ]);
    }
    let mut text = table.render(true, false);
    let advised = report.checks.iter().filter(|check| check.advice.is_some());
    for (number, check) in advised.enumerate() {
        if number == 0 {
            text.push_str("\nWhat to do:\n");
        }
        let advice = check.advice.as_deref().unwrap_or_default();
        text.push_str(&format!("  {}: {advice}\n", check.check));
    }
    text
}
