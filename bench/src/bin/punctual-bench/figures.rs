//! Medians, and the machine that they were measured on.

use serde_json::{Value, json};

/// A figure of several rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds(Vec<f64>);

impl Rounds {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// The middle one; NaN if there is none.
    pub(crate) fn median(&self) -> f64 {
        let sorted = self.sorted();
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// The smallest and the largest.
    pub(crate) fn spread(&self) -> (f64, f64) {
        let sorted = self.sorted();
        let at = |value: Option<&f64>| value.copied().unwrap_or(f64::NAN);
        (at(sorted.first()), at(sorted.last()))
    }

    /// `median (min to max)`.
    pub(crate) fn text(&self, digits: usize) -> String {
        let (low, high) = self.spread();
        format!(
            "{:.digits$} ({low:.digits$} to {high:.digits$})",
            self.median()
        )
    }

    /// Every round, for whoever wants to plot them.
    pub(crate) fn all(&self) -> Value {
        json!(
            self.0
                .iter()
                .map(|value| round(*value, 3))
                .collect::<Vec<_>>()
        )
    }
}

/// The quotient of each round: what was measured side by side is compared side by side.
pub(crate) fn quotients(of: &Rounds, by: &Rounds) -> Rounds {
    Rounds(of.0.iter().zip(&by.0).map(|(a, b)| a / b).collect())
}

/// The value that so many of a thousand do not exceed; sorts.
pub(crate) fn permille(values: &mut [i64], permille: usize) -> i64 {
    values.sort_unstable();
    let last = values.len().saturating_sub(1);
    values
        .get(last * permille / 1_000)
        .copied()
        .unwrap_or_default()
}

/// With so many digits behind the point.
pub(crate) fn round(value: f64, digits: i32) -> f64 {
    let factor = 10f64.powi(digits);
    (value * factor).round() / factor
}

/// Cores, kernel and load of this machine.
pub(crate) fn machine() -> Value {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map(|rest| rest.trim_start_matches([' ', '\t', ':']).to_owned());
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let memory = read("/proc/meminfo");
    json!({
        "cpu": model,
        "cores": cores,
        "memory": memory.lines().next().map(|line| line.trim_start_matches("MemTotal:").trim()),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "load": read("/proc/loadavg").split(' ').next(),
    })
}
