//! What `/proc` says of a process.

use crate::stage::text;

/// Processor time that a process has used, in milliseconds.
pub(crate) fn cpu_ms(pid: u32) -> Result<f64, String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).map_err(text)?;
    // Behind the name, which may hold anything: fields 14 and 15 of proc(5), in ticks of 10 ms.
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |n: usize| fields.get(n).and_then(|field| field.parse::<f64>().ok());
    let used = ticks(11).zip(ticks(12)).map(|(user, system)| user + system);
    used.map(|ticks| ticks * 10.0)
        .ok_or_else(|| "/proc says nothing of its processor time".into())
}

/// A line of `/proc/PID/status`, in megabytes.
pub(crate) fn memory_mb(pid: u32, line: &str) -> Result<f64, String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).map_err(text)?;
    let kilobytes = status.lines().find_map(|l| l.strip_prefix(line));
    kilobytes
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
        .map(|kilobytes| kilobytes / 1_024.0)
        .ok_or_else(|| format!("/proc says nothing of its {line}"))
}
