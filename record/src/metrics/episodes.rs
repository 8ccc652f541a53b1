//! What stages say of episodes that were played.

use crate::numbers::number;
use agentgym_algorithms::evaluation::EvaluationScore;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Statistics of a set of episodes. Means are over the usable episodes; a fault is counted and is not a
/// failure (I8).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EpisodeSummary {
    /// Unusable ones included.
    pub episodes: usize,
    /// Share that solved its task.
    pub success: f64,
    /// The environment's last reward.
    #[serde(deserialize_with = "number")]
    pub reward: f64,
    /// Turns of an episode.
    pub rounds_mean: f64,
    /// Tokens after the prompt, observations included: a length.
    pub response_length_mean: f64,
    /// Tokens before the first sampled one.
    pub prompt_length_mean: f64,
    /// Tokens that the policy sampled in all usable episodes.
    pub loss_tokens: usize,
    /// Episodes by how they ended.
    pub outcomes: BTreeMap<String, usize>,
    /// Episodes that failed because of the environment.
    pub env_faults: usize,
    /// Their share.
    pub env_fault_rate: f64,
}

/// Of an iteration's episodes. Entries of an option are written only if the option is on, so that the
/// metrics of other runs keep their bytes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AdvantageMetrics {
    #[serde(flatten)]
    pub episodes: EpisodeSummary,
    pub success_by_env: BTreeMap<String, f64>,
    /// Largest number of rounds in this iteration.
    pub horizon: u32,
    /// Groups whose members all have the same reward of at most 0: no gradient.
    pub groups_all_zero: usize,
    /// Groups whose members all have the same positive reward: no gradient.
    pub groups_all_one: usize,
    /// Groups whose rewards differ: these have a gradient.
    pub groups_mixed: usize,
    /// Groups with too few members left: excluded.
    pub groups_excluded: usize,
    /// Entropy per sampled token at the start of the update, nats.
    #[serde(deserialize_with = "number")]
    pub entropy: f64,
    /// Mean over episodes of the k3 estimate of KL to the reference policy, nats.
    pub ref_kl: Option<f64>,
    /// Largest |sampled − old log-prob|; 0 on-policy with exact numerics. `None` where the old ones
    /// are those sampled: then the stats of `log_probs` say what was checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_prob_mismatch_max: Option<f64>,
    /// k3 of KL(sampler ‖ policy) per token, if the two differ at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_prob_mismatch_kl: Option<f64>,
    /// Mean importance weight of the correction for this mismatch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub importance_weight_mean: Option<f64>,
    /// Share of tokens whose weight was clipped at the threshold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub importance_weight_cut: Option<f64>,
    /// Coefficient of the KL penalty in this iteration's rewards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl_coef: Option<f64>,
    /// The KL that the controller measured: mean over episodes, nats per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl_in_reward: Option<f64>,
    /// Sources of `data.tasks` that later iterations draw from, under a curriculum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sources_entered: Option<usize>,
    /// Mean reward of the greedy baseline episodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline_reward: Option<f64>,
    /// Share of the variance of the returns that the critic's values explain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explained_variance: Option<f64>,
}

/// Of the episodes that AgentEvol explored, and of what it keeps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FilterMetrics {
    #[serde(flatten)]
    pub episodes: EpisodeSummary,
    #[serde(flatten)]
    pub counts: Kept,
    pub success_by_env: BTreeMap<String, f64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Trajectories that the iteration trains on.
    pub kept: usize,
    /// Those from this iteration.
    pub kept_new: usize,
    /// Distinct tasks among them.
    pub tasks_kept: usize,
    /// Episodes of this iteration below their threshold.
    pub below_threshold: usize,
    /// Good ones dropped for a better one of the task, or an equal one.
    pub duplicates: usize,
    /// Good ones with more tokens than `sft.max_length`.
    pub too_long: usize,
}

/// Of a round of a filter of groups.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectMetrics {
    /// 1-based.
    pub round: u32,
    /// Groups of the round with at least one usable member.
    pub groups: usize,
    /// Groups whose rewards differ.
    pub groups_mixed: usize,
    /// Groups whose rewards are all the same.
    pub groups_uniform: usize,
    /// Groups selected so far.
    pub groups_selected: usize,
    /// Groups still missing.
    pub groups_missing: usize,
}

/// What a reward function answered; rewards and components are means.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RewardMetrics {
    /// Episodes that it rewarded.
    pub rewarded: usize,
    /// Episodes that it answered null for.
    pub unrewarded: usize,
    #[serde(deserialize_with = "number")]
    pub reward: f64,
    /// The environment's rewards of the same episodes.
    #[serde(deserialize_with = "number")]
    pub environment_reward: f64,
    /// Each over the episodes that have it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub components: BTreeMap<String, f64>,
}

/// Of a held-out set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationMetrics {
    pub set: String,
    pub env: String,
    pub tasks: usize,
    /// Mean over tasks of the share solved at `evaluation.temperature`.
    pub success: f64,
    /// Standard error of `success`, with tasks as the independent units.
    pub stderr: f64,
    /// Share of tasks solved greedily, if greedy episodes were requested.
    pub success_greedy: Option<f64>,
    /// All episodes, greedy ones and faults included.
    pub episodes: usize,
    /// Episodes that failed because of the environment; they are in no mean.
    pub faults: usize,
    #[serde(deserialize_with = "number")]
    pub reward: f64,
    pub rounds_mean: f64,
    pub horizon: u32,
    pub sampled: EpisodeSummary,
    /// avg@n, pass@k and the like over all tasks.
    pub score: EvaluationScore,
    /// The same for the tasks of each category; absent without categories.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub categories: BTreeMap<String, EvaluationScore>,
}
