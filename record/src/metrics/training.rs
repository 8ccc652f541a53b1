//! What stages say of steps that were trained.

use crate::numbers::{is_zero, number};
use serde::{Deserialize, Serialize};

/// Of the files that `init` copied: only what an option or a pipeline adds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitMetrics {
    #[serde(flatten)]
    pub pairs: Option<Pairs>,
    /// Rows of files that are longer than `sft.max_length`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sft_rows_left_out: Option<usize>,
}

/// How many tasks of both files became pairs, and why the others did not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pairs {
    pub pairs: usize,
    /// Tasks in one file only.
    pub without_counterpart: usize,
    /// Rewards closer than `dpo.reward_gap`.
    pub below_gap: usize,
    /// The better reward is below `dpo.expert_threshold`.
    pub below_threshold: usize,
    /// An answer is longer than `dpo.max_length`, and `dpo.overlong` is `leave_out`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub too_long: usize,
}

/// Tokens of the sequences of all steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainedTokens {
    pub trained_tokens: usize,
    /// Those among them that cost nothing: another sequence of their unit has them too, or no loss
    /// token comes after them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_tokens: Option<usize>,
}

/// Of supervised steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SftMetrics {
    /// 0-based, end excluded.
    pub steps: (u32, u32),
    /// Mean cross-entropy per reply token over the part, nats.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    #[serde(deserialize_with = "number")]
    pub grad_norm: f64,
    #[serde(flatten)]
    pub tokens: TrainedTokens,
    pub loss_tokens: usize,
    pub curve: Vec<SftPoint>,
    /// Steps whose gradient was not finite: they changed nothing and are in no mean.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub non_finite_steps: usize,
    #[serde(flatten)]
    pub validation: Option<Validation>,
}

/// A mean over steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SftPoint {
    /// The last of them, 1-based.
    pub step: u32,
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    #[serde(deserialize_with = "number")]
    pub grad_norm: f64,
    pub lr: f64,
}

/// Loss on the held-out rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    pub validation_conversations: usize,
    pub validation_tokens: usize,
    /// The last validation loss of the part, nats per reply token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f64>,
    /// Before the first step of the phase, after each pass, and at the end of the part.
    pub validation: Vec<ValidationPoint>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ValidationPoint {
    /// Number of steps before it.
    pub step: u32,
    /// Passes over the rows before it, if the run makes whole passes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub validation_loss: f64,
}

/// Of steps on preferences.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DpoMetrics {
    /// 0-based, end excluded.
    pub steps: (u32, u32),
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// Share of pairs whose chosen answer has the larger implicit reward.
    pub accuracy: f64,
    /// β · (policy − reference) of the chosen and of the rejected answers, nats.
    #[serde(deserialize_with = "number")]
    pub chosen_reward: f64,
    #[serde(deserialize_with = "number")]
    pub rejected_reward: f64,
    #[serde(deserialize_with = "number")]
    pub grad_norm: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub non_finite_steps: Option<usize>,
    #[serde(flatten)]
    pub tokens: TrainedTokens,
    pub curve: Vec<DpoPoint>,
}

/// A mean over steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DpoPoint {
    /// The last of them, 1-based.
    pub step: u32,
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    pub accuracy: f64,
    pub lr: f64,
}

/// Of the policy's steps; means over those that were taken.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UpdateMetrics {
    #[serde(deserialize_with = "number")]
    pub pg_loss: f64,
    pub clip_fraction: f64,
    /// Mean of `old − new` log-prob over tokens, nats.
    #[serde(deserialize_with = "number")]
    pub ppo_kl: f64,
    #[serde(deserialize_with = "number")]
    pub entropy: f64,
    #[serde(deserialize_with = "number")]
    pub kl_loss: f64,
    #[serde(deserialize_with = "number")]
    pub ratio_max: f64,
    /// Before clipping.
    #[serde(deserialize_with = "number")]
    pub grad_norm: f64,
    pub lr: f64,
    pub optimizer_steps: usize,
    pub skipped_steps: usize,
    /// Skipped steps whose gradient was not finite.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub non_finite_steps: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dual_clip_fraction: Option<f64>,
    #[serde(flatten)]
    pub tokens: TrainedTokens,
}

/// Of the critic's steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CriticMetrics {
    #[serde(deserialize_with = "number")]
    pub vf_loss: f64,
    pub vf_clip_fraction: f64,
    /// Mean value per loss token.
    #[serde(deserialize_with = "number")]
    pub value_mean: f64,
    #[serde(deserialize_with = "number")]
    pub grad_norm: f64,
    pub lr: f64,
    pub optimizer_steps: usize,
    pub skipped_steps: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub non_finite_steps: Option<usize>,
    #[serde(flatten)]
    pub tokens: TrainedTokens,
}
