//! The negative control: the design of the articles, under the same harness.
//!
//! One leader holds a lock with a lease. Once a second it asks of each job whether "now" matches its
//! expression, names the run after "now", creates it if it is absent, and does the work. What fails
//! or times out is taken for "somebody else won". It is as good as that design gets: it reads
//! schedules without a fault (it asks the oracle), and the operators' changes reach the store at once.

pub mod campaign;
pub mod count;
mod node;

pub use campaign::NaiveCampaign;
pub use node::{NaiveNode, operate};

use punctual::job::spec::JobSpec;
use serde::{Deserialize, Serialize};

/// A job as this design keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NaiveJob {
    /// What was registered.
    pub spec: JobSpec,
    /// When it was registered first, in Unix milliseconds.
    pub created_ms: i64,
    /// Whether an operator holds it.
    pub paused: bool,
}

/// The keys are not the product's, so that nobody reads one for the other.
const JOBS: &str = "naive job ";

fn job_key(id: &str) -> Vec<u8> {
    format!("{JOBS}{id}").into_bytes()
}

fn run_key(name: &str) -> Vec<u8> {
    format!("naive run {name}").into_bytes()
}

/// The id of the job behind a key.
fn job_of(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key).ok()?.strip_prefix(JOBS)
}
