//! Runs simulations from seeds, checks them, and says how to run a failure again.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a command line tool"
)]

use std::process::ExitCode;

use punctual_tests::sim::campaign::{Campaign, Options};
use punctual_tests::sim::coverage;
use punctual_tests::sim::naive::NaiveCampaign;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}\n\n{}", Options::USAGE);
            return ExitCode::from(2);
        }
    };
    if options.naive {
        println!("{}", NaiveCampaign::run(&options).json());
        return ExitCode::SUCCESS;
    }
    let campaign = Campaign::run(&options, |line| eprintln!("{line}"));
    eprintln!("{}", coverage::table(&campaign.coverage));
    println!("{}", campaign.json());
    if !campaign.uncovered.is_empty() {
        eprintln!(
            "these did not happen in {} seeds, so their silence says nothing: {}",
            campaign.seeds,
            campaign.uncovered.join(", ")
        );
    }
    if campaign.failed() {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    }
}
