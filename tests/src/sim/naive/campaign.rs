//! Many seeds of the articles' design.

use std::time::Instant;

use serde_json::{Value, json};

use super::count::{Count, count};
use crate::sim::campaign::Options;
use crate::sim::coverage;
use crate::sim::crew;
use crate::sim::world::simulate;

/// What came of it.
#[derive(Debug, Default)]
pub struct NaiveCampaign {
    /// Seeds that were run.
    pub seeds: u64,
    /// Those in which something was missed.
    pub with_misses: u64,
    /// Those in which something was done twice.
    pub with_duplicates: u64,
    /// Over all seeds.
    pub total: Count,
    executions: u64,
    faults: u64,
    simulated_ms: u64,
    wall_s: f64,
}

impl NaiveCampaign {
    /// Runs the seeds.
    #[must_use]
    pub fn run(options: &Options) -> Self {
        let begun = Instant::now();
        let mut campaign = Self::default();
        let one = |number| {
            let mut plan = options.plan(options.start + number);
            plan.naive = true;
            let observed = simulate(&plan);
            let found = count(&observed);
            Self {
                seeds: 1,
                with_misses: u64::from(found.misses > 0),
                with_duplicates: u64::from(found.duplicates > 0),
                total: found,
                executions: observed.effects.len() as u64,
                faults: coverage::faults(&observed).values().sum::<u64>(),
                simulated_ms: plan.end_ms,
                wall_s: 0.0,
            }
        };
        crew::in_order(options.seeds, options.threads, one, |seed| {
            campaign.seeds += seed.seeds;
            campaign.with_misses += seed.with_misses;
            campaign.with_duplicates += seed.with_duplicates;
            campaign.total.instants += seed.total.instants;
            campaign.total.misses += seed.total.misses;
            campaign.total.duplicates += seed.total.duplicates;
            campaign.executions += seed.executions;
            campaign.faults += seed.faults;
            campaign.simulated_ms += seed.simulated_ms;
        });
        campaign.wall_s = begun.elapsed().as_secs_f64();
        campaign
    }

    /// The output.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "naive": true,
            "seeds": self.seeds,
            "seeds_with_misses": self.with_misses,
            "seeds_with_duplicates": self.with_duplicates,
            "instants": self.total.instants,
            "misses": self.total.misses,
            "duplicates": self.total.duplicates,
            "executions": self.executions,
            "faults": self.faults,
            "simulated_s": self.simulated_ms / 1_000,
            "wall_s": self.wall_s,
        })
    }
}
