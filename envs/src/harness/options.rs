//! Options of a harness.

use std::path::PathBuf;

/// What a harness starts, and how it judges.
#[derive(Clone, Debug)]
pub struct HarnessOptions {
    /// The agent's command line; sh runs it.
    pub command: String,
    /// A command line that judges what the agent left, instead of the agent's own word.
    pub judge: Option<String>,
    /// The agent's exit code is its reward: 1 for 0, else 0.
    pub judges_by_exit: bool,
    /// Seconds that an agent may take, those in which the gateway computes apart.
    pub time_limit_s: f64,
    /// Bytes that an agent may write to its standard streams.
    pub output_bytes_max: u64,
    /// Where the episodes' folders are made.
    pub folder: PathBuf,
    /// Leave them there.
    pub keeps_folders: bool,
}
