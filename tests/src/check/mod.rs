//! What a history must be, one invariant (or a family of them) a file.
//!
//! Two witnesses are heard: the store's complete event log, and the ledger that the executed code
//! wrote itself. When jobs should fire is said by an oracle that shares no code with the product.

pub mod authority;
pub mod chain;
pub mod changes;
pub mod delay;
pub mod effects;
pub mod exactly_once;
pub mod history;
pub mod liveness;
pub mod lives;
pub mod notify;
pub mod operators;
pub mod oracle;
pub mod parts;
pub mod policy;
pub mod progress;
pub mod slots;
pub mod states;

pub use history::{History, Violation};

use crate::sim::world::Observed;

/// Everything that is wrong with what was observed.
#[must_use]
pub fn check(observed: &Observed) -> Vec<Violation> {
    check_history(&History::new(observed))
}

/// The same of a history that is decoded already.
#[must_use]
pub fn check_history(history: &History<'_>) -> Vec<Violation> {
    let mut violations = exactly_once::check(history);
    violations.extend(policy::check(history));
    violations.extend(changes::check(history));
    violations.extend(chain::check(history));
    violations.extend(delay::check(history));
    violations.extend(notify::check(history));
    violations.extend(states::check(history));
    violations.extend(effects::check(history));
    violations.extend(authority::check(history));
    violations.extend(slots::check(history));
    violations.extend(parts::check(history));
    violations.extend(progress::check(history));
    violations.extend(operators::check(history));
    violations.extend(liveness::check(history));
    violations
}

#[cfg(test)]
mod notify_tests;
#[cfg(test)]
mod parts_tests;
#[cfg(test)]
mod progress_tests;
#[cfg(test)]
mod slots_tests;
#[cfg(test)]
mod tests;
