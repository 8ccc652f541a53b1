//! Names inside a queue: of lanes, claims and claim holders.

use crate::error::{Error, Result};
use crate::job::Job;

/// The name of a lane: the jobs of one class, run and priority, which wait only for each other.
pub(crate) fn lane_name(class: &str, run: &str, priority: i32) -> String {
    format!("{class}@{run}@{priority}")
}

/// The class, run and priority of a lane. A foreign name without `@` counts as a class.
pub(crate) fn lane_parts(lane: &str) -> (&str, &str, i32) {
    let mut pieces = lane.split('@');
    let class = pieces.next().unwrap_or_default();
    let run = pieces.next().unwrap_or_default();
    let priority = pieces.next().and_then(|p| p.parse().ok()).unwrap_or(0);
    (class, run, priority)
}

pub(crate) fn claim_name(job: &Job) -> String {
    format!("claim/{}", job.key())
}

pub(crate) fn trouble_name(worker: &str) -> String {
    format!("trouble/{worker}")
}

/// The worker's part of a holder's name.
pub(crate) fn holder_name(holder: &str) -> &str {
    holder.split('\n').next().unwrap_or_default()
}

/// Distinguishes holders and workers of the same name.
pub(crate) fn nonce() -> Result<String> {
    let nonce = getrandom::u64().map_err(|source| {
        Error::Options(format!(
            "the system gives no random numbers ({source}); mount /dev/urandom"
        ))
    })?;
    Ok(format!("{nonce:016x}"))
}
