//! What a run is, where it lies and how its jobs are cut.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pipeline {
    Rl,
    Sft,
    Dpo,
    #[serde(rename = "agentevol")]
    AgentEvol,
    Eval,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Numerics {
    Exact,
    Any,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub id: Option<String>,
    pub name: Option<String>,
    pub pipeline: Pipeline,
    pub seed: u64,
    pub numerics: Numerics,
    pub fork: Fork,
}

/// Where a forked run goes on from; `agentgym-submit fork` writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    pub run: Option<String>,
    pub identity: Option<String>,
    pub iteration: u32,
    pub fresh_optimizer: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Storage {
    pub url: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueueSection {
    pub url: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Jobs {
    pub workers: usize,
    pub threads: Option<usize>,
    pub hold: bool,
    pub priority: i32,
    pub rollout_part_tasks: usize,
    pub unit_tokens: usize,
    pub update_shards: u32,
    pub sft_part_steps: u32,
    pub dpo_part_steps: u32,
    pub pack_tokens: usize,
    pub decode_rows: usize,
    pub cache_tokens: usize,
    pub journal_interval_s: f64,
    pub beat_timeout_s: u64,
    pub lease_ttl_s: u64,
    pub failures_max: u32,
    pub vanished_max: u32,
    pub backoff_s: f64,
    pub length_max: usize,
    pub cache_gb: f64,
}
