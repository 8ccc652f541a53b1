//! What is learnt from data: demonstrations, pairs, and what an exploration keeps.

use super::data::Ids;
use super::spelled::Spelled;
use crate::episode::Episode;
use agentgym_algorithms::LearningRateStyle;
use agentgym_algorithms::losses::DpoLoss;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What happens to a row of a training file that is too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverlongRows {
    /// The run stops at its first part and names the row.
    Refuse,
    /// It is counted and not learnt.
    LeaveOut,
}

/// Where demonstrations come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SftSource {
    /// AgentTraj-L file; or else `env` and `ids`.
    #[serde(default)]
    pub file: Option<String>,
    /// A built-in environment whose solver demonstrates.
    #[serde(default)]
    pub env: Option<String>,
    #[serde(default)]
    pub ids: Option<Ids>,
    /// Style of the solver's demonstrations.
    #[serde(default)]
    pub style: Option<String>,
    /// Share of every batch; default: by size.
    #[serde(default)]
    pub share: Option<f64>,
    /// Rows of `file`; a plan of passes over them counts them.
    #[serde(default)]
    pub rows: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sft {
    pub sources: Vec<SftSource>,
    pub batch_size: usize,
    pub steps: u32,
    pub epochs: Option<u32>,
    pub lr: f64,
    pub warmup_steps: u32,
    pub min_lr_ratio: f64,
    pub betas: (f64, f64),
    pub weight_decay: f64,
    pub grad_clip: f64,
    pub max_length: usize,
    pub overlong: OverlongRows,
    pub validation_share: f64,
    pub validation_sources: Vec<SftSource>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dpo {
    pub expert_file: Option<String>,
    pub experience_file: Option<String>,
    pub reward_gap: f64,
    pub expert_threshold: f64,
    pub prompt_length: usize,
    pub beta: f64,
    pub loss_type: Spelled<DpoLoss>,
    pub batch_size: usize,
    pub steps: u32,
    pub lr: f64,
    pub warmup_steps: u32,
    pub warmup_style: LearningRateStyle,
    pub min_lr_ratio: f64,
    pub betas: (f64, f64),
    pub weight_decay: f64,
    pub grad_clip: f64,
    pub max_length: usize,
    pub overlong: OverlongRows,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AgentEvol {
    pub threshold: Option<Threshold>,
    pub keep: Keep,
    pub add_original_data: bool,
    pub accumulate: bool,
    pub share: Option<f64>,
    pub steps: u32,
}

/// Least reward of a kept trajectory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Threshold {
    /// Of every environment.
    All(f64),
    /// By environment; in one that is not named what counts is the success.
    ByEnv(BTreeMap<String, f64>),
}

/// Which of a task's good trajectories are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// The one with the highest reward, of these the shortest, of these the first.
    Best,
    /// All that differ in what the policy said.
    All,
}

impl AgentEvol {
    /// True if the episode is good enough to be learnt.
    pub fn keeps(&self, episode: &Episode) -> bool {
        let least = match &self.threshold {
            None => None,
            Some(Threshold::All(least)) => Some(*least),
            Some(Threshold::ByEnv(by_env)) => by_env.get(&episode.task.env).copied(),
        };
        episode.usable() && least.map_or(episode.success, |least| episode.reward >= least)
    }
}
